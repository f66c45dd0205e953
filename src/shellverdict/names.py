"""Lists of names as the tables of this package write them: many in one line."""

from __future__ import annotations

import functools

__all__ = ["names"]


@functools.cache  # of the texts in this package, and asked for with every run
def names(text: str) -> frozenset[str]:
    """The names in the text, which are parted by blanks."""
    return frozenset(text.split())
