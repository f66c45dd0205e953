"""The newest events of a runtime, for pages that follow them live.

One listener appends events to a bounded list; each page reads from its own position, a few times a second,
so that the number of pages and a slow page cost the sessions nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Any

from toolfold.approval.safe_text import make_visible
from toolfold.dashboard.texts import show_prose
from toolfold.events import Event, EventBus, TextReceived, ThinkingReceived, ToolProgressed, TurnStarted
from toolfold.model import Json
from toolfold.redaction import Redaction

MAX_KEPT_EVENTS = 1_000
MAX_BATCH_EVENTS = 200
"""Events in one message to a page; of more, the oldest are left out and counted."""
MAX_STREAMS = 40
FLUSH_INTERVAL_S = 0.25
HEARTBEAT_S = 10.0
MAX_TEXT_CHARS = 4_000
_SHOWN_TEXTS = frozenset({"result", "error", "message", "command", "reason", "tool", "text"})


class ActivityFeed:
    """Keeps the newest events of a runtime. Thread-safe."""

    def __init__(self, bus: EventBus, redact: Redaction) -> None:
        self._redact = redact
        self._events: deque[tuple[int, Event]] = deque(maxlen=MAX_KEPT_EVENTS)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self.last_number = 0
        self.open_streams = 0
        self._unsubscribe = bus.subscribe(self._append)

    def _append(self, event: Event) -> None:
        with self._lock:
            self.last_number = next(self._numbers)
            self._events.append((self.last_number, event))

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
        found = event.to_json()
        for name in _SHOWN_TEXTS & found.keys():
            text = str(found[name])[:MAX_TEXT_CHARS]
            # Agents and tools publish other texts with secrets removed already.
            text = self._redact(text) if isinstance(event, TurnStarted) else text
            found[name] = make_visible(text) if name in ("command", "tool") else show_prose(text)
        return {"key": key, **found}

    async def stream(self, number: int, extra: Callable[[], Json], session: str = "") -> AsyncIterator[bytes]:
        """Yield server-sent events: batches of events, and the result of `extra` whenever it changes."""
        last_extra: Json = {}
        last_sent = 0.0
        self.open_streams += 1
        try:
            while True:
                message: dict[str, Any] = {}
                if self.last_number != number:
                    events, number, missed = self.read_after(number)
                    chosen = [each for each in events if not session or each["session_id"] in ("", session)]
                    message |= {"events": chosen, "missed": missed, "position": number}
                current = extra()
                if current != last_extra:
                    message |= current
                    last_extra = current
                if message or time.monotonic() - last_sent > HEARTBEAT_S:
                    last_sent = time.monotonic()
                    yield f"data: {json.dumps(message, ensure_ascii=False)}\n\n".encode("utf-8", "replace")
                await asyncio.sleep(FLUSH_INTERVAL_S)
        finally:
            self.open_streams -= 1

    def close(self) -> None:
        """Stop listening to events."""
        self._unsubscribe()


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
