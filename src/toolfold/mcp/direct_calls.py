"""Send tool calls to an HTTP server over persistent connections, bypassing the SDK's slower transport.

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
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

import httpx2
from pydantic_core import to_json

from toolfold.core.http_connections import (
    Connection,
    ConnectionPool,
    ExchangeFailed,
    Headers,
    Origin,
    Response,
    render_headers,
)
from toolfold.core.json_limits import find_excess
from toolfold.mcp.sdk_compat import RawRequests, SendRawRequest, trace_request
from toolfold.mcp.stdio_transport import set_default_result_type

if TYPE_CHECKING:
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
CANCEL_TIMEOUT_S = 1.0
"""Time in which the server is told that a call was cancelled."""
_SESSION_HEADER = "mcp-session-id"
_VERSION_HEADER = "mcp-protocol-version"
_MESSAGE_HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
_UNUSUAL_HEADERS = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"trailer", b"te"})
_END_OF_EVENT = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_EVENT_FIELDS = (b"event:", b"data:", b"id:")


class HandoverTransport(httpx2.AsyncBaseTransport):
    """HTTP transport that uses a response stored by `hand_over` or, if there is none, sends the request."""

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
        """Store a response to be used for the next HTTP request that carries the message with this id."""
        self._outcomes[request_id] = outcome

    async def withdraw(self, request_id: Any) -> None:
        """Drop the stored response for a message that will not be sent, and close its connection."""
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


class DirectCalls:
    """Sends the tool calls of a client session to its server over persistent connections."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        url: str,
        handover: HandoverTransport,
        *,
        connect_timeout_s: float,
        is_anonymous: Callable[[], bool],
    ) -> None:
        """Create the sender; `client` is the SDK's HTTP client for this server.

        `is_anonymous` returns True if requests need no token of a login.
        """
        self._client, self._handover, self._is_anonymous = client, handover, is_anonymous
        self._url, self._connect_timeout_s = httpx2.URL(url), connect_timeout_s
        self._is_plain = self._url.scheme == "http" and not self._url.userinfo
        self._origin = Origin(self._url.host, self._url.port or 80, is_encrypted=False)
        self._session_id: str | None = None
        self._head: bytes | None = None
        """Request line and headers that all calls of the session have; empty if they are not usual ones."""
        self._pool = ConnectionPool(idle_timeout_s=IDLE_TIMEOUT_S, max_idle=MAX_IDLE_CONNECTIONS)
        self._in_use: set[Connection] = set()
        self._finishing: set[asyncio.Task[None]] = set()
        """Tasks that read the rest of a response."""

    def wrap(self, send: SendRawRequest, requests: RawRequests) -> SendRawRequest:
        """Return a function that sends tool calls over persistent connections, and the rest with `send`."""

        async def send_request(
            method: str, params: Mapping[str, Any] | None, opts: Any = None, **options: Any
        ) -> Any:
            opts = opts or {}
            if method != "tools/call" or params is None or options or not self._can_send(opts):
                return await send(method, params, opts, **options)
            id_ = requests.allocate_id()
            message = await self._call(id_, params, opts, requests)
            if message is not None:
                return requests.read_result(message)
            try:
                return await send(method, params, {**opts, "request_id": id_})
            finally:
                await self._handover.withdraw(id_)

        return send_request

    async def close_connections(self) -> None:
        """Close all connections, which ends the calls in progress."""
        tasks = list(self._finishing)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for connection in tuple(self._in_use):
            connection.close()
        await self._pool.close()

    def _can_send(self, opts: Mapping[str, Any]) -> bool:
        return (
            self._is_plain
            and opts.get("headers") is not None
            and opts.keys() <= {"headers", "on_progress"}
            and len(self._in_use) < MAX_DIRECT_CALLS
            and not self._client.cookies
            and self._is_anonymous()
        )

    async def _call(
        self, id_: int, params: Mapping[str, Any], opts: Mapping[str, Any], requests: RawRequests
    ) -> JSONRPCResponse | JSONRPCError | None:
        """Send a tool call and return its response; None if the call must be left to the SDK's transport."""
        with trace_request("tools/call", id_, params) as trace:
            request = self._render_request(id_, params, opts, trace.context)
            if request is None:
                return None
            try:
                with requests.receive_progress(id_, opts.get("on_progress")):
                    outcome = await self._exchange(id_, request)
            except asyncio.CancelledError:
                if not _is_modern(opts["headers"]):  # in the newest revision, the closed connection tells it
                    with contextlib.suppress(Exception):
                        async with asyncio.timeout(CANCEL_TIMEOUT_S):
                            await requests.notify_cancelled(id_)
                raise
            if isinstance(outcome, (httpx2.Response, httpx2.TransportError)):
                self._handover.hand_over(id_, outcome)
                return None
            trace.note_response(outcome)
            return outcome

    def _render_request(
        self, id_: int, params: Mapping[str, Any], opts: Mapping[str, Any], trace_context: Mapping[str, Any]
    ) -> bytes | None:
        """Return the HTTP request of a call; None if the SDK's transport must send it."""
        meta = {**(params.get("_meta") or {}), **trace_context}
        if opts.get("on_progress") is not None:
            meta["progressToken"] = id_
        params = {**params, "_meta": meta} if meta else params
        message = {"jsonrpc": "2.0", "id": id_, "method": "tools/call", "params": params}
        try:
            content = to_json(message, inf_nan_mode="null")
            own = [
                (name.lower().encode("ascii"), value.encode("ascii"))
                for name, value in opts["headers"].items()
            ]
        except (ValueError, UnicodeError):
            return None  # the SDK reports it
        head, headers = self._base_head(), render_headers(own)
        if len(content) > MAX_DIRECT_REQUEST_BYTES or not head or headers is None:
            return None
        return b"%b%bcontent-length: %d\r\n\r\n%b" % (head, headers, len(content), content)

    def _base_head(self) -> bytes:
        """Return the request line and the headers that the SDK's transport would send with every message."""
        if self._head is None or self._handover.session_id != self._session_id:
            self._session_id = self._handover.session_id
            session = {_SESSION_HEADER: self._session_id} if self._session_id else {}
            built = self._client.build_request(
                "POST", self._url, headers={**_MESSAGE_HEADERS, **session}, content=b"{}"
            )
            raw: Headers = [
                (name.lower(), value)
                for name, value in built.headers.raw
                if name.lower() != b"content-length"
            ]
            headers = None if _UNUSUAL_HEADERS & {name for name, _ in raw} else render_headers(raw)
            self._head = b"POST %b HTTP/1.1\r\n%b" % (self._url.raw_path, headers) if headers else b""
        return self._head

    async def _exchange(
        self, id_: int, request: bytes
    ) -> JSONRPCResponse | JSONRPCError | httpx2.Response | httpx2.TransportError:
        """Send a tool call; return its JSON-RPC response, or an HTTP response or error for the SDK."""
        try:
            connection = await self._pool.take(self._origin, self._connect_timeout_s)
        except ExchangeFailed as error:
            return httpx2.ConnectTimeout("") if error.is_timeout else httpx2.ConnectError(str(error))
        self._in_use.add(connection)
        parts: list[bytes] = []
        try:
            await connection.send(request, b"", None)
            response = await connection.receive("POST", None)
            body = response.read(by_chunk=True)
            message = await _read_response(id_, response, body, parts)
        except ExchangeFailed as error:
            connection.close()
            return httpx2.RemoteProtocolError(str(error))
        except BaseException:
            connection.close()
            raise
        finally:
            self._in_use.discard(connection)
        if message is None:
            stream = _ReceivedBody(parts, body, connection)
            return httpx2.Response(response.status, headers=response.headers, stream=stream)
        if connection.is_complete:
            self._pool.give_back(self._origin, connection)
        else:
            task = asyncio.create_task(self._finish(connection, body))
            self._finishing.add(task)
            task.add_done_callback(self._finishing.discard)
        return message

    async def _finish(self, connection: Connection, body: AsyncIterator[bytes]) -> None:
        """Read the rest of a response, and keep the connection open for the next call."""
        count = 0
        try:
            async with asyncio.timeout(FINISH_TIMEOUT_S):
                async for _ in body:
                    count += 1
                    if count > MAX_DIRECT_PARTS:
                        break
        except (TimeoutError, ExchangeFailed):
            connection.close()
        except BaseException:
            connection.close()
            raise
        else:
            self._pool.give_back(self._origin, connection)


def _is_modern(headers: Mapping[str, str]) -> bool:
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

    return headers.get(_VERSION_HEADER) in MODERN_PROTOCOL_VERSIONS


async def _read_response(
    id_: int, response: Response, body: AsyncIterator[bytes], parts: list[bytes]
) -> JSONRPCResponse | JSONRPCError | None:
    """Read the response to a call, adding its chunks to `parts`; return None if the SDK must parse them."""
    headers = {name.lower(): value for name, value in response.headers}
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if response.status != 200 or b"set-cookie" in headers or b"content-encoding" in headers:
        return None
    if kind not in (b"application/json", b"text/event-stream"):
        return None
    received = bytearray()
    async for part in body:
        parts.append(part)
        received += part
        if kind == b"text/event-stream" and (end := _END_OF_EVENT.search(received)):
            return _parse_event(id_, bytes(received[: end.end()]))
        if len(received) > MAX_DIRECT_RESPONSE_BYTES or len(parts) >= MAX_DIRECT_PARTS:
            return None
    return _parse_response(id_, bytes(received)) if kind == b"application/json" else None


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
    """Return the JSON-RPC response to the request with this id; None if the content is anything else."""
    from mcp_types import JSONRPCError, JSONRPCResponse, jsonrpc_message_adapter

    if find_excess(content):
        return None
    try:
        message = jsonrpc_message_adapter.validate_json(content, by_name=False)
    except ValueError:
        return None
    if not isinstance(message, (JSONRPCResponse, JSONRPCError)):
        return None
    is_own = message.id == id_ and type(message.id) is type(id_)
    return set_default_result_type(message) if is_own else None


class _ReceivedBody(httpx2.AsyncByteStream):
    """Body of a response that the SDK handles: the chunks received so far, then the remaining ones."""

    def __init__(self, parts: list[bytes], rest: AsyncIterator[bytes], connection: Connection) -> None:
        self._parts, self._rest, self._connection = parts, rest, connection

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part
        with contextlib.closing(self._connection):
            try:
                async for part in self._rest:
                    yield part
            except ExchangeFailed as error:
                raise httpx2.RemoteProtocolError(str(error)) from error

    async def aclose(self) -> None:
        self._connection.close()
