"""An MCP server cannot direct requests of its client to other hosts (SSRF) or add headers to them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.mcp.faults import call_echo, open_supervisor
from tests.proxy.upstream import Prepared, serve_upstream
from toolfold.config.servers_settings import parse_server_settings


async def call_server(settings: dict[str, Any], folder: Path) -> str:
    """Call a tool of a server with these settings; return the kind of the error."""
    async with open_supervisor(parse_server_settings(settings), folder) as supervisor:
        kind, _ = await call_echo(supervisor, "now")
    return kind


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_of_a_server_to_another_host_is_not_followed(status: int, tmp_path: Path) -> None:
    with serve_upstream() as internal, serve_upstream() as server:
        for target in (f"{internal.url}/latest/meta-data", internal.url.replace("http:", "")):
            moved = Prepared(status=status, headers={"location": target})
            server.answer = lambda _, moved=moved: moved
            for transport in ("http", "sse"):
                settings = {"url": f"{server.url}/mcp", "transport": transport}
                assert await call_server(settings, tmp_path) == "not-started"
        assert server.received
        assert internal.received == []


@pytest.mark.parametrize("endpoint", ["{url}/messages", "//{host}/messages"])
async def test_message_endpoint_of_an_sse_server_on_another_host_is_refused(
    endpoint: str, tmp_path: Path
) -> None:
    with serve_upstream() as internal, serve_upstream() as server:
        host = internal.url.removeprefix("http://")
        event = f"event: endpoint\ndata: {endpoint.format(url=internal.url, host=host)}\n\n"
        stream = Prepared(parts=[event.encode()], headers={"content-type": "text/event-stream"}, chunked=True)
        server.answer = lambda _: stream
        settings = {"url": f"{server.url}/sse", "transport": "sse", "connect_timeout_seconds": 1}
        assert await call_server(settings, tmp_path) == "not-started"
        assert server.received
        assert internal.received == []


@pytest.mark.parametrize("value", ["a\r\nX-Added: 1", "a\nX-Added: 1", "a\0b", "a\r\n\r\nGET / HTTP/1.1"])
async def test_configured_http_header_with_a_line_break_in_its_value_is_never_sent(
    value: str, tmp_path: Path
) -> None:
    with serve_upstream() as server, contextlib.suppress(ValueError):  # it may be refused as a setting
        settings = {"url": f"{server.url}/mcp", "headers": {"X-Key": value}}
        assert await call_server(settings, tmp_path) == "not-started"
    assert all("x-added" not in {name.lower() for name, _ in each.headers} for each in server.received)
    assert len(server.received) == 0
