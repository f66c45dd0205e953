"""What the SDK wants of a stream beside its messages. Closing is left to whoever opened the pipes."""

from __future__ import annotations

import asyncio
from typing import Any, Self


class Stream:
    """One direction, without a task of its own between the SDK and the pipe."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        return


async def write_message(pipe: asyncio.StreamWriter, message: Any) -> None:
    """Write a line as soon as there is room: who gives up before leaves nothing for a reader that hangs."""
    await pipe.drain()
    pipe.write(message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
    await pipe.drain()
