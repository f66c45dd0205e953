"""Learned messages in the database shared by replicas, with a copy in memory for searches.

A thread of its own reads changes, at most once in some seconds, and writes vectors: a search never waits for
the database. Each replica uses what all have learned, separately for each client.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from toolfold.selection.retrieval.learned_store import (
    COLUMNS,
    MAX_CLIENT_MESSAGES_PER_TOOL,
    MAX_COUNT,
    MAX_COUNTED_REQUESTS,
    MAX_LEARNED_MESSAGES,
    MAX_MESSAGES_PER_TOOL,
    MAX_TOTALS,
    OVER_LIMIT,
    PUBLIC_GROUP,
    LearnedMessage,
    LearnedMessageStore,
    parse_row,
)
from toolfold.state.database import Database, DatabaseError, RowCursor, clean_text

log = logging.getLogger(__name__)

RELOAD_INTERVAL_S = 2.0
"""Shortest time between two reads: every successful call of any client can change the messages."""
CLOSE_TIMEOUT_S = 5.0
_LOCK_KEY = 0x746F6F6C6C65726E
"""Number of the advisory lock under which messages are added, so that the limits hold."""
_NAMES = ", ".join(COLUMNS)


class SharedLearnedStore(LearnedMessageStore):
    """Store of the learned messages of all replicas."""

    def __init__(self, database: Database) -> None:
        """Read the learned messages from the database. Raises DatabaseError."""
        self._database = database
        self._lock, self._reload_lock = threading.Lock(), threading.Lock()
        self._rows: list[LearnedMessage] = []
        self._totals: dict[tuple[str, str, str], int] = {}
        self._version = 0
        self._unwritten: dict[int, tuple[str, bytes]] = {}
        """Vectors that are not in the database yet, by message id: model and vector."""
        self._changed, self._ended = threading.Event(), threading.Event()
        self._reload()
        self._unsubscribe = database.on_change("learned", self._changed.set)
        self._thread = threading.Thread(target=self._run, name="toolfold-learned", daemon=True)
        self._thread.start()

    def version(self) -> object:
        return self._version

    def load(self) -> list[LearnedMessage]:
        return self._rows

    def load_totals(self) -> dict[tuple[str, str, str], int]:
        return self._totals

    def add(self, message: LearnedMessage, *, expire_before: float, is_new_request: bool = True) -> None:
        values = [_to_postgres(getattr(message, name)) for name in COLUMNS]

        def insert(cursor: RowCursor) -> None:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK_KEY,))
            cursor.execute(
                f"INSERT INTO learned ({_NAMES}) VALUES ({', '.join(['%s'] * len(COLUMNS))})"  # noqa: S608
                " ON CONFLICT (client, server, tool, text) DO UPDATE SET uses = LEAST(learned.uses + 1, %s),"
                " last_used = excluded.last_used, name = excluded.name, checksum = excluded.checksum,"
                " sketch = excluded.sketch".encode(),
                (*values, MAX_COUNT),
            )
            _count_use(cursor, message, is_new_request=is_new_request)
            _remove_excess(cursor, expire_before)

        self._database.run(insert)
        self._reload()

    def add_misses(self, ids: Iterable[int]) -> None:
        self._database.execute(
            "UPDATE learned SET misses = LEAST(misses + 1, %s) WHERE id = ANY(%s)", (MAX_COUNT, list(ids))
        )
        self._reload()

    def set_vectors(self, model: str, vectors: Mapping[int, bytes]) -> None:
        with self._lock:
            self._unwritten |= {each: (model, vector) for each, vector in vectors.items()}
        with self._reload_lock:
            self._rows = self._add_unwritten(self._rows)
            self._version += 1
        self._changed.set()

    def forget(self, wanted: Callable[[LearnedMessage], bool] | None = None) -> int:
        self._reload()
        ids = [message.id for message in self._rows if wanted is None or wanted(message)]
        if wanted is None:
            ids = [row["id"] for row in self._database.query("SELECT id FROM learned")]
        if ids:
            self._database.run(lambda cursor: _delete(cursor, ids))
            self._reload()
        return len(ids)

    def close(self) -> None:
        self._unsubscribe()
        self._ended.set()
        self._changed.set()
        self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        """Write vectors and read changes until the store is closed."""
        while not self._ended.is_set():
            self._changed.wait()
            self._changed.clear()
            try:
                self._write_vectors()
                self._reload()
            except DatabaseError as error:
                log.debug("learned messages could not be read from the database: %s", error)
                self._changed.set()  # again, after the interval
            self._ended.wait(RELOAD_INTERVAL_S)

    def _write_vectors(self) -> None:
        with self._lock:
            writing = dict(self._unwritten)
        if not writing:
            return
        rows = [(model, vector, each) for each, (model, vector) in writing.items()]
        statement = "UPDATE learned SET model = %s, vector = %s WHERE id = %s"
        self._database.run(lambda cursor: cursor.executemany(statement, rows))
        with self._lock:
            for each, written in writing.items():
                if self._unwritten.get(each) is written:
                    del self._unwritten[each]

    def _reload(self) -> None:
        with self._reload_lock:
            rows, totals = self._database.run(_read_all)
            rows = self._add_unwritten(rows)
            if rows != self._rows or totals != self._totals:
                self._rows, self._totals = rows, totals
                self._version += 1

    def _add_unwritten(self, rows: Iterable[LearnedMessage]) -> list[LearnedMessage]:
        """Add vectors that are not yet in the database to the messages read from the database."""
        with self._lock:
            vectors = dict(self._unwritten)
        return [
            replace(row, model=vectors[row.id][0], vector=vectors[row.id][1]) if row.id in vectors else row
            for row in rows
        ]


def _read_all(cursor: RowCursor) -> tuple[list[LearnedMessage], dict[tuple[str, str, str], int]]:
    found = cursor.execute(
        f"SELECT id, {_NAMES} FROM learned ORDER BY last_used DESC, id DESC LIMIT %s".encode(),  # noqa: S608
        (MAX_LEARNED_MESSAGES,),
    ).fetchall()
    rows = [message for row in found if (message := parse_row(tuple(row.values())))]
    totals = cursor.execute(
        "SELECT client, server, tool, uses FROM learned_totals LIMIT %s", (MAX_TOTALS,)
    ).fetchall()
    return rows, {(row["client"], row["server"], row["tool"]): row["uses"] for row in totals}


def _count_use(cursor: RowCursor, message: LearnedMessage, *, is_new_request: bool) -> None:
    """Count a tool call and, with `is_new_request`, also a request; halve the client's counts at a limit."""
    keys = [(message.client, message.server, message.tool)]
    if is_new_request:
        keys.append((message.client, "", ""))
    cursor.executemany(
        "INSERT INTO learned_totals VALUES (%s, %s, %s, 1)"
        " ON CONFLICT (client, server, tool) DO UPDATE SET uses = learned_totals.uses + 1",
        [tuple(map(_to_postgres, key)) for key in keys],
    )
    cursor.execute(
        "UPDATE learned_totals SET uses = uses / 2 WHERE client IN"
        " (SELECT client FROM learned_totals WHERE tool = '' AND uses >= %s)",
        (MAX_COUNTED_REQUESTS,),
    )
    cursor.execute("DELETE FROM learned_totals WHERE uses < 1")
    row = cursor.execute("SELECT COUNT(*) AS count FROM learned_totals").fetchone()
    for _ in range(max(0, (row["count"] if row else 0) - MAX_TOTALS)):
        cursor.execute(
            "DELETE FROM learned_totals WHERE (client, server, tool) = (SELECT client, server, tool"
            " FROM learned_totals WHERE client = (SELECT client FROM learned_totals"
            " GROUP BY client ORDER BY COUNT(*) DESC, client LIMIT 1)"
            " ORDER BY tool = '', uses, server, tool LIMIT 1)"
        )


def _remove_excess(cursor: RowCursor, expire_before: float) -> None:
    """Remove expired and excess messages, starting with the client that has the most messages."""
    cursor.execute("DELETE FROM learned WHERE last_used < %s", (expire_before,))
    for group, limit in (
        ("client, server, tool", MAX_CLIENT_MESSAGES_PER_TOOL),
        (PUBLIC_GROUP, MAX_MESSAGES_PER_TOOL),
    ):
        over = OVER_LIMIT.format(group=group).replace("FROM learned\n)", "FROM learned\n) AS placed")
        cursor.execute(f"DELETE FROM learned WHERE id IN ({over.replace('?', '%s')})".encode(), (limit,))  # noqa: S608
    row = cursor.execute("SELECT COUNT(*) AS count FROM learned").fetchone()
    for _ in range(max(0, (row["count"] if row else 0) - MAX_LEARNED_MESSAGES)):
        cursor.execute(
            "DELETE FROM learned WHERE id = (SELECT id FROM learned WHERE client ="
            " (SELECT client FROM learned GROUP BY client ORDER BY COUNT(*) DESC, MIN(last_used) LIMIT 1)"
            " ORDER BY last_used, id LIMIT 1)"
        )


def _delete(cursor: RowCursor, ids: list[int]) -> None:
    cursor.execute("DELETE FROM learned WHERE id = ANY(%s)", (ids,))
    cursor.execute(
        "DELETE FROM learned_totals WHERE tool != '' AND (client, server, tool) NOT IN"
        " (SELECT client, server, tool FROM learned)"
    )
    cursor.execute("DELETE FROM learned_totals WHERE client NOT IN (SELECT client FROM learned)")


def _to_postgres(value: object) -> object:
    """Convert a value for PostgreSQL by removing NUL characters and lone surrogates from text."""
    return clean_text(value) if isinstance(value, str) else value
