"""Measure the search index by the number of tools, in process and in PostgreSQL.

    python benchmarks/scale.py [--sizes 1000,10000,100000] [--catalog FILE] [--model light] [--postgres URL]
        [--json FILE] [--plot FILE]

The catalog's tools come first; beyond them tools are synthetic: every combination of an action, an object and
a system has a name, a description and parameters of its own. Time to build the index, time of a whole search
(CPU time of one thread) and memory are measured in a process of their own. Recall is the share of the ten
nearest tools of an exact search that the search in process finds. With `--postgres`, the same tools are
published in a database with pgvector and searched there, as by a replica with `retrieval.index: database`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from measuring.peers import ONE_THREAD, print_progress
from measuring.plots import draw_scale
from measuring.speed import fresh
from numpy.typing import NDArray

from toolfold import sample_catalog
from toolfold.retrieval.embedding import LightEmbedder
from toolfold.retrieval.index_cache import read_index
from toolfold.retrieval.multilingual import MultilingualEmbedder
from toolfold.retrieval.text import WordTokenizer
from toolfold.retrieval.vectors import Vectors
from toolfold.sources.catalog import load_catalog

DATABASE_SEARCH = Path(__file__).with_name("measuring") / "database_search.py"
SIZES = (1_000, 10_000, 100_000, 1_000_000)
TARGET_MS = 10.0
TARGET_TOOLS = 100_000
NEAREST = 10
SEED = 22
ACTIONS = (
    "list", "read", "create", "update", "archive", "export", "share", "tag", "approve", "cancel", "assign",
    "compare", "convert", "schedule", "verify", "restore", "merge", "publish", "translate", "summarize",
)  # fmt: skip
OBJECTS = (
    "invoice", "parcel", "ticket", "report", "meeting", "branch", "photo", "order", "contract", "payment",
    "customer", "employee", "shipment", "sensor", "recipe", "playlist", "flight", "hotel", "policy", "claim",
    "dashboard", "database", "container", "certificate", "campaign", "survey", "lesson", "exam", "patient",
    "prescription", "vehicle", "route", "warehouse", "budget", "forecast", "article", "comment", "channel",
    "subscription", "refund",
)  # fmt: skip
PLACES = (
    "bank", "shop", "clinic", "school", "airline", "library", "factory", "city", "farm", "studio", "museum",
    "port", "lab", "agency", "union",
)  # fmt: skip
Floats = NDArray[np.float32]


def make_synthetic_tools() -> Iterator[dict[str, Any]]:
    """Yield an endless series of tool definitions, each with a different combination of words."""
    combinations = list(itertools.product(ACTIONS, OBJECTS, PLACES))
    random.Random(SEED).shuffle(combinations)
    for edition in itertools.count(1):
        for action, thing, place in combinations:
            product = f"{place}{edition}"
            yield {
                "name": f"{product}_{action}_{thing}",
                "description": f"{action.title()} a {thing} in the {place} system, edition {edition}.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        f"{thing}_id": {"type": "string", "description": f"Identifier of the {thing}."},
                        "note": {"type": "string", "description": f"Reason to {action} it."},
                    },
                    "required": [f"{thing}_id"],
                },
            }


def write_catalog(file: Path, size: int, real: Sequence[dict[str, Any]]) -> None:
    """Write a catalog of `size` tools: all real ones first, then as many synthetic ones as necessary."""
    tools = itertools.islice(itertools.chain(real, make_synthetic_tools()), size)
    with file.open("w", encoding="utf-8") as stream:
        for tool in tools:
            stream.write(json.dumps({"type": "function", "function": tool}) + "\n")


def load_real_tools(catalog: Path | None) -> list[dict[str, Any]]:
    """Return the tool definitions of a catalog; those of the sample catalog if none is given."""
    if catalog is None:
        return [dict(tool.definition()["function"]) for tool in sample_catalog()]
    return [dict(tool.definition()["function"]) for tool in load_catalog(catalog)]


def make_messages(count: int) -> list[str]:
    """Return messages that ask for something that a synthetic tool does."""
    rng = random.Random(SEED)
    forms = ("please {} the {} of our {}", "I need to {} a {} at the {}", "can you {} my {} in the {}?")
    return [
        rng.choice(forms).format(rng.choice(ACTIONS), rng.choice(OBJECTS), rng.choice(PLACES))
        for _ in range(count)
    ]


def measure_size(
    size: int, real: Sequence[dict[str, Any]], chosen: argparse.Namespace, messages: Sequence[str]
) -> dict[str, Any]:
    """Return all figures for one number of tools."""
    with tempfile.TemporaryDirectory() as folder:
        catalog, home = Path(folder, "catalog.jsonl"), Path(folder, "home")
        write_catalog(catalog, size, real)
        print_progress(f"  {size:,} tools: building the index")
        built = fresh(catalog, home, chosen.model, messages[:1])
        print_progress(f"  {size:,} tools: searching")
        found = fresh(catalog, home, chosen.model, messages)
        row = {
            "tools": size,
            "real": min(size, len(real)),
            "build_s": round(built["first"]["wall"] / 1000, 1),
            "build_cpu_s": round(built["first"]["cpu"] / 1000, 1),
            "load_ms": found["first"]["cpu"],
            "query_p50_ms": round(median(found["ms"]), 2),
            "query_p99_ms": round(float(np.percentile(found["ms"], 99)), 2),
            "memory_mb": found["memory_mb"],
            "memory_of_catalog_mb": found["memory_of_catalog_mb"],
        }
        vectors = load_vectors(home, chosen.model)
        if chosen.postgres:
            print_progress(f"  {size:,} tools: PostgreSQL")
            row["postgres"] = measure_database(
                catalog, chosen.postgres, chosen.model, messages, chosen.recall_messages
            )
    queries = embed_messages(chosen.model, messages[: chosen.recall_messages])
    exact = find_exact(vectors, queries)
    return row | measure_recall(vectors, queries, exact)


def load_vectors(home: Path, model: str) -> Vectors:
    """Return the vectors that the search process has stored."""
    file = max((home / "cache" / "index").glob("*.npz"), key=lambda each: each.stat().st_size)
    with np.load(file) as stored:
        name = json.loads(stored["about"].tobytes())["model"]
    _, _, vectors = read_index(file, name, WordTokenizer())
    assert vectors is not None, model
    return vectors


def embed_messages(model: str, messages: Sequence[str]) -> Floats:
    embedder = LightEmbedder() if model == "light" else MultilingualEmbedder()
    return embedder.embed(messages, "query")


def find_exact(vectors: Vectors, queries: Floats) -> list[set[int]]:
    """Return the nearest tools of each query by comparing it with every tool."""
    rows = vectors.packed.dequantize()
    return [set(np.argsort(rows @ query)[-NEAREST:].tolist()) for query in queries]


def measure_recall(vectors: Vectors, queries: Floats, exact: Sequence[set[int]]) -> dict[str, Any]:
    """Return how many of the nearest tools the vector search finds, and its time without the encoder."""
    nothing, no_words = np.zeros(0, np.int64), np.zeros(vectors.size, np.float32)
    found, times = [], []
    for query in queries:
        before = time.process_time()
        scores = vectors.similarities(query, nothing, no_words)
        times.append((time.process_time() - before) * 1000)
        found.append(set(np.argsort(scores)[-NEAREST:].tolist()))
    return {"recall": compute_recall(found, exact), "vectors_p50_ms": round(median(times), 2)}


def compute_recall(found: Sequence[set[int]], exact: Sequence[set[int]]) -> float:
    hits = sum(len(one & other) for one, other in zip(found, exact, strict=True))
    return round(hits / (NEAREST * len(exact)), 4)


def measure_database(
    catalog: Path, url: str, model: str, messages: Sequence[str], recall_messages: int
) -> dict[str, Any]:
    """Publish the catalog in an empty database and search the database, in a process of its own."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS toolfold CASCADE")
    job = {"catalog": str(catalog), "url": url, "model": model, "messages": list(messages)}
    asked, answered = catalog.with_name("job.json"), catalog.with_name("answer.json")
    asked.write_text(json.dumps(job | {"recall_messages": recall_messages}))
    folder = str(Path(__file__).parent)
    subprocess.run(
        [sys.executable, str(DATABASE_SEARCH), str(asked), str(answered)],
        env={**os.environ, **ONE_THREAD, "PYTHONPATH": folder},
        check=True,
    )
    answer: dict[str, Any] = json.loads(answered.read_text())
    return answer


def format_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the figures as a Markdown table."""
    lines = [
        "| tools | of these real | build | query p50 / p99 | vectors alone | recall@10 | memory |"
        " PostgreSQL: publish | query: replica + database | recall@10 | memory of the replica |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        other = row.get("postgres")
        shared = "– | – | – | –"
        if other:
            shared = (
                f"{other['publish_s']} s | {other['all_cpu_p50_ms']} + {other['all_database_cpu_ms']} ms |"
                f" {other['recall']} | {other['memory_mb']:.0f} MB"
            )
        lines.append(
            f"| {row['tools']:,} | {row['real']:,} | {row['build_cpu_s']} s | {row['query_p50_ms']} /"
            f" {row['query_p99_ms']} ms | {row['vectors_p50_ms']} ms | {row['recall']} |"
            f" {row['memory_mb']:.0f} MB | {shared} |"
        )
    return "\n".join(lines)


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of tools")
    parser.add_argument("--catalog", type=Path, help="file with real tools, one JSON definition per line")
    parser.add_argument("--model", choices=("light", "embedded"), default="light", help="embedding model")
    parser.add_argument("--messages", type=int, default=200, help="messages that are searched for")
    parser.add_argument("--recall-messages", type=int, default=100, help="messages of the comparison")
    parser.add_argument("--postgres", metavar="URL", help="empty database; its schema toolfold is deleted")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--plot", type=Path, help="SVG file for a plot")
    return parser.parse_args(arguments)


def main() -> None:
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})
    chosen = parse_options(sys.argv[1:])
    real, messages = load_real_tools(chosen.catalog), make_messages(chosen.messages)
    rows = []
    for size in sorted(map(int, chosen.sizes.split(","))):
        rows.append(measure_size(size, real, chosen, messages))
        print_progress(json.dumps(rows[-1]))
    print(format_table(rows))
    for row in rows:
        if row["tools"] == TARGET_TOOLS:
            result = "met" if row["query_p50_ms"] <= TARGET_MS else "not met"
            print(f"\nTarget: at most {TARGET_MS:g} ms at {TARGET_TOOLS:,} tools: {result}")
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if chosen.plot:
        draw_scale(rows, chosen.plot)


if __name__ == "__main__":
    main()
