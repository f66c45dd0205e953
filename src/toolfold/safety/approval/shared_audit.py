"""Audit log of the approval decisions of all gateway replicas, in the database that they share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from toolfold.core.types import Json
from toolfold.safety.approval.audit_log import DecisionLog, parse_lines
from toolfold.safety.approval.hash_chain import START, Link, seal_entry
from toolfold.safety.redaction import Redaction
from toolfold.state.database import Database, RowCursor

MAX_SHARED_ENTRIES = 1_000_000
PRUNE_EVERY = 1_000
PAGE_ROWS = 5_000
_LOCK_KEY = 0x746F6F6C61756474
"""Number of the advisory lock under which entries are added."""


class SharedAuditLog(DecisionLog):
    """Audit log in a database, with one hash chain for the entries of all gateway replicas."""

    is_remote = True

    def __init__(
        self, database: Database, redact: Redaction | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(redact, clock)
        self._database = database
        self.place = f"the database {database.address}"

    def read_entries(self, limit: int | None = None) -> list[Json]:
        rows = self._database.query(
            "SELECT line FROM audit ORDER BY number DESC LIMIT %s",
            (MAX_SHARED_ENTRIES if limit is None else limit,),
        )
        return list(parse_lines(row["line"] for row in reversed(rows)))

    def _append(self, entry: Json) -> None:
        def append(cursor: RowCursor) -> None:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK_KEY,))
            row = cursor.execute(
                "SELECT number, previous, hash FROM audit ORDER BY number DESC LIMIT 1"
            ).fetchone()
            last = START if row is None else Link(row["number"], row["previous"], row["hash"])
            line, link = seal_entry(entry, last)
            cursor.execute(
                "INSERT INTO audit (number, previous, hash, line) VALUES (%s, %s, %s, %s)", (*link, line)
            )
            if link.number % PRUNE_EVERY == 0:
                cursor.execute("DELETE FROM audit WHERE number <= %s", (link.number - MAX_SHARED_ENTRIES,))

        self._database.run(append)

    def _read_lines(self) -> Iterable[str]:
        last = 0
        while rows := self._database.query(
            "SELECT number, line FROM audit WHERE number > %s ORDER BY number LIMIT %s", (last, PAGE_ROWS)
        ):
            yield from (row["line"] for row in rows)
            last = rows[-1]["number"]
