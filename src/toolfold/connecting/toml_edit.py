"""Set or remove one table or one top-level value in TOML text, and leave all other text unchanged.

Expects text that was parsed as TOML before; the caller must parse the result again.
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
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
KeyPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Statement:
    """A table header or key-value pair in a TOML text, with its start and end positions."""

    start: int
    end: int
    path: KeyPath
    is_header: bool


def set_table(text: str, section: str, name: str, value: Mapping[str, Any]) -> str:
    """Return the TOML text with the table `[section.name]` replaced, or added at the end if it is new."""
    newline = "\r\n" if "\r\n" in text else "\n"
    block = newline.join(_render_table((section, name), value)) + newline
    runs = list(_find_runs(text, section, (name,)))
    for start, end, _ in reversed(runs):
        text = text[:start] + text[end:]
    if runs and runs[0][2]:
        position = runs[0][0]
        return text[:position] + block + text[position:]
    complete = text if not text or text.endswith("\n") else text + newline
    gap = newline if complete.strip() and not complete.endswith(newline * 2) else ""
    return complete + gap + block


def set_value(text: str, name: str, value: Any) -> str:
    """Return the TOML text with a top-level value set; a new value is added after the existing values."""
    newline = "\r\n" if "\r\n" in text else "\n"
    line = f"{_render_key(name)} = {_render_value(value)}{newline}"
    end = 0
    for statement in _iter_statements(text):
        if statement.is_header:
            break
        if statement.path == (name,):
            return text[: statement.start] + line + text[statement.end :]
        end = statement.end
    before = text[:end] if not end or text[:end].endswith("\n") else text[:end] + newline
    gap = newline if not end and text.strip() else ""
    return before + line + gap + text[end:]


def remove_value(text: str, name: str) -> str:
    """Return the TOML text without a top-level value."""
    for statement in _iter_statements(text):
        if statement.is_header:
            break
        if statement.path == (name,):
            after = text[statement.end :]
            return text[: statement.start] + (
                after if statement.start else _BLANK_LINES.sub("", after, count=1)
            )
    return text


def remove_tables(text: str, section: str, names: Collection[str]) -> str:
    """Return the TOML text without the named tables of the section and the blank lines between them."""
    for start, end, _ in reversed(list(_find_runs(text, section, names))):
        before, after = text[:start], text[end:]
        if not before.strip() or before.endswith(("\n\n", "\n\r\n")):
            after = _BLANK_LINES.sub("", after, count=1)
        text = before + after
    return text


def _find_runs(text: str, section: str, names: Collection[str]) -> Iterator[tuple[int, int, bool]]:
    """Yield runs of consecutive TOML statements that belong to the named tables, as start and end positions.

    The third value is True if the run starts with a table header. Comments between two statements belong to
    the run.
    """
    start = end = -1
    with_header = False
    for statement in _iter_statements(text):
        if len(statement.path) > 1 and statement.path[0] == section and statement.path[1] in names:
            start, with_header = (statement.start, statement.is_header) if start < 0 else (start, with_header)
            end = statement.end
        elif start >= 0:
            yield start, end, with_header
            start = -1
    if start >= 0:
        yield start, end, with_header


def _iter_statements(text: str) -> Iterator[_Statement]:
    table: KeyPath = ()
    depth, start, equals = 0, -1, -1
    for token in _TOKEN.finditer(text + "\n"):
        kind = token.lastgroup
        if kind == "line" and depth == 0:
            if start >= 0:
                end = min(token.end(), len(text))
                statement = _parse_statement(text, start, end, equals, table)
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


def _parse_statement(text: str, start: int, end: int, equals: int, table: KeyPath) -> _Statement:
    line = text.rfind("\n", 0, start) + 1
    if equals < 0:
        return _Statement(line, end, _key_path(tomllib.loads(text[start:end])), True)
    return _Statement(line, end, (*table, *_key_path(tomllib.loads(f"{text[start:equals]}= 0"))), False)


def _key_path(document: Any) -> KeyPath:
    """Return the path of keys to the only value of a TOML document."""
    path: list[str] = []
    while document and isinstance(document, (dict, list)):
        if isinstance(document, list):
            document = document[0]
        else:
            ((name, document),) = document.items()
            path.append(name)
    return tuple(path)


def _render_table(path: KeyPath, value: Mapping[str, Any]) -> Iterator[str]:
    yield f"[{'.'.join(map(_render_key, path))}]"
    for name, each in value.items():
        yield f"{_render_key(name)} = {_render_value(each)}"


def _render_value(value: Any) -> str:
    """Render a value as TOML on one line. Raises ValueError for a type that TOML does not have."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_render_key(name)} = {_render_value(each)}" for name, each in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_render_value, value))}]"
    if isinstance(value, str):
        # JSON escapes are valid in TOML, except surrogate pairs; TOML must also escape DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (bool, int, float)):
        return {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}.get(text := json.dumps(value), text)
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    raise ValueError(f"TOML has no type for {type(value).__name__}")


def _render_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _render_value(name)
