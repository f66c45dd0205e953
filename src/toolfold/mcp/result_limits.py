"""Limit the number of items in a server's result, before the SDK validates it.

Listings are limited where they are repaired (`list_results`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from toolfold.core.types import Json

MAX_PARTS = 1_000
"""Content blocks, resource contents or prompt messages that are kept of one result."""


def truncate_result(result: Any) -> Any:
    """Truncate the lists in a result in place, and add a note for the model about dropped items."""
    if not isinstance(result, dict):
        return result
    for key, make_note in _PARTS.items():
        parts = result.get(key)
        if isinstance(parts, list) and len(parts) > MAX_PARTS:
            note = f"({len(parts) - MAX_PARTS:,} more items were dropped)"
            result[key] = [*parts[:MAX_PARTS], make_note(note)]
    return result


def _text_block(text: str) -> Json:
    return {"type": "text", "text": text}


_PARTS: Mapping[str, Callable[[str], Json]] = MappingProxyType(
    {
        "content": _text_block,
        "contents": lambda note: {"uri": "toolfold:note", "mimeType": "text/plain", "text": note},
        "messages": lambda note: {"role": "user", "content": _text_block(note)},
    }
)
