"""Persistent HTTP/1.1 connections to servers.

For the model proxy and for tool calls of MCP servers: little work for each request. A response's body is read
in the pieces in which it arrives from the network, without its chunks. Knows no redirects, cookies,
compression or forward proxies.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import time
from asyncio.staggered import staggered_race
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from toolfold.core.pacing import Pacer
from toolfold.core.sockets import make_arrival_check

Headers = list[tuple[bytes, bytes]]
AddressInfo = tuple[Any, ...]
"""A result of `getaddrinfo`: family, type, protocol, canonical name and address."""

IDLE_TIMEOUT_S = 30.0
MAX_IDLE = 100
NEXT_ADDRESS_DELAY_S = 0.25
MAX_HEAD_BYTES = 100_000
MAX_HEADERS = 500
MAX_INTERIM_RESPONSES = 20
"""Responses with a status below 200 before the response to a request."""
MAX_CHUNK_LINE_BYTES = 4_000
MAX_TRAILER_BYTES = 16_000
"""Headers behind a chunked body, which are skipped."""
MAX_SMALL_PARTS = 1_000
"""Chunks or other pieces of a body in a second that may have any size; further ones must have
MIN_PART_BYTES on average, because each takes time that others wait for."""
MIN_PART_BYTES = 16
MAX_PART_BYTES = 16_000
"""Bytes of a body that are decoded and handed on at once; other tasks can run after each part."""
WRITE_BYTES = 256_000
"""How much of a request's body is given to the connection at once."""
MAX_UNREAD_BYTES = 256_000
_STATUS_LINE = re.compile(rb"HTTP/(1\.[01]) ([1-9][0-9]{2})(?: [^\r\n]*)?")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[^\x00\r\n]*")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\x00\r\n]*)?")
_MALFORMED = "the headers of the response are malformed"
_LINE_END = re.compile(rb"\r?\n\r?\n")


class ExchangeFailed(Exception):
    """The connection failed, or the server violated the HTTP protocol."""

    def __init__(self, problem: str, *, is_timeout: bool = False) -> None:
        super().__init__(problem)
        self.is_timeout = is_timeout


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port of a server, and who uses the connections to it."""

    host: str
    port: int
    is_encrypted: bool
    owner: str = ""
    """Whose requests a kept connection to the server may carry."""


@dataclass(frozen=True, slots=True)
class _Head:
    """Status and headers of a response."""

    status: int
    headers: Headers
    is_version_1_0: bool

    def find(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name]


def render_headers(headers: Headers) -> bytes | None:
    """Return headers as bytes for sending; None if one of them is invalid."""
    lines: list[bytes] = []
    for name, value in headers:
        if _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            return None
        lines += name, b": ", value, b"\r\n"
    return b"".join(lines)


class ConnectionPool:
    """Pool of open connections to servers; each connection carries one request at a time."""

    def __init__(self, *, idle_timeout_s: float = IDLE_TIMEOUT_S, max_idle: int = MAX_IDLE) -> None:
        self._idle_timeout_s, self._max_idle = idle_timeout_s, max_idle
        self._idle: dict[Origin, list[Connection]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tls: ssl.SSLContext | None = None

    async def take(self, origin: Origin, timeout_s: float) -> Connection:
        """Return an idle connection to a server, or open a new one. Raises ExchangeFailed."""
        idle = self._idle.get(origin, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable:
                return connection
            connection.close()
        return await self._connect(origin, timeout_s)

    def give_back(self, origin: Origin, connection: Connection) -> None:
        """Return a connection to the pool if its response was read completely; otherwise close it."""
        idle = self._idle.setdefault(origin, [])
        if not connection.prepare_next() or sum(map(len, self._idle.values())) >= self._max_idle:
            connection.close()
            return
        idle.append(connection)
        if self._timer is None:
            self._schedule_check()

    async def close(self) -> None:
        """Close the idle connections."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for idle in self._idle.values():
            while idle:
                idle.pop().close()
        await asyncio.sleep(0)  # the event loop closes the sockets in its next iteration

    def _schedule_check(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._idle_timeout_s, self._close_unused)

    def _close_unused(self) -> None:
        self._timer = None
        for origin, idle in list(self._idle.items()):
            for connection in [each for each in idle if not each.is_usable]:
                idle.remove(connection)
                connection.close()
            if not idle:
                del self._idle[origin]
        if self._idle:
            self._schedule_check()

    async def _connect(self, origin: Origin, timeout_s: float) -> Connection:
        context = await self._find_tls() if origin.is_encrypted else None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                found = await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
                _, connection = await loop.create_connection(
                    lambda: Connection(self._idle_timeout_s),
                    sock=await connect_to_first(found),
                    ssl=context,
                    server_hostname=origin.host if context else None,
                )
        except TimeoutError:
            raise ExchangeFailed("the connection could not be opened in time", is_timeout=True) from None
        except ssl.SSLCertVerificationError as error:
            raise ExchangeFailed(f"the server's certificate is not valid: {error.verify_message}") from None
        except (OSError, ssl.SSLError, UnicodeError) as error:
            raise ExchangeFailed(str(error) or type(error).__name__) from None
        return connection

    async def _find_tls(self) -> ssl.SSLContext:
        if self._tls is None:
            import httpx2

            self._tls = await asyncio.to_thread(httpx2.create_ssl_context)
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls


async def connect_to_first(addresses: Sequence[AddressInfo]) -> socket.socket:
    """Return a socket connected to the first address that accepts a connection. Raises OSError.

    The next address is tried if one does not answer soon, because IPv6 may lead nowhere. Event loops other
    than asyncio's have no option for that.
    """
    first = {info[0]: info for info in reversed(addresses)}  # of each family; they are tried first
    ordered = sorted(addresses, key=lambda info: first[info[0]] is not info)
    connected: socket.socket | None
    connected, _, errors = await staggered_race(
        [partial(_connect_to, info) for info in ordered], NEXT_ADDRESS_DELAY_S
    )
    if connected is not None:
        return connected
    raise next((error for error in errors if error is not None), OSError("the host has no address"))


async def _connect_to(info: AddressInfo) -> socket.socket:
    family, kind, protocol, _, address = info
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setblocking(False)
        await asyncio.get_running_loop().sock_connect(opened, address)
    except BaseException:
        opened.close()
        raise
    return opened


class Connection(asyncio.Protocol):
    """One connection to a server, for one request at a time."""

    def __init__(self, idle_timeout_s: float) -> None:
        self._idle_timeout_s = idle_timeout_s
        self._transport: asyncio.Transport | None = None
        self._has_arrivals: Callable[[], bool] = lambda: False
        self._buffer = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._is_lost = self._is_idle = self._is_reading_paused = self._is_writing_paused = False
        self._error: Exception | None = None
        self._can_be_kept = False
        """True when a response that allows it was read completely."""
        self._idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # of a TCP connection
        sock: socket.socket = transport.get_extra_info("socket")
        self._has_arrivals = make_arrival_check(sock.fileno())

    def data_received(self, data: bytes) -> None:
        if self._is_idle:  # nothing was requested: the server does not follow the protocol
            self.close()
            return
        self._buffer += data
        if len(self._buffer) > MAX_UNREAD_BYTES and not self._is_reading_paused and self._transport:
            self._is_reading_paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost, self._error = True, exc
        self._wake()

    def pause_writing(self) -> None:
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        self._wake()

    @property
    def is_usable(self) -> bool:
        """Return True if another request can be sent: the connection is open and no data is pending."""
        is_old = time.monotonic() - self._idle_since > self._idle_timeout_s
        return not self._is_lost and not is_old and not self._has_arrivals()

    def close(self) -> None:
        self._is_lost = True
        if self._transport is not None:
            self._transport.abort()

    def prepare_next(self) -> bool:
        """Prepare for another request; return False if the connection cannot be reused."""
        is_clean = self._can_be_kept and not self._is_lost and not self._buffer
        # While reading is paused, more of the server's data may be waiting, in a place that cannot be polled.
        if not is_clean or self._is_writing_paused or self._is_reading_paused:
            return False
        self._can_be_kept, self._is_idle, self._idle_since = False, True, time.monotonic()
        return True

    async def send(self, head: bytes, body: bytes | AsyncIterator[bytes], timeout_s: float | None) -> bool:
        """Send a request, streaming its body if it is an iterator; wait forever if `timeout_s` is None.

        Returns False if the server closed the connection or responded before it had read everything; there
        may be a response. Raises ExchangeFailed if the server does not read.
        """
        self._is_idle = self._can_be_kept = False
        if not isinstance(body, bytes):
            self._write(head)
            async for part in body:
                if not await self._write_whole(part, timeout_s):
                    return False
            return True
        if len(body) <= WRITE_BYTES:
            return await self._write_whole(head + body, timeout_s)
        self._write(head)
        return await self._write_whole(body, timeout_s)

    async def _write_whole(self, data: bytes, timeout_s: float | None) -> bool:
        view = memoryview(data)
        for start in range(0, len(data), WRITE_BYTES):
            self._write(view[start : start + WRITE_BYTES])
            while self._is_writing_paused and not self._is_lost:
                if self._buffer:
                    return False
                await self._wait(timeout_s)
        return not self._is_lost

    def _write(self, data: bytes | memoryview) -> None:
        if self._transport is not None and not self._is_lost:
            self._transport.write(data)

    async def receive(self, method: str, timeout_s: float | None) -> Response:
        """Return the response to the last request, before its body is read."""
        for _ in range(MAX_INTERIM_RESPONSES + 1):
            head = await self._read_head(timeout_s)
            if head.status >= 200:
                return Response(self, head, method, timeout_s)
            if head.status == 101:
                raise ExchangeFailed("the server switched to another protocol, which was not requested")
        raise ExchangeFailed("the server sent too many interim responses")

    async def _read_head(self, timeout_s: float | None) -> _Head:
        searched = 0
        while (end := _LINE_END.search(self._buffer, max(0, searched - 3))) is None:
            searched = len(self._buffer)
            if searched > MAX_HEAD_BYTES:
                raise ExchangeFailed("the headers of the response are too long")
            if not await self.wait_for_data(timeout_s):
                raise self._describe_end("the server disconnected without sending a response")
        head = bytes(self._buffer[: end.start()])
        del self._buffer[: end.end()]
        return _parse_head(head)

    async def wait_for_data(self, timeout_s: float | None) -> bool:
        """Wait until more data has arrived; return False if the connection ended. Raises ExchangeFailed."""
        before = len(self._buffer)
        self._resume()
        while len(self._buffer) == before:
            if self._is_lost:
                return False
            await self._wait(timeout_s)
        return True

    def take_data(self, limit: int | None = None) -> bytes:
        """Remove and return the received data, at most `limit` bytes if `limit` is given."""
        data = bytes(self._buffer if limit is None else self._buffer[:limit])
        del self._buffer[: len(data)]
        return data

    @property
    def buffer(self) -> bytearray:
        """Return the received data that was not read yet."""
        return self._buffer

    @property
    def is_complete(self) -> bool:
        """Return True if the response was read completely and another request can follow."""
        return self._can_be_kept

    def require_clean_end(self) -> None:
        """Raise ExchangeFailed if the connection ended with an error instead of being closed."""
        if self._error is not None:
            raise self._describe_end("")

    def fail_early_end(self) -> ExchangeFailed:
        """Return the error for a connection that ended before the response was complete."""
        return self._describe_end("the server closed the connection before the response was complete")

    def mark_complete(self, *, can_be_kept: bool) -> None:
        """Record that the response was read completely."""
        self._can_be_kept = can_be_kept

    def _describe_end(self, problem: str) -> ExchangeFailed:
        return ExchangeFailed(str(self._error or problem) or type(self._error).__name__)

    def _resume(self) -> None:
        if self._is_reading_paused and self._transport is not None and not self._is_lost:
            self._is_reading_paused = False
            self._transport.resume_reading()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self, timeout_s: float | None) -> None:
        """Wait until data arrives or the connection ends."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            if timeout_s is None:
                await self._waiter
                return
            async with asyncio.timeout(timeout_s):
                await self._waiter
        except TimeoutError:
            raise ExchangeFailed("the server did not respond in time", is_timeout=True) from None
        finally:
            self._waiter = None


class Response:
    """An HTTP response with status and headers, before its body is read."""

    def __init__(self, connection: Connection, head: _Head, method: str, timeout_s: float | None) -> None:
        """Create a response. Raises ExchangeFailed if the length of its body is ambiguous."""
        self.status, self.headers = head.status, head.headers
        self._connection, self._timeout_s = connection, timeout_s
        is_ambiguous = bool(head.find(b"transfer-encoding") and head.find(b"content-length"))
        is_closing = any(b"close" in value.lower() for value in head.find(b"connection"))
        self._can_be_kept = not (head.is_version_1_0 or is_ambiguous or is_closing)
        has_no_body = method == "HEAD" or head.status in (204, 304)
        self._length = 0 if has_no_body else _find_length(head)
        self._is_chunked = not has_no_body and bool(head.find(b"transfer-encoding"))

    def read(self, *, by_chunk: bool = False) -> AsyncIterator[bytes]:
        """Yield the body of the HTTP response in chunks as they arrive. Raises ExchangeFailed.

        With `by_chunk`, chunks that arrive together are yielded one by one, so that they can be counted.
        """
        if self._is_chunked:
            parts = self._read_chunks(by_chunk)
        else:
            parts = self._read_until_close() if self._length is None else self._read_length(self._length)
        return _pace(parts)

    async def _read_length(self, length: int) -> AsyncIterator[bytes]:
        connection, rate, left = self._connection, _PartRate(), length
        while left:
            if not connection.buffer and not await connection.wait_for_data(self._timeout_s):
                raise connection.fail_early_end()
            data = connection.take_data(min(left, MAX_PART_BYTES))
            rate.count(len(data))
            left -= len(data)
            if not left:
                connection.mark_complete(can_be_kept=self._can_be_kept)
            yield data
        connection.mark_complete(can_be_kept=self._can_be_kept)

    async def _read_until_close(self) -> AsyncIterator[bytes]:
        connection, rate = self._connection, _PartRate()
        while connection.buffer or await connection.wait_for_data(self._timeout_s):
            data = connection.take_data(MAX_PART_BYTES)
            rate.count(len(data))
            yield data
        connection.require_clean_end()

    async def _read_chunks(self, by_chunk: bool) -> AsyncIterator[bytes]:
        connection, decoder = self._connection, _ChunkDecoder()
        while True:
            pieces = decoder.decode(connection.buffer)
            undecoded = len(connection.buffer)
            if decoder.is_complete:
                connection.mark_complete(can_be_kept=self._can_be_kept)
            for data in pieces if by_chunk or len(pieces) < 2 else (b"".join(pieces),):
                yield data
            if decoder.is_complete:
                return
            # The end of the body may have arrived while the caller worked on a piece.
            has_more = not decoder.needs_data or len(connection.buffer) > undecoded
            if not has_more and not await connection.wait_for_data(self._timeout_s):
                raise connection.fail_early_end()


async def limit_parts(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the parts of a body that another HTTP client reads. Raises ExchangeFailed for many small ones."""
    rate = _PartRate()
    async for part in _pace(parts):
        rate.count(len(part))
        yield part


async def _pace(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the parts of a body, letting other tasks run in between."""
    pacer = Pacer()
    async for part in parts:
        pacer.resume()
        yield part
        await pacer.rest_if_due()


class _PartRate:
    """Counts the pieces of a body in each second."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._parts = self._bytes = 0

    def count(self, size: int) -> None:
        """Count a piece. Raises ExchangeFailed if there are too many small ones."""
        now = time.monotonic()
        if now - self._began > 1.0:
            self._began, self._parts, self._bytes = now, 0, 0
        self._parts += 1
        self._bytes += size
        if self._parts > MAX_SMALL_PARTS + self._bytes // MIN_PART_BYTES:
            raise ExchangeFailed(
                f"the server sent its response in small pieces, more than {MAX_SMALL_PARTS:,} of less than"
                f" {MIN_PART_BYTES} bytes in a second"
            )


class _ChunkDecoder:
    """Decoder for a body in the transfer coding `chunked`."""

    def __init__(self) -> None:
        self.is_complete = False
        self._left = 0
        """Bytes of the current chunk that have not arrived."""
        self._needs_line_end = self._is_in_trailers = False
        self._rate, self._trailer_bytes = _PartRate(), 0
        self.needs_data = True
        """True if nothing more can be decoded before more data arrives."""

    def decode(self, buffer: bytearray) -> list[bytes]:
        """Remove chunks from a buffer and return their data, limited in size. Raises ExchangeFailed."""
        parts: list[bytes] = []
        position, end, wanted = 0, len(buffer), MAX_PART_BYTES
        while not self.is_complete and wanted > 0:
            if self._left:
                piece = bytes(buffer[position : position + min(self._left, wanted)])
                if not piece:
                    break
                self._rate.count(len(piece))
                parts.append(piece)
                position += len(piece)
                wanted -= len(piece)
                self._left -= len(piece)
                self._needs_line_end = True
                continue
            line_end = buffer.find(b"\n", position)
            if line_end < 0:
                if end - position > MAX_CHUNK_LINE_BYTES:
                    raise ExchangeFailed("a line between the chunks of the response is too long")
                break
            line = bytes(buffer[position:line_end]).removesuffix(b"\r")
            position = line_end + 1
            self._read_line(line)
        del buffer[:position]
        self.needs_data = wanted > 0
        return parts

    def _read_line(self, line: bytes) -> None:
        if self._needs_line_end:
            self._needs_line_end = False
            if line:
                raise ExchangeFailed("a chunk of the response is longer than its length says")
        elif self._is_in_trailers:
            self.is_complete = not line
            self._trailer_bytes += len(line)
            if self._trailer_bytes > MAX_TRAILER_BYTES:
                raise ExchangeFailed("the headers behind the body of the response are too long")
        else:
            found = _CHUNK_LINE.fullmatch(line)
            if found is None:
                raise ExchangeFailed("the length of a chunk of the response is not valid")
            self._left = int(found[1], 16)
            self._is_in_trailers = not self._left


def require_valid_headers(headers: Headers) -> None:
    """Raise ExchangeFailed for headers with control characters, which some HTTP clients accept."""
    if any(_FIELD.fullmatch(name + b":" + value) is None for name, value in headers):
        raise ExchangeFailed(_MALFORMED)


def _parse_head(head: bytes) -> _Head:
    """Parse the status and headers of a response. Raises ExchangeFailed if they are malformed."""
    first, *lines = re.split(rb"\r?\n", head)
    if len(lines) > MAX_HEADERS:
        raise ExchangeFailed(f"the response has more than {MAX_HEADERS} headers")
    status = _STATUS_LINE.fullmatch(first)
    fields = [_FIELD.fullmatch(line) for line in lines]
    if status is None:
        raise ExchangeFailed("the response is not an HTTP response")
    headers = [(field[1], field[2]) for field in fields if field is not None]
    if len(headers) < len(fields):
        raise ExchangeFailed(_MALFORMED)
    return _Head(int(status[2]), headers, status[1] == b"1.0")


def _find_length(head: _Head) -> int | None:
    """Return the length of a response body; None if it is chunked or ends with the connection.

    Raises ExchangeFailed if the headers contradict each other.
    """
    codings = head.find(b"transfer-encoding")
    lengths = {part.strip() for value in head.find(b"content-length") for part in value.split(b",")}
    if codings:
        if len(codings) > 1 or codings[0].lower() != b"chunked":
            raise ExchangeFailed("the transfer coding of the response is not supported")
        return None
    if len(lengths) > 1 or any(_LENGTH.fullmatch(each) is None for each in lengths):
        raise ExchangeFailed("the Content-Length of the response is not valid")
    return int(lengths.pop()) if lengths else None
