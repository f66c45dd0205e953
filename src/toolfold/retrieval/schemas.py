"""What a JSON Schema names and lists, wherever in it that stands. Standard library only.

Follows properties, items, alternatives and references into the same document. Schemas come from
strangers: each is entered once, to a bounded depth, and the caller says how many it wants at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

Schema = Mapping[str, Any]

MOST_HOPS = 24
MOST_VARIANTS = 16
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")


def nested(root: Any, *, depth: int, most: int) -> Iterator[tuple[str, Schema]]:
    """The schemas inside one, each with the name it has as a parameter ("" where it has none).

    `depth` counts names within names: with 0, only the parameters themselves are told.
    """
    return islice(_within(root, root, depth, {id(root)}, MOST_HOPS), most)


def variants(schema: Schema, root: Any) -> Iterator[Schema]:
    """The schema, and those it may be instead or refers to."""
    pending, seen = [schema], {id(schema)}
    for _ in range(MOST_VARIANTS):
        if not pending:
            return
        each = pending.pop(0)
        yield each
        for other in _others(each, root):
            if isinstance(other, Mapping) and id(other) not in seen:
                seen.add(id(other))
                pending.append(other)


def listed_values(schema: Schema) -> list[str]:
    """The texts a schema allows, where it lists them."""
    listed, only = schema.get("enum"), schema.get("const")
    values = [*listed[:100]] if isinstance(listed, (list, tuple)) else []
    return [value for value in (*values, only) if isinstance(value, str)]


def _within(schema: Any, root: Any, depth: int, seen: set[int], hops: int) -> Iterator[tuple[str, Schema]]:
    for name, inner in _inside(schema, root):
        new = isinstance(inner, Mapping) and id(inner) not in seen
        if name or new:
            yield name, inner if isinstance(inner, Mapping) else {}
        left = depth - bool(name)
        if new and left >= 0 and hops:
            seen.add(id(inner))
            yield from _within(inner, root, left, seen, hops - 1)


def _inside(schema: Any, root: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(schema, Mapping):
        return
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        for name, inner in properties.items():
            yield str(name), inner
    for key in ("items", "additionalProperties"):
        yield "", schema.get(key)
    for other in _others(schema, root):
        yield "", other


def _others(schema: Schema, root: Any) -> Iterator[Any]:
    for key in _ALTERNATIVES:
        either = schema.get(key)
        if isinstance(either, (list, tuple)):
            yield from either
    if "$ref" in schema:
        yield _referred(root, schema["$ref"])


def _referred(root: Any, reference: Any) -> Any:
    """What a reference into the same document means; None where it leads nowhere or elsewhere."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found = root
    for part in reference[2:].split("/", MOST_HOPS):
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
