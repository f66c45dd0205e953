"""Generate minimal arguments that a schema accepts, as a model would write them.

Knows the keywords of ordinary tool schemas. If a schema uses others, dispatch rejects the call, and the
result counts it as not served.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

from toolfold.core.types import Json

_FORMATS = {
    "date": "2026-03-14",
    "date-time": "2026-03-14T09:30:00Z",
    "email": "ana@example.org",
    "uri": "https://example.org/a",
    "uuid": "6f1d2a9e-7b1c-4a57-9d0e-2f6f0f9b8c11",
    "time": "09:30:00Z",
    "hostname": "example.org",
    "ipv4": "192.0.2.7",
}
_SHAPES = (
    *("some text", "a1", "a/b", "a.b", "A1", "AB", "ABC", "de", "5m", "12", "1234", "123456", "09:30"),
    *("#2a6f97", "G7", "CC1234567", "LR-123456", "INC-12", "ABC-12", "C12345678", "ABC123", "AB12CDEF"),
    *("DE89370400440532013000", "0123456789abcdef0123456789abcdef01234567"),
)
_PLAIN: dict[str, Any] = {"boolean": True, "null": None}


def example(schema: Json, root: Json | None = None) -> Any:
    """Return a value that the schema accepts."""
    root = schema if root is None else root
    if "$ref" in schema:
        return example(_resolve_reference(root, schema["$ref"]), root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for key in ("oneOf", "anyOf"):
        if key in schema:
            return _branch_value(schema, schema[key][0], root)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return _object_value(schema, root)
    if kind == "array":
        return _array_value(schema, root)
    if kind in ("integer", "number"):
        return _number_value(schema)
    return _PLAIN[kind] if kind in _PLAIN else _text_value(schema)


def _branch_value(schema: Json, branch: Json, root: Json) -> Any:
    """Return a value for one `anyOf` or `oneOf` alternative that also meets the rest of the schema."""
    around = {key: value for key, value in schema.items() if key not in ("oneOf", "anyOf")}
    if around.get("type") != "object":
        return example(branch, root)
    properties = {**around.get("properties", {}), **branch.get("properties", {})}
    required = [*around.get("required", ()), *branch.get("required", ())]
    return _object_value({**around, "properties": properties, "required": required}, root)


def _object_value(schema: Json, root: Json) -> Json:
    properties = schema.get("properties", {})
    names = [*schema.get("required", ()), *schema.get("then", {}).get("required", ())]
    others = (name for name in properties if name not in names)
    names += itertools.islice(others, max(0, schema.get("minProperties", 0) - len(names)))
    made: Json = {name: example(properties.get(name, {}), root) for name in names}
    if len(made) < schema.get("minProperties", 0):
        made["a"] = example(schema.get("additionalProperties") or {}, root)
    return made


def _array_value(schema: Json, root: Json) -> list[Any]:
    items = [example(schema.get("items", {}), root) for _ in range(schema.get("minItems", 0))]
    return [
        f"{item} {place}" if place and isinstance(item, str) else item for place, item in enumerate(items)
    ]


def _number_value(schema: Json) -> Any:
    least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
    value = max(least, min(1, schema.get("maximum", 1)))
    step = schema.get("multipleOf")
    return -(-value // step) * step if step else value


def _text_value(schema: Json) -> str:
    if schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]
    pattern = schema.get("pattern", "")
    found = next((shape for shape in _SHAPES if re.search(pattern, shape)), _SHAPES[0])
    return found.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength")]


def _resolve_reference(root: Json, reference: str) -> Json:
    place: Any = root
    for step in reference.removeprefix("#/").split("/"):
        place = place[step]
    return place  # type: ignore[no-any-return]
