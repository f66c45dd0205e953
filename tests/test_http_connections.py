"""Connections of the model proxy to providers are used again only if nothing can be left of a response."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from toolfold.core.http_connections import (
    MAX_PART_BYTES,
    MAX_UNREAD_BYTES,
    AddressInfo,
    ConnectionPool,
    ExchangeFailed,
    Origin,
    connect_to_first,
)
from toolfold.core.loops import make_network_loop
from toolfold.core.pacing import MAX_WORK_S

TIMEOUT_S = 60
START = b"begin"


class Server:
    """Sends the same response to each request, and counts its connections."""

    def __init__(self, head: bytes, rest: bytes) -> None:
        self.writers: list[asyncio.StreamWriter] = []
        self._head, self._rest = head, rest
        self.sends_rest = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(self._head + START)
                await self.sends_rest.wait()
                writer.write(self._rest)
                await writer.drain()


@contextlib.asynccontextmanager
async def run_server(head: bytes, rest: bytes) -> AsyncIterator[tuple[Server, Origin]]:
    server = Server(head, rest)
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listener:
        yield server, Origin("127.0.0.1", listener.sockets[0].getsockname()[1], is_encrypted=False)
        for writer in server.writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def request(pool: ConnectionPool, origin: Origin, server: Server, unread: int) -> bytes:
    """Read a response after so many bytes have arrived behind the start of its body."""
    connection = await pool.take(origin, TIMEOUT_S)
    await connection.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"", TIMEOUT_S)
    body = b""
    try:
        response = await connection.receive("GET", TIMEOUT_S)
        async for part in response.read():
            body += part
            server.sends_rest.set()
            while len(body) + len(connection.buffer) < len(START) + unread:  # noqa: ASYNC110 - has no event
                await asyncio.sleep(0.01)
    finally:
        pool.give_back(origin, connection)
    return body


@pytest.mark.parametrize(
    ("length", "rest", "connections"),
    [
        (8, b"end", 1),
        (len(START) + MAX_UNREAD_BYTES + 1, b"x" * (MAX_UNREAD_BYTES + 1), 2),
    ],
    ids=["whole", "paused"],
)
async def test_http_connection_is_not_reused_if_its_unread_data_exceeded_the_buffer_limit(
    length: int, rest: bytes, connections: int
) -> None:
    pool, head = ConnectionPool(), b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % length
    async with (
        run_server(head, rest) as (server, origin),
        asyncio.timeout(TIMEOUT_S),
    ):
        for _ in range(2):
            assert await request(pool, origin, server, len(rest)) == START + rest
        await pool.close()
    assert len(server.writers) == connections


async def test_http_connection_is_not_reused_after_a_response_with_two_content_lengths() -> None:
    pool, head = ConnectionPool(), b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 9"
    async with run_server(head + b"\r\n\r\n5\r\n", b"\r\n0\r\n\r\n") as (server, origin):
        server.sends_rest.set()
        async with asyncio.timeout(TIMEOUT_S):
            for _ in range(2):
                assert await request(pool, origin, server, 0) == START
            await pool.close()
    assert len(server.writers) == 2


async def test_rest_of_a_chunked_response_that_arrives_before_the_next_read_is_returned_completely() -> None:
    pool, head = ConnectionPool(), b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n"
    rest = b"\r\n3\r\nend\r\n0\r\n\r\n"
    async with run_server(head, rest) as (server, origin), asyncio.timeout(TIMEOUT_S):
        connection = await pool.take(origin, TIMEOUT_S)
        await connection.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"", TIMEOUT_S)
        body = (await connection.receive("GET", TIMEOUT_S)).read()
        assert await anext(body) == START
        server.sends_rest.set()
        while len(connection.buffer) < len(rest):  # noqa: ASYNC110 - has no event
            await asyncio.sleep(0.01)
        assert [part async for part in body] == [b"end"]
        connection.close()


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "rest", "problem"),
    [
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1_000 + PLAIN, b"", "interim responses"),
        (CHUNKED, b"\r\n" + b"1\r\nx\r\n" * 5_000 + b"0\r\n\r\n", "small pieces"),
        (CHUNKED, b"\r\n" + (b"1;" + b"e" * 200 + b"\r\nx\r\n") * 5_000 + b"0\r\n\r\n", "small pieces"),
        (CHUNKED, b"\r\n0\r\n" + b"a: b\r\n" * 10_000 + b"\r\n", "behind the body"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 5_000 + b"content-length: 5\r\n\r\n", b"", "headers"),
        (b"HTTP/1.1 200 OK\r\nx-id: a\x01b\r\ncontent-length: 5\r\n\r\n", b"", "malformed"),
        (b"HTTP/1.1 200 OK\r\nx-id: a\x7fb\r\ncontent-length: 5\r\n\r\n", b"", "malformed"),
    ],
    ids=["interim", "chunks", "extensions", "trailers", "headers", "control", "delete"],
)
async def test_response_that_costs_more_work_than_its_content_is_worth_is_refused(
    head: bytes, rest: bytes, problem: str
) -> None:
    pool = ConnectionPool()
    async with run_server(head, rest) as (server, origin), asyncio.timeout(TIMEOUT_S):
        server.sends_rest.set()
        with pytest.raises(ExchangeFailed, match=problem):
            await request(pool, origin, server, 0)
        await pool.close()


async def test_other_tasks_run_while_a_long_response_that_has_arrived_is_read() -> None:
    data = b"x" * 200_000
    rest = b"\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)
    pool, body, turns = ConnectionPool(), b"", 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with run_server(CHUNKED, rest) as (server, origin), asyncio.timeout(TIMEOUT_S):
        connection = await pool.take(origin, TIMEOUT_S)
        await connection.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"", TIMEOUT_S)
        response = await connection.receive("GET", TIMEOUT_S)
        server.sends_rest.set()
        while len(connection.buffer) < len(rest):  # noqa: ASYNC110 - has no event
            await asyncio.sleep(0.01)
        other, parts = asyncio.create_task(count_turns()), 0
        async for part in response.read():
            body, parts = body + part, parts + 1
            began = time.thread_time()
            while time.thread_time() - began < MAX_WORK_S:
                pass  # as if the piece were parsed
        other.cancel()
        connection.close()
    assert body == START + data
    assert parts >= len(data) // MAX_PART_BYTES
    assert turns >= parts - 1


async def test_http_connection_of_one_owner_is_not_used_for_another_owner() -> None:
    pool = ConnectionPool()
    async with run_server(PLAIN, b"") as (server, origin), asyncio.timeout(TIMEOUT_S):
        server.sends_rest.set()
        for owner in ("ann", "bob", "ann", "bob"):
            assert await request(pool, replace(origin, owner=owner), server, 0) == START
        await pool.close()
    assert len(server.writers) == 2


def find_address(listening: socket.socket) -> AddressInfo:
    return (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", listening.getsockname())


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, make_network_loop])
@pytest.mark.parametrize("first", ["refuses", "never_answers"])
def test_http_connection_uses_the_second_address_of_a_host_if_the_first_address_fails(
    first: str, make_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    with (
        socket.socket() as bad,
        socket.create_server(("127.0.0.1", 0)) as good,
        contextlib.ExitStack() as stack,
    ):
        bad.bind(("127.0.0.1", 0))
        if first == "never_answers":  # because its queue of connections is full
            bad.listen(0)
            for _ in range(2):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(bad.getsockname())
        with asyncio.Runner(loop_factory=make_loop) as runner:
            addresses = [find_address(bad), find_address(good)]
            with runner.run(connect_to_first(addresses)) as connected:
                assert connected.getpeername() == good.getsockname()


def test_refused_http_connection_raises_an_error_in_every_event_loop_implementation() -> None:
    with socket.socket() as bad:
        bad.bind(("127.0.0.1", 0))
        for make_loop in (asyncio.new_event_loop, make_network_loop):
            with asyncio.Runner(loop_factory=make_loop) as runner, pytest.raises(ConnectionRefusedError):
                runner.run(connect_to_first([find_address(bad)]))
