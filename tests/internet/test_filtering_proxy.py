"""The proxy of the browser connects to allowed addresses only, for clients that know its password."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.internet.web_server import Page, WebServer
from toolfold.tools.internet.address_policy import AddressPolicy, parse_networks
from toolfold.tools.internet.filtering_proxy import FilteringProxy

ANSWER_TIMEOUT_S = 60


@pytest.fixture
async def proxy() -> AsyncIterator[FilteringProxy]:
    running = FilteringProxy(AddressPolicy(parse_networks(["127.0.0.1/32"])))
    running.url = await running.start()  # type: ignore[attr-defined]
    yield running
    await running.close()


async def send(proxy: FilteringProxy, request: str, *, password: str | None = None, then: str = "") -> str:
    """Send a request to the proxy, then more after its answer, and return everything received."""
    port = int(proxy.url.rpartition(":")[2])  # type: ignore[attr-defined]
    word = base64.b64encode(f"{proxy.user}:{password or proxy.password}".encode()).decode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            writer.write(f"{request}\r\nProxy-Authorization: Basic {word}\r\n\r\n".encode())
            received = b""
            if then:
                received = await reader.readuntil(b"\r\n\r\n")
                writer.write(then.encode())
            return (received + await reader.read()).decode()
    finally:
        writer.close()


async def test_proxy_forwards_an_http_request_without_its_proxy_headers(
    proxy: FilteringProxy, server: WebServer
) -> None:
    server.pages["/a"] = Page(b"hello")
    answer = await send(proxy, f"GET {server.url}/a?b=c HTTP/1.1\r\nHost: x.example\r\nX-Mine: 1")
    assert answer.startswith("HTTP/1.1 200")
    assert answer.endswith("hello")
    (request,) = server.requests
    assert (request.path, request.headers["host"], request.headers["x-mine"]) == ("/a?b=c", "x.example", "1")
    assert "proxy-authorization" not in request.headers


async def test_proxy_opens_a_tunnel_for_a_connect_request(proxy: FilteringProxy, server: WebServer) -> None:
    server.pages["/a"] = Page(b"through")
    inner = "GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = await send(proxy, f"CONNECT 127.0.0.1:{server.port} HTTP/1.1", then=inner)
    assert answer.startswith("HTTP/1.1 200 Connection established")
    assert answer.endswith("through")


@pytest.mark.parametrize("host", ["127.0.0.2", "2130706434", "[::1]", "169.254.169.254"])
async def test_proxy_answers_403_for_a_forbidden_address_and_records_the_reason(
    proxy: FilteringProxy, server: WebServer, host: str
) -> None:
    for request in (f"CONNECT {host}:{server.port}", f"GET http://{host}:{server.port}/"):
        assert (await send(proxy, f"{request} HTTP/1.1")).startswith("HTTP/1.1 403")
    assert "public internet" in proxy.refusal_of(host) or "metadata" in proxy.refusal_of(host)
    assert server.requests == []


async def test_proxy_answers_407_to_a_request_with_a_wrong_password(
    proxy: FilteringProxy, server: WebServer
) -> None:
    request = f"GET {server.url}/ HTTP/1.1"
    assert (await send(proxy, request, password="guess")).startswith("HTTP/1.1 407")
    assert server.requests == []


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET / HTTP/1.1", 400),
        ("GET ftp://example.com/ HTTP/1.1", 400),
        ("CONNECT nonsense HTTP/1.1", 400),
        ("nonsense", 400),
        ("CONNECT 127.0.0.1:22 HTTP/1.1", 403),
        ("GET http://127.0.0.1:1/ HTTP/1.1", 403),
        ("CONNECT content-autofill.googleapis.com:443 HTTP/1.1", 403),
    ],
)
async def test_proxy_answers_400_to_invalid_requests_and_403_for_forbidden_hosts_and_ports(
    proxy: FilteringProxy, request_line: str, status: int
) -> None:
    assert (await send(proxy, request_line)).startswith(f"HTTP/1.1 {status}")


async def test_proxy_tunnel_to_a_silent_server_is_closed_when_the_browser_disconnects(
    proxy: FilteringProxy,
) -> None:
    connected = asyncio.Event()

    async def keep_silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(ANSWER_TIMEOUT_S * 10)
        writer.close()

    silent = await asyncio.start_server(keep_silent, "127.0.0.1", 0)
    request = f"CONNECT 127.0.0.1:{silent.sockets[0].getsockname()[1]} HTTP/1.1"
    tunnel = asyncio.create_task(send(proxy, request, then="hello"))
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await connected.wait()
            assert proxy._connections
            tunnel.cancel()
            while proxy._connections:  # noqa: ASYNC110  (nothing else tells)
                await asyncio.sleep(0.01)
    finally:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        silent.close()


async def test_closing_the_proxy_closes_open_tunnels(proxy: FilteringProxy, server: WebServer) -> None:
    tunnel = asyncio.create_task(
        send(proxy, f"CONNECT 127.0.0.1:{server.port} HTTP/1.1", then="GET / HTTP/1.1\r\n")
    )
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        while not proxy._connections:  # noqa: ASYNC110  (nothing else tells)
            await asyncio.sleep(0.01)
    await proxy.close()
    await asyncio.wait({tunnel}, timeout=ANSWER_TIMEOUT_S)
    assert tunnel.done()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await send(proxy, "GET / HTTP/1.1")
    tunnel.exception()
