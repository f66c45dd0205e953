"""Accept HTTP connections, even when file descriptors run out, and limit how often errors are logged."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from toolfold.serving.gateway.listening import MAX_PENDING_CONNECTIONS

if TYPE_CHECKING:
    import uvicorn

    from toolfold.serving.gateway.http_protocol import LimitedProtocol

log = logging.getLogger(__name__)

KEEP_ALIVE_TIMEOUT_S = 75
"""Time after which a connection without a request is closed. Load balancers close theirs after 60 s and must
be the first: otherwise they could send a request over a connection that is just being closed here.
"""
ACCEPT_LOG_INTERVAL_S = 60.0
REFUSAL_LOG_INTERVAL_S = 60.0
ACCEPT_RETRY_S = 1.0
"""Time after which connections are accepted again if no files were left."""
_OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def make_connection(server: uvicorn.Server) -> LimitedProtocol:
    """Create the protocol object for a connection to a server that uses `make_bounded_protocol`."""
    made = server.config.http_protocol_class(  # type: ignore[call-arg]
        config=server.config, server_state=server.server_state, app_state=server.lifespan.state
    )
    return cast("LimitedProtocol", made)


class ConnectionAcceptor:
    """Accepts connections of a listening socket in an event loop; waits if no file descriptors are left."""

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
        """Stop accepting connections; accepted connections stay open."""
        self._loop.remove_reader(self._listening)
        if self._retry is not None:
            self._retry.cancel()

    async def wait_closed(self) -> None:
        """Wait until all accepted connections have been passed to their protocols."""
        if self._opening:
            await asyncio.wait(self._opening)

    def _start(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        """Accept the pending connections, up to the maximum burst size."""
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
    """Decides when to log a repeated message: the first time, and then once per interval."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._last, self._unlogged = seconds, -seconds, 0

    def count(self) -> int:
        """Count one occurrence; return the number of occurrences to log now, or 0 to log nothing yet."""
        self._unlogged += 1
        now = time.monotonic()
        if now - self._last < self._seconds:
            return 0
        unlogged, self._last, self._unlogged = self._unlogged, now, 0
        return unlogged


class RefusedRequests:
    """Logs refused requests, which are not valid HTTP, at most once per interval."""

    def __init__(self) -> None:
        self._interval = _LogInterval(REFUSAL_LOG_INTERVAL_S)

    def log_refusal(self, problem: str) -> None:
        """Log why a request was refused, unless another refusal was logged recently."""
        if count := self._interval.count():
            log.warning(
                "an HTTP request was refused: %s (%d refused since this was last logged)", problem, count
            )


class AcceptErrors:
    """Logs accept failures caused by a lack of file descriptors, at most once per interval.

    asyncio waits a second before it accepts again, but reports every single attempt.
    """

    def __init__(self) -> None:
        self._interval = _LogInterval(ACCEPT_LOG_INTERVAL_S)

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Register this object as the exception handler of the event loop."""
        loop.set_exception_handler(self)

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log a lack of file descriptors; pass any other error to the event loop's default handler."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _OUT_OF_FILES or "socket" not in context:
            loop.default_exception_handler(context)
            return
        self.log_error(error)

    def log_error(self, error: OSError) -> None:
        """Log a failure to accept a connection, unless another failure was logged recently."""
        if count := self._interval.count():
            log.error(
                "cannot accept a connection: %s (%d times since this was last logged). "
                "Raise the limit of open files with `ulimit -n`, or close some connections.",
                *(error.strerror, count),
            )
