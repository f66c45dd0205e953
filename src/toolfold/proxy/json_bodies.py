"""Check that providers must read a JSON body as the proxy reads it.

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
    """Return True if the headers name no other content type than JSON in UTF-8."""
    types = [value.strip() for name, value in headers if name.lower() == b"content-type"]
    return all(_JSON_TYPE.fullmatch(each) for each in types)


def has_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return True if the headers announce a body."""
    return any(
        name.lower() == b"transfer-encoding" or (name.lower() == b"content-length" and value != b"0")
        for name, value in headers
    )


class Pairs(list[tuple[str, Any]]):
    """A JSON object as the list of its keys and values, with keys that occur several times."""

    def select(self, key: str) -> list[Any]:
        """Return the values of a key in any case."""
        return [value for name, value in self if name.casefold() == key]


def read_pairs(body: bytes) -> Pairs:
    """Parse a JSON object without dropping keys. Raises ValueError and RecursionError."""
    parsed = json.loads(body, object_pairs_hook=Pairs)
    if not isinstance(parsed, Pairs):
        raise ValueError("the body is not a JSON object")
    return parsed
