"""Change one value in JSON text, with or without comments, and leave all other text unchanged.

The rest of the text stays byte-identical: nothing is parsed and written again. Expects text that was parsed
as JSON before; the caller must parse the result again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

_TOKEN = re.compile(
    r"""
      (?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))
    | (?P<string>"[^"\\]*(?:\\.[^"\\]*)*")
    | (?P<sign>[{}\[\]:,])
    | (?P<bare>[^\s{}\[\]:,"/]+)
    """,
    re.DOTALL | re.VERBOSE,
)
_REST_OF_LINE = re.compile(r"[ \t]*(?:/\*(?:[^*\n]|\*(?!/))*\*/[ \t]*)*(?://[^\r\n]*)?(?=\r?\n|\Z)")
_Edit = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class _Member:
    """Position of one member of a JSON object in a text: its name, its value and the comma after it."""

    name: str
    start: int
    value: int
    end: int
    comma: int | None = None

    @property
    def whole_end(self) -> int:
        return self.end if self.comma is None else self.comma + 1


@dataclass(frozen=True, slots=True)
class _Object:
    start: int
    end: int
    members: tuple[_Member, ...]

    def find(self, name: str) -> _Member | None:
        """Return the member with this name; the last one if the name is repeated, as JSON parsers do."""
        return next((member for member in reversed(self.members) if member.name == name), None)


@dataclass(frozen=True, slots=True)
class _Style:
    """Newline and indentation that a JSON text uses."""

    newline: str = "\n"
    unit: str = "  "

    def render(self, value: Any, indent: str) -> str:
        """Render a value as JSON: an object with one member per line, anything else on one line."""
        if not isinstance(value, dict) or not value:
            return json.dumps(value, ensure_ascii=False)
        inner = indent + self.unit
        members = [f"{inner}{self.render_member(name, each, inner)}" for name, each in value.items()]
        return f"{{{self.newline}{f',{self.newline}'.join(members)}{self.newline}{indent}}}"

    def render_member(self, name: str, value: Any, indent: str) -> str:
        return f"{json.dumps(name, ensure_ascii=False)}: {self.render(value, indent)}"


def set_value(text: str, path: Sequence[str], value: Any) -> str:
    """Return the JSON text with the value set at the path; missing objects are created."""
    if not text.strip():
        return _Style().render(_nest_value(path, value), "") + "\n"
    parent = _parse_object(text, _find_root(text))
    style = _detect_style(text, parent)
    for depth, name in enumerate(path):
        member, rest = parent.find(name), path[depth + 1 :]
        if member is None:
            return _insert_member(text, parent, name, _nest_value(rest, value), style)
        if not rest or text[member.value] != "{":
            return _replace_value(text, member, _nest_value(rest, value), style)
        parent = _parse_object(text, member.value)
    return text


def remove_members(text: str, path: Sequence[str], names: Collection[str]) -> str:
    """Return the JSON text with the named members removed from the object at the path."""
    parent = _parse_object(text, _find_root(text))
    for name in path:
        member = parent.find(name)
        if member is None or text[member.value] != "{":
            return text
        parent = _parse_object(text, member.value)
    removed = [member for member in parent.members if member.name in names]
    edits = [_removal_edit(text, member) for member in removed]
    remaining = [member for member in parent.members if member.name not in names]
    if removed and remaining and remaining[-1].comma is not None and parent.members[-1].comma is None:
        edits.append((remaining[-1].comma, remaining[-1].comma + 1, ""))
    return _apply_edits(text, edits)


def _find_root(text: str) -> int:
    return next(each.start() for each in _TOKEN.finditer(text) if each.lastgroup != "comment")


def _parse_object(text: str, start: int) -> _Object:
    """Parse the JSON object that starts at a position, and record the positions of its members."""
    depth, key, value = 0, None, 0
    members: list[_Member] = []
    for token in _TOKEN.finditer(text, start):
        kind, sign = token.lastgroup, token[0]
        if kind == "comment":
            continue
        if kind == "sign" and sign in "{[":
            depth += 1
            value = token.start() if depth == 2 else value
        elif kind == "sign" and sign in "}]":
            depth -= 1
            if depth == 0:
                return _Object(start, token.end(), tuple(members))
            if depth == 1 and key is not None:
                members.append(_Member(json.loads(key[0]), key.start(), value, token.end()))
        elif depth > 1 or sign == ":":
            continue
        elif kind == "sign":
            members[-1], key = replace(members[-1], comma=token.start()), None
        elif key is None:
            key = token
        else:
            members.append(_Member(json.loads(key[0]), key.start(), token.start(), token.end()))
    return _Object(start, len(text), tuple(members))


def _insert_member(text: str, parent: _Object, name: str, value: Any, style: _Style) -> str:
    if not parent.members:
        return _fill_empty_object(text, parent, name, value, style)
    last = parent.members[-1]
    indent = _line_indent(text, last.start)
    comma = [] if last.comma is not None else [(last.end, last.end, ",")]
    if indent is None:
        return _apply_edits(
            text, [*comma, (last.whole_end, last.whole_end, " " + _render_inline(name, value))]
        )
    # A comment after the last member belongs to that member.
    rest = _REST_OF_LINE.match(text, last.whole_end)
    position = rest.end() if rest else last.whole_end
    block = style.newline + indent + style.render_member(name, value, indent)
    return _apply_edits(text, [*comma, (position, position, block + ("," if last.comma is not None else ""))])


def _fill_empty_object(text: str, parent: _Object, name: str, value: Any, style: _Style) -> str:
    """Return the edit that adds the first member to an empty JSON object."""
    position = parent.start + 1
    if "\n" not in text.strip() and parent.start != _find_root(text):
        return _apply_edits(text, [(position, position, _render_inline(name, value))])
    line = text[text.rfind("\n", 0, parent.start) + 1 : parent.start]
    outer = line[: len(line) - len(line.lstrip())]
    inner = outer + style.unit
    has_lines = "\n" in text[position : parent.end]
    end = "" if has_lines else style.newline + outer
    return _apply_edits(
        text, [(position, position, style.newline + inner + style.render_member(name, value, inner) + end)]
    )


def _replace_value(text: str, member: _Member, value: Any, style: _Style) -> str:
    indent = _line_indent(text, member.start)
    rendered = json.dumps(value, ensure_ascii=False) if indent is None else style.render(value, indent)
    return _apply_edits(text, [(member.value, member.end, rendered)])


def _removal_edit(text: str, member: _Member) -> _Edit:
    """Return the edit that deletes a JSON object's member, including its lines and trailing comment."""
    start, end = member.start, member.whole_end
    if _line_indent(text, start) is None:
        return start, end + len(text[end:]) - len(text[end:].lstrip(" \t")), ""
    rest = _REST_OF_LINE.match(text, end)
    if rest is None:
        return text.rfind("\n", 0, start) + 1, end, ""
    line_end = text.find("\n", rest.end())
    return text.rfind("\n", 0, start) + 1, len(text) if line_end < 0 else line_end + 1, ""


def _apply_edits(text: str, edits: Sequence[_Edit]) -> str:
    """Apply edits to a text, last edit first, so that the positions of earlier edits stay valid."""
    for start, end, new in sorted(edits, key=lambda each: each[0])[::-1]:
        text = text[:start] + new + text[end:]
    return text


def _line_indent(text: str, index: int) -> str | None:
    """Return the indentation before a position in a text; None if other text precedes it on the line."""
    before = text[text.rfind("\n", 0, index) + 1 : index]
    return None if before.strip(" \t") else before


def _detect_style(text: str, root: _Object) -> _Style:
    first = next(iter(root.members), None)
    unit = (_line_indent(text, first.start) if first else None) or "  "
    return _Style("\r\n" if "\r\n" in text else "\n", unit)


def _render_inline(name: str, value: Any) -> str:
    return f"{json.dumps(name, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"


def _nest_value(path: Sequence[str], value: Any) -> Any:
    for name in reversed(path):
        value = {name: value}
    return value
