"""Connect to MCP servers over HTTP: Streamable HTTP and the older SSE transport.

The SDK's transports end as a whole when one request has a network error. The guard below them converts such
errors to error responses of the request, limits what is read, and sends credentials of one origin to no other
one. Knows none of the protocol's methods.
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
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from toolfold.core.errors import error_message, shorten
from toolfold.core.json_limits import find_excess
from toolfold.core.pacing import Pacer
from toolfold.core.types import Json
from toolfold.mcp.faults import ServerFailed
from toolfold.mcp.notification_limiter import NotificationFlood, NotificationLimiter
from toolfold.mcp.stdio_transport import (
    FAULT_KEY,
    MAX_MESSAGE_BYTES,
    TRANSPORT_ERROR_CODE,
    make_error_message,
    set_default_result_type,
)

if TYPE_CHECKING:
    import httpx2

    from toolfold.config.servers_settings import McpServerSettings
    from toolfold.mcp.connection import ConnectionDeps
    from toolfold.mcp.direct_calls import DirectCalls

MAX_SSE_EVENT_BYTES = 1 << 20
"""Limit of the SDK for events of the older SSE transport."""
MAX_EVENT_LINES = 10_000
"""Lines of one event."""
MAX_SMALL_CHUNKS = 1_000
"""Chunks of a body, or of a stream per second, that may have any size; more must have an average size."""
MIN_CHUNK_BYTES = 256
"""Minimum average size of the chunks of a body."""
MIN_STREAM_CHUNK_BYTES = 16
"""Minimum average size of the chunks of an event stream: less than any message."""
SESSION_DELETE_TIMEOUT_S = 2.0
"""Timeout for the request that ends a session."""
_TIMEOUT_KEYS = ("connect", "read", "write", "pool")
_SESSION_HEADER = "mcp-session-id"
_EVENT_STREAM = "text/event-stream"
_END_OF_EVENT = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_EMPTY_EVENTS = re.compile(rb"(?:[\r\n]|:[^\r\n]*[\r\n])*+\Z")
"""Matches blank lines and comments between events."""


@asynccontextmanager
async def open_http_transport(
    settings: McpServerSettings,
    deps: ConnectionDeps,
    disconnected: asyncio.Event,
    is_ready: Callable[[], bool] = bool,
) -> AsyncIterator[tuple[Any, DirectCalls | None]]:
    """Open an HTTP transport for the SDK's client; set `disconnected` when the connection is lost.

    With it comes what sends the tool calls of its session over kept connections; None for the older SSE.
    Before `is_ready` returns True a missing login is raised: the SDK would take an error response for that
    of an older server.
    """
    import httpx2
    from mcp.client.sse import sse_client
    from mcp.client.streamable_http import streamable_http_client

    from toolfold.mcp.direct_calls import DirectCalls, HandoverTransport

    # Response timeouts are handled by the connection; an event stream may be silent forever.
    limits = httpx2.Timeout(settings.connect_timeout_seconds, read=None)
    pending = _PendingRequests(NotificationLimiter(deps.log.note))
    is_sse = settings.effective_transport == "sse"
    handover = HandoverTransport(httpx2.AsyncHTTPTransport(), _request_id)

    def http_client(*_: object, **__: object) -> httpx2.AsyncClient:
        return _client_class(is_ready, pending if is_sse else None)(
            transport=_guard_transport(handover, pending.limiter, not is_sse),
            # The size of a compressed body is not known before it is decompressed.
            headers={**settings.headers, "accept-encoding": "identity"},
            timeout=limits,
            auth=deps.auth,
            follow_redirects=False,
        )

    if is_sse:
        yield (
            _forward_messages(
                sse_client(settings.url, httpx_client_factory=http_client), disconnected, pending
            ),
            None,
        )
        return
    async with http_client() as client:
        opened = streamable_http_client(
            settings.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES
        )
        calls = DirectCalls(
            client,
            settings.url,
            handover,
            connect_timeout_s=settings.connect_timeout_seconds,
            is_anonymous=lambda: deps.auth is None or not deps.auth.may_have_login,
        )
        yield _forward_messages(opened, disconnected, pending, calls), calls


@asynccontextmanager
async def _forward_messages(
    opened: Any, disconnected: asyncio.Event, pending: _PendingRequests, calls: DirectCalls | None = None
) -> AsyncIterator[tuple[Any, Any]]:
    """Open the transport, check and forward its messages; set `disconnected` when the stream ends.

    The connections of `calls` are closed with the transport.
    """
    import anyio

    incoming, reading = anyio.create_memory_object_stream[Any](16)
    pending.deliver = incoming.send_nowait

    async def forward(source: Any) -> None:
        try:
            async for item in source:
                await incoming.send(pending.check_message(item))
        except anyio.BrokenResourceError:
            return
        finally:
            disconnected.set()
            incoming.close()

    with incoming, reading:
        async with opened as (source, writing):
            forwarding = asyncio.create_task(forward(source))
            try:
                yield reading, writing
            finally:
                if calls is not None:
                    await calls.close_connections()
                forwarding.cancel()
                await asyncio.wait({forwarding})


class _PendingRequests:
    """Requests that wait for responses over a shared event stream."""

    def __init__(self, limiter: NotificationLimiter) -> None:
        self.limiter = limiter
        self._ids: dict[Any, None] = {}
        self._sent_ids: deque[Any] = deque(maxlen=4_096)
        self.deliver: Callable[[Any], None] = lambda _: None

    def add(self, id_: Any) -> None:
        self._ids[id_] = None
        self._sent_ids.append(id_)

    def check_message(self, item: Any) -> Any:
        """Return a received message; replace an invalid one by an error if only one request is pending."""
        message = getattr(item, "message", None)
        id_ = getattr(message, "id", None)
        if isinstance(item, Exception) and b"jsonrpc" in _rejected_input(item):
            return self._fail_only_request(item, "sent a message that is not valid JSON-RPC")
        if hasattr(message, "method") or id_ is None:
            return item
        set_default_result_type(message)
        if id_ not in self._sent_ids and self._sent_ids:
            return self._fail_only_request(item, f"sent a response to the unknown request id {id_!r}")
        self._ids.pop(id_, None)
        return item

    def deliver_failure(self, response: httpx2.Response) -> None:
        """Deliver the error response to a request that could not be sent."""
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        message = jsonrpc_message_adapter.validate_json(response.content, by_name=False)
        self._ids.pop(getattr(message, "id", None), None)
        with contextlib.suppress(Exception):  # full or closed: the error is no longer needed
            self.deliver(SessionMessage(message))

    def _fail_only_request(self, item: Any, reason: str) -> Any:
        return make_error_message(self._ids.popitem()[0], "garbled", reason) if len(self._ids) == 1 else item


def _rejected_input(error: Exception) -> bytes:
    """Return the data that a validation error reports as invalid; empty for any other exception."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return b""
    return str([each.get("input") for each in error.errors(include_url=False)]).encode()


def _client_class(is_ready: Callable[[], bool], pending: _PendingRequests | None) -> type[httpx2.AsyncClient]:
    """Return an HTTP client class that turns a missing login into an error response."""
    import httpx2

    class MessageClient(httpx2.AsyncClient):
        """HTTP client that turns the exception for a missing login into an error response."""

        async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
            if request.method == "POST":
                await request.aread()  # a request that follows a redirect has not been read
            if request.method != "POST" or not _is_message(request):
                return await super().send(request, **options)
            if pending is None:
                return await self._send_message(request, options)
            if (id_ := _request_id(request)) is not None:
                pending.add(id_)
            response = await self._send_message(request, options)
            if id_ is None or response.status_code < 400:
                return response
            await response.aread()
            pending.deliver_failure(response)
            return httpx2.Response(202, request=request)

        async def __aexit__(self, *error: Any) -> None:
            closing = asyncio.ensure_future(super().__aexit__(*error))
            try:
                await asyncio.shield(closing)
            finally:
                await asyncio.wait({closing})  # also if cancelled: the client holds sockets

        async def _send_message(self, request: httpx2.Request, options: Any) -> httpx2.Response:
            try:
                return await super().send(request, **options)
            except ServerFailed as error:
                if not is_ready():
                    raise
                return _make_error_response(request, 401, error.kind, error.problem)

    return MessageClient


def _guard_transport(
    inner: httpx2.AsyncBaseTransport, limiter: NotificationLimiter, has_direct_responses: bool
) -> Any:
    """Wrap an HTTP transport to check the validity, size and rate of responses."""
    import httpx2

    max_event_bytes = MAX_MESSAGE_BYTES if has_direct_responses else MAX_SSE_EVENT_BYTES

    class GuardedTransport(httpx2.AsyncBaseTransport):
        """Converts network errors and invalid or oversized HTTP responses to JSON-RPC error responses."""

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if request.method == "DELETE":
                request.extensions["timeout"] = dict.fromkeys(_TIMEOUT_KEYS, SESSION_DELETE_TIMEOUT_S)
            if request.method != "POST" or not _is_message(request):
                return _limit_events(
                    _require_uncompressed(await inner.handle_async_request(request)), limiter, max_event_bytes
                )
            try:
                response = await inner.handle_async_request(request)
            except httpx2.TransportError as error:
                return _make_error_response(
                    request, 502, "unsent" if _is_unsent(error) else "lost", _describe_error(error)
                )
            response = await _check_response(request, response, is_response=has_direct_responses)
            return _limit_events(response, limiter, max_event_bytes, _request_id(request))

        async def aclose(self) -> None:
            await inner.aclose()

    return GuardedTransport()


def _limit_events(
    response: httpx2.Response, limiter: NotificationLimiter, max_event_bytes: int, id_: Any = None
) -> httpx2.Response:
    """Drop a stream's events above the rate limit; `id_` is the id of the request that the stream answers."""
    import httpx2

    if not response.headers.get("content-type", "").lower().startswith(_EVENT_STREAM):
        return response

    class LimitedEventStream(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            pacer = Pacer()
            async for event in _split_events(response.aiter_raw(), max_event_bytes, pacer):
                if not limiter.should_drop(event):
                    yield _replace_excessive_event(event, id_)
                await pacer.rest_if_due()

        async def aclose(self) -> None:
            await response.aclose()

    return httpx2.Response(
        response.status_code,
        headers=response.headers,
        stream=LimitedEventStream(),
        extensions=response.extensions,
    )


async def _split_events(
    chunks: AsyncIterator[bytes], max_event_bytes: int, pacer: Pacer
) -> AsyncIterator[bytes]:
    """Split an event stream into single events, without blank lines and comments.

    An event that is too large is yielded in the chunks it was received in: the SDK refuses it.
    """
    buffer, rate = bytearray(), _ChunkRate()
    async for chunk in chunks:
        pacer.resume()
        rate.count(len(chunk))
        searched = max(0, len(buffer) - 3)
        buffer += chunk
        ends = [0, *(match.end() for match in _END_OF_EVENT.finditer(buffer, searched))]
        if len(buffer) - ends[-1] > max_event_bytes:
            ends.append(len(buffer))
        for start, end in pairwise(ends):
            if not _EMPTY_EVENTS.match(buffer, start, end):
                yield bytes(buffer[start:end])
        del buffer[: ends[-1]]
        await pacer.rest_if_due()
    if buffer:
        yield bytes(buffer)


class _ChunkRate:
    """Counts the chunks of a stream per second."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._chunks = self._bytes = 0

    def count(self, size: int) -> None:
        """Count a chunk of the stream. Raises NotificationFlood if there are too many small chunks."""
        now = time.monotonic()
        if now - self._began > 1.0:
            self._began, self._chunks, self._bytes = now, 0, 0
        self._chunks += 1
        self._bytes += size
        if self._chunks > MAX_SMALL_CHUNKS + self._bytes // MIN_STREAM_CHUNK_BYTES:
            raise NotificationFlood("a flood of small chunks")


def _replace_excessive_event(event: bytes, id_: Any) -> bytes:
    """Return the event, or an error event if it exceeds a limit."""
    if event.count(b"\n") + event.count(b"\r") > MAX_EVENT_LINES:
        excess: str | None = f"has more than {MAX_EVENT_LINES:,} lines"
    else:
        excess = find_excess(_event_data(event))
    if excess is None:
        return event
    problem = f"sent a message that {excess}"
    if id_ is None:  # an invalid message: it fails the only pending request
        return (
            b"event: message\ndata: " + json.dumps({"jsonrpc": "2.0", "problem": problem}).encode() + b"\n\n"
        )
    return (
        b"event: message\ndata: " + json.dumps(_jsonrpc_error(id_, "too-large", problem)).encode() + b"\n\n"
    )


def _event_data(event: bytes) -> bytes:
    """Return the data of a server-sent event, with its data lines joined by line breaks."""
    lines = event.removeprefix(b"\xef\xbb\xbf").splitlines()
    return b"\n".join(line.partition(b":")[2] for line in lines if line.startswith(b"data"))


def _is_unsent(error: Exception) -> bool:
    import httpx2

    return isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout))


def _require_uncompressed(response: httpx2.Response) -> httpx2.Response:
    """Return the response. Raises DecodingError if it is compressed."""
    import httpx2

    if response.headers.get("content-encoding", "identity").lower() == "identity":
        return response
    raise httpx2.DecodingError("the response body is compressed although the request forbids it")


def _is_message(request: httpx2.Request) -> bool:
    """Return True if an HTTP request carries an MCP message, not a request of an OAuth login."""
    return request.headers.get("content-type", "").startswith("application/json") and (
        b'"jsonrpc"' in request.content
    )


async def _check_response(
    request: httpx2.Request, response: httpx2.Response, *, is_response: bool
) -> httpx2.Response:
    """Check size, encoding and status of an HTTP response; return an error response if a check fails."""
    import httpx2

    kind = response.headers.get("content-type", "").lower()
    try:
        if _require_uncompressed(response).status_code < 300 and kind.startswith(_EVENT_STREAM):
            return response
        body = await _read_body(response)
    except _BodyTooLarge as error:
        return _make_error_response(request, 502, "too-large", str(error))
    except httpx2.DecodingError as error:
        return _make_error_response(
            request, 502, "garbled", f"sent an unreadable response: {_describe_error(error)}"
        )
    except httpx2.TransportError as error:
        return _make_error_response(request, 502, "lost", _describe_error(error))
    finally:
        if not kind.startswith(_EVENT_STREAM):
            await response.aclose()
    if response.status_code >= 400 and not _is_jsonrpc_error(kind, body):
        return _make_status_error(request, response)
    if is_response and (reason := _describe_mismatch(request, response, kind, body)):
        return _make_error_response(request, 502, "garbled", reason)
    return httpx2.Response(
        response.status_code,
        headers=response.headers,
        content=body,
        extensions=response.extensions,
    )


class _BodyTooLarge(Exception):
    """The body of an HTTP response exceeds a limit; the message of the exception names the limit."""


async def _read_body(response: httpx2.Response) -> bytes:
    """Read the whole body of an HTTP response. Raises _BodyTooLarge."""
    body, parts, pacer = bytearray(), 0, Pacer()
    async for part in response.aiter_raw():
        pacer.resume()
        body += part
        parts += 1
        if len(body) > MAX_MESSAGE_BYTES:
            raise _BodyTooLarge(f"sent a message of more than {MAX_MESSAGE_BYTES:,} bytes")
        if parts > MAX_SMALL_CHUNKS + len(body) // MIN_CHUNK_BYTES:
            raise _BodyTooLarge(
                f"sent more than {MAX_SMALL_CHUNKS:,} chunks of less than {MIN_CHUNK_BYTES} bytes"
            )
        await pacer.rest_if_due()
    if excess := find_excess(bytes(body)):
        raise _BodyTooLarge(f"sent a message that {excess}")
    return bytes(body)


def _describe_mismatch(request: httpx2.Request, response: httpx2.Response, kind: str, body: bytes) -> str:
    """Describe why an HTTP body cannot be the response to its request; empty if it can be."""
    sent_id = _request_id(request)
    if sent_id is None or not 200 <= response.status_code < 300:
        return ""
    if not kind.startswith("application/json"):
        return f"responded with content type {kind or 'none'!r} instead of JSON"
    try:
        response_id = json.loads(body.decode()).get("id")
    except (ValueError, AttributeError, RecursionError):
        return "sent a response that is not valid JSON"
    return "" if response_id == sent_id else f"sent a response to the unknown request id {response_id!r}"


def _make_status_error(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
    """Return a JSON-RPC error response for an HTTP error status, with the headers that a login needs."""
    status = response.status_code
    if status in (401, 403):
        kind, reason = "login", f"requires a login (HTTP {status})."
    elif status == 404 and _SESSION_HEADER in request.headers:
        kind, reason = "session", "the session has expired."
    elif status >= 500:
        kind, reason = "broken", f"responded with HTTP {status}."
    else:
        kind, reason = "refused", f"responded with HTTP {status}."
    error = _make_error_response(request, status, kind, reason)
    for name in ("www-authenticate", "retry-after", "location"):
        if name in response.headers:
            error.headers[name] = response.headers[name]
    return error


def _is_jsonrpc_error(kind: str, body: bytes) -> bool:
    if not kind.startswith("application/json"):
        return False
    try:
        return isinstance(json.loads(body.decode()).get("error"), dict)
    except (ValueError, AttributeError, RecursionError):
        return False


def _request_id(request: httpx2.Request) -> Any:
    """Return the JSON-RPC id of an HTTP request; None for a notification."""
    try:
        message = json.loads(request.content)
        return message.get("id") if "method" in message else None
    except (ValueError, AttributeError):
        return None


def _make_error_response(request: httpx2.Request, status: int, kind: str, reason: str) -> httpx2.Response:
    import httpx2

    id_ = _request_id(request)
    return httpx2.Response(status, json=_jsonrpc_error(id_ if id_ is not None else 0, kind, reason))


def _jsonrpc_error(id_: Any, kind: str, reason: str) -> Json:
    error = {"code": TRANSPORT_ERROR_CODE, "message": reason, "data": {FAULT_KEY: kind}}
    return {"jsonrpc": "2.0", "id": id_, "error": error}


def _describe_error(error: Exception) -> str:
    return shorten(error_message(error), 200) or type(error).__name__
