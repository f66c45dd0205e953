"""A running foreground command: its output, its input and its exit.

A command is over when its shell has exited, not when its output is closed: processes that it left running may
hold the output open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from toolfold.tools.environments.backend import Channel, TerminalSize
from toolfold.tools.environments.end_mark import CommandExit, EndMarkParser

LINGER_TIMEOUT_S = 0.2
"""How long to wait for the client program after the shell has reported its exit."""
QUIET_TIMEOUT_S = 5.0
"""After the shell exited without a report, output is considered complete after this long without new data."""
LOST_EXIT_CODE = 255


class RunningCommand:
    """A command that runs in the foreground."""

    def __init__(
        self,
        run_id: str,
        channel: Channel,
        end_mark: EndMarkParser,
        silence: asyncio.Future[None] | None = None,
    ) -> None:
        """Wrap the channel of a started command.

        `silence` is done once the target is considered unreachable.
        """
        self.run_id = run_id
        self.may_still_run = False
        """True if processes of the command may still run, or if the guard could not be asked about them."""
        self._silence = silence or asyncio.get_running_loop().create_future()
        self._channel, self._end_mark = channel, end_mark
        self._read_task: asyncio.Future[bytes] | None = None
        self._exit_task = asyncio.ensure_future(channel.wait())
        self._at_end = False

    async def read(self) -> bytes:
        """Return the next output of the command; empty at the end."""
        while not self._at_end:
            data = await self._read_chunk()
            output = self._end_mark.feed(data) if data else self._end_mark.flush()
            self._at_end = not data or self._end_mark.exit is not None
            if output:
                return output
        return b""

    async def write(self, data: bytes) -> None:
        """Write to the standard input of the command."""
        await self._channel.write(data)

    async def feed(self, data: bytes) -> None:
        """Write the whole standard input of the command and close it."""
        await self._channel.write(data)
        await self._channel.close_input()

    def resize(self, size: TerminalSize) -> None:
        """Change the size of the command's terminal."""
        self._channel.resize(size)

    @property
    def reported_exit(self) -> CommandExit | None:
        """Return the exit code and directory that the command's shell reported; None before the report."""
        return self._end_mark.exit

    @property
    def is_silent(self) -> bool:
        """Return True if the target is considered lost, because it has not responded for too long."""
        return self._silence.done()

    async def exit_code(self) -> int:
        """Wait for the program that runs the command (`docker`, `ssh` …) and return its exit code.

        The code is 255 if the target does not respond any more.
        """
        await asyncio.wait({self._exit_task, self._silence}, return_when=asyncio.FIRST_COMPLETED)
        return (
            self._exit_task.result()
            if self._exit_task.done() and not self._exit_task.cancelled()
            else LOST_EXIT_CODE
        )

    async def wait_gone(self, timeout_s: float) -> bool:
        """Wait until the client program (ssh …) exits or the target is lost; return False on timeout."""
        ends = {self._exit_task, self._silence}
        await asyncio.wait(ends, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return any(each.done() for each in ends)

    def error_text(self) -> str:
        fallback = "the target no longer responds" if self.is_silent else ""
        return self._channel.error_text() or fallback

    async def close(self) -> None:
        """Release the streams of the command."""
        if self._read_task:
            self._read_task.cancel()
        if self._end_mark.exit:  # its shell is about to exit; killing it could interrupt its cleanup
            await asyncio.wait({self._exit_task}, timeout=LINGER_TIMEOUT_S)
        await self._channel.close()
        self._exit_task.cancel()

    async def _read_chunk(self) -> bytes:
        self._read_task = self._read_task or asyncio.ensure_future(self._channel.read())
        events: set[asyncio.Future[Any]] = {self._read_task, self._exit_task, self._silence}
        await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
        if not self._read_task.done():
            await asyncio.wait({self._read_task}, timeout=0 if self.is_silent else QUIET_TIMEOUT_S)
        read_task, self._read_task = self._read_task, None
        if read_task.done():
            return read_task.result()
        read_task.cancel()
        return b""


async def feed_and_drain(running: RunningCommand, stdin: bytes, on_output: Callable[[bytes], object]) -> None:
    """Write a command's input and pass its output to `on_output`, until the command has exited."""
    feed_task = asyncio.create_task(running.feed(stdin))
    try:
        while data := await running.read():
            on_output(data)
        if running.reported_exit is None:
            await running.exit_code()
    finally:
        feed_task.cancel()
        await asyncio.wait({feed_task})
