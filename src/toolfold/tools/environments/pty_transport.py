"""Run programs over remote terminals, for sandboxes that offer no other byte stream.

Types one line, by which the remote shell replaces itself with a helper script that passes any bytes:
`shell/pipe.sh` turns the terminal into three streams, `shell/terminal.sh` keeps it a terminal. Their control
messages are frames within the output, delimited by an unguessable mark. Does not know which service provides
the terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from toolfold.core.errors import EnvironmentFailed
from toolfold.tools.environments.backend import TerminalSize
from toolfold.tools.environments.scripts import script_with_arguments
from toolfold.tools.environments.timeouts import call_with_timeout, consume_exception

READY_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 5.0
CHUNK_BYTES = 1 << 15
MAX_CHUNKS_IN_FLIGHT = 8
"""Maximum chunks of input sent without an acknowledgement."""
_OUTPUT_SIGN, _FLOW_SIGN = b"\x1e", b"\x1d"
_MAX_EARLY_BYTES = 500
_CODE = re.compile(r"[0-9]{1,3}")
_MAX_FRAME_BYTES = 8_000  # the exit frame contains the end of the program's error output


class RemotePty(Protocol):
    """Interface to a terminal on a remote machine or sandbox."""

    async def send(self, data: bytes) -> None:
        """Write to the terminal. Raises if the terminal is gone."""

    async def wait_closed(self) -> tuple[int | None, str]:
        """Wait until the terminal is closed; return its shell's exit code, if known, and an error text."""

    async def resize(self, size: TerminalSize) -> None:
        """Change the size of the terminal."""

    async def disconnect(self) -> None:
        """Disconnect from the terminal."""


class FrameParser:
    """Parser that separates the output of a program from control frames within the output.

    Flow control frames may occur inside the exit frame and therefore have a different delimiter.
    """

    def __init__(self, mark: str) -> None:
        self._start = _OUTPUT_SIGN + mark.encode() + b" "
        self._flow_frames = tuple(
            _FLOW_SIGN + mark.encode() + b" " + each + _FLOW_SIGN for each in (b"g", b"r", b"o")
        )
        self._flow_pattern = re.compile(b"|".join(map(re.escape, self._flow_frames)))
        self._pending_flow = self._pending_frame = b""

    def split(self, data: bytes) -> list[bytes | str]:
        """Split output into program output and control frames, in order.

        Bytes that may be part of a frame are held back.
        """
        parts, position, data = list[bytes | str](), 0, self._pending_flow + data
        for match in self._flow_pattern.finditer(data):
            parts += [*self._split_frames(data[position : match.start()]), match[0][-2:-1].decode()]
            position = match.end()
        complete = len(data) - _partial_frame_length(data[position:], _FLOW_SIGN, *self._flow_frames)
        self._pending_flow = data[complete:]
        return parts + self._split_frames(data[position:complete])

    def _split_frames(self, data: bytes) -> list[bytes | str]:
        data, parts = self._pending_frame + data, list[bytes | str]()
        while (position := data.find(self._start)) >= 0:
            begin = position + len(self._start)
            end = data.find(_OUTPUT_SIGN, begin)
            if position:
                parts.append(data[:position])
            if end < 0 and len(data) - begin <= _MAX_FRAME_BYTES:
                self._pending_frame = data[position:]
                return parts
            if end < 0:  # too long for a frame
                parts.append(data[position:begin])
                data = data[begin:]
                continue
            parts.append(data[begin:end].decode(errors="replace"))
            data = data[end + 1 :]
        complete = len(data) - _partial_frame_length(data, _OUTPUT_SIGN, self._start)
        self._pending_frame = data[complete:]
        if complete:
            parts.append(data[:complete])
        return parts


def _partial_frame_length(data: bytes, sign: bytes, *frames: bytes) -> int:
    """Return the length of an incomplete control frame at the end of the data; 0 if there is none."""
    position = data.rfind(sign)
    return (
        len(data) - position
        if position >= 0 and any(each.startswith(data[position:]) for each in frames)
        else 0
    )


class PtyChannel:
    """Channel to a program that runs on a remote terminal. Pass the terminal's output to `feed`."""

    def __init__(self, *, terminal: bool, lease_s: int) -> None:
        """Prepare a channel over a remote terminal; nothing is started yet.

        The remote helper script exits `lease_s` seconds after the program unless it is asked to earlier.
        """
        self._terminal, self._lease_s = terminal, lease_s
        self._mark = secrets.token_hex(12)
        self._frames = FrameParser(self._mark)
        self._pty: RemotePty | None = None
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[bool] = loop.create_future()
        self._exit: asyncio.Future[int] = loop.create_future()
        self._chunks: deque[bytes | None] = deque()  # None marks the end of a batch
        self._changed = asyncio.Event()
        self._send_slots = asyncio.Semaphore(MAX_CHUNKS_IN_FLIGHT)
        self._output_ended = False
        self._early_output = b""
        self._error = ""
        self._tasks: set[asyncio.Future[Any]] = set()

    async def start(self, pty: RemotePty, state_dir: str, argv: Sequence[str]) -> None:
        """Start the program on the remote terminal. Raises EnvironmentFailed if that fails."""
        self._pty = pty
        self._run_in_background(self._watch_pty(pty))
        arguments = (
            (self._mark, *argv) if self._terminal else (self._mark, state_dir, str(self._lease_s), *argv)
        )
        text = script_with_arguments("terminal" if self._terminal else "pipe", *arguments).encode()
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                # Works in every shell, and is short enough for a terminal in line mode.
                await pty.send(_BOOTSTRAP_LINE.format(mark=self._mark, size=len(text)).encode())
                if not await self._ready:
                    raise ConnectionError(f"{self._error}: {self._output_before_start!r}")
                for begin in range(0, len(text), CHUNK_BYTES):
                    await pty.send(text[begin : begin + CHUNK_BYTES])
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError):
                raise EnvironmentFailed(
                    f"The remote shell does not respond: {self._output_before_start!r}.", advice=""
                ) from None
            raise

    async def feed(self, data: bytes) -> None:
        """Process output of the remote terminal."""
        for each in self._frames.split(data):
            if isinstance(each, str):
                await self._handle_frame(each)
            elif self._ready.done():
                self._chunks.append(each)
            else:
                self._early_output = (self._early_output + each)[-_MAX_EARLY_BYTES:]
        self._changed.set()

    async def read(self) -> bytes:
        while True:
            while self._chunks:
                data = self._chunks.popleft()
                if data is not None:
                    return data
                self._run_in_background(
                    self._send(b"a\n")
                )  # reading need not wait for the acknowledgement to be sent
            if self._output_ended:
                return b""
            self._changed.clear()
            await self._changed.wait()

    async def write(self, data: bytes) -> None:
        remaining = memoryview(data)
        while remaining and not self._output_ended:
            chunk, remaining = bytes(remaining[:CHUNK_BYTES]), remaining[CHUNK_BYTES:]
            if self._terminal:
                await self._send(chunk)
                continue
            await self._send_slots.acquire()
            if self._exit.done():
                return
            await self._send(b"d %d\n" % len(chunk) + chunk)

    async def close_input(self) -> None:
        if not self._terminal:
            await self._send(b"e\n")

    async def wait(self) -> int:
        return await asyncio.shield(self._exit)

    def resize(self, size: TerminalSize) -> None:
        if self._terminal and self._pty:
            self._run_in_background(_ignore_errors(self._pty.resize(size)))

    def error_text(self) -> str:
        return self._error

    async def close(self) -> None:
        if self._pty:
            with contextlib.suppress(TimeoutError):
                await call_with_timeout(CLOSE_TIMEOUT_S, self._disconnect(self._pty))
        for work in self._tasks:
            work.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT_S)
        self._finish(255, "")

    async def _disconnect(self, pty: RemotePty) -> None:
        await self._request_exit()
        await _ignore_errors(pty.disconnect())

    @property
    def _output_before_start(self) -> str:
        """Return the text that the terminal printed before the helper script started, for error messages."""
        return self._early_output.decode(errors="replace").strip()

    async def _handle_frame(self, frame: str) -> None:
        kind, _, rest = frame.partition(" ")
        if kind == "g":
            self._send_slots.release()
        elif kind == "r":
            self._chunks.append(None)
        elif kind == "o":
            self._output_ended = True
        elif kind == "x":
            code, _, error = rest.partition(" ")
            self._record_exit(int(code) if _CODE.fullmatch(code) else 255, error.strip())
        elif not self._ready.done():
            self._ready.set_result(True)
        if self._output_ended and self._exit.done():
            await self._request_exit()

    async def _watch_pty(self, pty: RemotePty) -> None:
        code, error = await pty.wait_closed()
        self._finish(255 if code is None else code, error or "the connection was closed")

    def _finish(self, code: int, error: str) -> None:
        self._output_ended = True
        self._record_exit(code, error)
        if not self._ready.done():
            self._ready.set_result(False)
        self._changed.set()

    def _record_exit(self, code: int, error: str) -> None:
        if self._exit.done():  # the exit frame may arrive after close
            return
        self._exit.set_result(code)
        self._error = error
        for _ in range(MAX_CHUNKS_IN_FLIGHT):  # unblock waiting writers
            self._send_slots.release()

    async def _request_exit(self) -> None:
        """Ask the remote helper script to exit."""
        await self._send(f"\nq {self._mark}\n".encode() if self._terminal else b"q\n")

    async def _send(self, data: bytes) -> None:
        if self._pty:
            await _ignore_errors(self._pty.send(data))

    def _run_in_background(self, work: Awaitable[Any]) -> None:
        task: asyncio.Future[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(consume_exception)


_BOOTSTRAP_LINE = (
    ' exec sh -c \'stty raw -echo && printf "\\036%s \\036" {mark} &&'
    ' eval "$(dd bs={size} count=1 iflag=fullblock 2>/dev/null)"\'\n'
)


async def _ignore_errors(work: Awaitable[object]) -> None:
    """Await `work` and ignore its exceptions, because a lost connection is detected elsewhere."""
    with contextlib.suppress(Exception):
        await work
