"""Assumptions about private parts of the MCP SDK.

A failure here usually means that a new release of the SDK has changed something undocumented. The message
names the function of `toolfold.mcp.sdk_compat` to adapt, and what it is needed for.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import mcp_types
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.connection import Connection
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from opentelemetry import trace

import toolfold
from tests.mcp.fault_http import serve_in_thread
from tests.mcp.faults import SERVER
from toolfold.core.errors import SourceError
from toolfold.mcp import sdk_compat
from toolfold.mcp.sdk_compat import (
    PRIVATE_NAMES,
    PrivateName,
    SendRawRequest,
    add_request_stamp,
    get_connection,
    make_hookable_manager,
    skip_unused_tracing,
    trace_request,
    wrap_raw_requests,
)
from toolfold.mcp.session_hooks import repair_list_results, stamp_client_capabilities

SOURCES = Path(toolfold.__file__).parent
TIMEOUT_S = 60.0
CALLED = {"text": "now"}


def advice(function: str, purpose: str, problem: str) -> str:
    """Return the failure message for a broken assumption."""
    return (
        f"The MCP SDK {version('mcp')} differs from what Toolfold assumes: {problem}.\n"
        f"What to do: read the SDK's changes, then adapt {function!r} in {sdk_compat.__file__}.\n"
        f"It is needed because {purpose}.\n"
        "If the SDK now has a public interface for this, use that. If this cannot be adapted, limit the "
        "version of the dependency mcp in pyproject.toml."
    )


def advice_for(name: str, problem: str) -> str:
    entry = next(each for each in PRIVATE_NAMES if each.name == name)
    return advice(entry.used_by, entry.purpose, problem)


@asynccontextmanager
async def connected_client(server: Any, **options: Any) -> AsyncIterator[Any]:
    async with asyncio.timeout(TIMEOUT_S), Client(server, **options) as client:
        yield client


def echo_server() -> MCPServer:
    server = MCPServer("echo")

    @server.tool()
    def echo(text: str) -> str:
        return text

    return server


# -- existence --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", PRIVATE_NAMES, ids=lambda entry: entry.name)
def test_every_private_name_of_the_mcp_sdk_that_toolfold_uses_exists_in_the_installed_sdk(
    entry: PrivateName,
) -> None:
    module, _, owner = entry.owner.partition(":")
    try:
        found: Any = importlib.import_module(module)
        found = getattr(found, owner) if owner else found
    except (ImportError, AttributeError):
        found = None
    is_there = hasattr(found, entry.name) or (owner and f"self.{entry.name}" in inspect.getsource(found))
    assert is_there, advice(entry.used_by, entry.purpose, f"{entry.owner} has no {entry.name}")


def test_every_function_documented_as_using_a_private_mcp_sdk_name_exists() -> None:
    functions = {entry.used_by.partition(" ")[0] for entry in PRIVATE_NAMES}
    assert functions <= set(sdk_compat.__all__)


def test_missing_private_name_of_the_mcp_sdk_raises_an_error_with_that_name() -> None:
    with pytest.raises(SourceError, match="_dispatcher"):
        repair_list_results(SimpleNamespace(), lambda: "2025-11-25", lambda _: None)
    with pytest.raises(SourceError, match="send_raw_request"):
        repair_list_results(SimpleNamespace(_dispatcher=object()), lambda: "2025-11-25", lambda _: None)
    with pytest.raises(SourceError, match="_stamp"):
        stamp_client_capabilities(SimpleNamespace(), dict)
    with pytest.raises(SourceError, match="_connection"):
        get_connection(SimpleNamespace())
    with pytest.raises(
        SourceError, match="_handle_stateful_request, _serve_opening_request, _discard_session"
    ):
        make_hookable_manager(object)  # type: ignore[arg-type]


# -- only this module depends on private names ------------------------------------------------------------


def private_uses(file: Path) -> Iterator[str]:
    """Yield the private names of the SDK that a source file imports or accesses."""
    names = {entry.name for entry in PRIVATE_NAMES if entry.name.startswith("_")}
    inherited = {entry.name for entry in PRIVATE_NAMES if entry.owner.endswith("SessionManager")}
    text = file.read_text("utf-8")
    if not any(name in text for name in (*names, *inherited, "from mcp", "import mcp")):
        return  # parsing every module takes seconds
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("mcp", "mcp_types"):
            parts = [*(node.module or "").split("."), *(each.name for each in node.names)]
            yield from (f"import of {node.module}.{each}" for each in parts if each.startswith("_"))
        elif isinstance(node, ast.Import):
            parts = [
                part for each in node.names for part in each.name.split(".") if each.name.startswith("mcp")
            ]
            yield from (f"import of {each}" for each in parts if each.startswith("_"))
        elif isinstance(node, ast.Attribute) and node.attr in names:
            is_own = isinstance(node.value, ast.Name) and node.value.id == "self"  # may be an unrelated class
            if not is_own or node.attr in inherited:
                yield f"access to .{node.attr}"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in inherited:
            yield f"override of {node.name}"


def test_private_names_of_the_mcp_sdk_are_used_only_in_the_compatibility_module() -> None:
    found = {
        f"{file.relative_to(SOURCES)}: {use}"
        for file in SOURCES.rglob("*.py")
        if file.name != "sdk_compat.py"
        for use in private_uses(file)
    }
    assert not found, f"Move these uses of private names of the MCP SDK to sdk_compat.py: {sorted(found)}"


# -- client session ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_function_that_wraps_sdk_requests_receives_every_request_and_can_change_the_result(
    mode: Any,
) -> None:
    methods: list[str] = []

    def wrap(send: SendRawRequest) -> SendRawRequest:
        async def send_and_extend(method: str, *params: Any, **options: Any) -> Any:
            methods.append(method)
            result = await send(method, *params, **options)
            if method == "tools/list":
                return {**result, "tools": [{"name": "added", "inputSchema": {"type": "object"}}]}
            return result

        return send_and_extend

    async with connected_client(echo_server(), mode=mode) as client:
        wrap_raw_requests(client.session, wrap)
        listed = [tool.name for tool in (await client.list_tools(cache_mode="refresh")).tools]
        await client.call_tool("echo", CALLED)
    problem = "ClientSession does not send its requests by _dispatcher.send_raw_request"
    assert {"tools/list", "tools/call"} <= set(methods), advice_for("_dispatcher", problem)
    problem = "ClientSession does not use the result of _dispatcher.send_raw_request"
    assert listed == ["added"], advice_for("_dispatcher", problem)


async def test_function_passed_to_add_request_stamp_can_change_the_metadata_of_every_sdk_request() -> None:
    sent: dict[str, Any] = {}
    key = mcp_types.CLIENT_CAPABILITIES_META_KEY

    def wrap(send: SendRawRequest) -> SendRawRequest:
        async def record(method: str, params: Any, *options: Any) -> Any:
            sent[method] = params
            return await send(method, params, *options)

        return record

    def stamp(data: Any) -> None:
        data["params"]["_meta"][key] = {**data["params"]["_meta"][key], "extensions": {"x/y": {}}}

    async with connected_client(echo_server()) as client:
        add_request_stamp(client.session, stamp)
        wrap_raw_requests(client.session, wrap)
        await client.call_tool("echo", CALLED)
    capabilities = ((sent.get("tools/call") or {}).get("_meta") or {}).get(key) or {}
    problem = "ClientSession._stamp does not write the client's capabilities to params._meta of a request"
    assert capabilities.get("extensions") == {"x/y": {}}, advice_for("_stamp", problem)


# -- server side ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_get_connection_returns_the_connection_of_an_sdk_server_session(mode: Any) -> None:
    server, found = MCPServer("connection"), []

    @server.tool()
    async def look(context: Context) -> str:
        found.append(get_connection(context.session))
        return "done"

    async with connected_client(server, mode=mode) as client:
        await client.call_tool("look", {})
    problem = "ServerSession._connection is not a Connection with session_id and exit_stack"
    assert isinstance(found[0], Connection), advice_for("_connection", problem)
    assert hasattr(found[0], "session_id"), advice_for("_connection", problem)
    assert hasattr(found[0], "exit_stack"), advice_for("_connection", problem)


async def test_sdk_session_manager_calls_the_overridden_methods_of_a_subclass() -> None:
    events: list[str] = []

    class RecordingManager(make_hookable_manager(StreamableHTTPSessionManager)):  # type: ignore[misc]
        async def handle_stateful_request(self, scope: Any, receive: Any, send: Any) -> None:
            events.append("request")
            await super().handle_stateful_request(scope, receive, send)

        async def serve_opening_request(self, transport: Any, scope: Any, receive: Any, send: Any) -> None:
            events.append("open")
            assert transport.mcp_session_id in self.open_sessions
            await super().serve_opening_request(transport, scope, receive, send)

        async def discard_session(self, session_id: str, transport: Any) -> None:
            events.append("discard")
            await super().discard_session(session_id, transport)
            assert session_id not in self.open_sessions

    manager = RecordingManager(Server("hooks"), json_response=True)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await manager.handle_request(scope, receive, send)

    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1:1")
    async with asyncio.timeout(TIMEOUT_S), manager.run(), http:
        opened = await http.post("/mcp", json=opening, headers=headers)
        session = opened.headers["mcp-session-id"]
        problem = "a new session is not in StreamableHTTPSessionManager._server_instances"
        assert session in manager.open_sessions, advice_for("_server_instances", problem)
        problem = "a new session is not opened by _serve_opening_request within _handle_stateful_request"
        assert events == ["request", "open"], advice_for("_serve_opening_request", problem)
        ended = {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
        await http.delete("/mcp", headers=headers | ended)
        problem = "a request of a session is not served by _handle_stateful_request"
        assert events[2] == "request", advice_for("_handle_stateful_request", problem)
        problem = "a session that its client ends is not removed by _discard_session"
        assert "discard" in events[3:], advice_for("_discard_session", problem)
        assert not manager.open_sessions, advice_for("_discard_session", problem)


# -- error texts ------------------------------------------------------------------------------------------


async def error_of(transport: Any) -> BaseException:
    """Return the exception of a call that is made with the SDK's client, without Toolfold."""
    try:
        async with connected_client(transport) as client:
            await client.call_tool("echo", CALLED)
    except Exception as error:
        cause: BaseException = error
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        return cause
    raise AssertionError("the call did not fail")


@pytest.mark.parametrize(
    ("fault", "recognize"),
    [
        ("stream-ends-early", sdk_compat.is_event_stream_failure),
        ("stream-of-garbage", sdk_compat.is_unparsable_message),
        ("broken-json", sdk_compat.is_unparsable_message),
    ],
    ids=["stream-ends-early", "stream-of-garbage", "broken-json"],
)
async def test_mcp_sdk_exception_for_a_broken_stream_or_unparsable_message_is_recognized(
    fault: str, recognize: Callable[[Any], bool]
) -> None:
    with serve_in_thread(fault) as server:
        error = await error_of(streamable_http_client(server.url()))
    problem = f"the error of its client for the fault {fault!r} is {error!r}"
    purpose = "the kind of a failed request is derived from the SDK's error (error_mapping.map_error)"
    assert recognize(error), advice(recognize.__name__, purpose, problem)


async def test_is_event_too_large_recognizes_the_mcp_sdk_exception_for_an_oversized_event() -> None:
    with serve_in_thread("huge-event") as server:
        transport = streamable_http_client(server.url(), max_sse_event_size=100_000)
        error = await error_of(transport)
    problem = f"the error of its client for an oversized event is {error!r}"
    purpose = "the kind of a failed request is derived from the SDK's error (error_mapping.map_error)"
    assert sdk_compat.is_event_too_large(error), advice("is_event_too_large", purpose, problem)


async def test_is_connection_closed_recognizes_the_mcp_sdk_exception_for_a_closed_connection() -> None:
    command = StdioServerParameters(command=sys.executable, args=[str(SERVER), "--fault", "crash"])
    error = await error_of(stdio_client(command))
    problem = f"the error of its client for a server that exits is {error!r}"
    purpose = "a lost connection is distinguished from an error response (error_mapping.map_error)"
    assert sdk_compat.is_connection_closed(error), advice("is_connection_closed", purpose, problem)


async def test_mcp_sdk_exception_for_a_result_that_violates_the_output_schema_is_recognized() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    async def list_tools(_context: Any, _params: Any) -> mcp_types.ListToolsResult:
        tool = mcp_types.Tool(name="echo", input_schema={"type": "object"}, output_schema=schema)
        return mcp_types.ListToolsResult(tools=[tool])

    async def call_tool(_context: Any, _params: Any) -> mcp_types.CallToolResult:
        return mcp_types.CallToolResult(content=[], structured_content={"n": "no number"})

    error = await error_of(Server("invalid", on_list_tools=list_tools, on_call_tool=call_tool))
    problem = f"the error of its client for a result that violates the output schema is {error!r}"
    purpose = "the kind of a failed request is derived from the SDK's error (error_mapping.map_error)"
    recognize = sdk_compat.is_invalid_structured_content
    assert recognize(error), advice(recognize.__name__, purpose, problem)


def test_functions_that_recognize_mcp_sdk_errors_return_false_for_unrelated_exceptions() -> None:
    recognizers = [getattr(sdk_compat, name) for name in sdk_compat.__all__ if name.startswith("is_")]
    assert len(recognizers) == 5
    assert not [each for each in recognizers for error in (None, ValueError("x")) if each(error)]


def test_request_contains_the_opentelemetry_trace_context_of_its_caller_only_if_one_is_active() -> None:
    with trace_request("tools/call", 1, {"name": "echo"}) as untraced:
        assert untraced.context == {}
    parent = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(1)))
    with trace.use_span(parent), trace_request("tools/call", 2, {"name": "echo"}) as traced:
        assert traced.context["traceparent"].startswith(f"00-{1:032x}-")


async def test_disabling_unused_sdk_tracing_preserves_the_trace_context_of_a_request() -> None:
    seen: list[int] = []

    async def call(_ctx: Any, _params: mcp_types.CallToolRequestParams) -> mcp_types.CallToolResult:
        seen.append(trace.get_current_span().get_span_context().trace_id)
        return mcp_types.CallToolResult(content=[])

    async def list_tools(_ctx: Any, _params: Any) -> mcp_types.ListToolsResult:
        return mcp_types.ListToolsResult(tools=[])

    server: Server[Any] = Server("traced", on_list_tools=list_tools, on_call_tool=call)
    before = list(server.middleware)
    skip_unused_tracing(server)
    problem = "Server.middleware has no OpenTelemetryMiddleware"
    assert server.middleware != before, advice_for("OpenTelemetryMiddleware", problem)
    async with connected_client(server) as client:
        await client.session.call_tool("any", {}, meta={"traceparent": f"00-{7:032x}-{8:016x}-01"})
        await client.session.call_tool("any", {})
    assert seen == [7, 0]
