"""HTTP/1.1 as a client of MCP servers needs it: connections that are kept, and one request at a time on each.

Stands where `httpx2` has a transport for everything there is, which takes three times as long for a call.
The same parser reads what servers send, and errors have the names that `httpx2` gives them. Knows nothing
of redirects, logins and what is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import h11
import httpx2

MOST_CONNECTIONS = 100
MOST_KEPT = 20
KEPT_SECONDS = 5.0
LARGEST_HEAD = 100_000
_AT_ONCE = 1 << 16
_SECOND_ADDRESS = 0.25
"""How long one address of a host may take until the next is tried as well."""

T = TypeVar("T")
Place: TypeAlias = tuple[str, str, int]


class Direct(httpx2.AsyncBaseTransport):
    """All connections of one client."""

    def __init__(self) -> None:
        self._idle: dict[Place, list[_Line]] = {}
        self._room = asyncio.Semaphore(MOST_CONNECTIONS)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        limits = request.extensions.get("timeout", {})
        await _timed(self._room.acquire(), limits.get("pool"), httpx2.PoolTimeout, httpx2.PoolTimeout)
        line = None
        try:
            line = self._kept(_place(request)) or await self._opened(request, limits.get("connect"))
            head = await line.ask(request, limits)
        except BaseException:
            self._release(line)
            raise
        told = {"http_version": b"HTTP/" + head.http_version, "reason_phrase": head.reason}
        return httpx2.Response(
            head.status_code,
            headers=head.headers.raw_items(),
            stream=_Body(line, limits.get("read"), self._release),
            extensions=told,
        )

    async def aclose(self) -> None:
        for lines in self._idle.values():
            for line in lines:
                line.close()
        self._idle.clear()
        await asyncio.sleep(0)

    def _kept(self, place: Place) -> _Line | None:
        """One that waits for a request, if the server has not left it."""
        lines = self._idle.get(place, [])
        while lines:
            if (line := lines.pop()).is_usable:
                return line
            line.close()
        return None

    async def _opened(self, request: httpx2.Request, seconds: float | None) -> _Line:
        place = scheme, host, port = _place(request)
        tls = self._tls if scheme == "https" else None
        opening = asyncio.create_task(
            asyncio.open_connection(host, port, ssl=tls, limit=_AT_ONCE, happy_eyeballs_delay=_SECOND_ADDRESS)
        )
        # Cancelled half-way, it would leave a socket open that nobody knows of.
        waiting = asyncio.shield(opening)
        try:
            streams = await _timed(waiting, seconds, httpx2.ConnectTimeout, httpx2.ConnectError)
        except BaseException:
            opening.add_done_callback(_unwanted)
            raise
        return _Line(place, *streams)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        context = httpx2.create_ssl_context()
        context.set_alpn_protocols(["http/1.1"])
        return context

    def _release(self, line: _Line | None) -> None:
        self._room.release()
        if line is None:
            return
        if not line.is_ready_again():
            line.close()
            return
        kept = self._idle.setdefault(line.place, [])
        kept.append(line)
        while len(kept) > MOST_KEPT or kept[0].is_old:
            kept.pop(0).close()


class _Line:
    """One connection."""

    def __init__(self, place: Place, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.place, self._reader, self._writer = place, reader, writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LARGEST_HEAD)
        self._until = 0.0

    @property
    def is_old(self) -> bool:
        return time.monotonic() > self._until

    @property
    def is_usable(self) -> bool:
        """Whether the server still holds its end: before a request it has nothing to say but goodbye."""
        if self.is_old or self._writer.is_closing() or self._reader.at_eof():
            return False
        if sys.platform == "win32":
            return True  # the loop itself has read what there is
        looking = select.poll()
        looking.register(self._writer.get_extra_info("socket").fileno(), select.POLLIN)
        return not looking.poll(0)

    async def ask(self, request: httpx2.Request, limits: dict[str, Any]) -> h11.Response:
        """Send a request; the head of its answer."""
        self._writer.write(_written(self._http, request, await request.aread()))
        with contextlib.suppress(httpx2.WriteError):  # it may have answered before it closed its ears
            await _timed(self._writer.drain(), limits.get("write"), httpx2.WriteTimeout, httpx2.WriteError)
        while not isinstance(event := await self._heard(limits.get("read")), h11.Response):
            pass
        return event

    async def body(self, seconds: float | None) -> bytes | None:
        """The next piece of an answer; None after the last."""
        event = await self._heard(seconds)
        return bytes(event.data) if isinstance(event, h11.Data) else None

    def is_ready_again(self) -> bool:
        """Whether the answer was heard to its end, and another may follow."""
        if (self._http.our_state, self._http.their_state) != (h11.DONE, h11.DONE):
            return False
        self._http.start_next_cycle()
        self._until = time.monotonic() + KEPT_SECONDS
        return True

    def close(self) -> None:
        self._writer.transport.abort()  # nobody waits for more, and a polite end could take its time

    async def _heard(self, seconds: float | None) -> Any:
        while (event := self._event()) is h11.NEED_DATA:
            reading = self._reader.read(_AT_ONCE)
            data = await _timed(reading, seconds, httpx2.ReadTimeout, httpx2.ReadError)
            if not data and self._http.their_state is h11.SEND_RESPONSE:
                raise httpx2.RemoteProtocolError("Server disconnected without sending a response.")
            self._http.receive_data(data)
        return event

    def _event(self) -> Any:
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            raise httpx2.RemoteProtocolError(str(error)) from error


class _Body(httpx2.AsyncByteStream):
    """The rest of an answer. Whoever closes it gives the connection back."""

    def __init__(self, line: _Line, seconds: float | None, release: Callable[[_Line], None]) -> None:
        self._line, self._seconds, self._release = line, seconds, release
        self._is_open = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := await self._line.body(self._seconds)) is not None:
            yield piece

    async def aclose(self) -> None:
        if self._is_open:
            self._is_open = False
            self._release(self._line)


def _unwanted(opening: asyncio.Task[Any]) -> None:
    if not opening.cancelled() and not opening.exception():
        opening.result()[1].transport.abort()


def _place(request: httpx2.Request) -> Place:
    url = request.url
    return url.scheme, url.raw_host.decode("ascii"), url.port or (443 if url.scheme == "https" else 80)


def _written(http: h11.Connection, request: httpx2.Request, content: bytes) -> bytes:
    try:
        head = h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
        events = (head, *([h11.Data(content)] if content else ()), h11.EndOfMessage())
        return b"".join(http.send(event) or b"" for event in events)
    except h11.LocalProtocolError as error:
        raise httpx2.LocalProtocolError(str(error)) from error


async def _timed(
    work: Awaitable[T],
    seconds: float | None,
    late: type[httpx2.TransportError],
    broken: type[httpx2.TransportError],
) -> T:
    """Wait for the work; the faults of the network as those of `httpx2`."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise late("it took too long") from None
    except (OSError, UnicodeError) as error:  # a host may have a name that is none
        raise broken(str(error)) from error
