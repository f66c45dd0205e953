"""Servers that are reached by an address: Streamable HTTP, and the older SSE.

The SDK's transports fall as a whole when one request meets a broken network. Below them stands a guard
that turns whatever goes wrong with a request into an answer to that request, bounds what is read, and
keeps what was configured for one origin from reaching another. Knows no method of the protocol.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from toolfold.errors import said, shown
from toolfold.sources.mcp.wire import CODE, FAULT, LARGEST_MESSAGE

if TYPE_CHECKING:
    import httpx2

    from toolfold.config.servers import McpServer
    from toolfold.sources.mcp.connection import Wiring

_SESSION = "mcp-session-id"


@asynccontextmanager
async def web_transport(settings: McpServer, wiring: Wiring, over: asyncio.Event) -> AsyncIterator[Any]:
    """A transport for the SDK's client. `over` is set when the server is known to be gone."""
    import httpx2
    from mcp.client.sse import sse_client
    from mcp.client.streamable_http import streamable_http_client

    limits = httpx2.Timeout(
        settings.connect_timeout_seconds, read=max(settings.max_call_seconds, settings.call_timeout_seconds)
    )

    def http_client(*_: object, **__: object) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            transport=_guarded(httpx2.AsyncHTTPTransport(), settings, over),
            headers=dict(wiring.headers),
            timeout=limits,
            auth=wiring.auth,
            follow_redirects=False,
        )

    if settings.way == "sse":
        opened = sse_client(
            settings.url, sse_read_timeout=settings.max_call_seconds, httpx_client_factory=http_client
        )
        yield _watched(opened, over)
        return
    async with http_client() as client:
        opened = streamable_http_client(settings.url, http_client=client, max_sse_event_size=LARGEST_MESSAGE)
        yield _watched(opened, over)


@asynccontextmanager
async def _watched(opened: Any, over: asyncio.Event) -> AsyncIterator[tuple[Any, Any]]:
    async with opened as (reading, writing):
        yield _Reading(reading, over), writing


class _Reading:
    """A stream of messages that tells when it has ended."""

    def __init__(self, stream: Any, over: asyncio.Event) -> None:
        self._stream, self._over = stream, over

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        return await self._stream.receive()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> _Reading:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except StopAsyncIteration:
            self._over.set()
            raise

    async def __aenter__(self) -> _Reading:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _guarded(inner: httpx2.AsyncBaseTransport, settings: McpServer, over: asyncio.Event) -> Any:
    import httpx2

    class Guarded(httpx2.AsyncBaseTransport):
        """Answers a message itself where the network or the server gives no usable answer."""

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if request.method != "POST" or not _is_message(request):
                return await inner.handle_async_request(request)
            try:
                response = await inner.handle_async_request(request)
            except httpx2.TransportError as error:
                unsent = isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout))
                if settings.way == "sse":
                    over.set()
                return _answer(request, 502, "unsent" if unsent else "lost", _in_words(error))
            return await _bounded(request, response)

        async def aclose(self) -> None:
            await inner.aclose()

    return Guarded()


def _is_message(request: httpx2.Request) -> bool:
    """Whether it carries a message of the protocol, and not a login's."""
    return request.headers.get("content-type", "").startswith("application/json") and (
        b'"jsonrpc"' in request.content
    )


async def _bounded(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
    """The response, read where it is no stream of events, or one of ours in its place."""
    import httpx2

    kind = response.headers.get("content-type", "").lower()
    if response.status_code < 300 and kind.startswith("text/event-stream"):
        return response
    body = bytearray()
    try:
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > LARGEST_MESSAGE:
                await response.aclose()
                return _answer(request, 502, "too-large", f"sent more than {LARGEST_MESSAGE:,} bytes at once")
    except httpx2.TransportError as error:
        return _answer(request, 502, "lost", _in_words(error))
    await response.aclose()
    if response.status_code >= 400 and not _is_error(kind, bytes(body)):
        return _refusal(request, response)
    return httpx2.Response(
        response.status_code,
        headers=response.headers,
        stream=_Body(bytes(body)),
        extensions=response.extensions,
    )


class _BodyBase:
    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body

    async def aclose(self) -> None:
        return None


def _Body(body: bytes) -> Any:  # noqa: N802 - a class in all but the moment it is made
    import httpx2

    return type("_Body", (_BodyBase, httpx2.AsyncByteStream), {})(body)


def _refusal(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
    """What a bare status means, as an answer to the message. Headers stay: a login needs them."""
    status = response.status_code
    if status in (401, 403):
        kind, why = "login", f"asks for a login (HTTP {status})."
    elif status == 404 and _SESSION in request.headers:
        kind, why = "session", "has forgotten the session."
    else:
        kind, why = "refused", f"answered with HTTP {status}."
    answer = _answer(request, status, kind, why)
    for name in ("www-authenticate", "retry-after", "location"):
        if name in response.headers:
            answer.headers[name] = response.headers[name]
    return answer


def _is_error(kind: str, body: bytes) -> bool:
    if not kind.startswith("application/json"):
        return False
    try:
        return isinstance(json.loads(body).get("error"), dict)
    except (ValueError, AttributeError):
        return False


def _answer(request: httpx2.Request, status: int, kind: str, why: str) -> httpx2.Response:
    import httpx2

    try:
        id_ = json.loads(request.content).get("id")
    except (ValueError, AttributeError):
        id_ = None
    error = {"code": CODE, "message": why, "data": {FAULT: kind}}
    return httpx2.Response(
        status, json={"jsonrpc": "2.0", "id": id_ if id_ is not None else 0, "error": error}
    )


def _in_words(error: Exception) -> str:
    return shown(said(error), 200) or type(error).__name__
