"""Answers to listing requests, kept on disk so that the next start can give them before the gateway is ready.

One file for each way the gateway is started: its version, command line, folder and settings in the
environment. The file names every input that the answers depend on (configuration, trust, lock files,
listings of servers, plugins) with a digest; if one of them differs, the record is ignored. So is a record
that cannot be read, is too large, or that somebody else could have written. Answers are kept by client: by
what it declares when it connects. Standard library only, so that it is read before the rest is imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolfold import __version__
from toolfold.folders import locate_folders

FORMAT = 1
MAX_RECORD_BYTES = 8_000_000
MAX_CLIENTS = 8
MAX_FILES = 32
MAX_INPUTS = 1_000
MAX_INPUT_BYTES = 32_000_000

LISTINGS: Mapping[str, str] = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resources",
    "prompts/list": "prompts",
}
"""Method → the kind of list that a client can be told has changed."""
RECORDED = frozenset({"initialize", "server/discover", *LISTINGS})

_VARIABLES = ("TOOLFOLD_", "XDG_")
_META, _REVISION, _PROGRESS = "_meta", "io.modelcontextprotocol/protocolVersion", "progressToken"

Answers = dict[str, str]
"""Method → the result as JSON text."""


@dataclass(frozen=True, slots=True)
class ListingRequest:
    """A request whose answer may be recorded, and the client that made it."""

    id: int | str
    method: str
    client: str
    """A digest of what the client declares; empty if that is what it sent with `initialize`."""

    @property
    def key(self) -> tuple[str, int | str]:
        """The id, with 1 and "1" told apart."""
        return type(self.id).__name__, self.id


def parse_request(method: object, request_id: object, params: object) -> ListingRequest | None:
    """Return the request if its answer depends on nothing but the client; None for every other message."""
    if not isinstance(method, str) or method not in (*RECORDED, "ping"):
        return None
    if isinstance(request_id, bool) or not isinstance(request_id, int | str):
        return None
    if not isinstance(params, dict | None) or not isinstance(meta := (params or {}).get(_META) or {}, dict):
        return None
    if method == "initialize":
        return ListingRequest(request_id, method, digest_of(params))
    if params and params.keys() != {_META}:
        return None
    declared = {key: value for key, value in meta.items() if key != _PROGRESS}
    return ListingRequest(request_id, method, digest_of(declared) if _REVISION in meta else "")


def digest_of(value: Any) -> str:
    """Return a digest of a JSON value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(slots=True)
class ListingRecord:
    """The answers that were given under the same conditions, by client."""

    file: Path
    clients: dict[str, Answers] = field(default_factory=dict)

    def read(self) -> bool:
        """Fill in what the file holds. False, and nothing filled in, if it cannot be used."""
        try:
            found = json.loads(_private_content(self.file))
            if found["format"] != FORMAT or found["inputs"] != digest_inputs(map(Path, found["inputs"])):
                return False
            self.clients = {client: _checked(answers) for client, answers in found["clients"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return False
        return True

    def text(self, inputs: Mapping[str, str]) -> str:
        """Return the content of the file, with as many of the latest clients as it may hold."""
        clients = dict(tuple(self.clients.items())[-MAX_CLIENTS:])
        while True:
            text = json.dumps({"format": FORMAT, "inputs": inputs, "clients": clients})
            if len(text) <= MAX_RECORD_BYTES or not clients:
                return text
            clients.pop(next(iter(clients)))


def record_file(arguments: Sequence[str], environment: Mapping[str, str]) -> Path:
    """Return the file for a gateway that is started like this from the current folder. Raises OSError."""
    current = Path.cwd()
    variables = {name: value for name, value in environment.items() if _matters(name)}
    started = [__version__, sys.version, sys.prefix, list(arguments), str(current), variables]
    folder = locate_folders(environment, current).cache / "gateway"
    return folder / f"{digest_of(started)[:32]}.json"


def _matters(name: str) -> bool:
    return name == "HOME" or name.startswith(_VARIABLES)


def digest_inputs(paths: Iterable[Path]) -> dict[str, str]:
    """Path → a digest of what is there. Raises ValueError if that is too much to read at every start."""
    found: dict[str, str] = {}
    left = MAX_INPUT_BYTES
    for path in paths:
        found[str(path)], size = _digest_path(path, left)
        left -= size
        if len(found) > MAX_INPUTS or left < 0:
            raise ValueError("there are too many or too large files to compare at every start")
    return found


def _digest_path(path: Path, limit: int) -> tuple[str, int]:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            names = sorted(name for name in os.listdir(path) if name != "__pycache__")  # noqa: PTH208 - fast
            return f"folder {digest_of(names)}", 0
        if not stat.S_ISREG(mode):  # reading it could block
            return f"special {mode}", 0
        with path.open("rb") as stream:
            content = stream.read(limit + 1)
        return f"file {hashlib.sha256(content).hexdigest()}", len(content)
    except (FileNotFoundError, NotADirectoryError):
        return "absent", 0


def _private_content(file: Path) -> bytes:
    """Return the content of a file that nobody else can write. Raises OSError or ValueError."""
    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as stream:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise ValueError("not a private file")
        if found.st_size > MAX_RECORD_BYTES:
            raise ValueError("too large")
        return stream.read(MAX_RECORD_BYTES)


def _checked(answers: Any) -> Answers:
    if not all(method in RECORDED and isinstance(text, str) for method, text in answers.items()):
        raise ValueError("not a record")
    for text in answers.values():
        if not isinstance(json.loads(text), dict):
            raise ValueError("not a result")
    return dict(answers)
