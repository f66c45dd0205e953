"""Responses of the gateway's HTTP connections: their end is clear to every client, whatever it has sent."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from toolfold.core.loops import make_network_loop
from toolfold.serving.gateway.bounded_protocol import make_bounded_protocol
from toolfold.serving.gateway.http_protocol import LimitedProtocol
from toolfold.serving.gateway.uvicorn_connections import RefusedRequests

TIMEOUT_S = 60


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Respond in the way that the path of the request names."""
    path, headers = scope["path"], []
    if path == "/unread":
        for _ in range(20):  # meanwhile the body is parsed
            await asyncio.sleep(0)
    if path == "/stall":
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    if path == "/fail":
        raise ValueError("a fault of the application")
    if path == "/echo":
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        parts = [body]
    else:
        parts = [b"one", b"two"] if path != "/empty" else []
    if path == "/split":
        headers.append((b"x-text", b"a\r\nset-cookie: b"))
    if path == "/long":
        headers.append((b"content-length", b"2"))
    if path == "/sized":
        headers.append((b"content-length", b"6"))
    if path == "/keep":
        headers.append((b"connection", b"keep-alive"))
    if path in ("/204", "/304"):
        parts, headers = [], [(b"content-length", b"0"), (b"transfer-encoding", b"chunked")]
    status = 404 if path.startswith("http:") else int(path[1:]) if path[1:].isdigit() else 200
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for part in parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def make_connection(state: ServerState) -> LimitedProtocol:
    config = uvicorn.Config(answer, lifespan="off", log_config=None)
    bounded = cast("type[LimitedProtocol]", make_bounded_protocol())
    return bounded(config=config, server_state=state, app_state={})


@asynccontextmanager
async def run_server() -> AsyncIterator[int]:
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(partial(make_connection, state), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        for each in list(state.connections):
            each.shutdown()


async def exchange(*requests: bytes) -> str:
    """Send requests at once; return everything that arrives until the connection is closed."""
    async with run_server() as port, asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"".join(requests))
        received = await reader.read()
        writer.close()
        return received.decode()


def make_request(
    path: str, *fields: str, method: str = "GET", version: str = "1.1", body: bytes = b""
) -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: x", *fields]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


LAST = "Connection: close"


async def test_streamed_response_to_an_http_1_1_request_uses_chunked_encoding() -> None:
    received = await exchange(make_request("/", LAST))
    assert "transfer-encoding: chunked" in received
    assert received.endswith("\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")


async def test_streamed_response_to_an_http_1_0_request_ends_by_closing_the_connection() -> None:
    received = await exchange(make_request("/keep", version="1.0"))
    assert "chunked" not in received
    assert "connection: close" in received
    assert "keep-alive" not in received
    assert received.endswith("\r\n\r\nonetwo")


async def test_response_to_a_head_request_has_no_body() -> None:
    received = await exchange(make_request("/sized", method="HEAD"), make_request("/sized", LAST))
    assert received.count("HTTP/1.1 200") == 2
    assert received.count("content-length: 6") == 2
    assert received.count("onetwo") == 1


@pytest.mark.parametrize(("status", "has_length"), [(204, False), (304, True)])
async def test_response_with_a_status_that_forbids_a_body_has_no_transfer_encoding_header(
    status: int, has_length: bool
) -> None:
    received = await exchange(make_request(f"/{status}"), make_request("/sized", LAST))
    first, _, rest = received.partition("\r\n\r\n")
    assert "transfer-encoding" not in first
    assert ("content-length: 0" in first) == has_length
    assert rest.startswith("HTTP/1.1 200")


@pytest.mark.parametrize("path", ["/fail", "/split"])
async def test_application_exception_or_invalid_response_header_returns_500(path: str) -> None:
    received = await exchange(make_request(path))
    assert received.startswith("HTTP/1.1 500")
    assert "set-cookie" not in received
    assert "connection: close" in received


async def test_connection_is_closed_if_a_response_is_longer_than_its_content_length() -> None:
    received = await exchange(make_request("/long"), make_request("/"))
    assert received.endswith("content-length: 2\r\n\r\n")
    assert received.count("HTTP/1.1") == 1


async def test_client_that_sends_expect_100_continue_receives_100_before_the_response() -> None:
    body = make_request(
        "/echo", LAST, "Expect: 100-continue", "Content-Length: 5", method="POST", body=b"hello"
    )
    received = await exchange(body)
    assert re.match(r"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ", received)
    assert "hello" in received


async def test_pipelined_requests_after_a_chunked_body_are_answered_in_order() -> None:
    chunked = make_request(
        "/echo", "Transfer-Encoding: chunked", method="POST", body=b"2\r\nab\r\n0\r\nX: y\r\n\r\n"
    )
    received = await exchange(chunked, chunked, make_request("/", LAST))
    assert received.count("HTTP/1.1 200") == 3
    assert received.count("2\r\nab\r\n") == 2
    assert received.endswith("two\r\n0\r\n\r\n")


async def test_pipelined_request_after_a_request_with_connection_close_is_ignored() -> None:
    received = await exchange(make_request("/", LAST), make_request("/"))
    assert received.count("HTTP/1.1 200") == 1


async def test_upgrade_headers_and_the_connect_method_do_not_change_the_protocol() -> None:
    upgrade = make_request("/", "Connection: Upgrade", "Upgrade: websocket")
    received = await exchange(upgrade, make_request("/", method="CONNECT"), make_request("/", LAST))
    assert received.count("HTTP/1.1 200") == 3


async def test_request_line_with_an_absolute_url_returns_404() -> None:
    assert (await exchange(make_request("http://other/echo", LAST))).startswith("HTTP/1.1 404")


async def test_invalid_pipelined_request_is_refused_after_earlier_requests_were_answered() -> None:
    bad = b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"
    received = await exchange(make_request("/"), bad, make_request("/"))
    assert received.count("HTTP/1.1 200") == 1
    assert received.endswith("The header host is repeated.")


def connect_sockets() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
    accepted.setblocking(False)
    return accepted, client


async def take_over(
    accepted: socket.socket, client: socket.socket, received: bytes, unsent: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Serve a connection on which these bytes were received before; return the streams of the client."""
    connection = make_connection(ServerState())
    connection.take_over(received, unsent)
    await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, accepted)
    return await asyncio.open_connection(sock=client)


async def test_request_arriving_byte_by_byte_is_answered_after_a_request_with_a_large_unread_body() -> None:
    large = make_request("/unread", "Content-Length: 100000", method="POST", body=b" " * 100_000)
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await take_over(*connect_sockets(), large, b"")
        assert b" 200 " in await reader.readuntil(b"0\r\n\r\n")
        for byte in make_request("/", LAST):
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert b" 200 " in await reader.read()
        writer.close()


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, make_network_loop])
def test_bytes_received_during_gateway_startup_are_processed_before_later_bytes(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """The bytes that were received elsewhere come first, even if more have arrived meanwhile."""
    first, rest = make_request("/echo", LAST, "Content-Length: 10", method="POST"), b"0123456789"

    async def read_response() -> bytes:
        accepted, client = connect_sockets()
        client.sendall(rest)
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await take_over(accepted, client, first, b"earlier ")
            received = await reader.read()
            writer.close()
        return received

    with asyncio.Runner(loop_factory=make_loop) as runner:
        received = runner.run(read_response())
    assert received.startswith(b"earlier HTTP/1.1 200")
    assert rest in received


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, make_network_loop])
def test_connection_received_during_gateway_startup_pauses_while_a_request_is_unanswered(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """The earlier bytes hold a second request: nothing more is needed before the first is answered."""

    async def check_paused() -> None:
        accepted, client = connect_sockets()
        connection = make_connection(ServerState())
        connection.take_over(make_request("/stall") * 2, b"")
        await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, accepted)
        async with asyncio.timeout(TIMEOUT_S):
            while connection.cycle is None:  # noqa: ASYNC110 - the parser has no event for it
                await asyncio.sleep(0.01)
        assert connection.flow.read_paused
        assert not connection.transport.is_reading()
        client.close()
        connection.transport.abort()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(check_paused())


def test_many_refused_requests_in_one_interval_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    refusals = RefusedRequests()
    for _ in range(50):
        refusals.log_refusal("The request line is not valid HTTP/1.1.")
    assert len(caplog.records) == 1
