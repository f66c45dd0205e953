"""Read the bodies of HTTP requests within limits, before the MCP SDK sees them.

A request whose headers break a limit is refused before anything is read. A body has limits on its bytes, its
time and its structure, and all bodies that are being read share a memory limit.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

from toolfold.json_limits import MAX_ARGUMENT_ITEMS, find_excess

MAX_REQUEST_BYTES = 10_000_000
MAX_REQUEST_ITEMS = MAX_ARGUMENT_ITEMS + 1_000
"""JSON values and keys of one request: those of the call's arguments and of the message around them."""
BODY_TIMEOUT_S = 60.0
MAX_BODIES_PER_CLIENT = 500
"""Bodies of one client that may be received at the same time."""
MAX_BUFFERED_PER_CLIENT_BYTES = 40_000_000
MAX_BUFFERED_BYTES = 160_000_000

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class RequestRefused(Exception):
    """An HTTP request that gets an error status and is not processed."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status, self.problem = status, problem


class ClientGone(Exception):
    """The client closed the connection before its HTTP request was complete."""


def require_readable(method: str, headers: Mapping[str, str]) -> None:
    """Raise RequestRefused if the headers alone show that the body would be refused."""
    length = headers.get("content-length", "")
    has_body = "transfer-encoding" in headers or length not in ("", "0")
    if method != "POST":
        if has_body:
            raise RequestRefused(400, f"A {method} request takes no body here.")
        return
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestRefused(415, "Compressed requests are not accepted. Send the body without encoding.")
    kinds = headers.get("content-type", "").partition(";")[0].lower().split(",")
    if "application/json" not in map(str.strip, kinds):
        raise RequestRefused(415, "The Content-Type of a message must be application/json.")
    if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > MAX_REQUEST_BYTES):
        raise _too_long_error()


class RequestBodies:
    """Reads request bodies within limits per client and in total."""

    def __init__(self) -> None:
        self._readers: Counter[str] = Counter()
        self._buffered: Counter[str] = Counter()

    async def read(self, client: str, receive: Receive) -> bytes:
        """Return the body of a client's HTTP request. Raises RequestRefused or ClientGone."""
        with self._count_reader(client):
            try:
                async with asyncio.timeout(BODY_TIMEOUT_S):
                    body = await self._read_body(client, receive)
            except TimeoutError:
                problem = f"The body did not arrive within {BODY_TIMEOUT_S:g} seconds."
                raise RequestRefused(408, problem) from None
        if excess := find_excess(body, max_items=MAX_REQUEST_ITEMS):
            raise RequestRefused(413, f"The message {excess}.")
        return body

    async def _read_body(self, client: str, receive: Receive) -> bytes:
        body = bytearray()
        try:
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise ClientGone
                part = message.get("body", b"")
                body += part
                self._buffered[client] += len(part)
                self._require_room(client, len(body))
                if not message.get("more_body", False):
                    return bytes(body)
        finally:
            self._buffered[client] -= len(body)

    def _require_room(self, client: str, size: int) -> None:
        if size > MAX_REQUEST_BYTES:
            raise _too_long_error()
        is_full = self._buffered[client] > MAX_BUFFERED_PER_CLIENT_BYTES
        if is_full or self._buffered.total() > MAX_BUFFERED_BYTES:
            raise RequestRefused(503, "Too many large requests are being received. Try again later.")

    @contextmanager
    def _count_reader(self, client: str) -> Iterator[None]:
        if self._readers[client] >= MAX_BODIES_PER_CLIENT:
            raise RequestRefused(503, f"More than {MAX_BODIES_PER_CLIENT} requests are being received.")
        self._readers[client] += 1
        try:
            yield
        finally:
            self._readers[client] -= 1
            if not self._readers[client]:
                del self._readers[client], self._buffered[client]


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` function that yields the whole body first, then further messages."""
    is_given = False

    async def receive_again() -> MutableMapping[str, Any]:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


def _too_long_error() -> RequestRefused:
    return RequestRefused(413, f"The body is longer than {MAX_REQUEST_BYTES:,} bytes.")
