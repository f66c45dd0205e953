"""Turns what a model wrote into arguments a handler can trust.

Three steps, in this order: parse (providers send JSON text), coerce (models send "5" for 5), check
against the tool's own JSON Schema. A failure names the offending place and shows the schema, so that
the next call is right. Never fetches anything: a remote `$ref` is an error, not a request.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import re
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, NoReturn, TypeAlias

from toolfold.complexity import DEEPEST, MOST_LOOKS, Looks, listed, pointed_at
from toolfold.errors import InvalidArguments, shorten
from toolfold.json_limits import MAX_ARGUMENT_ITEMS, find_excess
from toolfold.model import Json, Tool, encodable, read_json

log = logging.getLogger(__name__)

LARGEST_TEXT = 10_000_000
_MOST_EXPLAINED = 20_000  # each possible error costs a thousand times what a look does
_MOST_QUOTED = 100_000_000
_SHOWN_SCHEMA = 4_000
_KINDS = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,5})?")
_Path: TypeAlias = "tuple[_Path, str | int] | None"  # linked, for each step would copy a joined text


class Validation:
    """Compiles each tool's schema once and keeps it as long as the tool lives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._compiled: weakref.WeakKeyDictionary[Tool, tuple[Looks, Any]] = weakref.WeakKeyDictionary()

    def __call__(self, tool: Tool, arguments: Json | str | None) -> Json:
        """The arguments, read and checked. Raises InvalidArguments."""
        return self.check(tool, self.read(tool, arguments))

    def check(self, tool: Tool, args: Json) -> Json:
        """The arguments, which were read before, if they fit. Raises InvalidArguments."""
        looks, validator = self._ready(tool)
        _require_checkable(tool, looks, args)  # text that was read may be deeper than it seemed
        if validator is not None and not _is_valid(tool, validator, args):
            raise _invalid(tool, _problems(looks, validator, args))
        return args

    def read(self, tool: Tool, arguments: Json | str | None) -> Json:
        """The arguments as they would run, parsed and coerced, whether or not they fit the schema."""
        given: Json = _as_json(tool, parse_arguments(tool.name, arguments))
        looks, validator = self._ready(tool)
        _require_checkable(tool, looks, given)
        fits = validator is not None and _is_valid(tool, validator, given)
        if fits and not _has_floats(given):
            return given  # there is nothing that could be read in another way
        args: Json = Coercion(tool, reads_text=not fits)(given, [tool.parameters])
        return args

    def _ready(self, tool: Tool) -> tuple[Looks, Any | None]:
        with self._lock:
            if tool not in self._compiled:
                looks = Looks(tool.parameters)
                self._compiled[tool] = looks, _compile(tool) if looks.are_bounded else None
            return self._compiled[tool]


def parse_arguments(name: str, arguments: Json | str | None) -> Json:
    """A dict, from whatever form a provider or a model gave the arguments."""
    if isinstance(arguments, str):
        arguments = _parse_text(name, arguments)
        if isinstance(arguments, str):  # some models encode twice
            arguments = _parse_text(name, arguments)
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        kind = type(arguments).__name__
        raise InvalidArguments(
            f"{shorten(name)!r} was not invoked: its arguments must be a JSON object, not {kind}."
        )
    return dict(arguments)


def _parse_text(name: str, text: str) -> Any:
    if not text.strip():
        return {}
    if len(text) > LARGEST_TEXT:
        raise InvalidArguments(
            f"{shorten(name)!r} was not invoked: its arguments are {len(text):,} characters long,"
            f" more than {LARGEST_TEXT:,}."
        )
    if excess := find_excess(text.encode("utf-8", "replace"), max_items=MAX_ARGUMENT_ITEMS):
        raise InvalidArguments(f"{shorten(name)!r} was not invoked: the text of its arguments {excess}.")
    try:
        return read_json(text, keys_once=True)
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(
            f"{shorten(name)!r} was not invoked: its arguments are not valid JSON ({error or 'too deep'})."
        ) from None


def _as_json(tool: Tool, value: Any, path: _Path = None, depth: int = 0) -> Any:
    """A copy of the value that is JSON and nothing else, down to its last leaf."""
    if depth > DEEPEST:
        raise _invalid(tool, f"at {_written(path)}: nested more than {DEEPEST} levels deep")
    if isinstance(value, Mapping):
        return {
            _as_json(tool, str(key), path): _as_json(tool, each, (path, key), depth + 1)
            for key, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_as_json(tool, each, (path, place), depth + 1) for place, each in enumerate(value)]
    if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, str) and encodable(value) == value:
        return value
    raise _invalid(tool, f"at {_written(path)}: {_kind_in_words(value)} is not JSON")


def _has_floats(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_floats, value.values()))
    return any(map(_has_floats, value)) if isinstance(value, list) else isinstance(value, float)


def _written(path: _Path) -> str:
    parts: list[str] = []
    while path is not None:
        path, part = path
        parts.append(f"/{part}")
    return shorten("".join(reversed(parts))) or "/"


def _kind_in_words(value: Any) -> str:
    if isinstance(value, str):
        return "half of a surrogate pair"
    return str(value) if isinstance(value, float) else f"a value of the type {type(value).__name__}"


class Coercion:
    """Reads JSON values the way their schema means them, and leaves alone what already fits."""

    def __init__(self, tool: Tool, *, reads_text: bool = True) -> None:
        self._tool, self._root, self._reads_text = tool, tool.parameters, reads_text
        self._kinds_of: dict[int, frozenset[str]] = {}
        self._readings: dict[tuple[int, ...], tuple[list[Json], frozenset[str]]] = {}

    def __call__(self, value: Any, schemas: Sequence[Any], path: _Path = None, depth: int = 0) -> Any:
        """The value as any of the schemas may mean it; with no schema, as it is."""
        branches, kinds = self._reading(schemas)
        if isinstance(value, str) and self._reads_text:
            value = _read_text(value, kinds)
            if isinstance(value, (dict, list)):
                value = _as_json(self._tool, value, path, depth)
        if isinstance(value, float):
            return _read_float(value, kinds)
        if isinstance(value, dict):
            return {
                key: self(each, _member(branches, key), (path, key), depth + 1)
                for key, each in value.items()
                if each is not None or not self._means_nothing(branches, key)
            }
        if isinstance(value, list):
            return [
                self(each, _element(branches, place), (path, place), depth + 1)
                for place, each in enumerate(value)
            ]
        return value

    def _means_nothing(self, branches: Sequence[Json], key: str) -> bool:
        """Whether null can only say that a property is left out."""
        if not self._reads_text or any(key in listed(branch, "required") for branch in branches):
            return False
        schemas = _declared(branches, key)
        return bool(schemas) and "null" not in self._reading(schemas)[1]

    def _reading(self, schemas: Sequence[Any]) -> tuple[list[Json], frozenset[str]]:
        """All that the schemas may stand for, and the types that may fit. Remembered: arrays are long."""
        key = tuple(id(schema) for schema in schemas)
        if key not in self._readings:
            kinds = frozenset().union(*(self._kinds(schema) for schema in schemas)) if schemas else _KINDS
            self._readings[key] = self._branches(schemas), kinds
        return self._readings[key]

    def _branches(self, schemas: Sequence[Any]) -> list[Json]:
        """The schemas with their local references and alternatives followed, each once."""
        found: dict[int, Json] = {}
        pending = list(schemas)
        while pending:
            schema = pending.pop()
            if isinstance(schema, dict) and id(schema) not in found:
                found[id(schema)] = schema
                pending += [self._referenced(schema), *listed(schema, "allOf")]
                pending += [*listed(schema, "anyOf"), *listed(schema, "oneOf")]
        return list(found.values())

    def _kinds(self, schema: Any, hops: int = 0) -> frozenset[str]:
        """The JSON types that may fit a schema: all, where it does not say."""
        if not isinstance(schema, dict) or hops > DEEPEST:
            return _KINDS
        if id(schema) not in self._kinds_of:
            self._kinds_of[id(schema)] = _KINDS  # what a schema that refers to itself sees of itself
            kinds = _own_kinds(schema) & self._kinds(self._referenced(schema), hops + 1)
            for each in listed(schema, "allOf"):
                kinds &= self._kinds(each, hops + 1)
            for key in ("anyOf", "oneOf"):
                if alternatives := listed(schema, key):
                    kinds &= frozenset().union(*(self._kinds(each, hops + 1) for each in alternatives))
            self._kinds_of[id(schema)] = kinds
        return self._kinds_of[id(schema)]

    def _referenced(self, schema: Json) -> Any:
        reference = schema.get("$ref")
        if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")):
            return None
        return pointed_at(self._root, reference[1:])


def _own_kinds(schema: Json) -> frozenset[str]:
    """The JSON types that a schema allows by its own words."""
    declared = schema.get("type")
    if isinstance(declared, str):
        kinds = {declared}
    else:
        kinds = {each for each in listed(schema, "type") if isinstance(each, str)} or set(_KINDS)
    if "number" in kinds:
        kinds.add("integer")
    values = listed(schema, "enum") or ([schema["const"]] if "const" in schema else [])
    return frozenset(kinds & {_kind_of(each) for each in values} if values else kinds)


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    names = ((str, "string"), (int, "integer"), (list, "array"), (dict, "object"))
    return next((name for kind, name in names if isinstance(value, kind)), "null")


def _read_text(text: str, kinds: Set[str]) -> Any:
    """The value a text stands for, where the schema does not take text."""
    if "string" in kinds:
        return text
    word = text.strip()
    if kinds & {"integer", "number"} and (number := _read_number(word, kinds)) is not None:
        return number
    if "boolean" in kinds and word.casefold() in ("true", "false"):
        return word.casefold() == "true"
    if "null" in kinds and word.casefold() in ("null", "none", ""):
        return None
    if kinds & {"object", "array"} and word[:1] in ("{", "["):
        return _read_container(text, kinds)
    return text


def _read_number(word: str, kinds: Set[str]) -> int | float | None:
    if _INTEGER.fullmatch(word):
        return int(word)
    if not _NUMBER.fullmatch(word):
        return None
    number = float(word)
    if not math.isfinite(number):
        return None
    if "number" in kinds:
        return number
    return int(number) if number.is_integer() else None


def _read_float(value: float, kinds: Set[str]) -> float | int:
    return int(value) if value.is_integer() and "integer" in kinds and "number" not in kinds else value


def _read_container(text: str, kinds: Set[str]) -> Any:
    if find_excess(text.encode("utf-8", "replace"), max_items=MAX_ARGUMENT_ITEMS):
        return text
    try:
        value = read_json(text)
    except (ValueError, RecursionError):
        return text
    return value if _kind_of(value) in kinds else text


def _member(branches: Sequence[Json], key: str) -> list[Any]:
    """What any of the branches says about one property."""
    others = [branch.get("additionalProperties") for branch in branches]
    return _declared(branches, key) or [each for each in others if isinstance(each, dict)]


def _declared(branches: Sequence[Json], key: str) -> list[Any]:
    return [
        properties[key]
        for branch in branches
        if isinstance(properties := branch.get("properties"), dict) and key in properties
    ]


def _element(branches: Sequence[Json], place: int) -> list[Any]:
    """What any of the branches says about one element of an array."""
    said = []
    for branch in branches:
        leading = listed(branch, "prefixItems")
        said.append(leading[place] if place < len(leading) else branch.get("items"))
    return [each for each in said if isinstance(each, dict)]


def _require_checkable(tool: Tool, looks: Looks, args: Json) -> None:
    if not looks.are_bounded:
        raise _invalid(tool, "its schema is too complex to check")
    if sum(size * each for size, each in looks.at(args)) > MOST_LOOKS:
        raise _invalid(tool, "its schema is too complex to check arguments so large or so deeply nested")


def _compile(tool: Tool) -> Any | None:
    import jsonschema_rs

    schema = copy.deepcopy(tool.parameters)  # the validator takes plain dicts and lists only
    try:
        return jsonschema_rs.validator_for(schema, retriever=_refuse_remote, validate_formats=False)
    except Exception as error:  # foreign schemas break in every way; the tool stays usable
        log.warning("the schema of %r cannot be checked: %s", tool.name, shorten(str(error)))
        return None


def _refuse_remote(uri: str) -> NoReturn:
    raise ValueError(f"remote reference {shorten(uri)!r} is not followed")


def _is_valid(tool: Tool, validator: Any, args: Json) -> bool:
    try:
        return bool(validator.is_valid(args))
    except ValueError as error:
        raise _invalid(tool, f"its arguments cannot be checked ({shorten(str(error))})") from None


def _problems(looks: Looks, validator: Any, args: Json) -> str:
    levels = looks.at(args)
    quoted = len(json.dumps(args, ensure_ascii=False)) * sum(each for _, each in levels)
    if sum(size * each for size, each in levels) > _MOST_EXPLAINED or quoted > _MOST_QUOTED:
        return "its arguments do not fit its schema, and to say where would take too long"
    return "; ".join(_problem(error) for error in _first(3, validator.iter_errors(args)))


def _first(count: int, errors: Iterator[Any]) -> list[Any]:
    return [error for error, _ in zip(errors, range(count), strict=False)]


def _problem(error: Any) -> str:
    path = "".join(f"/{part}" for part in error.instance_path)
    return f"at {shorten(path) or '/'}: {shorten(str(error.message))}"


def _invalid(tool: Tool, problem: str) -> InvalidArguments:
    schema = json.dumps(tool.parameters, ensure_ascii=False, separators=(",", ":"))
    details = {"parameters": tool.parameters} if len(schema) <= _SHOWN_SCHEMA else {}
    return InvalidArguments(f"{tool.name!r} was not invoked: {problem}.", **details)
