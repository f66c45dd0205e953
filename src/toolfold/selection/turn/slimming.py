"""Shorten tool schemas for the model by removing keywords that have no effect.

A slim schema accepts exactly what the original accepts and tells a reader the same. Validation always
uses the original. Unusual schemas (own identifiers, unknown dialects, references to odd places, too deep,
too large) stay unchanged.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from toolfold.core.types import Definition, FrozenDict, FrozenList, Json, Tool, freeze

MAX_DEPTH = 64
MAX_SCHEMAS = 5_000
MAX_EXAMPLES = 3
_MAX_PASSES = 8

_SCHEMA_KEYS = frozenset(
    {"items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else"}
    | {"additionalItems", "unevaluatedItems", "unevaluatedProperties", "contentSchema"}
)
_SCHEMA_LIST_KEYS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems", "items"})
_SCHEMA_MAP_KEYS = frozenset(
    {"properties", "$defs", "definitions", "patternProperties", "dependentSchemas", "dependencies"}
)
_DEFINITION_KEYS = frozenset({"$defs", "definitions"})

_DIALECTS = {"2020-12", "2019-09", "draft-07"}
_DIALECT_URI = re.compile(r"https?://json-schema\.org/(?:draft/)?([a-z0-9-]+)/schema#?")
_IDENTITY_KEYS = frozenset(
    {"$id", "id", "$schema", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef"}
)
_DIFFERS_BY_DIALECT = {
    *("additionalItems", "prefixItems", "unevaluatedItems", "unevaluatedProperties", "dependencies"),
    *("dependentSchemas", "dependentRequired", "minContains", "maxContains"),
    *("contentEncoding", "contentMediaType", "contentSchema"),
}
_ANNOTATIONS = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
_TYPES: dict[str, type] = {"string": str, "boolean": bool, "integer": int, "null": type(None)}
_ALL_SCHEMA_KEYS = _SCHEMA_KEYS | _SCHEMA_LIST_KEYS | _SCHEMA_MAP_KEYS


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, (str, list, dict)) and not value)


_NO_EFFECT_TESTS: dict[str, Callable[[Any], bool]] = {
    "default": _is_empty,
    "required": lambda value: value == [],
    "$comment": lambda value: isinstance(value, str),
    **dict.fromkeys(("deprecated", "readOnly", "uniqueItems", "writeOnly"), lambda value: value is False),
    **dict.fromkeys(
        ("minItems", "minLength", "minProperties"), lambda value: type(value) is int and value == 0
    ),
}
_MAY_HAVE_NO_EFFECT = frozenset({*_NO_EFFECT_TESTS, "additionalProperties", "propertyNames"})
_GENERIC_TITLE_WORDS = frozenset(
    {"arguments", "args", "input", "inputs", "model", "options", "parameters", "params", "request", "schema"}
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+|[^\W\d_a-zA-Z]+")
_BLANK_LINES = re.compile(r"\n{3,}")


class Slimmer:
    """Shortens the schema of each tool once and caches the result while the tool exists."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slim: weakref.WeakKeyDictionary[Tool, Definition] = weakref.WeakKeyDictionary()

    def __call__(self, tool: Tool) -> Definition:
        """Return a tool's definition with a shortened schema.

        The outer dicts belong to the caller; the schema is shared.
        """
        with self._lock:
            function = self._slim.get(tool)
        if function is None:
            function = slim(tool.definition())["function"]
            with self._lock:
                self._slim[tool] = function
        return {"type": "function", "function": dict(function)}


def slim(definition: Definition) -> Definition:
    """Return an equivalent tool definition with fewer tokens; the original is not changed."""
    function = dict(definition["function"])
    description = function.get("description")
    if isinstance(description, str):
        function["description"] = _trim_text(description)
    parameters = function.get("parameters")
    if isinstance(parameters, dict):
        name, about = (_text_or_empty(function.get(key)) for key in ("name", "description"))
        function["parameters"] = slim_schema(parameters, name, about)
    return {**definition, "function": function}


def slim_schema(schema: Json, name: str = "", described: str = "") -> Json:
    """Return a shortened schema that accepts the same values, for a tool with this name and description."""
    for _ in range(_MAX_PASSES):
        slimmed = _slim_once(schema, name, described)
        if slimmed is schema or _DEFINITION_KEYS.isdisjoint(schema):
            return slimmed
        schema = slimmed  # removed keywords may have prevented a definition from being inlined
    return schema


def _slim_once(schema: Json, name: str, described: str) -> Json:
    survey = _survey_schema(schema)
    if survey is None or not survey.is_plain:
        return schema
    try:
        frozen: FrozenDict = schema if type(schema) is FrozenDict else freeze(schema)
    except (RecursionError, TypeError):  # not JSON, or circular
        return schema
    if not _DEFINITION_KEYS.isdisjoint(frozen):
        frozen = _fold_definitions(frozen, [node["$ref"] for node in survey.references])
        survey = _survey_schema(frozen) or survey
    slimmed = _SlimmingPass(described, counts_spoken="unevaluatedProperties" in survey.keys).root(
        frozen, name
    )
    if "$schema" not in slimmed:
        return slimmed
    left = _survey_schema(slimmed)
    return _drop_keys(slimmed, {"$schema"}) if left and left.is_of_any_dialect else slimmed


def _trim_text(text: str) -> str:
    """Remove source code indentation and blank lines from a description."""
    text = text.strip()
    if "\n" not in text:
        return text
    first, *rest = (line.rstrip() for line in text.split("\n"))
    margin = min((len(line) - len(line.lstrip(" ")) for line in rest if line), default=0)
    return _BLANK_LINES.sub("\n\n", "\n".join([first, *(line[margin:] for line in rest)]))


def _split_words(text: str) -> frozenset[str]:
    return frozenset(map(str.lower, _WORD.findall(text)))


# Inspecting schemas


@dataclass(frozen=True, slots=True)
class _SchemaSurvey:
    """All nested schemas and keywords of a schema, collected before the schema is shortened."""

    nodes: list[Json]
    """All schemas, the root first."""
    keys: set[str]

    @property
    def references(self) -> list[Json]:
        return [node for node in self.nodes if "$ref" in node] if "$ref" in self.keys else []

    @property
    def is_plain(self) -> bool:
        """Return True if removing keywords from the schema leaves every `$ref` with the same meaning."""
        if not _IDENTITY_KEYS.isdisjoint(self.keys):
            inner = {key for node in self.nodes[1:] for key in node}
            if not inner.isdisjoint(_IDENTITY_KEYS) or not _has_known_dialect(self.nodes[0]):
                return False
        return all(_is_stable_pointer(node["$ref"]) for node in self.references)

    @property
    def is_of_any_dialect(self) -> bool:
        """Return True if the schema has the same meaning in all supported versions of JSON Schema."""
        if not _DIFFERS_BY_DIALECT.isdisjoint(self.keys):
            return False
        if "items" in self.keys and any(isinstance(node.get("items"), list) for node in self.nodes):
            return False
        return all(node.keys() <= {*_ANNOTATIONS, "$ref"} for node in self.references)


def _has_known_dialect(root: Json) -> bool:
    """Return True if a schema declares only known JSON Schema versions and identifiers, or none."""
    if not _IDENTITY_KEYS.isdisjoint(root.keys() - {"$id", "$schema"}) or not isinstance(
        root.get("$id", ""), str
    ):
        return False
    declared = root.get("$schema", "http://json-schema.org/draft-07/schema")
    found = _DIALECT_URI.fullmatch(declared) if isinstance(declared, str) else None
    return found is not None and found[1] in _DIALECTS


def _survey_schema(root: Json) -> _SchemaSurvey | None:
    """Inspect a schema with all nested schemas; return None if it is too large or too deep."""
    nodes, keys, level = [root], set(root), [root]
    for _ in range(MAX_DEPTH):
        level = [
            each for node in level if not _ALL_SCHEMA_KEYS.isdisjoint(node) for each in _inner_schemas(node)
        ]
        if not level:
            return _SchemaSurvey(nodes, keys)
        nodes += level
        if len(nodes) > MAX_SCHEMAS:
            return None
        keys.update(*level)
    return None


def _inner_schemas(schema: Json) -> Iterator[Json]:
    """Yield the schemas directly inside a schema."""
    for key, value in schema.items():
        if key not in _ALL_SCHEMA_KEYS:
            continue
        if isinstance(value, list):
            held: Any = value if key in _SCHEMA_LIST_KEYS else ()
        elif isinstance(value, dict) and key in _SCHEMA_MAP_KEYS:
            held = value.values()
        else:
            held = (value,) if key in _SCHEMA_KEYS else ()
        for each in held:
            if isinstance(each, dict):
                yield each


def _is_stable_pointer(pointer: object) -> bool:
    """Return True if a `$ref` stays valid when the schema is shortened."""
    if not isinstance(pointer, str) or not pointer.startswith("#") or "%" in pointer or "~" in pointer:
        return False
    parts = iter(pointer[1:].split("/"))
    if next(parts) != "":
        return False
    for key in parts:
        if key in _SCHEMA_MAP_KEYS:
            next(parts, None)
        elif key in _SCHEMA_LIST_KEYS - _SCHEMA_KEYS:
            if not next(parts, "").isdecimal():
                return False
        elif key not in _SCHEMA_KEYS or key in _MAY_HAVE_NO_EFFECT:
            return False
    return True


# Definitions: remove unused ones, inline those used once


class _NestingTooDeep(Exception):
    """Inlining definitions would nest schemas too deeply."""


def _fold_definitions(root: FrozenDict, pointers: Sequence[str]) -> FrozenDict:
    """Return the schema without unused definitions, and with single-use definitions inlined."""
    holders = root.keys() & _DEFINITION_KEYS
    if not all(isinstance(root[holder], dict) for holder in holders):
        return root
    held = {
        f"#/{holder}/{name}": schema
        for holder in holders
        for name, schema in root[holder].items()
        if "/" not in name  # a reference to it would need escaping
    }
    if not all(pointer == "#" or isinstance(held.get(pointer), dict) for pointer in pointers):
        return root
    body = _drop_keys(root, holders)
    uses = _find_uses(body, held)
    moved = {pointer: held[pointer] for pointer, nodes in uses.items() if _can_inline(held[pointer], nodes)}
    if len(uses) == len(held) and not moved:
        return root
    try:
        kept = {
            key: _inline_definitions(held[key], moved) for key in held if key in uses and key not in moved
        }
        body = _inline_definitions(body, moved)
    except _NestingTooDeep:
        return root
    return FrozenDict(
        {key: value for key, value in _rebuild_in_order(root, body, kept) if value or key not in holders}
    )


def _rebuild_in_order(root: Json, body: Json, kept: Json) -> Iterator[tuple[str, Any]]:
    """Yield a schema's keywords in their original order, with only the `kept` definitions."""
    for key in root:
        if key in body:
            yield key, body[key]
        else:
            place = f"#/{key}/"
            yield key, FrozenDict({each[len(place) :]: kept[each] for each in kept if each.startswith(place)})


def _find_uses(body: Json, held: Json) -> dict[str, list[Json]]:
    """Return the schemas that refer to each definition reachable from the schema's body."""
    uses: dict[str, list[Json]] = {}
    pending = [body]
    while pending:
        node = pending.pop()
        pending += _inner_schemas(node)
        pointer = node.get("$ref")
        if pointer in held:
            if pointer not in uses:
                pending.append(held[pointer])
            uses.setdefault(pointer, []).append(node)
    return uses


def _can_inline(schema: Json, nodes: Sequence[Json]) -> bool:
    """Return True if a definition can be inlined into the only schema that refers to it."""
    if len(nodes) != 1:
        return False
    beside = nodes[0].keys() - {"$ref"}
    return beside <= _ANNOTATIONS and all(schema.get(key, nodes[0][key]) == nodes[0][key] for key in beside)


def _inline_definitions(schema: FrozenDict, moved: Json, depth: int = 0) -> FrozenDict:
    if depth >= MAX_DEPTH:
        raise _NestingTooDeep
    pointer = schema.get("$ref")
    if pointer in moved:
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return _inline_definitions(FrozenDict({**moved[pointer], **beside}), moved, depth + 1)
    return _map_inner(schema, lambda inner, _: _inline_definitions(inner, moved, depth + 1))


def _map_inner(schema: FrozenDict, change: Callable[[FrozenDict, str], FrozenDict]) -> FrozenDict:
    """Return the schema after applying `change` to each schema directly inside it."""
    changed: Json = {}
    for key, value in schema.items():
        if key not in _ALL_SCHEMA_KEYS:
            continue
        kind = type(value)
        if kind is FrozenList and key in _SCHEMA_LIST_KEYS:
            new = _map_changed(dict(enumerate(value)), lambda each, _: change(each, ""))
            if new:
                changed[key] = FrozenList(new.get(place, each) for place, each in enumerate(value))
        elif kind is FrozenDict and key in _SCHEMA_MAP_KEYS:
            new = _map_changed(
                value, change if key != "patternProperties" else lambda each, _: change(each, "")
            )
            if new:
                changed[key] = FrozenDict({**value, **new})
        elif kind is FrozenDict and key in _SCHEMA_KEYS:
            inner = change(value, "")
            if inner is not value:
                changed[key] = inner
    return FrozenDict({**schema, **changed}) if changed else schema


def _map_changed(
    held: dict[Any, Any], change: Callable[[FrozenDict, Any], FrozenDict]
) -> dict[Any, FrozenDict]:
    """Apply `change` to each schema in a dict, and return only the schemas that it modified."""
    changed = {}
    for place, each in held.items():
        if type(each) is FrozenDict:
            after = change(each, place)
            if after is not each:
                changed[place] = after
    return changed


# Removing what the reader already knows


class _SlimmingPass:
    """Removes keywords that the model does not need from a tool's schema and its nested schemas."""

    def __init__(self, about: str, *, counts_spoken: bool) -> None:
        self._about = about
        # `unevaluatedProperties` depends on what was declared; `additionalProperties` declares all.
        self._counts_properties = counts_spoken

    def root(self, schema: FrozenDict, name: str) -> FrozenDict:
        unneeded = {"$id"}
        title = schema.get("title")
        if isinstance(title, str) and _is_covered(title, name, self._about, _GENERIC_TITLE_WORDS):
            unneeded.add("title")
        return self._slim_schema(_drop_keys(schema, unneeded & schema.keys()), name, self._about)

    def _slim_schema(self, schema: FrozenDict, name: str, above: str) -> FrozenDict:
        if "title" in schema or "description" in schema:
            schema = self._drop_repeated_text(schema, name, above)
        if not _ALL_SCHEMA_KEYS.isdisjoint(schema):
            above = _text_or_empty(schema.get("description")) or above
            schema = _map_inner(schema, lambda inner, own: self._slim_schema(inner, own or name, above))
        if not _MAY_HAVE_NO_EFFECT.isdisjoint(schema):
            schema = _drop_keys(
                schema,
                {key for key in _MAY_HAVE_NO_EFFECT & schema.keys() if self._has_no_effect(key, schema[key])},
            )
        if "const" in schema or "examples" in schema:
            schema = _drop_redundant_values(schema)
        return schema

    def _drop_repeated_text(self, schema: FrozenDict, name: str, above: str) -> FrozenDict:
        title, description = schema.get("title"), schema.get("description")
        if isinstance(title, str) and _is_covered(title, name, _text_or_empty(description)):
            schema = _drop_keys(schema, {"title"})
        if not isinstance(description, str):
            return schema
        tidy = _trim_text(description)
        if not tidy or tidy == above or _repeats_name(tidy, name):
            return _drop_keys(schema, {"description"})
        return schema if tidy == description else FrozenDict({**schema, "description": tidy})

    def _has_no_effect(self, key: str, value: Any) -> bool:
        """Return True if a schema keyword with this value can be removed without changing the meaning."""
        if key in ("additionalProperties", "propertyNames"):
            if value is True or value == {}:
                return key == "propertyNames" or not self._counts_properties
            return key == "propertyNames" and value == {"type": "string"}
        idle = _NO_EFFECT_TESTS.get(key)
        return idle is not None and idle(value)


def _drop_redundant_values(schema: FrozenDict) -> FrozenDict:
    examples = schema.get("examples")
    if isinstance(examples, list) and len(examples) > MAX_EXAMPLES:
        schema = FrozenDict({**schema, "examples": FrozenList(examples[:MAX_EXAMPLES])})
    if "const" in schema and type(schema["const"]) is _TYPES.get(_text_or_empty(schema.get("type"))):
        schema = _drop_keys(schema, {"type"})
    return schema


def _is_covered(title: str, name: str, description: str, besides: frozenset[str] = frozenset()) -> bool:
    """Return True if a schema's title has no words beyond those of its name and description."""
    words = _split_words(title) - besides
    if not words:
        return bool(besides) or not title.strip()
    return words <= _split_words(name) or words <= _split_words(name) | _split_words(description)


def _repeats_name(description: str, name: str) -> bool:
    return (
        len(description) <= 2 * len(name) and _split_words(description) == _split_words(name) != frozenset()
    )


def _text_or_empty(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _drop_keys(schema: FrozenDict, keys: set[str]) -> FrozenDict:
    return FrozenDict({key: value for key, value in schema.items() if key not in keys}) if keys else schema
