"""Two texts, and how one differs from the other, as people are used to read it."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator

_AROUND = 3
_HEADER = re.compile(r"@@ -(\d+)(,\d+)? \+(\d+)(,\d+)? @@")


def difference(before: str, after: str, *, titles: tuple[str, str]) -> Iterator[str]:
    """The lines of a unified diff; none where there is no difference."""
    old, new = before.splitlines(), after.splitlines()
    # One file may hold years of history: only the part that differs is worth comparing.
    skipped = max(0, _common(old, new) - _AROUND)
    old, new = old[skipped:], new[skipped:]
    left_out = max(0, _common(old[::-1], new[::-1]) - _AROUND)
    old, new = old[: len(old) - left_out], new[: len(new) - left_out]
    for line in difflib.unified_diff(old, new, *titles, n=_AROUND, lineterm=""):
        yield _HEADER.sub(lambda found: _moved(found, skipped), line) if line.startswith("@@") else line


def _common(old: list[str], new: list[str]) -> int:
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False))
    return sum(1 for _ in same)


def _moved(found: re.Match[str], lines: int) -> str:
    old, new = int(found[1]) + lines, int(found[3]) + lines
    return f"@@ -{old}{found[2] or ''} +{new}{found[4] or ''} @@"
