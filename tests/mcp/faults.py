"""Faults of servers and the expected error for each, for the tests and for benchmarks/results/mcp-faults.md.

Each fault is tested with a supervised server of its own: one call during which it occurs, and one after it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.mcp.fault_http import serve_in_thread
from tests.thorough import thorough_count
from toolfold.config.servers_settings import McpServerSettings, parse_server_settings
from toolfold.mcp.connection import ConnectionDeps
from toolfold.mcp.faults import ServerFailed
from toolfold.mcp.server_process import ServerLog
from toolfold.mcp.supervisor import ServerSupervisor
from toolfold.mcp.tool_listing import Listing
from toolfold.safety.redaction import Redaction

SERVER = Path(__file__).with_name("fault_server.py")
CALL_TIMEOUT_S = 3.0
"""Timeout of a call that gets no response."""
LONG_TIMEOUT_S = 60.0
"""Timeout of a call that gets a response, on a busy machine."""
TransportName = Literal["stdio", "http", "sse"]


_STARTUP_FAULTS = {
    "banner",
    "latin-banner",
    "deaf-to-news",
    "endless-list",
    "looping-list",
    "same-name-twice",
    "nameless-tool",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, and the expected results of the call during which it occurs and of the next one."""

    name: str
    description: str
    answer: str
    """The kind of the error, or the text that the tool returns."""
    expected_next: str = "again"
    transport: TransportName = "stdio"
    expected_text: str = ""
    """Text that the error message must contain."""
    connect_timeout: float = LONG_TIMEOUT_S
    min_seconds: float = 0.0
    """Time after which the fault can be noticed at the earliest."""
    call_timeout: float = LONG_TIMEOUT_S

    def __str__(self) -> str:
        return f"{self.transport}-{self.name}"

    @property
    def occurs_during_call(self) -> bool:
        """Whether the fault occurs in a call, when the server is already connected."""
        return self.expected_next == "again" and self.name not in _STARTUP_FAULTS


@dataclass(frozen=True, slots=True)
class FaultResult:
    """Results of the two calls, and the duration of the first."""

    answer: str
    message: str
    seconds: float
    next_answer: str
    next_message: str


UNKNOWN = "may or may not have taken effect"

FAULTS = (
    # At startup.
    Fault(
        "missing", "the program is not installed", "not-started", "not-started", expected_text="Install it"
    ),
    Fault("crash-at-start", "exits at once", "not-started", "not-started", expected_text="no database"),
    Fault(
        "silent-at-start",
        "never writes anything",
        "not-started",
        "not-started",
        connect_timeout=1.0,
        min_seconds=1.0,
    ),
    Fault(
        "crash-at-hello",
        "exits during initialization",
        "not-started",
        "not-started",
        expected_text="exit code 4",
    ),
    Fault(
        "silent-at-hello",
        "hangs during initialization",
        "not-started",
        "not-started",
        connect_timeout=1.0,
        min_seconds=1.0,
    ),
    Fault(
        "crash-at-list", "exits during tools/list", "not-started", "not-started", expected_text="exit code 5"
    ),
    Fault(
        "silent-at-list",
        "hangs during tools/list",
        "not-started",
        "not-started",
        connect_timeout=1.0,
        min_seconds=1.0,
    ),
    Fault(
        "odd-revision",
        "reports an unknown protocol revision",
        "not-started",
        "not-started",
        expected_text="protocol version",
    ),
    Fault("banner", "prints a banner on stdout", "now"),
    Fault("latin-banner", "prints a banner that is not UTF-8", "now"),
    Fault("deaf-to-news", "does not respond to unknown methods", "now", min_seconds=3.0),
    Fault("endless-list", "its list of tools never ends", "now"),
    Fault("looping-list", "its list of tools repeats a cursor", "now"),
    Fault("same-name-twice", "two tools have the same name", "now"),
    Fault("nameless-tool", "a tool has no name", "now"),
    # During a call.
    Fault(
        "hang",
        "never responds to the call",
        "no-answer",
        min_seconds=CALL_TIMEOUT_S,
        call_timeout=CALL_TIMEOUT_S,
        expected_text=UNKNOWN,
    ),
    Fault(
        "hang-wholly",
        "stops reading its input",
        "no-answer",
        min_seconds=CALL_TIMEOUT_S,
        call_timeout=CALL_TIMEOUT_S,
        expected_text=UNKNOWN,
    ),
    Fault("crash", "exits during the call", "lost", expected_text="out of cheese"),
    Fault("close-output", "closes stdout and keeps running", "lost", expected_text=UNKNOWN),
    Fault("broken-frame", "a message that is not JSON", "garbled", expected_text=UNKNOWN),
    Fault("half-a-frame", "half a message", "garbled", expected_text=UNKNOWN),
    Fault(
        "noise",
        "plain text instead of a response",
        "no-answer",
        min_seconds=CALL_TIMEOUT_S,
        call_timeout=CALL_TIMEOUT_S,
        expected_text="something",
    ),
    Fault("noise-then-answer", "plain text before the response", "after the noise"),
    Fault("bad-utf8", "bytes that are not UTF-8", "garbled", expected_text=UNKNOWN),
    Fault("bad-utf8-inside", "a response with bytes that are not UTF-8", "caf\N{REPLACEMENT CHARACTER}"),
    Fault("wrong-id", "a response with an unknown id", "garbled", expected_text="unknown request id"),
    Fault("no-result", "a response without a result", "garbled", expected_text=UNKNOWN),
    Fault("wrong-shape", "a result that violates the schema", "garbled", expected_text=UNKNOWN),
    Fault("error", "an error response", "rejected", expected_text="the disk is full"),
    Fault("is-error", "a result with isError", "no such city"),
    Fault("twice", "two responses to one call", "first"),
    Fault("huge", "a message of 20 MB", "too-large", expected_text="Request less data"),
    Fault("huge-without-end", "a message of 400 MB", "too-large", expected_text="Request less data"),
    Fault("flood", "50,000 notifications", "after the flood"),
    Fault("flood-of-requests", "2,000 requests to the client", "after the flood"),
    Fault("flood-of-words", "200,000 lines on stderr", "after the flood"),
    Fault("asks-back", "an elicitation request that no one can answer", "*"),
    # Over Streamable HTTP.
    Fault("refused", "connection refused", "not-started", "not-started", "http", "could not be reached"),
    Fault("not-found", "HTTP 404 for every request", "not-started", "not-started", "http", "url"),
    Fault("broken", "HTTP 500 for every request", "not-started", "not-started", "http", "HTTP 500"),
    Fault("html", "HTML pages for every request", "not-started", "not-started", "http", "text/html"),
    Fault("login", "HTTP 401 for every request", "needs-login", "needs-login", "http", "toolfold mcp login"),
    Fault(
        "elsewhere", "a redirect to another host", "not-started", "not-started", "http", "elsewhere.invalid"
    ),
    Fault(
        "silent",
        "accepts connections but never responds",
        "not-started",
        "not-started",
        "http",
        connect_timeout=1.0,
        min_seconds=1.0,
    ),
    Fault("status-500", "HTTP 500", "lost", transport="http", expected_text=UNKNOWN),
    Fault(
        "status-404",
        "HTTP 404 with a JSON-RPC error",
        "rejected",
        transport="http",
        expected_text="no such tool",
    ),
    Fault("status-202", "HTTP 202 without a response", "garbled", transport="http", expected_text=UNKNOWN),
    Fault(
        "hang-before-headers",
        "no response",
        "no-answer",
        transport="http",
        min_seconds=CALL_TIMEOUT_S,
        call_timeout=CALL_TIMEOUT_S,
        expected_text=UNKNOWN,
    ),
    Fault(
        "hang-in-body",
        "half a response, then nothing",
        "no-answer",
        transport="http",
        min_seconds=CALL_TIMEOUT_S,
        call_timeout=CALL_TIMEOUT_S,
        expected_text=UNKNOWN,
    ),
    Fault("cut-before-headers", "the connection is closed", "lost", transport="http", expected_text=UNKNOWN),
    Fault(
        "cut-in-body",
        "the connection is closed during the response",
        "lost",
        transport="http",
        expected_text=UNKNOWN,
    ),
    Fault("wrong-content-type", "an HTML page", "garbled", transport="http", expected_text="text/html"),
    Fault("broken-json", "a response that is not JSON", "garbled", transport="http", expected_text=UNKNOWN),
    Fault(
        "wrong-id",
        "a response with an unknown id",
        "garbled",
        transport="http",
        expected_text="unknown request id",
    ),
    Fault(
        "wrong-shape", "a result that violates the schema", "garbled", transport="http", expected_text=UNKNOWN
    ),
    Fault(
        "packed",
        "a compressed response although none was accepted",
        "garbled",
        transport="http",
        expected_text=UNKNOWN,
    ),
    Fault(
        "huge-body",
        "200 MB in one response",
        "too-large",
        transport="http",
        expected_text="Request less data",
    ),
    Fault(
        "huge-event", "200 MB in one event", "too-large", transport="http", expected_text="Request less data"
    ),
    Fault("stream", "a valid event stream", "streamed", transport="http"),
    Fault(
        "stream-ends-early",
        "an event stream that ends without the response",
        "lost",
        transport="http",
        expected_text=UNKNOWN,
    ),
    Fault(
        "stream-of-garbage",
        "an event stream of invalid data",
        "garbled",
        transport="http",
        expected_text=UNKNOWN,
    ),
    Fault("flood", "50,000 notifications", "after the flood", transport="http"),
    Fault("session-forgotten", "the session has expired", "now", transport="http"),
    # Over SSE.
    Fault("refused", "connection refused", "not-started", "not-started", "sse", "could not be reached"),
    Fault("broken", "HTTP 500 for every request", "not-started", "not-started", "sse", "500"),
    Fault("login", "HTTP 401 for every request", "needs-login", "needs-login", "sse", "toolfold mcp login"),
    Fault("html", "HTML pages for every request", "not-started", "not-started", "sse", "text/html"),
    Fault(
        "no-endpoint",
        "never sends the endpoint event",
        "not-started",
        "not-started",
        "sse",
        connect_timeout=1.0,
        min_seconds=1.0,
    ),
    Fault("post-refused", "HTTP 500 for the call", "lost", transport="sse", expected_text=UNKNOWN),
    Fault(
        "stream-ends-early",
        "the event stream ends without the response",
        "lost",
        transport="sse",
        expected_text=UNKNOWN,
    ),
    Fault("broken-json", "an event that is not JSON", "garbled", transport="sse", expected_text=UNKNOWN),
    Fault(
        "wrong-id",
        "a response with an unknown id",
        "garbled",
        transport="sse",
        expected_text="unknown request id",
    ),
    Fault(
        "huge-event", "20 MB in one event", "too-large", transport="sse", expected_text="Request less data"
    ),
    Fault("flood", "50,000 notifications", "after the flood", transport="sse"),
)


async def run_fault(fault: Fault, folder: Path, settings: McpServerSettings | None = None) -> FaultResult:
    """Call a server that has the given fault twice, and return both results."""
    if settings is None:
        with serve_fault(fault) as found:
            return await run_fault(fault, folder, found)
    async with open_supervisor(settings, folder, name=fault.name) as server:
        if fault.occurs_during_call:
            await call_echo(server, "before")
        started = time.monotonic()
        answer, said = await call_echo(server, "now")
        seconds = time.monotonic() - started
        then, then_said = await call_echo(server, "again")
        return FaultResult(answer, said, seconds, then, then_said)


async def call_echo(server: ServerSupervisor, text: str) -> tuple[str, str]:
    """Call `echo`. Return the result as a pair: the text twice, or the kind and the message of the error."""
    tool = "echo" if server.name != "endless-list" else "page_0"
    try:
        result = await server.call_tool(tool, {"text": text})
    except ServerFailed as error:
        return error.kind, str(error)
    words = str(result.content[0].text)
    return words, words


@asynccontextmanager
async def open_supervisor(
    settings: McpServerSettings,
    folder: Path,
    *,
    name: str = "some",
    publish: Callable[[str, Listing], None] = lambda *_: None,
    environment: Mapping[str, str] | None = None,
    secrets: Sequence[str] = (),
) -> AsyncIterator[ServerSupervisor]:
    """Open a supervisor for a server and close it at the end of the block."""
    variables = dict(environment if environment is not None else os.environ)

    async def build_deps(server: ServerSupervisor) -> ConnectionDeps:
        return ConnectionDeps(
            environment=variables,
            settings=server.settings,
            log=ServerLog(folder / f"{name}.log", Redaction(secrets)),
            on_change=server.schedule_relist,
            on_update=lambda _: None,
            legacy=server.is_legacy,
        )

    server = ServerSupervisor(name, settings, build_deps=build_deps, publish=publish)
    try:
        yield server
    finally:
        await server.close()


def stdio_settings(fault: str = "", *words: str, **settings: Any) -> McpServerSettings:
    """Return the settings of the stdio fault server; `words` are additional arguments."""
    return parse_server_settings(
        {**server_entry(fault, *words), "call_timeout_seconds": LONG_TIMEOUT_S, **settings}
    )


def server_entry(fault: str = "", *words: str) -> dict[str, Any]:
    """Return the fault server as an entry of a configuration file."""
    if fault == "missing":
        return {"command": "a-program-that-nobody-has"}
    return {"command": sys.executable, "args": [str(SERVER), "--fault", fault, *words]}


def http_settings(url: str, way: TransportName, **settings: Any) -> McpServerSettings:
    """Return the settings of a server at a URL."""
    return parse_server_settings(
        {"url": url, "transport": way, "call_timeout_seconds": LONG_TIMEOUT_S, **settings}
    )


def serve_fault(fault: Fault) -> AbstractContextManager[McpServerSettings]:
    """Run a server with the given fault and return its settings."""
    return _serve_fault(fault)


@contextlib.contextmanager
def _serve_fault(fault: Fault) -> Iterator[McpServerSettings]:
    limit = {"connect_timeout_seconds": fault.connect_timeout, "call_timeout_seconds": fault.call_timeout}
    if fault.transport == "stdio":
        yield stdio_settings(fault.name, **limit)
    elif fault.name == "refused":
        path = "sse" if fault.transport == "sse" else "mcp"
        yield http_settings(f"http://127.0.0.1:{free_port()}/{path}", fault.transport, **limit)
    else:
        with serve_in_thread(fault.name) as server:
            server.flood_size = thorough_count(50_000, 5_000)  # 50,000 events take 10 s of processor time
            yield http_settings(server.url(fault.transport), fault.transport, **limit)


def free_port() -> int:
    """Return a port that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
