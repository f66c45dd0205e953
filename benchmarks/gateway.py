"""Measure the gateway's overhead per call, compared with the bare server and with FastMCP's proxy.

    python benchmarks/gateway.py [--calls 200] [--row 1] [--rounds 5] [--ways http,stdio] [--text 5]
    python benchmarks/gateway.py --starts 3

One client, the official SDK's, calls one tool that gives its text back:

* `bare`: the server itself;
* `toolfold`: behind `toolfold serve` or `toolfold mcp serve`, with default settings;
* `fastmcp`: behind FastMCP's proxy, which opens a session behind it for every request;
* `fastmcp, kept`: the same with one connection that it keeps, and warns that clients may get mixed up then.

Over HTTP all hops are Streamable HTTP, over stdio all hops are stdio. Calls are made in turn, one at each and
then again, so that all meet the same load; with `--row N`, N at each and then again, as a client does that
makes several calls, so that the code of an endpoint stays in the processor's caches. p50 and p99 are by the
clock; `adds` is the median of the differences to the bare server, and `least` what the fastest tenth of calls
take more than the bare server's, which a busy machine spoils least. Throughput is that of 16 clients at once
(over stdio, which has one client, of 16 calls under way), in bursts that take turns as well. `CPU` is what
the process in front used for a call, which a busy machine changes least. FastMCP's own client makes calls of
the same kind over HTTP. `--text` is the length of the answer in characters.

`--starts` measures the time from the start of the process to its first `tools/list` instead, with 11 real
servers behind the gateway: cold (nothing is cached) and warm, over stdio and HTTP, with FastMCP's proxy in
the same rounds. "Complete list" is the time until every tool of every server was listed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from measuring.gateway_starts import format_ratios, format_starts, measure_starts
from measuring.processes import cpu_of
from measuring.scores import median_difference, spread
from tests.mcp.servers import fastmcp_python, run_http_server

CURRENT_DIRECTORY = Path(__file__).parent / "measuring"
ECHO = (sys.executable, str(CURRENT_DIRECTORY / "gateway_echo.py"))
TOOLFOLD = str(Path(sys.executable).with_name("toolfold"))
CLIENTS = 16
BURST = 5
"""Number of calls of each client in a burst."""
WARM = 10
BAR_MS = 5.0


@dataclass(frozen=True, slots=True)
class Front:
    """One compared endpoint: a URL, or a command."""

    name: str
    url: str = ""
    pid: int = 0
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Figures:
    """Measurements of one endpoint: seconds per call, calls per second, CPU seconds per call."""

    way: str
    era: str
    name: str
    times: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    cpu: float = 0.0
    cpu_calls: int = 0

    @property
    def fastest(self) -> float:
        """Return the 10th percentile of the call times."""
        return sorted(self.times)[len(self.times) // 10]

    def row(self, bare: Figures) -> list[str]:
        told = spread([each * 1e3 for each in self.times])
        added = median_difference(self.times, bare.times)
        return [
            self.name,
            f"{told['p50']:.2f}",
            f"{told['p99']:.2f}",
            "" if self is bare else f"{added * 1e3:+.2f}",
            "" if self is bare else f"{(self.fastest - bare.fastest) * 1e3:+.2f}",
            f"{1 / statistics.fmean(self.times):.0f}",
            f"{statistics.median(self.rates):.0f}",
            f"{self.cpu / self.cpu_calls * 1e3:.2f}" if self.cpu_calls else "",
        ]


def environment(folder: Path, server: Mapping[str, object]) -> dict[str, str]:
    """Create a Toolfold home directory whose settings contain only the given server."""
    home = Path(tempfile.mkdtemp(dir=folder))
    settings = {"mcp": {"servers": {"echo": server}, "wait_seconds": 30}}
    (home / "settings.yaml").write_text(json.dumps(settings), encoding="utf-8")
    return {"TOOLFOLD_HOME": str(home), "TOOLFOLD_CONFIG": str(home / "settings.yaml")}


@contextmanager
def over_http(folder: Path) -> Iterator[list[Front]]:
    """Start every endpoint over HTTP, in front of the same server."""
    with ExitStack() as stack:

        def start(name: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Front:
            # The port stands in a variable and is put into the command by a shell, which then is the command.
            words = ["sh", "-c", 'exec "$@" --port "$PORT"', "sh", *argv]
            made = run_http_server(
                words, lambda port: {"PORT": str(port), **(env or {})}, "/mcp", folder / f"{name}.log"
            )
            found = stack.enter_context(made)
            return Front(name, found.url, found.pid)

        bare = start("bare", ECHO)
        ours = environment(folder, {"url": bare.url})
        fronts = [bare, start("toolfold", (TOOLFOLD, "serve"), ours)]
        for name, words in peers():
            behind = ("sh", "-c", f'exec {" ".join(words)} --port "$2" {bare.url}', "sh")
            fronts.append(start(name, behind))
        yield fronts


@contextmanager
def over_stdio(folder: Path) -> Iterator[list[Front]]:
    """Return every endpoint as a command, each with its own server."""
    ours = environment(folder, {"command": ECHO[0], "args": list(ECHO[1:])})
    yield [
        Front("bare", argv=ECHO),
        Front("toolfold", argv=(TOOLFOLD, "mcp", "serve"), env=ours),
        *(Front(name, argv=(*words, *ECHO)) for name, words in peers()),
    ]


def peers() -> list[tuple[str, tuple[str, ...]]]:
    try:
        python = fastmcp_python()
    except pytest.skip.Exception as reason:
        print(f"FastMCP is left out: {reason}", file=sys.stderr)
        return []
    words = (python, str(CURRENT_DIRECTORY / "gateway_fastmcp.py"), "proxy")
    return [("fastmcp", words), ("fastmcp, kept", (*words, "--kept"))]


WAYS = {"http": over_http, "stdio": over_stdio}


@dataclass(slots=True)
class Line:
    """One connected client, and the process id of the endpoint it is connected to."""

    client: Client
    tool: str
    pid: int
    text: str = "hello"

    async def call(self) -> float:
        began = time.perf_counter()
        result = await self.client.call_tool(self.tool, {"text": self.text})
        taken = time.perf_counter() - began
        if result.is_error or getattr(result.content[0], "text", "") != self.text:
            raise SystemExit(f"{self.tool}: {result}")
        return taken


@asynccontextmanager
async def connected(front: Front, era: str, errors: Path) -> AsyncIterator[Line]:
    before = children()
    async with AsyncExitStack() as stack:
        if front.url:
            client = Client(front.url, mode=era)
        else:
            told = stack.enter_context(errors.open("a"))
            command = StdioServerParameters(
                command=front.argv[0], args=list(front.argv[1:]), env={**os.environ, **front.env}
            )
            client = Client(stdio_client(command, errlog=told), mode=era)
        await stack.enter_async_context(client)
        tool = (await client.list_tools()).tools[0].name
        yield Line(client, tool, front.pid or next(iter(children() - before), 0))


def prose(length: int) -> str:
    """Return text like that in typical results of servers."""
    said = "The order of 12 May was sent to Porto on Friday. Its parcels weigh 3.5 kg, and one is late.\n"
    return "hello" if length <= 5 else (said * (length // len(said) + 1))[:length]


def children() -> set[int]:
    """Return the child processes of this process."""
    tasks = Path("/proc/self/task")
    found = (each.read_text().split() for each in tasks.glob("*/children")) if tasks.exists() else ()
    return {int(pid) for pids in found for pid in pids}


async def measure(way: str, era: str, chosen: argparse.Namespace) -> list[Figures]:
    with tempfile.TemporaryDirectory(prefix="tf-") as name, WAYS[way](Path(name)) as fronts:
        found = [Figures(way, era, front.name) for front in fronts]
        errors = Path(name) / "errors.log"
        async with AsyncExitStack() as stack:
            try:
                lines = [await stack.enter_async_context(connected(each, era, errors)) for each in fronts]
                for line in lines:
                    line.text = prose(chosen.text)
                await in_turn(lines, found, chosen.calls, chosen.row)
                more = await crowds(fronts, lines, era, errors, stack)
                for number in range(chosen.rounds):
                    order = [(number + place) % len(fronts) for place in range(len(fronts))]
                    for place in order:
                        await burst(more[place], found[place])
            except BaseException:
                print(errors.read_text()[-4000:] if errors.exists() else "", file=sys.stderr)
                raise
        if way == "http" and chosen.fastmcp_client and len(fronts) > 2:
            tell_foreign_client(fronts, chosen.calls)
        return found


async def in_turn(lines: Sequence[Line], found: Sequence[Figures], calls: int, row: int) -> None:
    """Call the endpoints alternately, each `row` times in a row, so that all see the same load."""
    for _ in range(WARM):
        for line in lines:
            await line.call()
    for number in range(calls // row):
        for place in range(len(lines)):
            at = (number + place) % len(lines)
            found[at].times.extend([await lines[at].call() for _ in range(row)])


async def crowds(
    fronts: Sequence[Front], lines: Sequence[Line], era: str, errors: Path, stack: AsyncExitStack
) -> list[list[Line]]:
    """Return concurrent callers: separate clients over HTTP, one shared client over stdio."""
    crowded = []
    for front, line in zip(fronts, lines, strict=True):
        if not front.url:
            crowded.append([line] * CLIENTS)
            continue
        others = [await stack.enter_async_context(connected(front, era, errors)) for _ in range(CLIENTS - 1)]
        crowded.append([line, *others])
    return crowded


async def burst(lines: Sequence[Line], figures: Figures) -> None:
    async def several(line: Line) -> None:
        for _ in range(BURST):
            await line.call()

    used, began = cpu_of(lines[0].pid), time.perf_counter()
    await asyncio.gather(*map(several, lines))
    calls = BURST * len(lines)
    figures.rates.append(calls / (time.perf_counter() - began))
    figures.cpu += cpu_of(lines[0].pid) - used
    figures.cpu_calls += calls


def tell_foreign_client(fronts: Sequence[Front], calls: int) -> None:
    """Repeat the measurement with FastMCP's client, to rule out an effect of our client."""
    words = [fastmcp_python(), str(CURRENT_DIRECTORY / "gateway_fastmcp.py"), "client", str(calls)]
    words += [f"{front.name}={front.url}" for front in fronts]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    times = json.loads(printed.splitlines()[-1])
    print("\nFastMCP's client, ms a call (p50 / p99):")
    for name, each in times.items():
        told = spread([seconds * 1e3 for seconds in each])
        print(f"  {name}: {told['p50']:.2f} / {told['p99']:.2f}")


def table(found: Sequence[Figures]) -> str:
    heads = [
        "",
        "p50 ms",
        "p99 ms",
        "adds ms",
        "least ms",
        "calls/s, 1",
        f"calls/s, {CLIENTS}",
        "CPU ms a call",
    ]
    rows = [heads, ["---"] * len(heads), *(each.row(found[0]) for each in found)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def verdict(found: Sequence[Figures]) -> str:
    bare, ours, *others = found
    added = median_difference(ours.times, bare.times) * 1e3
    words = [f"toolfold adds {added:.2f} ms (bar: {BAR_MS:g})"]
    for other in others:
        many = statistics.median(ours.rates) / statistics.median(other.rates)
        one = statistics.fmean(other.times) / statistics.fmean(ours.times)
        words.append(f"{one:.2f} times the calls of {other.name} with one client, {many:.2f} with {CLIENTS}")
    return "; ".join(words) + "."


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--calls", type=int, default=200, help="calls of one client per endpoint")
    add("--row", type=int, default=1, help="calls at one endpoint before the next one is called")
    add("--rounds", type=int, default=5, help="bursts of many clients per endpoint")
    add("--ways", default=",".join(WAYS), help="comma-separated transports: http, stdio")
    add("--text", type=int, default=5, help="characters per result")
    add(
        "--eras",
        default="legacy,2026-07-28",
        help="comma-separated protocol revisions of the client; legacy is with a handshake",
    )
    add("--no-fastmcp-client", dest="fastmcp_client", action="store_false")
    add("--starts", type=int, default=0, help="measure start-up times instead, in this many rounds")
    add("--json", type=Path, help="write the whole result to this file")
    return parser.parse_args()


def main() -> None:
    chosen = options()
    if chosen.starts:
        starts = measure_starts(chosen.starts)
        print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores\n")
        print(f"{format_starts(starts)}\n\n{format_ratios(starts)}")
        return
    everything = []
    for way in chosen.ways.split(","):
        for era in chosen.eras.split(","):
            load = os.getloadavg()[0]
            found = asyncio.run(measure(way, era, chosen))
            loads = f"load {load:.1f} before, {os.getloadavg()[0]:.1f} after, {os.cpu_count()} cores"
            print(f"\n{way}, {era}, {chosen.text} characters; {loads}\n")
            print(table(found), f"\n\n{verdict(found)}", flush=True)
            everything += found
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(each) for each in everything]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
