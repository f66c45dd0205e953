"""Session store in a PostgreSQL database, so that every replica can continue any session.

A method returns after its transaction was committed: what it wrote survives the loss of this process.
"""

from __future__ import annotations

import json
import re
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from toolfold.core.types import Json
from toolfold.state.database import Database, RowCursor, clean_text
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

MAX_INDEXED_WORDS = 20_000
MAX_WORD_CHARS = 200
SNIPPET_WORDS = 40
_WORD = re.compile(r"\w+", re.UNICODE)
_JSON_COLUMNS = ("toolsets", "disabled_toolsets", "state")


class PostgresSessionStore:
    """A session store in a database that several processes share."""

    is_remote = True

    def __init__(self, database: Database, *, owns_database: bool = False) -> None:
        """Create a store in an open database; with `owns_database`, the store closes the database."""
        self._database, self._owns_database = database, owns_database

    def create_session(self, record: SessionRecord) -> None:
        values = {each.name: getattr(record, each.name) for each in fields(record)}
        values |= {key: _to_json(values[key]) for key in _JSON_COLUMNS}
        values |= {key: clean_text(value) for key, value in values.items() if isinstance(value, str)}
        names, marks = ", ".join(values), ", ".join(f"%({name})s" for name in values)
        self._database.execute(f"INSERT INTO sessions ({names}) VALUES ({marks})", values)  # noqa: S608

    def load_session(self, session_id: str) -> SessionRecord:
        rows = self._database.query("SELECT * FROM sessions WHERE id = %s", (clean_text(session_id),))
        if not rows:
            raise UnknownSession(session_id)
        return _read_session(rows[0])

    def list_sessions(self, *, limit: int = 50) -> list[SessionRecord]:
        query = "SELECT * FROM sessions WHERE parent = '' ORDER BY updated DESC LIMIT %s"
        return [_read_session(row) for row in self._database.query(query, (limit,))]

    def delete_session(self, session_id: str) -> None:
        deleted = self._database.execute(
            "WITH RECURSIVE tree (id) AS (SELECT id FROM sessions WHERE id = %s UNION SELECT sessions.id"
            " FROM sessions JOIN tree ON sessions.parent = tree.id)"
            " DELETE FROM sessions WHERE id IN (SELECT id FROM tree)",
            (clean_text(session_id),),
        )
        if not deleted:
            raise UnknownSession(session_id)

    def load_messages(self, session_id: str, *, active_only: bool = True) -> list[MessageRecord]:
        condition = " AND state = 'active'" if active_only else ""
        columns = "body, role, text, turn, number, state, created"
        query = f"SELECT {columns} FROM messages WHERE session_id = %s{condition} ORDER BY number"  # noqa: S608
        rows = self._database.query(query, (clean_text(session_id),))
        return [MessageRecord(**{**row, "body": json.loads(row["body"])}) for row in rows]

    def append_messages(
        self,
        session_id: str,
        messages: Sequence[MessageRecord],
        *,
        state: Json | None = None,
        finished_calls: Iterable[str] = (),
    ) -> list[float]:
        session_id, finished = clean_text(session_id), [clean_text(each) for each in finished_calls]
        turns = max((message.turn for message in messages), default=0)

        def append(cursor: RowCursor) -> list[float]:
            _lock_session(cursor, session_id)
            numbers = _insert_messages(cursor, session_id, messages)
            for call_id in finished:
                cursor.execute(
                    "INSERT INTO calls (session_id, call_id, tool, finished) VALUES (%s, %s, '', true)"
                    " ON CONFLICT (session_id, call_id) DO UPDATE SET finished = true, result = NULL",
                    (session_id, call_id),
                )
            cursor.execute(
                "UPDATE sessions SET updated = %s, draft = '', turns = greatest(turns, %s) WHERE id = %s",
                (time.time(), turns, session_id),
            )
            if state is not None:
                _write_state(cursor, session_id, state)
            return numbers

        return self._database.run(append)

    def replace_messages(
        self,
        session_id: str,
        numbers: Sequence[float],
        state: MessageState,
        *,
        summary: MessageRecord | None = None,
    ) -> None:
        session_id = clean_text(session_id)

        def replace(cursor: RowCursor) -> None:
            _lock_session(cursor, session_id)
            cursor.execute(
                "UPDATE messages SET state = %s WHERE session_id = %s AND number = ANY(%s)",
                (state, session_id, [float(number) for number in numbers]),
            )
            if summary is not None and numbers:
                number = _number_after(cursor, session_id, max(numbers))
                _insert_message(cursor, session_id, summary, number)

        self._database.run(replace)

    def save_state(self, session_id: str, state: Json, *, title: str | None = None) -> None:
        session_id = clean_text(session_id)

        def save(cursor: RowCursor) -> None:
            _write_state(cursor, session_id, state)
            if title is not None:
                cursor.execute(
                    "UPDATE sessions SET title = %s WHERE id = %s", (clean_text(title), session_id)
                )

        self._database.run(save)

    def change_model(
        self, session_id: str, model: str, dialect: str, messages: Sequence[MessageRecord] | None
    ) -> None:
        session_id = clean_text(session_id)

        def change(cursor: RowCursor) -> None:
            _lock_session(cursor, session_id)
            cursor.execute(
                "UPDATE sessions SET model = %s, dialect = %s WHERE id = %s", (model, dialect, session_id)
            )
            if messages is None:
                return
            cursor.execute(
                "UPDATE messages SET state = 'compressed' WHERE session_id = %s AND state = 'active'",
                (session_id,),
            )
            _insert_messages(cursor, session_id, messages)

        self._database.run(change)

    def save_draft(self, session_id: str, text: str) -> None:
        values = clean_text(text), clean_text(session_id)
        self._database.execute("UPDATE sessions SET draft = %s WHERE id = %s", values)

    def load_draft(self, session_id: str) -> str:
        rows = self._database.query("SELECT draft FROM sessions WHERE id = %s", (clean_text(session_id),))
        return str(rows[0]["draft"]) if rows else ""

    def start_calls(self, session_id: str, calls: Mapping[str, str]) -> None:
        rows = [tuple(map(clean_text, (session_id, call_id, tool))) for call_id, tool in calls.items()]
        statement = (
            "INSERT INTO calls (session_id, call_id, tool) VALUES (%s, %s, %s) ON CONFLICT"
            " (session_id, call_id) DO UPDATE SET tool = excluded.tool, finished = false, result = NULL"
        )
        self._database.run(lambda cursor: cursor.executemany(statement, rows))

    def finish_call(self, session_id: str, call_id: str, result: Json) -> None:
        self._database.execute(
            "UPDATE calls SET finished = true, result = %s WHERE session_id = %s AND call_id = %s",
            (_to_json(result), clean_text(session_id), clean_text(call_id)),
        )

    def load_calls(self, session_id: str) -> list[CallRecord]:
        query = "SELECT call_id, tool, finished, result FROM calls WHERE session_id = %s ORDER BY started"
        return [
            CallRecord(
                call_id=row["call_id"],
                tool=row["tool"],
                is_finished=row["finished"],
                result=json.loads(row["result"]) if row["result"] else None,
            )
            for row in self._database.query(query, (clean_text(session_id),))
        ]

    def search_messages(self, query: str, *, limit: int = 5, without_session: str = "") -> list[SearchMatch]:
        words = list(dict.fromkeys(_split_words(query)))[:MAX_QUERY_WORDS]
        if not words:
            return []
        statement = (
            "SELECT m.session_id, s.title, m.role, m.created, m.number, m.text"
            " FROM messages m JOIN sessions s ON s.id = m.session_id, CAST(%s AS tsquery) AS wanted"
            " WHERE m.words @@ wanted AND m.session_id != %s AND m.state NOT IN ('undone', 'unsent')"
            " ORDER BY ts_rank(m.words, wanted, 1) DESC, m.created DESC LIMIT %s"
        )
        wanted = " | ".join(f"'{word}'" for word in words)  # quoted: no operator of the search applies
        rows = self._database.query(statement, (wanted, clean_text(without_session), limit))
        snippets = [_cut_snippet(row.pop("text"), set(words)) for row in rows]
        return [SearchMatch(**row, snippet=snippet) for row, snippet in zip(rows, snippets, strict=True)]

    def claim_session(self, session_id: str, owner: str) -> None:
        def claim(cursor: RowCursor) -> str | None:
            row = cursor.execute(
                "SELECT owner, claimed, extract(epoch FROM now())::float AS now FROM sessions"
                " WHERE id = %s FOR UPDATE",
                (clean_text(session_id),),
            ).fetchone()
            if row is None:
                raise UnknownSession(session_id)
            is_fresh = row["now"] - row["claimed"] < CLAIM_LIFETIME_S  # the clocks of replicas may differ
            if row["owner"] not in ("", owner) and is_fresh and not has_owner_ended(row["owner"]):
                return str(row["owner"])
            cursor.execute(
                "UPDATE sessions SET owner = %s, claimed = %s WHERE id = %s",
                (owner, row["now"], clean_text(session_id)),
            )
            return None

        if other := self._database.run(claim):
            raise SessionInUse(session_id, other)

    def release_session(self, session_id: str, owner: str) -> None:
        self._database.execute(
            "UPDATE sessions SET owner = '', claimed = 0 WHERE id = %s AND owner = %s",
            (clean_text(session_id), owner),
        )

    def close(self) -> None:
        if self._owns_database:
            self._database.close()


def _lock_session(cursor: RowCursor, session_id: str) -> None:
    """Lock a session, so that only one process at a time changes its messages and their order."""
    cursor.execute("SELECT 1 FROM sessions WHERE id = %s FOR UPDATE", (session_id,))


def _insert_messages(cursor: RowCursor, session_id: str, messages: Sequence[MessageRecord]) -> list[float]:
    row = cursor.execute(
        "SELECT floor(coalesce(max(number), 0)) AS last FROM messages WHERE session_id = %s", (session_id,)
    ).fetchone()
    last = int(row["last"]) if row else 0
    numbers = [float(last + offset) for offset in range(1, len(messages) + 1)]
    for number, message in zip(numbers, messages, strict=True):
        _insert_message(cursor, session_id, message, number)
    return numbers


def _insert_message(cursor: RowCursor, session_id: str, message: MessageRecord, number: float) -> None:
    text = clean_text(message.text)
    cursor.execute(
        "INSERT INTO messages (session_id, number, turn, role, body, text, state, created, words)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, array_to_tsvector(%s))",
        (
            session_id,
            number,
            message.turn,
            message.role,
            _to_json(message.body),
            text,
            message.state,
            message.created,
            sorted(set(_split_words(text)[:MAX_INDEXED_WORDS])),
        ),
    )


def _number_after(cursor: RowCursor, session_id: str, number: float) -> float:
    """Return a sequence number between a message and its successor, for inserting a summary."""
    row = cursor.execute(
        "SELECT min(number) AS following FROM messages WHERE session_id = %s AND number > %s",
        (session_id, number),
    ).fetchone()
    following = row["following"] if row else None
    return number + 1 if following is None else (number + float(following)) / 2


def _write_state(cursor: RowCursor, session_id: str, state: Json) -> None:
    cursor.execute(
        "UPDATE sessions SET state = %s, updated = %s WHERE id = %s",
        (_to_json(state), time.time(), session_id),
    )


def _split_words(text: str) -> list[str]:
    """Return the words of a text in the indexed form: lower case, without accents."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    without_accents = "".join(each for each in plain if not unicodedata.combining(each))
    return [word[:MAX_WORD_CHARS] for word in _WORD.findall(without_accents)]


def _cut_snippet(text: str, words: set[str]) -> str:
    """Return an excerpt of a text around its first match."""
    parts = text.split()
    first = next((place for place, part in enumerate(parts) if words & set(_split_words(part))), 0)
    start = max(0, first - SNIPPET_WORDS // 4)
    end = start + SNIPPET_WORDS
    snippet = " ".join(parts[start:end])
    return f"{'…' if start else ''}{snippet}{'…' if end < len(parts) else ''}"


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def _read_session(row: Mapping[str, Any]) -> SessionRecord:
    values = {each.name: row[each.name] for each in fields(SessionRecord)}
    values |= {key: json.loads(values[key]) for key in _JSON_COLUMNS}
    toolsets = values["toolsets"]
    values["toolsets"] = None if toolsets is None else tuple(toolsets)
    values["disabled_toolsets"] = tuple(values["disabled_toolsets"])
    return SessionRecord(**values)
