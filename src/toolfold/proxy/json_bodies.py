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


def read_outer_pairs(body: bytes) -> list[tuple[str, Any]]:
    """Return all keys of the outermost object with their values, in order; nested objects become None.

    Raises ValueError and RecursionError.
    """
    found: list[tuple[str, Any]] = []

    def record(pairs: list[tuple[str, Any]]) -> None:
        found[:] = pairs  # the outermost object comes last

    json.loads(body, object_pairs_hook=record)
    return found
