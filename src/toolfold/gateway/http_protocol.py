"""HTTP/1.1 protocol of the gateway: uvicorn's, with limits on what a connection may cost.

uvicorn parses everything that arrives before the application has seen the headers, and goes on parsing after
the application has responded. Here the application gets a request as soon as its headers are complete, the
rest is parsed in slices between which other connections are served, a body of many tiny chunks is refused,
and a request that gets its response before it was read completely ends the connection. A request that
another HTTP program could read differently is refused, because a second request could be hidden in it.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

MAX_HEADER_BYTES = 16_384
MAX_SMALL_CHUNKS = 1_000
"""Chunks of a body that may have any size; further ones must have MIN_CHUNK_BYTES on average."""
MIN_CHUNK_BYTES = 256
SLICE_BYTES = 16_384
"""Bytes that are parsed before other connections get their turn."""
BODY_SLICE_BYTES = 262_144
"""The same inside of a body of known length, which costs little to parse."""
LINGER_TIMEOUT_S = 2.0
"""Time for which a refused client may go on sending, so that it can read the response."""
MAX_LINGER_BYTES = 16_000_000

_END_OF_HEADERS = re.compile(rb"\n\r?\n")
_AMBIGUOUS_LINE_END = re.compile(rb"(?<!\r)\n|\n[ \t]")
"""A line feed without a carriage return, or a header that continues in the next line."""
_MAX_SMALL_BODY_BYTES = 4_096  # parsed at once, without another turn of the loop


class LimitedConnection(h11.Connection):
    """HTTP parser that pauses after the headers, and refuses a body sent in too many small chunks."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)
        self.is_paused = False
        """True if the application must get the headers before more is parsed."""
        self.problem = ""
        """Reason for refusing the request, as sent to the client."""
        self._parts = self._body_bytes = 0
        self._body_length = 0
        """Length of the request's body; 0 if it is sent in chunks."""

    @property
    def missing_body_bytes(self) -> int:
        """Return how many bytes of a body of known length were not parsed yet."""
        return max(0, self._body_length - self._body_bytes) if self.their_state is h11.SEND_BODY else 0

    def next_event(self) -> Any:
        if self.is_paused:
            return h11.NEED_DATA
        if self.their_state is h11.IDLE:
            self._require_plain_headers()
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._require_clear_end(event)
            self._parts = self._body_bytes = 0
            self._body_length = _find_body_length(event)
            self.is_paused = len(self.trailing_data[0]) > _MAX_SMALL_BODY_BYTES
        elif isinstance(event, h11.Data):
            self._count_part(event)
        return event

    def _require_plain_headers(self) -> None:
        """Raise RemoteProtocolError if the headers are too long or their lines do not end with CR LF."""
        received, _ = self.trailing_data
        end = _END_OF_HEADERS.search(received, 0, MAX_HEADER_BYTES)
        if end is None:
            if len(received) > MAX_HEADER_BYTES:
                self._refuse_request(f"The headers are longer than {MAX_HEADER_BYTES:,} bytes.")
        elif _AMBIGUOUS_LINE_END.search(received, 0, end.end()):
            self._refuse_request("Every header must be one line that ends with CR LF.")

    def _require_clear_end(self, request: h11.Request) -> None:
        """Raise RemoteProtocolError if programs could disagree about where the request's body ends."""
        names = {name for name, _ in request.headers}
        if b"transfer-encoding" in names and (b"content-length" in names or request.http_version == b"1.0"):
            self._refuse_request("A request in chunks must have no Content-Length, and needs HTTP/1.1.")

    def _count_part(self, part: h11.Data) -> None:
        self._parts += 1
        self._body_bytes += len(part.data)
        if self._parts > MAX_SMALL_CHUNKS + self._body_bytes // MIN_CHUNK_BYTES:
            self._refuse_request(
                f"The body has more than {MAX_SMALL_CHUNKS:,} chunks of less than {MIN_CHUNK_BYTES} bytes."
                " Send larger chunks."
            )

    def _refuse_request(self, problem: str) -> None:
        self.problem = problem
        raise h11.RemoteProtocolError(problem)


def _find_body_length(request: h11.Request) -> int:
    """Return the length that the headers of a request declare; 0 if its body is sent in chunks."""
    headers = dict(request.headers)
    return 0 if b"transfer-encoding" in headers else int(headers.get(b"content-length", b"0"))


class LimitedProtocol(H11Protocol):
    """HTTP connection of one client, with limits."""

    conn: LimitedConnection

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = LimitedConnection()
        self._received = bytearray()
        """Bytes that the parser has not got yet."""
        self._next_slice: asyncio.Handle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._discarded: int | None = None
        """Number of bytes received since the request was refused; None if it was not refused."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = _LingeringTransport(transport, self)  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        for handle in (self._linger_timer, self._next_slice):
            if handle is not None:
                handle.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._discarded is not None:
            self._discard_bytes(len(data))
            return
        self._received += data
        if self._next_slice is None:
            self._parse_slice()

    @property
    def has_unread_data(self) -> bool:
        """Return True if the client has sent more than the requests that were parsed."""
        return bool(self._received or self.conn.trailing_data[0])

    def on_response_complete(self) -> None:
        is_unread = self.conn.their_state is h11.SEND_BODY
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if is_unread:
            self.transport.close()  # the rest of the body is not needed
        elif self._next_slice is None:
            self._schedule_next_slice()  # the client may have pipelined another request

    def send_400_response(self, msg: str) -> None:
        cycle = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self.transport.abort()
            return
        super().send_400_response(self.conn.problem or msg)
        if cycle is not None:  # the reader of the body gets a disconnect
            cycle.disconnected = True
            cycle.message_event.set()

    def linger(self, transport: asyncio.Transport) -> None:
        """Continue to read for a while, so that a client that is still sending can read the response."""
        self._discarded = 0
        self._received.clear()
        if transport.can_write_eof():
            transport.write_eof()
        transport.resume_reading()
        self._linger_timer = self.loop.call_later(LINGER_TIMEOUT_S, self._abort)

    def _parse_slice(self) -> None:
        self._next_slice = None
        if self._discarded is not None or self.transport.is_closing():
            return
        if self.conn.is_paused:
            self.conn.is_paused = False
            self.handle_events()
        else:
            size = max(SLICE_BYTES, min(self.conn.missing_body_bytes, BODY_SLICE_BYTES))
            piece = bytes(self._received[:size])
            del self._received[:size]
            super().data_received(piece)
        self._schedule_next_slice()

    def _schedule_next_slice(self) -> None:
        """Parse the next part of the received data after other connections have been served."""
        if self._discarded is None and (self._received or self.conn.is_paused):
            self.flow.pause_reading()
            self._next_slice = self.loop.call_soon(self._parse_slice)
        elif not self._is_full:
            self.flow.resume_reading()

    @property
    def _is_full(self) -> bool:
        """Return True if the application must consume data before more is read."""
        has_next_request = self.conn.their_state is h11.DONE and bool(self.conn.trailing_data[0])
        return has_next_request or (self.cycle is not None and len(self.cycle.body) > HIGH_WATER_LIMIT)

    def _discard_bytes(self, size: int) -> None:
        self._discarded = (self._discarded or 0) + size
        if self._discarded > MAX_LINGER_BYTES:
            self._abort()

    def _abort(self) -> None:
        self.transport.abort()


class _LingeringTransport:
    """Transport that sends the headers of a response together with the start of its body, in one packet.

    Its `close` waits a short time for a client that is still sending.
    """

    def __init__(self, transport: asyncio.Transport, protocol: LimitedProtocol) -> None:
        self._transport, self._protocol = transport, protocol
        self._is_closing = False
        self._head = b""
        """Head of a response that was not sent yet; it is sent in the next turn of the loop at the latest."""
        self._sending_head: asyncio.Handle | None = None

    def write(self, data: bytes) -> None:
        if not self._head and data.startswith(b"HTTP/1."):
            self._head = data
            self._sending_head = self._protocol.loop.call_soon(self._send_head)
        elif self._head:
            self._send_head(data)
        else:
            self._transport.write(data)

    def _send_head(self, body: bytes = b"") -> None:
        head, self._head = self._head, b""
        if self._sending_head is not None:
            self._sending_head.cancel()
            self._sending_head = None
        if head:
            self._transport.write(head + body)

    def close(self) -> None:
        self._send_head()
        parser = self._protocol.conn
        is_sending = parser.their_state in (h11.SEND_BODY, h11.ERROR) or bool(parser.problem)
        if self._is_closing or self._transport.is_closing() or not is_sending:
            self._transport.close()
            return
        self._is_closing = True
        self._protocol.linger(self._transport)

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
