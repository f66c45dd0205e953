"""The newest events of a runtime, for pages that follow them live.

One listener appends events to a bounded list; each page reads from its own position, a few times a second,
so that the number of pages and a slow page cost the sessions nothing.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import string
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from toolfold.approval.safe_text import make_visible
from toolfold.dashboard.texts import remove_known_secrets, show_json, show_prose
from toolfold.events import Event, EventBus, TextReceived, ThinkingReceived, ToolProgressed
from toolfold.model import Json
from toolfold.redaction import Redaction

MAX_KEPT_EVENTS = 1_000
MAX_BATCH_EVENTS = 200
"""Events in one message to a page; of more, the oldest are left out and counted."""
MAX_STREAMS = 40
FLUSH_INTERVAL_S = 0.25
HEARTBEAT_S = 10.0
MAX_TEXT_CHARS = 4_000
MAX_WORD_CHARS = 4_000
MAX_HELD_WORDS = 200
_PROSE = frozenset({"result", "error", "message", "reason", "text"})
_EXACT_TEXTS = frozenset({"command", "tool"})
_TEXT_LISTS = frozenset({"queries", "changes"})
_WORD_CHARACTERS = string.ascii_letters + string.digits + string.punctuation


class ActivityFeed:
    """Keeps the newest events of a runtime. Thread-safe."""

    def __init__(self, bus: EventBus, redact: Redaction) -> None:
        self._redact = redact
        self._events: deque[tuple[int, Event]] = deque(maxlen=MAX_KEPT_EVENTS)
        self._numbers = itertools.count(1)
        self._words = WordBuffer()
        self._lock = threading.Lock()
        # Redaction takes milliseconds, and every page shows the same texts.
        self._show_prose = functools.lru_cache(MAX_KEPT_EVENTS)(lambda text: show_prose(self._cut(text)))
        self._show_exactly = functools.lru_cache(MAX_KEPT_EVENTS)(lambda text: make_visible(self._cut(text)))
        self.last_number = 0
        self.open_streams = 0
        self.on_stream_change: Callable[[], None] = lambda: None
        """Called when a page has started or stopped to follow the events."""
        self._unsubscribe = bus.subscribe(self._append)

    def _append(self, event: Event) -> None:
        with self._lock:
            for each in self._words.add(event):
                self.last_number = next(self._numbers)
                self._events.append((self.last_number, each))

    def _cut(self, text: str) -> str:
        """Return the beginning of a text; secrets are replaced first, so that none is cut in half."""
        return self._redact(text)[:MAX_TEXT_CHARS]

    def read_after(self, number: int, limit: int = MAX_BATCH_EVENTS) -> tuple[list[Json], int, int]:
        """Return the newest events after a number as JSON, the new position, and how many were left out."""
        with self._lock:
            last = self.last_number
            newer = list(itertools.takewhile(lambda each: each[0] > number, reversed(self._events)))
        merged = list(_merge_pieces(event for _, event in reversed(newer)))
        missed = max(0, last - number - len(newer)) + max(0, len(merged) - limit)
        first = last - len(newer)
        shown = merged[-limit:] if limit else []
        offset = len(merged) - len(shown)
        return (
            [self._describe(event, f"{first}-{offset + index}") for index, event in enumerate(shown)],
            last,
            missed if number else 0,
        )

    def _describe(self, event: Event, key: str) -> Json:
        values = event.to_json()
        return {"key": key, **{name: self._describe_value(name, value) for name, value in values.items()}}

    def _describe_value(self, name: str, value: Any) -> Any:
        if name in _PROSE:
            return self._show_prose(str(value))
        if name in _EXACT_TEXTS:
            return self._show_exactly(str(value))
        if name in _TEXT_LISTS:
            return [self._show_prose(str(each)) for each in value]
        return show_json(value)  # arguments are published with secrets removed

    async def stream(self, number: int, extra: Callable[[], Json]) -> AsyncIterator[bytes]:
        """Yield server-sent events: batches of events, and the result of `extra` whenever it changes."""
        last_extra: Json = {}
        last_sent = 0.0
        self.open_streams += 1
        self.on_stream_change()
        try:
            while True:
                message: dict[str, Any] = {}
                if self.last_number != number:
                    events, number, missed = await asyncio.to_thread(self.read_after, number)
                    message |= {"events": events, "missed": missed, "position": number}
                current = extra()
                if current != last_extra:
                    message |= current
                    last_extra = current
                if message or time.monotonic() - last_sent > HEARTBEAT_S:
                    last_sent = time.monotonic()
                    message = remove_known_secrets(message, self._redact)
                    yield f"data: {json.dumps(message, ensure_ascii=False)}\n\n".encode("utf-8", "replace")
                await asyncio.sleep(FLUSH_INTERVAL_S)
        finally:
            self.open_streams -= 1
            self.on_stream_change()

    def close(self) -> None:
        """Stop listening to events."""
        self._unsubscribe()


class WordBuffer:
    """Holds back the last word of a streamed text until it is complete.

    A model's answer arrives in pieces. A secret that is spread over two of them can be recognized in neither.
    """

    def __init__(self) -> None:
        self._held: dict[str, Event] = {}
        """Session → an event with the beginning of a word."""

    def add(self, event: Event) -> Iterator[Event]:
        """Yield the events that can be shown now, in order: held text of the session first."""
        held = self._held.pop(event.session_id, None)
        joined = _join(held, event)
        if joined is None and held is not None:
            yield held
        yield from self._hold_last_word(joined or event)

    def _hold_last_word(self, event: Event) -> Iterator[Event]:
        if not isinstance(event, TextReceived | ThinkingReceived):
            yield event
            return
        complete = len(event.text.rstrip(_WORD_CHARACTERS))
        if len(event.text) - complete > MAX_WORD_CHARS:
            complete = len(event.text)
        if complete:
            yield replace(event, text=event.text[:complete])
        if complete < len(event.text):
            self._held[event.session_id] = replace(event, text=event.text[complete:])
        if len(self._held) > MAX_HELD_WORDS:
            yield self._held.pop(next(iter(self._held)))


def _merge_pieces(events: Iterable[Event]) -> Iterable[Event]:
    """Join the pieces of one answer, and keep only the newest progress report of a call."""
    held: Event | None = None
    for event in events:
        joined = _join(held, event)
        if joined is None and held is not None:
            yield held
        held = joined or event
    if held is not None:
        yield held


def _join(before: Event | None, event: Event) -> Event | None:
    """Return one event for two pieces of the same text or progress; None if they do not belong together."""
    if isinstance(event, ToolProgressed) and isinstance(before, ToolProgressed):
        return event if before.call_id == event.call_id else None
    if not isinstance(event, TextReceived | ThinkingReceived) or type(before) is not type(event):
        return None
    if (before.session_id, before.turn) != (event.session_id, event.turn):
        return None
    return replace(event, text=before.text + event.text)
