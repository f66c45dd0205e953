"""Render a tool's parameters on one line, short for search results but sufficient for a call.

`create_issue(repo: string, key: string</^[A-Z]+$/>, labels?: string[]<..5 items>, state?: 'open'|'closed')`.
Rules that a first call could break are in angle brackets: format, pattern, length, range. What does not fit
is cut with "…". Schemas are untrusted: every step is counted, and references are followed only inside the
schema.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from toolfold.core.schema_cost import get_list, resolve_pointer
from toolfold.core.types import Json, Tool

MAX_SIGNATURE_CHARS = 600
_MAX_STEPS = 300
_MAX_DEPTH = 4
_MAX_VALUES = 12
_MAX_VALUE_CHARS = 40
_MAX_PATTERN_CHARS = 60
_MAX_TEXT_CHARS = 200
"""Texts that may be longer than this are written without their maximum length: few exceed it."""
_MAX_NUMBER = 1e15
_ELLIPSIS = "…"
_PLAIN_NAME = re.compile(r"[A-Za-z_$][\w$.-]{0,63}", re.A)
_QUOTED = re.compile(r"['\"\\]")
_SCALARS = (str, int, float, bool)


def signature(tool: Tool) -> str:
    """Return the tool's name and parameters as a one-line declaration, required parameters first."""
    writer = _SignatureWriter(tool.parameters)
    room = MAX_SIGNATURE_CHARS - len(tool.name)
    written: list[str] = []
    parameters = list(writer.members(tool.parameters))
    for count, (name, schema, required) in enumerate(parameters):
        text = writer.parameter(name, schema, required)
        if len(text) > room:
            text = f"{_render_name(name, required)}: {_ELLIPSIS}"
        if len(text) > room:
            written.append(f"{_ELLIPSIS} {len(parameters) - count} more")
            break
        room -= len(text) + 2
        written.append(text)
    return f"{tool.name}({', '.join(written)}){_render_alternatives(tool.parameters)}"


class _SignatureWriter:
    """Renders the types in a JSON schema as one line of text; abbreviates large and deep schemas."""

    def __init__(self, root: Json) -> None:
        self._root = root
        self._steps = _MAX_STEPS

    def members(self, schema: Json) -> Iterator[tuple[str, Any, bool]]:
        """Yield each property of an object schema and whether it is required, required properties first."""
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            return
        required = {name for name in get_list(schema, "required") if isinstance(name, str)}
        for wanted in (True, False):
            for name, each in properties.items():
                if (name in required) is wanted:
                    yield name, each, wanted

    def parameter(self, name: str, schema: Any, required: bool, depth: int = 0) -> str:
        default = "" if required else _render_default(schema)
        return f"{_render_name(name, required)}: {self.type(schema, depth)}{default}"

    def type(self, schema: Any, depth: int = 0) -> str:
        """Return the type described by a schema, such as `string[]`."""
        self._steps -= 1
        if self._steps < 0 or depth > _MAX_DEPTH:
            return _ELLIPSIS
        if not isinstance(schema, dict):
            return "any"
        if "const" in schema:
            return _render_value(schema["const"])
        if values := get_list(schema, "enum"):
            return _join_types(
                [*map(_render_value, values[:_MAX_VALUES]), *([_ELLIPSIS] if values[_MAX_VALUES:] else [])]
            )
        if isinstance(schema.get("$ref"), str):
            return self.type(self._resolve_reference(schema["$ref"]), depth + 1)
        for key in ("anyOf", "oneOf"):
            if choices := get_list(schema, key):
                return _join_types(self.type(each, depth) for each in choices[:_MAX_VALUES])
        if parts := get_list(schema, "allOf"):
            return " & ".join(dict.fromkeys(self.type(each, depth) for each in parts[:3]))
        return self._render_declared(schema, depth)

    def _render_declared(self, schema: Json, depth: int) -> str:
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return _join_types(self._render_type(kind, schema, depth) for kind in kinds[:_MAX_VALUES])
        if kinds is None and isinstance(schema.get("properties"), dict):
            kinds = "object"
        return self._render_type(kinds, schema, depth)

    def _render_type(self, kind: Any, schema: Json, depth: int) -> str:
        if kind == "array":
            items = self.type(schema.get("items"), depth + 1)
            written = f"({items})[]" if "|" in items or "&" in items else f"{items}[]"
            return written + _render_rules(_render_range(schema, "minItems", "maxItems", " items"))
        if kind == "object":
            return self._render_object(schema, depth)
        if kind == "string":
            return f"string{_render_rules(*_string_rules(schema))}"
        if kind in ("integer", "number"):
            return f"{kind}{_render_rules(_render_range(schema, 'minimum', 'maximum'))}"
        return kind if isinstance(kind, str) and _PLAIN_NAME.fullmatch(kind) else "any"

    def _render_object(self, schema: Json, depth: int) -> str:
        members: list[str] = []
        for name, each, required in self.members(schema):
            if self._steps <= 0 or len(members) >= _MAX_VALUES:
                members.append(_ELLIPSIS)
                break
            members.append(self.parameter(name, each, required, depth + 1))
        others = schema.get("additionalProperties")
        if not members and isinstance(others, dict) and others:
            members.append(f"[key]: {self.type(others, depth + 1)}")
        return f"{{{', '.join(members)}}}" if members else "object"

    def _resolve_reference(self, reference: str) -> Any:
        return (
            resolve_pointer(self._root, reference[1:]) if reference == "#" or reference[:2] == "#/" else None
        )


def _render_rules(*rules: str) -> str:
    """Return the rules for a value in angle brackets; empty if there are none."""
    written = ", ".join(filter(None, rules))
    return f"<{written}>" if written else ""


def _string_rules(schema: Json) -> Iterator[str]:
    """Yield the format, the pattern and the length that a text must have."""
    if isinstance(form := schema.get("format"), str) and _PLAIN_NAME.fullmatch(form):
        yield form
    if isinstance(pattern := schema.get("pattern"), str) and pattern:
        cut = pattern[:_MAX_PATTERN_CHARS] + (_ELLIPSIS if pattern[_MAX_PATTERN_CHARS:] else "")
        yield f"/{''.join(char if char.isprintable() else ' ' for char in cut)}/"
    else:
        is_long = _as_number(schema.get("maxLength"), math.inf) > _MAX_TEXT_CHARS
        limits = {key: each for key, each in schema.items() if not (is_long and key == "maxLength")}
        yield _render_range(limits, "minLength", "maxLength", " chars")


def _render_range(schema: Json, low: str, high: str, unit: str = "") -> str:
    """Return a range such as `1..100`; empty if it only says that a value is not negative or not empty."""
    least, most = _as_number(schema.get(low), None), _as_number(schema.get(high), None)
    if most is None and (least is None or 0 <= least <= 1):
        return ""
    written = (
        "" if each is None else f"{each:g}" if abs(each) < 1e6 else str(each) for each in (least, most)
    )
    return f"{'..'.join(written)}{unit}"


def _as_number(value: Any, otherwise: Any) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and abs(value) < _MAX_NUMBER else otherwise


def _render_alternatives(schema: Json) -> str:
    """Return which optional parameters a call needs at least one of, as ` needs width or height`."""
    for key in ("anyOf", "oneOf"):
        choices = get_list(schema, key)[:_MAX_VALUES]
        needed = [
            get_list(each, "required")[:_MAX_VALUES] if isinstance(each, dict) else [] for each in choices
        ]
        if needed and all(names and all(isinstance(name, str) for name in names) for names in needed):
            return " needs " + " or ".join(
                " + ".join(_render_name(n, True) for n in names) for names in needed
            )
    return ""


def _render_name(name: str, required: bool) -> str:
    written = name if _PLAIN_NAME.fullmatch(name) else _render_value(name)
    return written if required else f"{written}?"


def _render_default(schema: Any) -> str:
    """Return " = value" for an optional parameter with a short default."""
    value = schema.get("default") if isinstance(schema, dict) else None
    if value in (None, "") or not isinstance(value, _SCALARS):
        return ""
    written = _render_value(value)
    return "" if written.endswith(_ELLIPSIS) else f" = {written}"


def _render_value(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "object" if isinstance(value, dict) else "array"
    if isinstance(value, str) and len(value) > _MAX_VALUE_CHARS:
        written = json.dumps(value[:_MAX_VALUE_CHARS], ensure_ascii=False)[:-1] + _ELLIPSIS
    elif isinstance(value, str) and value.isprintable() and not _QUOTED.search(value):
        return f"'{value}'"  # inside of JSON, double quotes would be escaped
    else:
        written = json.dumps(value, ensure_ascii=False)[: _MAX_VALUE_CHARS * 2]
    return "".join(char if char.isprintable() else " " for char in written)


def _join_types(types: Iterable[str]) -> str:
    return "|".join(dict.fromkeys(types))
