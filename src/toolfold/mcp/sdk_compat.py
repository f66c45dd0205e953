"""All uses of private names and undocumented behaviour of the MCP SDK.

The SDK has no public interface for some things that Toolfold needs. No other module may use a name of the
SDK that starts with an underscore, or depend on the wording of its errors. `PRIVATE_NAMES` lists what is used
here and why; `tests/mcp/test_sdk_compat.py` checks each assumption and says what to adapt when a new release
of the SDK breaks one. At run time a release without a required name is refused: limits would not be enforced.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from toolfold.core.errors import SourceError, error_message
from toolfold.core.types import Json

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp.server.connection import Connection
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp.shared._stream_protocols import ReadStream, WriteStream
    from mcp_types import JSONRPCError, JSONRPCRequest, JSONRPCResponse
    from sse_starlette import EventSourceResponse
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = [
    "PRIVATE_NAMES",
    "PrivateName",
    "RawRequests",
    "ReadStream",
    "RequestTrace",
    "WriteStream",
    "add_request_stamp",
    "defer_event_streams",
    "get_connection",
    "is_connection_closed",
    "is_event_stream_failure",
    "is_event_too_large",
    "is_invalid_structured_content",
    "is_unparsable_message",
    "load_sdk",
    "make_hookable_manager",
    "skip_unused_tracing",
    "trace_request",
    "wrap_raw_requests",
]

MIN_MAJOR_VERSION = 2
"""The oldest supported major version of the SDK."""
SendRawRequest = Callable[..., Awaitable[Any]]
"""Sends a request: method, parameters and options; returns the result before the SDK validates it."""


@dataclass(frozen=True, slots=True)
class PrivateName:
    """A private name of the MCP SDK that this module uses."""

    owner: str
    """Module and class, separated by a colon; only the module for a module-level name."""
    name: str
    used_by: str
    """The function in this module that must be adapted when the name changes."""
    purpose: str


PRIVATE_NAMES = (
    PrivateName(
        "mcp.shared.jsonrpc_dispatcher:JSONRPCDispatcher",
        "_allocate_id",
        "RawRequests",
        "tool calls over kept HTTP connections get ids that no other request of the session has",
    ),
    PrivateName(
        "mcp.shared.jsonrpc_dispatcher:JSONRPCDispatcher",
        "_pending",
        "RawRequests",
        "progress of tool calls over kept HTTP connections is reported, also if it arrives on another one",
    ),
    PrivateName(
        "mcp.shared._otel",
        "otel_span",
        "trace_request",
        "tool calls over kept HTTP connections are traced like the SDK's own requests",
    ),
    PrivateName(
        "mcp.server._otel",
        "OpenTelemetryMiddleware",
        "skip_unused_tracing",
        "requests to the gateway take no time for tracing unless somebody traces them",
    ),
    PrivateName(
        "mcp.client.session:ClientSession",
        "_dispatcher",
        "wrap_raw_requests",
        "results are limited and repaired before the SDK validates them",
    ),
    PrivateName(
        "mcp.client.session:ClientSession",
        "_stamp",
        "add_request_stamp",
        "requests of a gateway client carry that client's capabilities instead of Toolfold's",
    ),
    PrivateName(
        "mcp.server.session:ServerSession",
        "_connection",
        "get_connection",
        "the gateway finds the client connection of a request",
    ),
    PrivateName(
        "mcp.server.streamable_http_manager:StreamableHTTPSessionManager",
        "_handle_stateful_request",
        "make_hookable_manager",
        "the gateway limits the number of HTTP sessions before one is opened",
    ),
    PrivateName(
        "mcp.server.streamable_http_manager:StreamableHTTPSessionManager",
        "_serve_opening_request",
        "make_hookable_manager",
        "the gateway records which client opened an HTTP session",
    ),
    PrivateName(
        "mcp.server.streamable_http_manager:StreamableHTTPSessionManager",
        "_discard_session",
        "make_hookable_manager",
        "the gateway closes idle HTTP sessions and notices closed ones",
    ),
    PrivateName(
        "mcp.server.streamable_http_manager:StreamableHTTPSessionManager",
        "_server_instances",
        "make_hookable_manager",
        "the gateway looks up open HTTP sessions",
    ),
    PrivateName(
        "mcp.server.streamable_http_manager:StreamableHTTPSessionManager",
        "_session_owners",
        "make_hookable_manager",
        "the gateway opens HTTP sessions under ids that clients got while it was starting",
    ),
    PrivateName(
        "mcp.server.streamable_http:StreamableHTTPServerTransport",
        "_handle_post_request",
        "defer_event_streams",
        "a quick request over HTTP is answered with JSON instead of an event stream",
    ),
    PrivateName(
        "mcp.server.streamable_http:StreamableHTTPServerTransport",
        "_request_streams",
        "defer_event_streams",
        "messages for a request over HTTP are received by the gateway",
    ),
    PrivateName(
        "mcp.server.streamable_http:StreamableHTTPServerTransport",
        "_read_stream_writer",
        "defer_event_streams",
        "a request over HTTP is passed to its MCP session",
    ),
    PrivateName(
        "mcp.server.streamable_http:StreamableHTTPServerTransport",
        "_create_session_message",
        "defer_event_streams",
        "a request over HTTP is passed to its MCP session",
    ),
    PrivateName(
        "mcp.server.streamable_http:StreamableHTTPServerTransport",
        "_create_json_response",
        "defer_event_streams",
        "a quick request over HTTP is answered with JSON instead of an event stream",
    ),
    PrivateName(
        "mcp.server.streamable_http:StreamableHTTPServerTransport",
        "_create_event_data",
        "defer_event_streams",
        "a request over HTTP with notifications is answered with an event stream",
    ),
    PrivateName(
        "mcp.server.streamable_http:StreamableHTTPServerTransport",
        "_clean_up_memory_streams",
        "defer_event_streams",
        "a request over HTTP leaves nothing behind in its MCP session",
    ),
    PrivateName(
        "mcp.server.streamable_http:StreamableHTTPServerTransport",
        "_validate_accept_header",
        "defer_event_streams",
        "requests over HTTP from clients that accept no event stream are refused",
    ),
    PrivateName(
        "mcp.server.streamable_http:StreamableHTTPServerTransport",
        "_validate_request_headers",
        "defer_event_streams",
        "requests over HTTP with a wrong session id are refused",
    ),
    PrivateName(
        "mcp.shared._stream_protocols",
        "ReadStream",
        "ReadStream (type annotation)",
        "the gateway's stdio streams are checked against the SDK's interface by mypy",
    ),
    PrivateName(
        "mcp.shared._stream_protocols",
        "WriteStream",
        "WriteStream (type annotation)",
        "the gateway's stdio streams are checked against the SDK's interface by mypy",
    ),
)


def load_sdk() -> None:
    """Import the MCP SDK, or wait until another thread has imported it. The first import is slow.

    The packages of the SDK import each other. If one thread imports `mcp` and another one a package below it,
    each waits for the other's import lock; Python resolves this by handing out an incomplete module, and both
    imports fail. Any code that may be the first to need the SDK in a thread calls this function first.

    Raises SourceError if the installed SDK is too old; frameworks that need version 1 can be installed beside
    Toolfold.
    """
    installed = version("mcp")
    if int(installed.partition(".")[0]) < MIN_MAJOR_VERSION:
        raise SourceError(
            f"MCP servers cannot be used with the installed version {installed} of the package mcp. "
            f"Install version {MIN_MAJOR_VERSION} or newer: pip install 'mcp>={MIN_MAJOR_VERSION}'. "
            "If another package needs the older version, install Toolfold into its own environment "
            "and use its gateway."
        )
    import_module("mcp")


def _require_names(owner: object, *names: str) -> None:
    """Raise SourceError if the installed MCP SDK lacks one of the private names that Toolfold uses."""
    missing = [name for name in names if getattr(owner, name, None) is None]
    if missing:
        kind = owner if isinstance(owner, type) else type(owner)
        raise SourceError(
            f"the installed version of the package mcp is not supported: {kind.__name__} has no "
            f"{', '.join(missing)}. Install a version that this release of Toolfold was tested with."
        )


def wrap_raw_requests(session: Any, wrap: Callable[[SendRawRequest], SendRawRequest]) -> None:
    """Replace the function that sends a client session's requests by a wrapper."""
    _require_names(session, "_dispatcher")
    dispatcher = session._dispatcher
    _require_names(dispatcher, "send_raw_request")
    dispatcher.send_raw_request = wrap(dispatcher.send_raw_request)


@dataclass(slots=True)
class _ProgressReceiver:
    """Receives progress notifications for a request that was not sent through the SDK's transport."""

    on_progress: Any

    @property
    def send(self) -> _ProgressReceiver:
        return self

    def send_nowait(self, _outcome: object) -> None:
        """Ignore the outcome of the request; its sender receives the outcome directly."""


class RawRequests:
    """Sends requests of an SDK client session without the SDK's transport."""

    def __init__(self, session: Any) -> None:
        _require_names(session, "_dispatcher")
        self._dispatcher = session._dispatcher
        _require_names(self._dispatcher, "_allocate_id", "_pending")

    def allocate_id(self) -> int:
        """Return an id that no other request of the session uses."""
        id_: int = self._dispatcher._allocate_id()
        return id_

    @contextmanager
    def receive_progress(self, id_: int, on_progress: Any) -> Iterator[None]:
        """During a `with` block, call `on_progress` for progress notifications about the request `id_`."""
        self._dispatcher._pending[id_] = _ProgressReceiver(on_progress)
        try:
            yield
        finally:
            self._dispatcher._pending.pop(id_, None)

    def read_result(self, message: JSONRPCResponse | JSONRPCError) -> Any:
        """Return the result in a response. Raises MCPError for an error response."""
        from mcp import MCPError
        from mcp_types import JSONRPCError

        if isinstance(message, JSONRPCError):
            error = message.error
            raise MCPError(code=error.code, message=error.message, data=error.data)
        return message.result

    async def notify_cancelled(self, id_: int) -> None:
        """Notify the server that the result of a request is no longer needed."""
        params = {"requestId": id_, "reason": "caller cancelled"}
        await self._dispatcher.notify("notifications/cancelled", params)


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """OpenTelemetry span of a request, and the fields that propagate its trace to the server."""

    span: Any
    context: Mapping[str, Any]
    """Fields for the `_meta` of the request."""

    def note_response(self, message: JSONRPCResponse | JSONRPCError) -> None:
        """Mark the span as failed if the response is an error."""
        from mcp_types import JSONRPCError

        if isinstance(message, JSONRPCError):
            from opentelemetry.trace import StatusCode

            code = str(message.error.code)
            self.span.set_attributes({"error.type": code, "rpc.response.status_code": code})
            self.span.set_status(StatusCode.ERROR, message.error.message)


@contextmanager
def trace_request(method: str, id_: int, params: Mapping[str, Any]) -> Iterator[RequestTrace]:
    """Trace a request during a `with` block in the same way as the SDK."""
    from mcp.shared._otel import inject_trace_context, otel_span
    from opentelemetry.trace import INVALID_SPAN, SpanKind

    if not _is_traced():
        yield RequestTrace(INVALID_SPAN, {})
        return
    attributes = {"mcp.method.name": method, "jsonrpc.request.id": str(id_)}
    name = f"MCP send {method} {params.get('name', '')}".rstrip()
    with otel_span(name, kind=SpanKind.CLIENT, attributes=attributes) as span:
        context: dict[str, Any] = {}
        inject_trace_context(context)
        yield RequestTrace(span, context)


def _is_traced() -> bool:
    """Return False if no tracer is installed and there is no current trace."""
    from opentelemetry import baggage, trace

    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return True
    return trace.get_current_span().get_span_context().is_valid or bool(baggage.get_all())


def skip_unused_tracing(server: Server[Any]) -> None:
    """Make an SDK server trace requests only if a tracer is installed or the request is part of a trace."""
    from mcp.server._otel import OpenTelemetryMiddleware

    def select(middleware: Any) -> Any:
        is_tracing = isinstance(middleware, OpenTelemetryMiddleware)
        return _trace_if_used(middleware) if is_tracing else middleware

    server.middleware = [select(each) for each in server.middleware]


def _trace_if_used(trace: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    """Return middleware that traces requests only if a tracer is installed or they are part of a trace."""
    from opentelemetry.propagate import get_global_textmap

    async def handle(ctx: Any, call_next: Any) -> Any:
        has_context = bool(ctx.meta) and not get_global_textmap().fields.isdisjoint(ctx.meta)
        return await (trace(ctx, call_next) if has_context or _is_traced() else call_next(ctx))

    return handle


def add_request_stamp(session: Any, stamp: Callable[[Json], None]) -> None:
    """Call `stamp` with each outgoing message of a client session, after the SDK has modified the message."""
    _require_names(session, "_stamp")
    sdk_stamp = session._stamp

    def stamp_both(data: Json, options: Any) -> None:
        sdk_stamp(data, options)
        stamp(data)

    session._stamp = stamp_both


def get_connection(session: Any) -> Connection:
    """Return the client connection that an SDK server session belongs to."""
    _require_names(session, "_connection")
    connection: Connection = session._connection
    return connection


def make_hookable_manager(base: type[StreamableHTTPSessionManager]) -> type[Any]:
    """Return a subclass of the SDK's HTTP session manager with public methods that can be overridden.

    A subclass may override `handle_stateful_request`, `serve_opening_request` and `discard_session`, and call
    `rename_session` in the second of them.
    `open_sessions` maps the ids of open sessions to their transports.
    """
    _require_names(base, "_handle_stateful_request", "_serve_opening_request", "_discard_session")

    class HookableSessionManager(base):  # type: ignore[misc, valid-type]
        @property
        def open_sessions(self) -> Mapping[str, Any]:
            _require_names(self, "_server_instances")
            sessions: Mapping[str, Any] = self._server_instances
            return sessions

        def rename_session(self, transport: Any, session_id: str) -> None:
            """Change the id of a session that has not served a request yet."""
            _require_names(self, "_session_owners")
            for sessions in (self._server_instances, self._session_owners):
                if transport.mcp_session_id in sessions:
                    sessions[session_id] = sessions.pop(transport.mcp_session_id)
            transport.mcp_session_id = session_id

        async def handle_stateful_request(self, scope: Any, receive: Any, send: Any) -> None:
            await super()._handle_stateful_request(scope, receive, send)

        async def serve_opening_request(self, transport: Any, scope: Any, receive: Any, send: Any) -> None:
            await super()._serve_opening_request(transport, scope, receive, send)

        async def discard_session(self, session_id: str, transport: Any) -> None:
            await super()._discard_session(session_id, transport)

        async def _handle_stateful_request(self, scope: Any, receive: Any, send: Any) -> None:
            await self.handle_stateful_request(scope, receive, send)

        async def _serve_opening_request(self, transport: Any, scope: Any, receive: Any, send: Any) -> None:
            await self.serve_opening_request(transport, scope, receive, send)

        async def _discard_session(self, session_id: str, transport: Any) -> None:
            await self.discard_session(session_id, transport)

    return HookableSessionManager


def defer_event_streams(transport: Any, seconds: float) -> None:
    """Make an HTTP session of the SDK's server answer quick requests with JSON, not an event stream.

    The SDK starts an event stream for every request. Here it is started when a notification or a request for
    the client comes before the response, or none has come for this many seconds. In the newest revision of
    the protocol the SDK does the same.
    """
    names = {each.name for each in PRIVATE_NAMES if each.used_by == "defer_event_streams"}
    _require_names(transport, *(names - {"_read_stream_writer"}))  # None until the session is connected
    handle_any_post = transport._handle_post_request

    async def handle_post(scope: Any, request: Any, receive: Any, send: Any) -> None:
        parsed = _parse_request(await request.body())
        if parsed is None or transport.is_json_response_enabled:
            await handle_any_post(scope, request, receive, send)
            return
        if not await transport._validate_accept_header(request, scope, send):
            return
        if not await transport._validate_request_headers(request, send):
            return
        if str(parsed.id) in transport._request_streams:  # the SDK would never answer the first request
            await _refuse_repeated_id(transport, parsed)(scope, receive, send)
            return
        response = await _respond_soon(transport, parsed, request, seconds)
        try:
            await response(scope, receive, send)
        finally:
            await transport._clean_up_memory_streams(str(parsed.id))

    transport._handle_post_request = handle_post


def _parse_request(body: bytes) -> JSONRPCRequest | None:
    """Parse a request of an open session; return None for any other message."""
    from mcp_types import JSONRPCRequest, jsonrpc_message_adapter

    try:
        message = jsonrpc_message_adapter.validate_json(body, by_name=False)
    except ValueError:
        return None
    return message if isinstance(message, JSONRPCRequest) and message.method != "initialize" else None


def _refuse_repeated_id(transport: Any, parsed: JSONRPCRequest) -> Response:
    """Return the response to a request whose id an open request of the session has."""
    from mcp_types import INVALID_REQUEST, ErrorData, JSONRPCError

    problem = "An open request of this session has this id. Use another id for each request."
    error = JSONRPCError(jsonrpc="2.0", id=parsed.id, error=ErrorData(code=INVALID_REQUEST, message=problem))
    response: Response = transport._create_json_response(error, HTTPStatus.BAD_REQUEST)
    return response


async def _respond_soon(
    transport: Any, parsed: JSONRPCRequest, request: Request, seconds: float
) -> Response | EventSourceResponse:
    """Pass a request to its session; return JSON if the response is quick, otherwise an event stream."""
    import anyio
    from mcp.server.streamable_http import REQUEST_STREAM_BUFFER_SIZE
    from mcp_types import JSONRPCError, JSONRPCResponse
    from sse_starlette import EventSourceResponse

    key = str(parsed.id)
    streams = anyio.create_memory_object_stream[Any](REQUEST_STREAM_BUFFER_SIZE)
    transport._request_streams[key] = streams
    first: Any = None
    try:
        version = request.headers.get("mcp-protocol-version", "")
        message = transport._create_session_message(parsed, request, key, version)
        await transport._read_stream_writer.send(message)
        with anyio.move_on_after(seconds), suppress(anyio.EndOfStream, anyio.ClosedResourceError):
            first = await streams[1].receive()
    except BaseException:
        await transport._clean_up_memory_streams(key)
        raise
    if first is not None and isinstance(first.message, (JSONRPCResponse, JSONRPCError)):
        response: Response = transport._create_json_response(first.message)
        return response

    async def list_events() -> AsyncIterator[Any]:
        if first is not None:
            yield transport._create_event_data(first)
        async for event in streams[1]:
            yield transport._create_event_data(event)
            if isinstance(event.message, (JSONRPCResponse, JSONRPCError)):
                return

    session = {"Mcp-Session-Id": transport.mcp_session_id} if transport.mcp_session_id else {}
    return EventSourceResponse(list_events(), headers={"Cache-Control": "no-cache, no-transform", **session})


def is_invalid_structured_content(error: BaseException | None) -> bool:
    """Return True if the SDK rejected a result because of the tool's output schema."""
    return isinstance(error, RuntimeError) and "structured content" in error_message(error)


def is_event_too_large(error: BaseException | None) -> bool:
    """Return True if the SDK rejected a server-sent event because of its size."""
    return error is not None and "byte limit" in error_message(error)


def is_connection_closed(error: BaseException | None) -> bool:
    """Return True if the SDK itself, not the server, reports a closed connection."""
    return _has_code(error, "CONNECTION_CLOSED") and getattr(error, "message", "") == "Connection closed"


def is_event_stream_failure(error: BaseException | None) -> bool:
    """Return True if the SDK reports that an event stream ended without a response."""
    return _has_code(error, "CONNECTION_CLOSED") and getattr(error, "message", "").startswith("SSE stream")


def is_unparsable_message(error: BaseException | None) -> bool:
    """Return True if the SDK could not parse a message of the server."""
    return _has_code(error, "PARSE_ERROR") and "parse" in getattr(error, "message", "").lower()


def _has_code(error: BaseException | None, name: str) -> bool:
    import mcp_types
    from mcp import MCPError

    return isinstance(error, MCPError) and error.code == getattr(mcp_types, name)
