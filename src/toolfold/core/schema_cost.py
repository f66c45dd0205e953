"""Estimate the work of validating arguments against a JSON Schema.

Schemas come from untrusted sources, and a running validator cannot be stopped. Knows schemas and values,
nothing of tools.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Any, NamedTuple
from urllib.parse import unquote

from toolfold.core.types import Json

MAX_DEPTH = 64
MAX_VISITS = 10_000_000
_MAX_SCHEMAS = 20_000
_MAX_NAMED_SCHEMAS = 200
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
_UNEVALUATED_FACTOR = 4  # unevaluated* repeats the evaluation of the neighbouring schemas


def resolve_pointer(value: Any, pointer: str) -> Any:
    for part in unquote(pointer).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        place = key.removeprefix("+")  # the validator accepts "+1" as a number
        if isinstance(value, list) and place.isdecimal() and int(place[-9:]) < len(value):
            value = value[int(place[-9:])]
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value


def get_list(schema: Json, key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


class VisitCounter:
    """Computes an upper bound on how often JSON Schema validation visits each value of the arguments.

    A few references can cause 2^40 visits to one value, or twice as many with each level of nesting, and a
    running validator cannot be stopped. So the visits are counted first: for a value at a given depth, the
    count is the number of paths by which the schema leads there.
    """

    def __init__(self, root: Json) -> None:
        self._root = root
        self._named_schemas = [schema for schema in _iterate_objects(root) if _reference_names(schema)]
        self._same_value_schemas: dict[int, list[Json]] = {}
        self._lock = threading.Lock()
        self._root_visits: list[int] = []  # by depth
        self._visits_at_depth: dict[int, int] = {}
        try:
            self._nodes = self._sort_inner_first()
        except ValueError:
            self._root_visits = [MAX_VISITS + 1]
        else:
            self._count_next_depth()

    @property
    def is_bounded(self) -> bool:
        """Return True if validating arguments without nested values takes at most MAX_VISITS visits."""
        return self._root_visits[0] <= MAX_VISITS

    def visits_per_level(self, args: Json) -> list[tuple[int, int]]:
        """Return, for each nesting level of the arguments, the number of values and the visits to each."""
        sizes = list(_level_sizes(args))
        with self._lock:
            while len(self._root_visits) < len(sizes) and self._root_visits[-1] <= MAX_VISITS:
                self._count_next_depth()
            return list(
                itertools.zip_longest(sizes, self._root_visits[: len(sizes)], fillvalue=MAX_VISITS + 1)
            )

    def _count_next_depth(self) -> None:
        above, visits = self._visits_at_depth, dict[int, int]()
        for node in self._nodes:
            own = node.visits_to_part(above) if above else 1
            same_value = node.factor * sum(visits[each] for each in node.same_value)
            visits[node.schema] = min(own + same_value, MAX_VISITS + 1)
        self._visits_at_depth = visits
        self._root_visits.append(visits[id(self._root)])

    def _sort_inner_first(self) -> list[_SchemaNode]:
        """Return all subschemas in dependency order: each after those on which its visit count depends.

        Raises ValueError if there are too many.
        """
        schemas: dict[int, Json] = {}
        pending = [self._root]
        while pending:
            schema = pending.pop()
            if id(schema) not in schemas:
                schemas[id(schema)] = schema
                self._same_value_schemas[id(schema)] = self._find_same_value_schemas(schema)
                pending += [
                    *self._same_value_schemas[id(schema)],
                    *_exclusive_part_schemas(schema),
                    *_common_part_schemas(schema),
                ]
            if len(schemas) + len(pending) > _MAX_SCHEMAS:
                raise ValueError(f"the schema contains more than {_MAX_SCHEMAS:,} nested schemas")
        for schema in [each for each in schemas.values() if self._is_reference_cycle(each)]:
            self._same_value_schemas[id(schema)] = []
        graph = {key: _object_ids(beside) for key, beside in self._same_value_schemas.items()}
        return [_make_node(schemas[each], graph[each]) for each in TopologicalSorter(graph).static_order()]

    def _is_reference_cycle(self, schema: Json) -> bool:
        """Return True if a schema consists only of `$ref` keywords that refer to each other in a cycle.

        Validators end such cycles themselves.
        """
        reached = schema
        for _ in range(MAX_DEPTH):
            beside = self._same_value_schemas[id(reached)]
            if len(beside) != 1:
                return False
            reached = beside[0]
            if reached is schema:
                return True
        return False

    def _find_same_value_schemas(self, schema: Json) -> list[Json]:
        """Return the subschemas that apply to the same value as their containing schema."""
        parts = [each for key in ("allOf", "anyOf", "oneOf") for each in get_list(schema, key)]
        parts += [schema.get(key) for key in ("not", "if", "then", "else")]
        parts += [each for key in ("dependentSchemas", "dependencies") for each in _get_values(schema, key)]
        parts += [each for key in _REFERENCES for each in self._resolve_reference(schema.get(key))]
        return [each for each in parts if isinstance(each, dict)]

    def _resolve_reference(self, reference: Any) -> list[Json]:
        """Return every schema to which a `$ref` may refer.

        Base URIs are ignored, so that rather too many schemas are returned than too few.
        """
        if not isinstance(reference, str):
            return []
        if len(self._named_schemas) > _MAX_NAMED_SCHEMAS:
            raise ValueError(
                f"the schema has more than {_MAX_NAMED_SCHEMAS} parts that a `$ref` could refer to"
            )
        _, _, fragment = reference.partition("#")
        if fragment and not unquote(fragment).startswith("/"):
            return [schema for schema in self._named_schemas if unquote(fragment) in _reference_names(schema)]
        targets = [resolve_pointer(each, fragment) for each in (self._root, *self._named_schemas)]
        return list({id(each): each for each in targets if isinstance(each, dict)}.values())


def _reference_names(schema: Json) -> list[str]:
    """Return the identifiers and anchors by which a `$ref` can refer to the schema."""
    keys = ("$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor")
    return [str(schema[key]).removeprefix("#") for key in keys if isinstance(schema.get(key), (str, bool))]


def _iterate_objects(value: Any) -> Iterator[Json]:
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            yield each
        pending += _child_values(each)


class _SchemaNode(NamedTuple):
    """A JSON Schema and its subschemas: those for the same value, for one part of it, for every part.

    Each is given by its `id`.
    """

    schema: int
    same_value: Sequence[int]
    one_part: Sequence[int]
    every_part: Sequence[int]
    factor: int

    def visits_to_part(self, visits: Mapping[int, int]) -> int:
        """Return how often validation visits one part of a value, such as an item or a property.

        `visits` is the number of visits by each subschema.
        """
        one = max((visits[each] for each in self.one_part), default=0)
        return one + sum(visits[each] for each in self.every_part)


def _make_node(schema: Json, same_value: Sequence[int]) -> _SchemaNode:
    factor = _UNEVALUATED_FACTOR if any(key in schema for key in _UNEVALUATED) else 1
    one_part, every_part = (
        _object_ids(_exclusive_part_schemas(schema)),
        _object_ids(_common_part_schemas(schema)),
    )
    return _SchemaNode(id(schema), same_value, one_part, every_part, factor)


def _object_ids(schemas: Sequence[Json]) -> list[int]:
    return [id(each) for each in schemas]


def _exclusive_part_schemas(schema: Json) -> list[Json]:
    """Return the subschemas of which at most one applies to each property or item, as in `properties`."""
    parts = [*_get_values(schema, "properties"), *get_list(schema, "prefixItems"), *get_list(schema, "items")]
    parts += [schema.get(key) for key in ("items", "additionalItems", "additionalProperties")]
    return [each for each in parts if isinstance(each, dict)]


def _common_part_schemas(schema: Json) -> list[Json]:
    parts = _get_values(schema, "patternProperties")
    parts += [schema.get(key) for key in ("contains", "propertyNames", *_UNEVALUATED)]
    return [each for each in parts if isinstance(each, dict)]


def _get_values(schema: Json, key: str) -> list[Any]:
    valued = schema.get(key)
    return list(valued.values()) if isinstance(valued, dict) else []


def _child_values(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else ()


def _level_sizes(value: Any) -> Iterator[int]:
    level = [value]
    while level:
        yield len(level)
        level = [part for each in level if isinstance(each, (dict, list)) for part in _child_values(each)]
