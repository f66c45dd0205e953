"""Mark injected instructions in results of MCP servers, within limits on the scanned text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from toolfold.core.json_limits import is_large
from toolfold.mcp.scan import mark_page, neutralise_text, scan_text

MAX_SCANNED_CHARS = 150_000
"""Characters that are scanned for injected instructions as one text."""
SEAM_CHARS = 2_000
_UNSCANNED_START = "\n⟦The following data was not scanned.⟧\n"
_UNSCANNED_END = "\n⟦End of the data that was not scanned.⟧\n"
MAX_CHARS_IN_LOOP = 8_000
"""Characters of a result that are scanned in the event loop; longer results are scanned in a thread."""
MAX_BLOCKS_IN_LOOP = 20
"""Content blocks of a result that are read in the event loop; more are read in a thread."""


def is_long_result(answer: Any) -> bool:
    """Return True if a result is so long that scanning it would block the event loop noticeably."""
    blocks = getattr(answer, "content", None) or ()
    chars = sum(len(getattr(block, "text", None) or "") for block in blocks)
    if len(blocks) > MAX_BLOCKS_IN_LOOP or chars > MAX_CHARS_IN_LOOP:
        return True
    return is_large(getattr(answer, "structured_content", None), max_items=200, max_chars=MAX_CHARS_IN_LOOP)


def mark_injections(text: str) -> str:
    """Put markers around injected instructions in a server's text, so that a model treats them as data.

    Of a very long text only the beginning and the end are scanned: no more of it is shown to a model.
    """
    return _mark_pieces(text, _mark_result)


def mark_page_injections(text: str) -> str:
    """Put markers around injected instructions in a page, most of which are full of orders to people."""
    return _mark_pieces(text, mark_page)


def _mark_pieces(text: str, mark: Callable[[str], str]) -> str:
    if len(text) <= MAX_SCANNED_CHARS:
        return mark(text)
    if len(text) <= 2 * MAX_SCANNED_CHARS:
        cut = _find_split(text)
        return mark(text[:cut]) + _mark_pieces(text[cut:], mark)
    unread = text[MAX_SCANNED_CHARS:-MAX_SCANNED_CHARS].replace("⟦", "[").replace("⟧", "]")
    return (
        mark(text[:MAX_SCANNED_CHARS])
        + _UNSCANNED_START
        + unread
        + _UNSCANNED_END
        + mark(text[-MAX_SCANNED_CHARS:])
    )


def _mark_result(text: str) -> str:
    findings = scan_text(text)
    return neutralise_text(text, findings) if findings and not _is_harmless_json(text) else text


def _is_harmless_json(text: str) -> bool:
    """Return True for JSON without a suspicious text: scanned as a whole, it is one long sentence."""
    if not text.lstrip().startswith(("{", "[")):
        return False
    try:
        # As pairs: of several members with the same name, the model reads them all.
        texts = list(_iter_texts(json.loads(text, object_pairs_hook=list)))
    except (ValueError, RecursionError):
        return False
    prose = "\n".join(each for each in texts if " " in each.strip())  # instructions may span several values
    return not any(scan_text(each) for each in (*dict.fromkeys(texts), prose))


def _iter_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _iter_texts(each)


def _find_split(text: str) -> int:
    """Return a position at which to split a long text without splitting an injected instruction."""
    places = range(MAX_SCANNED_CHARS, MAX_SCANNED_CHARS - 4 * SEAM_CHARS, -SEAM_CHARS)
    return next(
        (at for at in places if not scan_text(text[at - SEAM_CHARS // 2 : at + SEAM_CHARS // 2])),
        MAX_SCANNED_CHARS,
    )
