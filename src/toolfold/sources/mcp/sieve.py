"""Floods of notifications, kept back between a server and the client.

A flood would otherwise cost the time of every other server. Looks at bytes; knows no transport.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from toolfold.model import Json

MOST_NOTICES = 500
"""How many notifications a second are heard, and lines that are no message; more are dropped unread."""
MAX_REQUESTS_PER_SECOND = 2_000
"""How many requests of a server are heard."""
MOST_DROPPED = 200_000
"""After how many that were dropped without a pause the server is given up."""
_PAUSE = 2.0

_MessageKind = Literal["answer", "request", "notification"]


class Flooded(ValueError):
    """There is no end of notifications."""


def _classify(message: bytes) -> _MessageKind:
    """Tell what a message is. Only one that has the words `id` and `method` is parsed, and once."""
    if b'"id"' not in message:
        return "notification"
    if b'"method"' not in message:
        return "answer"
    found = _read(message)
    if "id" not in found:
        return "notification"
    return "request" if "method" in found else "answer"


def _read(message: bytes) -> Json:
    """The message of a line or of an event, which may have several lines; empty where it is none."""
    _, brace, rest = message.replace(b"\ndata:", b"\n").partition(b"{")
    try:
        found: Json = json.loads((brace + rest).decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return found


class Sieve:
    """Drops what is too much. One for each connection."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._notices: deque[float] = deque(maxlen=MOST_NOTICES)
        self._requests: deque[float] = deque(maxlen=MAX_REQUESTS_PER_SECOND)
        self._dropped, self._last = 0, 0.0

    def drops(self, message: bytes) -> bool:
        """Whether this is one too many of what is no answer. Notifications are not parsed for it,
        unless they have a word `id` somewhere."""
        kind = _classify(message)
        return kind != "answer" and self._is_excess(kind)

    def count_unasked(self) -> None:
        """An answer came to what nobody asked. Raises Flooded if there is no end of them."""
        self._is_excess("notification")

    def _is_excess(self, kind: _MessageKind) -> bool:
        heard = self._requests if kind == "request" else self._notices
        now = time.monotonic()
        if len(heard) < (heard.maxlen or 0) or now - heard[0] >= 1.0:
            heard.append(now)
            return False
        self._dropped = self._dropped + 1 if now - self._last < _PAUSE else 1
        self._last = now
        if self._dropped == 1:
            self._note(f"(more than {heard.maxlen:,} {kind}s a second: the rest is dropped)")
        if self._dropped > MOST_DROPPED:
            raise Flooded(f"a flood of {kind}s")
        return True
