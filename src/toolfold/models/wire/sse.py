"""Parse and write server-sent events, the streaming format of all model APIs.

An event keeps the bytes it was read from, so that an event that is not changed is forwarded as it came.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from toolfold.core.types import Json

MAX_EVENT_BYTES = 32_000_000
KEEP_ALIVE_COMMENT = b": keep-alive\n\n"
"""A comment, which readers of events ignore."""
_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_DATA_ONLY = re.compile(rb"data: ?([^\r\n]*)(?:\r\n|\n|\r){2}")
"""Matches an event of one line of data, as most events are."""


class EventTooLong(ValueError):
    """A server-sent event exceeds MAX_EVENT_BYTES."""


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """A server-sent event: its name, its data and its original bytes."""

    name: str
    data: str
    raw: bytes

    def parse(self) -> Json | None:
        """Return the JSON object in the event's data; None for comments, `[DONE]` and malformed data."""
        try:
            parsed = json.loads(self.data)
        except (ValueError, RecursionError):
            return None
        return parsed if isinstance(parsed, dict) else None


class EventParser:
    """Parser that splits a byte stream into server-sent events."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, part: bytes) -> Iterator[ServerSentEvent]:
        """Parse a part of the stream and yield the complete events so far. Raises EventTooLong."""
        received = self._received
        start = max(0, len(received) - 3)  # a blank line may be split between two parts
        received += part
        while match := _BLANK_LINE.search(received, start):
            raw = bytes(received[: match.end()])
            del received[: match.end()]
            start = 0
            yield _read_event(raw)
        if len(received) > MAX_EVENT_BYTES:
            raise EventTooLong(f"an event of the stream has more than {MAX_EVENT_BYTES:,} bytes")

    def finish(self) -> Iterator[ServerSentEvent]:
        """Yield the last event of a stream that ends without a blank line."""
        if self._received.strip():
            yield _read_event(bytes(self._received))
            self._received.clear()


def render_event(content: Json, *, named: bool) -> bytes:
    """Return JSON content as a server-sent event; if `named`, the event's name is the content's `type`."""
    data = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return (f"event: {content['type']}\n" if named else "").encode() + f"data: {data}\n\n".encode()


def _read_event(raw: bytes) -> ServerSentEvent:
    if only := _DATA_ONLY.fullmatch(raw):
        return ServerSentEvent("", only[1].decode("utf-8", "replace"), raw)
    name, data = "", []
    for line in _LINE_END.split(raw):
        key, _, value = line.decode("utf-8", "replace").partition(":")
        if key == "data":
            data.append(value.removeprefix(" "))
        elif key == "event":
            name = value.removeprefix(" ")
    return ServerSentEvent(name, "\n".join(data), raw)
