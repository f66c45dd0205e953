"""Backslash escapes and formats, as `echo -e` and `printf` write them out."""

from __future__ import annotations

import re

from shellverdict.shell.grammar import ANSI_NAMED
from shellverdict.shell.outputs.bounds import whole
from shellverdict.shell.words import GAP, LONGEST

__all__ = ["formatted", "hides", "unescaped"]

_NUMBERS = r"x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})"
# echo knows octal numbers only behind a zero, a format takes three digits, %b both. A format has no \\c.
_ECHO = re.compile(rf"\\(?:{_NUMBERS}|0([0-7]{{0,3}})|(c)|(.))", re.DOTALL)
_FORMAT = re.compile(rf"\\(?:{_NUMBERS}|([0-7]{{1,3}})|(\Z.)|(.))", re.DOTALL)
_ARGUMENT = re.compile(rf"\\(?:{_NUMBERS}|(0[0-7]{{0,3}}|[1-7][0-7]{{0,2}})|(c)|(.))", re.DOTALL)
_HIDING = re.compile(r"\\(?:x[0-9A-Fa-f]|u[0-9A-Fa-f]|U[0-9A-Fa-f]|0?[1-7][0-7]{2})")
_FIELD = re.compile(r"%(%|[-+ #0']*(\*|\d+)?(?:\.(\*|\d+)?)?(?:hh|h|ll|l|j|z|t|L)?([a-zA-Z])|\([^)]*\)T)")


def hides(text: str) -> bool:
    """Whether several characters are written as numbers, which a person cannot read."""
    return len(_HIDING.findall(text[:LONGEST])) > 1


def unescaped(text: str) -> tuple[str, bool]:
    """The text with its escapes written out as `echo -e` does, and whether \\c ended it."""
    return _written(text, _ECHO)


def _written(text: str, escape: re.Pattern[str]) -> tuple[str, bool]:
    end = next((found.start() for found in escape.finditer(text) if found[5]), None)
    return escape.sub(_one, text if end is None else text[:end]), end is not None


def _one(found: re.Match[str]) -> str:
    byte, short, long, octal, _, other = found.groups()
    if byte or octal is not None:
        number = int(byte, 16) if byte else int(octal or "0", 8)
        return bytes([number & 0xFF]).decode("utf-8", "surrogateescape")
    if short or long:
        number = int(short or long, 16)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else GAP
    return ANSI_NAMED.get(other, "\\" + other if other not in "\\\"'?/" else other)


def formatted(template: str, arguments: list[str]) -> str:
    """`printf`: the format is used again until no argument is left."""
    parts: list[str] = []
    size, rest = 0, list(reversed(arguments))
    while True:
        before = len(rest)
        text, stopped = _once(template, rest)
        parts.append(text)
        size += len(text)
        if stopped or not rest or len(rest) == before or size > LONGEST:
            return whole("".join(parts))


def _once(template: str, rest: list[str]) -> tuple[str, bool]:
    parts: list[str] = []
    at = 0
    for found in _FIELD.finditer(template):
        parts.append(_written(template[at : found.start()], _FORMAT)[0])
        at = found.end()
        text, stopped = _field(found, rest)
        parts.append(text)
        if stopped:
            return "".join(parts), True
    return "".join([*parts, _written(template[at:], _FORMAT)[0]]), False


def _field(found: re.Match[str], rest: list[str]) -> tuple[str, bool]:
    whole, width, precision, letter = found[1], found[2], found[3], found[4]
    if whole == "%":
        return "%", False
    if letter is None:
        return GAP, False
    width = _number(rest) if width == "*" else width
    precision = _number(rest) if precision == "*" else precision
    value = rest.pop() if rest else ""
    stopped = False
    if letter == "b":
        value, stopped = _written(value, _ARGUMENT)
    elif letter == "c":
        value = value[:1] or "\0"
    elif letter == "q":
        value = _quoted(value)
    elif letter != "s":
        value = _numeric(value, letter)
    if precision is not None and letter in "sb":
        value = value[: int(precision[:6] or 0)]
    return _padded(value, whole, int(width[:6]) if width else 0, letter), stopped


def _padded(value: str, field: str, width: int, letter: str) -> str:
    if width <= len(value) or GAP in value or width > LONGEST:
        return value
    if "-" in field.partition(".")[0]:
        return value.ljust(width)
    return value.zfill(width) if field[0] == "0" and letter not in "sbcq" else value.rjust(width)


def _number(rest: list[str]) -> str:
    value = rest.pop() if rest else "0"
    return value if value.isascii() and value.isdigit() and len(value) < 7 else "0"


def _quoted(value: str) -> str:
    if not value:
        return "''"
    return "".join(c if c.isalnum() or c in "_./-" or c == GAP else "\\" + c for c in value)


_NOTATION = {"d": "d", "i": "d", "u": "d", "x": "x", "X": "X", "o": "o"}


def _numeric(value: str, letter: str) -> str:
    """A number as the field writes it; what is none, or too long for one, is a gap."""
    if GAP in value or len(value) > 20 or letter not in _NOTATION:
        return GAP
    try:
        number = _parsed(value)
    except (ValueError, IndexError):
        return GAP
    if letter not in "di":
        number &= 0xFFFF_FFFF_FFFF_FFFF
    return format(number, _NOTATION[letter])


def _parsed(value: str) -> int:
    if value[:1] in ("'", '"'):
        return ord(value[1])
    octal = value.lstrip("-").startswith("0") and "x" not in value.lower()
    return int(value or "0", 8 if octal else 0)
