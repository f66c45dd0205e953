"""Check that a JSON body has only one interpretation, so that providers read it as the proxy does.

Parsers differ in which of two equal keys counts, in the case of keys and in the encoding. A limit that
depends on a key must not be evaded by such a difference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

_JSON_TYPE = re.compile(rb'application/json\s*(?:;\s*charset="?utf-?8"?\s*)?', re.IGNORECASE)


def has_json_type(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return True if every Content-Type header is JSON in UTF-8, or there is no such header."""
    types = [value.strip() for name, value in headers if name.lower() == b"content-type"]
    return all(_JSON_TYPE.fullmatch(each) for each in types)


def has_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return True if the headers announce a body."""
    return any(
        name.lower() == b"transfer-encoding" or (name.lower() == b"content-length" and value != b"0")
        for name, value in headers
    )


class Pairs(list[tuple[str, Any]]):
    """A JSON object as a list of key-value pairs, which may contain a key several times."""

    def select(self, key: str) -> list[Any]:
        """Return all values of a key, ignoring the case of the object's keys."""
        return [value for name, value in self if name.casefold() == key]


def read_pairs(body: bytes) -> Pairs:
    """Parse a JSON object, preserving duplicate keys. Raises ValueError and RecursionError."""
    parsed = json.loads(body, object_pairs_hook=Pairs)
    if not isinstance(parsed, Pairs):
        raise ValueError("the body is not a JSON object")
    return parsed
