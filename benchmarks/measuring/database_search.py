"""Measure the search index in PostgreSQL in its own process: time to publish tools, searches, memory.

    python database_search.py JOB ANSWER

Both are JSON files. Tools are published and searched as a replica with `retrieval.index: database` does it.
Recall is the share of the ten nearest tools, by a comparison with every vector, that are candidates; a tool
as near as the tenth counts, too. Times are wall-clock times, and CPU times of this process and of those of
the database, if they run on this machine.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from measuring.fresh import peak_memory
from measuring.variants import load_tools
from toolfold.core.registry import Snapshot
from toolfold.selection.retrieval.candidate_queries import (
    NearestQuery,
    ScopeFilter,
    VectorTable,
    find_nearest_ids,
)
from toolfold.selection.retrieval.database_index import (
    CANDIDATES,
    RETRY_INTERVAL_S,
    DatabaseIndex,
    IndexUnavailable,
)
from toolfold.selection.retrieval.embedding import Embedder, LightEmbedder
from toolfold.selection.retrieval.multilingual import MultilingualEmbedder
from toolfold.selection.retrieval.need import NeedClassifier
from toolfold.selection.retrieval.ranking import Ranker
from toolfold.selection.retrieval.shared_catalog import EF_SEARCH, MAX_SCANNED, SharedCatalog
from toolfold.selection.retrieval.shared_vectors import SharedVectors
from toolfold.selection.retrieval.tool_search import Retriever
from toolfold.state.database import Database, open_database

NEAREST = 10
READ_STEP = 20_000
WARM_UP_TIMEOUT_S = 120.0
EPSILON = 1e-5
Answer = dict[str, Any]


def run(job: Answer) -> Answer:
    """Publish the tools of a catalog, search for messages, and return all figures."""
    tools = Snapshot(load_tools(Path(job["catalog"]), job.get("size")), 0)
    answer: Answer = {"tools": len(tools), "memory_of_catalog_mb": peak_memory()}
    light = job["model"] == "light"
    embedder: Embedder = LightEmbedder() if light else MultilingualEmbedder()
    database = open_database(job["url"])
    assert database is not None
    shared = SharedVectors(database)
    index = DatabaseIndex(database, embedder, shared, place="database")
    retriever = Retriever(
        embedder,
        lambda: Ranker.shipped("light" if light else "encoder"),
        shared,
        need_classifier=lambda: NeedClassifier.shipped("light" if light else "encoder"),
        database_index=index,
    )
    answer |= measure_publishing(retriever, database, tools)
    answer |= measure_searches(retriever, database, tools, job["messages"], None, "all")
    names = sorted(tools)
    of_servers = [name for toolset in sorted(tools.toolsets)[::10] for name in tools.toolsets[toolset]]
    for name, granted in (("servers", of_servers), ("tenth", names[::10]), ("few", names[:1_000])):
        answer |= measure_searches(retriever, database, tools, job["messages"], frozenset(granted), name)
    answer["memory_mb"] = peak_memory()
    catalog = SharedCatalog(database, index.words)
    table = catalog.find_vectors(embedder.name)
    assert table is not None
    vectors = embedder.embed(job["messages"][: job["recall_messages"]], "query")
    answer |= measure_recall(database, catalog, table, vectors)
    retriever.close()
    database.close()
    return answer


def measure_publishing(retriever: Retriever, database: Database, tools: Snapshot) -> Answer:
    """Return wall-clock and CPU times of publishing all tools, and of its steps."""
    steps: dict[str, float] = {}
    with ExitStack() as stack:
        for name in ("add_tools", "build_word_indexes", "add_vectors", "build_index"):
            stack.enter_context(add_up_time(SharedCatalog, name, steps))
        stack.enter_context(add_up_time(DatabaseIndex, "_embed", steps))
        before = time.perf_counter(), time.process_time(), read_database_cpu(database)
        warm_up(retriever, tools, None)
        wall, cpu = time.perf_counter() - before[0], time.process_time() - before[1]
    return {
        "publish_s": round(wall, 1),
        "publish_cpu_s": round(cpu, 1),
        "publish_database_cpu_s": round((read_database_cpu(database) - before[2]) / 1000, 1),
        "steps_s": {name.strip("_"): round(seconds, 1) for name, seconds in steps.items()},
    }


@contextmanager
def add_up_time(owner: type, name: str, steps: dict[str, float]) -> Iterator[None]:
    """Add the wall-clock time of each call of a method to `steps` while the block runs."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def call(*values: Any) -> Any:
        before = time.perf_counter()
        try:
            return method(*values)
        finally:
            steps[name] = steps.get(name, 0.0) + time.perf_counter() - before

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, method)


def measure_searches(
    retriever: Retriever,
    database: Database,
    tools: Snapshot,
    messages: Sequence[str],
    granted: frozenset[str] | None,
    name: str,
) -> Answer:
    """Return wall-clock and CPU times of whole searches, in milliseconds."""
    warm_up(retriever, tools, granted)
    wall, cpu = [], []
    in_database = read_database_cpu(database)
    for message in messages:
        before = time.perf_counter(), time.process_time()
        retriever.answer(tools, message, mode="hybrid", limit=8, granted=granted)
        wall.append((time.perf_counter() - before[0]) * 1000)
        cpu.append((time.process_time() - before[1]) * 1000)
    return {
        f"{name}_p50_ms": round(median(wall), 1),
        f"{name}_p99_ms": round(float(np.percentile(wall, 99)), 1),
        f"{name}_cpu_p50_ms": round(median(cpu), 1),
        f"{name}_database_cpu_ms": round((read_database_cpu(database) - in_database) / len(messages), 1),
    }


def warm_up(retriever: Retriever, tools: Snapshot, granted: frozenset[str] | None) -> None:
    """Search once; the first searches may reach their time limit while the index is read from the disk."""
    end = time.monotonic() + WARM_UP_TIMEOUT_S
    while True:
        try:
            retriever.find(tools, "warm up", mode="hybrid", limit=1, granted=granted)
            return
        except IndexUnavailable:
            if time.monotonic() > end:
                raise
            time.sleep(RETRY_INTERVAL_S)


def read_database_cpu(database: Database) -> float:
    """Return the CPU milliseconds that the server processes of this database have used so far."""
    rows = database.query("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")
    ticks = 0
    for row in rows:
        status = Path(f"/proc/{row['pid']}/stat")
        if status.exists():
            ticks += sum(map(int, status.read_text().rpartition(")")[2].split()[11:13]))
    return 1000 * ticks / os.sysconf("SC_CLK_TCK")


def measure_recall(database: Database, catalog: SharedCatalog, table: VectorTable, queries: Any) -> Answer:
    """Return the recall and the search times of the vector index alone, and the size of the tables."""
    rows = database.query(f"SELECT count(*) AS n, min(tool) AS first, max(tool) AS last FROM {table.name}")
    best: list[list[tuple[float, int]]] = [[] for _ in queries]
    for start in range(rows[0]["first"], rows[0]["last"] + 1, READ_STEP):
        ids, vectors = read_block(database, table, start)
        if not len(ids):
            continue
        scores = queries @ vectors.T
        for number, row in enumerate(scores):
            top = np.argpartition(row, -min(NEAREST, len(row)))[-NEAREST:]
            best[number] = sorted([*best[number], *((float(row[t]), int(ids[t])) for t in top)])[-NEAREST:]
    toolsets = database.query(f"SELECT DISTINCT toolset FROM {table.name}")
    none = np.zeros(0, np.int64)
    scope = ScopeFilter.of_toolsets(np.array([row["toolset"] for row in toolsets]), none, none)
    found, times = [], []
    for query in queries:
        before = time.perf_counter()
        found.append(find_nearest(database, table, query, scope))
        times.append((time.perf_counter() - before) * 1000)
    hits = 0
    for exact, ids, query in zip(best, found, queries, strict=True):
        near = catalog.read_vectors(table, ids) @ query >= exact[0][0] - EPSILON
        hits += min(NEAREST, int(near.sum()))
    sizes = database.query(
        "SELECT pg_total_relation_size(%s::regclass) AS vectors, pg_total_relation_size('catalog') AS words",
        (table.name,),
    )[0]
    return {
        "recall": round(hits / (NEAREST * len(found)), 4),
        "nearest_p50_ms": round(median(times), 1),
        "vectors_mb": sizes["vectors"] >> 20,
        "words_mb": sizes["words"] >> 20,
    }


def read_block(database: Database, table: VectorTable, start: int) -> tuple[Any, Any]:
    """Read the ids and vectors of one block of tools, beginning at the id `start`."""

    def read(cursor: Any) -> list[Any]:
        statement = f"SELECT tool, vector FROM {table.name} WHERE tool >= %s AND tool < %s".encode()
        found: list[Any] = cursor.execute(statement, (start, start + READ_STEP), binary=True).fetchall()
        return found

    rows = database.run(read)
    packed = np.frombuffer(b"".join(row["vector"][4:] for row in rows), ">f2")
    return np.array([row["tool"] for row in rows]), packed.astype(np.float32).reshape(len(rows), -1)


def find_nearest(database: Database, table: VectorTable, vector: Any, scope: ScopeFilter) -> list[int]:
    """Return the ids of the tools nearest to a vector, found with the vector index."""

    def find(cursor: Any) -> list[int]:
        settings = {"ef_search": EF_SEARCH, "max_scan_tuples": MAX_SCANNED, "iterative_scan": "relaxed_order"}
        for name, value in settings.items():
            cursor.execute("SELECT set_config(%s, %s, true)", (f"hnsw.{name}", str(value)))
        cursor.execute("SET LOCAL enable_seqscan = off")
        return find_nearest_ids(cursor, table, NearestQuery(vector, CANDIDATES), scope)

    return database.run(find)


def main() -> None:
    logging.basicConfig(format="    %(message)s")
    logging.getLogger("toolfold.selection.retrieval").setLevel(logging.INFO)  # reports progress
    job, answer = map(Path, sys.argv[1:])
    answer.write_text(json.dumps(run(json.loads(job.read_text()))))


if __name__ == "__main__":
    main()
