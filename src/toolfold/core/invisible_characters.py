"""Remove invisible characters from the texts of a tool.

A model reads what a person does not see: control characters, direction marks, zero-width characters. Only
descriptions and titles are changed. Parameter names and allowed values are sent back unchanged and so must
stay. Knows nothing of where the texts come from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from toolfold.core.types import FrozenDict, FrozenList

MAX_DEPTH = 200
MAX_PASSES = 4

# Separate from the lists for commands: only characters that never occur in legitimate text are removed here.
# Joiners and the emoji variation selector are allowed next to non-ASCII characters.
_INVISIBLE = re.compile(
    "["
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ue000-\uf8ff\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U0010ffff"
    "]"
    "|(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])|[\u200c\u200d]{2,}"
    "|(?<![^\x00-\x7f])(?<![#*0-9])\ufe0f|\ufe0f{2,}"
)
_JOINERS = re.compile("[\u200c\u200d\ufe0f]")
_LINE_BREAKS = re.compile("[\x0b\x0c\x85\u2028\u2029]")
_TEXT_KEYS = frozenset({"description", "title", "$comment"})
_DATA_KEYS = frozenset({"const", "default", "enum", "examples", "example"})
_NAMED_SCHEMA_KEYS = frozenset(
    {"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"}
)


def remove_invisible(text: str) -> str:
    """Return text without invisible characters, and with unusual line separators replaced by newlines."""
    for _ in range(MAX_PASSES):  # a removal may create a new forbidden sequence
        if _is_plain(text) or _INVISIBLE.search(text) is None:
            return text
        text = _INVISIBLE.sub("", _LINE_BREAKS.sub("\n", text))
    return _JOINERS.sub("", text)


def clean_schema(schema: FrozenDict) -> FrozenDict:
    """Return a tool's schema without invisible characters; the same object if nothing changes."""
    return schema if _has_plain_text(schema) else _clean_object(schema, 0)


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _has_plain_text(schema: FrozenDict) -> bool:
    """Return True if all strings of a schema are printable ASCII, as in most tools."""
    pending: list[FrozenDict | FrozenList] = [schema]
    while pending:
        node = pending.pop()
        for value in node.values() if isinstance(node, FrozenDict) else node:
            kind = type(value)
            if kind is str:
                if not _is_plain(value):
                    return False
            elif kind is FrozenDict or kind is FrozenList:
                pending.append(value)
    return True


def _clean_object(schema: FrozenDict, depth: int) -> FrozenDict:
    changed = {
        key: new for key, value in schema.items() if (new := _clean_value(key, value, depth)) is not value
    }
    return FrozenDict({**schema, **changed}) if changed else schema


def _clean_value(key: str, value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return remove_invisible(value) if key in _TEXT_KEYS else value
    if depth > MAX_DEPTH or (key in _DATA_KEYS and not isinstance(value, dict)):
        return value
    if isinstance(value, list):
        new = [_clean_object(each, depth + 1) if isinstance(each, FrozenDict) else each for each in value]
        return FrozenList(new) if any(a is not b for a, b in zip(new, value, strict=True)) else value
    if not isinstance(value, FrozenDict) or key in _DATA_KEYS:
        return value
    return _clean_named(value, depth) if key in _NAMED_SCHEMA_KEYS else _clean_object(value, depth + 1)


def _clean_named(schemas: Mapping[str, Any], depth: int) -> Any:
    """Remove invisible characters from the schemas in a mapping of property names to schemas."""
    new = {
        name: _clean_object(each, depth + 1) if isinstance(each, FrozenDict) else each
        for name, each in schemas.items()
    }
    return FrozenDict(new) if any(new[name] is not schemas[name] for name in new) else schemas
