"""How much work a JSON Schema makes, counted before it is done.

Schemas come from anywhere, and a validator that has begun cannot be stopped. Knows schemas and values,
nothing of tools.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Any, NamedTuple
from urllib.parse import unquote

from toolfold.model import Json

DEEPEST = 64
MOST_LOOKS = 10_000_000
_MOST_SCHEMAS = 20_000
_MOST_NAMED = 200
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
_UNEVALUATED_LOOKS = 4  # what the schemas beside have evaluated is found out by asking them again


def pointed_at(found: Any, pointer: str) -> Any:
    for part in unquote(pointer).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        place = key.removeprefix("+")  # the validator reads "+1" as a number, so we must
        if isinstance(found, list) and place.isdecimal() and int(place[-9:]) < len(found):
            found = found[int(place[-9:])]
        else:
            found = found.get(key) if isinstance(found, dict) else None
    return found


def listed(schema: Json, key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


class Looks:
    """How often, at most, a schema makes its validator look at arguments.

    A few references can make it look 2^40 times at one value, or twice as often with each level of
    nesting, and nothing can stop it once it has begun. So we count first. For any one value at a given
    depth the count is the number of ways in which the schema leads there.
    """

    def __init__(self, root: Json) -> None:
        self._root = root
        self._named = [schema for schema in _inside(root) if _names(schema)]
        self._beside: dict[int, list[Json]] = {}
        self._lock = threading.Lock()
        self._of_root: list[int] = []  # by depth
        self._deepest: dict[int, int] = {}
        try:
            self._links = self._inner_first()
        except ValueError:
            self._of_root = [MOST_LOOKS + 1]
        else:
            self._count_one_deeper()

    @property
    def are_bounded(self) -> bool:
        """Whether there are any arguments at all that can be checked."""
        return self._of_root[0] <= MOST_LOOKS

    def at(self, args: Json) -> list[tuple[int, int]]:
        """For each level of the arguments, how many values it has and how often each is looked at."""
        sizes = list(_level_sizes(args))
        with self._lock:
            while len(self._of_root) < len(sizes) and self._of_root[-1] <= MOST_LOOKS:
                self._count_one_deeper()
            return list(itertools.zip_longest(sizes, self._of_root[: len(sizes)], fillvalue=MOST_LOOKS + 1))

    def _count_one_deeper(self) -> None:
        above, looks = self._deepest, dict[int, int]()
        for link in self._links:
            own = link.at_part(above) if above else 1
            beside = link.repeated * sum(looks[each] for each in link.beside)
            looks[link.schema] = min(own + beside, MOST_LOOKS + 1)
        self._deepest = looks
        self._of_root.append(looks[id(self._root)])

    def _inner_first(self) -> list[_Link]:
        """Every schema in reach, behind those held against the same value. ValueError: there is no end."""
        found: dict[int, Json] = {}
        pending = [self._root]
        while pending:
            schema = pending.pop()
            if id(schema) not in found:
                found[id(schema)] = schema
                self._beside[id(schema)] = self._held_against_same(schema)
                pending += [*self._beside[id(schema)], *_for_one_part(schema), *_for_every_part(schema)]
            if len(found) + len(pending) > _MOST_SCHEMAS:
                raise ValueError("too many schemas to count")
        for schema in [each for each in found.values() if self._returns(each)]:
            self._beside[id(schema)] = []
        graph = {key: _ids(beside) for key, beside in self._beside.items()}
        return [_link(found[each], graph[each]) for each in TopologicalSorter(graph).static_order()]

    def _returns(self, schema: Json) -> bool:
        """Whether it is a circle of references with nothing beside them, which ends by itself."""
        reached = schema
        for _ in range(DEEPEST):
            beside = self._beside[id(reached)]
            if len(beside) != 1:
                return False
            reached = beside[0]
            if reached is schema:
                return True
        return False

    def _held_against_same(self, schema: Json) -> list[Json]:
        """The schemas that a schema holds against the value that it is itself held against."""
        parts = [each for key in ("allOf", "anyOf", "oneOf") for each in listed(schema, key)]
        parts += [schema.get(key) for key in ("not", "if", "then", "else")]
        parts += [each for key in ("dependentSchemas", "dependencies") for each in _valued(schema, key)]
        parts += [each for key in _REFERENCES for each in self._meant_by(schema.get(key))]
        return [each for each in parts if isinstance(each, dict)]

    def _meant_by(self, reference: Any) -> list[Json]:
        """All that a reference may mean, whatever identifiers do to it: better too many than too few."""
        if not isinstance(reference, str):
            return []
        if len(self._named) > _MOST_NAMED:
            raise ValueError("too many names to look up")
        _, _, fragment = reference.partition("#")
        if fragment and not unquote(fragment).startswith("/"):
            return [schema for schema in self._named if unquote(fragment) in _names(schema)]
        found = [pointed_at(each, fragment) for each in (self._root, *self._named)]
        return list({id(each): each for each in found if isinstance(each, dict)}.values())


def _names(schema: Json) -> list[str]:
    """What references may call a schema, other than by its place."""
    keys = ("$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor")
    return [str(schema[key]).removeprefix("#") for key in keys if isinstance(schema.get(key), (str, bool))]


def _inside(value: Any) -> Iterator[Json]:
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            yield each
        pending += _parts(each)


class _Link(NamedTuple):
    """A schema and those it leads to, each by its identity."""

    schema: int
    beside: Sequence[int]
    one_part: Sequence[int]
    every_part: Sequence[int]
    repeated: int

    def at_part(self, looks: Mapping[int, int]) -> int:
        """The looks at one part of a value by a schema that is held against the whole."""
        one = max((looks[each] for each in self.one_part), default=0)
        return one + sum(looks[each] for each in self.every_part)


def _link(schema: Json, beside: Sequence[int]) -> _Link:
    repeated = _UNEVALUATED_LOOKS if any(key in schema for key in _UNEVALUATED) else 1
    one_part, every_part = _ids(_for_one_part(schema)), _ids(_for_every_part(schema))
    return _Link(id(schema), beside, one_part, every_part, repeated)


def _ids(schemas: Sequence[Json]) -> list[int]:
    return [id(each) for each in schemas]


def _for_one_part(schema: Json) -> list[Json]:
    """The schemas of which one at most is held against any one part of a value."""
    parts = [*_valued(schema, "properties"), *listed(schema, "prefixItems"), *listed(schema, "items")]
    parts += [schema.get(key) for key in ("items", "additionalItems", "additionalProperties")]
    return [each for each in parts if isinstance(each, dict)]


def _for_every_part(schema: Json) -> list[Json]:
    parts = _valued(schema, "patternProperties")
    parts += [schema.get(key) for key in ("contains", "propertyNames", *_UNEVALUATED)]
    return [each for each in parts if isinstance(each, dict)]


def _valued(schema: Json, key: str) -> list[Any]:
    valued = schema.get(key)
    return list(valued.values()) if isinstance(valued, dict) else []


def _parts(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else ()


def _level_sizes(value: Any) -> Iterator[int]:
    level = [value]
    while level:
        yield len(level)
        level = [part for each in level if isinstance(each, (dict, list)) for part in _parts(each)]
