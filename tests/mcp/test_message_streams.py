"""Messages on a pipe that is not read."""

from __future__ import annotations

import asyncio
import os

from mcp_types import JSONRPCNotification

from toolfold.mcp.message_streams import write_message

LONG = JSONRPCNotification(jsonrpc="2.0", method="notifications/message", params={"data": "x" * 4_000})
MAX_PIPE_BYTES = 500_000


async def test_cancelled_writes_to_a_server_that_does_not_read_do_not_exceed_the_write_buffer_limit() -> None:
    reading, writing = os.pipe()
    loop = asyncio.get_running_loop()
    with os.fdopen(reading, "rb"):
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(writing, "wb", buffering=0)
        )
        pipe = asyncio.StreamWriter(transport, protocol, None, loop)
        for _ in range(5):
            senders = [asyncio.create_task(write_message(pipe, LONG)) for _ in range(200)]
            await asyncio.wait(senders, timeout=0.01)
            for sender in senders:
                sender.cancel()
            await asyncio.wait(senders)
        assert transport.get_write_buffer_size() < MAX_PIPE_BYTES
        transport.abort()


async def test_messages_to_a_slowly_reading_server_arrive_in_the_order_they_were_sent() -> None:
    reading, writing = os.pipe()
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=MAX_PIPE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(reading, "rb"))
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(writing, "wb", buffering=0)
    )
    pipe = asyncio.StreamWriter(transport, protocol, None, loop)
    numbered = [LONG.model_copy(update={"method": f"n{place}"}) for place in range(300)]
    async with asyncio.TaskGroup() as senders:
        for each in numbered:
            senders.create_task(write_message(pipe, each))
        read = [JSONRPCNotification.model_validate_json(await lines.readline()).method for _ in numbered]
    assert read == [each.method for each in numbered]
    transport.abort()
