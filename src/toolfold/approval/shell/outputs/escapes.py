"""Backslash escapes and formats, as `echo -e` and `printf` write them out."""

from __future__ import annotations

import re

from toolfold.approval.shell.outputs.bounds import MOST
from toolfold.approval.shell.words import GAP

__all__ = ["formatted", "hides", "unescaped"]

_SIMPLE = {
    "a": "\a",
    "b": "\b",
    "e": "\033",
    "E": "\033",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
}
_ESCAPE = re.compile(
    r"\\(?:x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|0([0-7]{0,3})|([1-7][0-7]{0,2})|(c)|(.))",
    re.DOTALL,
)
_HIDING = re.compile(r"\\(?:x[0-9A-Fa-f]|u[0-9A-Fa-f]|U[0-9A-Fa-f]|0?[1-7][0-7]{2})")
_FIELD = re.compile(r"%(%|[-+ #0']*(\*|\d+)?(?:\.(\*|\d+)?)?(?:hh|h|ll|l|j|z|t|L)?([a-zA-Z])|\([^)]*\)T)")


def hides(text: str) -> bool:
    """Whether several characters are written as numbers, which a person cannot read."""
    return len(_HIDING.findall(text[:MOST])) > 1


def unescaped(text: str) -> tuple[str, bool]:
    """The text with its escapes written out, and whether \\c ended it."""
    end = _first_stop(text)
    stopped = end is not None
    return _ESCAPE.sub(_one, text if end is None else text[:end]), stopped


def _first_stop(text: str) -> int | None:
    return next((found.start() for found in _ESCAPE.finditer(text) if found[6]), None)


def _one(found: re.Match[str]) -> str:
    byte, short, long, octal, bare, _, other = found.groups()
    if byte or octal is not None or bare:
        number = int(byte, 16) if byte else int(octal or bare or "0", 8)
        return bytes([number & 0xFF]).decode("utf-8", "surrogateescape")
    if short or long:
        number = int(short or long, 16)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else GAP
    return _SIMPLE.get(other, "\\" + other if other not in "\\\"'?/" else other)


def formatted(template: str, arguments: list[str]) -> str:
    """`printf`: the format is used again until no argument is left."""
    parts: list[str] = []
    size, rest = 0, list(reversed(arguments))
    while True:
        before = len(rest)
        text, stopped = _once(template, rest)
        parts.append(text)
        size += len(text)
        if stopped or not rest or len(rest) == before or size > MOST:
            return _whole("".join(parts))


def _whole(text: str) -> str:
    """Bytes written one by one may make up characters."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text


def _once(template: str, rest: list[str]) -> tuple[str, bool]:
    parts: list[str] = []
    at = 0
    for found in _FIELD.finditer(template):
        literal, stopped = unescaped(template[at : found.start()])
        parts.append(literal)
        if stopped:
            return "".join(parts), True
        at = found.end()
        text, stopped = _field(found, rest)
        parts.append(text)
        if stopped:
            return "".join(parts), True
    literal, stopped = unescaped(template[at:])
    return "".join([*parts, literal]), stopped


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
        value, stopped = unescaped(value)
    elif letter == "c":
        value = value[:1]
    elif letter == "q":
        value = _quoted(value)
    elif letter != "s":
        value = _numeric(value, letter)
    if precision is not None and letter in "sb":
        value = value[: int(precision or 0)]
    if width and int(width) > len(value) and GAP not in value:
        value = value.ljust(min(int(width), MOST)) if whole[0] == "-" else value.rjust(min(int(width), MOST))
    return value, stopped


def _number(rest: list[str]) -> str:
    value = rest.pop() if rest else "0"
    return value if value.isascii() and value.isdigit() and len(value) < 7 else "0"


def _quoted(value: str) -> str:
    return "".join(c if c.isalnum() or c in "_./-" or c == GAP else "\\" + c for c in value)


def _numeric(value: str, letter: str) -> str:
    if GAP in value or len(value) > 20:
        return GAP
    try:
        if value[:1] in ("'", '"'):
            number = ord(value[1])
        else:
            number = (
                int(value or "0", 0)
                if not value.lstrip("-").startswith("0") or "x" in value.lower()
                else int(value, 8)
            )
    except (ValueError, IndexError):
        return GAP
    return {"d": "{:d}", "i": "{:d}", "u": "{:d}", "x": "{:x}", "X": "{:X}", "o": "{:o}"}.get(
        letter, GAP
    ).format(number)
