"""Limit the number of MCP sessions of each HTTP client, and choose which session to close first.

A client that opens sessions and abandons them loses its own oldest ones. A session that is in use, by a
request, an open stream or a call in progress, is never closed to make room. Built on the SDK's manager.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from toolfold.mcp.sdk_compat import defer_event_streams, make_hookable_manager
from toolfold.serving.gateway.client_tokens import ANONYMOUS, GatewayClient
from toolfold.serving.gateway.request_bodies import Receive

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp.server.streamable_http import StreamableHTTPServerTransport
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

MAX_HTTP_SESSIONS = 2_000
MAX_HTTP_SESSIONS_PER_CLIENT = 500
RETRY_AFTER_S = 5
EVENT_STREAM_DELAY_S = 1.0
"""Requests that take longer are answered with an event stream, so that the client sees them running."""
SESSION_SCOPE_KEY = "toolfold.session"
"""Key of the ASGI scope with the id of a session that its client has got before the gateway had loaded."""
_SESSION_HEADER = b"mcp-session-id"
_TOO_MANY_SESSIONS = b'{"error": "Too many sessions are in use. Close some of them, or try again later."}'

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def quota_key(client: GatewayClient, scope: Scope) -> str:
    """Return the key for counting a client's sessions: its token, or its IP address if it has no token."""
    if client.name != ANONYMOUS:
        return client.id
    peer = scope.get("client") or ("", 0)
    return f"{client.id} {peer[0]}"


class SessionUse:
    """Counts the open sessions of each client, and tracks which sessions are in use."""

    def __init__(self, is_busy: Callable[[str], bool]) -> None:
        """Start without sessions; `is_busy` returns True for a session with a call in progress."""
        self._is_busy = is_busy
        self._quota_keys: dict[str, str] = {}
        self._last_used: dict[str, float] = {}
        self._requests: Counter[str] = Counter()
        """Session → number of open requests and streams."""
        self._opening: Counter[str] = Counter()
        """Quota key → number of requests that are about to open a session."""
        self._unopened: set[str] = set()
        """Sessions whose opening request is still being served; they are counted in `_opening`."""

    @contextmanager
    def count_opening(self, key: str) -> Iterator[None]:
        """Count a request that is about to open a session."""
        self._opening[key] += 1
        try:
            yield
        finally:
            self._opening[key] -= 1
            self._opening += Counter()  # drops the keys with a count of 0

    @contextmanager
    def add_session(self, session: str, key: str) -> Iterator[None]:
        """Register a session, and count it as still being opened during the `with` block."""
        self._quota_keys[session] = key
        self._unopened.add(session)
        try:
            yield
        finally:
            self._unopened.discard(session)

    @contextmanager
    def count_request(self, session: str, is_open: Callable[[str], bool]) -> Iterator[None]:
        """Count a request as in progress; its session is in use until the request ends."""
        self._requests[session] += 1
        try:
            yield
        finally:
            self._requests[session] -= 1
            if is_open(session):
                self._last_used[session] = time.monotonic()
            else:
                self.remove_session(session)

    def remove_session(self, session: str) -> None:
        """Forget a closed session."""
        self._quota_keys.pop(session, None)
        self._last_used.pop(session, None)
        if not self._requests[session]:
            del self._requests[session]

    def find_crowded_key(self, key: str) -> str | None:
        """Return the quota key that must close a session before `key` can open one; None if there is room."""
        open_ = (owner for each, owner in self._quota_keys.items() if each not in self._unopened)
        counts = Counter(open_) + self._opening
        if counts[key] >= MAX_HTTP_SESSIONS_PER_CLIENT:
            return key
        if counts.total() >= MAX_HTTP_SESSIONS:
            return counts.most_common(1)[0][0]
        return None

    def find_oldest_idle(self, key: str) -> str | None:
        """Return the least recently used idle session of this quota key; None if all sessions are in use."""
        unused = [
            each for each, owner in self._quota_keys.items() if owner == key and not self._requests[each]
        ]
        unused.sort(key=lambda each: self._last_used.get(each, 0.0))
        return next((each for each in unused if not self._is_busy(each)), None)


def make_limited_manager(
    base: type[StreamableHTTPSessionManager],
    client_of: Callable[[Scope], GatewayClient],
    is_busy: Callable[[str], bool],
) -> type[Any]:
    """Return a subclass of the SDK's session manager that limits the number of sessions.

    Raises SourceError if the manager lacks a method that is overridden here.
    """
    hookable = make_hookable_manager(base)
    use = SessionUse(is_busy)

    class LimitedSessionManager(hookable):  # type: ignore[misc, valid-type]
        def __init__(self, app: Server[Any], **options: Any) -> None:
            super().__init__(app, max_sessions=MAX_HTTP_SESSIONS, **options)

        async def handle_stateful_request(self, scope: Scope, receive: Receive, send: Send) -> None:
            if (session := _session_id(scope)) is not None:
                with use.count_request(session, self.open_sessions.__contains__):
                    await super().handle_stateful_request(scope, receive, send)
                return
            key = quota_key(client_of(scope), scope)
            if not await self._make_room(key):
                await _refuse_session(send)
                return
            with use.count_opening(key):
                await super().handle_stateful_request(scope, receive, send)

        async def serve_opening_request(
            self,
            http_transport: StreamableHTTPServerTransport,
            scope: Scope,
            receive: Receive,
            send: Send,
        ) -> None:
            if given := scope.get(SESSION_SCOPE_KEY):
                self.rename_session(http_transport, given)
            session = http_transport.mcp_session_id
            assert session is not None  # noqa: S101 - the manager has just given it one
            defer_event_streams(http_transport, EVENT_STREAM_DELAY_S)
            with (
                use.add_session(session, quota_key(client_of(scope), scope)),
                use.count_request(session, self.open_sessions.__contains__),
            ):
                await super().serve_opening_request(http_transport, scope, receive, send)

        async def discard_session(self, session_id: str, transport: StreamableHTTPServerTransport) -> None:
            await super().discard_session(session_id, transport)
            use.remove_session(session_id)

        async def discard_open_session(self, session_id: str) -> None:
            """Close a session if it is open."""
            if (transport := self.open_sessions.get(session_id)) is not None:
                await self.discard_session(session_id, transport)

        async def _make_room(self, key: str) -> bool:
            """Close an idle session if a limit is reached; return False if no session is idle."""
            crowded = use.find_crowded_key(key)
            if crowded is None:
                return True
            oldest = use.find_oldest_idle(crowded)
            if oldest is None:
                return False
            await self.discard_session(oldest, self.open_sessions[oldest])
            return True

    return LimitedSessionManager


def _session_id(scope: Scope) -> str | None:
    return next(
        (value.decode("latin-1") for name, value in scope["headers"] if name == _SESSION_HEADER), None
    )


async def _refuse_session(send: Send) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(_TOO_MANY_SESSIONS)).encode()),
        (b"retry-after", str(RETRY_AFTER_S).encode()),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": _TOO_MANY_SESSIONS})
