"""Usage history: tool calls, search outcomes and saved tokens over time.

Entries are bounded by number and age. Arguments, results and queries are stored only if the caller passes
them. Knows nothing of events and of who reads the figures.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolfold.state.database import clean_text
from toolfold.state.store.sqlite_file import close_on_error, connect, open_private_file, write_transaction

if TYPE_CHECKING:
    from toolfold.state.database import Database, RowCursor

MAX_ENTRIES = 200_000
MAX_CONTENT_CHARS = 4_000
MAX_NAME_CHARS = 200
"""Clients of the model proxy choose the names of models."""
MAX_LATENCIES = 20_000
"""How many of the newest calls the percentiles are computed from."""
_PRUNE_EVERY = 1_000
_MAX_INTEGER = 2**31 - 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS usage (
    at REAL NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, session TEXT NOT NULL, key TEXT NOT NULL,
    ok INTEGER NOT NULL, refused INTEGER NOT NULL, ms REAL NOT NULL, tokens INTEGER NOT NULL,
    saved_tokens INTEGER NOT NULL, cost REAL NOT NULL, saved_cost REAL NOT NULL, content TEXT NOT NULL,
    user_id TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS usage_at ON usage (at);
CREATE INDEX IF NOT EXISTS usage_key ON usage (key) WHERE key != '';
"""
_USER_INDEX = "CREATE INDEX IF NOT EXISTS usage_user ON usage (user_id, at) WHERE user_id != ''"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageEntry:
    """Entry of the usage history: one tool call, search or model call."""

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
    """For a call or a search: estimated for the client's model request that led to it."""
    cost: float = 0.0
    saved_cost: float = 0.0
    content: str = ""
    user_id: str = ""
    """Id of the gateway's user; empty if there is none."""


_COLUMNS = tuple(each.name for each in fields(UsageEntry))
_INSERT = f"INSERT INTO usage ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608
_IDENTITY = ("at", "kind", "session", "name", "ms", "key")
"""Columns in which no two entries are equal: times have a resolution of less than a microsecond."""
_FIND = f"SELECT {', '.join(_IDENTITY)} FROM usage WHERE at >= ? AND at <= ?"  # noqa: S608
_FIND_AT_ONCE = 500
"""Number of entries after which the time range of a query ends, so that its result stays small."""


class UsageStore(ABC):
    """Interface of a store for the usage history. Thread-safe."""

    row_number = "row"
    """Column with a number that increases with every entry."""
    bucket_number = ""
    """Expression for the number of the interval to which an entry belongs, by its start and length."""

    def __init__(self, *, max_days: int, max_entries: int) -> None:
        self._max_days, self._max_entries, self._added = max_days, max_entries, 0

    def add(
        self,
        entries: Iterable[UsageEntry],
        successful_searches: Sequence[str] = (),
        *,
        may_exist: bool = False,
    ) -> None:
        """Store new entries, and mark the earlier searches with the given keys as successful.

        With `may_exist`, entries that were stored before are left out: an earlier attempt may have succeeded.
        """
        entries = [_make_storable(each) for each in entries]
        if may_exist:
            entries = self._select_new(sorted(entries, key=lambda each: each.at))
        rows = [astuple(each) for each in entries]
        used = "UPDATE usage SET ok = 1 WHERE key = ?"
        self._change([(_INSERT, rows), (used, [(key,) for key in successful_searches])])
        self._added += len(rows)
        if self._added >= _PRUNE_EVERY:
            self.prune()

    def _select_new(self, entries: Sequence[UsageEntry]) -> list[UsageEntry]:
        """Return the entries that are not stored yet; `entries` must be sorted by time."""
        new: list[UsageEntry] = []
        for start in range(0, len(entries), _FIND_AT_ONCE):
            some = entries[start : start + _FIND_AT_ONCE]
            rows = self._query(_FIND, some[0].at, some[-1].at)
            stored = {tuple(row[name] for name in _IDENTITY) for row in rows}
            new += [each for each in some if tuple(getattr(each, name) for name in _IDENTITY) not in stored]
        return new

    def prune(self) -> None:
        """Delete entries older than the age limit, and the oldest entries beyond the count limit."""
        self._added = 0
        row = self.row_number
        too_many = f"DELETE FROM usage WHERE {row} <= (SELECT MAX({row}) FROM usage) - ?"  # noqa: S608
        self._change(
            [
                ("DELETE FROM usage WHERE at < ?", [(time.time() - self._max_days * 86_400,)]),
                (too_many, [(self._max_entries,)]),
            ]
        )

    def summarize(self, since: float, until: float) -> dict[str, Any]:
        """Return the totals of calls, errors and tokens in a period."""
        query = f"SELECT {_TOTALS} FROM usage WHERE at >= ? AND at < ?"  # noqa: S608
        return _fill_missing(self._query(query, since, until)[0])

    def list_series(self, since: float, until: float, buckets: int) -> list[dict[str, Any]]:
        """Return the totals of each interval of a period; all intervals are equally long."""
        length = (until - since) / buckets
        query = (
            f"SELECT {self.bucket_number} AS bucket, {_TOTALS} FROM usage"  # noqa: S608
            " WHERE at >= ? AND at < ? GROUP BY bucket"
        )
        found = {row["bucket"]: row for row in self._query(query, since, length, since, until)}
        return [
            {"at": since + number * length, **_fill_missing(found.get(number))} for number in range(buckets)
        ]

    def list_latencies(self, since: float, until: float) -> list[float]:
        """Return the sorted durations of all calls in a period, in milliseconds."""
        query = (
            "SELECT ms FROM usage WHERE kind = 'call' AND refused = 0 AND at >= ? AND at < ?"
            " ORDER BY at DESC LIMIT ?"
        )
        return sorted(row["ms"] for row in self._query(query, since, until, MAX_LATENCIES))

    def list_tools(self, since: float, until: float, limit: int) -> list[dict[str, Any]]:
        """Return the most called tools in a period, with their calls, errors and average duration."""
        query = (
            "SELECT name, COUNT(*) AS calls, SUM(1 - ok) AS errors, AVG(ms) AS ms FROM usage"
            " WHERE kind = 'call' AND at >= ? AND at < ? GROUP BY name ORDER BY calls DESC, name LIMIT ?"
        )
        return [dict(row) for row in self._query(query, since, until, limit)]

    def count_calls(self, since: float) -> dict[str, int]:
        """Return the number of calls of each tool since a given time."""
        query = "SELECT name, COUNT(*) AS calls FROM usage WHERE kind = 'call' AND at >= ? GROUP BY name"
        return {row["name"]: row["calls"] for row in self._query(query, since)}

    def list_of_user(self, user_id: str, limit: int) -> list[dict[str, Any]]:
        """Return the newest calls, searches and model requests of one user, without their content."""
        query = (
            "SELECT at, kind, name, ok, refused, ms FROM usage WHERE user_id = ? AND user_id != ''"
            " ORDER BY at DESC LIMIT ?"
        )
        return [dict(row) for row in self._query(query, user_id, limit)]

    def summarize_user(self, user_id: str, since: float) -> dict[str, Any]:
        """Return the totals of one user's calls, searches and model requests since a given time."""
        query = f"SELECT {_TOTALS} FROM usage WHERE user_id = ? AND user_id != '' AND at >= ?"  # noqa: S608
        return _fill_missing(self._query(query, user_id, since)[0])

    def summarize_users(self, since: float) -> dict[str, dict[str, Any]]:
        """Return the totals of each user since a given time, by the id of the user."""
        query = (
            f"SELECT user_id, {_TOTALS} FROM usage"  # noqa: S608
            " WHERE user_id != '' AND at >= ? GROUP BY user_id"
        )
        return {row["user_id"]: _fill_missing(row) for row in self._query(query, since)}

    def clear(self) -> None:
        """Delete all entries."""
        self._change([("DELETE FROM usage", [()])])

    @abstractmethod
    def close(self) -> None:
        """Close the file or the database."""

    @abstractmethod
    def _query(self, query: str, *values: object) -> Sequence[Mapping[str, Any]]:
        """Return the rows of an SQL query with `?` parameters."""

    @abstractmethod
    def _change(self, changes: Sequence[tuple[str, Sequence[tuple[object, ...]]]]) -> None:
        """Run SQL statements in one transaction; each statement runs once per tuple of parameters."""


class SqliteUsageStore(UsageStore):
    """The usage history in one SQLite file, or in memory if there is no file."""

    row_number = "rowid"
    bucket_number = "CAST((at - ?) / ? AS INTEGER)"

    def __init__(self, file: Path | None, *, max_days: int = 30, max_entries: int = MAX_ENTRIES) -> None:
        """Open the usage history; without `file`, it is in memory and lost on close."""
        super().__init__(max_days=max_days, max_entries=max_entries)
        self._lock = threading.RLock()
        self._db = connect(":memory:") if file is None else open_private_file(file)
        with close_on_error(self._db):
            self._db.executescript(_SCHEMA)
            _add_missing_column(self._db)
            self._db.execute(_USER_INDEX)
            self.prune()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _query(self, query: str, *values: object) -> Sequence[Mapping[str, Any]]:
        with self._lock:
            return [dict(row) for row in self._db.execute(query, values)]

    def _change(self, changes: Sequence[tuple[str, Sequence[tuple[object, ...]]]]) -> None:
        with self._transaction():
            for statement, rows in changes:
                self._db.executemany(statement, rows)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, write_transaction(self._db):
            yield


def _add_missing_column(db: sqlite3.Connection) -> None:
    """Add the column `user_id` to a file of an older version; its entries belong to no user."""
    if "user_id" not in {row["name"] for row in db.execute("PRAGMA table_info(usage)")}:
        with contextlib.suppress(sqlite3.OperationalError):  # another process has just added it
            db.execute("ALTER TABLE usage ADD COLUMN user_id TEXT NOT NULL DEFAULT ''")


class PostgresUsageStore(UsageStore):
    """The usage history of all replicas, in a PostgreSQL database."""

    bucket_number = "CAST(FLOOR((at - ?) / ?) AS INTEGER)"

    def __init__(self, database: Database, *, max_days: int = 30, max_entries: int = MAX_ENTRIES) -> None:
        """Create a store in an open database with up-to-date tables; the caller closes the database."""
        super().__init__(max_days=max_days, max_entries=max_entries)
        self._database = database
        self.prune()

    def close(self) -> None:
        """Do nothing: the database belongs to the caller."""

    def _query(self, query: str, *values: object) -> Sequence[Mapping[str, Any]]:
        return self._database.query(_with_postgres_marks(query), [_to_postgres(each) for each in values])

    def _change(self, changes: Sequence[tuple[str, Sequence[tuple[object, ...]]]]) -> None:
        def run(cursor: RowCursor) -> None:
            for statement, rows in changes:
                values = [tuple(map(_to_postgres, row)) for row in rows]
                cursor.executemany(_with_postgres_marks(statement).encode(), values)

        self._database.run(run)


def _with_postgres_marks(statement: str) -> str:
    return statement.replace("?", "%s")


def _to_postgres(value: object) -> object:
    """Convert a value for PostgreSQL: booleans to integers, and strings to strings without NUL."""
    if isinstance(value, bool):
        return int(value)
    return clean_text(value) if isinstance(value, str) else value


_TOTALS = ", ".join(
    f"SUM(CASE WHEN {condition} THEN {value} ELSE 0 END) AS {name}"
    for name, (condition, value) in {
        "calls": ("kind = 'call'", 1),
        "errors": ("kind = 'call' AND ok = 0 AND refused = 0", 1),
        "refused": ("kind = 'call' AND refused = 1", 1),
        "searches": ("kind = 'search'", 1),
        "hits": ("kind = 'search' AND ok = 1", 1),
        "misses": ("kind = 'search' AND ok = 0 AND tokens = 0", 1),
        "requests": ("kind = 'model'", 1),
        "tokens": ("kind = 'model'", "tokens"),
        "saved_tokens": ("saved_tokens != 0", "saved_tokens"),
        "saved_by_lists": ("kind != 'model'", "saved_tokens"),
        "cost": ("cost != 0", "cost"),
        "saved_cost": ("saved_cost != 0", "saved_cost"),
    }.items()
)
_TOTAL_NAMES = (
    *("calls", "errors", "refused", "searches", "hits", "misses", "requests", "tokens"),
    *("saved_tokens", "saved_by_lists", "cost", "saved_cost"),
)


def _make_storable(entry: UsageEntry) -> UsageEntry:
    """Return an entry with texts and numbers that every database accepts."""
    return replace(
        entry,
        name=clean_text(entry.name[:MAX_NAME_CHARS]),
        session=clean_text(entry.session),
        content=clean_text(entry.content),
        tokens=max(-_MAX_INTEGER, min(entry.tokens, _MAX_INTEGER)),
        saved_tokens=max(-_MAX_INTEGER, min(entry.saved_tokens, _MAX_INTEGER)),
    )


def _fill_missing(row: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: (row[name] if row is not None else None) or 0 for name in _TOTAL_NAMES}
