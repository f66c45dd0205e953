"""Limit HTTP connections: deadlines, their number, and errors when file descriptors run out.

The connection of a client that connects and sends nothing, or stops in the middle of a request, is closed
after a timeout; a peer that has vanished is detected by TCP keepalive. Knows no protocol above HTTP.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from toolfold.gateway.listening import MAX_PENDING_CONNECTIONS

if TYPE_CHECKING:
    import uvicorn

    from toolfold.gateway.http_protocol import LimitedProtocol

log = logging.getLogger(__name__)

HEADER_TIMEOUT_S = 20.0
"""Time in which a client must send the headers of a request, counted from when it connects."""
BODY_CONNECTION_TIMEOUT_S = 120.0
"""Time in which a body must arrive. The reader of a body times out sooner, with a response
(`request_bodies.BODY_TIMEOUT_S`); this closes connections whose body is never read.
"""
KEEP_ALIVE_TIMEOUT_S = 75
"""Time after which a connection without a request is closed. Load balancers close theirs after 60 s and must
be the first: otherwise they could send a request over a connection that is just being closed here.
"""
STALLED_TIMEOUT_S = 30.0
"""Time after which a connection is closed whose client reads nothing of a response that does not fit into the
buffers."""
BRIEF_WAIT_S = 1.0
"""Connections that have waited for their client for less time are closed later if there are too many."""
MAX_CONNECTIONS = 1_000
ACCEPT_LOG_INTERVAL_S = 60.0
REFUSAL_LOG_INTERVAL_S = 60.0
ACCEPT_RETRY_S = 1.0
"""Time after which connections are accepted again if no files were left."""
_OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

Phase = Literal["head", "body", "response"]


def compute_max_connections() -> int:
    """Return the maximum number of connections: half of the files that this process may open."""
    try:
        import resource
    except ImportError:
        return MAX_CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(8, min(MAX_CONNECTIONS, soft // 2))


def make_bounded_protocol() -> type[asyncio.Protocol]:
    """Return the class of HTTP connections for uvicorn, with deadlines and a limit on their number."""
    from toolfold.gateway.http_protocol import LimitedProtocol

    limit, refusals = compute_max_connections(), RefusedRequests()

    class BoundedProtocol(LimitedProtocol):
        opened = phase_since = 0.0
        blocked_since: float | None = None
        is_aborted = False
        _stalled_check: asyncio.TimerHandle | None = None
        _phase: Phase | None = None
        _deadline: asyncio.TimerHandle | None = None

        @property
        def phase(self) -> Phase:
            """Return what the connection is waiting for: the headers, the body or the response."""
            if self.cycle is None or self.cycle.response_complete:
                return "head"
            return "body" if self.cycle.more_body else "response"

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.opened = time.monotonic()
            super().connection_made(transport)
            self._set_deadline()
            _abort_surplus(cast("set[_BoundedConnection]", self.connections), limit)

        def abort(self) -> None:
            """Close the connection immediately; the event loop reports it as lost one iteration later."""
            self.is_aborted = True
            self.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            self._clear_deadline()
            self._stop_stalled_check()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self.blocked_since = time.monotonic()
            self._stop_stalled_check()
            self._check_stalled_later()

        def resume_writing(self) -> None:
            self.blocked_since = None
            self._stop_stalled_check()
            super().resume_writing()

        def _check_stalled_later(self) -> None:
            unsent = self.transport.get_write_buffer_size()
            self._stalled_check = self.loop.call_later(STALLED_TIMEOUT_S, self._close_if_stalled, unsent)

        def _close_if_stalled(self, unsent_before: int) -> None:
            if self.transport.get_write_buffer_size() >= unsent_before:
                self.abort()
            else:
                self._check_stalled_later()

        def _stop_stalled_check(self) -> None:
            if self._stalled_check is not None:
                self._stalled_check.cancel()
                self._stalled_check = None

        def on_parsed(self) -> None:
            if self.phase != self._phase or (self.phase == "head" and self._deadline is None):
                self._set_deadline()

        def on_refused(self, problem: str) -> None:
            refusals.log_refusal(problem)

        def on_response_complete(self) -> None:
            """Set no deadline while there is no other request; KEEP_ALIVE_TIMEOUT_S limits that time."""
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

    return BoundedProtocol


def make_connection(server: uvicorn.Server) -> LimitedProtocol:
    """Return a new connection of a server whose configuration has the class of `make_bounded_protocol`."""
    made = server.config.http_protocol_class(  # type: ignore[call-arg]
        config=server.config, server_state=server.server_state, app_state=server.lifespan.state
    )
    return cast("LimitedProtocol", made)


class _BoundedConnection(Protocol):
    opened: float
    phase_since: float
    blocked_since: float | None
    """Since when the client has not read what was sent; None if everything fits into the buffers."""
    is_aborted: bool

    @property
    def phase(self) -> Phase: ...

    def abort(self) -> None: ...


def _abort_surplus(connections: Collection[_BoundedConnection], limit: int) -> None:
    """Abort connections beyond the limit, first those that wait for their client for the longest time.

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


def _rank_for_abort(connection: _BoundedConnection, now: float) -> tuple[int, float]:
    """Return a sort key: a client that does not read, is idle or is slow to send, before one that is new.

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


class ConnectionAcceptor:
    """Accepts the connections of a listening socket in an event loop, and waits while no files are left."""

    def __init__(
        self, listening: socket.socket, make_protocol: Callable[[], asyncio.Protocol], errors: AcceptErrors
    ) -> None:
        self._listening, self._make_protocol, self._errors = listening, make_protocol, errors
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._opening: set[asyncio.Task[None]] = set()
        listening.setblocking(False)
        listening.listen(MAX_PENDING_CONNECTIONS)
        self._start()

    def close(self) -> None:
        """Accept no more connections; those that were accepted stay open."""
        self._loop.remove_reader(self._listening)
        if self._retry is not None:
            self._retry.cancel()

    async def wait_closed(self) -> None:
        """Wait until the accepted connections have their protocols."""
        if self._opening:
            await asyncio.wait(self._opening)

    def _start(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        """Accept the waiting connections, at most as many as one burst may have."""
        for _ in range(MAX_PENDING_CONNECTIONS):
            try:
                accepted, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_FILES:
                    raise
                self._errors.log_error(error)
                self._loop.remove_reader(self._listening)
                self._retry = self._loop.call_later(ACCEPT_RETRY_S, self._start)
                return
            task = self._loop.create_task(self._open_connection(accepted))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open_connection(self, accepted: socket.socket) -> None:
        try:
            accepted.setblocking(False)
            await self._loop.connect_accepted_socket(self._make_protocol, accepted)
        except OSError:  # the client is gone
            accepted.close()


class _LogInterval:
    """Decides when a repeated message is logged: the first time, and then once per interval."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._last, self._unlogged = seconds, -seconds, 0

    def count(self) -> int:
        """Count one more occurrence; return how many there are to log now, or 0 to log nothing yet."""
        self._unlogged += 1
        now = time.monotonic()
        if now - self._last < self._seconds:
            return 0
        unlogged, self._last, self._unlogged = self._unlogged, now, 0
        return unlogged


class RefusedRequests:
    """Logs requests that are not valid HTTP, once per interval: anyone can send many of them."""

    def __init__(self) -> None:
        self._interval = _LogInterval(REFUSAL_LOG_INTERVAL_S)

    def log_refusal(self, problem: str) -> None:
        """Log why a request was refused, unless another refusal was logged a short time ago."""
        if count := self._interval.count():
            log.warning(
                "an HTTP request was refused: %s (%d refused since this was last logged)", problem, count
            )


class AcceptErrors:
    """Logs failures to accept connections because no file descriptors are left, once per interval.

    asyncio waits a second before it accepts again, but reports every single attempt.
    """

    def __init__(self) -> None:
        self._interval = _LogInterval(ACCEPT_LOG_INTERVAL_S)

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set this object as the exception handler of the event loop."""
        loop.set_exception_handler(self)

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log a lack of file descriptors; pass any other error to the event loop's default handler."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _OUT_OF_FILES or "socket" not in context:
            loop.default_exception_handler(context)
            return
        self.log_error(error)

    def log_error(self, error: OSError) -> None:
        """Log a failure to accept a connection, unless one was logged a short time ago."""
        if count := self._interval.count():
            log.error(
                "cannot accept a connection: %s (%d times since this was last logged). "
                "Raise the limit of open files with `ulimit -n`, or close some connections.",
                *(error.strerror, count),
            )
