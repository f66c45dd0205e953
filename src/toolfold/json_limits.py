"""Limits on the structure of a JSON document, checked before it is parsed.

A parser creates one object for every value, so ten megabytes of empty lists take seconds and gigabytes
where ten megabytes of text take milliseconds. The check is linear, runs in C and allocates no more than a
copy of the document: it never takes long, whatever the bytes are. Knows nothing of messages.
"""

from __future__ import annotations

import itertools

MAX_JSON_ITEMS = 200_000
"""Values and keys of one document. An empty list or object in a list counts twice."""
MAX_JSON_DEPTH = 200
"""Levels of nesting; the parser of messages takes no more either."""

_OPENING, _SEPARATING = (b"[", b"{"), (b",", b":")
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # read as signed bytes: one level deeper, one less
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def find_excess(
    document: bytes, *, max_items: int = MAX_JSON_ITEMS, max_depth: int = MAX_JSON_DEPTH
) -> str | None:
    """Return which limit the document exceeds, for use after "the message", or None if it is within both."""
    opened = _count(document, _OPENING)
    if opened <= max_depth and 1 + opened + _count(document, _SEPARATING) <= max_items:
        return None  # even if none of these characters stands inside a string
    outside = _strip_strings(document, max_strings=max_items)
    if outside is None or _count_items(outside) > max_items:
        return f"has more than {max_items:,} JSON values and keys"
    if _measure_depth(outside) > max_depth:
        return f"is nested more than {max_depth} levels deep"
    return None


def _strip_strings(document: bytes, *, max_strings: int) -> bytes | None:
    """Return the document without its strings, or None if there are too many of them.

    Exact up to the first byte that is not JSON, where every parser stops: a backslash stands only inside
    strings, so removing escaped backslashes and then escaped quotes leaves the quotes that delimit strings.
    """
    if b"\\" in document:
        document = document.replace(b"\\\\", b"").replace(b'\\"', b"")
    if document.count(b'"') > 2 * max_strings:
        return None
    return b"".join(document.split(b'"')[::2])


def _count_items(outside: bytes) -> int:
    """Return an upper bound of the number of values and keys, given a document without its strings."""
    return 1 + _count(outside, _OPENING) + _count(outside, _SEPARATING)


def _measure_depth(outside: bytes) -> int:
    steps = memoryview(outside.translate(_STEPS, _NOT_BRACKETS)).cast("b")
    return max(itertools.accumulate(steps), default=0)


def _count(document: bytes, characters: tuple[bytes, ...]) -> int:
    return sum(map(document.count, characters))
