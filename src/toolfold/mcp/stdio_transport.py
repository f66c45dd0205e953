"""Exchange messages over a server's stdin and stdout, tolerating invalid output.

One line is one message. Lines are limited in length and decoded safely; a line that is not a message goes to
the server's log. An invalid response fails only the request that it belongs to; the connection stays open.
Knows JSON-RPC but none of the protocol's methods.
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

from toolfold.core.json_limits import find_excess
from toolfold.core.pacing import Pacer
from toolfold.mcp.message_streams import MessageStream, write_message
from toolfold.mcp.notification_limiter import NotificationLimiter
from toolfold.mcp.server_process import ServerProcess, has_unread_input

MAX_MESSAGE_BYTES = 10_000_000
SUSPICION_GRACE_S = 0.8
FAULT_KEY = "toolfold.fault"
"""Key in an error's data with the kind of fault, for errors that the transport creates itself."""
TRANSPORT_ERROR_CODE = -32_099

_ID_PATTERN = re.compile(rb'"id"\s*:\s*("(?:[^"\\]|\\.){1,128}"|-?\d{1,18})')
_EDGE_BYTES = 2_048


class StdioTransport:
    """Transport of an MCP session over the streams of one server process."""

    def __init__(
        self,
        process: ServerProcess,
        note: Callable[[str], None],
        disconnected: asyncio.Event,
        *,
        limits: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Create a transport; `limits` are timeouts, by method, for requests that some servers ignore."""
        self._process, self._note, self._disconnected, self._limits = process, note, disconnected, limits
        self._pending: dict[Any, float] = {}
        """Pending requests: id → time of sending."""
        self._sent_ids: deque[Any] = deque(maxlen=4_096)
        self._has_responded = self._ignores_binary_noise = False
        self._is_oversize_reported = False
        """True if a request was already failed because of the current oversized line."""
        self._suspicion_timer: asyncio.TimerHandle | None = None
        self._limiter = NotificationLimiter(note)

    @asynccontextmanager
    async def open_streams(self) -> AsyncIterator[tuple[Any, Any]]:
        """Open the streams that an MCP session reads from and writes to."""
        import anyio

        incoming, reading = anyio.create_memory_object_stream[Any](16)
        self._incoming = incoming
        task = asyncio.create_task(self._read_output())
        try:
            yield reading, _ServerInputStream(self._write_input)
        finally:
            if self._suspicion_timer:
                self._suspicion_timer.cancel()
            task.cancel()
            await asyncio.wait({task}, timeout=1.0)
            for stream in (incoming, reading):
                stream.close()

    async def _write_input(self, message: Any) -> None:
        """Write a message to the server; end the connection if the server no longer reads."""
        try:
            self._track_request(message)
            await write_message(self._process.stdin, message)
        except (OSError, RuntimeError):
            self._disconnect()

    def _track_request(self, message: Any) -> None:
        """Add a sent request to the pending requests, or remove a request that is cancelled."""
        method, id_ = getattr(message, "method", ""), getattr(message, "id", None)
        if method == "notifications/cancelled":
            self._pending.pop((message.params or {}).get("requestId"), None)
        elif method and id_ is not None:
            self._pending[id_] = time.monotonic()
            self._sent_ids.append(id_)
            if method in self._limits:
                self._schedule_refusal(id_, method)

    def _schedule_refusal(self, id_: Any, method: str) -> None:
        asyncio.get_running_loop().call_later(self._limits[method], self._refuse_if_unanswered, id_, method)

    def _refuse_if_unanswered(self, id_: Any, method: str) -> None:
        if id_ in self._pending and has_unread_input(self._process.stdin):
            self._schedule_refusal(id_, method)  # it is still starting and has not read the request
        elif self._pending.pop(id_, None) is not None:
            self._deliver_now(make_error_message(id_, "unknown", f"did not respond to {method}"))

    async def _read_output(self) -> None:
        pacer = Pacer()
        try:
            async for line in _split_lines(self._process.stdout, pacer):
                await self._handle_line(line)
                await pacer.rest_if_due()
        except (OSError, ValueError) as error:
            self._note(f"(its output could not be read: {error})")
        finally:
            self._disconnect()

    def _disconnect(self) -> None:
        """Signal that no more messages will arrive, so that pending requests fail."""
        self._disconnected.set()
        self._incoming.close()

    async def _handle_line(self, line: bytes | _OversizedLine) -> None:
        if isinstance(line, _OversizedLine):
            await self._handle_oversized_line(line)
            return
        if not line.strip():
            return
        if excess := find_excess(line):
            await self._fail_request(line, "too-large", f"sent a message that {excess}")
            return
        if self._limiter.should_drop(line):
            return
        message = _parse_line(line)
        if message is None:
            await self._handle_invalid_line(line)
            return
        is_response = getattr(message, "id", None) is not None and not hasattr(message, "method")
        if not is_response or self._match_response(message.id):
            await self._deliver(set_default_result_type(message))

    async def _handle_oversized_line(self, line: _OversizedLine) -> None:
        """Fail the request that an oversized output line answers, as soon as that request is identified."""
        is_clear = len(self._pending) == 1 or bool(_find_ids(line.edges) & self._pending.keys())
        if not self._is_oversize_reported and (line.is_complete or is_clear):
            await self._fail_request(
                line.edges, "too-large", f"sent a message of more than {MAX_MESSAGE_BYTES:,} bytes"
            )
            self._is_oversize_reported = True
        if line.is_complete:
            self._is_oversize_reported = False

    def _match_response(self, id_: Any) -> bool:
        """Mark the request with this id as answered; return False if no such request is pending."""
        if self._pending.pop(id_, None) is not None:
            self._has_responded = True
            if self._suspicion_timer:  # the suspicious line was not a broken response
                self._suspicion_timer.cancel()
                self._suspicion_timer, self._ignores_binary_noise = None, True
            return True
        self._limiter.count_unmatched_response()
        if id_ not in self._sent_ids:  # late responses to cancelled requests are no fault
            self._start_suspicion_timer(f"sent a response to the unknown request id {id_!r}")
        return False

    async def _handle_invalid_line(self, line: bytes) -> None:
        """Log an output line that is not a message, and fail the request that it seems to answer.

        Many servers print log lines to stdout; plain text is ignored.
        """
        text = line.decode("utf-8", "replace").strip()
        self._note(text)
        is_message = line.lstrip()[:1] in (b"{", b"[") and b"jsonrpc" in line
        if is_message and _find_ids(line) & self._pending.keys():
            await self._fail_request(line, "garbled", "sent a message that is not valid JSON-RPC")
        elif is_message or (not _is_utf8(line) and self._has_responded and not self._ignores_binary_noise):
            self._start_suspicion_timer(f"wrote a line that is not a message: {text[:120]!r}")

    def _start_suspicion_timer(self, reason: str) -> None:
        """Start a timer that fails the pending requests if no valid response follows the invalid output."""
        if self._suspicion_timer or not self._pending:
            return
        now = time.monotonic()
        loop = asyncio.get_running_loop()
        self._suspicion_timer = loop.call_later(SUSPICION_GRACE_S, self._fail_requests_before, now, reason)

    def _fail_requests_before(self, before: float, reason: str) -> None:
        self._suspicion_timer = None
        for id_ in [each for each, sent in self._pending.items() if sent <= before]:
            self._pending.pop(id_)
            self._deliver_now(make_error_message(id_, "garbled", reason))

    def _deliver_now(self, error: Any) -> None:
        with contextlib.suppress(Exception):  # full or closed: the error is no longer needed
            self._incoming.send_nowait(error)

    async def _fail_request(self, line: bytes, kind: str, reason: str) -> None:
        """Fail the request that an invalid response answers.

        If its id cannot be read, fail the only pending request; if several are pending, all of them.
        """
        ids = _find_ids(line) & self._pending.keys() or (
            self._pending.keys() if len(self._pending) == 1 else set()
        )
        for id_ in list(ids) or list(self._pending):
            self._pending.pop(id_)
            await self._deliver(make_error_message(id_, kind, reason).message)

    async def _deliver(self, message: Any) -> None:
        import anyio
        from mcp.shared.message import SessionMessage

        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._incoming.send(SessionMessage(message))


class _ServerInputStream(MessageStream):
    """Stream that writes the client's messages to the server's stdin."""

    def __init__(self, write: Callable[[Any], Awaitable[None]]) -> None:
        self._write = write

    async def send(self, item: Any) -> None:
        await self._write(item.message)


class _OversizedLine:
    """Output line above the size limit: its first bytes and, once it is complete, its last bytes."""

    def __init__(self, edges: bytes, *, is_complete: bool) -> None:
        self.edges, self.is_complete = edges, is_complete


async def _split_lines(stream: asyncio.StreamReader, pacer: Pacer) -> AsyncIterator[bytes | _OversizedLine]:
    """Yield the lines of a stream without line breaks; blank lines may be skipped."""
    buffer = bytearray()
    head, size = b"", 0
    while chunk := await stream.read(1 << 16):
        pacer.resume()
        start, *finished = chunk.split(b"\n")
        buffer += start
        size += len(start)
        if finished:
            is_accepted = size <= MAX_MESSAGE_BYTES
            yield (
                bytes(buffer)
                if is_accepted
                else _OversizedLine(head + bytes(buffer[-_EDGE_BYTES:]), is_complete=True)
            )
            last = finished.pop()
            for line in filter(None, finished):
                yield line
            buffer[:] = last
            head, size = b"", len(last)
        if size > MAX_MESSAGE_BYTES:
            if not head:
                head = bytes(buffer[:_EDGE_BYTES])
                yield _OversizedLine(head, is_complete=False)
            del buffer[:-_EDGE_BYTES]
        await pacer.rest_if_due()
    # An unterminated last line is incomplete.


def _parse_line(line: bytes) -> Any:
    """Return the message in an output line, or None if it is not a message."""
    from mcp_types import jsonrpc_message_adapter

    text = line.decode("utf-8", "replace")
    with contextlib.suppress(ValueError, RecursionError):
        return jsonrpc_message_adapter.validate_json(text, by_name=False)
    with contextlib.suppress(ValueError, RecursionError):  # accepts deeper nesting
        return jsonrpc_message_adapter.validate_python(json.loads(text), by_name=False)
    return None


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _find_ids(line: bytes) -> set[Any]:
    ids = set()
    for each in _ID_PATTERN.findall(line[:_EDGE_BYTES] + b" " + line[-_EDGE_BYTES:]):
        with contextlib.suppress(ValueError):
            ids.add(json.loads(each))
    return ids


def set_default_result_type(message: Any) -> Any:
    """Add `resultType: complete` to a result without this field, because servers may omit it."""
    result = getattr(message, "result", None)
    if isinstance(result, dict):
        result.setdefault("resultType", "complete")
    return message


def make_error_message(id_: Any, kind: str, reason: str) -> Any:
    """Return an error response created by the transport, in place of a response from the server."""
    from mcp.shared.message import SessionMessage
    from mcp_types import ErrorData, JSONRPCError

    error = ErrorData(code=TRANSPORT_ERROR_CODE, message=reason, data={FAULT_KEY: kind})
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=id_, error=error))
