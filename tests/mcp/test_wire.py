"""Messages over a server's standard output: whatever comes, nothing breaks and no message is lost."""

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
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCRequest

from toolfold.sources.mcp.child import Child
from toolfold.sources.mcp.sieve import MOST_NOTICES, Sieve
from toolfold.sources.mcp.wire import LARGEST_MESSAGE, Wire

PATIENCE = 60.0
NOISE = st.binary(max_size=60).map(lambda noise: noise.replace(b"\n", b" "))


class Ends:
    """The two ends of a server that says what it is told to."""

    def __init__(self, stdin: asyncio.StreamWriter, receiving: int) -> None:
        self.stdout, self.stdin = asyncio.StreamReader(limit=1 << 20), stdin
        self._receiving = receiving

    def read(self) -> None:
        """Take what was said to it."""
        os.read(self._receiving, 1 << 16)


class Session:
    """The other side of the wire, as the SDK's session would be."""

    def __init__(self, ends: Ends, wire: Wire, reading: Any, writing: Any, over: asyncio.Event) -> None:
        self.server, self.wire, self._reading, self._writing, self.over = ends, wire, reading, writing, over

    async def ask(self, id_: int | str, method: str = "tools/call") -> None:
        await self._writing.send(SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=id_, method=method)))
        await asyncio.sleep(0.01)

    async def cancel(self, id_: int) -> None:
        notice = JSONRPCNotification(
            jsonrpc="2.0", method="notifications/cancelled", params={"requestId": id_}
        )
        await self._writing.send(SessionMessage(notice))
        await asyncio.sleep(0.01)

    async def heard(self) -> list[Any]:
        """Everything until the end."""
        return [each.message async for each in self._reading]

    async def next(self) -> Any:
        return (await self._reading.receive()).message


@asynccontextmanager
async def connected(notes: list[str] | None = None, **options: Any) -> AsyncIterator[Session]:
    receiving, sending = os.pipe()
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(sending, "wb", 0)
    )
    ends, over = Ends(asyncio.StreamWriter(transport, protocol, None, loop), receiving), asyncio.Event()
    note = notes.append if notes is not None else lambda _: None
    wire = Wire(cast(Child, ends), note, over, **options)
    try:
        async with asyncio.timeout(PATIENCE), wire.transport() as (reading, writing):
            yield Session(ends, wire, reading, writing, over)
    finally:
        transport.close()
        os.close(receiving)


def answer(id_: Any, **result: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id_, "result": result}).encode()


def notice(number: int) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": "notice", "params": {"number": number}}).encode()


def feed(stream: asyncio.StreamReader, data: bytes, cuts: Sequence[int]) -> None:
    """The data in pieces."""
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in pairwise(places):
        stream.feed_data(data[start:end])
    stream.feed_eof()


@given(data=st.binary(max_size=400), cuts=st.lists(st.integers(0, 10_000), max_size=6))
@settings(max_examples=60, deadline=None)
def test_any_bytes_in_any_pieces_are_read_to_their_end(data: bytes, cuts: list[int]) -> None:
    async def read() -> None:
        async with connected() as session:
            await session.ask(1)
            feed(session.server.stdout, data, cuts)
            await session.heard()
            assert session.over.is_set()

    asyncio.run(read())


@given(
    lines=st.lists(st.one_of(NOISE, st.integers(0, 99)), max_size=20),
    cuts=st.lists(st.integers(0, 10_000), max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_messages_among_noise_arrive_all_and_in_order(lines: list[bytes | int], cuts: list[int]) -> None:
    async def read() -> list[int]:
        async with connected() as session:
            data = b"\n".join(notice(line) if isinstance(line, int) else line for line in lines)
            feed(session.server.stdout, data + b"\n", cuts)
            return [each.params["number"] for each in await session.heard()]

    assert asyncio.run(read()) == [line for line in lines if isinstance(line, int)]


@given(
    st.lists(st.sampled_from([b"{", b"}", b'"jsonrpc"', b":", b'"2.0"', b'"id"', b"1", b",", b'"result"']))
)
@settings(max_examples=60, deadline=None)
def test_pieces_of_messages_fail_at_most_the_request_they_name(pieces: list[bytes]) -> None:
    async def read() -> list[Any]:
        async with connected() as session:
            await session.ask(1)
            session.server.stdout.feed_data(b"".join(pieces) + b"\n")
            session.server.stdout.feed_data(answer(1, done=True) + b"\n")
            session.server.stdout.feed_eof()
            return await session.heard()

    assert [each.id for each in asyncio.run(read())] == [1]


async def test_an_answer_of_another_encoding_arrives_with_marks_where_it_cannot_be_read() -> None:
    async with connected() as session:
        await session.ask(1)
        session.server.stdout.feed_data(answer(1, text="caf@").replace(b"@", b"\xe9") + b"\n")
        assert (await session.next()).result["text"] == "caf\N{REPLACEMENT CHARACTER}"


async def test_a_line_that_is_too_long_fails_its_request_before_it_ends_and_no_other() -> None:
    async with connected() as session:
        await session.ask(1)
        await session.ask(2)
        session.server.stdout.feed_data(answer(1, text="@")[:-4])
        session.server.stdout.feed_data(b"x" * (LARGEST_MESSAGE + 1))
        failed = await session.next()
        assert (failed.id, failed.error.data) == (1, {"toolfold.fault": "too-large"})
        session.server.stdout.feed_data(b"x" * LARGEST_MESSAGE + b'"}}\n' + answer(2, done=True) + b"\n")
        assert (await session.next()).id == 2


async def test_a_line_that_is_too_long_and_names_its_request_last_fails_that_one() -> None:
    async with connected() as session:
        await session.ask("one")
        await session.ask("two")
        session.server.stdout.feed_data(b'{"jsonrpc": "2.0", "result": {"text": "' + b"x" * LARGEST_MESSAGE)
        session.server.stdout.feed_data(b'"}, "id": "two"}\n' + answer("one") + b"\n")
        assert (await session.next()).id == "two"
        assert (await session.next()).id == "one"


async def test_what_has_no_end_of_line_is_no_message() -> None:
    async with connected() as session:
        await session.ask(1)
        session.server.stdout.feed_data(answer(1))
        session.server.stdout.feed_eof()
        assert await session.heard() == []


async def test_late_answers_and_second_answers_reach_nobody_and_blame_nobody() -> None:
    async with connected() as session:
        await session.ask(1)
        await session.ask(2)
        await session.cancel(1)
        session.server.stdout.feed_data(b"\n".join([answer(1), answer(1), answer(2), answer(2), b""]))
        session.server.stdout.feed_eof()
        assert [each.id for each in await session.heard()] == [2]


async def test_plain_words_go_to_the_log_and_blame_nobody() -> None:
    notes: list[str] = []
    async with connected(notes) as session:
        await session.ask(1)
        session.server.stdout.feed_data(b"thinking\n")
        await asyncio.sleep(1.2)  # longer than a suspicion lasts
        session.server.stdout.feed_data(answer(1, done=True) + b"\n")
        assert (await session.next()).result["done"] is True
    assert notes == ["thinking"]


async def test_an_answer_to_nobody_fails_what_waits_if_nothing_else_comes() -> None:
    async with connected() as session:
        await session.ask(1)
        session.server.stdout.feed_data(answer(77) + b"\n")
        failed = await session.next()
        assert (failed.id, failed.error.data) == (1, {"toolfold.fault": "garbled"})


async def test_silence_to_a_question_that_may_be_unknown_is_taken_for_a_no() -> None:
    async with connected(limits={"server/discover": 0.05}) as session:
        await session.ask(1, "server/discover")
        await session.ask(2)
        session.server.read()
        failed = await session.next()
        assert (failed.id, failed.error.data) == (1, {"toolfold.fault": "unknown"})
        session.server.stdout.feed_data(answer(2) + b"\n")
        assert (await session.next()).id == 2


@pytest.mark.skipif(sys.platform != "linux", reason="nobody else tells what is unread")
async def test_a_question_that_a_server_has_not_heard_yet_is_no_silence() -> None:
    async with connected(limits={"server/discover": 0.05}) as session:
        await session.ask(1, "server/discover")
        await asyncio.sleep(0.3)  # it starts, and takes several times what it is given
        session.server.read()
        session.server.stdout.feed_data(answer(1, known=True) + b"\n")
        assert (await session.next()).result["known"] is True


async def test_a_server_that_no_longer_reads_ends_the_connection() -> None:
    async with connected() as session:
        session.server.stdin.transport.abort()
        await session.ask(1)
        await session.over.wait()


@given(st.integers(0, 3 * MOST_NOTICES))
@settings(max_examples=20, deadline=None)
def test_a_flood_of_notifications_is_dropped_and_answers_are_not(count: int) -> None:
    notes: list[str] = []
    sieve = Sieve(notes.append)
    passed = sum(not sieve.drops(notice(number)) for number in range(count))
    assert min(count, MOST_NOTICES) <= passed
    assert passed == count or notes
    assert not sieve.drops(answer(1))
