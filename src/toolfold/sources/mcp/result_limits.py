"""A limit on the number of parts of a server's result, applied before the SDK validates it.

Listings are cut where they are repaired (`list_results`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from toolfold.model import Json

MAX_PARTS = 1_000
"""Blocks of content, contents of a resource or messages of a prompt that are kept of one result."""


def cut_result(result: Any) -> Any:
    """Cut the lists of a result in place where they are too long; a model is told how much is missing."""
    if not isinstance(result, dict):
        return result
    for key, make_note in _PARTS.items():
        parts = result.get(key)
        if isinstance(parts, list) and len(parts) > MAX_PARTS:
            note = f"({len(parts) - MAX_PARTS:,} more items were not kept)"
            result[key] = [*parts[:MAX_PARTS], make_note(note)]
    return result


def _text(words: str) -> Json:
    return {"type": "text", "text": words}


_PARTS: Mapping[str, Callable[[str], Json]] = MappingProxyType(
    {
        "content": _text,
        "contents": lambda note: {"uri": "toolfold:note", "mimeType": "text/plain", "text": note},
        "messages": lambda note: {"role": "user", "content": _text(note)},
    }
)
