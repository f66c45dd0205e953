"""Sessions over HTTP: how many a client may have, and which one ends when there are too many.

A client that opens sessions and abandons them loses the oldest of its own. A session that is in use, by a
request, an open stream or a call in progress, is never ended to make room. Built on the SDK's manager.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from toolfold.gateway.tokens import ANYBODY, Client
from toolfold.sources.mcp.sdk import require_methods

MAX_SESSIONS = 2_000
MAX_SESSIONS_PER_CLIENT = 500
RETRY_AFTER_S = 5
_REPLACED = ("_handle_stateful_request", "_serve_opening_request", "_discard_session")
_SESSION_HEADER = b"mcp-session-id"
_TOO_MANY = b'{"error": "Too many sessions are in use. Close some of them, or try again later."}'

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def quota_key(client: Client, scope: Scope) -> str:
    """Whose number of sessions counts: a token's, or for anonymous clients a peer address's."""
    if client.name != ANYBODY:
        return client.id
    peer = scope.get("client") or ("", 0)
    return f"{client.id} {peer[0]}"


def limited_manager(
    base: type[Any], client_of: Callable[[Scope], Client], is_busy: Callable[[str], bool]
) -> type[Any]:
    """The SDK's session manager with limits. `is_busy` tells whether a session has a call in progress.

    Raises SourceError where the manager lacks a method that is replaced here.
    """
    require_methods(base, *_REPLACED)

    class LimitedSessionManager(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, max_sessions=MAX_SESSIONS, **options)
            self._quota_keys: dict[str, str] = {}
            self._last_used: dict[str, float] = {}
            self._requests: Counter[str] = Counter()
            """Session → requests and streams that are open."""
            self._opening: Counter[str] = Counter()
            """Quota key → requests that are about to open a session."""
            self._unopened: set[str] = set()
            """Sessions whose opening request is still being served; it is among those of `_opening`."""

        async def _handle_stateful_request(self, scope: Scope, receive: Any, send: Send) -> None:
            session = _session_id(scope)
            if session is not None:
                await self._serve_in(session, super()._handle_stateful_request(scope, receive, send))
                return
            key = quota_key(client_of(scope), scope)
            if not await self._make_room(key):
                await _refuse_session(send)
                return
            self._opening[key] += 1
            try:
                await super()._handle_stateful_request(scope, receive, send)
            finally:
                self._opening[key] -= 1
                self._opening += Counter()  # forget those that are at 0

        async def _serve_opening_request(
            self, transport: Any, scope: Scope, receive: Any, send: Send
        ) -> None:
            session = transport.mcp_session_id
            self._quota_keys[session] = quota_key(client_of(scope), scope)
            self._unopened.add(session)
            try:
                await self._serve_in(session, super()._serve_opening_request(transport, scope, receive, send))
            finally:
                self._unopened.discard(session)

        async def _serve_in(self, session: str, work: Awaitable[None]) -> None:
            """Serve a request of a session, which is in use meanwhile."""
            self._requests[session] += 1
            try:
                await work
            finally:
                self._requests[session] -= 1
                if session in self._server_instances:
                    self._last_used[session] = time.monotonic()
                else:
                    self._forget(session)

        async def _discard_session(self, session_id: str, transport: Any) -> None:
            await super()._discard_session(session_id, transport)
            self._forget(session_id)

        def _forget(self, session: str) -> None:
            self._quota_keys.pop(session, None)
            self._last_used.pop(session, None)
            if not self._requests[session]:
                del self._requests[session]

        async def _make_room(self, key: str) -> bool:
            """End the least recently used idle session where another would be too many."""
            open_ = (owner for each, owner in self._quota_keys.items() if each not in self._unopened)
            counts = Counter(open_) + self._opening
            if counts[key] >= MAX_SESSIONS_PER_CLIENT:
                return await self._evict(key)
            if counts.total() >= MAX_SESSIONS:
                return await self._evict(counts.most_common(1)[0][0])
            return True

        async def _evict(self, key: str) -> bool:
            """End the least recently used idle session of those that count for the key."""
            unused = [
                each for each, owner in self._quota_keys.items() if owner == key and not self._requests[each]
            ]
            unused.sort(key=lambda each: self._last_used.get(each, 0.0))
            oldest = next((each for each in unused if not is_busy(each)), None)
            if oldest is None:
                return False
            await self._discard_session(oldest, self._server_instances[oldest])
            return True

    return LimitedSessionManager


def _session_id(scope: Scope) -> str | None:
    return next(
        (value.decode("latin-1") for name, value in scope["headers"] if name == _SESSION_HEADER), None
    )


async def _refuse_session(send: Send) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(_TOO_MANY)).encode()),
        (b"retry-after", str(RETRY_AFTER_S).encode()),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": _TOO_MANY})
