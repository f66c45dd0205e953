"""One command while it runs: what it writes, what it reads, how it ends.

A command is over when its shell is, not when its output is closed: what it left running may hold that open
for as long as it likes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from toolfold.environments.backend import Channel, Size
from toolfold.environments.ending import Ended, Ending

LINGER_TIMEOUT_S = 0.2
"""How long we wait for the client of a shell that has said that it goes."""
QUIET_SECONDS = 5.0
"""After how long without more of it the output of a shell that is gone without a word is taken to be over."""
LOST = 255


class Running:
    """A command in the foreground."""

    def __init__(
        self, run: str, channel: Channel, ending: Ending, silence: asyncio.Future[None] | None = None
    ) -> None:
        """`silence` is done where nothing is to be expected from the place any more."""
        self.run = run
        self.left = False
        """Whether something of it may run on: it would not go, or nobody there could be asked to end it."""
        self._silence = silence or asyncio.get_running_loop().create_future()
        self._channel, self._ending = channel, ending
        self._reading: asyncio.Future[bytes] | None = None
        self._exit = asyncio.ensure_future(channel.wait())
        self._over = False

    async def read(self) -> bytes:
        """What it wrote next; empty at the end."""
        while not self._over:
            data = await self._next()
            own = self._ending.pass_on(data) if data else self._ending.rest()
            self._over = not data or self._ending.seen is not None
            if own:
                return own
        return b""

    async def write(self, data: bytes) -> None:
        """Give it something to read."""
        await self._channel.write(data)

    async def feed(self, data: bytes) -> None:
        """Give it all that it will ever read."""
        await self._channel.write(data)
        await self._channel.close_input()

    def resize(self, size: Size) -> None:
        """Change the size of its terminal."""
        self._channel.resize(size)

    @property
    def ended(self) -> Ended | None:
        """How it ended, by its own word; None where it has not said so, or not yet."""
        return self._ending.seen

    @property
    def silent(self) -> bool:
        """Whether its place has not been heard for so long that it is ended there."""
        return self._silence.done()

    async def exit_code(self) -> int:
        """What its client says, as soon as it does; 255 where it will not."""
        await asyncio.wait({self._exit, self._silence}, return_when=asyncio.FIRST_COMPLETED)
        return self._exit.result() if self._exit.done() and not self._exit.cancelled() else LOST

    async def gone(self, seconds: float) -> bool:
        """Whether its client ends within the time, or nothing is to be expected from it any more."""
        ends = {self._exit, self._silence}
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return any(each.done() for each in ends)

    def complaint(self) -> str:
        silent = "nothing answers there any more" if self.silent else ""
        return self._channel.complaint() or silent

    async def close(self) -> None:
        """Let go of it."""
        if self._reading:
            self._reading.cancel()
        if self._ending.seen:  # its shell is about to be gone; ending it by force could cost its last act
            await asyncio.wait({self._exit}, timeout=LINGER_TIMEOUT_S)
        await self._channel.close()
        self._exit.cancel()

    async def _next(self) -> bytes:
        self._reading = self._reading or asyncio.ensure_future(self._channel.read())
        first: set[asyncio.Future[Any]] = {self._reading, self._exit, self._silence}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not self._reading.done():
            await asyncio.wait({self._reading}, timeout=0 if self.silent else QUIET_SECONDS)
        reading, self._reading = self._reading, None
        if reading.done():
            return reading.result()
        reading.cancel()
        return b""


async def conversation(running: Running, given: bytes, take: Callable[[bytes], object]) -> None:
    """Feed a command and take all that it writes, until it is over: it may close its output before."""
    feeding = asyncio.create_task(running.feed(given))
    try:
        while data := await running.read():
            take(data)
        if running.ended is None:
            await running.exit_code()
    finally:
        feeding.cancel()
        await asyncio.wait({feeding})
