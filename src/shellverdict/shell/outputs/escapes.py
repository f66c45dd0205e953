"""Expand the backslash escapes and format strings of `echo -e` and `printf`."""

from __future__ import annotations

import re

from shellverdict.shell.outputs.text_conversion import rejoin_bytes
from shellverdict.shell.word_grammar import ANSI_C_ESCAPES
from shellverdict.shell.words import GAP, MAX_TEXT_CHARS

__all__ = ["expand_echo_escapes", "format_printf", "has_numeric_escapes"]

_NUMERIC_ESCAPES = r"x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})"
# Octal: echo needs a leading zero, a format takes three digits, %b accepts both. A format has no \\c.
_ECHO_ESCAPE = re.compile(rf"\\(?:{_NUMERIC_ESCAPES}|0([0-7]{{0,3}})|(c)|(.))", re.DOTALL)
_FORMAT_ESCAPE = re.compile(rf"\\(?:{_NUMERIC_ESCAPES}|([0-7]{{1,3}})|(\Z.)|(.))", re.DOTALL)
_ARGUMENT_ESCAPE = re.compile(
    rf"\\(?:{_NUMERIC_ESCAPES}|(0[0-7]{{0,3}}|[1-7][0-7]{{0,2}})|(c)|(.))", re.DOTALL
)
_READABLE_AS_NUMBER = re.compile(r"\\(?:x[0-9A-Fa-f]|u[0-9A-Fa-f]|U[0-9A-Fa-f]|0?[1-7][0-7]{2})")
_FORMAT_FIELD = re.compile(
    r"%(%|[-+ #0']*(\*|\d+)?(?:\.(\*|\d+)?)?(?:hh|h|ll|l|j|z|t|L)?([a-zA-Z])|\([^)]*\)T)"
)


def has_numeric_escapes(text: str) -> bool:
    """Return True if a text has several escapes such as `\\x41`, which hide characters from a reader."""
    return len(_READABLE_AS_NUMBER.findall(text[:MAX_TEXT_CHARS])) > 1


def expand_echo_escapes(text: str) -> tuple[str, bool]:
    r"""Expand escapes as `echo -e` does; return the text, and True if `\c` ended it."""
    return _expand_escapes(text, _ECHO_ESCAPE)


def _expand_escapes(text: str, escape: re.Pattern[str]) -> tuple[str, bool]:
    end = next((found.start() for found in escape.finditer(text) if found[5]), None)
    return escape.sub(_decode_escape, text if end is None else text[:end]), end is not None


def _decode_escape(found: re.Match[str]) -> str:
    byte, short, long, octal, _, other = found.groups()
    if byte or octal is not None:
        number = int(byte, 16) if byte else int(octal or "0", 8)
        return bytes([number & 0xFF]).decode("utf-8", "surrogateescape")
    if short or long:
        number = int(short or long, 16)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else GAP
    return ANSI_C_ESCAPES.get(other, "\\" + other if other not in "\\\"'?/" else other)


def format_printf(template: str, arguments: list[str]) -> str:
    """Format text as the shell's `printf` does, reusing the format until no argument is left."""
    parts: list[str] = []
    size, rest = 0, list(reversed(arguments))
    while True:
        before = len(rest)
        text, stopped = _format_once(template, rest)
        parts.append(text)
        size += len(text)
        if stopped or not rest or len(rest) == before or size > MAX_TEXT_CHARS:
            return rejoin_bytes("".join(parts))


def _format_once(template: str, rest: list[str]) -> tuple[str, bool]:
    parts: list[str] = []
    at = 0
    for found in _FORMAT_FIELD.finditer(template):
        parts.append(_expand_escapes(template[at : found.start()], _FORMAT_ESCAPE)[0])
        at = found.end()
        text, stopped = _format_field(found, rest)
        parts.append(text)
        if stopped:
            return "".join(parts), True
    return "".join([*parts, _expand_escapes(template[at:], _FORMAT_ESCAPE)[0]]), False


def _format_field(found: re.Match[str], rest: list[str]) -> tuple[str, bool]:
    field, width, precision, letter = found[1], found[2], found[3], found[4]
    if field == "%":
        return "%", False
    if letter is None:
        return GAP, False
    width = _take_number(rest) if width == "*" else width
    precision = _take_number(rest) if precision == "*" else precision
    value = rest.pop() if rest else ""
    stopped = False
    if letter == "b":
        value, stopped = _expand_escapes(value, _ARGUMENT_ESCAPE)
    elif letter == "c":
        value = value[:1] or "\0"
    elif letter == "q":
        value = _shell_quote(value)
    elif letter != "s":
        value = _format_number(value, letter)
    if precision is not None and letter in "sb":
        value = value[: int(precision[:6] or 0)]
    return _pad_field(value, field, int(width[:6]) if width else 0, letter), stopped


def _pad_field(value: str, field: str, width: int, letter: str) -> str:
    if width <= len(value) or GAP in value or width > MAX_TEXT_CHARS:
        return value
    if "-" in field.partition(".")[0]:
        return value.ljust(width)
    return value.zfill(width) if field[0] == "0" and letter not in "sbcq" else value.rjust(width)


def _take_number(rest: list[str]) -> str:
    value = rest.pop() if rest else "0"
    return value if value.isascii() and value.isdigit() and len(value) < 7 else "0"


def _shell_quote(value: str) -> str:
    if not value:
        return "''"
    return "".join(c if c.isalnum() or c in "_./-" or c == GAP else "\\" + c for c in value)


_NOTATION = {"d": "d", "i": "d", "u": "d", "x": "x", "X": "X", "o": "o"}


def _format_number(value: str, letter: str) -> str:
    """Format a number as `printf %d` does; return unknown text if the value is not a number."""
    if GAP in value or len(value) > 20 or letter not in _NOTATION:
        return GAP
    try:
        number = _parse_number(value)
    except (ValueError, IndexError):
        return GAP
    if letter not in "di":
        number &= 0xFFFF_FFFF_FFFF_FFFF
    return format(number, _NOTATION[letter])


def _parse_number(value: str) -> int:
    if value[:1] in ("'", '"'):
        return ord(value[1])
    octal = value.lstrip("-").startswith("0") and "x" not in value.lower()
    return int(value or "0", 8 if octal else 0)
