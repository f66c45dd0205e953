"""Control frames in terminal output, however it is split into chunks, and programs behind a terminal."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from toolfold.tools.environments import TerminalSize
from toolfold.tools.environments.local_process import LocalProcess
from toolfold.tools.environments.pty_transport import FrameParser, PtyChannel

MARK = "unguessable"
WAIT_TIMEOUT_S = 60.0
_BYTES = st.one_of(
    st.binary(max_size=20), st.sampled_from([b"\x1e", b"\x1eungues", b"\x1eunguessable", b"\x1e\x1e"])
)
_WORDS = st.sampled_from(["", "r", "g", "o", "x 137 it was killed"])


@given(st.lists(st.one_of(_BYTES, _WORDS), max_size=12), st.lists(st.integers(0, 300), max_size=8))
def test_frame_parser_separates_control_frames_from_output_for_any_split_into_chunks(
    pieces: list[bytes | str], cuts: list[int]
) -> None:
    # Output that happens to end with the beginning of a frame is followed by other bytes.
    stream = b"".join(
        f"\x1e{MARK} {each}\x1e".encode() if isinstance(each, str) else each + b"." for each in pieces
    )
    words, found = FrameParser(MARK), list[bytes | str]()
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
def test_frame_parser_extracts_flow_control_frames_from_inside_an_exit_frame(
    between: list[tuple[int, str]], cuts: list[int]
) -> None:
    within = f"written\x1e{MARK} x 137 it was killed\x1e".encode()
    places = sorted((min(place, len(within)), word) for place, word in between)
    edges = [0, *(place for place, _ in places), len(within)]
    said = [f"\x1d{MARK} {word}\x1d".encode() for _, word in places]
    parts = [within[first:last] for first, last in itertools.pairwise(edges)]
    stream = b"".join(itertools.chain(*itertools.zip_longest(parts, said, fillvalue=b"")))
    words, found = FrameParser(MARK), list[bytes | str]()
    for first, last in itertools.pairwise([0, *sorted(cuts), len(stream)]):
        found += words.split(stream[first:last])
    assert b"".join(each for each in found if isinstance(each, bytes)) == b"written"
    heard = [each for each in found if isinstance(each, str)]
    assert [each for each in heard if each in "rg"] == [word for _, word in places]
    assert [each for each in heard if each not in "rg"] == ["x 137 it was killed"]


def test_frame_parser_returns_an_unterminated_control_frame_as_terminal_output() -> None:
    words, endless = FrameParser(MARK), b"\x1eunguessable " + b"." * 100_000
    found = [each for start in range(0, len(endless), 1000) for each in words.split(endless[start:][:1000])]
    assert b"".join(each for each in found if isinstance(each, bytes)) == endless


def test_frame_parser_returns_a_lone_frame_delimiter_as_terminal_output_with_the_next_byte() -> None:
    words = FrameParser(MARK)
    assert words.split(b"before \x1e") == [b"before "]
    assert words.split(b"after") == [b"\x1eafter"]


class LocalPty:
    """Terminal on this machine."""

    def __init__(self, path: str = os.environ["PATH"]) -> None:
        self._client = LocalProcess.start(["sh"], env={"PATH": path}, pty=TerminalSize(), cwd="/")
        self.shown = b""

    async def show(self, open_channel: PtyChannel) -> None:
        while data := await self._client.read():
            self.shown += data
            await open_channel.feed(data)

    async def send(self, data: bytes) -> None:
        await self._client.write(data)

    async def wait_closed(self) -> tuple[int | None, str]:
        return await self._client.wait(), ""

    async def resize(self, size: TerminalSize) -> None:
        self._client.resize(size)

    async def disconnect(self) -> None:
        """Do nothing, because the terminal stays open when a client disconnects from a remote server."""

    async def close(self) -> None:
        await self._client.close()


class LossyPty(LocalPty):
    """Terminal that loses the quit request."""

    async def send(self, data: bytes) -> None:
        if data not in (b"e\n", b"q\n"):
            await super().send(data)


@asynccontextmanager
async def open_channel(
    line: LocalPty, folder: Path, *argv: str, lease: int = 60
) -> AsyncIterator[PtyChannel]:
    """Start a program behind a terminal."""
    channel = PtyChannel(terminal=False, lease_s=lease)
    showing = asyncio.create_task(line.show(channel))
    try:
        await channel.start(line, str(folder), argv)
        yield channel
    finally:
        await channel.close()
        await line.close()
        await showing


def leftover_files(folder: Path) -> list[Path]:
    return list(folder.glob("pipes.*"))


def pty_with_custom_sender(folder: Path, how: str) -> LocalPty:
    """Return a terminal where the helper script's `dd` is replaced by the given command."""
    other = folder / "dd"
    other.write_text(
        f'#!/bin/sh\nPATH={os.environ["PATH"]}\ncase $* in *bs=16384*) {how} ;; esac\nexec dd "$@"\n'
    )
    other.chmod(0o700)
    return LocalPty(f"{folder}:{os.environ['PATH']}")


async def test_exit_of_a_program_on_a_remote_terminal_is_reported_after_all_output(tmp_path: Path) -> None:
    # Sends nothing before the program's output has ended.
    line = pty_with_custom_sender(tmp_path, 'cat >"$0.held"; exec dd "$@" <"$0.held"')
    async with open_channel(line, tmp_path, "sh", "-c", "echo written; exit 7") as channel:
        assert await channel.wait() == 7
        assert line.shown.index(b"written\n") < line.shown.index(b" x 7 ")
        assert await channel.read() == b"written\n"


async def test_exit_code_is_reported_if_the_exit_frame_arrives_in_several_reads(tmp_path: Path) -> None:
    line = pty_with_custom_sender(
        tmp_path, "exec dd bs=10 count=1"
    )  # batches so small that each frame spans several
    async with open_channel(line, tmp_path, "sh", "-c", "echo written; exit 7") as channel:
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            assert await channel.read() == b"written\n"
            assert await channel.read() == b""
            assert await channel.wait() == 7


async def test_reading_output_ends_normally_if_a_program_prints_a_forged_exit_frame(tmp_path: Path) -> None:
    line = LocalPty()
    forge = "mark=$(tr '\\0' '\\n' </proc/$PPID/cmdline | grep -o '[0-9a-f]\\{24\\}' | head -n 1)"
    forge += "; printf '\\036%s x many \\036' \"$mark\"; echo written"
    async with open_channel(line, tmp_path, "sh", "-c", forge) as channel:
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            assert await channel.read() == b"written\n"
            assert await channel.wait() == 255


async def test_remote_terminal_with_unread_output_can_be_closed_and_leaves_no_files(tmp_path: Path) -> None:
    line = LocalPty()
    async with open_channel(line, tmp_path, "head", "-c", "30000000", "/dev/zero") as channel:
        await channel.read()
        await channel.close()
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await line.wait_closed()
    assert leftover_files(tmp_path) == []


async def test_helper_script_on_a_remote_terminal_exits_after_its_program_even_without_a_quit_request(
    tmp_path: Path,
) -> None:
    line = LossyPty()
    async with open_channel(line, tmp_path, "true", lease=1):
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await line.wait_closed()
    assert leftover_files(tmp_path) == []
