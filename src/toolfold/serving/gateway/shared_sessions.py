"""Continue MCP sessions over HTTP on another replica, if the replicas share a database.

Stores with which message a client has opened a session. A replica that gets a request of a session that it
does not have opens it again with that message, for the same client only. What a session has collected in the
memory of a replica, such as grants "for this session" and subscriptions, is not moved.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from toolfold.serving.gateway.http_sessions import SESSION_SCOPE_KEY, Scope, Send
from toolfold.serving.gateway.request_bodies import Receive, replay_body
from toolfold.serving.gateway.server import CLIENT_SCOPE_KEY
from toolfold.state.database import Database, DatabaseError, clean_text

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

App = Callable[[Scope, Receive, Send], Awaitable[None]]
MAX_OPENING_BYTES = 16_384
"""Longest message with which a session that can be moved is opened."""
MAX_AGE_S = 24 * 3600.0
"""Time after which a stored session that nobody has continued is deleted."""
MAX_SESSIONS_PER_CLIENT = 5_000
_PRUNE_EVERY = 200
OPENING_TIMEOUT_S = 30.0
TOPIC = "mcp_sessions"
_SESSION_HEADER = b"mcp-session-id"
_INITIALIZED = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()


class SharedSessions:
    """MCP client sessions that any replica can continue."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._opening: dict[str, asyncio.Lock] = {}
        self._stored = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the gateway, once it has served a request."""

    def observe(
        self,
        app: App,
        open_sessions: Callable[[], Mapping[str, Any]],
        discard_session: Callable[[str], Awaitable[None]],
    ) -> App:
        """Wrap the gateway's app so that its sessions are stored for other replicas.

        `open_sessions` returns those of this replica, and `discard_session` closes one of them.
        """
        self._follow_ends(open_sessions, discard_session)

        async def handle(scope: Scope, receive: Receive, send: Send) -> None:
            self._loop = asyncio.get_running_loop()
            session = _find_session(scope["headers"])
            if not session:
                await self._open(app, scope, receive, send)
                return
            if session not in open_sessions():
                await self._continue(app, session, scope, open_sessions, discard_session)
            is_end = scope["method"] == "DELETE"
            send_reply = self._store_end(session, scope, send, discard_session) if is_end else send
            await app(scope, receive, send_reply)

        return handle

    async def _open(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request without a session id; store the session it opens before replying."""
        if scope["method"] != "POST" or scope.get(SESSION_SCOPE_KEY):
            await app(scope, receive, send)
            return
        body = (await receive())["body"]
        is_storable = b'"initialize"' in body and len(body) <= MAX_OPENING_BYTES

        async def send_stored(message: MutableMapping[str, Any]) -> None:
            if is_storable and message["type"] == "http.response.start" and message["status"] == 200:
                session = _find_session(message["headers"])
                if session:
                    client = scope[CLIENT_SCOPE_KEY].id
                    await self._run(lambda: self._insert(session, client, body))
            await send(message)

        await app(scope, replay_body(body, receive), send_stored)

    def _store_end(
        self, session: str, scope: Scope, send: Send, discard_session: Callable[[str], Awaitable[None]]
    ) -> Send:
        """Return a `send` function that stores the end of a session before it responds to the client.

        If the end cannot be stored, the response is 503, because other replicas would continue the session.
        """
        is_refused = False

        async def send_ended(message: MutableMapping[str, Any]) -> None:
            nonlocal is_refused
            if is_refused:
                return
            if message["type"] == "http.response.start" and message["status"] == 200:
                try:
                    await asyncio.to_thread(self._end, session, scope[CLIENT_SCOPE_KEY].id)
                except DatabaseError as error:
                    log.warning("the end of a client's session cannot be stored: %s", error)
                    is_refused = True
                    await discard_session(session)  # so that a repeated request opens it and ends it again
                    await _send_unavailable(send)
                    return
            await send(message)

        return send_ended

    async def _continue(
        self,
        app: App,
        session: str,
        scope: Scope,
        open_sessions: Callable[[], Mapping[str, Any]],
        discard_session: Callable[[str], Awaitable[None]],
    ) -> None:
        """Open another replica's session on this replica, if the client of this request owns it."""
        lock = self._opening.setdefault(session, asyncio.Lock())
        try:
            async with lock:
                if session in open_sessions():
                    return
                client = scope[CLIENT_SCOPE_KEY].id
                body = await self._run(lambda: self._find_opening(session, client))
                if body is None:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(OPENING_TIMEOUT_S):
                        await _send_again(app, scope, body, {SESSION_SCOPE_KEY: session}, "")
                        await _send_again(app, scope, _INITIALIZED, {}, session)
                # The client may have ended it meanwhile, before this replica could notice.
                if await self._run(lambda: self._find_opening(session, client)) is None:
                    await discard_session(session)
                if session in open_sessions():
                    log.info(
                        "the session of client %s continues on this replica", scope[CLIENT_SCOPE_KEY].name
                    )
        finally:
            if not lock.locked():
                self._opening.pop(session, None)

    async def _run(self, work: Callable[[], bytes | None]) -> bytes | None:
        """Run a database function in a thread; if the database fails, log a warning and return None."""
        try:
            return await asyncio.to_thread(work)
        except DatabaseError as error:
            log.warning("sessions of clients cannot be moved between replicas now: %s", error)
            return None

    def _insert(self, session: str, client: str, body: bytes) -> None:
        self._database.execute(
            "INSERT INTO mcp_sessions (id, client, opening, used) VALUES (%s, %s, %s, %s)"
            " ON CONFLICT (id) DO NOTHING",
            (clean_text(session), clean_text(client), body, time.time()),
        )
        self._stored += 1
        if self._stored % _PRUNE_EVERY == 1:
            self._prune(client)

    def _prune(self, client: str) -> None:
        self._database.execute("DELETE FROM mcp_sessions WHERE used < %s", (time.time() - MAX_AGE_S,))
        self._database.execute(
            "DELETE FROM mcp_sessions WHERE id IN (SELECT id FROM mcp_sessions WHERE client = %s"
            " ORDER BY used DESC OFFSET %s)",
            (clean_text(client), MAX_SESSIONS_PER_CLIENT),
        )

    def _find_opening(self, session: str, client: str) -> bytes | None:
        rows = self._database.run(
            lambda cursor: cursor.execute(
                "UPDATE mcp_sessions SET used = %s WHERE id = %s AND client = %s AND NOT ended"
                " RETURNING opening",
                (time.time(), clean_text(session), clean_text(client)),
            ).fetchall()
        )
        return bytes(rows[0]["opening"]) if rows else None

    def _end(self, session: str, client: str) -> None:
        """Record that a client has ended its session, so that no replica continues it.

        The session of another client is left unchanged.
        """

        def end(cursor: Any) -> None:
            cursor.execute(
                "UPDATE mcp_sessions SET ended = true WHERE id = %s AND client = %s AND NOT ended",
                (clean_text(session), clean_text(client)),
            )
            if cursor.rowcount:
                cursor.execute("SELECT pg_notify('toolfold_changes', %s)", (TOPIC,))

        self._database.run(end)

    def _follow_ends(
        self,
        open_sessions: Callable[[], Mapping[str, Any]],
        discard_session: Callable[[str], Awaitable[None]],
    ) -> None:
        """Close sessions on this replica that clients have ended on other replicas."""

        async def discard(ids: list[str]) -> None:
            for each in ids:
                if each in open_sessions():
                    await discard_session(each)

        def read_ends() -> None:
            rows = self._database.query(
                "SELECT id FROM mcp_sessions WHERE ended AND id = ANY(%s)", (list(open_sessions()),)
            )
            loop = self._loop
            if rows and loop is not None and not loop.is_closed():
                asyncio.run_coroutine_threadsafe(discard([row["id"] for row in rows]), loop)

        self._database.on_change(TOPIC, read_ends)


async def _send_unavailable(send: Send) -> None:
    body = b"The session cannot be ended now, because the database does not answer. Try again later."
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_again(app: App, scope: Scope, body: bytes, extra: dict[str, Any], session: str) -> None:
    """Replay an earlier message of the client to the app, and discard the response."""
    headers = [
        (name, value)
        for name, value in scope["headers"]
        if name not in (_SESSION_HEADER, b"content-length", b"content-type", b"accept")
    ]
    headers += [
        (b"content-length", str(len(body)).encode()),
        (b"content-type", b"application/json"),
        (b"accept", b"application/json, text/event-stream"),
    ]
    if session:
        headers.append((_SESSION_HEADER, session.encode("latin-1")))

    async def receive() -> MutableMapping[str, Any]:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async def send(_message: MutableMapping[str, Any]) -> None:
        return None

    await app({**scope, "method": "POST", "headers": headers, **extra}, replay_body(body, receive), send)


def _find_session(headers: list[tuple[bytes, bytes]]) -> str:
    return next((value.decode("latin-1") for name, value in headers if name.lower() == _SESSION_HEADER), "")
