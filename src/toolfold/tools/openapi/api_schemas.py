"""Convert the schemas of an OpenAPI document to JSON Schemas for the arguments of a tool.

A result has no references: they are replaced by what they point to, down to a depth at which the schema stays
small enough for a model. Below that depth, and where a schema contains itself, any value is accepted and the
server checks it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from toolfold.core.errors import shorten
from toolfold.core.types import Json
from toolfold.tools.openapi.api_document import OpenApiDocument, UnresolvedReference

__all__ = ["SchemaReader"]

MAX_SCHEMA_CHARS = 12_000
MAX_NODES = 600
"""Maximum number of parts of a schema; more do not fit into the maximum size anyway."""
MAX_DESCRIPTION_CHARS = 400
MAX_ENUM_VALUES = 200
MAX_ALTERNATIVES = 20
_DEPTHS = (10, 6, 4, 3, 2, 1)
_KEPT = (
    *("type", "title", "format", "enum", "const", "default", "required"),
    *("minLength", "maxLength", "minimum", "maximum", "multipleOf", "minItems", "maxItems", "uniqueItems"),
    *("minProperties", "maxProperties", "exclusiveMinimum", "exclusiveMaximum"),
)
_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_COUNTS = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})
_ALTERNATIVES = ("oneOf", "anyOf")
_JSON_SCALARS = (str, int, float, bool, type(None))


class _TooLarge(Exception):
    """Raised if a schema has more nodes than a tool's schema may have."""


class SchemaReader:
    """Converts schemas of one OpenAPI document to JSON Schemas."""

    def __init__(self, document: OpenApiDocument) -> None:
        self._document = document
        self._by_reference: dict[str, Json] = {}

    def read(self, schema: Any) -> Json:
        """Convert an OpenAPI schema to a small JSON Schema without `$ref`. Raises UnresolvedReference."""
        reference = schema.get("$ref") if isinstance(schema, dict) and len(schema) == 1 else None
        if not isinstance(reference, str):
            return self._read(schema)
        if reference not in self._by_reference:
            self._by_reference[reference] = self._read(schema)
        return dict(self._by_reference[reference])  # callers add a description

    def _read(self, schema: Any) -> Json:
        for depth in _DEPTHS:
            try:
                found = _Conversion(self._document, depth).convert(schema, 0, ())
            except _TooLarge:
                continue
            if len(json.dumps(found)) <= MAX_SCHEMA_CHARS:
                return found
        return _outline(self._document.resolve(schema))


class _Conversion:
    """Conversion of one OpenAPI schema to a JSON Schema, down to a given nesting depth."""

    def __init__(self, document: OpenApiDocument, max_depth: int) -> None:
        self._document, self._max_depth, self._nodes = document, max_depth, 0

    def convert(self, schema: Any, depth: int, open_references: tuple[str, ...]) -> Json:
        """Convert an OpenAPI schema to a JSON Schema; `open_references` are the enclosing `$ref`s."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _TooLarge
        if not isinstance(schema, dict):
            return {}  # `true` in OpenAPI 3.1
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._convert_reference(schema, reference, depth, open_references)
        if depth > self._max_depth:
            return _outline(schema)
        result = _copy_keywords(schema)
        if schema.get("nullable") is True and not self._document.uses_json_schema:
            _allow_null(result)
        self._add_parts(result, schema, depth, open_references)
        return result

    def _convert_reference(
        self, schema: Json, reference: str, depth: int, open_references: tuple[str, ...]
    ) -> Json:
        target = self._document.find_target(reference)
        if reference in open_references:  # the schema contains itself
            return _outline(self._document.resolve(target), reference)
        beside = {key: value for key, value in schema.items() if key in ("description", "default")}
        found = self.convert(target, depth, (*open_references, reference))
        return {**found, **_copy_keywords(beside)} if beside else found

    def _add_parts(self, result: Json, schema: Json, depth: int, open_references: tuple[str, ...]) -> None:
        properties = schema.get("properties")
        if isinstance(properties, dict):
            self._add_properties(result, properties, depth, open_references)
        if isinstance(schema.get("items"), dict):
            result["items"] = self.convert(schema["items"], depth + 1, open_references)
        extra = schema.get("additionalProperties")
        if isinstance(extra, dict) and extra:
            result["additionalProperties"] = self.convert(extra, depth + 1, open_references)
        elif extra is False and "allOf" not in schema:
            result["additionalProperties"] = False
        for keyword in _ALTERNATIVES:
            if isinstance(schema.get(keyword), list):
                self._add_alternatives(result, schema[keyword], depth, open_references)
        for part in schema["allOf"] if isinstance(schema.get("allOf"), list) else ():
            _merge(result, self.convert(part, depth, open_references))

    def _add_properties(
        self, result: Json, properties: Json, depth: int, open_references: tuple[str, ...]
    ) -> None:
        shown = {name: each for name, each in properties.items() if not self._is_read_only(each)}
        result["properties"] = {
            name: self.convert(each, depth + 1, open_references) for name, each in shown.items()
        }
        result.setdefault("type", "object")
        if "required" in result:
            hidden = properties.keys() - shown.keys()
            result["required"] = [name for name in result["required"] if name not in hidden]

    def _is_read_only(self, schema: Any) -> bool:
        """Return True if only the server sets this property."""
        try:
            found = self._document.resolve(schema)
        except UnresolvedReference:
            return False
        return isinstance(found, dict) and found.get("readOnly") is True

    def _add_alternatives(
        self, result: Json, parts: list[Any], depth: int, open_references: tuple[str, ...]
    ) -> None:
        """Add alternatives as `anyOf`, because values often match several alternatives of a `oneOf`."""
        found: list[Json] = []
        for part in parts[:MAX_ALTERNATIVES]:
            each = self.convert(part, depth + 1, open_references)
            if each and each not in found:
                found.append(each)
        if not found or len(parts) > MAX_ALTERNATIVES or {} in parts:
            return  # any value is accepted
        if len(found) == 1:
            _merge(result, found[0])
        elif "anyOf" not in result:
            result["anyOf"] = found


def _copy_keywords(schema: Mapping[str, Any]) -> Json:
    """Return the keywords of a schema that JSON Schema supports and models understand."""
    result: Json = {}
    for keyword in _KEPT:
        if keyword in schema and _is_usable(keyword, schema[keyword]):
            result[keyword] = schema[keyword]
    if isinstance(result.get("enum"), list) and len(result["enum"]) > MAX_ENUM_VALUES:
        del result["enum"]
    if isinstance(schema.get("description"), str) and schema["description"].strip():
        result["description"] = shorten(" ".join(schema["description"].split()), MAX_DESCRIPTION_CHARS)
    if isinstance(schema.get("pattern"), str) and _compiles(schema["pattern"]):
        result["pattern"] = schema["pattern"]
    for limit, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if schema.get(limit) is True and bound in result:  # OpenAPI 3.0 marks the other keyword
            result[limit] = result.pop(bound)
    if "title" in result and "description" in result:
        del result["title"]
    return result


def _is_usable(keyword: str, value: Any) -> bool:
    """Return True if a keyword's value is valid in JSON Schema."""
    if keyword == "type":
        return _is_type(value)
    if keyword == "enum":
        return (
            isinstance(value, list) and bool(value) and all(isinstance(each, _JSON_SCALARS) for each in value)
        )
    if keyword == "required":
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    if keyword in ("default", "const"):
        return isinstance(value, _JSON_SCALARS)
    if keyword == "uniqueItems":
        return isinstance(value, bool)
    if keyword in ("title", "format"):
        return isinstance(value, str)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if keyword in _COUNTS:
        return is_number and value >= 0 and value == int(value)
    return is_number and (keyword != "multipleOf" or value > 0)


def _is_type(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, str) and each in _TYPES for each in value)
    return isinstance(value, str) and value in _TYPES


def _compiles(pattern: str) -> bool:
    """Return True if Python can compile a schema's regular expression."""
    if len(pattern) > 200 or "\\p" in pattern:
        return False
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _allow_null(schema: Json) -> None:
    kind = schema.get("type")
    if isinstance(kind, str) and kind != "null":
        schema["type"] = [kind, "null"]
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]


def _merge(result: Json, part: Json) -> None:
    """Add the keywords of one element of `allOf` to a schema; existing keywords take precedence."""
    for keyword, value in part.items():
        if keyword == "properties":
            result["properties"] = {**value, **result.get("properties", {})}
            result.setdefault("type", "object")
        elif keyword == "required":
            result["required"] = list(dict.fromkeys([*result.get("required", ()), *value]))
        elif keyword == "additionalProperties" and value is False:
            continue  # would exclude the properties of the other parts
        else:
            result.setdefault(keyword, value)


def _outline(schema: Any, reference: str = "") -> Json:
    """Return a schema's type and description without its subschemas."""
    if not isinstance(schema, dict):
        return {}
    found = {key: value for key, value in _copy_keywords(schema).items() if key in ("type", "description")}
    if "type" not in found and isinstance(schema.get("properties"), dict):
        found["type"] = "object"
    name = reference.rpartition("/")[2]
    if name and "description" not in found:
        found["description"] = f"{shorten(name, 80)}, as above."
    return found
