"""Send tool calls to an HTTP server over kept connections, without the layers of the SDK's transport.

A call is one POST, and nearly always its response is one JSON message, or an event stream that starts with
the response. Only that is handled here. Every other outcome (a redirect, an error status, a cookie, a large
body, events before the response, a lost connection) is handed over: the SDK's transport sends the same
message, and its HTTP client gets what was received here instead of sending the request again. Knows HTTP/1.1
without TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import h11
import httpx2

from toolfold.json_limits import find_excess
from toolfold.sockets import make_arrival_check
from toolfold.sources.mcp.message_streams import MessageStream

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage
    from mcp_types import JSONRPCError, JSONRPCResponse

MAX_DIRECT_REQUEST_BYTES = 60_000
"""Longer messages are left to the SDK's transport: a server may refuse them before it has read them."""
MAX_DIRECT_RESPONSE_BYTES = 250_000
MAX_DIRECT_PARTS = 64
"""Parts in which a response may arrive."""
MAX_DIRECT_CALLS = 100
"""Calls in progress over one session; further ones use the SDK's transport."""
MAX_IDLE_CONNECTIONS = 20
IDLE_TIMEOUT_S = 5.0
"""Time after which an unused connection is closed; many servers close it then too."""
FINISH_TIMEOUT_S = 1.0
"""Time in which an event stream must end after the response, so that its connection can be used again."""
MAX_HEADER_BYTES = 100_000
_MAX_UNREAD_BYTES = 262_144
_SESSION_HEADER = "mcp-session-id"
_VERSION_HEADER = "mcp-protocol-version"
_MESSAGE_HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
_END_OF_EVENT = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_EVENT_FIELDS = (b"event:", b"data:", b"id:")

Headers = list[tuple[bytes, bytes]]


class HandoverTransport(httpx2.AsyncBaseTransport):
    """HTTP transport that sends requests, except those whose outcome was handed over by a direct call."""

    def __init__(
        self, inner: httpx2.AsyncBaseTransport, find_request_id: Callable[[httpx2.Request], Any]
    ) -> None:
        """Create a transport; `find_request_id` returns the JSON-RPC id of the message in a request."""
        self._inner, self._find_request_id = inner, find_request_id
        self.session_id: str | None = None
        """The MCP session of the last message."""
        self._outcomes: dict[Any, httpx2.Response | httpx2.TransportError] = {}
        """JSON-RPC request id → what was received for it."""

    def hand_over(self, request_id: Any, outcome: httpx2.Response | httpx2.TransportError) -> None:
        """Use this outcome for the next HTTP request that carries the message with this id."""
        self._outcomes[request_id] = outcome

    async def withdraw(self, request_id: Any) -> None:
        """Forget the outcome for a message that will not be sent, and close its connection."""
        outcome = self._outcomes.pop(request_id, None)
        if isinstance(outcome, httpx2.Response):
            await outcome.aclose()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST":
            self.session_id = request.headers.get(_SESSION_HEADER)
        outcome = self._outcomes.pop(self._find_request_id(request), None) if self._outcomes else None
        if outcome is None:
            return await self._inner.handle_async_request(request)
        if isinstance(outcome, httpx2.TransportError):
            raise outcome
        return outcome

    async def aclose(self) -> None:
        outcomes, self._outcomes = self._outcomes, {}
        for each in outcomes.values():
            if isinstance(each, httpx2.Response):
                await each.aclose()
        await self._inner.aclose()


@dataclass(frozen=True, slots=True)
class _RunningCall:
    """A call in progress, and whether its revision cancels it by closing the connection."""

    task: asyncio.Task[None]
    is_modern: bool


class DirectCalls(MessageStream):
    """Stream for outgoing messages: sends tool calls itself, and all others with the SDK's transport."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        url: str,
        handover: HandoverTransport,
        *,
        connect_timeout_s: float,
        is_anonymous: Callable[[], bool],
    ) -> None:
        """Create the stream; call `connect` before it is used.

        `client` is the SDK's HTTP client for this server. `is_anonymous` returns True if requests need no
        token of a login.
        """
        self._client, self._handover, self._is_anonymous = client, handover, is_anonymous
        self._url, self._connect_timeout_s = httpx2.URL(url), connect_timeout_s
        self._is_plain = self._url.scheme == "http" and not self._url.userinfo
        self._session_id: str | None = None
        self._headers: Headers | None = None
        self._idle: list[_Connection] = []
        self._idle_timer: asyncio.TimerHandle | None = None
        self._running: dict[Any, _RunningCall] = {}
        """JSON-RPC request id → a call whose response has not arrived."""
        self._tasks: set[asyncio.Task[None]] = set()
        """All tasks of calls, also those that only read the rest of a response."""

    def connect(self, writing: Any, deliver: Callable[[SessionMessage], Awaitable[None]]) -> None:
        """Set the SDK's stream for messages to the server, and the function that receives responses."""
        self._writing, self._deliver = writing, deliver

    async def send(self, item: SessionMessage, /) -> None:
        method = getattr(item.message, "method", "")
        if method == "tools/call" and self._start_call(item):
            return
        if method == "notifications/cancelled" and self._abort_call(item):
            return
        await self._writing.send(item)

    async def aclose(self) -> None:
        await self._writing.aclose()

    async def close_connections(self) -> None:
        """Cancel the calls in progress and close all connections."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        while self._idle:
            self._idle.pop().close()
        await asyncio.sleep(0)  # the event loop closes the sockets in its next iteration

    def _start_call(self, item: SessionMessage) -> bool:
        """Start a call; return False if the SDK's transport must send it."""
        headers = getattr(item.metadata, "headers", None)
        if headers is None or not self._can_send(item):
            return False
        try:
            content = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
            own = [(name.lower().encode("ascii"), value.encode("ascii")) for name, value in headers.items()]
        except (ValueError, UnicodeError):
            return False  # the SDK reports it
        if len(content) > MAX_DIRECT_REQUEST_BYTES:
            return False
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        request = _PostRequest(self._url.raw_path, [*self._base_headers(), *own], content)
        task = asyncio.create_task(self._run_call(item, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        is_modern = headers.get(_VERSION_HEADER) in MODERN_PROTOCOL_VERSIONS
        self._running[item.message.id] = _RunningCall(task, is_modern)  # type: ignore[union-attr]
        return True

    def _can_send(self, item: SessionMessage) -> bool:
        return (
            self._is_plain
            and getattr(item.metadata, "resumption_token", None) is None
            and len(self._running) < MAX_DIRECT_CALLS
            and not self._client.cookies
            and self._is_anonymous()
        )

    def _base_headers(self) -> Headers:
        """Return the headers that the SDK's transport would send with every message of this session."""
        if self._headers is None or self._handover.session_id != self._session_id:
            self._session_id = self._handover.session_id
            session = {_SESSION_HEADER: self._session_id} if self._session_id else {}
            built = self._client.build_request(
                "POST", self._url, headers={**_MESSAGE_HEADERS, **session}, content=b"{}"
            )
            self._headers = [
                (name.lower(), value)
                for name, value in built.headers.raw
                if name.lower() != b"content-length"
            ]
        return self._headers

    def _abort_call(self, item: SessionMessage) -> bool:
        """Cancel a call of the newest revision, whose server notices that by the closed connection."""
        params = getattr(item.message, "params", None) or {}
        call = self._running.get(params.get("requestId"))
        if call is None or not call.is_modern:
            return False
        call.task.cancel()
        return True

    async def _run_call(self, item: SessionMessage, request: _PostRequest) -> None:
        from mcp.shared.message import SessionMessage

        id_ = item.message.id  # type: ignore[union-attr]
        try:
            outcome = await self._exchange(id_, request)
            if isinstance(outcome, _DirectResponse):
                await self._deliver(SessionMessage(outcome.message))
            else:
                self._handover.hand_over(id_, outcome)
                try:
                    await self._writing.send(item)
                except BaseException:
                    await self._handover.withdraw(id_)
                    raise
        finally:
            self._running.pop(id_, None)
        if isinstance(outcome, _DirectResponse):
            await self._finish(outcome.connection)

    async def _exchange(
        self, id_: Any, request: _PostRequest
    ) -> _DirectResponse | httpx2.Response | httpx2.TransportError:
        """Send a call; return its response, or what the SDK's transport must handle."""
        try:
            connection = self._take_idle() or await self._open_connection()
        except httpx2.TransportError as error:
            return error
        parts: list[bytes] = []
        try:
            head = await connection.post(request)
            message = await _read_response(id_, head, connection, parts)
        except httpx2.TransportError as error:
            connection.close()
            return error
        except BaseException:
            connection.close()
            raise
        if message is not None:
            return _DirectResponse(message, connection)
        body = _ReceivedBody(parts, connection)
        return httpx2.Response(head.status_code, headers=list(head.headers.raw_items()), stream=body)

    def _take_idle(self) -> _Connection | None:
        """Return a connection that can be used again, the most recently used first."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
            connection.close()
        return None

    async def _open_connection(self) -> _Connection:
        host, port = self._url.host, self._url.port or 80
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(_Connection, host, port)
        except TimeoutError:
            raise httpx2.ConnectTimeout("") from None
        except OSError as error:
            raise httpx2.ConnectError(str(error)) from error
        return connection

    async def _finish(self, connection: _Connection) -> None:
        """Read the rest of a response, and keep its connection for the next call."""
        try:
            async with asyncio.timeout(FINISH_TIMEOUT_S):
                for _ in range(MAX_DIRECT_PARTS):
                    if await connection.read_part() is None:
                        break
        except (TimeoutError, httpx2.TransportError):
            connection.close()
            return
        except BaseException:
            connection.close()
            raise
        if not connection.prepare_next() or len(self._idle) >= MAX_IDLE_CONNECTIONS:
            connection.close()
            return
        self._idle.append(connection)
        if self._idle_timer is None:
            self._schedule_idle_check()

    def _schedule_idle_check(self) -> None:
        self._idle_timer = asyncio.get_running_loop().call_later(IDLE_TIMEOUT_S, self._close_unused)

    def _close_unused(self) -> None:
        self._idle_timer = None
        for connection in [each for each in self._idle if not each.is_usable]:
            self._idle.remove(connection)
            connection.close()
        if self._idle:
            self._schedule_idle_check()


@dataclass(frozen=True, slots=True)
class _PostRequest:
    """An HTTP POST request before it is sent."""

    target: bytes
    headers: Headers
    content: bytes


@dataclass(frozen=True, slots=True)
class _DirectResponse:
    """A response to a call, and the connection it arrived on."""

    message: JSONRPCResponse | JSONRPCError
    connection: _Connection


class _Connection(asyncio.Protocol):
    """HTTP/1.1 connection to a server, for one request at a time."""

    def __init__(self) -> None:
        self._parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEADER_BYTES)
        self._transport: asyncio.Transport | None = None
        self._has_data = asyncio.Event()
        self._unread = 0
        self._is_idle = self._is_closed = False
        self._last_used = time.monotonic()
        self._has_arrivals: Callable[[], bool] = lambda: False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - of a TCP connection
        self._transport = transport
        self._has_arrivals = make_arrival_check(transport.get_extra_info("socket").fileno())

    def data_received(self, data: bytes) -> None:
        if self._is_idle:  # nothing was asked: the server does not follow the protocol
            self.close()
            return
        self._parser.receive_data(data)
        self._unread += len(data)
        if self._unread > _MAX_UNREAD_BYTES and self._transport is not None:
            self._transport.pause_reading()
        self._has_data.set()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._is_closed = True
        self._parser.receive_data(b"")
        self._has_data.set()

    @property
    def is_usable(self) -> bool:
        """Return True if another request can be sent: the server has neither closed it nor sent anything."""
        is_old = time.monotonic() - self._last_used > IDLE_TIMEOUT_S
        return not self._is_closed and not is_old and not self._has_arrivals()

    def close(self) -> None:
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()

    def prepare_next(self) -> bool:
        """Prepare for another request after a complete response; return False if that is not possible."""
        done = h11.DONE
        if self._is_closed or self._parser.our_state is not done or self._parser.their_state is not done:
            return False
        if self._parser.trailing_data[0]:
            return False
        self._parser.start_next_cycle()
        self._is_idle, self._last_used = True, time.monotonic()
        return True

    async def post(self, request: _PostRequest) -> h11.Response:
        """Send a request; return the status and headers of its response. Raises TransportError."""
        self._is_idle = False
        length = (b"content-length", str(len(request.content)).encode())
        head = h11.Request(method=b"POST", target=request.target, headers=[*request.headers, length])
        try:
            data = self._parser.send(head)
            assert data is not None  # noqa: S101 - a request is never empty
            self._parser.send(h11.Data(data=request.content))
            self._parser.send(h11.EndOfMessage())
        except h11.LocalProtocolError as error:
            raise httpx2.LocalProtocolError(str(error)) from error
        if self._transport is not None:
            self._transport.write(data + request.content)
        while True:
            event = await self._next_event()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise httpx2.RemoteProtocolError("Server disconnected without sending a response.")

    async def read_part(self) -> bytes | None:
        """Return the next part of the response's body; None at its end. Raises TransportError."""
        if self._parser.their_state is not h11.SEND_BODY:
            return None
        event = await self._next_event()
        return bytes(event.data) if isinstance(event, h11.Data) else None

    async def _next_event(self) -> h11.Event | type[h11.PAUSED]:
        while True:
            try:
                event = self._parser.next_event()
            except h11.RemoteProtocolError as error:
                raise httpx2.RemoteProtocolError(str(error)) from error
            if event is not h11.NEED_DATA:
                return event  # type: ignore[return-value]
            self._unread = 0
            if self._transport is not None and not self._is_closed:
                self._transport.resume_reading()
            self._has_data.clear()
            await self._has_data.wait()


async def _read_response(
    id_: Any, head: h11.Response, connection: _Connection, parts: list[bytes]
) -> JSONRPCResponse | JSONRPCError | None:
    """Return the response to a call; None if it must be handed over, with the received body in `parts`."""
    headers = dict(head.headers)
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if head.status_code != 200 or b"set-cookie" in headers or b"content-encoding" in headers:
        return None
    if kind not in (b"application/json", b"text/event-stream"):
        return None
    body = bytearray()
    while len(body) <= MAX_DIRECT_RESPONSE_BYTES and len(parts) < MAX_DIRECT_PARTS:
        part = await connection.read_part()
        if part is None:
            return _parse_response(id_, bytes(body)) if kind == b"application/json" else None
        parts.append(part)
        body += part
        if kind == b"text/event-stream" and (end := _END_OF_EVENT.search(body)):
            return _parse_event(id_, bytes(body[: end.end()]))
    return None


def _parse_event(id_: Any, event: bytes) -> JSONRPCResponse | JSONRPCError | None:
    """Return the response in a server-sent event; None if the event is anything else."""
    lines = event.splitlines()
    if not all(line.startswith(_EVENT_FIELDS) for line in lines if line):
        return None
    if any(line.partition(b":")[2].strip() != b"message" for line in lines if line.startswith(b"event")):
        return None
    data = [line.partition(b":")[2] for line in lines if line.startswith(b"data")]
    return _parse_response(id_, data[0]) if len(data) == 1 else None


def _parse_response(id_: Any, content: bytes) -> JSONRPCResponse | JSONRPCError | None:
    """Return a JSON-RPC response to the request with this id; None if the content is anything else."""
    from mcp_types import JSONRPCError, JSONRPCResponse, jsonrpc_message_adapter

    if find_excess(content):
        return None
    try:
        message = jsonrpc_message_adapter.validate_json(content, by_name=False)
    except ValueError:
        return None
    if not isinstance(message, (JSONRPCResponse, JSONRPCError)):
        return None
    return message if message.id == id_ and type(message.id) is type(id_) else None


class _ReceivedBody(httpx2.AsyncByteStream):
    """Body of a response that is handed over: the received parts, then the rest from the connection."""

    def __init__(self, parts: list[bytes], connection: _Connection) -> None:
        self._parts, self._connection = parts, connection

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part
        with contextlib.closing(self._connection):
            while (rest := await self._connection.read_part()) is not None:
                yield rest

    async def aclose(self) -> None:
        self._connection.close()
