"""Measure the search index by the number of tools, in process and in PostgreSQL.

    python benchmarks/scale.py [--sizes 1000,10000,100000] [--catalog FILE] [--model light] [--postgres URL]

The catalog's tools come first; beyond them tools are synthetic: every combination of an action, an object and
a system has a name, a description and parameters of its own. Time to build the index, time of a whole search
(CPU time of one thread) and memory are measured in a process of their own. Recall is the share of the ten
nearest tools of an exact search that the search in process finds. With `--postgres`, the same vectors are
written to a database with pgvector, where an HNSW index searches them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from measuring.peers import ONE_THREAD, print_progress
from measuring.speed import fresh
from numpy.typing import NDArray

from toolfold import sample_catalog
from toolfold.retrieval.embedding import LightEmbedder
from toolfold.retrieval.index_cache import read_index
from toolfold.retrieval.multilingual import MultilingualEmbedder
from toolfold.retrieval.text import WordTokenizer
from toolfold.retrieval.vectors import Vectors
from toolfold.sources import load_catalog

SIZES = (1_000, 10_000, 50_000, 100_000)
TARGET_MS = 10.0
TARGET_TOOLS = 100_000
NEAREST = 10
BATCH_ROWS = 2_000
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
    """Yield definitions of tools without end, each with another combination of words."""
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
    """Write a catalog of `size` tools: real ones as far as there are any, then synthetic ones."""
    tools = itertools.islice(itertools.chain(real, make_synthetic_tools()), size)
    with file.open("w", encoding="utf-8") as stream:
        for tool in tools:
            stream.write(json.dumps({"type": "function", "function": tool}) + "\n")


def load_real_tools(catalog: Path | None) -> list[dict[str, Any]]:
    """Return the definitions of the catalog; of the sample catalog without one."""
    if catalog is None:
        return [dict(tool.definition()["function"]) for tool in sample_catalog()]
    return [dict(tool.definition()["function"]) for tool in load_catalog(catalog)]


def make_messages(count: int) -> list[str]:
    """Return messages that ask for something which synthetic tools do."""
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
    queries = embed_messages(chosen.model, messages[: chosen.recall_messages])
    exact = find_exact(vectors, queries)
    row |= measure_recall(vectors, queries, exact)
    if chosen.postgres:
        print_progress(f"  {size:,} tools: PostgreSQL")
        row["postgres"] = measure_postgres(chosen.postgres, vectors, queries, exact)
    return row


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


def measure_postgres(
    url: str, vectors: Vectors, queries: Floats, exact: Sequence[set[int]]
) -> dict[str, Any]:
    """Write the vectors to a database, build an HNSW index, and search in it."""
    import psycopg

    rows = vectors.packed.dequantize()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute("DROP TABLE IF EXISTS toolfold_scale")
        connection.execute(f"CREATE TABLE toolfold_scale (id INTEGER, v vector({vectors.width}))".encode())
        before = time.perf_counter()
        with connection.cursor().copy("COPY toolfold_scale (id, v) FROM STDIN") as copy:
            for number, row in enumerate(rows):
                copy.write_row((number, _format_vector(row)))
        written = time.perf_counter() - before
        connection.execute("SET maintenance_work_mem = '1GB'")
        before = time.perf_counter()
        connection.execute("CREATE INDEX ON toolfold_scale USING hnsw (v vector_ip_ops)")
        indexed = time.perf_counter() - before
        connection.execute("SET hnsw.ef_search = 100")
        found, times = [], []
        for query in queries:
            text = _format_vector(query)
            before = time.perf_counter()
            hits = connection.execute(
                "SELECT id FROM toolfold_scale ORDER BY v <#> %s::vector LIMIT %s", (text, NEAREST)
            ).fetchall()
            times.append((time.perf_counter() - before) * 1000)
            found.append({int(hit[0]) for hit in hits})
        connection.execute("DROP TABLE toolfold_scale")
    return {
        "write_s": round(written, 1),
        "build_s": round(indexed, 1),
        "query_p50_ms": round(median(times), 2),
        "recall": compute_recall(found, exact),
    }


def _format_vector(row: Floats) -> str:
    return f"[{','.join(f'{number:.5g}' for number in row)}]"


def format_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the figures as a Markdown table."""
    lines = [
        "| tools | of these real | build | query p50 / p99 | vectors alone | recall@10 | memory |"
        " HNSW in PostgreSQL: build, query, recall |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        other = row.get("postgres")
        shared = f"{other['build_s']} s, {other['query_p50_ms']} ms, {other['recall']}" if other else "–"
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
    parser.add_argument("--postgres", metavar="URL", help="database in which a table may be created")
    parser.add_argument("--json", type=Path, help="file for all figures")
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


if __name__ == "__main__":
    main()
