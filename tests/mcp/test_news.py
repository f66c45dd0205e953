"""What is listened to ends with the connection that it came over, whatever was just under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from toolfold.sources.mcp.news import Followed


class Server:
    """One that acknowledges a subscription when it is let to, and then says nothing."""

    def __init__(self) -> None:
        self.may_answer, self.open = asyncio.Event(), 0

    @asynccontextmanager
    async def listen(self, **_wanted: Any) -> AsyncIterator[AsyncIterator[Any]]:
        await self.may_answer.wait()
        self.open += 1
        try:
            yield silence()
        finally:
            self.open -= 1


async def silence() -> AsyncIterator[Any]:
    await asyncio.Event().wait()
    yield


async def test_a_subscription_that_opens_while_the_connection_ends_is_ended_with_it() -> None:
    server = Server()
    followed = Followed(server.listen, lambda _uri: None)
    following = asyncio.create_task(followed.change("note://a", wanted=True))
    await asyncio.sleep(0)
    followed.end()
    server.may_answer.set()
    await following
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.wait(others, timeout=60) if others else None
    assert server.open == 0
