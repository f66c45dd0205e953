"""A model provider that answers at once: chat completions with a fixed text, streamed or not.

python model_upstream.py PORT
"""

from __future__ import annotations

import asyncio
import json
import sys

EVENTS = 20
TEXT = "Sunny. "
ABOUT = {"id": "chatcmpl-1", "created": 1, "model": "gpt-4.1"}


def whole_response() -> bytes:
    message = {"role": "assistant", "content": TEXT * EVENTS}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": EVENTS, "total_tokens": 10 + EVENTS}
    body = json.dumps({**ABOUT, "object": "chat.completion", "choices": [choice], "usage": usage}).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def stream_parts() -> list[bytes]:
    def chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        body = json.dumps({**ABOUT, "object": "chat.completion.chunk", "choices": [choice]})
        data = f"data: {body}\n\n".encode()
        return b"%x\r\n%s\r\n" % (len(data), data)

    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    done = b"data: [DONE]\n\n"
    texts = [chunk({"content": TEXT}) for _ in range(EVENTS)]
    return [head, *texts, chunk({}, "stop"), b"%x\r\n%s\r\n0\r\n\r\n" % (len(done), done)]


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    whole, parts = whole_response(), stream_parts()
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
            body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
            if b'"stream":true' not in body.replace(b" ", b""):
                writer.write(whole)
            elif b"SLOW" not in body:
                writer.writelines(parts)
            else:
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0.5)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", int(sys.argv[1]), limit=1 << 24)
    async with server:
        await server.serve_forever()


asyncio.run(main())
