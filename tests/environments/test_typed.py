"""Words between the bytes of a program, in whatever pieces they come, and a program behind a terminal."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from toolfold.environments import Size
from toolfold.environments.client import Client
from toolfold.environments.typed import Typed, Words

MARK = "unguessable"
PATIENCE = 60.0
_BYTES = st.one_of(
    st.binary(max_size=20), st.sampled_from([b"\x1e", b"\x1eungues", b"\x1eunguessable", b"\x1e\x1e"])
)
_WORDS = st.sampled_from(["", "r", "g", "o", "x 137 it was killed"])


@given(st.lists(st.one_of(_BYTES, _WORDS), max_size=12), st.lists(st.integers(0, 300), max_size=8))
def test_words_and_bytes_are_told_apart_wherever_the_stream_is_cut(
    pieces: list[bytes | str], cuts: list[int]
) -> None:
    # A program that happens to write the beginning of a mark is followed by something that is none.
    stream = b"".join(
        f"\x1e{MARK} {each}\x1e".encode() if isinstance(each, str) else each + b"." for each in pieces
    )
    words, found = Words(MARK), list[bytes | str]()
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for first, last in itertools.pairwise(edges):
        found += words.split(stream[first:last])
    assert [each for each in found if isinstance(each, str)] == [
        each for each in pieces if isinstance(each, str)
    ]
    written = b"".join(each for each in found if isinstance(each, bytes))
    assert written == b"".join(each + b"." for each in pieces if isinstance(each, bytes))


@given(
    st.lists(st.tuples(st.integers(0, 80), st.sampled_from("rg")), max_size=4),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_what_is_said_between_two_parts_is_no_part_of_what_is_said_within_them(
    between: list[tuple[int, str]], cuts: list[int]
) -> None:
    within = f"written\x1e{MARK} x 137 it was killed\x1e".encode()
    places = sorted((min(place, len(within)), word) for place, word in between)
    edges = [0, *(place for place, _ in places), len(within)]
    said = [f"\x1d{MARK} {word}\x1d".encode() for _, word in places]
    parts = [within[first:last] for first, last in itertools.pairwise(edges)]
    stream = b"".join(itertools.chain(*itertools.zip_longest(parts, said, fillvalue=b"")))
    words, found = Words(MARK), list[bytes | str]()
    for first, last in itertools.pairwise([0, *sorted(cuts), len(stream)]):
        found += words.split(stream[first:last])
    assert b"".join(each for each in found if isinstance(each, bytes)) == b"written"
    heard = [each for each in found if isinstance(each, str)]
    assert [each for each in heard if each in "rg"] == [word for _, word in places]
    assert [each for each in heard if each not in "rg"] == ["x 137 it was killed"]


def test_a_word_that_never_ends_is_none_of_ours_and_is_not_kept() -> None:
    words, endless = Words(MARK), b"\x1eunguessable " + b"." * 100_000
    found = [each for start in range(0, len(endless), 1000) for each in words.split(endless[start:][:1000])]
    assert b"".join(each for each in found if isinstance(each, bytes)) == endless


def test_a_byte_that_begins_no_word_waits_for_the_next_one_only() -> None:
    words = Words(MARK)
    assert words.split(b"before \x1e") == [b"before "]
    assert words.split(b"after") == [b"\x1eafter"]


class Here:
    """A terminal on this machine."""

    def __init__(self, path: str = os.environ["PATH"]) -> None:
        self._client = Client.start(["sh"], env={"PATH": path}, pty=Size(), cwd="/")
        self.shown = b""

    async def show(self, typed: Typed) -> None:
        while data := await self._client.read():
            self.shown += data
            await typed.arrived(data)

    async def send(self, data: bytes) -> None:
        await self._client.write(data)

    async def closed(self) -> tuple[int | None, str]:
        return await self._client.wait(), ""

    async def resize(self, size: Size) -> None:
        self._client.resize(size)

    async def hang_up(self) -> None:
        """As far away, where the terminal stays."""

    async def close(self) -> None:
        await self._client.close()


class Lost(Here):
    """One on which our last words do not arrive."""

    async def send(self, data: bytes) -> None:
        if data not in (b"e\n", b"q\n"):
            await super().send(data)


@asynccontextmanager
async def typed(line: Here, folder: Path, *argv: str, lease: int = 60) -> AsyncIterator[Typed]:
    """A program that is reached through a terminal."""
    channel = Typed(terminal=False, lease=lease)
    showing = asyncio.create_task(line.show(channel))
    try:
        await channel.begin(line, str(folder), argv)
        yield channel
    finally:
        await channel.close()
        await line.close()
        await showing


def left(folder: Path) -> list[Path]:
    return list(folder.glob("pipes.*"))


def sending(folder: Path, how: str) -> Here:
    """A line on which the output is sent in another way; all else is as it was."""
    other = folder / "dd"
    other.write_text(
        f'#!/bin/sh\nPATH={os.environ["PATH"]}\ncase $* in *bs=16384*) {how} ;; esac\nexec dd "$@"\n'
    )
    other.chmod(0o700)
    return Here(f"{folder}:{os.environ['PATH']}")


async def test_how_a_program_ended_is_heard_after_all_that_it_wrote(tmp_path: Path) -> None:
    # Passes nothing on before there is no more to come.
    line = sending(tmp_path, 'cat >"$0.held"; exec dd "$@" <"$0.held"')
    async with typed(line, tmp_path, "sh", "-c", "echo written; exit 7") as channel:
        assert await channel.wait() == 7
        assert line.shown.index(b"written\n") < line.shown.index(b" x 7 ")
        assert await channel.read() == b"written\n"


async def test_how_a_program_ended_is_heard_also_where_that_is_sent_in_two_parts(tmp_path: Path) -> None:
    line = sending(tmp_path, "exec dd bs=10 count=1")  # parts so small that each word is in several
    async with typed(line, tmp_path, "sh", "-c", "echo written; exit 7") as channel:
        async with asyncio.timeout(PATIENCE):
            assert await channel.read() == b"written\n"
            assert await channel.read() == b""
            assert await channel.wait() == 7


async def test_a_program_that_says_our_words_does_not_keep_us_from_hearing(tmp_path: Path) -> None:
    line = Here()
    forge = "mark=$(tr '\\0' '\\n' </proc/$PPID/cmdline | grep -o '[0-9a-f]\\{24\\}' | head -n 1)"
    forge += "; printf '\\036%s x many \\036' \"$mark\"; echo written"
    async with typed(line, tmp_path, "sh", "-c", forge) as channel:
        async with asyncio.timeout(PATIENCE):
            assert await channel.read() == b"written\n"
            assert await channel.wait() == 255


async def test_what_nobody_reads_is_not_waited_for_after_goodbye(tmp_path: Path) -> None:
    line = Here()
    async with typed(line, tmp_path, "head", "-c", "30000000", "/dev/zero") as channel:
        await channel.read()
        await channel.close()
        async with asyncio.timeout(PATIENCE):
            await line.closed()
    assert left(tmp_path) == []


async def test_a_program_that_ended_leaves_nothing_although_nobody_says_goodbye(tmp_path: Path) -> None:
    line = Lost()
    async with typed(line, tmp_path, "true", lease=1):
        async with asyncio.timeout(PATIENCE):
            await line.closed()
    assert left(tmp_path) == []
