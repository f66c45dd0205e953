"""Connections of the HTTP server: deadlines, a limit on their number, and what happens when files run out.

uvicorn waits without end for a client that connects and sends nothing, or stops in the middle of a request.
Here such a connection is closed; one whose peer has vanished is found by TCP keepalive. Knows no protocol
above HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import time
from typing import Any, Literal

log = logging.getLogger(__name__)

HEADER_TIMEOUT_S = 20.0
"""How long a client may take to send the head of a request, from the moment it connects."""
BODY_CONNECTION_TIMEOUT_S = 120.0
"""How long a connection may stay in the middle of a body. Whoever reads the body gives up sooner, with an
answer (`bodies.BODY_TIMEOUT_S`); this ends connections whose body nobody reads."""
PEER_TIMEOUT_S = 90
"""How long a peer may be unreachable, or read nothing that was sent, until its connection is closed."""
KEEPALIVE_INTERVAL_S = 15
MAX_CONNECTIONS = 1_000
MAX_PENDING_CONNECTIONS = 128
ACCEPT_LOG_INTERVAL_S = 60.0
_OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

Phase = Literal["head", "body", "response"]


def detect_vanished_peers(listening: socket.socket) -> None:
    """Let the system close connections whose peer is gone. Accepted sockets inherit the options."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probes = max(1, PEER_TIMEOUT_S // KEEPALIVE_INTERVAL_S - 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", probes),
        ("TCP_USER_TIMEOUT", PEER_TIMEOUT_S * 1_000),
    ):
        with contextlib.suppress(OSError, AttributeError):  # not every system has all of them
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def max_connections() -> int:
    """How many connections are open at most: half of the files that this process may have open."""
    try:
        import resource
    except ImportError:
        return MAX_CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(8, min(MAX_CONNECTIONS, soft // 2))


def bounded_protocol() -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol with limits on parsing, deadlines and a limit on the number of connections."""
    from toolfold.gateway.http_protocol import LimitedProtocol

    most = max_connections()
    base: Any = LimitedProtocol

    class BoundedProtocol(base):  # type: ignore[misc]
        opened = 0.0
        is_aborted = False
        _phase: Phase | None = None
        _deadline: asyncio.TimerHandle | None = None

        @property
        def phase(self) -> Phase:
            """What the connection waits for: the client's head or body, or our response."""
            if self.cycle is None or self.cycle.response_complete:
                return "head"
            return "body" if self.cycle.more_body else "response"

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.opened = time.monotonic()
            self._set_deadline()
            _close_surplus(self.connections, most)

        def abort(self) -> None:
            """Close the connection at once. The loop reports it as lost one turn later."""
            self.is_aborted = True
            self.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            self._clear_deadline()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.phase != self._phase:
                self._set_deadline()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._set_deadline()

        def _set_deadline(self) -> None:
            self._clear_deadline()
            self._phase = self.phase
            if self._phase != "response" and not self.transport.is_closing():
                seconds = HEADER_TIMEOUT_S if self._phase == "head" else BODY_CONNECTION_TIMEOUT_S
                self._deadline = self.loop.call_later(seconds, self._close_late)

        def _clear_deadline(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _close_late(self) -> None:
            if self.phase == self._phase:
                self.abort()

    return BoundedProtocol


def _close_surplus(connections: set[Any], limit: int) -> None:
    """Close the oldest connections without a request; where there are too few of them, the newest others.

    Those that were closed in this turn of the loop are still in the set and no longer count.
    """
    if len(connections) <= limit:
        return
    live = sorted((each for each in connections if not each.is_aborted), key=lambda each: each.opened)
    idle = [each for each in live if each.phase == "head"]
    busy = [each for each in reversed(live) if each.phase != "head"]
    for each in (idle + busy)[: max(0, len(live) - limit)]:
        each.abort()


class AcceptErrors:
    """Log the lack of files for new connections once per interval.

    asyncio waits a second by itself before it accepts again, but reports every single attempt.
    """

    def __init__(self) -> None:
        self._last = -ACCEPT_LOG_INTERVAL_S
        self._unlogged = 0

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Handle the loop's errors."""
        loop.set_exception_handler(self)

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log the error, or leave it to the loop where it is about something else."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _OUT_OF_FILES or "socket" not in context:
            loop.default_exception_handler(context)
            return
        self._unlogged += 1
        now = time.monotonic()
        if now - self._last < ACCEPT_LOG_INTERVAL_S:
            return
        log.error(
            "a connection cannot be accepted: %s (%d times since it was last logged). "
            "Raise the limit with `ulimit -n`, or close connections.",
            *(error.strerror, self._unlogged),
        )
        self._last, self._unlogged = now, 0
