"""Measure what learning from use adds to retrieval: R@5 on unseen messages by the share of messages learned.

    python benchmarks/learning.py                                # the sample catalog
    python benchmarks/learning.py --data DIR [--folds DIR] [--sets A,B]

The messages of a set are split at random: a part is measured, and growing shares of the rest are learned
first, each message for its tool, as if one client had called that tool after it. "Another client" measures
the same messages for a client that has not used any tool. Sets that the shipped weights were trained on are
marked with *: the models know the measured messages, which hides most of what can be learned.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from measuring.peers import ONE_THREAD, print_progress
from measuring.quality import Quality, snapshot
from measuring.scores import DEEPEST, figures
from measuring.sets import Sets, Task
from measuring.weights import Weights

from toolfold.core.registry import Snapshot
from toolfold.selection.retrieval.learned_messages import LearnedMessages
from toolfold.selection.retrieval.learned_store import LearnedStore
from toolfold.selection.retrieval.ranking_metrics import Query
from toolfold.selection.retrieval.tool_search import Retriever

SHARES = (0.0, 0.1, 0.25, 0.5, 1.0)
SEED = 11
USER, STRANGER = "user", "stranger"


def split_messages(task: Task, measured: int) -> tuple[list[Query], list[Query]]:
    """Split the messages at random into those to measure and those that can be learned."""
    queries = list(task.queries)
    random.Random(SEED).shuffle(queries)
    count = min(measured, len(queries) // 2)
    return queries[:count], [query for query in queries[count:] if len(query.gold) == 1]


def measure_set(quality: Quality, task: Task, measured: int) -> dict[str, Any]:
    """Return the metrics of a data set, by the share of the remaining messages that were learned."""
    tools, (test, rest) = snapshot(task.catalog), split_messages(task, measured)
    told: dict[str, Any] = {"measured": len(test), "learnable": len(rest), "tools": len(tools)}
    with tempfile.TemporaryDirectory() as directory, closing(LearnedStore(Path(directory))) as store:
        learned = LearnedMessages(store)
        (part, *_) = quality.weights.parts(task)
        retriever = quality.retriever(part.weights, task.name, "encoder", learned=learned)
        done = 0
        for share in SHARES:
            print_progress(f"{task.name}: {share:.0%} of the messages learned")
            wanted = int(share * len(rest))
            learn(retriever, tools, rest[done:wanted])
            done = max(done, wanted)
            told[str(share)] = {
                client: search(retriever, tools, test, client) for client in (USER, STRANGER)
            } | {"stored": len(store.load())}
    return told


def learn(retriever: Retriever, tools: Snapshot, queries: Sequence[Query]) -> None:
    for query in queries:
        if tool := tools.get(query.gold[0]):
            retriever.learn(tools, tool, [query.text], client=USER, origin="message")


def search(retriever: Retriever, tools: Snapshot, queries: Sequence[Query], client: str) -> dict[str, Any]:
    ranked = {}
    for query in queries:
        hits = retriever.find(tools, query.text, mode="hybrid", limit=DEEPEST, client=client)
        ranked[str(query.id)] = [hit.name for hit in hits]
    return figures(queries, ranked)


def table(results: Mapping[str, Mapping[str, Any]], seen: Mapping[str, bool]) -> str:
    """Return R@5 (R@1) of every data set, by the share of messages learned, as a Markdown table."""
    columns = ["tools", *(f"{share:.0%}" for share in SHARES), "another client"]
    lines = [f"| set | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, row in results.items():
        cells = [f"{row['tools']:,}", *(_pair(row[str(share)][USER]) for share in SHARES)]
        cells.append(_pair(row[str(SHARES[-1])][STRANGER]))
        lines.append(f"| {name}{'*' if seen[name] else ''} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _pair(row: Mapping[str, Any]) -> str:
    return f"{_score(row['R@5'])} ({_score(row['R@1'])})"


def _score(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def options(arguments: Sequence[str]) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--data", type=Path, help="directory of data sets; default: the sample catalog")
    parser.add_argument("--sets", help="comma-separated names of data sets; default: all")
    parser.add_argument(
        "--measured", type=int, default=200, help="maximum number of measured messages per set"
    )
    parser.add_argument("--limit", type=int, default=1_500, help="maximum number of messages per set")
    parser.add_argument("--folds", type=Path, help="directory of weights trained without the measured sets")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"), help="output directory")
    parser.add_argument("--json", type=Path, help="write the whole result to this file")
    return parser.parse_args(arguments)


def main() -> None:
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})
    chosen = options(sys.argv[1:])
    chosen.out.mkdir(parents=True, exist_ok=True)
    sets = Sets(chosen.data, chosen.out / "catalogs")
    quality = Quality(Weights(chosen.folds, chosen.out / "vectors"))
    tasks = [
        sets.task(name, chosen.limit) for name in (chosen.sets.split(",") if chosen.sets else sets.names())
    ]
    results = {task.name: measure_set(quality, task, chosen.measured) for task in tasks}
    text = table(results, {task.name: quality.weights.has_seen(task) for task in tasks})
    (chosen.out / "learning.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
