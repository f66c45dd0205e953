"""Parts of paths in which letters are not known, held against names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shellverdict.shell.words import ANY, CLOSE, GAP, OPEN, STAR

__all__ = ["WILD", "Pattern", "broad", "fits", "unknown", "wild"]

WILD = frozenset((GAP, STAR, ANY, OPEN, CLOSE))
LONGEST_NAME = 256  # no file system takes longer ones

_CLASS = re.compile(f"{OPEN}[^{CLOSE}]*{CLOSE}")
_BROAD = frozenset((GAP, STAR, ANY, "."))
_ONE = re.compile(f"{OPEN}[^{CLOSE}]*{CLOSE}|.", re.DOTALL)


def wild(part: str) -> bool:
    """Whether a part of a path is a pattern or contains what nobody knows."""
    return not WILD.isdisjoint(part)


def unknown(part: str) -> bool:
    """Whether nothing at all is known of this part."""
    return GAP in part and not part.strip(GAP)


def broad(part: str) -> bool:
    """Whether a pattern stands for about everything: `*`, `.*`, `[a-z]*`, `???`; not `*.pyc`."""
    if WILD.isdisjoint(part) or unknown(part):
        return False
    return _BROAD.issuperset(_CLASS.sub(STAR, part))


def fits(part: str, name: str) -> bool:
    """Whether one part of a path could be this name. A lone gap is no evidence."""
    return part == name or (not WILD.isdisjoint(part) and Pattern(part).fits(name))


class Pattern:
    """One part of a path with unknown letters, made ready to be held against many names."""

    __slots__ = ("_first", "_last", "_length", "_letters", "_tokens")

    def __init__(self, part: str) -> None:
        settled = unknown(part) or len(part) > LONGEST_NAME
        self._tokens: list[str] = [] if settled else _ONE.findall(part)
        self._first, self._last = (self._tokens[0], self._tokens[-1]) if self._tokens else ("", "")
        elastic = GAP in part or STAR in part
        self._length = -1 if elastic else len(self._tokens)
        self._letters = [t for t in self._tokens if len(t) == 1 and t not in WILD]

    def fits(self, name: str) -> bool:
        if not self._tokens or not self._looks_like(name):
            return False
        return _glob(self._tokens, name)

    def _looks_like(self, name: str) -> bool:
        """The cheap half: the length, the ends and the letters settle most names."""
        if self._length not in (-1, len(name)):
            return False
        first, last = self._first, self._last
        if name.startswith(".") and first != "." and first != GAP:
            return False  # a pattern never matches a leading dot
        if len(first) == 1 and first not in WILD and not name.startswith(first):
            return False
        if len(last) == 1 and last not in WILD and not name.endswith(last):
            return False
        return all(letter in name for letter in self._letters)


def _glob(pattern: Sequence[str], name: str) -> bool:
    """Greedy matching with one step back: linear for each star, never exponential."""
    at = in_name = 0
    star, resume = -1, 0
    while in_name < len(name):
        if at < len(pattern) and pattern[at] in (STAR, GAP):
            star, resume = at, in_name
            at += 1
        elif at < len(pattern) and _one_fits(pattern[at], name[in_name]):
            at, in_name = at + 1, in_name + 1
        elif star >= 0:
            resume += 1
            at, in_name = star + 1, resume
        else:
            return False
    return all(rest in (STAR, GAP) for rest in pattern[at:])


def _one_fits(token: str, letter: str) -> bool:
    if token == ANY:
        return True
    if len(token) == 1:
        return token == letter
    inside = token[1:-1]
    negated = inside[:1] in ("!", "^")
    return negated != _in_class(inside[negated:], letter)


def _in_class(inside: str, letter: str) -> bool:
    if "[:" in inside:
        return True  # a named class: nearly always letters or digits
    if letter in inside:
        return True
    return any(
        a <= letter <= b for a, dash, b in zip(inside, inside[1:], inside[2:], strict=False) if dash == "-"
    )
