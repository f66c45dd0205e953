"""Approval questions that were asked on one replica and can be answered on another replica's page.

A thread of its own talks to the database, so that neither a call that waits nor a page is blocked by it.
Entries of a replica that has ended disappear after some seconds.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolfold.core.types import Json, make_encodable, read_json
from toolfold.serving.dashboard.approval_routes import QuestionExchange
from toolfold.state.database import Database, DatabaseError, RowCursor

log = logging.getLogger(__name__)

SYNC_INTERVAL_S = 3.0
LIFETIME_S = 12.0
"""Time after which questions and pages of a replica that no longer renews them are ignored."""
MAX_REMOTE_QUESTIONS = 200
MAX_DESCRIPTION_BYTES = 200_000
CLOSE_TIMEOUT_S = 10.0
_FIELDS: dict[str, type] = {
    **dict.fromkeys(("tool", "emoji", "session", "command", "part", "reason", "severity", "category"), str),
    **dict.fromkeys(("client", "user"), str),
    "process": int,
    **dict.fromkeys(("also", "rules", "answers"), list),
    "at": float,
}
"""Types of the fields of a description that pages show."""


@dataclass(frozen=True, slots=True)
class _OwnQuestion:
    """An approval question that was asked on this replica, with the description that other replicas show."""

    description: Json
    answers: tuple[str, ...]


@dataclass(slots=True)
class _State:
    """State of the other replicas: their approval questions, and whether a dashboard page is open there."""

    remote: list[Json] = field(default_factory=list)
    has_other_pages: bool = False


class SharedQuestions(QuestionExchange):
    """The open approval questions of all replicas. Thread-safe."""

    def __init__(
        self,
        database: Database,
        *,
        is_page_open: Callable[[], bool],
        answer_own: Callable[[str, str], bool],
    ) -> None:
        """Start the thread that exchanges approval questions and answers with other replicas.

        `is_page_open` tells whether a page of this replica is open. `answer_own` gets the answers that pages
        of other replicas give to questions of this one.
        """
        self._database, self._is_page_open, self._answer_own = database, is_page_open, answer_own
        self._replica = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._own: dict[str, _OwnQuestion] = {}
        self._state = _State()
        self._wake, self._ended = threading.Event(), False
        self._unsubscribe = [
            database.on_change(topic, self._wake.set) for topic in ("questions", "open_pages")
        ]
        self._thread = threading.Thread(target=self._run, name="toolfold-questions", daemon=True)
        self._thread.start()

    def has_other_pages(self) -> bool:
        """Return True if a dashboard page is open on another replica, where a person can answer questions."""
        return self._state.has_other_pages

    def add(self, question_id: str, description: Json, answers: tuple[str, ...]) -> None:
        """Show an approval question of this replica on the pages of the other replicas."""
        with self._lock:
            self._own[question_id] = _OwnQuestion(description, answers)
        self._wake.set()

    def remove(self, question_id: str) -> None:
        """Withdraw an approval question of this replica from the pages of the other replicas."""
        with self._lock:
            self._own.pop(question_id, None)
        self._wake.set()

    def update_page(self) -> None:
        """Notify the other replicas that a dashboard page was opened or closed on this replica."""
        self._wake.set()

    def list_remote(self) -> list[Json]:
        """Return the open approval questions of other replicas, oldest first."""
        return self._state.remote

    def answer(self, question_id: str, answer: str) -> bool:
        """Answer an approval question of another replica; return False if it is no longer open. Blocks."""
        if "\0" in question_id or make_encodable(question_id) != question_id:
            return False

        def store(cursor: RowCursor) -> bool:
            row = cursor.execute(
                "SELECT answers FROM questions WHERE id = %s AND answer IS NULL AND expires > now()"
                " FOR UPDATE",
                (question_id,),
            ).fetchone()
            offered = None if row is None else _parse_json(row["answers"])
            if not isinstance(offered, list) or answer not in offered:
                return False
            cursor.execute("UPDATE questions SET answer = %s WHERE id = %s", (answer, question_id))
            return True

        return self._database.run(store)

    def close(self) -> None:
        """End the thread, and delete the approval questions that this replica stored in the database."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._ended = True
        self._wake.set()
        self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        was_failing = False
        while not self._ended:
            self._wake.clear()
            try:
                self._sync()
                was_failing = False
            except Exception as error:
                self._state = _State()  # nobody elsewhere can be asked now
                if not was_failing:
                    log.warning("approval questions cannot be shared with other replicas now: %s", error)
                was_failing = True
            self._wake.wait(SYNC_INTERVAL_S)
        self._state = _State()
        try:
            self._database.run(self._delete_own)
        except DatabaseError as error:
            log.debug("the questions of this replica could not be withdrawn: %s", error)

    def _sync(self) -> None:
        """Exchange approval questions and answers with the other replicas through the database."""
        with self._lock:
            own = dict(self._own)
        is_open = self._is_page_open()
        answers, remote, has_other_pages = self._database.run(
            lambda cursor: self._exchange(cursor, own, is_open)
        )
        self._state = _State(
            remote=[
                found
                for row in remote
                if (found := parse_question(_parse_json(row["description"]), row["id"]))
            ],
            has_other_pages=has_other_pages,
        )
        for row in answers:
            self._answer_own(row["id"], row["answer"])

    def _exchange(
        self, cursor: RowCursor, own: Mapping[str, _OwnQuestion], is_open: bool
    ) -> tuple[list[Json], list[Json], bool]:
        """Store the state of this replica; return answers to its questions, and the state of the others."""
        self._write_questions(cursor, own)
        self._write_page(cursor, is_open)
        answers = cursor.execute(
            "SELECT id, answer FROM questions WHERE expires > now() AND answer IS NOT NULL"
            " AND replica = %s AND id = ANY(%s)",
            (self._replica, list(own)),
        ).fetchall()
        remote = cursor.execute(
            "SELECT id, description FROM questions WHERE expires > now() AND answer IS NULL"
            " AND replica != %s AND octet_length(description) <= %s ORDER BY asked LIMIT %s",
            (self._replica, MAX_DESCRIPTION_BYTES, MAX_REMOTE_QUESTIONS),
        ).fetchall()
        pages = cursor.execute(
            "SELECT 1 FROM open_pages WHERE expires > now() AND replica != %s LIMIT 1", (self._replica,)
        ).fetchall()
        return answers, remote, bool(pages)

    def _write_questions(self, cursor: RowCursor, own: Mapping[str, _OwnQuestion]) -> None:
        """Store new approval questions, renew stored ones before they expire, and delete withdrawn ones."""
        stored = cursor.execute(
            "SELECT id, expires - now() < %s * interval '1 second' AS is_old FROM questions"
            " WHERE replica = %s",
            (LIFETIME_S - SYNC_INTERVAL_S, self._replica),
        ).fetchall()
        known = {row["id"] for row in stored}
        if gone := known - own.keys():
            cursor.execute("DELETE FROM questions WHERE id = ANY(%s)", (list(gone),))
        if old := [row["id"] for row in stored if row["is_old"] and row["id"] in own]:
            cursor.execute(
                "UPDATE questions SET expires = now() + %s * interval '1 second' WHERE id = ANY(%s)",
                (LIFETIME_S, old),
            )
        for question_id in own.keys() - known:
            question = own[question_id]
            cursor.execute(
                "INSERT INTO questions (id, replica, description, answers, asked, expires)"
                " VALUES (%s, %s, %s, %s, %s, now() + %s * interval '1 second')",
                (
                    question_id,
                    self._replica,
                    json.dumps(question.description, default=str),
                    json.dumps(question.answers),
                    question.description["at"],
                    LIFETIME_S,
                ),
            )

    def _write_page(self, cursor: RowCursor, is_open: bool) -> None:
        row = cursor.execute(
            "SELECT expires - now() < %s * interval '1 second' AS is_old FROM open_pages WHERE replica = %s",
            (LIFETIME_S - SYNC_INTERVAL_S, self._replica),
        ).fetchone()
        if row is not None and not is_open:
            cursor.execute("DELETE FROM open_pages WHERE replica = %s", (self._replica,))
        elif is_open and (row is None or row["is_old"]):
            cursor.execute(
                "INSERT INTO open_pages (replica, expires) VALUES (%s, now() + %s * interval '1 second')"
                " ON CONFLICT (replica) DO UPDATE SET expires = excluded.expires",
                (self._replica, LIFETIME_S),
            )
            cursor.execute("DELETE FROM open_pages WHERE expires < now() - interval '1 hour'")
            cursor.execute("DELETE FROM questions WHERE expires < now() - interval '1 hour'")

    def _delete_own(self, cursor: RowCursor) -> None:
        cursor.execute("DELETE FROM questions WHERE replica = %s", (self._replica,))
        cursor.execute("DELETE FROM open_pages WHERE replica = %s", (self._replica,))


def parse_question(found: Any, question_id: str) -> Json | None:
    """Return the description of another process's question; None if it is damaged.

    A description with the id of another question is refused: the answer would be given to that one.
    """
    is_valid = (
        isinstance(found, dict)
        and found.get("id") == question_id
        and all(isinstance(found.get(name), kind) for name, kind in _FIELDS.items())
        and all(
            isinstance(each, dict) and {"value", "text", "meaning"} <= each.keys()
            for each in found["answers"]
        )
    )
    return found if is_valid else None


def _parse_json(text: str) -> Any:
    try:
        return read_json(text)
    except (ValueError, RecursionError):
        return None
