"""Parse OpenAPI documents and resolve their references.

Reads JSON and YAML text of untrusted origin. Only references within a document are followed: a reference to
another file or URL is reported, never fetched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from toolfold.core.errors import SourceError, shorten
from toolfold.core.types import Json

__all__ = ["MAX_DOCUMENT_BYTES", "OpenApiDocument", "UnresolvedReference", "parse_document"]

MAX_DOCUMENT_BYTES = 50_000_000
MAX_REFERENCE_STEPS = 20
_VERSIONS = ("3.0", "3.1")
_JSON_START = b"{["


class UnresolvedReference(ValueError):
    """A reference points outside the document or to a missing target, or is circular."""


@dataclass(frozen=True, slots=True)
class OpenApiDocument:
    """A parsed OpenAPI document."""

    root: Json

    @property
    def version(self) -> str:
        return str(self.root.get("openapi", ""))

    @property
    def title(self) -> str:
        return _read_text(self.root.get("info"), "title")

    @property
    def api_version(self) -> str:
        return _read_text(self.root.get("info"), "version")

    @property
    def uses_json_schema(self) -> bool:
        """Return True if the document is OpenAPI 3.1, in which schemas are standard JSON Schemas."""
        return self.version.startswith("3.1")

    def list_servers(self, owner: Json | None = None) -> list[str]:
        """Return the server URLs in the document, with default values for their variables.

        `owner` is the operation or path whose own servers are wanted.
        """
        servers = (self.root if owner is None else owner).get("servers")
        found = [each for each in servers if isinstance(each, dict)] if isinstance(servers, list) else []
        return [_fill_variables(each) for each in found if isinstance(each.get("url"), str)]

    def resolve(self, value: Any) -> Any:
        """Return the target of a reference object; return any other value unchanged.

        Raises UnresolvedReference.
        """
        for _ in range(MAX_REFERENCE_STEPS):
            if not isinstance(value, dict) or not isinstance(value.get("$ref"), str):
                return value
            value = self.find_target(value["$ref"])
        raise UnresolvedReference("references form a circle")

    def find_target(self, reference: str) -> Any:
        """Return the part of the document to which a reference such as `#/components/schemas/Pet` points."""
        if not reference.startswith("#/"):
            raise UnresolvedReference(f"{shorten(reference, 100)!r} is outside the document")
        value: Any = self.root
        for part in reference[2:].split("/"):
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            value = _get_child(value, key)
            if value is None:
                raise UnresolvedReference(f"{shorten(reference, 100)!r} does not exist")
        return value


def _fill_variables(server: Json) -> str:
    url, variables = str(server["url"]), server.get("variables")
    for name, variable in variables.items() if isinstance(variables, dict) else ():
        default = variable.get("default") if isinstance(variable, dict) else None
        url = url.replace(f"{{{name}}}", str(default)) if default is not None else url
    return url


def _get_child(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return value.get(key)
    if isinstance(value, list) and key.isascii() and key.isdecimal() and len(key) < 9:
        return value[int(key)] if int(key) < len(value) else None
    return None


def _read_text(value: Any, key: str) -> str:
    text = value.get(key) if isinstance(value, Mapping) else None
    return str(text) if isinstance(text, (str, int, float)) else ""


def parse_document(data: bytes) -> OpenApiDocument:
    """Parse an OpenAPI document in JSON or YAML. Raises SourceError if it is not a valid document."""
    if len(data) > MAX_DOCUMENT_BYTES:
        raise SourceError(
            f"the document has {len(data):,} bytes; at most {MAX_DOCUMENT_BYTES:,} are accepted."
        )
    try:
        root = _parse_json(data) if data.lstrip()[:1] in _JSON_START else _parse_yaml(data)
    except RecursionError:
        raise SourceError("the document is nested too deeply.") from None
    if not isinstance(root, dict):
        raise SourceError("this is not an OpenAPI document: its top level is not an object.")
    if "swagger" in root:
        raise SourceError(
            f"this is a Swagger {shorten(str(root['swagger']), 10)} document. Convert it to OpenAPI 3 first,"
            " for example with: npx swagger2openapi FILE"
        )
    version = str(root.get("openapi", ""))
    if not version.startswith(_VERSIONS):
        found = f"its version is {shorten(version, 20)!r}" if version else "it has no key `openapi`"
        raise SourceError(f"this is not an OpenAPI 3.0 or 3.1 document: {found}.")
    return OpenApiDocument(root)


def _parse_json(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8-sig"))
    except ValueError as error:
        raise SourceError(f"the document is not valid JSON: {shorten(str(error))}.") from None


def _parse_yaml(data: bytes) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    yaml = YAML(typ="safe")  # uses the parser written in C if it is installed
    yaml.allow_duplicate_keys = True
    try:
        return _to_json_values(yaml.load(data.decode("utf-8-sig")), {})
    except (YAMLError, ValueError) as error:
        raise SourceError(f"the document is neither JSON nor valid YAML: {shorten(str(error))}.") from None


def _to_json_values(value: Any, converted: dict[int, Any]) -> Any:
    """Return a value in which all keys of mappings are strings and dates are converted to text.

    `converted` has the result for each object, by its id: YAML aliases can repeat an object very often.
    """
    if not isinstance(value, (dict, list)):
        return value if value is None or isinstance(value, (str, int, float)) else str(value)
    known = converted.get(id(value))
    if known is not None:
        return known
    if isinstance(value, list):
        items: list[Any] = []
        converted[id(value)] = items
        items.extend(_to_json_values(each, converted) for each in value)
        return items
    result: Json = {}
    converted[id(value)] = result
    result.update((_to_key(key), _to_json_values(each, converted)) for key, each in value.items())
    return result


def _to_key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)
