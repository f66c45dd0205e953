"""Read the bodies of HTTP requests within limits, before they are passed to the MCP SDK.

A request whose headers break a limit is refused before anything is read. A body has limits on its bytes, its
time and its structure, and the bodies of all requests in progress share a limit.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from toolfold.core.json_limits import MAX_ARGUMENT_ITEMS, find_excess

MAX_REQUEST_BYTES = 10_000_000
MAX_REQUEST_ITEMS = MAX_ARGUMENT_ITEMS + 1_000
"""JSON values and keys of one request: those of the call's arguments and of the message around them."""
BODY_TIMEOUT_S = 60.0
MAX_BODIES_PER_CLIENT = 500
"""Bodies of one client that may be received at the same time."""
MAX_BUFFERED_PER_CLIENT_BYTES = 40_000_000
"""Bytes of the bodies of one client's unanswered requests: each needs several times its size in memory."""
MAX_BUFFERED_BYTES = 160_000_000

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """Limits on the bodies of HTTP requests: per request, per client and in total."""

    max_bytes: int
    max_items: int | None
    """Maximum number of JSON values and keys; None if the structure of a body is not checked."""
    max_client_bytes: int
    max_total_bytes: int
    timeout_s: float | None = None
    """Time in which a body must arrive; None for BODY_TIMEOUT_S."""


class RequestRefused(Exception):
    """Raised to answer an HTTP request with an error status instead of processing it."""

    def __init__(
        self, status: int, problem: str, *, challenge: str = "", retry_after_s: int = 0, log_text: str = ""
    ) -> None:
        """Store status and message of the refusal; `challenge` is the WWW-Authenticate header.

        `retry_after_s` is that of Retry-After; 0 for none. `log_text` is for the gateway's log, instead of
        the message: the client must not learn, for example, that its user is disabled.
        """
        super().__init__(problem)
        self.retry_after_s, self.log_text = retry_after_s, log_text or problem
        self.status, self.problem, self.challenge = status, problem, challenge


class ClientGone(Exception):
    """Raised if the client closes the connection before its HTTP request is complete."""


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
        raise _too_long_error(MAX_REQUEST_BYTES)


@dataclass(slots=True)
class BodyReservation:
    """Memory reserved for the body of one HTTP request."""

    client: str
    size: int = 0
    """Bytes that were read so far."""


class RequestBodies:
    """Reads request bodies within limits per client and in total."""

    def __init__(self, limits: BodyLimits | None = None) -> None:
        """Create a reader of request bodies, by default with the limits for MCP messages."""
        self._own_limits = limits
        self._readers: Counter[str] = Counter()
        self._buffered: Counter[str] = Counter()
        self._total_bytes = 0

    @property
    def _limits(self) -> BodyLimits:
        return self._own_limits or BodyLimits(
            max_bytes=MAX_REQUEST_BYTES,
            max_items=MAX_REQUEST_ITEMS,
            max_client_bytes=MAX_BUFFERED_PER_CLIENT_BYTES,
            max_total_bytes=MAX_BUFFERED_BYTES,
        )

    @property
    def buffered_bytes(self) -> int:
        """Return the total size in bytes of all bodies in memory."""
        return self._total_bytes

    async def read(self, client: str, receive: Receive) -> bytes:
        """Return the body of a client's HTTP request. Raises RequestRefused or ClientGone."""
        with self.reserve(client) as reservation:
            return await self.read_reserved(reservation, receive)

    @contextmanager
    def reserve(self, client: str) -> Iterator[BodyReservation]:
        """Yield a memory counter for one request body; leaving the `with` block releases the memory."""
        reservation = BodyReservation(client)
        try:
            yield reservation
        finally:
            self._total_bytes -= reservation.size
            self._buffered[client] -= reservation.size
            if not self._buffered[client]:
                del self._buffered[client]

    async def read_reserved(self, reservation: BodyReservation, receive: Receive) -> bytes:
        """Read the body of an HTTP request and count its memory. Raises RequestRefused or ClientGone."""
        timeout_s = self._limits.timeout_s or BODY_TIMEOUT_S
        with self._count_reader(reservation.client):
            try:
                async with asyncio.timeout(timeout_s):
                    body = await self._read_body(reservation, receive)
            except TimeoutError:
                problem = f"The body did not arrive within {timeout_s:g} seconds."
                raise RequestRefused(408, problem) from None
        max_items = self._limits.max_items
        if max_items is not None and (excess := find_excess(body, max_items=max_items)):
            raise RequestRefused(413, f"The message {excess}.")
        return body

    async def _read_body(self, reservation: BodyReservation, receive: Receive) -> bytes:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise ClientGone
            part = message.get("body", b"")
            reservation.size += len(part)
            self._buffered[reservation.client] += len(part)
            self._total_bytes += len(part)
            self._require_room(reservation)
            if not body and not message.get("more_body", False):
                return bytes(part)  # the usual case, without another copy
            body += part
            if not message.get("more_body", False):
                return bytes(body)

    def _require_room(self, reservation: BodyReservation) -> None:
        limits = self._limits
        if reservation.size > limits.max_bytes:
            raise _too_long_error(limits.max_bytes)
        is_full = self._buffered[reservation.client] > limits.max_client_bytes
        if is_full or self._total_bytes > limits.max_total_bytes:
            raise RequestRefused(503, "Too many large requests are open. Try again later.")

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
                del self._readers[client]


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


def _too_long_error(max_bytes: int) -> RequestRefused:
    return RequestRefused(413, f"The body is longer than {max_bytes:,} bytes.")
