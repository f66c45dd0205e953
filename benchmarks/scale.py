"""Measure the search index by the number of tools, in process and in PostgreSQL.

    python benchmarks/scale.py [--sizes 1000,10000,100000] [--data DIR] [--model light] [--postgres URL]
        [--json FILE] [--plot FILE]

Real tools come first, in a fixed random order: those of all catalogs in DIR (`*/catalog.jsonl[.gz]`), or the
sample catalog. Beyond them tools are synthetic, as `measuring/variants.py` describes. Messages are those of
the same data sets. Time to build the index, time of a whole search and memory are measured in a process of
their own. Recall is the share of the ten nearest tools of an exact search that the search in process finds; a
tool as near as the tenth counts. With `--postgres`, the same tools are published in a database with pgvector
and searched there, as by a replica with `retrieval.index: database`.

The JSON file is written after each size; figures in it that are not measured now are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from measuring.peers import ONE_THREAD, print_progress
from measuring.plots import draw_scale
from measuring.sets import Sets, distinct
from measuring.speed import fresh, make_path
from numpy.typing import NDArray

from toolfold.selection.retrieval.embedding import LightEmbedder
from toolfold.selection.retrieval.multilingual import MultilingualEmbedder
from toolfold.selection.retrieval.vector_store import FILE_NAME, VECTOR_DIRECTORY
from toolfold.selection.retrieval.vectors import PackedVectors, Vectors

DATABASE_SEARCH = Path(__file__).with_name("measuring") / "database_search.py"
SIZES = (1_000, 10_000, 100_000, 1_000_000)
TARGET_MS = 10.0
TARGET_TOOLS = 100_000
NEAREST = 10
SEED = 22
BLOCK_ROWS = 50_000
EPSILON = 1e-5
Floats = NDArray[np.float32]
Row = dict[str, Any]


def load_real_tools(sets: Sets) -> list[Any]:
    """Return the definitions of all catalogs, each name once, in a fixed random order."""
    rows = distinct(row for name in sets.catalogs() for row in sets.rows(name))
    random.Random(SEED).shuffle(rows)
    return rows


def measure_size(
    size: int, sets: Sets, real: Sequence[Any], chosen: argparse.Namespace, messages: Sequence[str]
) -> Row:
    """Return all figures for one number of tools."""
    catalog = sets.write("scale", real[:size])
    row: Row = {"tools": size, "real": min(size, len(real)), "load_average": round(os.getloadavg()[0], 1)}
    if chosen.postgres:
        print_progress(f"{size:,} tools: PostgreSQL")
        row["postgres"] = measure_database(catalog, size, chosen, messages)
    if not chosen.no_memory:
        row |= measure_memory(catalog, size, chosen, messages)
    return row


def measure_memory(catalog: Path, size: int, chosen: argparse.Namespace, messages: Sequence[str]) -> Row:
    """Return the figures of the index in the memory of a process."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        print_progress(f"{size:,} tools: building the index in memory")
        built = fresh(catalog, home, chosen.model, messages[:1], size=size)
        print_progress(f"{size:,} tools: searching in memory")
        found = fresh(catalog, home, chosen.model, messages, size=size)
        vectors = load_vectors(home, chosen.model)
    queries = embed_messages(chosen.model, messages[: chosen.recall_messages])
    return {
        "build_s": round(built["first"]["wall"] / 1000, 1),
        "build_cpu_s": round(built["first"]["cpu"] / 1000, 1),
        "load_s": round(found["first"]["wall"] / 1000, 2),
        "load_cpu_s": round(found["first"]["cpu"] / 1000, 2),
        "query_p50_ms": round(median(found["ms"]), 2),
        "query_p99_ms": round(float(np.percentile(found["ms"], 99)), 2),
        "query_wall_p50_ms": round(median(found["wall_ms"]), 2),
        "query_wall_p99_ms": round(float(np.percentile(found["wall_ms"], 99)), 2),
        "memory_mb": found["memory_mb"],
        "memory_of_catalog_mb": found["memory_of_catalog_mb"],
        "memory_to_build_mb": built["memory_mb"],
    } | measure_recall(vectors, queries)


def load_vectors(home: Path, model: str) -> Vectors:
    """Return the vectors that the search process has stored."""
    db = sqlite3.connect(home / "cache" / VECTOR_DIRECTORY / FILE_NAME)
    rows = db.execute("SELECT numbers, scale FROM vectors ORDER BY key").fetchall()
    db.close()
    assert rows, model
    numbers = np.frombuffer(b"".join(row[0] for row in rows), np.int8).reshape(len(rows), -1)
    return Vectors.of(PackedVectors(numbers, np.array([row[1] for row in rows], np.float32)))


def embed_messages(model: str, messages: Sequence[str]) -> Floats:
    embedder = LightEmbedder() if model == "light" else MultilingualEmbedder()
    return embedder.embed(messages, "query")


def measure_recall(vectors: Vectors, queries: Floats) -> Row:
    """Return how many of the nearest tools the vector search finds, and its time without the encoder."""
    nothing, no_words = np.zeros(0, np.int64), np.zeros(vectors.size, np.float32)
    bounds, hits, times = find_bounds(vectors, queries), 0, []
    for query, bound in zip(queries, bounds, strict=True):
        before = time.process_time()
        scores = vectors.similarities(query, nothing, no_words)
        times.append((time.process_time() - before) * 1000)
        found = np.argpartition(scores, -NEAREST)[-NEAREST:]
        hits += int((vectors.packed.similarities(found, query) >= bound - EPSILON).sum())
    return {
        "recall": round(hits / (NEAREST * len(queries)), 4),
        "vectors_p50_ms": round(median(times), 2),
    }


def find_bounds(vectors: Vectors, queries: Floats) -> Floats:
    """Return the similarity of each query's tenth nearest tool, by comparing it with every tool."""
    best: Floats = np.full((len(queries), NEAREST), -np.inf, np.float32)
    for start in range(0, vectors.size, BLOCK_ROWS):
        rows = vectors.packed.take_rows(np.arange(start, min(start + BLOCK_ROWS, vectors.size))).dequantize()
        both = np.concatenate((best, queries @ rows.T), axis=1)
        best = np.partition(both, -NEAREST, axis=1)[:, -NEAREST:]
    bounds: Floats = best.min(axis=1)
    return bounds


def measure_database(catalog: Path, size: int, chosen: argparse.Namespace, messages: Sequence[str]) -> Row:
    """Publish the tools in an empty database and search the database, in a process of its own."""
    import psycopg

    with psycopg.connect(chosen.postgres, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS toolfold CASCADE")
    job = {
        "catalog": str(catalog),
        "size": size,
        "url": chosen.postgres,
        "model": chosen.model,
        "messages": list(messages),
        "recall_messages": chosen.recall_messages,
    }
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "job.json"), Path(folder, "answer.json")
        asked.write_text(json.dumps(job))
        subprocess.run(
            [sys.executable, str(DATABASE_SEARCH), str(asked), str(answered)],
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": make_path(Path(__file__).parent)},
            check=True,
        )
        answer: Row = json.loads(answered.read_text())
        return answer


def format_tables(rows: Sequence[Row]) -> str:
    """Return the figures as two Markdown tables, of the search in memory and in PostgreSQL."""
    lines = [
        "| tools | of these real | build: CPU, wall | search p50 / p99 | vectors alone | recall@10 |"
        " memory of the process | without the index | while building |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['tools']:,} | {row['real']:,} | {row['build_cpu_s']} s, {row['build_s']} s |"
        f" {row['query_p50_ms']} / {row['query_p99_ms']} ms | {row['vectors_p50_ms']} ms | {row['recall']} |"
        f" {row['memory_mb']:,.0f} MB | {row['memory_of_catalog_mb']:,.0f} MB |"
        f" {row['memory_to_build_mb']:,.0f} MB |"
        for row in rows
        if "build_s" in row
    ]
    lines += [
        "",
        "| tools | publish: wall | CPU of replica + database | index of vectors |"
        " search: replica + database | 1,000 tools granted | a tenth of the servers | every tenth tool |"
        " recall@10 | memory of the replica | tables with indexes |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if other := row.get("postgres"):
            searches = " | ".join(
                f"{other[f'{name}_cpu_p50_ms']} + {other[f'{name}_database_cpu_ms']} ms"
                for name in ("all", "few", "servers", "tenth")
            )
            lines.append(
                f"| {row['tools']:,} | {other['publish_s']} s | {other['publish_cpu_s']} +"
                f" {other['publish_database_cpu_s']} s | {other['steps_s']['build_index']} s | {searches} |"
                f" {other['recall']} | {other['memory_mb']:,.0f} MB |"
                f" {other['vectors_mb'] + other['words_mb']:,} MB |"
            )
    return "\n".join(lines)


def merge_rows(file: Path | None, row: Row) -> list[Row]:
    """Return the rows in a result file, with a new one added or merged into the row of its size."""
    known = json.loads(file.read_text())["sizes"] if file and file.exists() else []
    by_size = {each["tools"]: each for each in known}
    by_size[row["tools"]] = by_size.get(row["tools"], {}) | row
    return [by_size[size] for size in sorted(by_size)]


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of tools")
    parser.add_argument("--data", type=Path, help="directory of data sets with real tools and messages")
    parser.add_argument("--model", choices=("light", "embedded"), default="light", help="embedding model")
    parser.add_argument("--messages", type=int, default=200, help="messages that are searched for")
    parser.add_argument("--recall-messages", type=int, default=100, help="messages of the comparison")
    parser.add_argument("--postgres", metavar="URL", help="empty database; its schema toolfold is deleted")
    parser.add_argument("--no-memory", action="store_true", help="measure PostgreSQL only")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--plot", type=Path, help="SVG file for a plot")
    return parser.parse_args(arguments)


def main() -> None:
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})
    chosen = parse_options(sys.argv[1:])
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        sets = Sets(chosen.data, Path(folder))
        real = load_real_tools(sets)
        texts = [query.text for query in sets.messages(max(SIZES), chosen.messages)]
        for size in sorted(map(int, chosen.sizes.split(","))):
            row = measure_size(size, sets, real, chosen, texts)
            print_progress(json.dumps(row))
            if chosen.json:
                rows = merge_rows(chosen.json, row)
                chosen.json.write_text(
                    json.dumps({"model": chosen.model, "cores": os.cpu_count(), "sizes": rows}, indent=1)
                    + "\n",
                    encoding="utf-8",
                )
            else:
                rows.append(row)
    print(format_tables(rows))
    for row in rows:
        if row["tools"] == TARGET_TOOLS and "query_p50_ms" in row:
            result = "met" if row["query_p50_ms"] <= TARGET_MS else "not met"
            print(f"\nTarget: at most {TARGET_MS:g} ms at {TARGET_TOOLS:,} tools: {result}")
    if chosen.plot:
        draw_scale(rows, chosen.plot)


if __name__ == "__main__":
    main()
