"""Gateway over stdio, for a single client: the program that started this process.

If stdin and stdout are pipes, the event loop reads and writes them directly; the SDK would pass each line
through a thread and two tasks. While the gateway serves, nothing else can use them: output of a plugin goes
to stderr, and its input is empty.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from toolfold.gateway.control import serve_control
from toolfold.gateway.early_answers import EarlyAnswers, Handover
from toolfold.gateway.listing_recorder import ListingRecorder
from toolfold.gateway.pipes import ClientPipes, has_client_pipes
from toolfold.gateway.request_bodies import MAX_REQUEST_BYTES, MAX_REQUEST_ITEMS
from toolfold.gateway.server import Gateway
from toolfold.gateway.tokens import GatewayClient
from toolfold.json_limits import find_excess
from toolfold.sources.mcp.message_streams import MessageStream, write_message

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

    from toolfold.runtime import Runtime
    from toolfold.sources.mcp.sdk_compat import ReadStream, WriteStream


async def serve(
    runtime: Runtime,
    *,
    toolsets: tuple[str, ...] | None = None,
    early: EarlyAnswers | None = None,
    record: Path | None = None,
    on_start: Callable[[Gateway], object] | None = None,
) -> None:
    """Serve the client until it closes the pipes.

    `on_start` gets the gateway before the first message is read. `early` has answered some requests already.
    `record` is the file in which answers are saved for the next start.
    """
    gateway = Gateway(runtime, default_client=GatewayClient("stdio", toolsets), is_local=True)
    if on_start:
        on_start(gateway)
    server = gateway.make_server()
    try:
        async with serve_control(gateway), _open_streams(gateway, early, record) as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())
    finally:
        gateway.close()
        await asyncio.sleep(0)


@asynccontextmanager
async def _open_streams(
    gateway: Gateway, early: EarlyAnswers | None, record: Path | None
) -> AsyncIterator[tuple[ReadStream[SessionMessage | Exception], WriteStream[SessionMessage]]]:
    """Open the message streams to the client; use the SDK's streams unless stdin and stdout are pipes."""
    if early is None and not has_client_pipes():
        from mcp.server.stdio import stdio_server

        async with stdio_server() as streams:
            yield streams
        return
    handover = early.stop() if early else Handover(ClientPipes.claim())
    recorder = ListingRecorder(record, gateway, handover.answered)
    try:
        async with _connect_pipes(handover) as (reader, writer):
            yield _IncomingMessages(reader, recorder), _OutgoingMessages(writer, recorder)
    finally:
        handover.pipes.release()
        await recorder.close()


@asynccontextmanager
async def _connect_pipes(
    handover: Handover,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open stdin and stdout as asyncio streams; the input starts with bytes that were read during startup."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_REQUEST_BYTES)
    reader.feed_data(handover.received)
    pipes = handover.pipes
    reading, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipes.input, "rb", buffering=0, closefd=False)
    )
    writing, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(pipes.output, "wb", buffering=0, closefd=False)
    )
    writer = asyncio.StreamWriter(writing, protocol, None, loop)
    writer.write(handover.unsent)
    try:
        yield reader, writer
    finally:
        reading.close()
        writing.close()


class _IncomingMessages(MessageStream):
    """Stream of messages from the client, one per line; an invalid line is returned as an exception."""

    def __init__(self, reader: asyncio.StreamReader, recorder: ListingRecorder) -> None:
        self._reader, self._recorder = reader, recorder

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
        self._recorder.see_message(message)
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
            self._recorder.is_input_closed = True
            raise StopAsyncIteration
        return line


class _OutgoingMessages(MessageStream):
    """Stream of messages to the client, without responses that were already sent during startup."""

    def __init__(self, writer: asyncio.StreamWriter, recorder: ListingRecorder) -> None:
        self._writer, self._recorder = writer, recorder

    async def send(self, item: SessionMessage, /) -> None:
        import anyio

        if self._recorder.record_answer(item.message):
            return
        try:
            await write_message(self._writer, item.message)
        except ConnectionError:  # the client is gone; reading will end too
            raise anyio.ClosedResourceError from None
