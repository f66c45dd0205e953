"""Limit the rate of notifications and requests from an MCP server.

A flood of messages would take time from every other server. Works on bytes; knows no transport.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from toolfold.core.types import Json

MAX_NOTIFICATIONS_PER_SECOND = 500
"""Notifications and invalid lines that are processed per second; more are dropped unparsed."""
MAX_REQUESTS_PER_SECOND = 2_000
"""Requests from a server that are processed per second."""
MAX_DROPPED_MESSAGES = 200_000
"""Messages dropped without a quiet period after which the connection is given up."""
_QUIET_PERIOD_S = 2.0

_MessageKind = Literal["response", "request", "notification"]


class NotificationFlood(ValueError):
    """Raised if the server keeps sending too many messages."""


def _classify_message(message: bytes) -> _MessageKind:
    """Return the kind of a JSON-RPC message; parse it only if it has both `id` and `method`."""
    if b'"id"' not in message:
        return "notification"
    if b'"method"' not in message:
        return "response"
    parsed = _parse_message(message)
    if "id" not in parsed:
        return "notification"
    return "request" if "method" in parsed else "response"


def _parse_message(message: bytes) -> Json:
    """Parse a JSON-RPC message from a line or a server-sent event; return {} if it is not JSON."""
    _, brace, rest = message.replace(b"\ndata:", b"\n").partition(b"{")
    try:
        parsed: Json = json.loads((brace + rest).decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return parsed


class NotificationLimiter:
    """Drops messages of one connection that exceed the rate limits."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._notifications: deque[float] = deque(maxlen=MAX_NOTIFICATIONS_PER_SECOND)
        self._requests: deque[float] = deque(maxlen=MAX_REQUESTS_PER_SECOND)
        self._dropped, self._last_drop = 0, 0.0

    def should_drop(self, message: bytes) -> bool:
        """Return True if the message is a notification or request above the rate limit.

        Notifications are not parsed for this unless they contain the word `id`.
        """
        kind = _classify_message(message)
        return kind != "response" and self._is_excess(kind)

    def count_unmatched_response(self) -> None:
        """Count a response that matches no known request towards the server's rate limit.

        Raises NotificationFlood if there are too many.
        """
        self._is_excess("notification")

    def _is_excess(self, kind: _MessageKind) -> bool:
        recent = self._requests if kind == "request" else self._notifications
        now = time.monotonic()
        if len(recent) < (recent.maxlen or 0) or now - recent[0] >= 1.0:
            recent.append(now)
            return False
        self._dropped = self._dropped + 1 if now - self._last_drop < _QUIET_PERIOD_S else 1
        self._last_drop = now
        if self._dropped == 1:
            self._note(f"(more than {recent.maxlen:,} {kind}s per second: the rest is dropped)")
        if self._dropped > MAX_DROPPED_MESSAGES:
            raise NotificationFlood(f"a flood of {kind}s")
        return True
