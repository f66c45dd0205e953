"""A tool's parameters on one line, short enough for a search result and exact enough to call it.

`create_issue(repo: string, title: string, labels?: string[], state?: "open"|"closed")`. What does not
fit is cut with "…". Schemas come from anywhere: every step here is counted, and none follows a
reference out of the schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from toolfold.complexity import listed, pointed_at
from toolfold.model import Json, Tool

LONGEST = 600
_MOST_STEPS = 300
_DEEPEST = 4
_MOST_VALUES = 12
_LONGEST_VALUE = 40
_CUT = "…"
_BARE = re.compile(r"[A-Za-z_$][\w$.-]{0,63}", re.A)
_SCALARS = (str, int, float, bool)


def signature(tool: Tool) -> str:
    """The tool as a call of it would be declared, required parameters first."""
    writer = _Writer(tool.parameters)
    room = LONGEST - len(tool.name)
    written: list[str] = []
    parameters = list(writer.members(tool.parameters))
    for count, (name, schema, required) in enumerate(parameters):
        text = writer.parameter(name, schema, required)
        if len(text) > room:
            text = f"{_marked(name, required)}: {_CUT}"
        if len(text) > room:
            written.append(f"{_CUT} {len(parameters) - count} more")
            break
        room -= len(text) + 2
        written.append(text)
    return f"{tool.name}({', '.join(written)})"


class _Writer:
    """Writes the types of one schema, in a bounded number of steps."""

    def __init__(self, root: Json) -> None:
        self._root = root
        self._steps = _MOST_STEPS

    def members(self, schema: Json) -> Iterator[tuple[str, Any, bool]]:
        """The properties of an object, with whether each is required: those first."""
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            return
        required = {name for name in listed(schema, "required") if isinstance(name, str)}
        for wanted in (True, False):
            for name, each in properties.items():
                if (name in required) is wanted:
                    yield name, each, wanted

    def parameter(self, name: str, schema: Any, required: bool, depth: int = 0) -> str:
        default = "" if required else _default(schema)
        return f"{_marked(name, required)}: {self.type(schema, depth)}{default}"

    def type(self, schema: Any, depth: int = 0) -> str:
        """What fits the schema, in the words of a type."""
        self._steps -= 1
        if self._steps < 0 or depth > _DEEPEST:
            return _CUT
        if not isinstance(schema, dict):
            return "any"
        if "const" in schema:
            return _value(schema["const"])
        if values := listed(schema, "enum"):
            return _union([*map(_value, values[:_MOST_VALUES]), *([_CUT] if values[_MOST_VALUES:] else [])])
        if isinstance(schema.get("$ref"), str):
            return self.type(self._referenced(schema["$ref"]), depth + 1)
        for key in ("anyOf", "oneOf"):
            if choices := listed(schema, key):
                return _union(self.type(each, depth) for each in choices[:_MOST_VALUES])
        if parts := listed(schema, "allOf"):
            return " & ".join(dict.fromkeys(self.type(each, depth) for each in parts[:3]))
        return self._declared(schema, depth)

    def _declared(self, schema: Json, depth: int) -> str:
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return _union(self._kind(kind, schema, depth) for kind in kinds[:_MOST_VALUES])
        if kinds is None and isinstance(schema.get("properties"), dict):
            kinds = "object"
        return self._kind(kinds, schema, depth)

    def _kind(self, kind: Any, schema: Json, depth: int) -> str:
        if kind == "array":
            items = self.type(schema.get("items"), depth + 1)
            return f"({items})[]" if "|" in items or "&" in items else f"{items}[]"
        if kind == "object":
            return self._object(schema, depth)
        if kind == "string" and isinstance(schema.get("format"), str) and _BARE.fullmatch(schema["format"]):
            return f"string<{schema['format']}>"
        return kind if isinstance(kind, str) and _BARE.fullmatch(kind) else "any"

    def _object(self, schema: Json, depth: int) -> str:
        members: list[str] = []
        for name, each, required in self.members(schema):
            if self._steps <= 0 or len(members) >= _MOST_VALUES:
                members.append(_CUT)
                break
            members.append(self.parameter(name, each, required, depth + 1))
        others = schema.get("additionalProperties")
        if not members and isinstance(others, dict) and others:
            members.append(f"[key]: {self.type(others, depth + 1)}")
        return f"{{{', '.join(members)}}}" if members else "object"

    def _referenced(self, reference: str) -> Any:
        return pointed_at(self._root, reference[1:]) if reference == "#" or reference[:2] == "#/" else None


def _marked(name: str, required: bool) -> str:
    written = name if _BARE.fullmatch(name) else _value(name)
    return written if required else f"{written}?"


def _default(schema: Any) -> str:
    """What an optional parameter is without us, where that is short enough to say."""
    value = schema.get("default") if isinstance(schema, dict) else None
    if value in (None, "") or not isinstance(value, _SCALARS):
        return ""
    written = _value(value)
    return "" if written.endswith(_CUT) else f" = {written}"


def _value(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "object" if isinstance(value, dict) else "array"
    if isinstance(value, str) and len(value) > _LONGEST_VALUE:
        written = json.dumps(value[:_LONGEST_VALUE], ensure_ascii=False)[:-1] + _CUT
    else:
        written = json.dumps(value, ensure_ascii=False)[: _LONGEST_VALUE * 2]
    return "".join(char if char.isprintable() else " " for char in written)


def _union(types: Iterable[str]) -> str:
    return "|".join(dict.fromkeys(types))
