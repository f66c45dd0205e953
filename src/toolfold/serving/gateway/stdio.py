"""Gateway over stdio, for a single client: the program that started this process.

If stdin and stdout are pipes, the event loop reads and writes them directly; the SDK would pass each line
through a thread and two tasks. While the gateway serves, nothing else can use them: output of a plugin goes
to stderr, and its input is empty.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from toolfold.core.json_limits import find_excess
from toolfold.mcp.message_streams import MessageStream, write_message
from toolfold.serving.gateway.client_tokens import GatewayClient
from toolfold.serving.gateway.control import serve_control
from toolfold.serving.gateway.request_bodies import MAX_REQUEST_BYTES, MAX_REQUEST_ITEMS
from toolfold.serving.gateway.server import Gateway

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

    from toolfold.mcp.sdk_compat import ReadStream, WriteStream
    from toolfold.runtime.runtime import Runtime

_INPUT, _OUTPUT, _ERRORS = 0, 1, 2


async def serve(
    runtime: Runtime,
    *,
    toolsets: tuple[str, ...] | None = None,
    on_start: Callable[[Gateway], object] | None = None,
) -> None:
    """Serve the client until it closes the pipes.

    `on_start` gets the gateway before the first message is read.
    """
    gateway = Gateway(runtime, default_client=GatewayClient("stdio", toolsets), is_local=True)
    if on_start:
        on_start(gateway)
    server = gateway.make_server()
    try:
        async with serve_control(gateway), _open_streams() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())
    finally:
        gateway.close()
        await asyncio.sleep(0)


@asynccontextmanager
async def _open_streams() -> AsyncIterator[
    tuple[ReadStream[SessionMessage | Exception], WriteStream[SessionMessage]]
]:
    """Open the message streams to the client; use the SDK's streams unless stdin and stdout are pipes."""
    if not _has_client_pipes():
        from mcp.server.stdio import stdio_server

        async with stdio_server() as streams:
            yield streams
        return
    pipes = _ClientPipes.claim()
    try:
        async with _connect_pipes(pipes) as (reader, writer):
            yield _IncomingMessages(reader), _OutgoingMessages(writer)
    finally:
        pipes.release()


@dataclass(frozen=True, slots=True)
class _ClientPipes:
    """Pipes to the client (stdin and stdout), moved to file descriptors that no other code uses."""

    input: int
    output: int

    @classmethod
    def claim(cls) -> _ClientPipes:
        """Reserve the pipes for MCP messages: make stdin empty and redirect stdout to stderr."""
        pipes = cls(os.dup(_INPUT), os.dup(_OUTPUT))
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, _INPUT)
        os.close(empty)
        os.dup2(_ERRORS, _OUTPUT)
        return pipes

    def release(self) -> None:
        """Restore stdin and stdout, and make them blocking."""
        for own, number in ((self.input, _INPUT), (self.output, _OUTPUT)):
            os.set_blocking(own, True)
            os.dup2(own, number)
            os.close(own)


def _has_client_pipes() -> bool:
    """Return True if stdin and stdout are pipes or sockets to another process, such as an MCP client."""
    if sys.platform == "win32":
        return False
    try:
        ends = [os.fstat(each) for each in (_INPUT, _OUTPUT, _ERRORS)]
    except OSError:
        return False
    are_pipes = all(stat.S_ISFIFO(each.st_mode) or stat.S_ISSOCK(each.st_mode) for each in ends[:2])
    return are_pipes and not os.path.samestat(ends[_OUTPUT], ends[_ERRORS])


@asynccontextmanager
async def _connect_pipes(
    pipes: _ClientPipes,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open stdin and stdout as asyncio streams."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_REQUEST_BYTES)
    reading, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipes.input, "rb", buffering=0, closefd=False)
    )
    writing, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(pipes.output, "wb", buffering=0, closefd=False)
    )
    writer = asyncio.StreamWriter(writing, protocol, None, loop)
    try:
        yield reader, writer
    finally:
        reading.close()
        writing.close()


class _IncomingMessages(MessageStream):
    """Stream of messages from the client, one per line; an invalid line is returned as an exception."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        line = await self._read_line()
        if excess := find_excess(line, max_items=MAX_REQUEST_ITEMS):
            return ValueError(f"the message {excess}")
        try:
            message = jsonrpc_message_adapter.validate_json(line.decode("utf-8", "replace"), by_name=False)
        except Exception as error:
            return error
        return SessionMessage(message)

    async def receive(self) -> SessionMessage | Exception:
        import anyio

        try:
            return await anext(self)
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def _read_line(self) -> bytes:
        try:
            line = await self._reader.readline()
        except ValueError:
            return b"{"  # the line is too long: answer it like every other line that is not a message
        if not line:
            raise StopAsyncIteration
        return line


class _OutgoingMessages(MessageStream):
    """Stream of messages to the client, one per line."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def send(self, item: SessionMessage, /) -> None:
        import anyio

        try:
            await write_message(self._writer, item.message)
        except ConnectionError:  # the client is gone; reading will end too
            raise anyio.ClosedResourceError from None
