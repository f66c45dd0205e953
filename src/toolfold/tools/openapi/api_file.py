"""Store the operations of an API, so that its OpenAPI document is not parsed again.

The file has one JSON object per line: first the API, then its operations. Its checksum is in the settings,
and a file that does not match it is not used: whoever changes it could send credentials elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from toolfold.core.errors import SourceError, shorten
from toolfold.tools.openapi.api_credentials import SecurityScheme
from toolfold.tools.openapi.operations import ApiOperation

__all__ = ["APIS_DIRECTORY", "StoredApi", "format_api", "locate_api_file", "read_api"]

APIS_DIRECTORY = "apis"
MAX_FILE_BYTES = 200_000_000
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class StoredApi:
    """The stored operations and security schemes of one API."""

    title: str
    operations: Sequence[ApiOperation]
    schemes: Mapping[str, SecurityScheme] = field(default_factory=dict)


def locate_api_file(config_dir: Path, name: str) -> Path:
    """Return the path of the file with the operations of an API."""
    return config_dir / APIS_DIRECTORY / f"{name}.jsonl"


def format_api(api: StoredApi) -> tuple[bytes, str]:
    """Return the content of an API's file, and its checksum."""
    head = {
        "format": _FORMAT,
        "title": api.title,
        "schemes": [asdict(scheme) for scheme in api.schemes.values()],
    }
    lines = [head, *(operation.to_json() for operation in api.operations)]
    content = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines).encode()
    return content, _compute_checksum(content)


def read_api(file: Path, checksum: str) -> StoredApi:
    """Read an API from a file. Raises SourceError if the file is missing, damaged or has another checksum."""
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SourceError(f"{file} cannot be read: {error.strerror}. {_ADD_AGAIN}") from None
    if _compute_checksum(content) != checksum:
        raise SourceError(f"{file} was changed since the API was added. {_ADD_AGAIN}")
    try:
        head, *lines = map(json.loads, content.splitlines())
        schemes = [SecurityScheme(**each) for each in head["schemes"]]
        operations = [ApiOperation.from_json(line) for line in lines]
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(f"{file} is damaged: {shorten(str(error))}. {_ADD_AGAIN}") from None
    return StoredApi(head["title"], operations, {scheme.name: scheme for scheme in schemes})


_ADD_AGAIN = "Add the API again with `toolfold tools from-openapi`."


def _compute_checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
