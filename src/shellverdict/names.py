"""Split a string of names, as the tables of this package contain them, into a set."""

from __future__ import annotations

import functools

__all__ = ["split_names"]


@functools.cache  # called for every run, only with constant texts
def split_names(text: str) -> frozenset[str]:
    """Return the set of names in a text in which they are separated by blanks."""
    return frozenset(text.split())
