"""Create tool names that all model providers accept.

Providers accept 64 characters of `[A-Za-z0-9_-]`. Other names get a short form: a readable part and a
digest of the original, so that it is the same in every process and on every machine. The registry stores
the mapping back. Also compares names with the patterns that users write for models.
"""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from collections.abc import Iterator

from toolfold.core.types import BRIDGE_NAMES

MAX_NAME_CHARS = 64
_ACCEPTED = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SEPARATORS = re.compile(r"[\W_]+")
_NOT_ACCEPTED = re.compile(r"[^A-Za-z0-9_-]+")
_RESERVED = frozenset(_SEPARATORS.sub("", name) for name in BRIDGE_NAMES)


def is_accepted(name: str) -> bool:
    """Return True if every provider accepts this tool name."""
    return _ACCEPTED.fullmatch(name) is not None


def is_reserved(name: str) -> bool:
    """Return True if a name resembles a reserved one: `tool_search`, `tool_describe` or `tool_call`."""
    return _SEPARATORS.sub("", _strip_accents(name)).casefold() in _RESERVED


def short_names(original: str) -> Iterator[str]:
    """Yield possible short names of a tool that all providers accept, best first."""
    digest = hashlib.sha256(original.encode("utf-8", "surrogatepass")).digest()
    code = base64.b32encode(digest).decode().rstrip("=").lower()
    readable = _NOT_ACCEPTED.sub("_", _strip_accents(original)).strip("_")
    for length in range(8, len(code) + 1, 4):
        yield f"{_shorten_middle(readable, MAX_NAME_CHARS - length - 1)}_{code[:length]}".lstrip("_")


def _strip_accents(text: str) -> str:
    """Return text with accented letters replaced by plain letters: 'café' becomes 'cafe'."""
    if text.isascii():
        return text
    return "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))


def _shorten_middle(text: str, max_chars: int) -> str:
    """Remove the middle of a long tool name, keeping its start (the server) and its end (the action)."""
    if len(text) <= max_chars:
        return text
    head = max_chars // 2
    return text[:head] + text[len(text) - (max_chars - head) :]


def matches_pattern(name: str, pattern: str) -> bool:
    """Return True if a name matches a pattern in which `*` stands for any text, ignoring case."""
    text = name.casefold()
    start, *rest = pattern.casefold().split("*")
    if not rest:
        return text == start
    *middle, end = rest
    if len(text) < len(start) + len(end) or not text.startswith(start) or not text.endswith(end):
        return False
    # The first occurrence of each part leaves the most text for the next one: no need to try others.
    at, stop = len(start), len(text) - len(end)
    for part in middle:
        found = text.find(part, at, stop)
        if found < 0:
            return False
        at = found + len(part)
    return True
