"""Streams of messages in the form that the MCP SDK expects from a transport."""

from __future__ import annotations

import asyncio
from typing import Any, Self


class MessageStream:
    """One-way stream of messages that the SDK sends or receives over a connection."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        return


async def write_message(pipe: asyncio.StreamWriter, message: Any) -> None:
    """Write a message as one line to a server's pipe when the pipe has room.

    A caller that is cancelled while it waits leaves nothing in the buffer of a server that does not read.
    """
    await pipe.drain()
    pipe.write(message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
    await pipe.drain()
