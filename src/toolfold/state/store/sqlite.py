"""Session store in one SQLite file with a full-text index, safe for several processes.

Commits are not synced to disk one by one: they survive a crash of the process, and a power failure can
lose the last moments but never corrupts the file.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from toolfold.core.types import Json
from toolfold.state.store.records import (
    CLAIM_LIFETIME_S,
    MAX_QUERY_WORDS,
    CallRecord,
    MessageRecord,
    MessageState,
    SearchMatch,
    SessionInUse,
    SessionRecord,
    UnknownSession,
    has_owner_ended,
)
from toolfold.state.store.sqlite_file import close_on_error, open_private_file, write_transaction

SCHEMA_VERSION = 1

_WORD = re.compile(r"\w+", re.UNICODE)
_SCHEMA = """
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, model TEXT NOT NULL, dialect TEXT NOT NULL, system TEXT NOT NULL,
    title TEXT NOT NULL, parent TEXT NOT NULL, toolsets TEXT NOT NULL, disabled_toolsets TEXT NOT NULL,
    state TEXT NOT NULL, created REAL NOT NULL, updated REAL NOT NULL, turns INTEGER NOT NULL,
    draft TEXT NOT NULL DEFAULT '', owner TEXT NOT NULL DEFAULT '', claimed REAL NOT NULL DEFAULT 0
);
CREATE INDEX sessions_by_use ON sessions (updated);
CREATE TABLE messages (
    row INTEGER PRIMARY KEY, session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    number REAL NOT NULL, turn INTEGER NOT NULL, role TEXT NOT NULL, body TEXT NOT NULL, text TEXT NOT NULL,
    state TEXT NOT NULL, created REAL NOT NULL, UNIQUE (session_id, number)
);
CREATE TABLE calls (
    session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE, call_id TEXT NOT NULL,
    tool TEXT NOT NULL, finished INTEGER NOT NULL DEFAULT 0, result TEXT,
    PRIMARY KEY (session_id, call_id)
);
CREATE VIRTUAL TABLE message_index USING fts5 (
    text, content='messages', content_rowid='row', tokenize='unicode61 remove_diacritics 2'
);
CREATE TRIGGER index_insert AFTER INSERT ON messages BEGIN
    INSERT INTO message_index (rowid, text) VALUES (new.row, new.text);
END;
CREATE TRIGGER index_delete AFTER DELETE ON messages BEGIN
    INSERT INTO message_index (message_index, rowid, text) VALUES ('delete', old.row, old.text);
END;
"""


class SqliteSessionStore:
    """The default session store, an SQLite file."""

    def __init__(self, file: Path) -> None:
        self._lock = threading.RLock()
        self._db = open_private_file(file)
        with close_on_error(self._db):
            self._create_tables(file)

    def _create_tables(self, file: Path) -> None:
        with self._transaction():  # two processes may open a new file at the same moment
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA_VERSION:
                raise RuntimeError(f"{file} was written by a newer version of Toolfold ({version})")
            if version == 0:
                for statement in _split_statements(_SCHEMA):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, write_transaction(self._db):
            yield

    def create_session(self, record: SessionRecord) -> None:
        values = {each.name: getattr(record, each.name) for each in fields(record)}
        values |= {key: _to_text(values[key]) for key in ("toolsets", "disabled_toolsets", "state")}
        names = ", ".join(values)
        marks = ", ".join(f":{name}" for name in values)
        with self._transaction():
            self._db.execute(f"INSERT INTO sessions ({names}) VALUES ({marks})", values)  # noqa: S608

    def load_session(self, session_id: str) -> SessionRecord:
        with self._lock:
            row = self._db.execute("SELECT * FROM sessions WHERE id = ?", (session_id,)).fetchone()
        if row is None:
            raise UnknownSession(session_id)
        return _read_session(row)

    def list_sessions(self, *, limit: int = 50) -> list[SessionRecord]:
        query = "SELECT * FROM sessions WHERE parent = '' ORDER BY updated DESC LIMIT ?"
        with self._lock:
            return [_read_session(row) for row in self._db.execute(query, (limit,))]

    def delete_session(self, session_id: str) -> None:
        self.load_session(session_id)
        with self._transaction():
            self._db.execute(
                "WITH RECURSIVE tree (id) AS (SELECT ? UNION SELECT sessions.id FROM sessions"
                " JOIN tree ON sessions.parent = tree.id) DELETE FROM sessions WHERE id IN tree",
                (session_id,),
            )

    def load_messages(self, session_id: str, *, active_only: bool = True) -> list[MessageRecord]:
        condition = " AND state = 'active'" if active_only else ""
        query = f"SELECT * FROM messages WHERE session_id = ?{condition} ORDER BY number"  # noqa: S608
        with self._lock:
            return [_read_message(row) for row in self._db.execute(query, (session_id,))]

    def append_messages(
        self,
        session_id: str,
        messages: Sequence[MessageRecord],
        *,
        state: Json | None = None,
        finished_calls: Iterable[str] = (),
    ) -> list[float]:
        with self._transaction():
            number = self._last_number(session_id)
            for offset, message in enumerate(messages, 1):
                self._insert_message(session_id, message, number + offset)
            for call_id in finished_calls:
                self._db.execute(
                    "INSERT INTO calls VALUES (?, ?, '', 1, NULL)"
                    " ON CONFLICT (session_id, call_id) DO UPDATE SET finished = 1, result = NULL",
                    (session_id, call_id),
                )
            turns = max((message.turn for message in messages), default=0)
            self._db.execute(
                "UPDATE sessions SET updated = ?, draft = '', turns = max(turns, ?) WHERE id = ?",
                (time.time(), turns, session_id),
            )
            if state is not None:
                self._write_state(session_id, state)
        return [number + offset for offset in range(1, len(messages) + 1)]

    def replace_messages(
        self,
        session_id: str,
        numbers: Sequence[float],
        state: MessageState,
        *,
        summary: MessageRecord | None = None,
    ) -> None:
        with self._transaction():
            for number in numbers:
                self._db.execute(
                    "UPDATE messages SET state = ? WHERE session_id = ? AND number = ?",
                    (state, session_id, number),
                )
            if summary is not None and numbers:
                self._insert_message(session_id, summary, self._number_after(session_id, max(numbers)))

    def save_state(self, session_id: str, state: Json, *, title: str | None = None) -> None:
        with self._transaction():
            self._write_state(session_id, state)
            if title is not None:
                self._db.execute("UPDATE sessions SET title = ? WHERE id = ?", (title, session_id))

    def change_model(
        self, session_id: str, model: str, dialect: str, messages: Sequence[MessageRecord] | None
    ) -> None:
        with self._transaction():
            self._db.execute(
                "UPDATE sessions SET model = ?, dialect = ? WHERE id = ?", (model, dialect, session_id)
            )
            if messages is None:
                return
            self._db.execute(
                "UPDATE messages SET state = 'compressed' WHERE session_id = ? AND state = 'active'",
                (session_id,),
            )
            number = self._last_number(session_id)
            for offset, message in enumerate(messages, 1):
                self._insert_message(session_id, message, number + offset)

    def save_draft(self, session_id: str, text: str) -> None:
        with self._transaction():
            self._db.execute("UPDATE sessions SET draft = ? WHERE id = ?", (text, session_id))

    def load_draft(self, session_id: str) -> str:
        with self._lock:
            row = self._db.execute("SELECT draft FROM sessions WHERE id = ?", (session_id,)).fetchone()
        return str(row["draft"]) if row else ""

    def start_calls(self, session_id: str, calls: Mapping[str, str]) -> None:
        rows = [(session_id, call_id, tool) for call_id, tool in calls.items()]
        with self._transaction():
            self._db.executemany("INSERT OR REPLACE INTO calls VALUES (?, ?, ?, 0, NULL)", rows)

    def finish_call(self, session_id: str, call_id: str, result: Json) -> None:
        with self._transaction():
            self._db.execute(
                "UPDATE calls SET finished = 1, result = ? WHERE session_id = ? AND call_id = ?",
                (_to_text(result), session_id, call_id),
            )

    def load_calls(self, session_id: str) -> list[CallRecord]:
        with self._lock:
            rows = self._db.execute("SELECT * FROM calls WHERE session_id = ?", (session_id,)).fetchall()
        return [
            CallRecord(
                call_id=row["call_id"],
                tool=row["tool"],
                is_finished=bool(row["finished"]),
                result=json.loads(row["result"]) if row["result"] else None,
            )
            for row in rows
        ]

    def search_messages(self, query: str, *, limit: int = 5, without_session: str = "") -> list[SearchMatch]:
        words = _WORD.findall(query)[:MAX_QUERY_WORDS]
        if not words:
            return []
        matching = " OR ".join(f'"{word}"' for word in words)  # quoted: no operator of the index applies
        statement = (
            "SELECT m.session_id, s.title, m.role, m.created, m.number,"
            " snippet(message_index, 0, '', '', '…', 40) AS snippet"
            " FROM message_index JOIN messages m ON m.row = message_index.rowid"
            " JOIN sessions s ON s.id = m.session_id"
            " WHERE message_index MATCH ? AND m.session_id != ? AND m.state NOT IN ('undone', 'unsent')"
            " ORDER BY bm25(message_index) LIMIT ?"
        )
        with self._lock:
            rows = self._db.execute(statement, (matching, without_session, limit)).fetchall()
        return [SearchMatch(**row) for row in map(dict, rows)]

    def claim_session(self, session_id: str, owner: str) -> None:
        with self._transaction():
            now = time.time()
            row = self._db.execute(
                "SELECT owner, claimed FROM sessions WHERE id = ?", (session_id,)
            ).fetchone()
            if row is None:
                raise UnknownSession(session_id)
            is_fresh = now - row["claimed"] < CLAIM_LIFETIME_S
            if row["owner"] not in ("", owner) and is_fresh and not has_owner_ended(row["owner"]):
                raise SessionInUse(session_id, row["owner"])
            self._db.execute(
                "UPDATE sessions SET owner = ?, claimed = ? WHERE id = ?", (owner, now, session_id)
            )

    def release_session(self, session_id: str, owner: str) -> None:
        with self._transaction():
            self._db.execute(
                "UPDATE sessions SET owner = '', claimed = 0 WHERE id = ? AND owner = ?", (session_id, owner)
            )

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _last_number(self, session_id: str) -> int:
        query = "SELECT coalesce(max(number), 0) FROM messages WHERE session_id = ?"
        return int(self._db.execute(query, (session_id,)).fetchone()[0])

    def _number_after(self, session_id: str, number: float) -> float:
        """Return a sequence number between a message and its successor, for inserting a summary."""
        query = "SELECT min(number) FROM messages WHERE session_id = ? AND number > ?"
        following = self._db.execute(query, (session_id, number)).fetchone()[0]
        return number + 1 if following is None else (number + float(following)) / 2

    def _insert_message(self, session_id: str, message: MessageRecord, number: float) -> None:
        self._db.execute(
            "INSERT INTO messages (session_id, number, turn, role, body, text, state, created)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                session_id,
                number,
                message.turn,
                message.role,
                _to_text(message.body),
                message.text,
                message.state,
                message.created,
            ),
        )

    def _write_state(self, session_id: str, state: Json) -> None:
        self._db.execute(
            "UPDATE sessions SET state = ?, updated = ? WHERE id = ?",
            (_to_text(state), time.time(), session_id),
        )


def _split_statements(script: str) -> Iterator[str]:
    """Split an SQL script into statements, except at semicolons inside triggers."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _to_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _read_session(row: sqlite3.Row) -> SessionRecord:
    values = {each.name: row[each.name] for each in fields(SessionRecord)}
    toolsets = json.loads(values["toolsets"])
    values["toolsets"] = None if toolsets is None else tuple(toolsets)
    values["disabled_toolsets"] = tuple(json.loads(values["disabled_toolsets"]))
    values["state"] = json.loads(values["state"])
    return SessionRecord(**values)


def _read_message(row: sqlite3.Row) -> MessageRecord:
    return MessageRecord(
        body=json.loads(row["body"]),
        role=row["role"],
        text=row["text"],
        turn=row["turn"],
        number=row["number"],
        state=row["state"],
        created=row["created"],
    )
