"""The patterns of `.gitignore` files, matched in time that no pattern can stretch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["IgnorePattern", "is_ignored", "read_patterns"]

MAX_PATTERNS = 2_000
MAX_PATTERN_CHARS = 512


@dataclass(frozen=True, slots=True)
class IgnorePattern:
    """One line of a file."""

    parts: tuple[str, ...]
    anchored: bool
    negated: bool


def read_patterns(text: str) -> tuple[IgnorePattern, ...]:
    """The patterns in a file's text; lines that are too long or too many are left out."""
    found = []
    for line in text.splitlines()[:MAX_PATTERNS]:
        line = line if line.endswith("\\ ") else line.rstrip()
        if not line or line.startswith("#") or len(line) > MAX_PATTERN_CHARS:
            continue
        negated = line.startswith("!")
        body = line[negated:].removeprefix("\\").rstrip("/")
        anchored = "/" in body
        parts = tuple(part for part in body.split("/") if part)
        if parts:
            found.append(IgnorePattern(parts, anchored, negated))
    return tuple(found)


def is_ignored(patterns: Sequence[IgnorePattern], path: Sequence[str]) -> bool | None:
    """Whether the last pattern that matches a directory ignores it. None where none matches."""
    for pattern in reversed(patterns):
        if _matches(pattern, path):
            return not pattern.negated
    return None


def _matches(pattern: IgnorePattern, path: Sequence[str]) -> bool:
    if not pattern.anchored:
        return matches_name(pattern.parts[0], path[-1])
    return _match_parts(pattern.parts, path)


def _match_parts(pattern: Sequence[str], path: Sequence[str]) -> bool:
    """`**` stands for any number of directories. A table of what the first parts can match."""
    reached = {0}
    for number, part in enumerate(pattern):
        if part == "**":
            first = min(reached, default=len(path) + 1)
            least = first + (number == len(pattern) - 1)  # at the end it stands for what is inside
            reached = set(range(least, len(path) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(path) and matches_name(part, path[at])}
    return len(path) in reached


def matches_name(pattern: str, name: str) -> bool:
    """Whether a glob without slashes matches a name; steps back to the last `*` only."""
    tokens = _tokens(pattern)
    at = token = 0
    star = star_at = -1
    while at < len(name):
        if token < len(tokens) and tokens[token] == "*":
            star, star_at, token = token, at, token + 1
        elif token < len(tokens) and _fits(tokens[token], name[at]):
            at, token = at + 1, token + 1
        elif star >= 0:
            star_at += 1
            at, token = star_at, star + 1
        else:
            return False
    return all(each == "*" for each in tokens[token:])


def _tokens(pattern: str) -> list[str]:
    """`*`, `?`, a class in brackets, or a character behind a backslash."""
    found, at = [], 0
    while at < len(pattern):
        sign = pattern[at]
        end = pattern.find("]", at + 2) if sign == "[" else -1
        if end > 0:
            found.append(pattern[at : end + 1])
            at = end + 1
        elif sign == "\\" and at + 1 < len(pattern):
            found.append(pattern[at : at + 2])
            at += 2
        else:
            found.append(sign)
            at += 1
    return found


def _fits(wanted: str, sign: str) -> bool:
    if wanted == "?":
        return True
    if len(wanted) > 2 and wanted[0] == "[":
        inside = wanted[1:-1]
        negated = inside[0] in "!^"
        return _in_class(inside[negated:], sign) != negated
    return wanted[-1] == sign


def _in_class(inside: str, sign: str) -> bool:
    at = 0
    while at < len(inside):
        if at + 2 < len(inside) and inside[at + 1] == "-":
            if inside[at] <= sign <= inside[at + 2]:
                return True
            at += 3
        elif inside[at] == sign:
            return True
        else:
            at += 1
    return False
