"""Limits on HTTP sessions: idle ones are evicted, those in use and those of other clients are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp_types
import pytest
from mcp import Client, MCPError
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from tests.cases import check_cases
from tests.gateway.harness import (
    TIMEOUT_S,
    RunningGateway,
    fault_server,
    result_text,
    serve_gateway,
    wait_until,
)
from tests.gateway.test_attacks import HELLO, KINDS, attacker
from toolfold.core.errors import SourceError
from toolfold.serving.gateway import http_sessions
from toolfold.serving.gateway import server as gateway_server
from toolfold.serving.gateway.client_tokens import ANONYMOUS
from toolfold.serving.gateway.client_tokens import GatewayClient as TokenClient
from toolfold.serving.gateway.http_sessions import quota_key

LIMIT = 5
LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with serve_gateway(tmp_path_factory.mktemp("sessions"), {"one": attacker("one")}) as found:
        yield found


@pytest.fixture(autouse=True)
def _lower_session_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_sessions, "MAX_HTTP_SESSIONS_PER_CLIENT", LIMIT)


def http(token: str = "") -> httpx2.AsyncClient:
    headers = {**KINDS, **({"authorization": f"Bearer {token}"} if token else {})}
    return httpx2.AsyncClient(headers=headers, timeout=TIMEOUT_S)


async def open_session(client: httpx2.AsyncClient, served: RunningGateway) -> str:
    """Open a session and return its id."""
    answer = await client.post(served.url, json=HELLO)
    assert answer.status_code == 200, answer.text
    return str(answer.headers["mcp-session-id"])


async def status(client: httpx2.AsyncClient, served: RunningGateway, session: str) -> int:
    headers = {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
    return (await client.post(served.url, json=LIST, headers=headers)).status_code


@asynccontextmanager
async def open_stream(
    client: httpx2.AsyncClient, served: RunningGateway, session: str
) -> AsyncIterator[None]:
    """Keep a stream of a session open."""
    headers = {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25", "accept": "text/event-stream"}
    async with client.stream("GET", served.url, headers=headers) as response:
        assert response.status_code == 200
        yield


@pytest.mark.parametrize("has_token", [False, True])
async def test_opening_sessions_above_the_client_limit_closes_the_oldest_sessions_of_the_client(
    served: RunningGateway, has_token: bool
) -> None:
    token = served.tokens.add(f"abandoning-{has_token}") if has_token else ""
    async with http(token) as client:
        sessions = [await open_session(client, served) for _ in range(3 * LIMIT)]
        found = [await status(client, served, each) for each in sessions]
    assert found == [404] * 2 * LIMIT + [200] * LIMIT


async def test_opening_a_session_above_the_client_limit_closes_the_least_recently_used_session(
    served: RunningGateway,
) -> None:
    async with http(served.tokens.add("recent")) as client:
        sessions = [await open_session(client, served) for _ in range(LIMIT)]
        assert await status(client, served, sessions[0]) == 200
        await open_session(client, served)
        assert await status(client, served, sessions[1]) == 404
        assert await status(client, served, sessions[0]) == 200


async def test_new_session_is_refused_if_all_sessions_of_the_client_have_open_event_streams(
    served: RunningGateway,
) -> None:
    async with http(served.tokens.add("streaming")) as client, AsyncExitStack() as streams:
        sessions = [await open_session(client, served) for _ in range(LIMIT)]
        for each in sessions:
            await streams.enter_async_context(open_stream(client, served, each))
        refused = await client.post(served.url, json=HELLO)
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        assert "Too many sessions are in use" in refused.text
        assert [await status(client, served, each) for each in sessions] == [200] * LIMIT
        async with http(served.tokens.add("another")) as other:
            await open_session(other, served)  # and nobody else is refused


async def test_opening_many_sessions_does_not_close_a_session_with_a_call_in_progress(
    served: RunningGateway,
) -> None:
    token = served.tokens.add("calling")
    async with served.client(token=token) as client, http(token) as abandoning:
        waiting = asyncio.create_task(client.call_tool("one_echo", {"text": "wait"}))
        await asyncio.to_thread(wait_until, lambda: served.runtime.mcp.servers["one"].call_relays)
        for _ in range(2 * LIMIT):
            await open_session(abandoning, served)
        assert result_text(await client.call_tool("one_echo", {"text": "release"})) == "done"
        assert result_text(await waiting) == "released"


async def test_new_session_at_the_total_limit_closes_a_session_of_the_client_with_most_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_sessions, "MAX_HTTP_SESSIONS", LIMIT)
    with serve_gateway(tmp_path, {}) as own:
        async with http(own.tokens.add("greedy")) as greedy, http(own.tokens.add("modest")) as modest:
            mine = await open_session(modest, own)
            theirs = [await open_session(greedy, own) for _ in range(LIMIT - 1)]
            new = await open_session(modest, own)
            assert [await status(modest, own, each) for each in (mine, new)] == [200, 200]
            assert [await status(greedy, own, each) for each in theirs] == [404] + [200] * (LIMIT - 2)


async def test_sessions_opened_concurrently_by_one_client_do_not_exceed_its_session_limit(
    served: RunningGateway,
) -> None:
    async with http(served.tokens.add("hasty")) as client:
        answers = await asyncio.gather(*(client.post(served.url, json=HELLO) for _ in range(4 * LIMIT)))
        sessions = [each.headers["mcp-session-id"] for each in answers if each.status_code == 200]
        alive = [await status(client, served, each) for each in sessions].count(200)
    assert 0 < alive <= LIMIT
    assert {each.status_code for each in answers} <= {200, 503}


def test_anonymous_clients_with_the_same_ip_address_share_one_session_limit() -> None:
    anonymous, named = TokenClient(ANONYMOUS), TokenClient("a", created=1.0)
    one, two = {"client": ("127.0.0.1", 5)}, {"client": ("127.0.0.2", 5)}
    assert quota_key(anonymous, one) == quota_key(anonymous, {"client": ("127.0.0.1", 6)})
    assert quota_key(anonymous, one) != quota_key(anonymous, two)
    assert quota_key(named, one) == quota_key(named, two)


async def test_new_session_is_refused_while_all_sessions_of_the_client_have_calls_in_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_server, "MAX_SESSIONS_PER_CLIENT", 2)
    until_file = tmp_path / "go"
    server = fault_server("--fault", "slow", "--until", str(until_file), isolation="per-client")
    with serve_gateway(tmp_path / "home", {"own": server}) as own:
        token = own.tokens.add("busy")

        @asynccontextmanager
        async def named(name: str) -> AsyncIterator[Client]:
            info = mcp_types.Implementation(name=name, version="1")
            async with own.client("2026-07-28", token=token, client_info=info) as client:
                yield client

        async with AsyncExitStack() as stack:
            busy = [await stack.enter_async_context(named(f"busy {number}")) for number in range(2)]
            calls = [asyncio.create_task(each.call_tool("own_echo", {"text": "now"})) for each in busy]
            pool = own.runtime.mcp
            await asyncio.to_thread(
                wait_until,
                lambda: sum(bool(each.call_relays) for each in tuple(pool._client_servers.values())) == 2,
            )
            third = await stack.enter_async_context(named("third"))
            with pytest.raises(MCPError, match="are busy"):
                await third.list_tools()
            until_file.touch()
            assert [result_text(await each) for each in calls] == ["slept", "slept"]
            assert (await third.list_tools()).tools


def never_busy(_session: str) -> bool:
    return False


@check_cases("method", ["_handle_stateful_request", "_serve_opening_request", "_discard_session"])
def test_missing_mcp_sdk_method_that_the_gateway_overrides_raises_an_error_with_its_name(
    method: str,
) -> None:
    reduced = type("Manager", (StreamableHTTPSessionManager,), {method: None})
    with pytest.raises(SourceError, match=f"Manager has no {method}"):
        http_sessions.make_limited_manager(reduced, lambda _: TokenClient(ANONYMOUS), never_busy)


def make_manager(is_busy: Callable[[str], bool]) -> Any:
    """Return a session manager whose sessions all belong to one client."""
    base = http_sessions.make_limited_manager(
        StreamableHTTPSessionManager, lambda _: TokenClient(ANONYMOUS), is_busy
    )
    return base(Server("empty"))


def test_session_manager_of_the_mcp_sdk_is_created_with_the_total_session_limit() -> None:
    assert make_manager(never_busy).max_sessions == http_sessions.MAX_HTTP_SESSIONS


def test_session_to_evict_is_the_least_recently_used_idle_session() -> None:
    asked: list[str] = []

    def is_busy(session: str) -> bool:
        asked.append(session)
        return session == "s0"

    use = http_sessions.SessionUse(is_busy)
    for number in range(100):
        with use.add_session(f"s{number}", "key"), use.count_request(f"s{number}", lambda _: True):
            pass
    assert use.find_oldest_idle("key") == "s1"
    assert asked == ["s0", "s1"]
