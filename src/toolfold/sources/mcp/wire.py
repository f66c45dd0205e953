"""Messages of a server over its standard input and output, read without trust.

One line is one message. A line may be of any length, in any encoding and about nothing: it is bounded,
decoded safely and, if it is no message, kept in the server's log. What can be blamed on one request fails
that request; the connection lives on. Knows JSON-RPC and no method of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from toolfold.sources.mcp.child import Child

LARGEST_MESSAGE = 10_000_000
GRACE_SECONDS = 0.8
MOST_NOTICES = 500
"""How many notifications a second are heard; more are dropped unread."""
MOST_DROPPED = 200_000
FAULT = "toolfold.fault"
"""Where the data of an error of our own names its kind."""
CODE = -32_099

_ID = re.compile(rb'"id"\s*:\s*("(?:[^"\\]|\\.){1,128}"|-?\d{1,18})')
_EDGE = 2_048


class Wire:
    """The two streams of one child, as the transport of an MCP session."""

    def __init__(self, child: Child, note: Callable[[str], None], over: asyncio.Event) -> None:
        self._child, self._note, self._over = child, note, over
        self._asked: dict[Any, float] = {}
        """When each request was sent that is not answered yet."""
        self._ever: deque[Any] = deque(maxlen=4_096)
        self._noisy = False
        self._suspicion: asyncio.TimerHandle | None = None
        self._notices: deque[float] = deque(maxlen=MOST_NOTICES)
        self._dropped = 0

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[tuple[Any, Any]]:
        """The streams that a session reads from and writes to."""
        import anyio

        heard, reading = anyio.create_memory_object_stream[Any](16)
        writing, said = anyio.create_memory_object_stream[Any](0)
        self._heard = heard
        tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write(said))]
        try:
            yield reading, writing
        finally:
            if self._suspicion:
                self._suspicion.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1.0)
            for stream in (heard, reading, writing, said):
                stream.close()

    async def _write(self, said: Any) -> None:
        """Pass messages on. A server that no longer reads ends the connection."""
        stdin = self._child.stdin
        try:
            async for each in said:
                text = each.message.model_dump_json(by_alias=True, exclude_unset=True)
                if (id_ := getattr(each.message, "id", None)) is not None and hasattr(each.message, "method"):
                    self._asked[id_] = time.monotonic()
                    self._ever.append(id_)
                stdin.write(text.encode() + b"\n")
                await stdin.drain()
        except (OSError, RuntimeError):
            self._end()

    async def _read(self) -> None:
        try:
            async for line in _lines(self._child.stdout):
                await self._hear(line)
        except (OSError, ValueError) as error:
            self._note(f"(its output could not be read: {error})")
        finally:
            self._end()

    def _end(self) -> None:
        """No more will be heard: whoever waits for an answer is told so."""
        self._over.set()
        self._heard.close()

    async def _hear(self, line: bytes | _Oversized) -> None:
        if isinstance(line, _Oversized):
            await self._fail(line.edges, "too-large", f"sent more than {LARGEST_MESSAGE:,} bytes at once")
            return
        if not line.strip() or self._is_too_much(line):
            return
        message = _message(line)
        if message is None:
            await self._hear_noise(line)
            return
        is_answer = getattr(message, "id", None) is not None and not hasattr(message, "method")
        if not is_answer or self._answers(message.id):
            await self._pass(message)

    def _answers(self, id_: Any) -> bool:
        """Whether the answer is to something that was asked."""
        if self._asked.pop(id_, None) is not None:
            if self._suspicion:  # what looked like a broken answer was not
                self._suspicion.cancel()
                self._suspicion, self._noisy = None, True
            return True
        if id_ not in self._ever:  # late answers to what was given up are no fault
            self._suspect(f"answered to {id_!r}, which nobody asked", sure=True)
        return False

    async def _hear_noise(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").strip()
        self._note(text)
        looks_meant = line.lstrip()[:1] in (b"{", b"[") and b"jsonrpc" in line
        if looks_meant and _ids(line) & self._asked.keys():
            await self._fail(line, "garbled", "sent a message that is not well-formed")
        else:
            self._suspect(f"wrote a line that is no message: {text[:120]!r}", sure=looks_meant)

    def _suspect(self, why: str, *, sure: bool) -> None:
        """What came instead of an answer is known for one when none follows.

        Some servers write to their output what belongs in a log: those that did so before they answered are
        not suspected again.
        """
        if self._suspicion or not self._asked or (self._noisy and not sure):
            return
        now = time.monotonic()
        loop = asyncio.get_running_loop()
        self._suspicion = loop.call_later(GRACE_SECONDS, self._convict, now, why)

    def _convict(self, before: float, why: str) -> None:
        self._suspicion = None
        for id_ in [each for each, sent in self._asked.items() if sent <= before]:
            self._asked.pop(id_)
            with contextlib.suppress(Exception):  # full or closed: then nobody waits for it
                self._heard.send_nowait(_error(id_, "garbled", why))

    async def _fail(self, line: bytes, kind: str, why: str) -> None:
        """Fail the request that a broken answer belongs to: the one it names, or the only one there is."""
        known = _ids(line) & self._asked.keys() or (self._asked.keys() if len(self._asked) == 1 else set())
        for id_ in list(known) or list(self._asked):
            self._asked.pop(id_)
            await self._pass(_error(id_, kind, why).message)

    async def _pass(self, message: Any) -> None:
        import anyio
        from mcp.shared.message import SessionMessage

        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._heard.send(SessionMessage(message))

    def _is_too_much(self, line: bytes) -> bool:
        """Whether this is one notification too many. Looks at the bytes: a flood is not worth parsing."""
        if b'"method"' not in line or b'"id"' in line:
            return False
        now = time.monotonic()
        if len(self._notices) == MOST_NOTICES and now - self._notices[0] < 1.0:
            self._dropped += 1
            if self._dropped == 1:
                self._note(f"(more than {MOST_NOTICES} notifications a second: the rest is dropped)")
            if self._dropped > MOST_DROPPED:
                raise ValueError("a flood of notifications")
            return True
        self._notices.append(now)
        return False


class _Oversized:
    """A line that was too long to keep: its first and its last bytes."""

    def __init__(self, edges: bytes) -> None:
        self.edges = edges


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes | _Oversized]:
    kept = bytearray()
    head, size = b"", 0
    while chunk := await stream.read(1 << 16):
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            kept += chunk[start:end]
            size += end - start
            yield bytes(kept) if size <= LARGEST_MESSAGE else _Oversized(head + bytes(kept[-_EDGE:]))
            kept.clear()
            head, size, start = b"", 0, end + 1
        kept += chunk[start:]
        size += len(chunk) - start
        if size > LARGEST_MESSAGE:
            head = head or bytes(kept[:_EDGE])
            del kept[:-_EDGE]
    # What has no end of line was not meant to be whole.


def _message(line: bytes) -> Any:
    """The message of a line, or None."""
    from mcp_types import jsonrpc_message_adapter

    text = line.decode("utf-8", "replace")
    try:
        return jsonrpc_message_adapter.validate_json(text, by_name=False)
    except (ValueError, RecursionError):
        return None


def _ids(line: bytes) -> set[Any]:
    found = set()
    for each in _ID.findall(line[:_EDGE] + b" " + line[-_EDGE:]):
        with contextlib.suppress(ValueError):
            found.add(json.loads(each))
    return found


def _error(id_: Any, kind: str, why: str) -> Any:
    from mcp.shared.message import SessionMessage
    from mcp_types import ErrorData, JSONRPCError

    error = ErrorData(code=CODE, message=why, data={FAULT: kind})
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=id_, error=error))
