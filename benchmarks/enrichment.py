"""Measure what example messages of tools add to retrieval: every set with 0, 1, 3 and 6 messages per tool.

    python benchmarks/enrichment.py                                      # the sample catalog
    python benchmarks/enrichment.py --data DIR [--folds DIR] [--sets A,B]
    python benchmarks/enrichment.py --data DIR --peers DIR --peer-python PATH   # beside other retrievers

Messages come from `training/enrichment/SET.jsonl`: lines with `tool` and `messages`, written from definitions
alone; a set is reduced to the tools of its file, and to the queries that need only these. "Half" gives
messages to a random half of the tools and also measures the messages whose tools have none, because enriched
tools must not displace the others. Sets that the shipped weights were trained on are marked with *; `--folds`
has weights that were not (`training/README.md`). Times are CPU times of one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from measuring.peers import (
    ONE_THREAD,
    Peers,
    add_peer_options,
    open_peers,
    print_progress,
    require_peer_python,
)
from measuring.quality import SYSTEMS, Quality, System, snapshot
from measuring.scores import DEEPEST, figures
from measuring.sets import Sets, Task
from measuring.weights import Model, Weights

from toolfold.core.registry import Snapshot

MESSAGES = Path(__file__).resolve().parents[1] / "training" / "enrichment"
COUNTS = (0, 1, 3, 6)
HALF_SEED = 3
MEASURED = ("keyword", "semantic", "default", "light")


@dataclass(frozen=True, slots=True)
class Enriched:
    """Tools of a data set, and the names of the tools that have example messages."""

    tools: Snapshot
    with_messages: frozenset[str]


def enrich(
    tools: Snapshot,
    messages: Mapping[str, Sequence[str]],
    count: int,
    share: float = 1.0,
    seed: int = HALF_SEED,
) -> Enriched:
    """Return all tools; a random share of them gets its first `count` example messages."""
    dice = random.Random(seed)
    chosen = frozenset(name for name in tools if dice.random() < share and name in messages)
    given = {
        name: replace(tool, messages=tuple(messages[name][:count])) if name in chosen else tool
        for name, tool in tools.items()
    }
    return Enriched(Snapshot(given, 0), chosen)


def measure_set(
    quality: Quality,
    task: Task,
    messages: Mapping[str, Sequence[str]],
    half_seed: int,
    modes: Sequence[str] = MEASURED,
) -> dict[str, Any]:
    """Return R@5 and R@1 of every search mode, by the number of example messages per tool."""
    most = max(map(len, messages.values()))
    tools = snapshot(task.catalog)
    rows: dict[str, Any] = {}
    for count in (count for count in COUNTS if count <= most):
        print_progress(f"{task.name}: {count} messages per tool")
        rows[str(count)] = measure_modes(quality, task, enrich(tools, messages, count), modes)
    for count in (0, min(3, most)):
        part = enrich(tools, messages, count, 0.5, half_seed)
        rows[f"half {count}"] = measure_modes(quality, task, part, modes)
    return rows


def measure_modes(quality: Quality, task: Task, enriched: Enriched, modes: Sequence[str]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for system in (each for each in SYSTEMS if each.name in modes):
        ranked, milliseconds = search_all(quality, task, system, enriched.tools)
        bare = [query for query in task.queries if enriched.with_messages.isdisjoint(query.gold)]
        told[system.name] = figures(task.queries, ranked) | {
            "p50": sorted(milliseconds)[len(milliseconds) // 2],
            "without messages": figures(bare, ranked)["R@5"] if bare else None,
        }
    return told


def search_all(
    quality: Quality, task: Task, system: System, tools: Snapshot
) -> tuple[dict[str, list[str]], list[float]]:
    """Return the ranked tools for each message, and the CPU time of each search."""
    ranked: dict[str, list[str]] = {}
    times: list[float] = []
    for part in quality.weights.parts(task):
        retriever = quality.retriever(part.weights, task.name, system.model, ranked=system.ranked)
        retriever.find(tools, "warm up", mode=system.mode, limit=1)
        for query in part.queries:
            before = time.process_time()
            hits = retriever.find(tools, query.text, mode=system.mode, limit=DEEPEST)
            times.append((time.process_time() - before) * 1000)
            ranked[str(query.id)] = [hit.name for hit in hits]
    return ranked, times


def measure_peers(peers: Peers | None, task: Task) -> dict[str, Any]:
    """Return the figures of other retrievers, which have no use for example messages."""
    if peers is None:
        return {}
    results = {}
    for peer in peers.names():
        print_progress(f"{task.name}: {peer}")
        results[peer] = peers.quality(peer, task)
    return results


def peer_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the three best other retrievers of each data set as a Markdown table."""
    lines = ["| set | best other retrievers: R@5 (R@1) |", "|---|---|"]
    for name, rows in results.items():
        scored = [(row["R@5"], row["R@1"], peer) for peer, row in rows["peers"].items() if "R@5" in row]
        best = sorted(scored, reverse=True)[:3]
        shown = ", ".join(f"{peer} {_score(five)} ({_score(one)})" for five, one, peer in best)
        lines.append(f"| {name} | {shown or '–'} |")
    return "\n".join(lines)


def table(results: Mapping[str, Mapping[str, Any]], seen: Mapping[str, bool]) -> str:
    """Return R@5 (R@1) for every data set and search mode as a Markdown table."""
    columns = [*map(str, COUNTS), "half: all", "half: tools without"]
    lines = [f"| set | mode | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    for name, rows in results.items():
        half = next((key for key in rows if key.startswith("half") and key != "half 0"), "")
        for mode in (mode for mode in MEASURED if mode in rows["0"]):
            cells = [_pair(rows.get(str(count), {}).get(mode)) for count in COUNTS]
            cells.append(_change(rows, half, mode, "R@5"))
            cells.append(_change(rows, half, mode, "without messages"))
            label = f"{name}{'*' if seen[name] else ''} ({rows['tools']:,} tools, {rows['queries']} messages)"
            lines.append(f"| {label} | {mode} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _pair(row: Mapping[str, Any] | None) -> str:
    return f"{_score(row['R@5'])} ({_score(row['R@1'])})" if row else "–"


def _change(rows: Mapping[str, Any], half: str, mode: str, key: str) -> str:
    return f"{_score(rows['half 0'][mode][key])} → {_score(rows[half][mode][key])}" if half else "–"


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}".removeprefix("0")


def read_messages(file: Path) -> dict[str, list[str]]:
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {row["tool"]: row["messages"] for row in rows}


def options(arguments: Sequence[str]) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--data", type=Path, help="directory of data sets; default: the sample catalog")
    parser.add_argument("--sets", help="comma-separated names of data sets; default: all with messages")
    parser.add_argument("--messages", type=Path, default=MESSAGES, help="directory of example messages")
    parser.add_argument("--limit", type=int, default=300, help="maximum number of queries per set")
    parser.add_argument(
        "--half-seed", type=int, default=HALF_SEED, help="random seed of the half of the tools"
    )
    parser.add_argument("--folds", type=Path, help="directory of weights trained without the measured sets")
    add_peer_options(parser)
    parser.add_argument("--modes", default=",".join(MEASURED), help="comma-separated search modes to measure")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"), help="output directory")
    parser.add_argument("--json", type=Path, help="write the whole result to this file")
    chosen = parser.parse_args(arguments)
    require_peer_python(parser, chosen)
    if unknown := set(chosen.modes.split(",")) - set(MEASURED):
        parser.error(f"unknown search modes: {', '.join(sorted(unknown))}; known are {', '.join(MEASURED)}")
    return chosen


def main() -> None:
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})
    chosen = options(sys.argv[1:])
    chosen.out.mkdir(parents=True, exist_ok=True)
    sets = Sets(chosen.data, chosen.out / "catalogs")
    quality = Quality(Weights(chosen.folds, chosen.out / "vectors"))
    known = [name for name in sets.names() if (chosen.messages / f"{name}.jsonl").exists()]
    names = chosen.sets.split(",") if chosen.sets else known
    messages = {name: read_messages(chosen.messages / f"{name}.jsonl") for name in names}
    tasks = [sets.task(name, chosen.limit, only=messages[name]) for name in names]
    peers = open_peers(chosen, "enrichment-peers.json", fresh=False)
    modes = chosen.modes.split(",")
    models: Sequence[Model] = ("encoder", "light") if "light" in modes else ("encoder",)
    results = {
        task.name: measure_set(quality, task, messages[task.name], chosen.half_seed, modes)
        | {"peers": measure_peers(peers, task), "tools": task.tools, "queries": len(task.queries)}
        for task in tasks
    }
    text = table(results, {task.name: quality.weights.has_seen(task, models) for task in tasks})
    if peers:
        text += "\n\n" + peer_table(results)
    (chosen.out / "enrichment.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
