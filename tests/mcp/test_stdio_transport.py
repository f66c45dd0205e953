"""Messages over a server's stdout: no input breaks the transport, and no message is lost."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCRequest

from tests.thorough import try_examples
from toolfold.mcp.notification_limiter import MAX_NOTIFICATIONS_PER_SECOND, NotificationLimiter
from toolfold.mcp.server_process import ServerProcess
from toolfold.mcp.stdio_transport import MAX_MESSAGE_BYTES, StdioTransport

TIMEOUT_S = 60.0
NOISE = st.binary(max_size=60).map(lambda noise: noise.replace(b"\n", b" "))


class FakeProcess:
    """Both ends of a simulated server process."""

    def __init__(self, stdin: asyncio.StreamWriter, receiving: int) -> None:
        self.stdout, self.stdin = asyncio.StreamReader(limit=1 << 20), stdin
        self._receiving = receiving

    def read(self) -> None:
        """Read what was written to the server's stdin."""
        os.read(self._receiving, 1 << 16)


class Session:
    """Stands in for the SDK's session on the client side of the transport."""

    def __init__(
        self,
        process: FakeProcess,
        wire: StdioTransport,
        reading: Any,
        writing: Any,
        disconnected: asyncio.Event,
    ) -> None:
        self.server, self.wire, self._reading, self._writing, self.disconnected = (
            process,
            wire,
            reading,
            writing,
            disconnected,
        )

    async def ask(self, id_: int | str, method: str = "tools/call") -> None:
        await self._writing.send(SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=id_, method=method)))
        await asyncio.sleep(0.01)

    async def cancel(self, id_: int) -> None:
        notification_line = JSONRPCNotification(
            jsonrpc="2.0", method="notifications/cancelled", params={"requestId": id_}
        )
        await self._writing.send(SessionMessage(notification_line))
        await asyncio.sleep(0.01)

    async def receive_all(self) -> list[Any]:
        """Receive all messages until the end."""
        return [each.message async for each in self._reading]

    async def next(self) -> Any:
        return (await self._reading.receive()).message


@asynccontextmanager
async def open_session(notes: list[str] | None = None, **options: Any) -> AsyncIterator[Session]:
    receiving, sending = os.pipe()
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(sending, "wb", 0)
    )
    process, disconnected = (
        FakeProcess(asyncio.StreamWriter(transport, protocol, None, loop), receiving),
        asyncio.Event(),
    )
    note = notes.append if notes is not None else lambda _: None
    wire = StdioTransport(cast(ServerProcess, process), note, disconnected, **options)
    try:
        async with asyncio.timeout(TIMEOUT_S), wire.open_streams() as (reading, writing):
            yield Session(process, wire, reading, writing, disconnected)
    finally:
        transport.close()
        os.close(receiving)


def response_line(id_: Any, **result: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id_, "result": result}).encode()


def notification_line(number: int) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": "notice", "params": {"number": number}}).encode()


def feed(stream: asyncio.StreamReader, data: bytes, cuts: Sequence[int]) -> None:
    """Feed the data in chunks."""
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in pairwise(places):
        stream.feed_data(data[start:end])
    stream.feed_eof()


@given(data=st.binary(max_size=400), cuts=st.lists(st.integers(0, 10_000), max_size=6))
@try_examples(60)
def test_arbitrary_bytes_on_server_stdout_are_read_to_the_end_without_an_error(
    data: bytes, cuts: list[int]
) -> None:
    async def read() -> None:
        async with open_session() as session:
            await session.ask(1)
            feed(session.server.stdout, data, cuts)
            await session.receive_all()
            assert session.disconnected.is_set()

    asyncio.run(read())


@given(
    lines=st.lists(st.one_of(NOISE, st.integers(0, 99)), max_size=20),
    cuts=st.lists(st.integers(0, 10_000), max_size=6),
)
@try_examples(60)
def test_valid_messages_between_invalid_output_lines_of_a_server_arrive_in_order(
    lines: list[bytes | int], cuts: list[int]
) -> None:
    async def read() -> list[int]:
        async with open_session() as session:
            data = b"\n".join(notification_line(line) if isinstance(line, int) else line for line in lines)
            feed(session.server.stdout, data + b"\n", cuts)
            return [each.params["number"] for each in await session.receive_all()]

    assert asyncio.run(read()) == [line for line in lines if isinstance(line, int)]


@given(
    st.lists(st.sampled_from([b"{", b"}", b'"jsonrpc"', b":", b'"2.0"', b'"id"', b"1", b",", b'"result"']))
)
@try_examples(60)
def test_request_receives_exactly_one_response_or_error_after_a_malformed_server_message(
    pieces: list[bytes],
) -> None:
    async def read() -> list[Any]:
        async with open_session() as session:
            await session.ask(1)
            session.server.stdout.feed_data(b"".join(pieces) + b"\n")
            session.server.stdout.feed_data(response_line(1, done=True) + b"\n")
            session.server.stdout.feed_eof()
            return await session.receive_all()

    assert [each.id for each in asyncio.run(read())] == [1]


async def test_invalid_utf8_in_a_server_response_becomes_the_replacement_character() -> None:
    async with open_session() as session:
        await session.ask(1)
        session.server.stdout.feed_data(response_line(1, text="caf@").replace(b"@", b"\xe9") + b"\n")
        assert (await session.next()).result["text"] == "caf\N{REPLACEMENT CHARACTER}"


async def test_oversized_response_line_fails_its_request_immediately_and_no_other_request() -> None:
    async with open_session() as session:
        await session.ask(1)
        await session.ask(2)
        session.server.stdout.feed_data(response_line(1, text="@")[:-4])
        session.server.stdout.feed_data(b"x" * (MAX_MESSAGE_BYTES + 1))
        failed = await session.next()
        assert (failed.id, failed.error.data) == (1, {"toolfold.fault": "too-large"})
        session.server.stdout.feed_data(
            b"x" * MAX_MESSAGE_BYTES + b'"}}\n' + response_line(2, done=True) + b"\n"
        )
        assert (await session.next()).id == 2


async def test_request_fails_if_its_oversized_response_line_has_the_id_at_the_end() -> None:
    async with open_session() as session:
        await session.ask("one")
        await session.ask("two")
        session.server.stdout.feed_data(b'{"jsonrpc": "2.0", "result": {"text": "' + b"x" * MAX_MESSAGE_BYTES)
        session.server.stdout.feed_data(b'"}, "id": "two"}\n' + response_line("one") + b"\n")
        assert (await session.next()).id == "two"
        assert (await session.next()).id == "one"


async def test_last_output_line_of_a_server_without_a_newline_is_not_parsed_as_a_message() -> None:
    async with open_session() as session:
        await session.ask(1)
        session.server.stdout.feed_data(response_line(1))
        session.server.stdout.feed_eof()
        assert await session.receive_all() == []


async def test_responses_to_cancelled_requests_and_duplicate_responses_of_a_server_are_ignored() -> None:
    async with open_session() as session:
        await session.ask(1)
        await session.ask(2)
        await session.cancel(1)
        session.server.stdout.feed_data(
            b"\n".join([response_line(1), response_line(1), response_line(2), response_line(2), b""])
        )
        session.server.stdout.feed_eof()
        assert [each.id for each in await session.receive_all()] == [2]


async def test_plain_text_line_on_server_stdout_is_logged_and_does_not_fail_the_pending_request() -> None:
    notes: list[str] = []
    async with open_session(notes) as session:
        await session.ask(1)
        session.server.stdout.feed_data(b"thinking\n")
        await asyncio.sleep(1.2)  # longer than the grace period
        session.server.stdout.feed_data(response_line(1, done=True) + b"\n")
        assert (await session.next()).result["done"] is True
    assert notes == ["thinking"]


async def test_pending_request_fails_if_the_server_sends_only_a_response_with_an_unknown_id() -> None:
    async with open_session() as session:
        await session.ask(1)
        session.server.stdout.feed_data(response_line(77) + b"\n")
        failed = await session.next()
        assert (failed.id, failed.error.data) == (1, {"toolfold.fault": "garbled"})


async def test_unanswered_discovery_request_to_a_server_times_out_without_failing_other_requests() -> None:
    async with open_session(limits={"server/discover": 0.05}) as session:
        await session.ask(1, "server/discover")
        await session.ask(2)
        session.server.read()
        failed = await session.next()
        assert (failed.id, failed.error.data) == (1, {"toolfold.fault": "unknown"})
        session.server.stdout.feed_data(response_line(2) + b"\n")
        assert (await session.next()).id == 2


@pytest.mark.skipif(sys.platform != "linux", reason="nobody else tells what is unread")
async def test_timeout_of_a_discovery_request_starts_when_the_server_has_read_the_request() -> None:
    async with open_session(limits={"server/discover": 0.05}) as session:
        await session.ask(1, "server/discover")
        await asyncio.sleep(0.3)  # the server is still starting, past the limit several times
        session.server.read()
        session.server.stdout.feed_data(response_line(1, known=True) + b"\n")
        assert (await session.next()).result["known"] is True


async def test_sending_a_request_to_a_server_that_closed_its_stdin_ends_the_connection() -> None:
    async with open_session() as session:
        session.server.stdin.transport.abort()
        await session.ask(1)
        await session.disconnected.wait()


@given(st.integers(0, 3 * MAX_NOTIFICATIONS_PER_SECOND))
@try_examples(20)
def test_server_notifications_above_the_limit_per_second_are_dropped_and_responses_are_kept(
    count: int,
) -> None:
    notes: list[str] = []
    sieve = NotificationLimiter(notes.append)
    passed = sum(not sieve.should_drop(notification_line(number)) for number in range(count))
    assert min(count, MAX_NOTIFICATIONS_PER_SECOND) <= passed
    assert passed == count or notes
    assert not sieve.should_drop(response_line(1))
