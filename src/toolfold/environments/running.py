"""One command while it runs: what it writes, what it reads, how it ends.

A command is over when its shell is, not when its output is closed: what it left running may hold that open
for as long as it likes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from toolfold.environments.backend import Channel, Size
from toolfold.environments.ending import Ended, Ending

LINGER_SECONDS = 0.2
"""How long we wait for the rest of the output of a shell that is gone without a word."""


class Running:
    """A command in the foreground."""

    def __init__(self, run: str, channel: Channel, ending: Ending) -> None:
        self.run = run
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

    async def exit_code(self) -> int:
        """What its client says."""
        return await asyncio.shield(self._exit)

    def complaint(self) -> str:
        return self._channel.complaint()

    async def close(self) -> None:
        """Let go of it."""
        if self._reading:
            self._reading.cancel()
        if self._ending.seen:  # its shell is about to be gone; ending it by force could cost its last act
            await asyncio.wait({self._exit}, timeout=LINGER_SECONDS)
        await self._channel.close()
        self._exit.cancel()

    async def _next(self) -> bytes:
        self._reading = self._reading or asyncio.ensure_future(self._channel.read())
        first: set[asyncio.Future[Any]] = {self._reading, self._exit}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not self._reading.done():
            await asyncio.wait({self._reading}, timeout=LINGER_SECONDS)
        reading, self._reading = self._reading, None
        if reading.done():
            return reading.result()
        reading.cancel()
        return b""


async def conversation(running: Running, given: bytes, take: Callable[[bytes], object]) -> None:
    """Feed a command and take all that it writes."""
    feeding = asyncio.create_task(running.feed(given))
    try:
        while data := await running.read():
            take(data)
    finally:
        feeding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await feeding
