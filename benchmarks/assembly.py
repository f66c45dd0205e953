"""Measure the time of `get_tool_definitions` by the number of tools.

    python benchmarks/assembly.py [--peer-python PATH] [--json]

Process CPU time, median of several runs, tools with real-sized schemas in 20 toolsets that share one
check function. `--peer-python` is the interpreter of an environment that has hermes-agent 0.19, whose
function of the same name is then timed in the same run on the same definitions:

    python -m venv /tmp/hermes && /tmp/hermes/bin/pip install hermes-agent==0.19.0
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from toolfold import load_config, open_runtime, sample_catalog
from toolfold.core.types import Json

SIZES = (30, 226, 1_000, 10_000)
PEER = Path(__file__).with_name("assembly_hermes.py")


def catalog(size: int) -> list[Json]:
    """Return `count` definitions derived from the sample catalog."""
    sample = [tool.definition()["function"] for tool in sample_catalog()]
    return [
        {**sample[number % len(sample)], "name": f"mcp_s{number % 20}_tool_{number}"}
        for number in range(size)
    ]


def measure_ours(size: int, runs: int) -> Json:
    """Return the time to register the tools, and the median time to assemble their definitions."""
    entries = catalog(size)
    with tempfile.TemporaryDirectory() as home:
        overrides = ["plugins.enabled=false"]
        runtime = open_runtime(
            load_config(project=Path(home), env={"TOOLFOLD_HOME": home}, overrides=overrides)
        )
        started = time.process_time()
        for number, entry in enumerate(entries):
            runtime.registry.register(
                name=entry["name"],
                toolset=f"mcp-s{number % 20}",
                schema=entry,
                handler=lambda args: args,
                check_fn=is_up,
            )
        built = time.process_time() - started
        toolsets = [f"mcp-s{number}" for number in range(20)]
        times = [timed(lambda: runtime.get_tool_definitions(toolsets, quiet_mode=True)) for _ in range(runs)]
        count = len(runtime.get_tool_definitions(toolsets, quiet_mode=True))
        runtime.close()
    return {"tools": count, "build_ms": built * 1000, "ms": statistics.median(times) * 1000}


def is_up() -> bool:
    return True


def timed(call: object) -> float:
    assert callable(call)
    started = time.process_time()
    call()
    return time.process_time() - started


def measure_peer(python: str, size: int) -> Json:
    """Time the peer on the same definitions, in its own interpreter."""
    done = subprocess.run(
        [python, str(PEER)],
        input=json.dumps(catalog(size)),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        sys.exit(f"the peer failed: {done.stderr.strip()[-500:]}")
    answer: Json = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer-python", help="Python interpreter with hermes-agent 0.19")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for size in SIZES:
        print(f"measuring {size:,} tools …", file=sys.stderr)
        row = measure_ours(size, runs=30 if size < 5_000 else 10)
        if options.peer_python:
            row["peer_ms"] = measure_peer(options.peer_python, size)["ms"]
        rows.append(row)
    if options.json:
        print(json.dumps(rows))
        return
    print(
        f"{'tools':>7} {'build ms':>10} {'assembly ms':>12} {'µs a tool':>10} {'hermes ms':>10} {'ratio':>7}"
    )
    for row in rows:
        peer = row.get("peer_ms")
        ratio = f"{peer / row['ms']:6.0f}×" if peer else "-"
        each = row["ms"] * 1000 / row["tools"]
        told = f"{peer:10.1f}" if peer else f"{'-':>10}"
        print(
            f"{row['tools']:>7,} {row['build_ms']:>10.1f} {row['ms']:>12.3f} {each:>10.2f} {told} {ratio:>7}"
        )


if __name__ == "__main__":
    main()
