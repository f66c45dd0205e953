"""Local HTTP proxy through which a browser can reach only addresses that the address policy allows.

A browser resolves names and follows redirects itself, so checking the URL of a page is not enough. All its
connections go through this proxy, which resolves each name once, checks the addresses and connects to one of
them. Encrypted traffic passes unread. Only the browser knows the password of the proxy.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from urllib.parse import urlsplit

from toolfold.core.errors import CallError
from toolfold.tools.internet.address_policy import AddressPolicy

__all__ = ["FilteringProxy"]

MAX_HEADER_BYTES = 65_536
MAX_CONNECTIONS = 256
MAX_REFUSALS = 100
HEADER_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 20.0
_CHUNK_BYTES = 65_536
_USER = "toolfold"
# Services of the browser's vendor that it contacts by itself, not for a page.
_BROWSER_SERVICES = frozenset(
    f"{name}.googleapis.com"
    for name in ("content-autofill", "optimizationguide-pa", "safebrowsing", "update")
)
_HOP_HEADERS = (b"proxy-", b"connection:", b"keep-alive:")


class _BadRequest(Exception):
    """Raised for a refused proxy request; the message is the HTTP status of the response."""


@dataclass(frozen=True, slots=True)
class _ProxyRequest:
    """First request of a browser connection to the proxy."""

    method: str
    target: str
    version: str
    headers: tuple[bytes, ...]
    """Header lines, each with name and value, without line ends."""

    def header(self, name: bytes) -> str:
        prefix = name + b":"
        lines = (line for line in self.headers if line.lower().startswith(prefix))
        return next((line[len(prefix) :].strip().decode("latin-1") for line in lines), "")


class FilteringProxy:
    """HTTP proxy that connects only to addresses that its policy allows."""

    def __init__(self, policy: AddressPolicy) -> None:
        self._policy = policy
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._refusals: OrderedDict[str, str] = OrderedDict()
        self.user, self.password = _USER, secrets.token_urlsafe(24)

    async def start(self) -> str:
        """Listen on a free port of the loopback address and return the URL of the proxy."""
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", 0, limit=MAX_HEADER_BYTES, backlog=MAX_CONNECTIONS
        )
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def refusal_of(self, host: str) -> str:
        """Return the last reason for refusing a connection to this host; empty if there was none."""
        return self._refusals.get(host.strip("[]").lower(), "")

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= MAX_CONNECTIONS:
            writer.close()
            return
        self._connections.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError, TimeoutError):
                await self._serve(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEADER_TIMEOUT_S):
                request = await _read_request(reader)
            self._require_password(request)
            host, port = _find_target(request)
            upstream = await self._connect(host, port)
        except _BadRequest as problem:
            await _refuse(writer, str(problem))
            return
        upstream_reader, upstream_writer = upstream
        try:
            if request.method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                upstream_writer.write(_rewrite_request(request))
            await _relay_both(reader, upstream_writer, upstream_reader, writer)
        finally:
            upstream_writer.close()

    def _require_password(self, request: _ProxyRequest) -> None:
        expected = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        given = request.header(b"proxy-authorization")
        if not hmac.compare_digest(given.encode(), f"Basic {expected}".encode()):
            raise _BadRequest('407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm="proxy"')

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if host.lower() in _BROWSER_SERVICES:
            raise _BadRequest("403 Forbidden")
        try:
            addresses = await self._policy.resolve(host, port)
        except CallError as refused:
            self._note_refusal(host, str(refused))
            raise _BadRequest("403 Forbidden") from None
        self._refusals.pop(host.lower(), None)
        for address in addresses:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    return await asyncio.open_connection(address, port, limit=_CHUNK_BYTES)
        raise _BadRequest("502 Bad Gateway")

    def _note_refusal(self, host: str, reason: str) -> None:
        self._refusals[host.lower()] = reason
        while len(self._refusals) > MAX_REFUSALS:
            self._refusals.popitem(last=False)


async def _read_request(reader: asyncio.StreamReader) -> _ProxyRequest:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _BadRequest("431 Request Header Fields Too Large") from None
    except asyncio.IncompleteReadError:
        raise ConnectionError from None
    first, *headers = head[:-4].split(b"\r\n")
    words = first.decode("latin-1").split(" ")
    if len(words) != 3:
        raise _BadRequest("400 Bad Request")
    method, target, version = words
    return _ProxyRequest(method, target, version, tuple(headers))


def _find_target(request: _ProxyRequest) -> tuple[str, int]:
    """Return the target host and port of a proxy request. Raises _BadRequest."""
    is_tunnel = request.method == "CONNECT"
    try:
        parts = urlsplit(f"//{request.target}" if is_tunnel else request.target)
        host, port = parts.hostname, parts.port or (None if is_tunnel else 80)
    except ValueError:
        host = port = None
    if not host or not port or (not is_tunnel and parts.scheme != "http"):
        raise _BadRequest("400 Bad Request")
    return host, port


def _rewrite_request(request: _ProxyRequest) -> bytes:
    """Convert a proxy request for the target server: path instead of URL, no proxy headers."""
    parts = urlsplit(request.target)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kept = [line for line in request.headers if not line.lower().startswith(_HOP_HEADERS)]
    first = f"{request.method} {path} {request.version}".encode("latin-1")
    return b"\r\n".join([first, *kept, b"Connection: close", b"", b""])


async def _refuse(writer: asyncio.StreamWriter, status: str) -> None:
    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode("latin-1"))
    await writer.drain()


async def _relay_both(
    reader: asyncio.StreamReader,
    upstream_writer: asyncio.StreamWriter,
    upstream_reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Copy data between browser and server in both directions until one side closes.

    A browser closes both directions at once. Waiting for the server then would let a silent server keep the
    connection for ever.
    """
    relays = {
        asyncio.create_task(_relay(reader, upstream_writer)),
        asyncio.create_task(_relay(upstream_reader, writer)),
    }
    try:
        await asyncio.wait(relays, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for relay in relays:
            relay.cancel()
        await asyncio.gather(*relays, return_exceptions=True)


async def _relay(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(_CHUNK_BYTES):
        target.write(data)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()
