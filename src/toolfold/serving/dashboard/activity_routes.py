"""The newest events of a runtime, for web pages that show them live.

One listener appends events to a bounded list. All open pages read them at the same moments, a few times a
second, so that a batch is prepared and written as JSON once for all of them. A page that was slow or has just
been opened reads from its own position.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import os
import string
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

from toolfold.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    Event,
    EventBus,
    TextReceived,
    ThinkingReceived,
    ToolFinished,
    ToolProgressed,
    Usage,
)
from toolfold.core.types import Json
from toolfold.safety.approval.safe_text import make_visible
from toolfold.safety.redaction import Redaction
from toolfold.serving.dashboard.texts import remove_known_secrets, show_json, show_name, show_prose

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
_UNUSED_FIELDS = frozenset(
    {"reasons", "emoji", "toolset", "parent_id", "available", "tool_search", "provider", "answers"}
    | {"registered", "parent_session_id", "cost", "user_id"}
)
"""Fields of events that no page shows."""
_REDACTED_FIELDS: dict[type[Event], frozenset[str]] = {
    ToolFinished: frozenset({"result"}),
    ToolProgressed: frozenset({"message"}),
    ApprovalAsked: frozenset({"reason", "command"}),
    ApprovalAnswered: frozenset({"reason"}),
}
"""Fields whose secrets were replaced when the event was published. Searching them again would take most of
the time."""
_WORD_CHARACTERS = string.ascii_letters + string.digits + string.punctuation


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignEvent(Event):
    """Event of another process, as it described the event for pages."""

    shown: Json


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events that a web page has not received yet, as JSON text, and the number of the last event."""

    json_members: str
    position: int
    """The number of the last event in the batch."""


@dataclass(slots=True)
class Tick:
    """One tick of the activity feed: the data sent to all open web pages in the same time interval."""

    number: int
    state_members: str
    """The state that every page shows, as members of a JSON object."""
    batches: dict[int, asyncio.Task[EventBatch]] = field(default_factory=dict)
    """The events that a page does not have yet, by the number of the last event that it has."""


class ActivityFeed:
    """Keeps the newest events of a runtime. Thread-safe, but all streams must run in one event loop."""

    def __init__(self, bus: EventBus, redact: Redaction, *, max_events: int = MAX_KEPT_EVENTS) -> None:
        self._redact = redact
        self._events: deque[tuple[int, Event]] = deque(maxlen=max_events)
        self._numbers = itertools.count(1)
        self._words = WordBuffer()
        self._lock = threading.Lock()
        # Redaction takes milliseconds, and every page shows the same texts.
        self._show_prose = functools.lru_cache(MAX_KEPT_EVENTS)(lambda text: show_prose(self._cut(text)))
        self._show_exactly = functools.lru_cache(MAX_KEPT_EVENTS)(lambda text: make_visible(self._cut(text)))
        self.name_user: Callable[[str], str] = lambda _user_id: ""
        """Function that returns the name of the gateway's user with an id."""
        self._tick: Tick | None = None
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

    def add_foreign(self, shown: Json) -> None:
        """Show an event of another process, which has described it and removed its secrets."""
        self._append(ForeignEvent(session_id=shown["session_id"], at=shown["at"], shown=shown))

    def _cut(self, text: str) -> str:
        """Return the beginning of a text; secrets are removed before the text is cut."""
        return self._redact(text)[:MAX_TEXT_CHARS]

    def read_after(self, number: int, limit: int = MAX_BATCH_EVENTS) -> tuple[list[Json], int, int]:
        """Return the events after event `number`, the last event's number and the count of skipped events."""
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

    def read_own_after(self, number: int) -> tuple[list[Json], int, int]:
        """Return the same as `read_after`, without the events of other processes."""
        events, position, missed = self.read_after(number)
        return [each for each in events if each.get("process") == os.getpid()], position, missed

    def _describe(self, event: Event, key: str) -> Json:
        if isinstance(event, ForeignEvent):
            return event.shown
        redacted = _REDACTED_FIELDS.get(type(event), frozenset())
        shown: Json = {"key": key, "type": event.type, "process": os.getpid()}
        for each in fields(event):
            if each.name not in _UNUSED_FIELDS:
                value = getattr(event, each.name)
                shown[each.name] = self._describe_value(each.name, value, is_redacted=each.name in redacted)
        if hasattr(event, "client"):
            shown["client"] = show_name(shown["client"])
            shown["user"] = show_name(self.name_user(getattr(event, "user_id", "")))
        return shown

    def _describe_value(self, name: str, value: Any, *, is_redacted: bool) -> Any:
        if isinstance(value, (bool, int, float)) or value is None:
            return value
        if name in _PROSE:
            return show_prose(value, MAX_TEXT_CHARS) if is_redacted else self._show_prose(str(value))
        if name in _EXACT_TEXTS:
            return make_visible(value[:MAX_TEXT_CHARS]) if is_redacted else self._show_exactly(str(value))
        if name in _TEXT_LISTS:
            return [self._show_prose(str(each)) for each in value]
        if isinstance(value, Usage):
            return {"input_tokens": value.input_tokens, "output_tokens": value.output_tokens}
        return show_json(value)  # arguments are published with secrets removed

    async def stream(self, number: int, describe_state: Callable[[], Json]) -> AsyncIterator[bytes]:
        """Yield server-sent events for a page: new runtime events, and the runtime's state if it changed."""
        last_state, last_sent = "", 0.0
        self.open_streams += 1
        self.on_stream_change()
        try:
            while True:
                tick = self._find_tick(describe_state)
                members = []
                if self.last_number != number:
                    batch = await self._read_batch(tick, number)
                    members.append(batch.json_members)
                    number = batch.position
                if tick.state_members != last_state:
                    members.append(tick.state_members)
                    last_state = tick.state_members
                if members or time.monotonic() - last_sent > HEARTBEAT_S:
                    last_sent = time.monotonic()
                    yield f"data: {{{','.join(members)}}}\n\n".encode("utf-8", "replace")
                await asyncio.sleep(FLUSH_INTERVAL_S - time.monotonic() % FLUSH_INTERVAL_S)
        finally:
            self.open_streams -= 1
            self.on_stream_change()

    def _find_tick(self, describe_state: Callable[[], Json]) -> Tick:
        """Return the data of the current time interval, which is computed once and shared by all pages."""
        number = int(time.monotonic() / FLUSH_INTERVAL_S)
        if self._tick is None or self._tick.number != number:
            self._tick = Tick(number, self._write_members(describe_state()))
        return self._tick

    async def _read_batch(self, tick: Tick, number: int) -> EventBatch:
        """Return the events after event `number`, computed once and shared by all pages."""
        if number not in tick.batches:
            tick.batches[number] = asyncio.create_task(asyncio.to_thread(self._prepare_batch, number))
        return await asyncio.shield(tick.batches[number])  # a page that is closed must not stop the others

    def _prepare_batch(self, number: int) -> EventBatch:
        events, position, missed = self.read_after(number)
        message = {"events": events, "missed": missed, "position": position}
        return EventBatch(self._write_members(message), position)

    def _write_members(self, message: Json) -> str:
        """Return a JSON object as text without the outer braces, with known secrets removed."""
        text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
        if self._redact.contains_known_secret(text):
            message = remove_known_secrets(message, self._redact)
            text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
        return text[1:-1]

    def close(self) -> None:
        """Stop listening to events."""
        self._unsubscribe()


class WordBuffer:
    """Buffer that holds back the last word of a streamed text until the word is complete.

    A model's answer arrives in pieces. A secret that is spread over two of them can be recognized in neither.
    """

    def __init__(self) -> None:
        self._held: dict[str, Event] = {}
        """Session → an event with the beginning of a word."""

    def add(self, event: Event) -> Iterator[Event]:
        """Add an event, and yield the events that can be shown now, including text that was held back."""
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
    """Join the text chunks of one answer, and keep only the newest progress report of each call."""
    held: Event | None = None
    for event in events:
        joined = _join(held, event)
        if joined is None and held is not None:
            yield held
        held = joined or event
    if held is not None:
        yield held


def _join(before: Event | None, event: Event) -> Event | None:
    """Join two successive events of the same text or tool call; None if they do not belong together."""
    if isinstance(event, ToolProgressed) and isinstance(before, ToolProgressed):
        return event if before.call_id == event.call_id else None
    if not isinstance(event, TextReceived | ThinkingReceived) or type(before) is not type(event):
        return None
    if (before.session_id, before.turn) != (event.session_id, event.turn):
        return None
    return replace(event, text=before.text + event.text)
