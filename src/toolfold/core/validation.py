"""Parse and validate the arguments of tool calls from a model.

Three steps: parse (providers send JSON text), coerce (models send "5" for 5), check against the tool's JSON
Schema. An error names the invalid part and shows the schema, so that the model can correct its call. Never
fetches anything: a remote `$ref` is an error, not a request.
"""

from __future__ import annotations

import copy
import itertools
import json
import logging
import math
import re
import threading
import weakref
from collections.abc import Mapping, Sequence, Set
from typing import Any, NoReturn, TypeAlias

from toolfold.core.errors import InvalidArguments, shorten
from toolfold.core.json_limits import MAX_ARGUMENT_ITEMS, find_excess
from toolfold.core.schema_cost import MAX_DEPTH, MAX_VISITS, VisitCounter, get_list, resolve_pointer
from toolfold.core.types import Json, Meaning, Tool, make_encodable, read_json

log = logging.getLogger(__name__)

MAX_TEXT_CHARS = 10_000_000
_MAX_EXPLAINED_VISITS = 20_000  # an error costs a thousand times as much as a visit
_MAX_QUOTED_CHARS = 100_000_000
_MAX_SCHEMA_CHARS = 4_000
_MAX_COUNTED_ERRORS = 200
_MAX_SHOWN_ERRORS = 8
_MAX_ERROR_CHARS = 900
_JSON_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,5})?")
_Path: TypeAlias = (
    "tuple[_Path, str | int] | None"  # a linked list, because joining text would copy it at each step
)


class Validation:
    """Validates arguments of tools; compiles each tool's schema once and caches it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._compiled: weakref.WeakKeyDictionary[Tool, tuple[VisitCounter, Any]] = (
            weakref.WeakKeyDictionary()
        )

    def __call__(self, tool: Tool, arguments: Json | str | None) -> Json:
        """Parse, convert and validate a tool's arguments, and return them. Raises InvalidArguments."""
        return self.check(tool, self.read(tool, arguments))

    def check(self, tool: Tool, args: Json) -> Json:
        """Return parsed arguments if they match the tool's schema. Raises InvalidArguments."""
        visits, validator = self._compiled_for(tool)
        # What the runtime adds for approval is not in the schema, which the model reads.
        given = {name: value for name, value in args.items() if not _is_set_by_runtime(tool, name)}
        _require_checkable(tool, visits, given)  # parsed text may be deeper than its raw form
        if validator is not None and not _is_valid(tool, validator, given):
            raise _invalid_arguments(tool, _describe_errors(visits, validator, given))
        return args

    def read(self, tool: Tool, arguments: Json | str | None) -> Json:
        """Parse and convert a tool's arguments, and return them even if they do not match the schema."""
        parsed: Json = _require_json(tool, parse_arguments(tool.name, arguments))
        visits, validator = self._compiled_for(tool)
        _require_checkable(tool, visits, parsed)
        fits = validator is not None and _is_valid(tool, validator, parsed)
        if fits and not _has_floats(parsed):
            return parsed  # nothing to coerce
        args: Json = ArgumentCoercion(tool, reads_text=not fits)(parsed, [tool.parameters])
        return args

    def _compiled_for(self, tool: Tool) -> tuple[VisitCounter, Any | None]:
        with self._lock:
            if tool not in self._compiled:
                visits = VisitCounter(tool.parameters)
                self._compiled[tool] = visits, _compile_schema(tool) if visits.is_bounded else None
            return self._compiled[tool]


def parse_arguments(name: str, arguments: Json | str | None) -> Json:
    """Return a call's arguments as a dict, given a dict, JSON text or None. Raises InvalidArguments."""
    if isinstance(arguments, str):
        arguments = _parse_text(name, arguments)
        if isinstance(arguments, str):  # some models encode the JSON twice
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
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidArguments(
            f"{shorten(name)!r} was not invoked: its arguments are {len(text):,} characters long,"
            f" more than {MAX_TEXT_CHARS:,}."
        )
    if excess := find_excess(text.encode("utf-8", "replace"), max_items=MAX_ARGUMENT_ITEMS):
        raise InvalidArguments(f"{shorten(name)!r} was not invoked: the text of its arguments {excess}.")
    try:
        return read_json(text, unique_keys=True)
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(
            f"{shorten(name)!r} was not invoked: its arguments are not valid JSON ({error or 'too deep'})."
        ) from None


def _require_json(tool: Tool, value: Any, path: _Path = None, depth: int = 0) -> Any:
    """Return a deep copy of an argument. Raises InvalidArguments if it contains non-JSON values."""
    if depth > MAX_DEPTH:
        raise _invalid_arguments(tool, f"at {_format_path(path)}: nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        return {
            _require_json(tool, str(key), path): _require_json(tool, each, (path, key), depth + 1)
            for key, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_require_json(tool, each, (path, place), depth + 1) for place, each in enumerate(value)]
    if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, str) and make_encodable(value) == value:
        return value
    raise _invalid_arguments(tool, f"at {_format_path(path)}: {_describe_kind(value)} is not JSON")


def _has_floats(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_floats, value.values()))
    return any(map(_has_floats, value)) if isinstance(value, list) else isinstance(value, float)


def _format_path(path: _Path) -> str:
    parts: list[str] = []
    while path is not None:
        path, part = path
        parts.append(f"/{part}")
    return shorten("".join(reversed(parts))) or "/"


def _describe_kind(value: Any) -> str:
    if isinstance(value, str):
        return "half of a surrogate pair"
    return str(value) if isinstance(value, float) else f"a value of the type {type(value).__name__}"


class ArgumentCoercion:
    """Converts arguments to the types required by their schema; matching arguments stay unchanged."""

    def __init__(self, tool: Tool, *, reads_text: bool = True) -> None:
        self._tool, self._root, self._reads_text = tool, tool.parameters, reads_text
        self._types_by_schema: dict[int, frozenset[str]] = {}
        self._expansions: dict[tuple[int, ...], tuple[list[Json], frozenset[str]]] = {}

    def __call__(self, value: Any, schemas: Sequence[Any], path: _Path = None, depth: int = 0) -> Any:
        """Convert a value to a type that one of the schemas accepts, if possible."""
        branches, kinds = self._expand(schemas)
        if isinstance(value, str) and self._reads_text:
            value = _read_text(value, kinds)
            if isinstance(value, (dict, list)):
                value = _require_json(self._tool, value, path, depth)
        if isinstance(value, float):
            return _read_float(value, kinds)
        if isinstance(value, dict):
            return {
                key: self(each, _property_schemas(branches, key), (path, key), depth + 1)
                for key, each in value.items()
                if each is not None or not self._is_omitted(branches, key)
            }
        if isinstance(value, list):
            return [
                self(each, _element_schemas(branches, place), (path, place), depth + 1)
                for place, each in enumerate(value)
            ]
        return value

    def _is_omitted(self, branches: Sequence[Json], key: str) -> bool:
        """Return True if null means "omitted" for a property: it is optional and does not allow null."""
        if not self._reads_text or any(key in get_list(branch, "required") for branch in branches):
            return False
        schemas = _declared_schemas(branches, key)
        return bool(schemas) and "null" not in self._expand(schemas)[1]

    def _expand(self, schemas: Sequence[Any]) -> tuple[list[Json], frozenset[str]]:
        """Return all schemas reachable by `$ref`, `allOf`, `anyOf` and `oneOf`, and their JSON types.

        Cached, because arrays are long.
        """
        key = tuple(id(schema) for schema in schemas)
        if key not in self._expansions:
            kinds = (
                frozenset().union(*(self._possible_types(schema) for schema in schemas))
                if schemas
                else _JSON_TYPES
            )
            self._expansions[key] = self._follow_branches(schemas), kinds
        return self._expansions[key]

    def _follow_branches(self, schemas: Sequence[Any]) -> list[Json]:
        """Return the schemas and all schemas reachable by `$ref`, `allOf`, `anyOf` and `oneOf`, each once."""
        branches: dict[int, Json] = {}
        pending = list(schemas)
        while pending:
            schema = pending.pop()
            if isinstance(schema, dict) and id(schema) not in branches:
                branches[id(schema)] = schema
                pending += [self._resolve_reference(schema), *get_list(schema, "allOf")]
                pending += [*get_list(schema, "anyOf"), *get_list(schema, "oneOf")]
        return list(branches.values())

    def _possible_types(self, schema: Any, hops: int = 0) -> frozenset[str]:
        """Return the JSON types that may match a schema; all types if it does not restrict them."""
        if not isinstance(schema, dict) or hops > MAX_DEPTH:
            return _JSON_TYPES
        if id(schema) not in self._types_by_schema:
            self._types_by_schema[id(schema)] = _JSON_TYPES  # seen by schemas that refer to themselves
            kinds = _declared_types(schema) & self._possible_types(self._resolve_reference(schema), hops + 1)
            for each in get_list(schema, "allOf"):
                kinds &= self._possible_types(each, hops + 1)
            for key in ("anyOf", "oneOf"):
                if alternatives := get_list(schema, key):
                    kinds &= frozenset().union(
                        *(self._possible_types(each, hops + 1) for each in alternatives)
                    )
            self._types_by_schema[id(schema)] = kinds
        return self._types_by_schema[id(schema)]

    def _resolve_reference(self, schema: Json) -> Any:
        reference = schema.get("$ref")
        if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")):
            return None
        return resolve_pointer(self._root, reference[1:])


def _declared_types(schema: Json) -> frozenset[str]:
    """Return the JSON types allowed by the `type`, `enum` and `const` of a schema."""
    declared = schema.get("type")
    if isinstance(declared, str):
        kinds = {declared}
    else:
        kinds = {each for each in get_list(schema, "type") if isinstance(each, str)} or set(_JSON_TYPES)
    if "number" in kinds:
        kinds.add("integer")
    values = get_list(schema, "enum") or ([schema["const"]] if "const" in schema else [])
    return frozenset(kinds & {_json_type(each) for each in values} if values else kinds)


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    names = ((str, "string"), (int, "integer"), (list, "array"), (dict, "object"))
    return next((name for kind, name in names if isinstance(value, kind)), "null")


def _read_text(text: str, kinds: Set[str]) -> Any:
    """Return the value represented by a text, such as 5 for "5", if the schema accepts no strings."""
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
    return value if _json_type(value) in kinds else text


def _property_schemas(branches: Sequence[Json], key: str) -> list[Any]:
    """Return the schemas of one property, from all alternatives of an object's schema."""
    others = [branch.get("additionalProperties") for branch in branches]
    return _declared_schemas(branches, key) or [each for each in others if isinstance(each, dict)]


def _declared_schemas(branches: Sequence[Json], key: str) -> list[Any]:
    return [
        properties[key]
        for branch in branches
        if isinstance(properties := branch.get("properties"), dict) and key in properties
    ]


def _element_schemas(branches: Sequence[Json], index: int) -> list[Any]:
    """Return the schemas for the array element at an index, one for each alternative of the schema."""
    schemas = []
    for branch in branches:
        leading = get_list(branch, "prefixItems")
        schemas.append(leading[index] if index < len(leading) else branch.get("items"))
    return [each for each in schemas if isinstance(each, dict)]


def _require_checkable(tool: Tool, visits: VisitCounter, args: Json) -> None:
    if not visits.is_bounded:
        raise _invalid_arguments(tool, "its schema is too complex to check")
    if sum(size * each for size, each in visits.visits_per_level(args)) > MAX_VISITS:
        raise _invalid_arguments(tool, "its schema is too complex to check arguments of this size or depth")


def _compile_schema(tool: Tool) -> Any | None:
    import jsonschema_rs

    schema = copy.deepcopy(tool.parameters)  # the validator accepts only plain dicts and lists
    try:
        return jsonschema_rs.validator_for(schema, retriever=_refuse_remote, validate_formats=False)
    except Exception as error:  # invalid schemas fail in many ways; the tool stays usable
        log.warning(
            "the schema of tool %r is invalid, so its arguments are not checked: %s",
            tool.name,
            shorten(str(error)),
        )
        return None


def _refuse_remote(uri: str) -> NoReturn:
    raise ValueError(f"the remote reference {shorten(uri)!r} is not loaded")


def _is_valid(tool: Tool, validator: Any, args: Json) -> bool:
    try:
        return bool(validator.is_valid(args))
    except ValueError as error:
        raise _invalid_arguments(tool, f"its arguments cannot be checked ({shorten(str(error))})") from None


def _is_set_by_runtime(tool: Tool, name: str) -> bool:
    return tool.judged_as.get(name) is Meaning.INPUT_CONTEXT


def _describe_errors(visits: VisitCounter, validator: Any, args: Json) -> str:
    levels = visits.visits_per_level(args)
    quoted = len(json.dumps(args, ensure_ascii=False)) * sum(each for _, each in levels)
    if sum(size * each for size, each in levels) > _MAX_EXPLAINED_VISITS or quoted > _MAX_QUOTED_CHARS:
        return "its arguments do not match its schema, and locating the error would take too long"
    found = list(itertools.islice(validator.iter_errors(args), _MAX_COUNTED_ERRORS))
    missing: dict[str, list[str]] = {}
    others: dict[str, None] = {}
    for error in found:
        if error.kind.name == "required":
            missing.setdefault(_error_path(error), []).append(error.kind.property)
        else:
            others.setdefault(f"at {_error_path(error)}: {shorten(str(error.message))}")
    shown = [_describe_missing(path, names) for path, names in missing.items()] + list(others)
    lengths = itertools.accumulate(map(len, shown))
    fitting = [text for text, length in zip(shown, lengths, strict=True) if length <= _MAX_ERROR_CHARS]
    kept = fitting[:_MAX_SHOWN_ERRORS] or shown[:1]
    more = len(shown) - len(kept)
    exact = f"{more} " if len(found) < _MAX_COUNTED_ERRORS else ""
    return "; ".join([*kept, *([f"and {exact}more"] if more else [])])


def _error_path(error: Any) -> str:
    return shorten("".join(f"/{part}" for part in error.instance_path)) or "/"


def _describe_missing(path: str, names: Sequence[str]) -> str:
    quoted = ", ".join(f'"{shorten(name)}"' for name in names)
    return f"at {path}: {quoted} {'is a required property' if len(names) == 1 else 'are required properties'}"


def _invalid_arguments(tool: Tool, problem: str) -> InvalidArguments:
    schema = json.dumps(tool.parameters, ensure_ascii=False, separators=(",", ":"))
    details = {"parameters": tool.parameters} if len(schema) <= _MAX_SCHEMA_CHARS else {}
    return InvalidArguments(f"{tool.name!r} was not invoked: {problem}.", **details)
