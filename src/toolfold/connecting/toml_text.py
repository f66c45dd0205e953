"""Changing TOML text: a table put in, tables taken out, and the rest of the text left as it was.

Takes for granted that the text was read as TOML before; whoever calls must read the result back.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_TOKEN = re.compile(
    r'''
      (?P<comment>\#[^\n]*)
    | """(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5} | \'{3}(?:[^\']|\'{1,2}(?!\'))*\'{3,5}
    | "(?:[^"\\\n]|\\.)*" | \'[^\'\n]*\'
    | (?P<open>[\[{]) | (?P<close>[\]}]) | (?P<line>\n) | (?P<equals>=)
    | (?P<blank>[ \t\r]+)
    | [^\s\#"\'\[\]{}=]+
    ''',
    re.DOTALL | re.VERBOSE,
)
_BLANK_LINES = re.compile(r"\A(?:[ \t]*\r?\n)+")
_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Statement:
    """A header or a pair, from the first of its lines to the end of its last."""

    start: int
    end: int
    path: Path
    is_header: bool


def assigned(text: str, section: str, name: str, value: Mapping[str, Any]) -> str:
    """The text with the table `[section.name]`: where it was, or at the end."""
    newline = "\r\n" if "\r\n" in text else "\n"
    block = newline.join(_table((section, name), value)) + newline
    runs = list(_runs(text, section, (name,)))
    for start, end, _ in reversed(runs):
        text = text[:start] + text[end:]
    if runs and runs[0][2]:
        place = runs[0][0]
        return text[:place] + block + text[place:]
    ended = text if not text or text.endswith("\n") else text + newline
    gap = newline if ended.strip() and not ended.endswith(newline * 2) else ""
    return ended + gap + block


def removed(text: str, section: str, names: Collection[str]) -> str:
    """The text without these tables of the section, and without the lines that only parted them."""
    for start, end, _ in reversed(list(_runs(text, section, names))):
        before, after = text[:start], text[end:]
        if not before.strip() or before.endswith(("\n\n", "\n\r\n")):
            after = _BLANK_LINES.sub("", after, count=1)
        text = before + after
    return text


def _runs(text: str, section: str, names: Collection[str]) -> Iterator[tuple[int, int, bool]]:
    """Where statements about these stand one after the other, and whether a header begins them.

    What is remarked between two of them goes with them.
    """
    start = end = -1
    with_header = False
    for each in _statements(text):
        if len(each.path) > 1 and each.path[0] == section and each.path[1] in names:
            start, with_header = (each.start, each.is_header) if start < 0 else (start, with_header)
            end = each.end
        elif start >= 0:
            yield start, end, with_header
            start = -1
    if start >= 0:
        yield start, end, with_header


def _statements(text: str) -> Iterator[_Statement]:
    table: Path = ()
    depth, start, equals = 0, -1, -1
    for token in _TOKEN.finditer(text + "\n"):
        kind = token.lastgroup
        if kind == "line" and depth == 0:
            if start >= 0:
                end = min(token.end(), len(text))
                statement = _statement(text, start, end, equals, table)
                table = statement.path if statement.is_header else table
                yield statement
            start = equals = -1
            continue
        if kind in ("comment", "line", "blank"):
            continue
        start = token.start() if start < 0 else start
        depth += (kind == "open") - (kind == "close")
        if kind == "equals" and depth == 0 and equals < 0:
            equals = token.start()


def _statement(text: str, start: int, end: int, equals: int, table: Path) -> _Statement:
    line = text.rfind("\n", 0, start) + 1
    if equals < 0:
        return _Statement(line, end, _keys(tomllib.loads(text[start:end])), True)
    return _Statement(line, end, (*table, *_keys(tomllib.loads(f"{text[start:equals]}= 0"))), False)


def _keys(held: Any) -> Path:
    """The one way down through what a single key makes."""
    found: list[str] = []
    while held and isinstance(held, (dict, list)):
        if isinstance(held, list):
            held = held[0]
        else:
            ((name, held),) = held.items()
            found.append(name)
    return tuple(found)


def _table(path: Path, value: Mapping[str, Any]) -> Iterator[str]:
    yield f"[{'.'.join(map(_key, path))}]"
    for name, each in value.items():
        yield f"{_key(name)} = {_rendered(each)}"


def _rendered(value: Any) -> str:
    """A value on one line. Raises ValueError for what TOML cannot say."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(name)} = {_rendered(each)}" for name, each in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_rendered, value))}]"
    if isinstance(value, str):
        # The escapes of JSON are TOML's, but for pairs of surrogates and for one that TOML must escape.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (bool, int, float)):
        return {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}.get(said := json.dumps(value), said)
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    raise ValueError(f"TOML has no way to write {type(value).__name__}")


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _rendered(name)
