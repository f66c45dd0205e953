"""Prepare untrusted text for the dashboard: deceptive characters are shown by name, long text is cut."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolfold.core.invisible_characters import remove_invisible
from toolfold.mcp.scan import escape_hidden
from toolfold.safety.approval.safe_text import make_line_visible
from toolfold.safety.redaction import Redaction

log = logging.getLogger(__name__)

MAX_NAME_CHARS = 200
MAX_LINE_CHARS = 300
MAX_TEXT_CHARS = 20_000
MAX_JSON_ITEMS = 20_000


def show_name(name: str) -> str:
    """Return a name as one line in which invisible characters are made visible."""
    return make_line_visible(name[:MAX_NAME_CHARS])


def show_line(text: str, limit: int = MAX_LINE_CHARS) -> str:
    """Return the beginning of a text as one line, with all white space as single spaces."""
    line = " ".join(text[: 4 * limit].split())
    return escape_hidden(line if len(line) <= limit else f"{line[: limit - 1]}…")


def show_exact_line(text: str, limit: int) -> str:
    """Return a text as one line in which every deceptive or lookalike character is shown by its name."""
    return make_line_visible(text if len(text) <= limit else f"{text[:limit]}…")


def show_text(text: str, limit: int = MAX_TEXT_CHARS) -> str:
    """Return the beginning of a text, with its line breaks and with hidden characters escaped."""
    return escape_hidden(text if len(text) <= limit else f"{text[:limit]}…")


def show_prose(text: str, limit: int = MAX_TEXT_CHARS) -> str:
    """Return the beginning of a message or result without invisible characters; indentation is kept."""
    return remove_invisible(text if len(text) <= limit else f"{text[:limit]}…")


def show_json(value: Any) -> Any:
    """Return JSON data as dicts and lists with hidden characters made visible; large data is cut."""
    return _JsonCopy().copy(value)


class _JsonCopy:
    """Copies JSON data until the copy has `MAX_JSON_ITEMS` values."""

    def __init__(self) -> None:
        self._left = MAX_JSON_ITEMS

    def copy(self, value: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            return "…"
        if isinstance(value, Mapping):
            return {
                show_text(str(key), 500): self.copy(each) for key, each in value.items() if self._left > 0
            }
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [self.copy(each) for each in value if self._left > 0]
        if isinstance(value, str):
            return show_text(value)
        return value if isinstance(value, (bool, int, float)) or value is None else str(value)


def remove_known_secrets(value: Any, redact: Redaction) -> Any:
    """Return JSON data with all known secrets replaced, as a last protection before it is sent to a page."""
    if not redact.contains_known_secret(json.dumps(value, ensure_ascii=False)):
        return value
    log.warning("data for the dashboard contained a secret, which was removed")
    return _map_texts(value, redact)


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {change(key): _map_texts(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_map_texts(each, change) for each in value]
    return change(value) if isinstance(value, str) else value
