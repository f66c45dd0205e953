"""Example messages in the database shared by replicas, with a copy in memory for searches.

A search never waits for the database: a change by any replica is read in the thread that gets its notice.
"""

from __future__ import annotations

from collections.abc import Callable

from toolfold.selection.retrieval.example_messages import MessageRecord
from toolfold.selection.retrieval.message_store import (
    MAX_RECORDS,
    EditableMessages,
    format_record,
    parse_lines,
    require_few,
)
from toolfold.state.database import Database, RowCursor, SharedCopy, clean_text

_LOCK_KEY = 0x746F6F6C6D736773
"""Number of the advisory lock under which the records are changed."""
_SELECT = "SELECT line FROM example_messages ORDER BY row LIMIT %s"


class SharedMessageStore(EditableMessages):
    """Example messages of tools in a database shared by all replicas of the gateway."""

    def __init__(self, database: Database) -> None:
        """Read the example messages from the database. Raises DatabaseError."""
        self._database = database
        self._copy = SharedCopy(database, "example_messages", self._read_all, "example messages")

    def version(self) -> object:
        return self._copy.version

    def load(self) -> list[MessageRecord]:
        return self._copy.value

    def _rewrite(self, change: Callable[[list[MessageRecord]], list[MessageRecord]]) -> None:
        def rewrite(cursor: RowCursor) -> None:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK_KEY,))
            rows = cursor.execute(_SELECT, (MAX_RECORDS,)).fetchall()
            before = self._parse(rows)
            after = change(before)
            require_few(after)
            kept = {record.checksum for record in after}
            if gone := [record.checksum for record in before if record.checksum not in kept]:
                cursor.execute("DELETE FROM example_messages WHERE checksum = ANY(%s)", (gone,))
            known = {record.checksum: record for record in before}
            changed = [record for record in after if known.get(record.checksum) != record]
            cursor.executemany(
                "INSERT INTO example_messages (checksum, line) VALUES (%s, %s)"
                " ON CONFLICT (checksum) DO UPDATE SET line = excluded.line",
                [(record.checksum, _to_line(record)) for record in changed],
            )

        self._database.run(rewrite)
        self._copy.reload()

    def _parse(self, rows: list[dict[str, str]]) -> list[MessageRecord]:
        return parse_lines([row["line"] for row in rows], f"the database {self._database.address}")

    def _read_all(self) -> list[MessageRecord]:
        return self._parse(self._database.query(_SELECT, (MAX_RECORDS,)))


def _to_line(record: MessageRecord) -> str:
    return clean_text(format_record(record))
