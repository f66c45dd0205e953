"""Log the events of a runtime as lines of JSON, with Python's logging module."""

from __future__ import annotations

import json
import logging

from toolfold.core.events import Event, TextReceived, ThinkingReceived
from toolfold.core.types import Json

LOGGER_NAME = "toolfold.event_log"

CONTENT_FIELDS = frozenset(
    {"message", "text", "arguments", "result", "error", "command", "reason", "queries", "question"}
)
"""Event fields that may contain text of people, models and tools."""

UNKNOWN_TOOL = "(unknown)"
"""Name in logs and traces of a tool that does not exist, because a model may call it anything."""


class EventLog:
    """Event listener that logs every event at level INFO, except the chunks of a streamed answer."""

    def __init__(self, *, include_content: bool = False) -> None:
        self._log = logging.getLogger(LOGGER_NAME)
        self._include_content = include_content

    def __call__(self, event: Event) -> None:
        if isinstance(event, (TextReceived, ThinkingReceived)):  # the whole answer is in turn_finished
            return
        data = event.to_json()
        if not self._include_content:
            data = remove_content(data)
        self._log.info("%s", json.dumps(data, ensure_ascii=False, default=str))


def remove_content(data: Json) -> Json:
    """Return an event without texts of users, models and tools; the reason why a turn ended is kept."""
    is_turn_end = data.get("type") == "turn_finished"
    named = data if data.get("registered", True) else {**data, "tool": UNKNOWN_TOOL}
    return {
        key: value
        for key, value in named.items()
        if key not in CONTENT_FIELDS or (is_turn_end and key == "reason")
    }
