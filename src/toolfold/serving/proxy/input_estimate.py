"""Estimate the input tokens of a model request from its size, if the provider reports no token usage.

Images, audio and documents are left out, because their tokens do not follow from their bytes. They are
recognised by the type of the content block that holds them: long base64 text elsewhere is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from toolfold.core.types import Json
from toolfold.selection.turn.token_counts import BYTES_PER_TOKEN

MAX_ESTIMATED_BYTES = 4_000_000
"""Bytes of a request that are counted: as many as the largest context windows contain."""
MIN_MEDIA_CHARS = 1_000
_BASE64 = re.compile(r"(?:data:[\w.+/;=-]{1,200},)?[A-Za-z0-9+/=_-]*")
_MEDIA = {
    "image_url": ("image_url", "url"),
    "input_image": ("image_url",),
    "computer_screenshot": ("image_url",),
    "image": ("source", "data"),
    "document": ("source", "data"),
    "input_audio": ("input_audio", "data"),
    "file": ("file", "file_data"),
    "input_file": ("file_data",),
}
"""The place of base64 data in a content block, by the type of the block."""


def estimate_input_tokens(body: bytes, content: Json | None) -> int:
    """Return the estimated number of input tokens of a request."""
    media = sum(_measure_media(each) for each in _walk_blocks(content)) if content else 0
    return round(min(max(0, len(body) - media), MAX_ESTIMATED_BYTES) / BYTES_PER_TOKEN)


def _walk_blocks(content: Json) -> Iterator[Json]:
    """Yield the messages of a request and their content blocks, including those in tool results."""
    waiting: list[Any] = [content.get(key) for key in ("messages", "input", "system")]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            waiting += each
        elif isinstance(each, dict):
            yield each
            waiting += [
                part for key in ("content", "output") if isinstance(part := each.get(key), list | dict)
            ]


def _measure_media(block: Json) -> int:
    """Return the length of the base64 data in a content block; 0 if the block holds none."""
    kind = block.get("type")
    found: Any = block
    for key in _MEDIA.get(kind, ()) if isinstance(kind, str) else ():
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, str) or len(found) < MIN_MEDIA_CHARS or not _BASE64.fullmatch(found):
        return 0
    return len(found)
