"""Sets of names that are written as one string separated by blanks, as in the tables of this package."""

from __future__ import annotations

import functools

__all__ = ["split_names"]


@functools.cache  # called for every run, only with constant texts
def split_names(text: str) -> frozenset[str]:
    """Return the set of names in a text that separates them by blanks."""
    return frozenset(text.split())
