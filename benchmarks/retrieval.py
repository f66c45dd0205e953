"""Measure retrieval quality and speed: every data set and mode, compared with other retrievers.

    python benchmarks/retrieval.py                                       # the sample catalog, by ourselves
    python benchmarks/retrieval.py --data DIR --folds DIR --peers DIR --peer-python PATH

`--data` holds folders of `catalog.jsonl[.gz]` and `queries.jsonl[.gz]`. `--peers` holds adapters, modules
with `build(definitions)` and `search(index, message, count)`; `scripts/peers_env.sh` makes the environment
that they run in. `--folds` holds weights that never saw the sets that they are judged on (how to make them:
`training/README.md`); without it, sets that the shipped weights have seen are marked. Tables are printed,
and written to `--out` with plots and with the peers' results, which the next run takes over. Times are CPU
times of one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measuring import plots, report
from measuring.need import Need
from measuring.peers import (
    ONE_THREAD,
    Peers,
    add_peer_options,
    open_peers,
    print_progress,
    require_peer_python,
)
from measuring.quality import Quality
from measuring.sets import Sets, Task
from measuring.speed import Speed
from measuring.weights import Weights

PARTS = ("quality", "speed", "need")
LEVELS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "more": ("distractors-google", "distractors-mcp"),
    "most": ("distractors-google", "distractors-mcp", "aws-api", "sealtools", "bfcl", "acebench-en"),
}
FEW_SETS = ("dust-mcp", "mcpproxy-golden", "metatool", "toolalpaca-eval")
SIZES = (226, 1_000, 10_000)
LARGEST = 47_000


def options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, help="directory of data sets; default: the sample catalog")
    add("--sets", type=names, help="comma-separated names of data sets")
    add("--limit", type=int, default=300, help="maximum number of messages per set")
    add(
        "--levels",
        type=names,
        help=f"comma-separated distractor levels: {', '.join(LEVELS)}; default: all available",
    )
    add(
        "--distractor-limit",
        type=int,
        default=100,
        help="maximum number of messages per set with distractors",
    )
    add("--distractor-sets", type=names, help="comma-separated sets to measure with distractors")
    add_peer_options(parser)
    add("--fresh", action="store_true", help="ignore stored results of peers")
    add("--folds", type=Path, help="directory of weights trained without the measured sets")
    add("--parts", type=names, default=list(PARTS), help=f"comma-separated parts: {', '.join(PARTS)}")
    add(
        "--sizes",
        type=lambda text: [int(size) for size in names(text)],
        help="comma-separated catalog sizes to time",
    )
    add("--speed-messages", type=int, default=200, help="number of messages for timing")
    add("--servers", type=Path, help="directory of `tools/list` results, one JSON file per server, to time")
    add(
        "--out",
        type=Path,
        default=Path("build/benchmarks"),
        help="output directory for tables, plots and caches",
    )
    add("--json", type=Path, help="write the whole result to this file")
    chosen = parser.parse_args(arguments)
    require_peer_python(parser, chosen)
    return chosen


def names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def measure(chosen: argparse.Namespace) -> dict[str, Any]:
    """Run all parts and return the result."""
    sets = Sets(chosen.data, chosen.out / "catalogs")
    weights = Weights(chosen.folds, chosen.out / "vectors")
    peers = open_peers(chosen, "peers.json", fresh=chosen.fresh)
    ours = Quality(weights)
    result: dict[str, Any] = {}
    if "quality" in chosen.parts:
        result["quality"] = quality(chosen, sets, ours, peers)
    if "need" in chosen.parts:
        result["need"] = Need(ours, chosen.limit).measure(sets, chosen.sets or sets.names())
    if "speed" in chosen.parts:
        result |= speed(chosen, Speed(sets, weights, chosen.out / "homes", chosen.speed_messages), peers)
    return result


def quality(chosen: argparse.Namespace, sets: Sets, ours: Quality, peers: Peers | None) -> dict[str, Any]:
    """Measure every data set with every number of distractors."""
    told: dict[str, Any] = {}
    for level in levels(chosen, sets):
        told[level] = []
        for name in chosen.sets or sets.names():
            if level != "plain" and name not in distracted(chosen, level, sets):
                continue
            distractors = [other for other in LEVELS[level] if other != name]
            limit = chosen.limit if level == "plain" else chosen.distractor_limit
            told[level].append(judged(sets.task(name, limit, distractors), ours, peers))
    return told


def judged(task: Task, ours: Quality, peers: Peers | None) -> dict[str, Any]:
    """Measure one data set with Toolfold and with the peers."""
    print_progress(f"{task.label}: {task.tools:,} tools, {len(task.queries)} messages")
    row: dict[str, Any] = {"set": task.name, "tools": task.tools, "messages": len(task.queries)}
    row |= {"seen": ours.weights.has_seen(task), "ours": ours.measure(task), "peers": {}}
    for peer in peers.names() if peers else ():
        assert peers is not None
        print_progress(f"  {peer}")
        row["peers"][peer] = peers.quality(peer, task)
    return row


def levels(chosen: argparse.Namespace, sets: Sets) -> list[str]:
    """Return the requested levels of distractors, or all levels whose catalogs exist."""
    there = set(sets.catalogs())
    return chosen.levels or [level for level, catalogs in LEVELS.items() if there.issuperset(catalogs)]


def distracted(chosen: argparse.Namespace, level: str, sets: Sets) -> Sequence[str]:
    """Return the data sets that are also measured with distractors; only a few at the last level."""
    if chosen.distractor_sets:
        few: list[str] = chosen.distractor_sets
        return few
    return sets.names() if level == "more" else FEW_SETS


def speed(chosen: argparse.Namespace, ours: Speed, peers: Peers | None) -> dict[str, Any]:
    """Measure search times by catalog size, and the time to embed the tools of real servers."""
    sizes = chosen.sizes or ((*SIZES, LARGEST) if chosen.data else SIZES)
    print_progress(f"speed: {', '.join(f'{size:,}' for size in sizes)} tools")
    told: dict[str, Any] = {"speed": ours.measure(sizes, peers)}
    servers = chosen.servers or (chosen.data and chosen.data.parent / "mcp")
    if servers and servers.is_dir():
        told["embedding"] = ours.embedding(servers)
    return told


def write(result: dict[str, Any], chosen: argparse.Namespace) -> None:
    """Print the tables, and write tables and plots to files."""
    for name, text in report.sections(result).items():
        (chosen.out / f"{name}.md").write_text(text + "\n", encoding="utf-8")
        print(f"## {name}\n\n{text}\n")
    try:
        drawn = plots.draw(result, chosen.out)
    except ImportError:
        print_progress("no plots: they need matplotlib (pip install 'toolfold[plot]')")
    else:
        print_progress(f"drawn: {', '.join(str(file) for file in drawn)}")
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        # Read when numpy is loaded, which has happened; threads that wait for work would count as work.
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})
    chosen = options(sys.argv[1:])
    chosen.out.mkdir(parents=True, exist_ok=True)
    write(measure(chosen), chosen)


if __name__ == "__main__":
    main()
