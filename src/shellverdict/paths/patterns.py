"""Match path components that contain wildcards or unknown text against names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shellverdict.shell.words import ANY, CLOSE, GAP, OPEN, STAR

__all__ = ["WILD", "NamePattern", "could_match", "has_wildcards", "is_unknown", "matches_everything"]

WILD = frozenset((GAP, STAR, ANY, OPEN, CLOSE))
MAX_NAME_CHARS = 256  # file systems allow no longer names

_CLASS = re.compile(f"{OPEN}[^{CLOSE}]*{CLOSE}")
_MATCH_ALL_CHARACTERS = frozenset((GAP, STAR, ANY, "."))
_TOKEN = re.compile(f"{OPEN}[^{CLOSE}]*{CLOSE}|.", re.DOTALL)


def has_wildcards(part: str) -> bool:
    """Return True if a path component contains wildcards or unknown text."""
    return not WILD.isdisjoint(part)


def is_unknown(part: str) -> bool:
    """Return True if a path component consists of unknown text only."""
    return GAP in part and not part.strip(GAP)


def matches_everything(part: str) -> bool:
    """Return True for a pattern that matches nearly every name: `*`, `.*`, `[a-z]*`, `???`; not `*.pyc`."""
    if WILD.isdisjoint(part) or is_unknown(part):
        return False
    return _MATCH_ALL_CHARACTERS.issuperset(_CLASS.sub(STAR, part))


def could_match(part: str, name: str) -> bool:
    """Return True if `part`, a path component that may have wildcards, could be `name`.

    A component of which nothing is known does not match.
    """
    return part == name or (not WILD.isdisjoint(part) and NamePattern(part).matches(name))


class NamePattern:
    """Pattern for names: a path component with wildcards or unknown text, prepared for many matches."""

    __slots__ = ("_first", "_last", "_length", "_letters", "_tokens")

    def __init__(self, part: str) -> None:
        never_matches = is_unknown(part) or len(part) > MAX_NAME_CHARS
        self._tokens: list[str] = [] if never_matches else _TOKEN.findall(part)
        self._first, self._last = (self._tokens[0], self._tokens[-1]) if self._tokens else ("", "")
        elastic = GAP in part or STAR in part
        self._length = -1 if elastic else len(self._tokens)
        self._letters = [t for t in self._tokens if len(t) == 1 and t not in WILD]

    def matches(self, name: str) -> bool:
        if not self._tokens or not self._could_match_cheaply(name):
            return False
        return _matches_tokens(self._tokens, name)

    def _could_match_cheaply(self, name: str) -> bool:
        """Return False if a name certainly does not match, judged by its length and a few characters."""
        if self._length not in (-1, len(name)):
            return False
        first, last = self._first, self._last
        if name.startswith(".") and first != "." and first != GAP:
            return False  # a wildcard never matches a leading dot
        if len(first) == 1 and first not in WILD and not name.startswith(first):
            return False
        if len(last) == 1 and last not in WILD and not name.endswith(last):
            return False
        return all(letter in name for letter in self._letters)


def _matches_tokens(pattern: Sequence[str], name: str) -> bool:
    """Return True if a wildcard pattern matches a name; only the last `*` is retried, to bound the time."""
    at = in_name = 0
    star, resume = -1, 0
    while in_name < len(name):
        if at < len(pattern) and pattern[at] in (STAR, GAP):
            star, resume = at, in_name
            at += 1
        elif at < len(pattern) and _token_matches(pattern[at], name[in_name]):
            at, in_name = at + 1, in_name + 1
        elif star >= 0:
            resume += 1
            at, in_name = star + 1, resume
        else:
            return False
    return all(rest in (STAR, GAP) for rest in pattern[at:])


def _token_matches(token: str, letter: str) -> bool:
    if token == ANY:
        return True
    if len(token) == 1:
        return token == letter
    inside = token[1:-1]
    negated = inside[:1] in ("!", "^")
    return negated != _in_class(inside[negated:], letter)


def _in_class(inside: str, letter: str) -> bool:
    if "[:" in inside:
        return True  # a named class, nearly always letters or digits
    if letter in inside:
        return True
    return any(
        a <= letter <= b for a, dash, b in zip(inside, inside[1:], inside[2:], strict=False) if dash == "-"
    )
