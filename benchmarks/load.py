"""Measure many concurrent sessions on two replicas with one database, while parts of them fail.

    python benchmarks/load.py [--sessions 1000] [--seconds 180] [--think 10] [--no-faults] [--no-peers]

Two real `toolfold serve` processes share one PostgreSQL. Clients have a connection each, which goes to one
replica after the other, and to the remaining one if it is refused. Half of them use MCP 2025-11-25 with
sessions, half use 2026-07-28 without. Each repeats: search for tools, select tools (a chat completion through
the model proxy with 40 tools), call a harmless tool or call one whose calls are audited; then it thinks.

During the run a replica is killed (SIGKILL) and started again, the database is stopped for ten seconds, and
the disk of both replicas and of the database is full for ten seconds. A request is sent once. Afterwards
everything that was acknowledged is looked up: calls in the file of the server behind the gateway, in the
usage history and in the audit log; searches and selections in the usage history.

Then single gateways are compared, with calls of one tool only, which all of them can do: the bare server,
one Toolfold replica, FastMCP's proxy (as it is, and with one connection for all clients) and mcp-proxy. "At
most" is the throughput of 32 clients that do not think. Clients, gateways, database and server share the
machine. Takes about seven minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from measuring.load_clients import OLD_REVISION, Balancer, Log, Session, Task, run_clients
from measuring.load_site import BACKEND, DIRECTORY, Process, Site, run_site
from measuring.processes import cpu_of, free_port
from measuring.scores import spread
from tests.mcp.servers import fastmcp_python

FAULT_S = 10.0
SETTLE_S = 15.0
"""Time after the end of a fault in which errors are attributed to it."""
STORED_TIMEOUT_S = 60.0
TOKENS = 4
SELECTED_FROM = 40
BUSY_CLIENTS = 32
SHARES = {"search": 0.3, "select": 0.15, "call": 0.4, "audited": 0.15}
EXPLANATIONS = {
    "connection lost": "the replica was killed while it worked on the request, or closed an idle connection",
    "no replica accepts": "no replica was running",
    "no answer within": "the replica did not answer in time",
    "status 404": "the session was on a replica that is gone; the client begins a new one",
    "status 503": "the replica refused the request because the database could not be reached",
    "could not be recorded": "a call that must be audited is refused while the audit log cannot be written",
}


@dataclass(slots=True)
class Memory:
    """Resident memory of processes over time, in MB."""

    seen: dict[str, list[float]] = field(default_factory=dict)

    async def follow(self, processes: list[Process]) -> None:
        while True:
            for each in processes:
                self.seen.setdefault(each.name, []).append(each.memory_mb())
            await asyncio.sleep(1.0)

    def summarize(self) -> dict[str, dict[str, float]]:
        return {
            name: {"start": round(values[0]), "end": round(values[-1]), "most": round(max(values))}
            for name, values in self.seen.items()
        }


def make_tasks() -> dict[str, tuple[Task, float]]:
    """Return the kinds of requests of the mixed load, with their shares."""
    text = files("toolfold").joinpath("tools/sample/queries.jsonl").read_text(encoding="utf-8")
    queries = [json.loads(line)["query"] for line in text.splitlines()]
    body = json.dumps({"model": "gpt-4.1", "messages": [{"role": "user", "content": "@"}], "tools": _tools()})
    rng = random.Random(1)

    async def search(session: Session, request_id: str) -> None:
        query = f"{rng.choice(queries)} ({request_id})"
        await session.call_tool("tool_search", {"query": query})

    async def select(session: Session, _request_id: str) -> None:
        await session.complete(body.replace('"@"', json.dumps(rng.choice(queries))).encode())

    async def call(session: Session, request_id: str) -> None:
        await session.call_tool("load_record", {"id": request_id})

    async def audited(session: Session, request_id: str) -> None:
        await session.call_tool("load_erase", {"id": request_id})

    tasks = {"search": search, "select": select, "call": call, "audited": audited}
    return {name: (task, SHARES[name]) for name, task in tasks.items()}


def _tools() -> list[dict[str, Any]]:
    text = files("toolfold").joinpath("tools/sample/catalog.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()[:SELECTED_FROM]]
    return [{"type": "function", "function": row["function"]} for row in rows]


async def warm_up(port: int, token: str) -> None:
    """Send one request of each kind."""
    session = Session(Balancer([port]), OLD_REVISION, token)
    for kind, (task, _) in make_tasks().items():
        await task(session, f"{kind}-warm-0-{port}")
    session.close()


async def cause_faults(site: Site, log: Log, seconds: float) -> None:
    """Kill a replica, stop the database and fill the disk, spread over the time of the run."""
    faults: dict[str, Callable[[], Awaitable[None]]] = {
        "replica killed": lambda: site.kill_replica(site.replicas[0], FAULT_S),
        "database stopped": lambda: site.restart_database(FAULT_S),
        "disk full": lambda: site.fill_disk(FAULT_S),
    }
    pause = max(0.0, seconds / (len(faults) + 1) - FAULT_S - SETTLE_S)
    for name, fault in faults.items():
        log.phase = "no fault"
        await asyncio.sleep(pause)
        log.phase = name
        await fault()
        await asyncio.sleep(SETTLE_S)
    log.phase = "no fault"


async def measure_mixed(site: Site, sessions: int, seconds: float, think_s: float, *, faults: bool) -> Any:
    """Run the mixed load and return the results."""
    for each in site.replicas:  # each has loaded its models and its index before the time starts
        await warm_up(each.port, site.tokens[0])
        await asyncio.to_thread(each.wait_until_idle)
    log, memory = Log(phase="no fault"), Memory()
    ports = [each.port for each in site.replicas]
    watching = asyncio.create_task(memory.follow(site.replicas))
    failing = asyncio.create_task(cause_faults(site, log, seconds)) if faults else None
    await run_clients(
        Balancer(ports, has_health_check=True),
        make_tasks(),
        log,
        sessions=sessions,
        seconds=seconds,
        think_s=think_s,
        tokens=site.tokens,
    )
    if failing is not None:
        await failing
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    return {
        "sessions": sessions,
        "seconds": seconds,
        "requests": sum(log.sent.values()),
        "acknowledged": sum(len(each) for each in log.acknowledged.values()),
        "requests_per_second": round(len(log.finished) / seconds, 1),
        "ms": {kind: _describe_times(times) for kind, times in sorted(log.times.items())},
        "memory_mb": memory.summarize(),
        "errors": _describe_errors(log),
        "tracebacks": Counter(text for each in site.replicas for text in each.find_tracebacks()),
        "stored": await compare_stored(site, log),
        "disk": site.disk.kind,
    }


def _describe_times(times: list[float]) -> dict[str, float]:
    found = spread([each * 1e3 for each in times])
    return {"count": len(times), "p50": round(found["p50"], 1), "p99": round(found["p99"], 1)}


def _describe_errors(log: Log) -> list[dict[str, Any]]:
    return [
        {"phase": phase, "error": error, "count": count, "explanation": explain(error)}
        for (phase, error), count in sorted(log.errors.items())
    ]


def explain(error: str) -> str:
    """Return the known reason for an error; empty if there is none."""
    return next((reason for text, reason in EXPLANATIONS.items() if text in error), "")


@dataclass(frozen=True, slots=True)
class Stored:
    """Stored data: ids of calls and searches, and the numbers of selections and audit entries."""

    executed: Counter[str]
    calls: Counter[str]
    searches: Counter[str]
    models: int
    audited: int


def read_stored(site: Site) -> Stored:
    """Read the contents of the backend's file, the usage history and the audit log."""
    import psycopg  # optional: `--help` works without it

    executed = Counter(site.journal.read_text().split())
    with psycopg.connect(site.database_url) as connection:
        rows = connection.execute("SELECT kind, name, content FROM toolfold.usage").fetchall()
        audit = connection.execute("SELECT line FROM toolfold.audit").fetchall()
    calls = Counter(_find_id(content) for kind, name, content in rows if kind == "call" and "load" in name)
    searches = Counter(_find_id(content) for kind, _, content in rows if kind == "search")
    models = sum(kind == "model" for kind, _, _ in rows)
    audited = sum("load_erase" in line for (line,) in audit)
    return Stored(executed, calls, searches, models, audited)


def _find_id(content: str) -> str:
    """Return the id of the request that an entry of the usage history belongs to."""
    words = content.replace("\\", " ").replace('"', " ").replace("(", " ").replace(")", " ").split()
    return next((word for word in words if word.count("-") == 3), "")


async def compare_stored(site: Site, log: Log) -> dict[str, Any]:
    """Return how many acknowledged requests are missing in the stores, and how many are stored twice.

    The usage history is written after the answer, so its entries are waited for.
    """
    end = time.monotonic() + STORED_TIMEOUT_S
    while True:
        found = _compare(await asyncio.to_thread(read_stored, site), log)
        if not any(found["lost"].values()) or time.monotonic() > end:
            return found
        await asyncio.sleep(1.0)


def _compare(stored: Stored, log: Log) -> dict[str, Any]:
    acknowledged = {kind: log.acknowledged.get(kind, set()) for kind in SHARES}
    calls = acknowledged["call"] | acknowledged["audited"]
    lost = {
        "calls not executed": len(calls - set(stored.executed)),
        "calls not in the usage history": len(calls - set(stored.calls)),
        "searches not in the usage history": len(acknowledged["search"] - set(stored.searches)),
        "selections not in the usage history": max(0, len(acknowledged["select"]) - stored.models),
        "calls not in the audit log": max(0, len(acknowledged["audited"]) - stored.audited),
    }
    twice = {
        "executed": sum(count > 1 for count in stored.executed.values()),
        "usage history": sum(count > 1 for name, count in (stored.calls + stored.searches).items() if name),
    }
    return {
        "acknowledged": {kind: len(ids) for kind, ids in acknowledged.items()},
        "lost": lost,
        "twice": twice,
    }


@dataclass(frozen=True, slots=True)
class Front:
    """One compared gateway: its process, the name of the tool to call, and access tokens."""

    process: Process
    tool: str
    tokens: list[str] = field(default_factory=lambda: [""])


@contextmanager
def run_peers(folder: Path) -> Iterator[list[Front]]:
    """Run the bare server and the other gateways that are installed, each with its own server."""
    with ExitStack() as stack:

        def start(name: str, argv: list[str], port: int) -> Process:
            process = Process(name, argv, port, folder / f"{name}.log")
            process.start()
            stack.callback(process.stop)
            process.wait_until_open()
            return process

        port = free_port()
        argv = [sys.executable, BACKEND, str(folder / "journal"), "--port", str(port)]
        fronts = [Front(start("bare server", argv, port), "record")]
        behind = f"http://127.0.0.1:{port}/mcp"
        with suppress(pytest.skip.Exception):
            own = free_port()
            script = str(DIRECTORY / "gateway_fastmcp.py")
            words = [fastmcp_python(), script, "proxy", "--port", str(own)]
            fronts.append(Front(start("FastMCP proxy", [*words, behind], own), "record"))
            own = free_port()
            words = [*words[:-1], str(own), "--kept", behind]
            fronts.append(Front(start("FastMCP proxy, one kept connection", words, own), "record"))
        if (program := find_mcp_proxy()) is not None:
            own = free_port()
            server = [sys.executable, BACKEND, str(folder / "journal")]
            words = [str(program), "--port", str(own), "--pass-environment", "--", *server]
            fronts.append(Front(start("mcp-proxy", words, own), "record"))
        yield fronts


def find_mcp_proxy() -> Path | None:
    """Return the program `mcp-proxy`, which scripts/prepare_tests.sh installs; None if it is missing."""
    program = Path(sys.prefix, "test_tools/mcp/servers/bin/mcp-proxy")
    return program if program.exists() else None


async def measure_front(front: Front, sessions: int, seconds: float, think_s: float) -> dict[str, Any]:
    """Measure calls of one tool from many sessions with pauses, and from a few sessions without pauses."""

    async def call(session: Session, request_id: str) -> None:
        await session.call_tool(front.tool, {"id": request_id})

    tasks: Mapping[str, tuple[Task, float]] = {"call": (call, 1.0)}
    balancer, logs = Balancer([front.process.port]), {"many": Log(), "busy": Log()}
    memory = front.process.memory_mb()
    cpu = cpu_of(front.process.pid)
    for name, log in logs.items():
        clients, think = (sessions, think_s) if name == "many" else (BUSY_CLIENTS, 0.0)
        await run_clients(
            balancer,
            tasks,
            log,
            sessions=clients,
            seconds=seconds,
            think_s=think,
            tokens=front.tokens,
            revisions=(OLD_REVISION,),
            seed=sum(map(ord, front.process.name + name)),
        )
    many, busy = logs["many"], logs["busy"]
    calls = len(many.finished) + len(busy.finished)
    return {
        "name": front.process.name,
        "sessions": sessions,
        "requests_per_second": round(len(many.finished) / seconds, 1),
        **_describe_times(many.times.get("call", [0.0])),
        "at_most_per_second": round(len(busy.finished) / seconds, 1),
        "cpu_ms": round((cpu_of(front.process.pid) - cpu) / max(calls, 1) * 1e3, 2),
        "memory_mb": {"start": round(memory), "end": round(front.process.memory_mb())},
        "errors": {error: count for log in logs.values() for (_, error), count in log.errors.items()},
    }


def format_mixed(found: Mapping[str, Any]) -> str:
    """Return the results of the mixed load as Markdown."""
    lines = [
        f"{found['sessions']:,} sessions, {found['seconds']:g} s: {found['acknowledged']:,} of"
        f" {found['requests']:,} requests acknowledged, {found['requests_per_second']} a second",
        "",
        "| request | acknowledged | p50 ms | p99 ms |",
        "|---|---|---|---|",
        *(
            f"| {kind} | {each['count']:,} | {each['p50']} | {each['p99']} |"
            for kind, each in found["ms"].items()
        ),
        "",
        *(f"memory of {name}: {each}" for name, each in found["memory_mb"].items()),
        "",
        "| during | error | number | explanation |",
        "|---|---|---|---|",
        *(
            f"| {each['phase']} | {each['error']} | {each['count']:,} | {each['explanation'] or '?'} |"
            for each in found["errors"]
        ),
        "",
        *(f"{count} tracebacks in the logs: {text}" for text, count in found["tracebacks"].items()),
        *(f"lost: {name}: {count}" for name, count in found["stored"]["lost"].items()),
        *(f"twice: {name}: {count}" for name, count in found["stored"]["twice"].items()),
    ]
    return "\n".join(lines)


def format_fronts(found: list[dict[str, Any]]) -> str:
    """Return the comparison of the gateways as a Markdown table."""
    heads = ("", "calls/s", "p50 ms", "p99 ms", "at most calls/s", "CPU ms a call", "memory MB", "errors")
    rows = [
        [
            each["name"],
            each["requests_per_second"],
            each["p50"],
            each["p99"],
            each["at_most_per_second"],
            each["cpu_ms"],
            f"{each['memory_mb']['start']} → {each['memory_mb']['end']}",
            "; ".join(f"{count} {error}" for error, count in each["errors"].items()) or 0,
        ]
        for each in found
    ]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (heads, ["---"] * len(heads), *rows))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=180.0, help="Time of the mixed load.")
    parser.add_argument(
        "--think", type=float, default=10.0, help="Mean seconds between requests of a session."
    )
    parser.add_argument("--peer-seconds", type=float, default=10.0, help="Time of each compared load.")
    parser.add_argument("--no-faults", action="store_true")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--json", type=Path, help="File for the results.")
    chosen = parser.parse_args()
    result: dict[str, Any] = {}
    with run_site(replicas=2, clients=TOKENS) as site:
        mixed = measure_mixed(
            site, chosen.sessions, chosen.seconds, chosen.think, faults=not chosen.no_faults
        )
        result["mixed"] = asyncio.run(mixed)
        print(format_mixed(result["mixed"]), flush=True)
    if not chosen.no_peers:
        result["compared"] = compare(chosen.sessions, chosen.peer_seconds, chosen.think)
        print(format_fronts(result["compared"]))
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    lost = sum(result["mixed"]["stored"]["lost"].values())
    if lost:
        raise SystemExit(f"{lost} acknowledged events were lost")


def compare(sessions: int, seconds: float, think_s: float) -> list[dict[str, Any]]:
    """Measure single gateways, one after the other."""
    found = []
    with tempfile.TemporaryDirectory() as folder, run_peers(Path(folder)) as fronts:
        found += [asyncio.run(measure_front(each, sessions, seconds, think_s)) for each in fronts]
    with run_site(replicas=1, clients=TOKENS) as site:
        site.replicas[0].name = "toolfold"
        front = Front(site.replicas[0], "load_record", site.tokens)
        asyncio.run(warm_up(front.process.port, site.tokens[0]))
        front.process.wait_until_idle()
        found.insert(1, asyncio.run(measure_front(front, sessions, seconds, think_s)))
    return found


if __name__ == "__main__":
    main()
