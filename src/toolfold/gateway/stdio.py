"""The gateway for one client that started us: over standard input and output.

Both are read and written by the loop itself where they are pipes, which they are for every client; the SDK
would send each line through a thread and two tasks. While we serve, nobody else has them: what a plugin
prints goes to standard error, and what it reads is empty.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from toolfold.gateway.bodies import MAX_REQUEST_BYTES, MAX_REQUEST_ITEMS
from toolfold.gateway.early_answers import EarlyAnswers, Handover
from toolfold.gateway.listing_recorder import ListingRecorder
from toolfold.gateway.pipes import ClientPipes, has_client_pipes
from toolfold.gateway.server import Gateway
from toolfold.gateway.tokens import Client
from toolfold.json_limits import find_excess
from toolfold.sources.mcp.streams import Stream, write_message

if TYPE_CHECKING:
    from toolfold.runtime import Runtime


async def serve(
    runtime: Runtime,
    *,
    toolsets: tuple[str, ...] | None = None,
    early: EarlyAnswers | None = None,
    record: Path | None = None,
    on_start: Callable[[Gateway], object] | None = None,
) -> None:
    """Serve until the client closes its end.

    `on_start` is given the gateway before the client is heard. `early` has answered some requests already.
    Answers for the next start are kept in the file `record`.
    """
    gateway = Gateway(runtime, everybody=Client("stdio", toolsets), is_local=True)
    if on_start:
        on_start(gateway)
    server = gateway.server()
    try:
        async with _streams(gateway, early, record) as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())
    finally:
        gateway.close()
        await asyncio.sleep(0)


@asynccontextmanager
async def _streams(
    gateway: Gateway, early: EarlyAnswers | None, record: Path | None
) -> AsyncIterator[tuple[Any, Any]]:
    """The client's messages and ours, as the SDK takes streams; its own where they are no pipes."""
    if early is None and not has_client_pipes():
        from mcp.server.stdio import stdio_server

        async with stdio_server() as streams:
            yield streams
        return
    handover = early.stop() if early else Handover(ClientPipes.claim())
    recorder = ListingRecorder(record, gateway, handover.answered)
    try:
        async with _connected(handover) as (lines, writer):
            yield _Heard(lines, recorder), _Said(writer, recorder)
    finally:
        handover.pipes.release()
        await recorder.close()


@asynccontextmanager
async def _connected(handover: Handover) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Both pipes as streams, each beginning with what was left over."""
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=MAX_REQUEST_BYTES)
    lines.feed_data(handover.received)
    pipes = handover.pipes
    reading, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(pipes.input, "rb", buffering=0, closefd=False)
    )
    writing, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(pipes.output, "wb", buffering=0, closefd=False)
    )
    writer = asyncio.StreamWriter(writing, protocol, None, loop)
    writer.write(handover.unsent)
    try:
        yield lines, writer
    finally:
        reading.close()
        writing.close()


class _Heard(Stream):
    """What the client says: each line a message, or the error that it is none."""

    def __init__(self, reader: asyncio.StreamReader, recorder: ListingRecorder) -> None:
        self._reader, self._recorder = reader, recorder

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        line = await self._line()
        if excess := find_excess(line, max_items=MAX_REQUEST_ITEMS):
            return ValueError(f"the message {excess}")
        try:
            message = jsonrpc_message_adapter.validate_json(line.decode("utf-8", "replace"), by_name=False)
        except Exception as error:
            return error
        self._recorder.see_message(message)
        return SessionMessage(message)

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
            self._recorder.is_input_closed = True
            raise StopAsyncIteration
        return line


class _Said(Stream):
    """What we say to the client."""

    def __init__(self, writer: asyncio.StreamWriter, recorder: ListingRecorder) -> None:
        self._writer, self._recorder = writer, recorder

    async def send(self, item: Any) -> None:
        import anyio

        if self._recorder.is_answered(item.message):
            return
        try:
            await write_message(self._writer, item.message)
        except ConnectionError:  # the client is gone; its input will say so too
            raise anyio.ClosedResourceError from None
