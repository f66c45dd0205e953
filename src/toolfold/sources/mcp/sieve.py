"""Floods of notifications, kept back between a server and the client.

A flood would otherwise cost the time of every other server. Looks at bytes; knows no transport.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable

MOST_NOTICES = 500
"""How many notifications a second are heard; more are dropped unread."""
MOST_DROPPED = 200_000
"""After how many that were dropped without a pause the server is given up."""
_PAUSE = 2.0


class Flooded(ValueError):
    """There is no end of notifications."""


def _is_request(message: bytes) -> bool:
    """Whether it wants an answer. The word `id` may stand anywhere in it; an event may have several lines."""
    _, brace, rest = message.replace(b"\ndata:", b"\n").partition(b"{")
    try:
        return "id" in json.loads(brace + rest)
    except (ValueError, RecursionError):
        return False


class Sieve:
    """Drops what is too much. One for each connection."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._notices: deque[float] = deque(maxlen=MOST_NOTICES)
        self._dropped, self._last = 0, 0.0

    def drops(self, message: bytes) -> bool:
        """Whether this is one notification too many. Looks at the bytes: a flood is not worth parsing."""
        if b'"method"' not in message or (b'"id"' in message and _is_request(message)):
            return False
        now = time.monotonic()
        if len(self._notices) < MOST_NOTICES or now - self._notices[0] >= 1.0:
            self._notices.append(now)
            return False
        self._dropped = self._dropped + 1 if now - self._last < _PAUSE else 1
        self._last = now
        if self._dropped == 1:
            self._note(f"(more than {MOST_NOTICES} notifications a second: the rest is dropped)")
        if self._dropped > MOST_DROPPED:
            raise Flooded("a flood of notifications")
        return True
