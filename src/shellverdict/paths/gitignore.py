"""Parse `.gitignore` files and match their patterns in bounded time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["IgnorePattern", "is_ignored", "read_patterns"]

MAX_PATTERNS = 2_000
MAX_PATTERN_CHARS = 512


@dataclass(frozen=True, slots=True)
class IgnorePattern:
    """Pattern in one line of a `.gitignore` file."""

    parts: tuple[str, ...]
    anchored: bool
    negated: bool


def read_patterns(text: str) -> tuple[IgnorePattern, ...]:
    """Parse the text of a `.gitignore` file; overlong lines and lines beyond MAX_PATTERNS are skipped."""
    result = []
    for line in text.splitlines()[:MAX_PATTERNS]:
        line = line if line.endswith("\\ ") else line.rstrip()
        if not line or line.startswith("#") or len(line) > MAX_PATTERN_CHARS:
            continue
        negated = line.startswith("!")
        body = line[negated:].removeprefix("\\").rstrip("/")
        anchored = "/" in body
        parts = tuple(part for part in body.split("/") if part)
        if parts:
            result.append(IgnorePattern(parts, anchored, negated))
    return tuple(result)


def is_ignored(patterns: Sequence[IgnorePattern], path: Sequence[str]) -> bool | None:
    """Return True if the last matching `.gitignore` pattern ignores the path; None if no pattern matches."""
    for pattern in reversed(patterns):
        if _pattern_matches(pattern, path):
            return not pattern.negated
    return None


def _pattern_matches(pattern: IgnorePattern, path: Sequence[str]) -> bool:
    if not pattern.anchored:
        return matches_name(pattern.parts[0], path[-1])
    return _match_parts(pattern.parts, path)


def _match_parts(pattern: Sequence[str], path: Sequence[str]) -> bool:
    """Match a `.gitignore` pattern component by component; `**` matches any number of directories.

    `reached` holds the path positions at which the pattern components so far can end.
    """
    reached = {0}
    for number, part in enumerate(pattern):
        if part == "**":
            first = min(reached, default=len(path) + 1)
            least = first + (number == len(pattern) - 1)  # a final `**` needs at least one component
            reached = set(range(least, len(path) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(path) and matches_name(part, path[at])}
    return len(path) in reached


def matches_name(pattern: str, name: str) -> bool:
    """Return True if a glob without slashes matches a file name."""
    tokens = _split_tokens(pattern)
    at = token = 0
    star = star_at = -1
    while at < len(name):
        if token < len(tokens) and tokens[token] == "*":
            star, star_at, token = token, at, token + 1
        elif token < len(tokens) and _token_matches(tokens[token], name[at]):
            at, token = at + 1, token + 1
        elif star >= 0:
            star_at += 1
            at, token = star_at, star + 1
        else:
            return False
    return all(each == "*" for each in tokens[token:])


def _split_tokens(pattern: str) -> list[str]:
    """Split a glob into `*`, `?`, bracket expressions, escaped and literal characters."""
    result, at = [], 0
    while at < len(pattern):
        character = pattern[at]
        end = pattern.find("]", at + 2) if character == "[" else -1
        if end > 0:
            result.append(pattern[at : end + 1])
            at = end + 1
        elif character == "\\" and at + 1 < len(pattern):
            result.append(pattern[at : at + 2])
            at += 2
        else:
            result.append(character)
            at += 1
    return result


def _token_matches(glob_part: str, character: str) -> bool:
    if glob_part == "?":
        return True
    if len(glob_part) > 2 and glob_part[0] == "[":
        inside = glob_part[1:-1]
        negated = inside[0] in "!^"
        return _in_class(inside[negated:], character) != negated
    return glob_part[-1] == character


def _in_class(inside: str, character: str) -> bool:
    at = 0
    while at < len(inside):
        if at + 2 < len(inside) and inside[at + 1] == "-":
            if inside[at] <= character <= inside[at + 2]:
                return True
            at += 3
        elif inside[at] == character:
            return True
        else:
            at += 1
    return False
