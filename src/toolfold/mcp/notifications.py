"""Subscribe to notifications of MCP servers in the newest protocol revision, and renew subscriptions.

A subscription cannot be changed: to add a resource, a new one is opened before the old one is closed, so that
no notification is missed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

INITIAL_BACKOFF_S = 0.5
MAX_BACKOFF_S = 60.0
STABLE_AFTER_S = 60.0

Listen = Callable[..., Any]
"""The `listen` method of the SDK's client."""


class NotificationSubscription:
    """Subscription to a server's notifications; a background task opens it and renews it."""

    def __init__(
        self, listen: Callable[[], Any], on_event: Callable[[Any], None], on_open: Callable[[bool], None]
    ) -> None:
        """Subscribe to a server's notifications; `on_open` is called each time the subscription opens."""
        self._listen, self._on_event, self._on_open = listen, on_event, on_open
        self._is_settled = asyncio.Event()
        self._was_open = False
        self._refusal: Exception | None = None
        self._task = asyncio.create_task(self._run())

    async def wait_until_open(self) -> None:
        """Wait until the subscription is open. Raises the server's error if the server refuses it."""
        await self._is_settled.wait()
        if self._refusal is not None and not self._was_open:
            raise self._refusal

    def close(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        backoff = INITIAL_BACKOFF_S
        while True:
            started = time.monotonic()
            try:
                await self._listen_once()
            except Exception as error:  # other failures are noticed by keepalive and calls
                self._refusal = error
            self._is_settled.set()
            if not self._was_open:
                return  # servers need not support subscriptions
            backoff = (
                INITIAL_BACKOFF_S
                if time.monotonic() - started > STABLE_AFTER_S
                else min(MAX_BACKOFF_S, 2 * backoff)
            )
            await asyncio.sleep(backoff)

    async def _listen_once(self) -> None:
        """Open the subscription and handle its events until it ends."""
        async with self._listen() as events:
            was_open, self._was_open = self._was_open, True
            self._is_settled.set()
            self._on_open(was_open)
            async for event in events:
                self._on_event(event)


class ResourceSubscriptions:
    """All resource subscriptions of one connection, combined in one request to the server."""

    def __init__(self, listen: Listen, on_update: Callable[[str], None]) -> None:
        """Create a subscription without resources; `on_update` gets the URI of each changed resource."""
        self._listen, self._on_update = listen, on_update
        self._uris: frozenset[str] = frozenset()
        self._subscription: NotificationSubscription | None = None
        self._lock = asyncio.Lock()
        self._is_closed = False

    async def set_subscribed(self, uri: str, *, subscribe: bool) -> None:
        """Subscribe to a resource or unsubscribe from it. Raises the server's error if the server refuses."""
        async with self._lock:
            uris = self._uris | {uri} if subscribe else self._uris - {uri}
            if uris == self._uris:
                return
            subscription = await self._open_subscription(uris) if uris else None
            if self._subscription is not None:
                self._subscription.close()
            self._uris, self._subscription = uris, subscription
            if self._is_closed:  # closed while the subscription was opened
                self.close()

    def close(self) -> None:
        """Close the subscription, even while it is being opened."""
        self._is_closed = True
        if self._subscription is not None:
            self._subscription.close()

    async def _open_subscription(self, uris: frozenset[str]) -> NotificationSubscription:
        def on_open(reopened: bool) -> None:
            for uri in uris if reopened else ():  # updates may have been missed
                self._on_update(uri)

        listen = partial(self._listen, resource_subscriptions=sorted(uris))
        subscription = NotificationSubscription(
            listen, lambda event: self._on_update(str(event.uri)), on_open
        )
        try:
            await subscription.wait_until_open()
        except BaseException:
            subscription.close()
            raise
        return subscription
