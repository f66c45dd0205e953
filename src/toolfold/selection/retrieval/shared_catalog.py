"""Search index of tools in the shared database: full-text search and vector search with pgvector.

Finds candidates only, with the queries in `candidate_queries`; they are ranked in the process. Tools and
vectors are passed as parameters, never as part of a statement.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import struct
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from toolfold.core.types import Tool
from toolfold.selection.retrieval.candidate_queries import (
    CandidateQuery,
    FoundRows,
    ScopeFilter,
    VectorTable,
    find_candidate_rows,
)
from toolfold.selection.retrieval.catalog_rows import (
    Ids,
    format_words,
    pack_rows,
    parse_words,
    unpack_vectors,
)
from toolfold.selection.retrieval.exact import list_spellings
from toolfold.selection.retrieval.lexical import compute_field_lengths, compute_term_weights
from toolfold.selection.retrieval.text import WordTokenizer
from toolfold.selection.retrieval.vectors import Matrix
from toolfold.state.database import Database, DatabaseError, RowCursor, clean_text

SEARCH_TIMEOUT_S = 2.0
BATCH_SIZE = 2_000
MAX_SAMPLE_FOR_LENGTHS = 5_000
MAX_HALF_DIMENSIONS = 4_000
"""Most numbers of a vector that pgvector can index with 16 bits each."""
EF_SEARCH = 600
MAX_SCANNED = 40_000
"""Vectors that one search compares before it gives up to find more that are granted."""
HNSW_LINKS, HNSW_BUILD_CANDIDATES = 16, 64
BUILD_TIMEOUT_S = 4 * 3_600
MAX_BUILD_MEMORY_MB = 2_048
WORD_MEMORY_MB = 512
MIN_BULK_TOOLS = 5_000
"""If so many tools are added to an empty table, the indexes of words are built afterwards."""
WORD_INDEXES = {"catalog_by_word": "words", "catalog_by_spelling": "spellings"}
"""Indexes of the table `catalog` by name, with their columns."""
UNUSED_DAYS = 30
_LOCK_KEY = 0x746F6F6C63617461
"""Number of the advisory lock under which tools are added, so that the numbers of tools are in order."""
_PAGE_SIZE = 20_000
_SETTINGS = {
    "statement_timeout": f"{int(SEARCH_TIMEOUT_S * 1000)}ms",
    "enable_seqscan": "off",
    "jit": "off",
    "hnsw.ef_search": str(EF_SEARCH),
    "hnsw.iterative_scan": "relaxed_order",
    "hnsw.max_scan_tuples": str(MAX_SCANNED),
}


@functools.lru_cache(10_000)
def hash_name(name: str) -> int:
    """Return a hash of a toolset's or server's name, for comparing names in SQL statements."""
    digest = hashlib.blake2b(name.encode("utf-8", "backslashreplace"), digest_size=8).digest()
    number: int = struct.unpack(">q", digest)[0]
    return number


class SharedCatalog:
    """Database tables of the search index, with methods to read and write them. Thread-safe."""

    def __init__(self, database: Database, words: WordTokenizer) -> None:
        self._database, self._words = database, words

    def find_ids(self, checksums: Sequence[bytes]) -> dict[bytes, int]:
        """Return the ids of the tools that are already stored, by checksum."""
        found: dict[bytes, int] = {}
        for start in range(0, len(checksums), 2 * BATCH_SIZE):
            part = list(checksums[start : start + 2 * BATCH_SIZE])
            rows = self._database.query("SELECT id, checksum FROM catalog WHERE checksum = ANY(%s)", (part,))
            found |= {row["checksum"]: row["id"] for row in rows}
        return found

    def prepare_bulk_load(self, tools: Sequence[Tool], missing: int) -> None:
        """Prepare the tables for storing tools; `missing` is the number of tools that are not stored yet.

        The average lengths of text fields are stored once, so that all replicas compute comparable weights.
        If there are many tools and none is stored, the indexes of words are removed:
        `build_word_indexes` builds them in a fraction of the time that updating them for each tool takes.
        """
        sample = tools[:: max(1, len(tools) // MAX_SAMPLE_FOR_LENGTHS)]
        lengths = {} if self._read_lengths() else compute_field_lengths(sample, self._words)

        def write(cursor: RowCursor) -> None:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK_KEY,))
            if lengths and cursor.execute("SELECT 1 FROM catalog_fields LIMIT 1").fetchone() is None:
                cursor.executemany("INSERT INTO catalog_fields VALUES (%s, %s)", list(lengths.items()))
            if (
                missing >= MIN_BULK_TOOLS
                and cursor.execute("SELECT 1 FROM catalog LIMIT 1").fetchone() is None
            ):
                for name in WORD_INDEXES:
                    cursor.execute(f"DROP INDEX IF EXISTS {name}".encode())

        self._database.run(write)

    def add_tools(self, tools: Sequence[Tool], checksums: Sequence[bytes]) -> dict[bytes, int]:
        """Store at most BATCH_SIZE tools and return their ids.

        Call `prepare_bulk_load` before the first batch and `build_word_indexes` after the last.
        """
        weights = compute_term_weights(tools, self._words, self._read_lengths())
        by_checksum = {
            checksum: (tool, each) for tool, checksum, each in zip(tools, checksums, weights, strict=True)
        }

        def insert(cursor: RowCursor) -> None:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK_KEY,))
            stored = cursor.execute(
                "SELECT checksum FROM catalog WHERE checksum = ANY(%s)", (list(checksums),)
            )
            known = {row["checksum"] for row in stored}
            new = sorted(by_checksum.keys() - known)
            with cursor.copy(
                "COPY catalog (checksum, name, toolset, server, spellings, words) FROM STDIN"
            ) as rows:
                for checksum in new:
                    rows.write_row(_make_row(checksum, *by_checksum[checksum]))
            counts = Counter(itertools.chain.from_iterable(by_checksum[checksum][1] for checksum in new))
            counts[""] = len(new)  # the number of all tools
            _add_counts(cursor, counts)
            cursor.execute(
                "INSERT INTO catalog_uses (tool) SELECT id FROM catalog WHERE checksum = ANY(%s)"
                " ON CONFLICT DO NOTHING",
                (new,),
            )

        self._database.run(insert)
        return self.find_ids(checksums)

    def build_word_indexes(self) -> None:
        """Build missing full-text indexes, which `prepare_bulk_load` of any replica may have dropped.

        Also updates the statistics of the tables, without which the database would choose slow query plans.
        """

        def build(cursor: RowCursor) -> None:
            _allow_long_work(cursor)
            # Replicas that start together would otherwise wait for each other's locks: a deadlock.
            cursor.execute(
                "SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (_LOCK_KEY & 0x7FFFFFFF, "catalog words")
            )
            cursor.execute("SELECT set_config('maintenance_work_mem', %s, true)", (f"{WORD_MEMORY_MB}MB",))
            for name, column in WORD_INDEXES.items():
                cursor.execute(
                    f"CREATE INDEX IF NOT EXISTS {name} ON catalog USING gin ({column})"
                    " WITH (fastupdate = off)".encode()
                )

        def analyze(cursor: RowCursor) -> None:
            _allow_long_work(cursor)
            cursor.execute("ANALYZE catalog")
            cursor.execute("ANALYZE catalog_terms")

        self._database.run(build)
        self._database.run(analyze)  # in another transaction, which does not hold the locks of `build`

    def has_word_indexes(self) -> bool:
        """Return True if the full-text indexes exist."""
        rows = self._database.query(
            "SELECT 1 AS one FROM unnest(%s::text[]) AS name WHERE to_regclass(name) IS NOT NULL",
            (list(WORD_INDEXES),),
        )
        return len(rows) == len(WORD_INDEXES)

    def note_use(self, ids: Ids) -> None:
        """Record that tools are in use, so that they are not removed."""
        for start in range(0, len(ids), 10 * BATCH_SIZE):
            self._database.execute(
                "UPDATE catalog_uses SET used = CURRENT_DATE"
                " WHERE tool = ANY(%s) AND used < CURRENT_DATE - 1",
                (ids[start : start + 10 * BATCH_SIZE].tolist(),),
            )

    def remove_unused(self) -> int:
        """Remove tools that no replica has used for UNUSED_DAYS days; return the number of removed tools."""

        def remove(cursor: RowCursor) -> int:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK_KEY,))
            gone = cursor.execute(
                "DELETE FROM catalog WHERE id IN (SELECT tool FROM catalog_uses"
                " WHERE used < CURRENT_DATE - %s::int LIMIT %s) RETURNING words::text",
                (UNUSED_DAYS, BATCH_SIZE),
            ).fetchall()
            counts = Counter(term for row in gone for term in parse_words(row["words"]))
            counts[""] = len(gone)
            _add_counts(cursor, Counter({term: -count for term, count in counts.items()}))
            return len(gone)

        return self._database.run(remove)

    def list_tools(self, after: int) -> tuple[Ids, Ids]:
        """Return the ids of all tools with an id above `after`, and the hashes of their toolsets."""
        parts = [np.zeros((0, 2), np.int64)]
        while True:
            rows = self._database.query(
                "SELECT id, toolset FROM catalog WHERE id > %s ORDER BY id LIMIT %s", (after, _PAGE_SIZE)
            )
            if not rows:
                found = np.concatenate(parts)
                return found[:, 0], found[:, 1]
            parts.append(np.array([(row["id"], row["toolset"]) for row in rows], np.int64))
            after = rows[-1]["id"]

    def open_vectors(self, model: str, width: int) -> VectorTable:
        """Return the vector table of an embedding model; create it if it does not exist.

        Raises DatabaseError if the extension pgvector cannot be used.
        """
        if not 0 < width <= MAX_HALF_DIMENSIONS:
            raise DatabaseError(
                f"vectors with {width} dimensions cannot be indexed in the database, which allows at most"
                f" {MAX_HALF_DIMENSIONS:,}: set `retrieval.index: memory`"
            )
        found = self.find_vectors(model)
        if found is not None and found.width == width:
            return found
        name = f"nearest_{hashlib.blake2b(repr((model, width)).encode(), digest_size=6).hexdigest()}"

        def create(cursor: RowCursor) -> None:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK_KEY,))
            cursor.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {name} (tool BIGINT PRIMARY KEY REFERENCES catalog (id)"
                " ON DELETE CASCADE, toolset BIGINT NOT NULL, server BIGINT NOT NULL,"
                f" vector halfvec({int(width)}) NOT NULL)".encode()
            )
            if found is not None and found.name != name:  # another model has this name now
                cursor.execute(f"DROP TABLE IF EXISTS {found.name}".encode())
            cursor.execute(
                "INSERT INTO nearest_tables VALUES (%s, %s, %s, false)"
                " ON CONFLICT (model) DO UPDATE SET name = excluded.name, width = excluded.width,"
                " ready = excluded.ready WHERE nearest_tables.name != excluded.name",
                (clean_text(model), name, width),
            )

        self._database.run(create)
        return self.find_vectors(model) or VectorTable(name, width, is_ready=False)

    def find_vectors(self, model: str) -> VectorTable | None:
        """Return the vector table of an embedding model; None if it does not exist."""
        rows = self._database.query(
            "SELECT name, width, ready FROM nearest_tables WHERE model = %s", (clean_text(model),)
        )
        if not rows or not re.fullmatch(r"nearest_[0-9a-f]{12}", rows[0]["name"]):
            return None
        return VectorTable(rows[0]["name"], rows[0]["width"], rows[0]["ready"])

    def find_unembedded(self, table: VectorTable, ids: Ids) -> Ids:
        """Return the ids of the given tools that have no vector in a table yet."""
        missing = []
        for start in range(0, len(ids), 10 * BATCH_SIZE):
            part = ids[start : start + 10 * BATCH_SIZE]
            rows = self._database.query(
                f"SELECT tool FROM {table.name} WHERE tool = ANY(%s)",  # noqa: S608
                (part.tolist(),),
            )
            missing.append(
                np.setdiff1d(part, np.fromiter((row["tool"] for row in rows), np.int64, len(rows)))
            )
        return np.concatenate(missing) if missing else np.zeros(0, np.int64)

    def add_vectors(self, table: VectorTable, ids: Ids, keys: NDArray[np.int64], vectors: Matrix) -> None:
        """Store vectors of tools; `keys` are the hashes of each tool's toolset and server."""

        def insert(cursor: RowCursor) -> None:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK_KEY,))
            known = cursor.execute(
                f"SELECT tool FROM {table.name} WHERE tool = ANY(%s)".encode(),  # noqa: S608
                (ids.tolist(),),
            ).fetchall()
            new = ~np.isin(ids, [row["tool"] for row in known])
            copy = f"COPY {table.name} (tool, toolset, server, vector) FROM STDIN (FORMAT BINARY)".encode()
            with cursor.copy(copy) as rows:
                rows.write(pack_rows(ids[new], keys[new], vectors[new]))

        self._database.run(insert)

    def build_index(self, table: VectorTable) -> None:
        """Build the index of a vector table, unless another replica has built it. Takes minutes."""

        def build(cursor: RowCursor) -> None:
            _allow_long_work(cursor)
            cursor.execute(
                "SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (_LOCK_KEY & 0x7FFFFFFF, table.name)
            )
            row = cursor.execute("SELECT ready FROM nearest_tables WHERE name = %s", (table.name,)).fetchone()
            if not row or row["ready"]:
                return
            size = cursor.execute(f"SELECT count(*) AS n FROM {table.name}".encode()).fetchone()  # noqa: S608
            needed = (size["n"] if size else 0) * (2 * table.width + 50 * HNSW_LINKS) // 2**20
            memory = min(MAX_BUILD_MEMORY_MB, 64 + needed)
            cursor.execute("SELECT set_config('maintenance_work_mem', %s, true)", (f"{memory}MB",))
            cursor.execute(
                f"CREATE INDEX IF NOT EXISTS {table.name}_hnsw ON {table.name} USING hnsw"
                f" (vector halfvec_ip_ops) WITH (m = {HNSW_LINKS},"
                f" ef_construction = {HNSW_BUILD_CANDIDATES})".encode()
            )
            cursor.execute(f"ANALYZE {table.name}".encode())
            cursor.execute("UPDATE nearest_tables SET ready = true WHERE name = %s", (table.name,))

        self._database.run(build)

    def read_vectors(self, table: VectorTable, ids: Sequence[int]) -> Matrix:
        """Return the stored vectors of the given tools, in any order."""

        def read(cursor: RowCursor) -> Matrix:
            rows = cursor.execute(
                f"SELECT vector FROM {table.name} WHERE tool = ANY(%s)".encode(),  # noqa: S608
                (list(ids),),
                binary=True,
            ).fetchall()
            return unpack_vectors([row["vector"] for row in rows], table.width)

        return self._database.run(read)

    def find_candidates(
        self, query: CandidateQuery, scope: ScopeFilter, table: VectorTable | None
    ) -> FoundRows:
        """Return the candidate tools for a message among the allowed tools.

        Without `table`, by keywords and names alone.
        """

        def find(cursor: RowCursor) -> FoundRows:
            cursor.execute(
                f"SELECT {', '.join(['set_config(%s, %s, true)'] * len(_SETTINGS))}".encode(),
                list(itertools.chain.from_iterable(_SETTINGS.items())),
            )
            return find_candidate_rows(cursor, query, scope, table)

        return self._database.run(find)

    def _read_lengths(self) -> dict[str, float]:
        rows = self._database.query("SELECT field, length FROM catalog_fields")
        return {row["field"]: row["length"] for row in rows}


def _allow_long_work(cursor: RowCursor) -> None:
    """Raise the time limit for the statements of a transaction, because building an index is slow."""
    for name in ("statement_timeout", "lock_timeout"):
        cursor.execute("SELECT set_config(%s, %s, true)", (name, f"{BUILD_TIMEOUT_S}s"))


def _make_row(checksum: bytes, tool: Tool, weights: Mapping[str, float]) -> tuple[object, ...]:
    """Convert a tool to a row of the table `catalog`."""
    return (
        checksum,
        clean_text(tool.name),
        hash_name(tool.toolset),
        hash_name(tool.server),
        [clean_text(name) for name in list_spellings(tool)],
        format_words(weights),
    )


def _add_counts(cursor: RowCursor, counts: Mapping[str, int]) -> None:
    terms = sorted(counts)
    cursor.execute(
        "INSERT INTO catalog_terms SELECT * FROM unnest(%s::text[], %s::bigint[])"
        " ON CONFLICT (term) DO UPDATE SET tools = catalog_terms.tools + excluded.tools",
        (terms, [counts[term] for term in terms]),
    )
