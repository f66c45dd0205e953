"""Limit the structure of a JSON document before parsing, and check the size of a parsed value.

A parser creates one object for every value, so ten megabytes of empty lists take seconds and gigabytes
where ten megabytes of text take milliseconds. The check is linear, runs in C and allocates no more than a
copy of the document: it never takes long, whatever the bytes are. Knows nothing of messages.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

MAX_JSON_ITEMS = 200_000
"""Values and keys of one document. An empty list or object in a list counts twice."""
MAX_ARGUMENT_ITEMS = 20_000
"""Values and keys in the arguments of a call. Each is validated, copied and judged, which costs far more
than parsing it."""
MAX_JSON_DEPTH = 500
"""Levels of nesting."""
MAX_NUMBER_DIGITS = 1_000
"""Digits of a number in a document that is not small: the time to convert them grows with their square."""

_OPENING, _SEPARATING = (b"[", b"{"), (b",", b":")
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # read as signed bytes: one level deeper, one less
_MAX_SMALL_BYTES = 50_000
_LONG_NUMBER = b"0" * (MAX_NUMBER_DIGITS + 1)
_SAME_DIGIT = bytes.maketrans(b"123456789", b"0" * 9)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def find_excess(
    document: bytes, *, max_items: int = MAX_JSON_ITEMS, max_depth: int = MAX_JSON_DEPTH
) -> str | None:
    """Return which limit a JSON document exceeds, as text for an error message; None if it exceeds none."""
    opened = _count(document, _OPENING)
    is_flat = opened <= max_depth and 1 + opened + _count(document, _SEPARATING) <= max_items
    is_small = len(document) <= _MAX_SMALL_BYTES
    if is_flat and (is_small or not _has_long_number(document)):
        return None  # even if none of these characters stands inside a string
    outside = _strip_strings(document, max_strings=max_items)
    if outside is None or _count_items(outside) > max_items:
        return f"has more than {max_items:,} JSON values and keys"
    if _measure_depth(outside) > max_depth:
        return f"is nested more than {max_depth} levels deep"
    if not is_small and _has_long_number(outside):
        return f"has a number of more than {MAX_NUMBER_DIGITS:,} digits"
    return None


def is_large(value: Any, *, max_items: int = 1_000, max_chars: int = 50_000) -> bool:
    """Return True if a JSON value is so large that processing it would block an event loop."""
    pending = [value]
    for each in pending:  # grows meanwhile
        if isinstance(each, (str, bytes)):
            max_chars -= len(each)
        elif isinstance(each, (Mapping, list, tuple)):
            if len(pending) + len(each) > max_items:
                return True
            if isinstance(each, Mapping):
                max_chars -= sum(len(key) for key in each if isinstance(key, str))
            pending += each.values() if isinstance(each, Mapping) else each
        if max_chars < 0:
            return True
    return False


def _strip_strings(document: bytes, *, max_strings: int) -> bytes | None:
    """Return a JSON document with its strings removed; None if it has too many strings.

    Exact up to the first byte that is not JSON, where every parser stops: a backslash stands only inside
    strings, so removing escaped backslashes and then escaped quotes leaves the quotes that delimit strings.
    """
    if b"\\" in document:
        document = document.replace(b"\\\\", b"").replace(b'\\"', b"")
    if document.count(b'"') > 2 * max_strings:
        return None
    return b"".join(document.split(b'"')[::2])


def _count_items(outside: bytes) -> int:
    """Return an upper bound on the number of values and keys in JSON text whose strings were removed."""
    return 1 + _count(outside, _OPENING) + _count(outside, _SEPARATING)


def _measure_depth(outside: bytes) -> int:
    return max(itertools.accumulate(_read_steps(outside)), default=0)


def _read_steps(outside: bytes) -> memoryview:
    """Return the brackets of JSON text without strings as numbers: +1 for opening, -1 for closing.

    Twice as many brackets as are opened have closed all of them: what follows is not part of it.
    """
    steps = memoryview(outside.translate(_STEPS, _NOT_BRACKETS)).cast("b")
    return steps[: 2 * _count(outside, _OPENING)]


def _has_long_number(document: bytes) -> bool:
    return len(document) > MAX_NUMBER_DIGITS and _LONG_NUMBER in document.translate(_SAME_DIGIT)


def _count(document: bytes, characters: tuple[bytes, ...]) -> int:
    return sum(map(document.count, characters))
