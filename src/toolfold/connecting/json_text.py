"""Changing JSON text, with or without comments, in one place.

The rest of the text stays what it was, to the byte: nothing is parsed and written anew. Takes for granted
that the text was read as JSON before; whoever calls must read the result back.
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
    """One name and its value; the comma behind it is its own."""

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

    def last(self, name: str) -> _Member | None:
        """The member of this name. Where there are two, readers take the last."""
        return next((each for each in reversed(self.members) if each.name == name), None)


@dataclass(frozen=True, slots=True)
class _Style:
    """How a text is laid out."""

    newline: str = "\n"
    unit: str = "  "

    def laid_out(self, value: Any, indent: str) -> str:
        """An object on a line for each of its members, all else on one line."""
        if not isinstance(value, dict) or not value:
            return json.dumps(value, ensure_ascii=False)
        inner = indent + self.unit
        members = [f"{inner}{self.member(name, each, inner)}" for name, each in value.items()]
        return f"{{{self.newline}{f',{self.newline}'.join(members)}{self.newline}{indent}}}"

    def member(self, name: str, value: Any, indent: str) -> str:
        return f"{json.dumps(name, ensure_ascii=False)}: {self.laid_out(value, indent)}"


def assigned(text: str, path: Sequence[str], value: Any) -> str:
    """The text with the value at the path; objects that are missing on the way are made."""
    if not text.strip():
        return _Style().laid_out(_nested(path, value), "") + "\n"
    holder = _object(text, _root(text))
    style = _style(text, holder)
    for depth, name in enumerate(path):
        member, rest = holder.last(name), path[depth + 1 :]
        if member is None:
            return _inserted(text, holder, name, _nested(rest, value), style)
        if not rest or text[member.value] != "{":
            return _replaced(text, member, _nested(rest, value), style)
        holder = _object(text, member.value)
    return text


def removed(text: str, path: Sequence[str], names: Collection[str]) -> str:
    """The text without these members of the object at the path."""
    holder = _object(text, _root(text))
    for name in path:
        member = holder.last(name)
        if member is None or text[member.value] != "{":
            return text
        holder = _object(text, member.value)
    gone = [each for each in holder.members if each.name in names]
    edits = [_without(text, each) for each in gone]
    kept = [each for each in holder.members if each.name not in names]
    if gone and kept and kept[-1].comma is not None and holder.members[-1].comma is None:
        edits.append((kept[-1].comma, kept[-1].comma + 1, ""))
    return _edited(text, edits)


def _root(text: str) -> int:
    return next(each.start() for each in _TOKEN.finditer(text) if each.lastgroup != "comment")


def _object(text: str, start: int) -> _Object:
    """The object that begins there, and where its own members lie."""
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


def _inserted(text: str, holder: _Object, name: str, value: Any, style: _Style) -> str:
    if not holder.members:
        return _filled(text, holder, name, value, style)
    last = holder.members[-1]
    indent = _indent(text, last.start)
    comma = [] if last.comma is not None else [(last.end, last.end, ",")]
    if indent is None:
        return _edited(text, [*comma, (last.whole_end, last.whole_end, " " + _on_one_line(name, value))])
    # A comment behind the last member is about that one.
    rest = _REST_OF_LINE.match(text, last.whole_end)
    place = rest.end() if rest else last.whole_end
    block = style.newline + indent + style.member(name, value, indent)
    return _edited(text, [*comma, (place, place, block + ("," if last.comma is not None else ""))])


def _filled(text: str, holder: _Object, name: str, value: Any, style: _Style) -> str:
    """An object that was empty, laid out as the rest of the text is."""
    place = holder.start + 1
    if "\n" not in text.strip() and holder.start != _root(text):
        return _edited(text, [(place, place, _on_one_line(name, value))])
    line = text[text.rfind("\n", 0, holder.start) + 1 : holder.start]
    outer = line[: len(line) - len(line.lstrip())]
    inner = outer + style.unit
    has_lines = "\n" in text[place : holder.end]
    end = "" if has_lines else style.newline + outer
    return _edited(text, [(place, place, style.newline + inner + style.member(name, value, inner) + end)])


def _replaced(text: str, member: _Member, value: Any, style: _Style) -> str:
    indent = _indent(text, member.start)
    rendered = json.dumps(value, ensure_ascii=False) if indent is None else style.laid_out(value, indent)
    return _edited(text, [(member.value, member.end, rendered)])


def _without(text: str, member: _Member) -> _Edit:
    """A member that has lines of its own goes with them, and with what is said behind it."""
    start, end = member.start, member.whole_end
    if _indent(text, start) is None:
        return start, end + len(text[end:]) - len(text[end:].lstrip(" \t")), ""
    rest = _REST_OF_LINE.match(text, end)
    if rest is None:
        return text.rfind("\n", 0, start) + 1, end, ""
    line_end = text.find("\n", rest.end())
    return text.rfind("\n", 0, start) + 1, len(text) if line_end < 0 else line_end + 1, ""


def _edited(text: str, edits: Sequence[_Edit]) -> str:
    """From the back, so that no edit moves another; of two in one place the first given stands first."""
    for start, end, new in sorted(edits, key=lambda each: each[0])[::-1]:
        text = text[:start] + new + text[end:]
    return text


def _indent(text: str, index: int) -> str | None:
    """What stands before it on its line, if that is nothing but space."""
    before = text[text.rfind("\n", 0, index) + 1 : index]
    return None if before.strip(" \t") else before


def _style(text: str, root: _Object) -> _Style:
    first = next(iter(root.members), None)
    unit = (_indent(text, first.start) if first else None) or "  "
    return _Style("\r\n" if "\r\n" in text else "\n", unit)


def _on_one_line(name: str, value: Any) -> str:
    return f"{json.dumps(name, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"


def _nested(path: Sequence[str], value: Any) -> Any:
    for name in reversed(path):
        value = {name: value}
    return value
