"""Compute a unified diff of two texts that may be large."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator

_CONTEXT_LINES = 3
_HEADER = re.compile(r"@@ -(\d+)(,\d+)? \+(\d+)(,\d+)? @@")


def unified_diff(before: str, after: str, *, titles: tuple[str, str]) -> Iterator[str]:
    """Yield the lines of a unified diff; none if the texts are equal."""
    old, new = before.splitlines(), after.splitlines()
    # A file may contain years of history: compare only the part that differs.
    skipped = max(0, _count_common_lines(old, new) - _CONTEXT_LINES)
    old, new = old[skipped:], new[skipped:]
    trailing = max(0, _count_common_lines(old[::-1], new[::-1]) - _CONTEXT_LINES)
    old, new = old[: len(old) - trailing], new[: len(new) - trailing]
    for line in difflib.unified_diff(old, new, *titles, n=_CONTEXT_LINES, lineterm=""):
        yield (
            _HEADER.sub(lambda match: _shift_header(match, skipped), line) if line.startswith("@@") else line
        )


def _count_common_lines(old: list[str], new: list[str]) -> int:
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False))
    return sum(1 for _ in same)


def _shift_header(match: re.Match[str], lines: int) -> str:
    old, new = int(match[1]) + lines, int(match[3]) + lines
    return f"@@ -{old}{match[2] or ''} +{new}{match[4] or ''} @@"
