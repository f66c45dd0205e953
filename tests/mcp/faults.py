"""The faults of servers, and what a client must answer to each: for the tests and for the table in the docs.

Each fault is met by a supervised server of its own: one call that meets it, and one after it.
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

from tests.mcp.fault_http import serving
from toolfold.config.servers import McpServerSettings, parse_server_settings
from toolfold.redaction import Redaction
from toolfold.sources.mcp.connection import ConnectionDeps
from toolfold.sources.mcp.faults import ServerFailed
from toolfold.sources.mcp.server_process import ServerLog
from toolfold.sources.mcp.supervisor import ServerSupervisor
from toolfold.sources.mcp.tool_listing import Listing

SERVER = Path(__file__).with_name("fault_server.py")
LIMIT = 3.0
"""How long a call may go without an answer that gets none."""
PATIENT = 60.0
"""The same for a call that gets one, on a machine that has much else to do."""
Way = Literal["stdio", "http", "sse"]


_AT_START = {
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
    """One thing that goes wrong, and what is answered to the call that meets it and to the next."""

    name: str
    about: str
    answer: str
    """The kind of the error, or what the tool says."""
    then: str = "again"
    way: Way = "stdio"
    says: str = ""
    """Words that the error must have, to be of use."""
    connect: float = PATIENT
    waits: float = 0.0
    """How long it takes until anybody can know."""
    limit: float = PATIENT

    def __str__(self) -> str:
        return f"{self.way}-{self.name}"

    @property
    def is_of_a_call(self) -> bool:
        """Whether it shows in a call, of a server that is up by then."""
        return self.then == "again" and self.name not in _AT_START


@dataclass(frozen=True, slots=True)
class Met:
    """What was answered, and when."""

    answer: str
    said: str
    seconds: float
    then: str
    then_said: str


UNKNOWN = "may or may not have taken effect"

FAULTS = (
    # Before it is up.
    Fault("missing", "the program is not there", "not-started", "not-started", says="Install it"),
    Fault("crash-at-start", "ends at once", "not-started", "not-started", says="no database"),
    Fault("silent-at-start", "never says a word", "not-started", "not-started", connect=1.0, waits=1.0),
    Fault("crash-at-hello", "ends at the handshake", "not-started", "not-started", says="exit code 4"),
    Fault("silent-at-hello", "hangs at the handshake", "not-started", "not-started", connect=1.0, waits=1.0),
    Fault("crash-at-list", "ends when asked for its tools", "not-started", "not-started", says="exit code 5"),
    Fault(
        "silent-at-list",
        "hangs when asked for its tools",
        "not-started",
        "not-started",
        connect=1.0,
        waits=1.0,
    ),
    Fault("odd-revision", "speaks no known revision", "not-started", "not-started", says="protocol version"),
    Fault("banner", "greets people on its output", "now"),
    Fault("latin-banner", "greets them in another encoding", "now"),
    Fault("deaf-to-news", "ignores methods that it does not know", "now", waits=3.0),
    Fault("endless-list", "its list of tools has no end", "now"),
    Fault("looping-list", "its list of tools comes back to its start", "now"),
    Fault("same-name-twice", "two tools have one name", "now"),
    Fault("nameless-tool", "a tool has no name", "now"),
    # During a call.
    Fault("hang", "never answers this call", "no-answer", waits=LIMIT, limit=LIMIT, says=UNKNOWN),
    Fault("hang-wholly", "hears nothing any more", "no-answer", waits=LIMIT, limit=LIMIT, says=UNKNOWN),
    Fault("crash", "ends during the call", "lost", says="out of cheese"),
    Fault("close-output", "closes its output and lives on", "lost", says=UNKNOWN),
    Fault("broken-frame", "a message that is no JSON", "garbled", says=UNKNOWN),
    Fault("half-a-frame", "half a message", "garbled", says=UNKNOWN),
    Fault(
        "noise", "plain words instead of an answer", "no-answer", waits=LIMIT, limit=LIMIT, says="something"
    ),
    Fault("noise-then-answer", "plain words before the answer", "after the noise"),
    Fault("bad-utf8", "bytes that are no text", "garbled", says=UNKNOWN),
    Fault("bad-utf8-inside", "an answer with bytes that are no text", "caf\N{REPLACEMENT CHARACTER}"),
    Fault("wrong-id", "an answer to what nobody asked", "garbled", says="nobody asked"),
    Fault("no-result", "an answer without a result", "garbled", says=UNKNOWN),
    Fault("wrong-shape", "a result of the wrong shape", "garbled", says=UNKNOWN),
    Fault("error", "an error of its own", "rejected", says="the disk is full"),
    Fault("is-error", "a result that says it failed", "no such city"),
    Fault("twice", "two answers to one call", "first"),
    Fault("huge", "20 MB at once", "too-large", says="Ask for less"),
    Fault("huge-without-end", "400 MB at once", "too-large", says="Ask for less"),
    Fault("flood", "50,000 notifications", "after the flood"),
    Fault("flood-of-requests", "2,000 questions of its own", "after the flood"),
    Fault("flood-of-words", "200,000 lines on its error output", "after the flood"),
    Fault("asks-back", "a question that nobody is there to answer", "*"),
    # By an address.
    Fault(
        "refused", "nobody listens at the port", "not-started", "not-started", "http", "could not be reached"
    ),
    Fault("not-found", "HTTP 404 to everything", "not-started", "not-started", "http", "url"),
    Fault("broken", "HTTP 500 to everything", "not-started", "not-started", "http", "HTTP 500"),
    Fault("html", "web pages to everything", "not-started", "not-started", "http", "text/html"),
    Fault("login", "HTTP 401 to everything", "needs-login", "needs-login", "http", "toolfold mcp login"),
    Fault(
        "elsewhere", "a redirect to another host", "not-started", "not-started", "http", "elsewhere.invalid"
    ),
    Fault("silent", "accepts and says nothing", "not-started", "not-started", "http", connect=1.0, waits=1.0),
    Fault("status-500", "HTTP 500", "lost", way="http", says=UNKNOWN),
    Fault(
        "status-404", "HTTP 404 with an error of the protocol", "rejected", way="http", says="no such tool"
    ),
    Fault("status-202", "HTTP 202 and no answer", "garbled", way="http", says=UNKNOWN),
    Fault(
        "hang-before-headers", "no response", "no-answer", way="http", waits=LIMIT, limit=LIMIT, says=UNKNOWN
    ),
    Fault(
        "hang-in-body",
        "half a response, then silence",
        "no-answer",
        way="http",
        waits=LIMIT,
        limit=LIMIT,
        says=UNKNOWN,
    ),
    Fault("cut-before-headers", "the connection ends", "lost", way="http", says=UNKNOWN),
    Fault("cut-in-body", "the connection ends in the response", "lost", way="http", says=UNKNOWN),
    Fault("wrong-content-type", "a web page", "garbled", way="http", says="text/html"),
    Fault("broken-json", "a response that is no JSON", "garbled", way="http", says=UNKNOWN),
    Fault("wrong-id", "an answer to what nobody asked", "garbled", way="http", says="nobody asked"),
    Fault("wrong-shape", "a result of the wrong shape", "garbled", way="http", says=UNKNOWN),
    Fault("packed", "a packed response that nobody wanted", "garbled", way="http", says=UNKNOWN),
    Fault("huge-body", "200 MB in one response", "too-large", way="http", says="Ask for less"),
    Fault("huge-event", "200 MB in one event", "too-large", way="http", says="Ask for less"),
    Fault("stream", "a stream of events, as it should be", "streamed", way="http"),
    Fault("stream-ends-early", "a stream that ends without the answer", "lost", way="http", says=UNKNOWN),
    Fault("stream-of-garbage", "a stream of garbage", "garbled", way="http", says=UNKNOWN),
    Fault("flood", "50,000 notifications", "after the flood", way="http"),
    Fault("session-forgotten", "it has forgotten the session", "now", way="http"),
    # By the older transport.
    Fault(
        "refused", "nobody listens at the port", "not-started", "not-started", "sse", "could not be reached"
    ),
    Fault("broken", "HTTP 500 to everything", "not-started", "not-started", "sse", "500"),
    Fault("login", "HTTP 401 to everything", "needs-login", "needs-login", "sse", "toolfold mcp login"),
    Fault("html", "web pages to everything", "not-started", "not-started", "sse", "text/html"),
    Fault(
        "no-endpoint", "never says where to send", "not-started", "not-started", "sse", connect=1.0, waits=1.0
    ),
    Fault("post-refused", "HTTP 500 to the call", "lost", way="sse", says=UNKNOWN),
    Fault("stream-ends-early", "the stream ends without the answer", "lost", way="sse", says=UNKNOWN),
    Fault("broken-json", "an event that is no JSON", "garbled", way="sse", says=UNKNOWN),
    Fault("wrong-id", "an answer to what nobody asked", "garbled", way="sse", says="nobody asked"),
    Fault("huge-event", "20 MB in one event", "too-large", way="sse", says="Ask for less"),
    Fault("flood", "50,000 notifications", "after the flood", way="sse"),
)


async def meet(fault: Fault, folder: Path, settings: McpServerSettings | None = None) -> Met:
    """Meet a fault with a server of its own, and call once more."""
    if settings is None:
        with reachable(fault) as found:
            return await meet(fault, folder, found)
    async with supervised(settings, folder, name=fault.name) as server:
        if fault.is_of_a_call:
            await called(server, "before")
        began = time.monotonic()
        answer, said = await called(server, "now")
        seconds = time.monotonic() - began
        then, then_said = await called(server, "again")
        return Met(answer, said, seconds, then, then_said)


async def called(server: ServerSupervisor, text: str) -> tuple[str, str]:
    """What a call of `echo` gives: the words of the tool, or the kind and the words of the error."""
    tool = "echo" if server.name != "endless-list" else "page_0"
    try:
        result = await server.call_tool(tool, {"text": text})
    except ServerFailed as error:
        return error.kind, str(error)
    words = str(result.content[0].text)
    return words, words


@asynccontextmanager
async def supervised(
    settings: McpServerSettings,
    folder: Path,
    *,
    name: str = "some",
    publish: Callable[[str, Listing], None] = lambda *_: None,
    environment: Mapping[str, str] | None = None,
    secrets: Sequence[str] = (),
) -> AsyncIterator[ServerSupervisor]:
    """A server under supervision, which ends with the block."""
    known = dict(environment if environment is not None else os.environ)

    async def wiring(server: ServerSupervisor) -> ConnectionDeps:
        return ConnectionDeps(
            environment=known,
            settings=server.settings,
            log=ServerLog(folder / f"{name}.log", Redaction(secrets)),
            on_change=server.schedule_relist,
            on_update=lambda _: None,
            legacy=server.is_legacy,
        )

    server = ServerSupervisor(name, settings, build_deps=wiring, publish=publish)
    try:
        yield server
    finally:
        await server.close()


def stdio(fault: str = "", *words: str, **settings: Any) -> McpServerSettings:
    """The settings of the fault server; `words` are more of its arguments."""
    return parse_server_settings({**entry(fault, *words), "call_timeout_seconds": PATIENT, **settings})


def entry(fault: str = "", *words: str) -> dict[str, Any]:
    """The fault server, as a configuration has it."""
    if fault == "missing":
        return {"command": "a-program-that-nobody-has"}
    return {"command": sys.executable, "args": [str(SERVER), "--fault", fault, *words]}


def at(url: str, way: Way, **settings: Any) -> McpServerSettings:
    """The settings of a server at an address."""
    return parse_server_settings({"url": url, "transport": way, "call_timeout_seconds": PATIENT, **settings})


def reachable(fault: Fault) -> AbstractContextManager[McpServerSettings]:
    """The settings of a server with this fault, which runs as long as they are used."""
    return _reachable(fault)


@contextlib.contextmanager
def _reachable(fault: Fault) -> Iterator[McpServerSettings]:
    limit = {"connect_timeout_seconds": fault.connect, "call_timeout_seconds": fault.limit}
    if fault.way == "stdio":
        yield stdio(fault.name, **limit)
    elif fault.name == "refused":
        path = "sse" if fault.way == "sse" else "mcp"
        yield at(f"http://127.0.0.1:{free_port()}/{path}", fault.way, **limit)
    else:
        with serving(fault.name) as server:
            yield at(server.url(fault.way), fault.way, **limit)


def free_port() -> int:
    """A port that nobody listens at just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
