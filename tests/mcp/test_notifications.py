"""Subscriptions end with their connection, even if they are just being opened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from toolfold.mcp.notifications import ResourceSubscriptions


class Server:
    """Server that acknowledges a subscription when allowed, and then sends nothing."""

    def __init__(self) -> None:
        self.may_answer, self.open = asyncio.Event(), 0

    @asynccontextmanager
    async def listen(self, **_wanted: Any) -> AsyncIterator[AsyncIterator[Any]]:
        await self.may_answer.wait()
        self.open += 1
        try:
            yield no_events()
        finally:
            self.open -= 1


async def no_events() -> AsyncIterator[Any]:
    await asyncio.Event().wait()
    yield


async def test_resource_subscription_opened_while_the_connection_closes_is_closed() -> None:
    server = Server()
    subscriptions = ResourceSubscriptions(server.listen, lambda _uri: None)
    subscribing = asyncio.create_task(subscriptions.set_subscribed("note://a", subscribe=True))
    await asyncio.sleep(0)
    subscriptions.close()
    server.may_answer.set()
    await subscribing
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.wait(others, timeout=60) if others else None
    assert server.open == 0
