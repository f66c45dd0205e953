"""Traverse a JSON Schema: its nested schemas, variants and enum values.

Follows properties, items, alternatives and references within the document. Schemas are untrusted: each is
visited once, to a limited depth, and the caller limits the total number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

Schema = Mapping[str, Any]

MAX_HOPS = 24
MAX_VARIANTS = 16
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")


def iterate_schemas(root: Any, *, depth: int, limit: int) -> Iterator[tuple[str, Schema]]:
    """Yield the schemas nested in `root`, each with its parameter name, which may be empty.

    `depth` counts nested parameter names: 0 yields only the top-level parameters.
    """
    return islice(_walk_schemas(root, root, depth, {id(root)}, MAX_HOPS), limit)


def schema_variants(schema: Schema, root: Any) -> Iterator[Schema]:
    """Yield the schema, its alternatives (`anyOf` …) and the schemas that it references."""
    pending, seen = [schema], {id(schema)}
    for _ in range(MAX_VARIANTS):
        if not pending:
            return
        each = pending.pop(0)
        yield each
        for other in _alternative_schemas(each, root):
            if isinstance(other, Mapping) and id(other) not in seen:
                seen.add(id(other))
                pending.append(other)


def listed_values(schema: Schema) -> list[str]:
    """Return the string values of a schema's `enum` and `const`."""
    listed, only = schema.get("enum"), schema.get("const")
    values = [*listed[:100]] if isinstance(listed, (list, tuple)) else []
    return [value for value in (*values, only) if isinstance(value, str)]


def _walk_schemas(
    schema: Any, root: Any, depth: int, seen: set[int], hops: int
) -> Iterator[tuple[str, Schema]]:
    for name, inner in _child_schemas(schema, root):
        new = isinstance(inner, Mapping) and id(inner) not in seen
        if name or new:
            yield name, inner if isinstance(inner, Mapping) else {}
        left = depth - bool(name)
        if new and left >= 0 and hops:
            seen.add(id(inner))
            yield from _walk_schemas(inner, root, left, seen, hops - 1)


def _child_schemas(schema: Any, root: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(schema, Mapping):
        return
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        for name, inner in properties.items():
            yield str(name), inner
    for key in ("items", "additionalProperties"):
        yield "", schema.get(key)
    for other in _alternative_schemas(schema, root):
        yield "", other


def _alternative_schemas(schema: Schema, root: Any) -> Iterator[Any]:
    for key in _ALTERNATIVES:
        either = schema.get(key)
        if isinstance(either, (list, tuple)):
            yield from either
    if "$ref" in schema:
        yield _resolve_reference(root, schema["$ref"])


def _resolve_reference(root: Any, reference: Any) -> Any:
    """Return the schema to which a `$ref` points within the same document; None if it does not exist."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found = root
    for part in reference[2:].split("/", MAX_HOPS):
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
