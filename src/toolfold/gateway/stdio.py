"""The gateway for one client that started us: over standard input and output.

Both are read and written by the loop itself where they are pipes, which they are for every client; the SDK
would send each line through a thread and two tasks. While we serve, nobody else has them: what a plugin
prints goes to standard error, and what it reads is empty.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Self

from toolfold.gateway.bodies import MAX_REQUEST_BYTES, MAX_REQUEST_ITEMS
from toolfold.gateway.server import Gateway
from toolfold.gateway.tokens import Client
from toolfold.json_limits import find_excess
from toolfold.sources.mcp.streams import Stream, write_message

if TYPE_CHECKING:
    from toolfold.runtime import Runtime

_INPUT, _OUTPUT, _ERRORS = 0, 1, 2


async def serve(
    runtime: Runtime,
    *,
    toolsets: tuple[str, ...] | None = None,
    on_start: Callable[[Gateway], object] | None = None,
) -> None:
    """Serve until the client closes its end. `on_start` is given the gateway before the client is heard."""
    gateway = Gateway(runtime, everybody=Client("stdio", toolsets), is_local=True)
    if on_start:
        on_start(gateway)
    server = gateway.server()
    try:
        async with _streams() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())
    finally:
        gateway.close()
        await asyncio.sleep(0)


@asynccontextmanager
async def _streams() -> AsyncIterator[tuple[Any, Any]]:
    """The client's messages and ours, as the SDK takes streams; its own where they are no pipes."""
    if not _are_pipes():
        from mcp.server.stdio import stdio_server

        async with stdio_server() as streams:
            yield streams
        return
    loop = asyncio.get_running_loop()
    with _claimed() as (input_, output):
        lines = asyncio.StreamReader(limit=MAX_REQUEST_BYTES)
        reading, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(input_, "rb", buffering=0, closefd=False)
        )
        writing, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(output, "wb", buffering=0, closefd=False)
        )
        try:
            yield _Heard(lines), _Said(asyncio.StreamWriter(writing, protocol, None, loop))
        finally:
            reading.close()
            writing.close()


def _are_pipes() -> bool:
    """Whether the loop can have them to itself: a terminal or a file is shared with others."""
    if sys.platform == "win32":
        return False
    try:
        ends = [os.fstat(each) for each in (_INPUT, _OUTPUT, _ERRORS)]
    except OSError:
        return False
    are_pipes = all(stat.S_ISFIFO(each.st_mode) or stat.S_ISSOCK(each.st_mode) for each in ends[:2])
    return are_pipes and not os.path.samestat(ends[_OUTPUT], ends[_ERRORS])


@contextmanager
def _claimed() -> Iterator[tuple[int, int]]:
    """Both under other numbers, so that nobody else in this process reads or writes them by accident."""
    kept = [os.dup(_INPUT), os.dup(_OUTPUT)]
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, _INPUT)
    os.close(nothing)
    os.dup2(_ERRORS, _OUTPUT)
    try:
        yield kept[0], kept[1]
    finally:
        for own, number in zip(kept, (_INPUT, _OUTPUT), strict=True):
            os.set_blocking(own, True)
            os.dup2(own, number)
            os.close(own)


class _Heard(Stream):
    """What the client says: each line a message, or the error that it is none."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        line = await self._line()
        if excess := find_excess(line, max_items=MAX_REQUEST_ITEMS):
            return ValueError(f"the message {excess}")
        try:
            return SessionMessage(
                jsonrpc_message_adapter.validate_json(line.decode("utf-8", "replace"), by_name=False)
            )
        except Exception as error:
            return error

    async def receive(self) -> Any:
        import anyio

        try:
            return await anext(self)
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def _line(self) -> bytes:
        try:
            line = await self._reader.readline()
        except ValueError:
            return b"{"  # longer than anything is taken: it is answered like every line that is no message
        if not line:
            raise StopAsyncIteration
        return line


class _Said(Stream):
    """What we say to the client."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def send(self, item: Any) -> None:
        import anyio

        try:
            await write_message(self._writer, item.message)
        except ConnectionError:  # the client is gone; its input will say so too
            raise anyio.ClosedResourceError from None
