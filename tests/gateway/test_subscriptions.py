"""Clients of both eras follow resources of servers of both: each is told, no server longer than needed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import mcp_types
import pytest
from mcp import Client, MCPError

from tests.gateway.harness import ERAS, PATIENCE, Served, serving, until, words
from toolfold.gateway import subscriptions

SERVERS = Path(__file__).parents[1] / "mcp"
NEWEST = "2026-07-28"
Follow = Callable[..., Any]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    old = {"command": sys.executable, "args": [str(SERVERS / "attack_server.py"), "--name", "old"]}
    new = {"command": sys.executable, "args": [str(SERVERS / "modern_server.py")]}
    with serving(tmp_path_factory.mktemp("following"), {"old": old, "new": new}) as served:
        yield served


class Follower:
    """A client that follows resources in the way of its era."""

    def __init__(self, client: Client, heard: list[str]) -> None:
        self.client, self.heard = client, heard
        self._streams: dict[str, asyncio.Task[None]] = {}

    async def follow(self, uri: str) -> None:
        if self.client.protocol_version != NEWEST:
            params = mcp_types.SubscribeRequestParams(uri=uri)
            await self._ask(mcp_types.SubscribeRequest(params=params))
            return
        ready = asyncio.Event()
        self._streams[uri] = asyncio.create_task(self._listen(uri, ready))
        await ready.wait()

    async def leave(self, uri: str) -> None:
        if self.client.protocol_version != NEWEST:
            params = mcp_types.UnsubscribeRequestParams(uri=uri)
            await self._ask(mcp_types.UnsubscribeRequest(params=params))
        elif (stream := self._streams.pop(uri, None)) is not None:
            stream.cancel()
            await asyncio.wait({stream})

    async def end(self) -> None:
        for uri in list(self._streams):
            await self.leave(uri)

    async def _listen(self, uri: str, ready: asyncio.Event) -> None:
        async with self.client.listen(resource_subscriptions=[uri]) as events:
            ready.set()
            async for event in events:
                self.heard.append(str(getattr(event, "uri", "")))

    async def _ask(self, request: Any) -> None:
        await self.client.session.send_request(request, mcp_types.EmptyResult)


@asynccontextmanager
async def follower(served: Served, era: str) -> AsyncIterator[Follower]:
    heard: list[str] = []

    async def hear(message: Any) -> None:
        if era != NEWEST and isinstance(message, mcp_types.ResourceUpdatedNotification):
            heard.append(str(message.params.uri))

    token = served.tokens.add(f"follower-{len(served.tokens.list_clients())}")
    async with served.client(era, token=token, message_handler=hear) as client:
        following = Follower(client, heard)
        try:
            yield following
        finally:
            await following.end()


async def touch(client: Client, server: str, name: str = "secret") -> None:
    """Let a server say that one of its notes has changed."""
    if server == "old":
        await client.call_tool("old_echo", {"text": "update"})
    else:
        await client.call_tool("new_touch", {"name": name})


async def came_to_pass(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(until, condition)


def log_of(served: Served, server: str) -> str:
    file = served.runtime.config.paths.state_dir / "mcp" / "logs" / f"{server}.log"
    return file.read_text() if file.exists() else ""


@pytest.mark.parametrize("server", ["old", "new"])
@pytest.mark.parametrize("era", ERAS)
async def test_who_follows_a_resource_is_told_that_it_changed(served: Served, era: str, server: str) -> None:
    uri = f"{server}+note://secret"
    async with follower(served, era) as one:
        await one.follow(uri)
        await touch(one.client, server)
        await came_to_pass(lambda: one.heard)
        assert set(one.heard) == {uri}


@pytest.mark.parametrize("era", ERAS)
async def test_one_resource_more_or_less_changes_nothing_for_the_others(served: Served, era: str) -> None:
    a, b = "new+note://a", "new+note://b"
    async with follower(served, era) as one, follower(served, era) as other:
        await one.follow(a)
        await one.follow(b)
        await other.follow(b)
        await one.leave(b)
        for name in ("b", "a"):
            await touch(one.client, "new", name)
        await came_to_pass(lambda: a in one.heard and b in other.heard)
        assert set(one.heard) == {a}
        assert set(other.heard) == {b}


async def test_a_server_that_takes_its_time_is_followed_while_the_stream_is_open(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "SUBSCRIBE_TIMEOUT_S", 0.0)
    async with follower(served, NEWEST) as one:
        await one.follow("new+note://slow")
        async with asyncio.timeout(60):
            while not one.heard:
                await touch(one.client, "new", "slow")
                await asyncio.sleep(0.05)
        assert set(one.heard) == {"new+note://slow"}


@pytest.mark.parametrize("era", ERAS)
async def test_what_is_followed_is_followed_also_after_the_server_was_opened_anew(
    served: Served, era: str
) -> None:
    uri = f"new+note://lasting-{era}"
    async with follower(served, era) as one:
        await one.follow(uri)
        await asyncio.to_thread(served.runtime.mcp.restart, "new")
        await came_to_pass(lambda: one.heard)  # it may have changed meanwhile
        one.heard.clear()
        await touch(one.client, "new", f"lasting-{era}")
        await came_to_pass(lambda: one.heard)
        assert set(one.heard) == {uri}


@pytest.mark.parametrize("era", ERAS)
async def test_a_server_is_asked_no_longer_when_nobody_follows_any_more(tmp_path: Path, era: str) -> None:
    entry = {"command": sys.executable, "args": [str(SERVERS / "attack_server.py"), "--name", "old"]}
    with serving(tmp_path, {"old": entry}) as served:
        uri = "old+note://secret"
        async with follower(served, era) as one, follower(served, era) as other:
            await one.follow(uri)
            await other.follow(uri)
            await came_to_pass(lambda: "subscribed note://secret" in log_of(served, "old"))
            await one.leave(uri)
            await touch(other.client, "old")
            await came_to_pass(lambda: other.heard)
            assert "unsubscribed" not in log_of(served, "old")
            await other.leave(uri)
            await came_to_pass(lambda: "unsubscribed note://secret" in log_of(served, "old"))


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_goes_without_a_word_follows_nothing_any_more(tmp_path: Path, era: str) -> None:
    entry = {"command": sys.executable, "args": [str(SERVERS / "attack_server.py"), "--name", "old"]}
    with serving(tmp_path, {"old": entry}) as served:
        async with follower(served, era) as one:
            await one.follow("old+note://secret")
            await came_to_pass(lambda: "subscribed note://secret" in log_of(served, "old"))
        await came_to_pass(lambda: "unsubscribed note://secret" in log_of(served, "old"))


async def test_as_many_as_may_be_followed_are_followed_and_none_after_the_stream(tmp_path: Path) -> None:
    entry = {"command": sys.executable, "args": [str(SERVERS / "attack_server.py"), "--name", "old"]}
    with serving(tmp_path, {"old": entry}) as served:
        async with served.client(NEWEST, token=served.tokens.add("one")) as client:
            wanted = [f"old+note://{place}" for place in range(1_000)]
            async with client.listen(resource_subscriptions=[*wanted[:-1], wanted[0]]):
                assert await followed(client) == 999
                async with client.listen(resource_subscriptions=["old+note://more", *wanted[:2]]):
                    assert await followed(client) == 1_000
                    async with client.listen(resource_subscriptions=[wanted[-1], wanted[0]]) as more:
                        assert more.honored.resource_subscriptions == [wanted[0]]
            await until_nothing_is_followed(client)


async def test_streams_that_begin_at_once_follow_no_more_than_one_after_another(tmp_path: Path) -> None:
    entry = {"command": sys.executable, "args": [str(SERVERS / "attack_server.py"), "--name", "old"]}
    with serving(tmp_path, {"old": entry}) as served:
        async with served.client(NEWEST, token=served.tokens.add("one")) as client:
            open_ones: list[int] = []

            async def listen(stream: int) -> None:
                uris = [f"old+note://{stream}-{place}" for place in range(600)]
                async with client.listen(resource_subscriptions=uris) as events:
                    open_ones.append(len(events.honored.resource_subscriptions or ()))
                    await asyncio.Event().wait()

            streams = [asyncio.create_task(listen(each)) for each in range(4)]
            await came_to_pass(lambda: len(open_ones) == 4)
            assert sum(open_ones) == await followed(client) == 1_000
            for stream in streams:
                stream.cancel()
            await asyncio.wait(streams)
            await until_nothing_is_followed(client)


async def test_streams_that_are_cut_while_they_begin_leave_nothing_followed(tmp_path: Path) -> None:
    entry = {"command": sys.executable, "args": [str(SERVERS / "attack_server.py"), "--name", "old"]}
    with serving(tmp_path, {"old": entry}) as served:
        async with served.client(NEWEST, token=served.tokens.add("one")) as client:
            for cut in range(5):
                wanted = [f"old+note://{cut}-{place}" for place in range(900)]
                stream = asyncio.create_task(listen(client, wanted))
                await came_to_pass(partial(is_asked, served, f"note://{cut}-"))
                stream.cancel()
                await asyncio.wait({stream})
                await until_nothing_is_followed(client)


async def listen(client: Client, uris: list[str]) -> None:
    async with client.listen(resource_subscriptions=uris):
        await asyncio.Event().wait()


def is_asked(served: Served, uri: str) -> bool:
    return f"subscribed {uri}" in log_of(served, "old")


async def followed(client: Client) -> int:
    """How many resources the server believes to be followed."""
    return int(words(await client.call_tool("old_echo", {"text": "followed"})))


async def until_nothing_is_followed(client: Client) -> None:
    async with asyncio.timeout(PATIENCE):
        while await followed(client):  # noqa: ASYNC110 - only the server knows
            await asyncio.sleep(0.05)


async def test_what_is_no_resource_of_anybody_is_followed_by_nobody(served: Served) -> None:
    async with follower(served, "legacy") as one:
        with pytest.raises(MCPError, match="was not found"):
            await one.follow("third+note://secret")
