"""Resource subscriptions of clients and servers of both protocol generations."""

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

from tests.gateway.harness import REVISIONS, TIMEOUT_S, RunningGateway, result_text, serve_gateway, wait_until
from toolfold.serving.gateway import subscriptions

SERVERS = Path(__file__).parents[1] / "mcp"
NEWEST = "2026-07-28"
Follow = Callable[..., Any]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    old = {"command": sys.executable, "args": [str(SERVERS / "attack_server.py"), "--name", "old"]}
    new = {"command": sys.executable, "args": [str(SERVERS / "modern_server.py")]}
    with serve_gateway(tmp_path_factory.mktemp("following"), {"old": old, "new": new}) as served:
        yield served


class Subscriber:
    """A client that subscribes to resources in the way that its protocol revision defines."""

    def __init__(self, client: Client, received: list[str]) -> None:
        self.client, self.received = client, received
        self._streams: dict[str, asyncio.Task[None]] = {}

    async def subscribe(self, uri: str) -> None:
        if self.client.protocol_version != NEWEST:
            params = mcp_types.SubscribeRequestParams(uri=uri)
            await self._ask(mcp_types.SubscribeRequest(params=params))
            return
        ready = asyncio.Event()
        self._streams[uri] = asyncio.create_task(self._listen(uri, ready))
        await ready.wait()

    async def unsubscribe(self, uri: str) -> None:
        if self.client.protocol_version != NEWEST:
            params = mcp_types.UnsubscribeRequestParams(uri=uri)
            await self._ask(mcp_types.UnsubscribeRequest(params=params))
        elif (stream := self._streams.pop(uri, None)) is not None:
            stream.cancel()
            await asyncio.wait({stream})

    async def end(self) -> None:
        for uri in list(self._streams):
            await self.unsubscribe(uri)

    async def _listen(self, uri: str, ready: asyncio.Event) -> None:
        async with self.client.listen(resource_subscriptions=[uri]) as events:
            ready.set()
            async for event in events:
                self.received.append(str(getattr(event, "uri", "")))

    async def _ask(self, request: Any) -> None:
        await self.client.session.send_request(request, mcp_types.EmptyResult)


@asynccontextmanager
async def connect_subscriber(served: RunningGateway, revision: str) -> AsyncIterator[Subscriber]:
    received: list[str] = []

    async def receive(message: Any) -> None:
        if revision != NEWEST and isinstance(message, mcp_types.ResourceUpdatedNotification):
            received.append(str(message.params.uri))

    token = served.tokens.add(f"subscriber-{len(served.tokens.list_clients())}")
    async with served.client(revision, token=token, message_handler=receive) as client:
        following = Subscriber(client, received)
        try:
            yield following
        finally:
            await following.end()


async def update_note(client: Client, server: str, name: str = "secret") -> None:
    """Let a server say that one of its notes has changed."""
    if server == "old":
        await client.call_tool("old_echo", {"text": "update"})
    else:
        await client.call_tool("new_touch", {"name": name})


async def wait_for(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(wait_until, condition)


def read_server_log(served: RunningGateway, server: str) -> str:
    file = served.runtime.config.paths.state_dir / "mcp" / "logs" / f"{server}.log"
    return file.read_text() if file.exists() else ""


@pytest.mark.parametrize("server", ["old", "new"])
@pytest.mark.parametrize("revision", REVISIONS)
async def test_subscribed_client_is_notified_of_a_resource_update(
    served: RunningGateway, revision: str, server: str
) -> None:
    uri = f"{server}+note://secret"
    async with connect_subscriber(served, revision) as one:
        await one.subscribe(uri)
        await update_note(one.client, server)
        await wait_for(lambda: one.received)
        assert set(one.received) == {uri}


@pytest.mark.parametrize("revision", REVISIONS)
async def test_unsubscribing_ends_only_the_subscription_of_one_client_to_one_resource(
    served: RunningGateway, revision: str
) -> None:
    a, b = "new+note://a", "new+note://b"
    async with connect_subscriber(served, revision) as one, connect_subscriber(served, revision) as other:
        await one.subscribe(a)
        await one.subscribe(b)
        await other.subscribe(b)
        await one.unsubscribe(b)
        for name in ("b", "a"):
            await update_note(one.client, "new", name)
        await wait_for(lambda: a in one.received and b in other.received)
        assert set(one.received) == {a}
        assert set(other.received) == {b}


async def test_client_receives_resource_updates_even_if_the_server_confirms_the_subscription_late(
    served: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "SUBSCRIBE_TIMEOUT_S", 0.0)
    async with connect_subscriber(served, NEWEST) as one:
        await one.subscribe("new+note://slow")
        async with asyncio.timeout(60):
            while not one.received:
                await update_note(one.client, "new", "slow")
                await asyncio.sleep(0.05)
        assert set(one.received) == {"new+note://slow"}


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("revision", REVISIONS)
async def test_subscribed_client_receives_resource_updates_after_a_server_restart(
    served: RunningGateway, revision: str
) -> None:
    uri = f"new+note://lasting-{revision}"
    async with connect_subscriber(served, revision) as one:
        await one.subscribe(uri)
        await asyncio.to_thread(served.runtime.mcp.restart, "new")
        await wait_for(lambda: one.received)  # it may have changed meanwhile
        one.received.clear()
        await update_note(one.client, "new", f"lasting-{revision}")
        await wait_for(lambda: one.received)
        assert set(one.received) == {uri}


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("revision", REVISIONS)
async def test_gateway_unsubscribes_from_the_server_when_the_last_client_unsubscribes(
    tmp_path: Path, revision: str
) -> None:
    entry = {"command": sys.executable, "args": [str(SERVERS / "attack_server.py"), "--name", "old"]}
    with serve_gateway(tmp_path, {"old": entry}) as served:
        uri = "old+note://secret"
        async with connect_subscriber(served, revision) as one, connect_subscriber(served, revision) as other:
            await one.subscribe(uri)
            await other.subscribe(uri)
            await wait_for(lambda: "subscribed note://secret" in read_server_log(served, "old"))
            await one.unsubscribe(uri)
            await update_note(other.client, "old")
            await wait_for(lambda: other.received)
            assert "unsubscribed" not in read_server_log(served, "old")
            await other.unsubscribe(uri)
            await wait_for(lambda: "unsubscribed note://secret" in read_server_log(served, "old"))


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("revision", REVISIONS)
async def test_resource_subscriptions_end_when_the_client_disconnects(tmp_path: Path, revision: str) -> None:
    entry = {"command": sys.executable, "args": [str(SERVERS / "attack_server.py"), "--name", "old"]}
    with serve_gateway(tmp_path, {"old": entry}) as served:
        async with connect_subscriber(served, revision) as one:
            await one.subscribe("old+note://secret")
            await wait_for(lambda: "subscribed note://secret" in read_server_log(served, "old"))
        await wait_for(lambda: "unsubscribed note://secret" in read_server_log(served, "old"))


async def test_client_can_subscribe_to_at_most_1000_resources_until_its_streams_close(
    tmp_path: Path,
) -> None:
    entry = {"command": sys.executable, "args": [str(SERVERS / "attack_server.py"), "--name", "old"]}
    with serve_gateway(tmp_path, {"old": entry}) as served:
        async with served.client(NEWEST, token=served.tokens.add("one")) as client:
            wanted = [f"old+note://{place}" for place in range(1_000)]
            async with client.listen(resource_subscriptions=[*wanted[:-1], wanted[0]]):
                await wait_for_subscriptions(client, 999)
                async with client.listen(resource_subscriptions=["old+note://more", *wanted[:2]]):
                    await wait_for_subscriptions(client, 1_000)
                    async with client.listen(resource_subscriptions=[wanted[-1], wanted[0]]) as more:
                        assert more.honored.resource_subscriptions == [wanted[0]]
            await wait_until_unsubscribed(client)


@pytest.mark.thorough
async def test_concurrent_streams_of_one_client_share_its_limit_of_1000_resource_subscriptions(
    tmp_path: Path,
) -> None:
    entry = {"command": sys.executable, "args": [str(SERVERS / "attack_server.py"), "--name", "old"]}
    with serve_gateway(tmp_path, {"old": entry}) as served:
        async with served.client(NEWEST, token=served.tokens.add("one")) as client:
            honored_counts: list[int] = []

            async def listen(stream: int) -> None:
                uris = [f"old+note://{stream}-{place}" for place in range(600)]
                async with client.listen(resource_subscriptions=uris) as events:
                    honored_counts.append(len(events.honored.resource_subscriptions or ()))
                    await asyncio.Event().wait()

            streams = [asyncio.create_task(listen(each)) for each in range(4)]
            await wait_for(lambda: len(honored_counts) == 4)
            assert sum(honored_counts) == 1_000
            await wait_for_subscriptions(client, 1_000)
            for stream in streams:
                stream.cancel()
            await asyncio.wait(streams)
            await wait_until_unsubscribed(client)


@pytest.mark.thorough
async def test_cancelling_the_streams_of_a_client_ends_its_resource_subscriptions_at_the_server(
    tmp_path: Path,
) -> None:
    entry = {"command": sys.executable, "args": [str(SERVERS / "attack_server.py"), "--name", "old"]}
    with serve_gateway(tmp_path, {"old": entry}) as served:
        async with served.client(NEWEST, token=served.tokens.add("one")) as client:
            for cut in range(5):
                wanted = [f"old+note://{cut}-{place}" for place in range(900)]
                stream = asyncio.create_task(listen(client, wanted))
                await wait_for(partial(is_subscribed, served, f"note://{cut}-"))
                stream.cancel()
                await asyncio.wait({stream})
                await wait_until_unsubscribed(client)


async def listen(client: Client, uris: list[str]) -> None:
    async with client.listen(resource_subscriptions=uris):
        await asyncio.Event().wait()


def is_subscribed(served: RunningGateway, uri: str) -> bool:
    return f"subscribed {uri}" in read_server_log(served, "old")


async def count_subscriptions(client: Client) -> int:
    """Return the number of subscriptions that the server has."""
    return int(result_text(await client.call_tool("old_echo", {"text": "followed"})))


async def wait_for_subscriptions(client: Client, expected: int) -> None:
    """Wait until the server has this many subscriptions, and never more.

    A stream opens after SUBSCRIBE_TIMEOUT_S at the latest; the remaining requests follow while it is open.
    """
    async with asyncio.timeout(TIMEOUT_S):
        while (count := await count_subscriptions(client)) != expected:
            assert count < expected
            await asyncio.sleep(0.05)


async def wait_until_unsubscribed(client: Client) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while await count_subscriptions(client):  # noqa: ASYNC110 - only the server knows
            await asyncio.sleep(0.05)


async def test_subscribing_to_an_unknown_resource_returns_an_error(served: RunningGateway) -> None:
    async with connect_subscriber(served, "legacy") as one:
        with pytest.raises(MCPError, match="was not found"):
            await one.subscribe("third+note://secret")
