"""Requests that are expensive to read are refused early, and other clients are served meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.cases import check_cases
from tests.gateway.harness import (
    TIMEOUT_S,
    RunningGateway,
    fault_server,
    result_text,
    serve_gateway,
    wait_until,
)
from tests.gateway.test_event_streams import ACCEPT, HttpSession, request
from tests.mcp.load_server import chunk
from toolfold.serving.gateway import http_requests, request_bodies
from toolfold.serving.gateway.http_requests import MAX_SMALL_CHUNKS, MIN_CHUNK_BYTES
from toolfold.serving.gateway.request_bodies import MAX_REQUEST_BYTES, MAX_REQUEST_ITEMS

ATTACKER = str(Path(__file__).parents[1] / "mcp" / "attack_server.py")
KINDS = ("Accept: application/json, text/event-stream", "Content-Type: application/json")
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    server = {"command": sys.executable, "args": [ATTACKER, "--name", "one"]}
    with serve_gateway(tmp_path_factory.mktemp("limits"), {"one": server}) as made:
        yield made


class RawClient:
    """A connection that can send arbitrary bytes."""

    def __init__(self, served: RunningGateway) -> None:
        address = urlsplit(served.url)
        self.host = f"{address.hostname}:{address.port}"
        self.socket = socket.create_connection((address.hostname, address.port), timeout=TIMEOUT_S)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def start(self, *fields: str, method: str = "POST", host: str = "") -> None:
        lines = [f"{method} /mcp HTTP/1.1", f"Host: {host or self.host}", *fields]
        self.socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError:
            return  # the server has refused the request and closed the connection

    def receive(self) -> str:
        """Return everything received until the connection is closed."""
        parts = []
        while part := self.socket.recv(65_536):
            parts.append(part)
        return b"".join(parts).decode()


def call(value: str) -> bytes:
    params = {"name": "one_echo", "arguments": {"text": "VALUE"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return json.dumps(message).replace('"VALUE"', value).encode()


def post(served: RunningGateway, body: bytes, *fields: str) -> str:
    with RawClient(served) as raw:
        raw.start(*KINDS, f"Content-Length: {len(body)}", *fields)
        raw.send(body)
        return raw.receive()


CLOSE = "Connection: close"
TINY = chunk(b" ") * (3 * MAX_SMALL_CHUNKS)
CHUNKED = (*KINDS, "Transfer-Encoding: chunked")


async def test_request_body_in_tiny_chunks_is_refused_without_delaying_other_clients(
    served: RunningGateway,
) -> None:
    async with served.client() as other:
        with RawClient(served) as raw:
            raw.start(*CHUNKED)
            raw.send(TINY)
            answers = [result_text(await other.call_tool("one_echo", {"text": "hello"})) for _ in range(3)]
            answer = raw.receive()
    assert answers == ["hello"] * 3
    assert answer.startswith("HTTP/1.1 400")
    assert f"more than {MAX_SMALL_CHUNKS:,} chunks of less than {MIN_CHUNK_BYTES} bytes" in answer


@pytest.mark.parametrize(
    ("fields", "host", "status"),
    [
        (("Authorization: Bearer wrong",), "", "401"),
        ((), "example.org", "421"),
        (("Origin: https://example.org",), "", "403"),
        (("Host: 127.0.0.1",), "", "400"),
        (("Content-Encoding: gzip",), "", "415"),
    ],
)
def test_connection_is_closed_without_reading_the_body_if_the_request_headers_are_refused(
    served: RunningGateway, monkeypatch: pytest.MonkeyPatch, fields: tuple[str, ...], host: str, status: str
) -> None:
    counted: list[int] = []
    monkeypatch.setattr(http_requests.RequestReader, "_count_chunk", lambda _, size: counted.append(size))
    with RawClient(served) as raw:
        lines = ["POST /mcp HTTP/1.1", f"Host: {host or raw.host}", *CHUNKED, *fields]
        raw.send(("\r\n".join(lines) + "\r\n\r\n").encode() + TINY)
        answer = raw.receive()
    assert answer.startswith(f"HTTP/1.1 {status}")
    assert "connection: close" in answer.lower()
    assert not counted


def test_gateway_path_with_a_trailing_slash_is_served_without_a_redirect(
    served: RunningGateway,
) -> None:
    answers = []
    for host in ("evil.example", ""):
        with RawClient(served) as raw:
            raw.socket.sendall(f"GET /mcp/ HTTP/1.1\r\nHost: {host or raw.host}\r\n{CLOSE}\r\n\r\n".encode())
            answers.append(raw.receive())
    assert answers[0].startswith("HTTP/1.1 421")
    assert answers[1].startswith("HTTP/1.1 406")  # of the MCP SDK: the request accepts no event stream
    assert "location:" not in "".join(answers)


@check_cases("size", [MIN_CHUNK_BYTES + 8, 5_000])
def test_large_chunked_request_body_is_accepted_if_its_chunks_are_not_tiny(
    served: RunningGateway, size: int
) -> None:
    body = call(json.dumps("a" * 1_000_000))
    with RawClient(served) as raw:
        raw.start(*CHUNKED, "Connection: close")
        parts = [body[start : start + size] for start in range(0, len(body), size)]
        raw.send(b"".join(map(chunk, parts)) + b"0\r\n\r\n")
        answer = raw.receive()
    assert "Missing session ID" in answer  # so the protocol has read the body


def test_request_body_with_a_content_length_is_accepted_even_if_it_arrives_byte_by_byte(
    served: RunningGateway,
) -> None:
    with RawClient(served) as raw:
        raw.start(*KINDS, f"Content-Length: {len(PING)}", "Connection: close")
        for byte in PING:
            raw.send(bytes([byte]))
        assert "Missing session ID" in raw.receive()


def test_pipelined_http_requests_are_answered_in_order(served: RunningGateway) -> None:
    large = call(json.dumps("a" * 100_000))
    with RawClient(served) as raw:
        for body, last in ((PING, ""), (large, ""), (PING, "close")):
            raw.start(*KINDS, f"Content-Length: {len(body)}", f"Connection: {last or 'keep-alive'}")
            raw.send(body)
        assert raw.receive().count("Missing session ID") == 3


@check_cases("place", ["headers", "trailers"])
def test_request_with_endless_http_headers_or_trailers_is_refused(served: RunningGateway, place: str) -> None:
    flood = b"a: b\r\n" * 200_000
    with RawClient(served) as raw:
        if place == "trailers":
            raw.start(*CHUNKED)
            raw.send(chunk(PING) + b"0\r\n" + flood + b"\r\n")
        else:
            raw.send(b"POST /mcp HTTP/1.1\r\n" + flood + b"\r\n")
        assert raw.receive().startswith("HTTP/1.1 400")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (call("[" + "[]," * MAX_REQUEST_ITEMS + "1]"), "JSON values and keys"),
        (call("[" + '"",' * MAX_REQUEST_ITEMS + "1]"), "JSON values and keys"),
        (call("[" * 1_000 + "]" * 1_000), "nested more than 500 levels deep"),
    ],
    ids=["lists", "strings", "deep"],
)
async def test_mcp_message_with_too_many_or_too_deeply_nested_json_values_is_refused(
    served: RunningGateway, body: bytes, problem: str
) -> None:
    async with served.client() as other:
        answer = await asyncio.to_thread(post, served, body)
        assert answer.startswith("HTTP/1.1 413")
        assert problem in answer
        assert result_text(await other.call_tool("one_echo", {"text": "hello"})) == "hello"


def test_request_whose_content_length_exceeds_the_limit_is_refused_without_reading_its_body(
    served: RunningGateway,
) -> None:
    with RawClient(served) as raw:
        raw.start(*KINDS, f"Content-Length: {MAX_REQUEST_BYTES + 1}")
        answer = raw.receive()  # nothing of the body was sent
    assert answer.startswith("HTTP/1.1 413")


def test_client_receives_the_error_for_a_too_large_body_while_still_sending_the_body(
    served: RunningGateway,
) -> None:
    body = b"[" + b" " * (MAX_REQUEST_BYTES + 1_000_000) + b"]"
    assert f"longer than {MAX_REQUEST_BYTES:,} bytes" in post(served, body)


def test_request_body_that_arrives_too_slowly_is_refused(
    served: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_bodies, "BODY_TIMEOUT_S", 0.2)
    with RawClient(served) as raw:
        raw.start(*KINDS, "Content-Length: 100")
        raw.send(b"{")
        assert raw.receive().startswith("HTTP/1.1 408")


def test_concurrent_request_bodies_above_the_memory_limit_of_one_client_are_refused(
    served: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_bodies, "MAX_BUFFERED_PER_CLIENT_BYTES", 1_000_000)
    half = b"[" + b" " * 700_000
    with RawClient(served) as one, RawClient(served) as two:
        for raw in (one, two):
            raw.start(*KINDS, "Content-Length: 2000000")
        one.send(half)
        two.send(half)
        one.socket.setblocking(False)
        two.socket.setblocking(False)
        received: list[str] = []

        def is_refused() -> bool:
            for raw in (one, two):
                try:
                    received.append(raw.socket.recv(65_536).decode())
                except BlockingIOError:
                    continue
            return bool(received)

        wait_until(is_refused)
    assert received[0].startswith("HTTP/1.1 503")


def test_number_of_concurrent_request_bodies_per_client_is_limited(
    served: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_bodies, "MAX_BODIES_PER_CLIENT", 2)
    opened = [RawClient(served) for _ in range(2)]
    try:
        for raw in opened:
            raw.start(*KINDS, "Content-Length: 100")

        def is_full() -> bool:
            return post(served, PING).startswith("HTTP/1.1 503")

        wait_until(is_full)
    finally:
        for raw in opened:
            raw.socket.close()
    wait_until(lambda: "Missing session ID" in post(served, PING, "Connection: close"))


@check_cases("method", ["GET", "DELETE", "OPTIONS"])
def test_http_request_with_the_method_get_or_delete_or_options_is_refused_if_it_has_a_body(
    served: RunningGateway, method: str
) -> None:
    with RawClient(served) as raw:
        raw.start(*CHUNKED, method=method)
        answer = raw.receive()
    assert answer.startswith(("HTTP/1.1 400", "HTTP/1.1 405"))


@pytest.mark.thorough
async def test_tool_call_with_arguments_of_several_megabytes_is_accepted(served: RunningGateway) -> None:
    text = "1,2:[3]{4}\n" * 400_000
    async with served.client() as client:
        assert "truncated" in result_text(await client.call_tool("one_echo", {"text": text}))


async def test_session_remains_usable_after_a_message_with_too_many_json_values_was_refused(
    served: RunningGateway,
) -> None:
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    async with httpx2.AsyncClient(headers=headers, timeout=TIMEOUT_S) as http:
        params: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {}}
        params["clientInfo"] = {"name": "t", "version": "1"}
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        opened = await http.post(served.url, json=hello)
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        refused = await http.post(
            served.url, content=call("[" + "[]," * MAX_REQUEST_ITEMS + "1]"), headers=session
        )
        assert refused.status_code == 413
        assert (await http.post(served.url, content=PING, headers=session)).status_code == 200


def test_large_request_is_refused_while_pending_calls_of_the_client_exhaust_its_memory_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_bodies, "MAX_BUFFERED_PER_CLIENT_BYTES", 250_000)
    servers = {"slow": fault_server("--fault", "hang", call_timeout_seconds=120), "fast": fault_server()}
    numbers = itertools.count(10)

    def make_call(tool: str, size: int = 100_000) -> dict[str, Any]:
        padding = {"example/padding": "x" * size}
        call = {"name": tool, "arguments": {"text": "now"}, "_meta": padding}
        return request("tools/call", call, id_=next(numbers))

    with (
        serve_gateway(tmp_path, servers) as made,
        httpx2.Client(headers=ACCEPT, timeout=TIMEOUT_S) as http,
    ):
        session = HttpSession(http, made.url)
        with RawClient(made) as one, RawClient(made) as other:
            for each in (one, other):
                body = json.dumps(make_call("slow_echo")).encode()
                each.start(*KINDS, f"Mcp-Session-Id: {session.id}", f"Content-Length: {len(body)}")
                each.send(body)
            for each in (one, other):  # the response starts as a stream if the result takes some time
                assert each.socket.recv(100).startswith(b"HTTP/1.1 200")
            assert session.post(make_call("fast_echo")).status_code == 503
            assert session.post(make_call("fast_echo", 100)).status_code == 200
        wait_until(lambda: session.post(make_call("fast_echo")).status_code == 200)
