"""Resource subscriptions of gateway clients, created by a request or by an open event stream.

A server sees one client, the gateway. It gets a `resources/subscribe` for each subscription of a client, and
a `resources/unsubscribe` only when the last client has unsubscribed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from typing import Any

from toolfold.serving.gateway.client_sessions import ClientSession

SUBSCRIBE_TIMEOUT_S = 5.0
"""How long opening a stream waits for servers to confirm. A server that hangs must not block the stream."""
MAX_CONCURRENT_REQUESTS = 10
"""Concurrent subscribe requests to one server: a client may have only so many requests in progress."""

RequestServer = Callable[[ClientSession, str, str, str], Awaitable[object]]
"""Sends a request: the client session, the server, the method, the server's own URI of the resource."""


class ClientSubscriptions:
    """Resource subscriptions of all clients of a gateway."""

    def __init__(self, sessions: Mapping[str, ClientSession], request_server: RequestServer) -> None:
        self._sessions, self._request_server = sessions, request_server
        self._background_tasks: set[asyncio.Task[None]] = set()

    async def subscribe(self, session: ClientSession, uri: str) -> None:
        """Subscribe a client to a resource. Raises OutOfScope or the server's error."""
        session.resolve_resource(uri)
        session.subscriptions[uri] += 1  # before the request: another client's unsubscribe must not end it
        try:
            await self._send_subscribe(session, uri)
        except asyncio.CancelledError:
            self._run_in_background(self._unsubscribe_all(session, [uri]))
            raise

    async def _send_subscribe(self, session: ClientSession, uri: str) -> None:
        """Send the subscribe request for a URI; remove the subscription if the server refuses.

        After a cancellation it stays counted until it is unsubscribed: the server may have accepted it.
        """
        try:
            server, own = session.resolve_resource(uri)
            await self._request_server(session, server, "resources/subscribe", own)
        except Exception:
            _decrement(session, uri)
            raise

    async def unsubscribe(self, session: ClientSession, uri: str, *, entirely: bool = False) -> None:
        """Remove one of a client's subscriptions to a resource, or all of them with `entirely`."""
        server, own = session.resolve_resource(uri)
        _decrement(session, uri, entirely=entirely)
        if not any(uri in each.subscriptions for each in self._sessions.values()):
            await self._request_server(session, server, "resources/unsubscribe", own)

    @asynccontextmanager
    async def while_open(self, session: ClientSession, uris: Sequence[str]) -> AsyncIterator[None]:
        """Subscribe to resources while a stream is open; skip resources that a server refuses."""
        by_server = _group_by_server(session, uris)
        unrequested, requested = {uri for each in by_server for uri in each}, set[str]()
        session.subscriptions.update(unrequested)

        async def subscribe_all(remaining: Iterator[str]) -> None:
            for uri in remaining:
                unrequested.discard(uri)
                requested.add(uri)
                try:
                    await self._send_subscribe(session, uri)
                except Exception:
                    requested.discard(uri)

        queues = map(iter, by_server)
        subscribing = asyncio.gather(
            *(subscribe_all(queue) for queue in queues for _ in range(MAX_CONCURRENT_REQUESTS))
        )
        subscribing.add_done_callback(_retrieve_exception)
        try:
            # The remaining requests continue while the stream is open.
            await asyncio.wait({subscribing}, timeout=SUBSCRIBE_TIMEOUT_S)
            yield
        finally:
            subscribing.cancel()
            for uri in unrequested:
                _decrement(session, uri)
            # In the background: the stream must end at once, and may end by cancellation.
            self._run_in_background(self._unsubscribe_all(session, tuple(requested)))

    def drop_session(self, session: ClientSession) -> None:
        """Remove a disconnected client's subscriptions; unsubscribe from resources that no client needs."""
        if session.subscriptions:
            self._run_in_background(self._unsubscribe_dropped(session, tuple(session.subscriptions)))

    async def _unsubscribe_all(self, session: ClientSession, uris: Collection[str]) -> None:
        for uri in uris:
            if self._sessions.get(session.key) is not session:
                return  # it was closed, which ends all of its subscriptions
            with contextlib.suppress(Exception):
                await self.unsubscribe(session, uri)

    async def _unsubscribe_dropped(self, session: ClientSession, uris: Collection[str]) -> None:
        for uri in uris:
            with contextlib.suppress(Exception):
                if session.is_on_shared_server(uri):  # a server of its own has ended with the session
                    await self.unsubscribe(session, uri, entirely=True)

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)


def _group_by_server(session: ClientSession, uris: Sequence[str]) -> Collection[list[str]]:
    """Group the readable URIs by server, so that an unresponsive server does not delay the others."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for uri, server in session.find_readable(uris).items():
        groups[server].append(uri)
    return groups.values()


def _retrieve_exception(done: asyncio.Future[Any]) -> None:
    """Mark the exception as retrieved, so that asyncio does not log a cancellation as an error."""
    if not done.cancelled():
        done.exception()


def _decrement(session: ClientSession, uri: str, *, entirely: bool = False) -> None:
    remaining = 0 if entirely else session.subscriptions[uri] - 1
    if remaining > 0:
        session.subscriptions[uri] = remaining
    else:
        session.subscriptions.pop(uri, None)
