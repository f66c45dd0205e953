"""Measure how soon the tools of many servers are available if one server is dead and one hangs.

    python benchmarks/mcp_servers.py [--servers 50] [--tools 20] [--runs 5] [--json]

Each run opens a runtime with servers that nobody has seen before, in processes of their own over stdio, and
waits until every healthy one has listed its tools; then it opens it a second time, with the lists kept. Three
figures belong to each: the time by the clock, our CPU time, and that of the servers. Beside them stands the
least that any client needs: the same processes started and asked by hand over bare pipes, all at once, with
nothing read but the end of their answers. On a machine whose cores others use, compare the two.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SERVER = ROOT / "benchmarks" / "measuring" / "small_server.py"
FAULTY = ROOT / "tests" / "mcp" / "fault_server.py"
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bare", "version": "1"}}
ASKED = (
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO},
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
)
LEAN = ("-S", "-E")
"""A server that starts fast, because its own start is not measured."""
PATIENCE = 120.0


@dataclass(frozen=True)
class Cost:
    """Wall-clock and CPU seconds that a measurement took."""

    clock: float
    ours: float
    servers: float


def measured(work: Callable[[], Callable[[], None]]) -> Cost:
    """Measure the time of `work`, which returns a function that stops what it started."""
    began, cpu, children = time.perf_counter(), time.process_time(), _children_cpu_seconds()
    end = work()
    clock, ours = time.perf_counter() - began, time.process_time() - cpu
    end()
    return Cost(clock, ours, _children_cpu_seconds() - children)


def _children_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def bare(count: int, tools: int) -> Callable[[], None]:
    """Start the same servers without Toolfold and list their tools over plain pipes."""
    words = [sys.executable, *LEAN, str(SERVER), str(tools), "echo"]
    said = "".join(json.dumps(each) + "\n" for each in ASKED).encode()
    started = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(count)]
    for process in started:
        assert process.stdin is not None
        process.stdin.write(said)
        process.stdin.flush()
    for process in started:
        assert process.stdout is not None
        while b'"tools": [' not in process.stdout.readline():
            pass

    def end() -> None:
        for process in started:
            process.communicate()

    return end


def word(number: int) -> str:
    """Return a made-up word that is unique for each number."""
    syllables = (
        "ba",
        "ce",
        "di",
        "fo",
        "gu",
        "ha",
        "ki",
        "lo",
        "mu",
        "ne",
        "pa",
        "re",
        "si",
        "to",
        "vu",
        "za",
    )
    return "".join(syllables[byte % 16] for byte in hashlib.sha256(str(number).encode()).digest()[:5])


def ours(home: Path, count: int, tools: int) -> Callable[[], None]:
    """Open a runtime with `count` working servers and two broken ones."""
    from toolfold import open_runtime
    from toolfold.config import load_config

    words = [*LEAN, str(SERVER), str(tools)]
    servers: dict[str, object] = {
        f"server-{number}": {"command": sys.executable, "args": [*words, word(number)]}
        for number in range(count)
    }
    servers["dead"] = {"command": sys.executable, "args": [str(FAULTY), "--fault", "crash-at-start"]}
    servers["hung"] = {"command": sys.executable, "args": [str(FAULTY), "--fault", "silent-at-start"]}
    env = {"TOOLFOLD_HOME": str(home), "HOME": str(home)}
    config = load_config(project=home, env=env, overrides={"mcp.servers": servers, "mcp.wait_seconds": 0})
    runtime = open_runtime(config)
    until = time.monotonic() + PATIENCE
    while sum(name.startswith("mcp_server-") for name in runtime.registry.snapshot()) < count * tools:
        if time.monotonic() > until:
            raise SystemExit(f"not all were listed: {runtime.mcp.states()}")
        time.sleep(0.005)
    return runtime.close


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--servers", type=int, default=50)
    options.add_argument("--tools", type=int, default=20)
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    healthy, tools = given.servers - 2, given.tools
    import mcp  # noqa: F401 - loaded once a process, however many servers there are

    found: dict[str, list[Cost]] = {"bare pipes": [], "listed first": [], "kept lists": []}
    for _ in range(given.runs):
        with tempfile.TemporaryDirectory() as home:
            found["bare pipes"].append(measured(lambda: bare(healthy, tools)))
            for name in ("listed first", "kept lists"):
                found[name].append(measured(lambda: ours(Path(home), healthy, tools)))
    if given.json:
        print(json.dumps({name: [asdict(cost) for cost in costs] for name, costs in found.items()}))
    else:
        print(report(given.servers, tools, found))


def report(servers: int, tools: int, found: dict[str, list[Cost]]) -> str:
    lines = [
        f"{servers} servers × {tools} tools, one dead, one hung: seconds, best and median",
        "| | clock | our CPU | servers' CPU |",
        "|---|---|---|---|",
    ]
    for name, costs in found.items():
        cells = [
            _format_cell([getattr(cost, part) for cost in costs]) for part in ("clock", "ours", "servers")
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _format_cell(seconds: Sequence[float]) -> str:
    return f"{min(seconds):.2f} / {statistics.median(seconds):.2f}"


if __name__ == "__main__":
    main()
