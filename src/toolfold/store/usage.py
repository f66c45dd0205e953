"""Usage history: when which tool was called, how searches ended, and how many tokens were saved. SQLite.

Entries are bounded by number and age. Arguments, results and queries are stored only if the caller passes
them. Knows nothing of events and of who reads the figures.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

MAX_ENTRIES = 200_000
MAX_CONTENT_CHARS = 4_000
MAX_LATENCIES = 20_000
"""How many of the newest calls the percentiles are computed from."""
BUSY_TIMEOUT_S = 10.0
_PRUNE_EVERY = 1_000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS usage (
    at REAL NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, session TEXT NOT NULL, key TEXT NOT NULL,
    ok INTEGER NOT NULL, refused INTEGER NOT NULL, ms REAL NOT NULL, tokens INTEGER NOT NULL,
    saved_tokens INTEGER NOT NULL, cost REAL NOT NULL, saved_cost REAL NOT NULL, content TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS usage_at ON usage (at);
CREATE INDEX IF NOT EXISTS usage_key ON usage (key) WHERE key != '';
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageEntry:
    """One tool call, search or model call."""

    at: float
    kind: str
    """`call`, `search` or `model`."""
    name: str = ""
    """The tool or the model."""
    session: str = ""
    key: str = ""
    """Identifies a search, so that it can be marked as successful later."""
    ok: bool = True
    """For a search: one of the found tools was called afterwards."""
    refused: bool = False
    ms: float = 0.0
    tokens: int = 0
    """Input and output tokens of a model call; the number of found tools of a search."""
    saved_tokens: int = 0
    cost: float = 0.0
    saved_cost: float = 0.0
    content: str = ""


_COLUMNS = tuple(each.name for each in fields(UsageEntry))
_INSERT = f"INSERT INTO usage ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608


class UsageStore:
    """The usage history in one SQLite file, or in memory if there is no file. Thread-safe."""

    def __init__(self, file: Path | None, *, max_days: int = 30, max_entries: int = MAX_ENTRIES) -> None:
        """Open the history; without `file` it is lost when the store is closed."""
        self._lock = threading.RLock()
        self._max_days, self._max_entries, self._added = max_days, max_entries, 0
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._db = sqlite3.connect(
            file or ":memory:", timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        self._db.row_factory = sqlite3.Row
        if file is not None:
            file.chmod(0o600)
            for setting in ("journal_mode = WAL", "synchronous = NORMAL"):
                self._db.execute(f"PRAGMA {setting}")
        self._db.executescript(_SCHEMA)
        self.prune()

    def add(self, entries: Iterable[UsageEntry], successful_searches: Sequence[str] = ()) -> None:
        """Store entries, and mark searches, by their keys, whose result was used."""
        rows = [astuple(each) for each in entries]
        with self._transaction():
            self._db.executemany(_INSERT, rows)
            self._db.executemany(
                "UPDATE usage SET ok = 1 WHERE key = ?", [(key,) for key in successful_searches]
            )
        self._added += len(rows)
        if self._added >= _PRUNE_EVERY:
            self.prune()

    def prune(self) -> None:
        """Delete entries that are too old, and the oldest if there are too many."""
        self._added = 0
        with self._transaction():
            self._db.execute("DELETE FROM usage WHERE at < ?", (time.time() - self._max_days * 86_400,))
            self._db.execute(
                "DELETE FROM usage WHERE rowid <= (SELECT MAX(rowid) FROM usage) - ?", (self._max_entries,)
            )

    def summarize(self, since: float, until: float) -> dict[str, Any]:
        """Return the totals of a period."""
        query = f"SELECT {_TOTALS} FROM usage WHERE at >= ? AND at < ?"  # noqa: S608
        return _fill_missing(self._query(query, since, until)[0])

    def list_series(self, since: float, until: float, buckets: int) -> list[dict[str, Any]]:
        """Return the totals of a period, divided into intervals of the same length."""
        length = (until - since) / buckets
        query = (
            f"SELECT CAST((at - ?) / ? AS INTEGER) AS bucket, {_TOTALS} FROM usage"  # noqa: S608
            " WHERE at >= ? AND at < ? GROUP BY bucket"
        )
        found = {row["bucket"]: row for row in self._query(query, since, length, since, until)}
        return [
            {"at": since + number * length, **_fill_missing(found.get(number))} for number in range(buckets)
        ]

    def list_latencies(self, since: float, until: float) -> list[float]:
        """Return the sorted durations of a period's calls, in milliseconds."""
        query = (
            "SELECT ms FROM usage WHERE kind = 'call' AND refused = 0 AND at >= ? AND at < ?"
            " ORDER BY at DESC LIMIT ?"
        )
        return sorted(row["ms"] for row in self._query(query, since, until, MAX_LATENCIES))

    def list_tools(self, since: float, until: float, limit: int) -> list[dict[str, Any]]:
        """Return the tools of a period that were called most: calls, errors and the average duration."""
        query = (
            "SELECT name, COUNT(*) AS calls, SUM(1 - ok) AS errors, AVG(ms) AS ms FROM usage"
            " WHERE kind = 'call' AND at >= ? AND at < ? GROUP BY name ORDER BY calls DESC, name LIMIT ?"
        )
        return [dict(row) for row in self._query(query, since, until, limit)]

    def count_calls(self, since: float) -> dict[str, int]:
        """Return the number of calls of each tool since a time."""
        query = "SELECT name, COUNT(*) AS calls FROM usage WHERE kind = 'call' AND at >= ? GROUP BY name"
        return {row["name"]: row["calls"] for row in self._query(query, since)}

    def clear(self) -> None:
        """Delete all entries."""
        with self._lock:
            self._db.execute("DELETE FROM usage")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def _query(self, query: str, *values: object) -> list[sqlite3.Row]:
        with self._lock:
            return self._db.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")


_TOTALS = ", ".join(
    f"SUM({expression}) AS {name}"
    for name, expression in {
        "calls": "kind = 'call'",
        "errors": "kind = 'call' AND ok = 0 AND refused = 0",
        "refused": "kind = 'call' AND refused = 1",
        "searches": "kind = 'search'",
        "hits": "kind = 'search' AND ok = 1",
        "misses": "kind = 'search' AND ok = 0 AND tokens = 0",
        "requests": "kind = 'model'",
        "tokens": "CASE WHEN kind = 'model' THEN tokens ELSE 0 END",
        "saved_tokens": "saved_tokens",
        "cost": "cost",
        "saved_cost": "saved_cost",
    }.items()
)
_TOTAL_NAMES = (
    *("calls", "errors", "refused", "searches", "hits", "misses", "requests", "tokens"),
    *("saved_tokens", "cost", "saved_cost"),
)


def _fill_missing(row: sqlite3.Row | None) -> dict[str, Any]:
    return {name: (row[name] if row is not None else None) or 0 for name in _TOTAL_NAMES}
