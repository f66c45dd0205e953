"""HTTP connections with deadlines and a limit on the number of connections.

The connection of a client that connects and sends nothing, stops in the middle of a request, or reads nothing
of its response is closed after a timeout. Knows no protocol above HTTP.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Collection
from typing import Any, Literal, cast

from toolfold.serving.gateway.http_protocol import LimitedProtocol
from toolfold.serving.gateway.uvicorn_connections import RefusedRequests

HEADER_TIMEOUT_S = 20.0
"""Time in which a client must send the headers of a request, counted from when it connects."""
BODY_CONNECTION_TIMEOUT_S = 120.0
"""Time in which a body must arrive. The reader of a body times out sooner, with a response
(`request_bodies.BODY_TIMEOUT_S`); this closes connections whose body is never read.
"""
STALLED_TIMEOUT_S = 30.0
"""Time after which a connection is closed whose client reads nothing of a response that does not fit into the
buffers."""
BRIEF_WAIT_S = 1.0
"""Connections that have waited for their client for less time are closed later if there are too many."""
MAX_CONNECTIONS = 1_000

Phase = Literal["head", "body", "response"]


def compute_max_connections() -> int:
    """Return the maximum number of connections: half of this process's limit for open files."""
    try:
        import resource
    except ImportError:
        return MAX_CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(8, min(MAX_CONNECTIONS, soft // 2))


def make_bounded_protocol() -> type[asyncio.Protocol]:
    """Return a factory of HTTP connections for uvicorn, with deadlines and a limit on their number.

    All connections that it makes share the limit.
    """
    made = functools.partial(BoundedProtocol, limit=compute_max_connections(), refusals=RefusedRequests())
    return cast("type[asyncio.Protocol]", made)  # uvicorn only calls it


class StalledWriteCheck:
    """Aborts a connection if its client reads none of the sent data for STALLED_TIMEOUT_S."""

    def __init__(self, transport: asyncio.WriteTransport, abort: Callable[[], None]) -> None:
        self._transport, self._abort = transport, abort
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.blocked_since: float | None = None
        """Since when the client has not read what was sent; None if everything fits into the buffers."""

    def start(self) -> None:
        """Start the check for a stalled client, because the sent data does not fit into the buffers."""
        self.stop()
        self.blocked_since = time.monotonic()
        self._check_later()

    def stop(self) -> None:
        """Stop the check for a stalled client, because it has read enough or the connection is closed."""
        self.blocked_since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_later(self) -> None:
        unsent = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(STALLED_TIMEOUT_S, self._abort_if_stalled, unsent)

    def _abort_if_stalled(self, unsent_before: int) -> None:
        if self._transport.get_write_buffer_size() >= unsent_before:
            self._abort()
        else:
            self._check_later()


class BoundedProtocol(LimitedProtocol):
    """HTTP connection of one client, with deadlines and a limit on the number of connections."""

    _stalled: StalledWriteCheck

    def __init__(self, *values: Any, limit: int, refusals: RefusedRequests, **options: Any) -> None:
        """Create a uvicorn connection; `limit` is the server's maximum number of connections."""
        super().__init__(*values, **options)
        self._limit, self._refusals = limit, refusals
        self.opened = self.phase_since = 0.0
        self.is_aborted = False
        self._phase: Phase | None = None
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def phase(self) -> Phase:
        """Return the part of the exchange that the connection waits for: headers, body or response."""
        if self.cycle is None or self.cycle.response_complete:
            return "head"
        return "body" if self.cycle.more_body else "response"

    @property
    def blocked_since(self) -> float | None:
        """Return the time since which the client has not read sent data; None if the buffers have room."""
        return self._stalled.blocked_since

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.opened = time.monotonic()
        self._stalled = StalledWriteCheck(cast("asyncio.Transport", transport), self.abort)
        super().connection_made(transport)
        self._set_deadline()
        _abort_surplus(self.connections, self._limit)

    def abort(self) -> None:
        """Close the connection immediately, without sending buffered data."""
        self.is_aborted = True
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        self._stalled.stop()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled.start()

    def resume_writing(self) -> None:
        self._stalled.stop()
        super().resume_writing()

    def on_parsed(self) -> None:
        if self.phase != self._phase or (self.phase == "head" and self._deadline is None):
            self._set_deadline()

    def on_refused(self, problem: str) -> None:
        self._refusals.log_refusal(problem)

    def on_response_complete(self) -> None:
        """Remove the deadline after a response; while idle, only KEEP_ALIVE_TIMEOUT_S applies."""
        super().on_response_complete()
        if self.has_unread_data:  # perhaps the beginning of another request
            self._set_deadline()
            return
        self._clear_deadline()
        self._phase = self.phase

    def _set_deadline(self) -> None:
        self._clear_deadline()
        self._phase, self.phase_since = self.phase, time.monotonic()
        if self._phase != "response" and not self.is_closing:
            seconds = HEADER_TIMEOUT_S if self._phase == "head" else BODY_CONNECTION_TIMEOUT_S
            self._deadline = self.loop.call_later(seconds, self._close_if_late)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close_if_late(self) -> None:
        if self.phase == self._phase:
            self.abort()


def _abort_surplus(connections: Collection[BoundedProtocol], limit: int) -> None:
    """Abort connections beyond the limit, beginning with stalled, idle and slow clients.

    Connections that were aborted in this turn of the loop are still in the set and no longer count.
    """
    if len(connections) <= limit:
        return
    now = time.monotonic()
    live = [each for each in connections if not each.is_aborted]
    surplus = len(live) - limit
    if surplus > 0:
        for each in sorted(live, key=lambda each: _rank_for_abort(each, now))[:surplus]:
            each.abort()


def _rank_for_abort(connection: BoundedProtocol, now: float) -> tuple[int, float]:
    """Return a sort key that puts stalled, idle and slow clients before new clients.

    A request in progress comes last, the newest first.
    """
    phase, blocked_since = connection.phase, connection.blocked_since
    if blocked_since is not None:
        waited = now - blocked_since
        return (0 if waited >= BRIEF_WAIT_S else 3), -waited
    if phase == "head":
        waited = now - connection.opened
        return (1 if waited >= BRIEF_WAIT_S else 4), -waited
    waited = now - connection.phase_since
    if phase == "body" and waited >= BRIEF_WAIT_S:
        return 2, -waited
    return 5, -connection.opened
