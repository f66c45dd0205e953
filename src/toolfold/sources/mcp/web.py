"""Servers that are reached by an address: Streamable HTTP, and the older SSE.

The SDK's transports fall as a whole when one request meets a broken network. Below them stands a guard
that turns whatever goes wrong with a request into an answer to that request, bounds what is read, and
keeps what was configured for one origin from reaching another. Knows no method of the protocol.
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

from toolfold.errors import error_message, shorten
from toolfold.json_limits import find_excess
from toolfold.model import Json
from toolfold.sources.mcp.faults import ServerFailed
from toolfold.sources.mcp.pacing import Pacer
from toolfold.sources.mcp.sieve import Flooded, Sieve
from toolfold.sources.mcp.wire import CODE, FAULT, LARGEST_MESSAGE, completed, error_for

if TYPE_CHECKING:
    import httpx2

    from toolfold.config.servers import McpServer
    from toolfold.sources.mcp.connection import Wiring

LARGEST_EVENT = 1 << 20
"""Over the older transport, where the SDK takes no more."""
MAX_EVENT_LINES = 10_000
"""Lines of one event of a stream."""
MAX_SMALL_CHUNKS = 1_000
"""Chunks of a body, or of a stream within a second, that may be of any size; more must not be tiny."""
MIN_CHUNK_BYTES = 256
"""What the chunks of a body have on average."""
MIN_STREAM_CHUNK_BYTES = 16
"""What the chunks of a stream have on average: less than any message."""
FAREWELL_SECONDS = 2.0
"""How long a server may take to end a session that nobody needs any more."""
_TIMES = ("connect", "read", "write", "pool")
_SESSION = "mcp-session-id"
_EVENTS = "text/event-stream"
_END_OF_EVENT = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_IGNORED = re.compile(rb"(?:[\r\n]|:[^\r\n]*[\r\n])*+\Z")
"""Events of blank lines and comments alone."""


@asynccontextmanager
async def web_transport(
    settings: McpServer, wiring: Wiring, over: asyncio.Event, is_ready: Callable[[], bool] = bool
) -> AsyncIterator[Any]:
    """A transport for the SDK's client. `over` is set when the server is known to be gone.

    Before it `is_ready` a missing login ends it: the SDK would take an answer for that of an older server.
    """
    import httpx2
    from mcp.client.sse import sse_client
    from mcp.client.streamable_http import streamable_http_client

    # How long an answer may take is decided above; a stream of events may be silent for ever.
    limits = httpx2.Timeout(settings.connect_timeout_seconds, read=None)
    waiting = _Waiting(Sieve(wiring.log.note))

    def http_client(*_: object, **__: object) -> httpx2.AsyncClient:
        return _client(is_ready, waiting if settings.way == "sse" else None)(
            transport=_guarded(httpx2.AsyncHTTPTransport(), waiting.sieve, settings.way != "sse"),
            # What is packed could be of any size when it is unpacked.
            headers={**settings.headers, "accept-encoding": "identity"},
            timeout=limits,
            auth=wiring.auth,
            follow_redirects=False,
        )

    if settings.way == "sse":
        yield _watched(sse_client(settings.url, httpx_client_factory=http_client), over, waiting)
        return
    async with http_client() as client:
        opened = streamable_http_client(settings.url, http_client=client, max_sse_event_size=LARGEST_MESSAGE)
        yield _watched(opened, over, waiting)


@asynccontextmanager
async def _watched(opened: Any, over: asyncio.Event, waiting: _Waiting) -> AsyncIterator[tuple[Any, Any]]:
    """The transport's streams, with a look at each message, and a word when there will be no more."""
    import anyio

    heard, reading = anyio.create_memory_object_stream[Any](16)
    waiting.tell = heard.send_nowait

    async def pass_on(source: Any) -> None:
        try:
            async for item in source:
                await heard.send(waiting.heard(item))
        except anyio.BrokenResourceError:
            return
        finally:
            over.set()
            heard.close()

    with heard, reading:
        async with opened as (source, writing):
            passing = asyncio.create_task(pass_on(source))
            try:
                yield reading, writing
            finally:
                passing.cancel()
                await asyncio.wait({passing})


class _Waiting:
    """The requests whose answers come over a stream that they share."""

    def __init__(self, sieve: Sieve) -> None:
        self.sieve = sieve
        self._ids: dict[Any, None] = {}
        self._ever: deque[Any] = deque(maxlen=4_096)
        self.tell: Callable[[Any], None] = lambda _: None

    def add(self, id_: Any) -> None:
        self._ids[id_] = None
        self._ever.append(id_)

    def heard(self, item: Any) -> Any:
        """What came over the stream, or in its place the failure of the only request it can belong to."""
        message = getattr(item, "message", None)
        id_ = getattr(message, "id", None)
        if isinstance(item, Exception) and b"jsonrpc" in _raw(item):
            return self._failure(item, "sent a message that is not well-formed")
        if hasattr(message, "method") or id_ is None:
            return item
        completed(message)
        if id_ not in self._ever and self._ever:
            return self._failure(item, f"answered to {id_!r}, which nobody asked")
        self._ids.pop(id_, None)
        return item

    def refuse(self, response: httpx2.Response) -> None:
        """A request did not even get there: the answer that says so comes over the stream as well."""
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        message = jsonrpc_message_adapter.validate_json(response.content, by_name=False)
        self._ids.pop(getattr(message, "id", None), None)
        with contextlib.suppress(Exception):  # full or closed: then nobody waits for it
            self.tell(SessionMessage(message))

    def _failure(self, item: Any, why: str) -> Any:
        return error_for(self._ids.popitem()[0], "garbled", why) if len(self._ids) == 1 else item


def _raw(error: Exception) -> bytes:
    """What a message was that could not be understood."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return b""
    return str([each.get("input") for each in error.errors(include_url=False)]).encode()


def _client(is_ready: Callable[[], bool], waiting: _Waiting | None) -> type[httpx2.AsyncClient]:
    """`waiting` is given where answers come over another stream than the request went."""
    import httpx2

    class Client(httpx2.AsyncClient):
        """Above the login: answers a message itself that could not be sent for want of one."""

        async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
            if request.method != "POST" or not _is_message(request):
                return await super().send(request, **options)
            if waiting is None:
                return await self._sent(request, options)
            if (id_ := _id(request)) is not None:
                waiting.add(id_)
            response = await self._sent(request, options)
            if id_ is None or response.status_code < 400:
                return response
            await response.aread()
            waiting.refuse(response)
            return httpx2.Response(202, request=request)

        async def __aexit__(self, *error: Any) -> None:
            closing = asyncio.ensure_future(super().__aexit__(*error))
            try:
                await asyncio.shield(closing)
            finally:
                await asyncio.wait({closing})  # also when nobody waits any longer: it holds sockets

        async def _sent(self, request: httpx2.Request, options: Any) -> httpx2.Response:
            try:
                return await super().send(request, **options)
            except ServerFailed as error:
                if not is_ready():
                    raise
                return _answer(request, 401, error.kind, error.problem)

    return Client


def _guarded(inner: httpx2.AsyncBaseTransport, sieve: Sieve, is_answered: bool) -> Any:
    """`is_answered` tells whether the answer to a message comes the way it went."""
    import httpx2

    largest = LARGEST_MESSAGE if is_answered else LARGEST_EVENT

    class Guarded(httpx2.AsyncBaseTransport):
        """Answers a message itself where the network or the server gives no usable answer."""

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if request.method == "DELETE":
                request.extensions["timeout"] = dict.fromkeys(_TIMES, FAREWELL_SECONDS)
            if request.method != "POST" or not _is_message(request):
                return _sifted(_unpacked(await inner.handle_async_request(request)), sieve, largest)
            try:
                response = await inner.handle_async_request(request)
            except httpx2.TransportError as error:
                return _answer(request, 502, "unsent" if _is_unsent(error) else "lost", _in_words(error))
            answer = await _bounded(request, response, is_answer=is_answered)
            return _sifted(answer, sieve, largest, _id(request))

        async def aclose(self) -> None:
            await inner.aclose()

    return Guarded()


def _sifted(response: httpx2.Response, sieve: Sieve, largest: int, id_: Any = None) -> httpx2.Response:
    """A stream of events without those that are too many. `id_` is the request that the stream answers."""
    import httpx2

    if not response.headers.get("content-type", "").lower().startswith(_EVENTS):
        return response

    class Sifted(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            pacer = Pacer()
            async for event in _events(response.aiter_raw(), largest, pacer):
                if not sieve.drops(event):
                    yield _within_limits(event, id_)
                await pacer.rest_if_due()

        async def aclose(self) -> None:
            await response.aclose()

    return httpx2.Response(
        response.status_code, headers=response.headers, stream=Sifted(), extensions=response.extensions
    )


async def _events(chunks: AsyncIterator[bytes], largest: int, pacer: Pacer) -> AsyncIterator[bytes]:
    """The same bytes, event by event, without blank ones and comments.

    One that is too large comes in the pieces it was received in: the SDK refuses it.
    """
    kept, rate = bytearray(), _ChunkRate()
    async for chunk in chunks:
        pacer.resume()
        rate.count(len(chunk))
        seen = max(0, len(kept) - 3)
        kept += chunk
        ends = [0, *(found.end() for found in _END_OF_EVENT.finditer(kept, seen))]
        if len(kept) - ends[-1] > largest:
            ends.append(len(kept))
        for start, end in pairwise(ends):
            if not _IGNORED.match(kept, start, end):
                yield bytes(kept[start:end])
        del kept[: ends[-1]]
        await pacer.rest_if_due()
    if kept:
        yield bytes(kept)


class _ChunkRate:
    """The chunks of a stream within a second."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._chunks = self._bytes = 0

    def count(self, size: int) -> None:
        """Count a chunk. Raises Flooded if there are too many small ones."""
        now = time.monotonic()
        if now - self._began > 1.0:
            self._began, self._chunks, self._bytes = now, 0, 0
        self._chunks += 1
        self._bytes += size
        if self._chunks > MAX_SMALL_CHUNKS + self._bytes // MIN_STREAM_CHUNK_BYTES:
            raise Flooded("a flood of small chunks")


def _within_limits(event: bytes, id_: Any) -> bytes:
    """The event, or in its place the error that it exceeds a limit."""
    if event.count(b"\n") + event.count(b"\r") > MAX_EVENT_LINES:
        excess: str | None = f"has more than {MAX_EVENT_LINES:,} lines"
    else:
        excess = find_excess(_data_of(event))
    if excess is None:
        return event
    problem = f"sent a message that {excess}"
    if id_ is None:  # no message at all: whoever waits for the only answer is told so
        return (
            b"event: message\ndata: " + json.dumps({"jsonrpc": "2.0", "problem": problem}).encode() + b"\n\n"
        )
    return b"event: message\ndata: " + json.dumps(_error(id_, "too-large", problem)).encode() + b"\n\n"


def _data_of(event: bytes) -> bytes:
    """The data of an event, as every reader of the stream joins it."""
    lines = event.removeprefix(b"\xef\xbb\xbf").splitlines()
    return b"\n".join(line.partition(b":")[2] for line in lines if line.startswith(b"data"))


def _is_unsent(error: Exception) -> bool:
    import httpx2

    return isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout))


def _unpacked(response: httpx2.Response) -> httpx2.Response:
    """A response that nobody has to unpack."""
    import httpx2

    if response.headers.get("content-encoding", "identity").lower() == "identity":
        return response
    raise httpx2.DecodingError("it is packed, although it was asked not to be")


def _is_message(request: httpx2.Request) -> bool:
    """Whether it carries a message of the protocol, and not a login's."""
    return request.headers.get("content-type", "").startswith("application/json") and (
        b'"jsonrpc"' in request.content
    )


async def _bounded(request: httpx2.Request, response: httpx2.Response, *, is_answer: bool) -> httpx2.Response:
    """The response, read where it is no stream of events, or one of ours in its place."""
    import httpx2

    kind = response.headers.get("content-type", "").lower()
    try:
        if _unpacked(response).status_code < 300 and kind.startswith(_EVENTS):
            return response
        body = await _read(response)
    except _TooMuch as error:
        return _answer(request, 502, "too-large", str(error))
    except httpx2.DecodingError as error:
        return _answer(request, 502, "garbled", f"sent what cannot be read: {_in_words(error)}")
    except httpx2.TransportError as error:
        return _answer(request, 502, "lost", _in_words(error))
    finally:
        if not kind.startswith(_EVENTS):
            await response.aclose()
    if response.status_code >= 400 and not _is_error(kind, body):
        return _refusal(request, response)
    if is_answer and (why := _what_is_wrong(request, response, kind, body)):
        return _answer(request, 502, "garbled", why)
    return httpx2.Response(
        response.status_code,
        headers=response.headers,
        content=body,
        extensions=response.extensions,
    )


class _TooMuch(Exception):
    """A body exceeds a limit, which the message names."""


async def _read(response: httpx2.Response) -> bytes:
    """The whole body. Raises _TooMuch."""
    body, parts, pacer = bytearray(), 0, Pacer()
    async for part in response.aiter_raw():
        pacer.resume()
        body += part
        parts += 1
        if len(body) > LARGEST_MESSAGE:
            raise _TooMuch(f"sent more than {LARGEST_MESSAGE:,} bytes at once")
        if parts > MAX_SMALL_CHUNKS + len(body) // MIN_CHUNK_BYTES:
            raise _TooMuch(f"sent more than {MAX_SMALL_CHUNKS:,} chunks of less than {MIN_CHUNK_BYTES} bytes")
        await pacer.rest_if_due()
    if excess := find_excess(bytes(body)):
        raise _TooMuch(f"sent a message that {excess}")
    return bytes(body)


def _what_is_wrong(request: httpx2.Request, response: httpx2.Response, kind: str, body: bytes) -> str:
    """Why this cannot be the answer to a request; empty if it can."""
    asked = _id(request)
    if asked is None or not 200 <= response.status_code < 300:
        return ""
    if not kind.startswith("application/json"):
        return f"answered with {kind or 'nothing'!r} instead of a message"
    try:
        answered = json.loads(body.decode()).get("id")
    except (ValueError, AttributeError, RecursionError):
        return "sent an answer that is not well-formed"
    return "" if answered == asked else f"answered to {answered!r}, which nobody asked"


def _refusal(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
    """What a bare status means, as an answer to the message. Headers stay: a login needs them."""
    status = response.status_code
    if status in (401, 403):
        kind, why = "login", f"asks for a login (HTTP {status})."
    elif status == 404 and _SESSION in request.headers:
        kind, why = "session", "it has forgotten the session."
    elif status >= 500:
        kind, why = "broken", f"answered with HTTP {status}."
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
        return isinstance(json.loads(body.decode()).get("error"), dict)
    except (ValueError, AttributeError, RecursionError):
        return False


def _id(request: httpx2.Request) -> Any:
    """What the answer will be known by; None for what is not answered."""
    try:
        message = json.loads(request.content)
        return message.get("id") if "method" in message else None
    except (ValueError, AttributeError):
        return None


def _answer(request: httpx2.Request, status: int, kind: str, why: str) -> httpx2.Response:
    import httpx2

    id_ = _id(request)
    return httpx2.Response(status, json=_error(id_ if id_ is not None else 0, kind, why))


def _error(id_: Any, kind: str, why: str) -> Json:
    error = {"code": CODE, "message": why, "data": {FAULT: kind}}
    return {"jsonrpc": "2.0", "id": id_, "error": error}


def _in_words(error: Exception) -> str:
    return shorten(error_message(error), 200) or type(error).__name__
