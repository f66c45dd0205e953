"""Tool calls to HTTP servers: kept connections, and responses that the SDK's transport has to handle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest

from tests.mcp.fault_http import FaultHttpServer, serve_in_thread
from tests.mcp.faults import call_echo, open_supervisor
from toolfold.config.servers_settings import parse_server_settings
from toolfold.mcp.direct_calls import MAX_DIRECT_REQUEST_BYTES, DirectCalls, HandoverTransport
from toolfold.mcp.sdk_compat import RawRequests
from toolfold.mcp.supervisor import ServerSupervisor

TIMEOUT_S = 60.0


@asynccontextmanager
async def connected_server(
    fault: str, folder: Path
) -> AsyncIterator[tuple[FaultHttpServer, ServerSupervisor]]:
    with serve_in_thread(fault) as server:
        settings = parse_server_settings({"url": server.url()})
        async with open_supervisor(settings, folder) as supervisor:
            await call_echo(supervisor, "before")
            yield server, supervisor


@pytest.mark.parametrize(("fault", "answer"), [("", "now"), ("short-stream", "streamed")])
async def test_consecutive_calls_to_an_http_server_reuse_one_tcp_connection(
    fault: str, answer: str, tmp_path: Path
) -> None:
    async with connected_server(fault, tmp_path) as (server, supervisor):
        before = server.connections
        for _ in range(5):
            assert (await call_echo(supervisor, "now"))[0] == answer
        assert server.calls == 6
        assert server.connections == before


async def test_call_follows_a_redirect_of_the_server_within_the_same_origin(
    tmp_path: Path,
) -> None:
    async with connected_server("moved", tmp_path) as (_, supervisor):
        assert (await call_echo(supervisor, "now"))[0] == "moved"
        assert (await call_echo(supervisor, "again"))[0] == "again"


async def test_cookie_set_by_a_server_response_is_sent_with_the_next_call(tmp_path: Path) -> None:
    async with connected_server("cookie", tmp_path) as (server, supervisor):
        assert (await call_echo(supervisor, "now"))[0] == "baked"
        assert server.cookie == ""
        assert (await call_echo(supervisor, "again"))[0] == "again"
        assert server.cookie == "route=7"


async def test_call_opens_a_new_connection_if_the_server_closed_the_previous_connection(
    tmp_path: Path,
) -> None:
    async with connected_server("close-afterwards", tmp_path) as (server, supervisor):
        assert (await call_echo(supervisor, "now"))[0] == "closed"
        assert await asyncio.to_thread(server.has_closed_connection.wait, TIMEOUT_S)
        assert (await call_echo(supervisor, "again"))[0] == "again"
        assert server.calls == 3


async def test_very_long_call_arguments_and_results_are_transferred_completely(tmp_path: Path) -> None:
    async with connected_server("large-result", tmp_path) as (server, supervisor):
        sent = "y" * (MAX_DIRECT_REQUEST_BYTES + 1)
        assert (await call_echo(supervisor, sent))[0] == sent
        assert (await call_echo(supervisor, "now"))[0] == "x" * 300_000
        assert (await call_echo(supervisor, "again"))[0] == "again"
        assert server.calls == 4


async def test_disconnecting_from_a_server_cancels_tasks_that_read_an_endless_response(
    tmp_path: Path,
) -> None:
    before = asyncio.all_tasks()
    async with connected_server("endless-stream", tmp_path) as (_, supervisor):
        assert (await call_echo(supervisor, "now"))[0] == "streamed"
    assert [task for task in asyncio.all_tasks() - before if "_finish" in str(task.get_coro())] == []


async def test_response_to_a_cancelled_call_is_not_used_for_a_later_request_on_the_same_connection() -> None:
    sending = asyncio.Event()

    async def send_slowly(*_: object) -> None:
        sending.set()
        await asyncio.sleep(TIMEOUT_S)

    with serve_in_thread("broken") as server:
        handover = HandoverTransport(httpx2.AsyncHTTPTransport(), lambda _request: 1)
        async with httpx2.AsyncClient(transport=handover) as client:
            calls = DirectCalls(
                client, server.url(), handover, connect_timeout_s=TIMEOUT_S, is_anonymous=lambda: True
            )
            dispatcher = SimpleNamespace(_allocate_id=lambda: 1, _pending={})
            send = calls.wrap(send_slowly, RawRequests(SimpleNamespace(_dispatcher=dispatcher)))
            call = asyncio.ensure_future(send("tools/call", {"name": "echo"}, {"headers": {}}))
            async with asyncio.timeout(TIMEOUT_S):
                await sending.wait()
            call.cancel()
            await asyncio.wait({call})
            before = server.connections
            await client.post(server.url(), json={})
            assert server.connections == before + 1
            await calls.close_connections()
