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
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

from toolfold.json_limits import find_excess
from toolfold.sources.mcp.child import Child, is_unread
from toolfold.sources.mcp.pacing import Pacer
from toolfold.sources.mcp.sieve import Sieve
from toolfold.sources.mcp.streams import Stream, write_message

LARGEST_MESSAGE = 10_000_000
GRACE_SECONDS = 0.8
FAULT = "toolfold.fault"
"""Where the data of an error of our own names its kind."""
CODE = -32_099

_ID = re.compile(rb'"id"\s*:\s*("(?:[^"\\]|\\.){1,128}"|-?\d{1,18})')
_EDGE = 2_048


class Wire:
    """The two streams of one child, as the transport of an MCP session."""

    def __init__(
        self,
        child: Child,
        note: Callable[[str], None],
        over: asyncio.Event,
        *,
        limits: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """`limits` are methods that a server may not know: after so many seconds silence is a no."""
        self._child, self._note, self._over, self._limits = child, note, over, limits
        self._asked: dict[Any, float] = {}
        """When each request was sent that is not answered yet."""
        self._ever: deque[Any] = deque(maxlen=4_096)
        self._has_answered = self._is_forgiven = False
        self._is_told = False
        """Whether somebody knows already of the line that is too long."""
        self._suspicion: asyncio.TimerHandle | None = None
        self._sieve = Sieve(note)

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[tuple[Any, Any]]:
        """The streams that a session reads from and writes to."""
        import anyio

        heard, reading = anyio.create_memory_object_stream[Any](16)
        self._heard = heard
        task = asyncio.create_task(self._read())
        try:
            yield reading, _Said(self._write)
        finally:
            if self._suspicion:
                self._suspicion.cancel()
            task.cancel()
            await asyncio.wait({task}, timeout=1.0)
            for stream in (heard, reading):
                stream.close()

    async def _write(self, message: Any) -> None:
        """Pass a message on. A server that no longer reads ends the connection."""
        try:
            self._remember(message)
            await write_message(self._child.stdin, message)
        except (OSError, RuntimeError):
            self._end()

    def _remember(self, message: Any) -> None:
        """What is asked, and what is no longer waited for."""
        method, id_ = getattr(message, "method", ""), getattr(message, "id", None)
        if method == "notifications/cancelled":
            self._asked.pop((message.params or {}).get("requestId"), None)
        elif method and id_ is not None:
            self._asked[id_] = time.monotonic()
            self._ever.append(id_)
            if method in self._limits:
                self._refuse_later(id_, method)

    def _refuse_later(self, id_: Any, method: str) -> None:
        asyncio.get_running_loop().call_later(self._limits[method], self._refuse, id_, method)

    def _refuse(self, id_: Any, method: str) -> None:
        if id_ in self._asked and is_unread(self._child.stdin):
            self._refuse_later(id_, method)  # it is not silent: it still starts, and has not heard of it
        elif self._asked.pop(id_, None) is not None:
            self._tell(error_for(id_, "unknown", f"does not know {method}"))

    async def _read(self) -> None:
        pacer = Pacer()
        try:
            async for line in _lines(self._child.stdout, pacer):
                await self._hear(line)
                await pacer.rest_if_due()
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
            await self._hear_too_much(line)
            return
        if not line.strip():
            return
        if excess := find_excess(line):
            await self._fail(line, "too-large", f"sent a message that {excess}")
            return
        if self._sieve.drops(line):
            return
        message = _message(line)
        if message is None:
            await self._hear_noise(line)
            return
        is_answer = getattr(message, "id", None) is not None and not hasattr(message, "method")
        if not is_answer or self._answers(message.id):
            await self._pass(completed(message))

    async def _hear_too_much(self, line: _Oversized) -> None:
        """Fail the request as soon as it is clear which one it is; at the end of the line at the latest."""
        is_clear = len(self._asked) == 1 or bool(_ids(line.edges) & self._asked.keys())
        if not self._is_told and (line.is_whole or is_clear):
            await self._fail(line.edges, "too-large", f"sent more than {LARGEST_MESSAGE:,} bytes at once")
            self._is_told = True
        if line.is_whole:
            self._is_told = False

    def _answers(self, id_: Any) -> bool:
        """Whether the answer is to something that was asked."""
        if self._asked.pop(id_, None) is not None:
            self._has_answered = True
            if self._suspicion:  # what looked like a broken answer was not
                self._suspicion.cancel()
                self._suspicion, self._is_forgiven = None, True
            return True
        self._sieve.count_unasked()
        if id_ not in self._ever:  # late answers to what was given up are no fault
            self._suspect(f"answered to {id_!r}, which nobody asked")
        return False

    async def _hear_noise(self, line: bytes) -> None:
        """Many a server writes to its output what belongs in a log: plain words mean nothing."""
        text = line.decode("utf-8", "replace").strip()
        self._note(text)
        is_meant = line.lstrip()[:1] in (b"{", b"[") and b"jsonrpc" in line
        if is_meant and _ids(line) & self._asked.keys():
            await self._fail(line, "garbled", "sent a message that is not well-formed")
        elif is_meant or (not _is_text(line) and self._has_answered and not self._is_forgiven):
            self._suspect(f"wrote a line that is no message: {text[:120]!r}")

    def _suspect(self, why: str) -> None:
        """What came instead of an answer is known for one when none follows."""
        if self._suspicion or not self._asked:
            return
        now = time.monotonic()
        loop = asyncio.get_running_loop()
        self._suspicion = loop.call_later(GRACE_SECONDS, self._convict, now, why)

    def _convict(self, before: float, why: str) -> None:
        self._suspicion = None
        for id_ in [each for each, sent in self._asked.items() if sent <= before]:
            self._asked.pop(id_)
            self._tell(error_for(id_, "garbled", why))

    def _tell(self, error: Any) -> None:
        with contextlib.suppress(Exception):  # full or closed: then nobody waits for it
            self._heard.send_nowait(error)

    async def _fail(self, line: bytes, kind: str, why: str) -> None:
        """Fail the request that a broken answer belongs to: the one it names, or the only one there is."""
        known = _ids(line) & self._asked.keys() or (self._asked.keys() if len(self._asked) == 1 else set())
        for id_ in list(known) or list(self._asked):
            self._asked.pop(id_)
            await self._pass(error_for(id_, kind, why).message)

    async def _pass(self, message: Any) -> None:
        import anyio
        from mcp.shared.message import SessionMessage

        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._heard.send(SessionMessage(message))


class _Said(Stream):
    """What the client says, on its way to the server."""

    def __init__(self, write: Callable[[Any], Awaitable[None]]) -> None:
        self._write = write

    async def send(self, item: Any) -> None:
        await self._write(item.message)


class _Oversized:
    """A line that was too long to keep: its first and, once it is whole, its last bytes."""

    def __init__(self, edges: bytes, *, is_whole: bool) -> None:
        self.edges, self.is_whole = edges, is_whole


async def _lines(stream: asyncio.StreamReader, pacer: Pacer) -> AsyncIterator[bytes | _Oversized]:
    """The lines that are not blank, each without its end."""
    kept = bytearray()
    head, size = b"", 0
    while chunk := await stream.read(1 << 16):
        pacer.resume()
        start, *ended = chunk.split(b"\n")
        kept += start
        size += len(start)
        if ended:
            is_taken = size <= LARGEST_MESSAGE
            yield bytes(kept) if is_taken else _Oversized(head + bytes(kept[-_EDGE:]), is_whole=True)
            last = ended.pop()
            for line in filter(None, ended):
                yield line
            kept[:] = last
            head, size = b"", len(last)
        if size > LARGEST_MESSAGE:
            if not head:
                head = bytes(kept[:_EDGE])
                yield _Oversized(head, is_whole=False)
            del kept[:-_EDGE]
        await pacer.rest_if_due()
    # What has no end of line was not meant to be whole.


def _message(line: bytes) -> Any:
    """The message of a line, or None."""
    from mcp_types import jsonrpc_message_adapter

    text = line.decode("utf-8", "replace")
    with contextlib.suppress(ValueError, RecursionError):
        return jsonrpc_message_adapter.validate_json(text, by_name=False)
    with contextlib.suppress(ValueError, RecursionError):  # reads what is nested deeper
        return jsonrpc_message_adapter.validate_python(json.loads(text), by_name=False)
    return None


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _ids(line: bytes) -> set[Any]:
    found = set()
    for each in _ID.findall(line[:_EDGE] + b" " + line[-_EDGE:]):
        with contextlib.suppress(ValueError):
            found.add(json.loads(each))
    return found


def completed(message: Any) -> Any:
    """The message, with the word that an answer may leave out where it is the usual one; the SDK wants it."""
    result = getattr(message, "result", None)
    if isinstance(result, dict):
        result.setdefault("resultType", "complete")
    return message


def error_for(id_: Any, kind: str, why: str) -> Any:
    from mcp.shared.message import SessionMessage
    from mcp_types import ErrorData, JSONRPCError

    error = ErrorData(code=CODE, message=why, data={FAULT: kind})
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=id_, error=error))
