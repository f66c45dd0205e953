"""Split space-separated lists of names, such as `cp mv rm`, into sets."""

from __future__ import annotations

import functools

__all__ = ["split_names"]


@functools.cache  # called for every run, only with constant texts
def split_names(text: str) -> frozenset[str]:
    """Return the set of the names in a text such as `cp mv rm`."""
    return frozenset(text.split())
