"""Store the messages that preceded successful tool calls, in an SQLite file.

Private (mode 0600, in the state directory), bounded in number and bytes, and safe for several processes.
Forgotten texts are overwritten in the file. Knows nothing of how messages affect a ranking.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, get_args

from toolfold.config.atomic import make_private_directory
from toolfold.core.types import USER_LEARNER_PREFIX
from toolfold.state.database import Database

Origin = Literal["message", "search"]
"""Whether a text is a user's message or a model's query of `tool_search`."""

LEARNED_DIRECTORY = "learned"
"""Subdirectory of the state directory."""
FILE_NAME = "learned.sqlite"
PRIVATE_TEXT = "(private message of a user)"
MAX_LEARNED_MESSAGES = 2_000
MAX_MESSAGES_PER_TOOL = 24
MAX_CLIENT_MESSAGES_PER_TOOL = 12
MAX_FILE_BYTES = 16 << 20
MAX_COUNT = 1_000
"""Highest number of uses and misses that is counted for one message."""
MAX_COUNTED_REQUESTS = 400
"""Number of requests of a client at which its counts are halved, so that they follow its present use."""
MAX_TOTALS = 10_000
_PAGE_BYTES = 4_096
_BUSY_TIMEOUT_S = 5.0
_SCHEMA_VERSION = 1
_SCHEMA = (
    """
CREATE TABLE IF NOT EXISTS learned (
    id INTEGER PRIMARY KEY, client TEXT NOT NULL, server TEXT NOT NULL, tool TEXT NOT NULL,
    name TEXT NOT NULL, checksum TEXT NOT NULL, sketch TEXT NOT NULL, text TEXT NOT NULL,
    origin TEXT NOT NULL, uses INTEGER NOT NULL, misses INTEGER NOT NULL, first_used REAL NOT NULL,
    last_used REAL NOT NULL, model TEXT NOT NULL DEFAULT '', vector BLOB NOT NULL DEFAULT x'',
    UNIQUE (client, server, tool, text)
)
""",
    """
CREATE TABLE IF NOT EXISTS totals (
    client TEXT NOT NULL, server TEXT NOT NULL, tool TEXT NOT NULL, uses INTEGER NOT NULL,
    PRIMARY KEY (client, server, tool)
)
""",
)
PUBLIC_GROUP = (
    f"CASE WHEN substr(client, 1, {len(USER_LEARNER_PREFIX)}) = '{USER_LEARNER_PREFIX}'"
    " THEN client ELSE '' END, server, tool"
)
"""Messages that share the limit of a tool: each user has its own, so that no user displaces another's."""
OVER_LIMIT = """
SELECT id FROM (
    SELECT id, ROW_NUMBER() OVER (PARTITION BY {group} ORDER BY last_used DESC, id DESC) AS place FROM learned
) WHERE place > ?
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedMessage:
    """Message of a client that preceded a successful tool call."""

    client: str
    """Name of the gateway or proxy client; empty for sessions and agents on this machine."""
    server: str
    tool: str
    """The author's name of the tool, without the prefix of its server."""
    name: str
    """The name under which the tool was registered when it was last called."""
    checksum: str
    sketch: str
    text: str
    origin: Origin
    uses: int = 1
    """How often the tool was called after this text."""
    misses: int = 0
    """How often the text, or a very similar one, was followed by calls of other tools only."""
    first_used: float
    last_used: float
    model: str = ""
    """The embedding model of the vector."""
    vector: bytes = field(default=b"", repr=False)
    """The text's vector as 16-bit floats; empty if it is not computed yet."""
    id: int = 0

    @property
    def is_private(self) -> bool:
        """Return True if the message belongs to a user, so that its text must not be displayed."""
        return self.client.startswith(USER_LEARNER_PREFIX)

    @property
    def shown_text(self) -> str:
        """Return the message's text for display, or a placeholder if the message is private."""
        return PRIVATE_TEXT if self.is_private else self.text


COLUMNS = tuple(each.name for each in fields(LearnedMessage) if each.name != "id")


class LearnedMessageStore(ABC):
    """Interface of a store of learned messages. Thread-safe."""

    @abstractmethod
    def version(self) -> object:
        """Return a value that changes when any process changes the learned messages. Fast."""

    @abstractmethod
    def load(self) -> list[LearnedMessage]:
        """Return all valid learned messages, the most recently used first."""

    @abstractmethod
    def load_totals(self) -> dict[tuple[str, str, str], int]:
        """Return the number of tool calls for each client, server and tool.

        The number of requests of a client is under an empty server and tool.
        """

    @abstractmethod
    def add(self, message: LearnedMessage, *, expire_before: float, is_new_request: bool = True) -> None:
        """Store a learned message, or count another use of it; then remove expired and excess messages.

        `is_new_request` is False if the message was already stored for another tool that was called for it.
        """

    @abstractmethod
    def add_misses(self, ids: Iterable[int]) -> None:
        """Count a miss for each of the given messages, because its tool was offered but not called."""

    @abstractmethod
    def set_vectors(self, model: str, vectors: Mapping[int, bytes]) -> None:
        """Store the vectors of messages, by message id."""

    @abstractmethod
    def forget(self, wanted: Callable[[LearnedMessage], bool] | None = None) -> int:
        """Remove the learned messages for which `wanted` returns True; return their number.

        Without `wanted`, everything is removed, also invalid rows that another program has written.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the file, or stop reading changes from the database."""


def open_learned(state_directory: Path, database: Database | None) -> LearnedMessageStore:
    """Open the store of learned messages: in the database shared by replicas or, without one, in a file."""
    if database is None:
        return LearnedStore(state_directory / LEARNED_DIRECTORY)
    from toolfold.selection.retrieval.shared_learned import SharedLearnedStore

    return SharedLearnedStore(database)


class LearnedStore(LearnedMessageStore):
    """Learned messages in an SQLite file, which is created when the first message is stored. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / FILE_NAME
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._own_changes = 0

    def version(self) -> object:
        """Return a value that changes when any process changes the learned messages. Fast."""
        with self._lock:
            if self._db is None and not self._file.exists():
                return None
            external = self._open().execute("PRAGMA data_version").fetchone()[0]
            return external, self._own_changes

    def load(self) -> list[LearnedMessage]:
        """Return all valid learned messages, the most recently used first."""
        with self._lock:
            if self._db is None and not self._file.exists():
                return []
            columns = ", ".join(("id", *COLUMNS))
            rows = self._open().execute(
                f"SELECT {columns} FROM learned ORDER BY last_used DESC, id DESC LIMIT ?",  # noqa: S608
                (MAX_LEARNED_MESSAGES,),
            )
            return [message for row in rows if (message := parse_row(row))]

    def load_totals(self) -> dict[tuple[str, str, str], int]:
        """Return the number of tool calls for each client, server and tool.

        The number of requests of a client is under an empty server and tool.
        """
        with self._lock:
            if self._db is None and not self._file.exists():
                return {}
            rows = self._open().execute(
                "SELECT client, server, tool, uses FROM totals LIMIT ?", (MAX_TOTALS,)
            )
            return {(str(client), str(server), str(tool)): int(uses) for client, server, tool, uses in rows}

    def add(self, message: LearnedMessage, *, expire_before: float, is_new_request: bool = True) -> None:
        """Store a learned message, or count another use of it; then remove expired and excess messages.

        `is_new_request` is False if the message was already stored for another tool that was called for it.
        """
        names = ", ".join(COLUMNS)
        marks = ", ".join("?" * len(COLUMNS))
        with self._change() as db:
            db.execute(
                f"INSERT INTO learned ({names}) VALUES ({marks})"  # noqa: S608
                " ON CONFLICT (client, server, tool, text) DO UPDATE SET uses = MIN(uses + 1, ?),"
                " last_used = excluded.last_used, name = excluded.name, checksum = excluded.checksum,"
                " sketch = excluded.sketch",
                (*(getattr(message, name) for name in COLUMNS), MAX_COUNT),
            )
            _count_use(db, message, is_new_request=is_new_request)
            db.execute("DELETE FROM learned WHERE last_used < ?", (expire_before,))
            for group, limit in (
                ("client, server, tool", MAX_CLIENT_MESSAGES_PER_TOOL),
                (PUBLIC_GROUP, MAX_MESSAGES_PER_TOOL),
            ):
                over = OVER_LIMIT.format(group=group)
                db.execute(f"DELETE FROM learned WHERE id IN ({over})", (limit,))  # noqa: S608
            _remove_excess(db)

    def add_misses(self, ids: Iterable[int]) -> None:
        """Count a miss for each of the given messages, because its tool was offered but not called."""
        with self._change() as db:
            db.executemany(
                "UPDATE learned SET misses = MIN(misses + 1, ?) WHERE id = ?",
                [(MAX_COUNT, each) for each in ids],
            )

    def set_vectors(self, model: str, vectors: Mapping[int, bytes]) -> None:
        """Store the vectors of messages, by message id."""
        with self._change() as db:
            db.executemany(
                "UPDATE learned SET model = ?, vector = ? WHERE id = ?",
                [(model, vector, each) for each, vector in vectors.items()],
            )

    def forget(self, wanted: Callable[[LearnedMessage], bool] | None = None) -> int:
        """Remove the learned messages for which `wanted` returns True; return their number.

        Without `wanted`, everything is removed, also invalid rows that another program has written.
        """
        if wanted is None:
            ids = self._list_ids()
        else:
            ids = [message.id for message in self.load() if wanted(message)]
        if not ids:
            return 0
        with self._change() as db:
            db.executemany("DELETE FROM learned WHERE id = ?", [(each,) for each in ids])
            db.execute(
                "DELETE FROM totals WHERE tool != '' AND (client, server, tool) NOT IN"
                " (SELECT client, server, tool FROM learned)"
            )
            db.execute("DELETE FROM totals WHERE client NOT IN (SELECT client FROM learned)")
        with self._lock:
            self._open().execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the log contains the texts, too
        return len(ids)

    def _list_ids(self) -> list[int]:
        with self._lock:
            if self._db is None and not self._file.exists():
                return []
            return [row[0] for row in self._open().execute("SELECT id FROM learned")]

    def delete_file(self) -> None:
        """Delete a damaged file of learned messages; the next process that needs the file recreates it."""
        self.close()
        for suffix in ("", "-wal", "-shm"):
            self._file.with_name(self._file.name + suffix).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file of learned messages."""
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    @contextlib.contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            db = self._open()
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")
            self._own_changes += 1

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            make_private_directory(self._file.parent)
            os.close(os.open(self._file, os.O_CREAT | os.O_RDWR, 0o600))  # before SQLite sets another mode
            self._file.chmod(0o600)
            self._db = self._connect()
        return self._db

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(
            self._file, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            pages = f"max_page_count = {MAX_FILE_BYTES // _PAGE_BYTES}"
            for setting in ("journal_mode = WAL", "synchronous = NORMAL", "secure_delete = ON", pages):
                db.execute(f"PRAGMA {setting}").fetchall()
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version > _SCHEMA_VERSION:
                raise sqlite3.DatabaseError(
                    f"the file of learned messages was written by a newer version of Toolfold ({version})"
                )
            if version == 0:
                for statement in _SCHEMA:
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        except BaseException:
            db.close()
            raise
        return db


def _count_use(db: sqlite3.Connection, message: LearnedMessage, *, is_new_request: bool) -> None:
    """Count a tool call and, with `is_new_request`, also a request; halve the client's counts at a limit."""
    keys = [(message.client, message.server, message.tool)]
    if is_new_request:
        keys.append((message.client, "", ""))
    db.executemany(
        "INSERT INTO totals VALUES (?, ?, ?, 1)"
        " ON CONFLICT (client, server, tool) DO UPDATE SET uses = uses + 1",
        keys,
    )
    full = "SELECT client FROM totals WHERE tool = '' AND uses >= ?"
    db.execute(f"UPDATE totals SET uses = uses / 2 WHERE client IN ({full})", (MAX_COUNTED_REQUESTS,))  # noqa: S608
    db.execute("DELETE FROM totals WHERE uses < 1")
    count = db.execute("SELECT COUNT(*) FROM totals").fetchone()[0]
    for _ in range(max(0, count - MAX_TOTALS)):  # as for messages: no client or user displaces others
        db.execute(
            "DELETE FROM totals WHERE rowid = (SELECT rowid FROM totals WHERE client ="
            " (SELECT client FROM totals GROUP BY client ORDER BY COUNT(*) DESC, client LIMIT 1)"
            " ORDER BY tool = '', uses, rowid LIMIT 1)"
        )


def _remove_excess(db: sqlite3.Connection) -> None:
    """While too many messages are stored, remove the oldest message of the client with the most messages."""
    count = db.execute("SELECT COUNT(*) FROM learned").fetchone()[0]
    for _ in range(max(0, count - MAX_LEARNED_MESSAGES)):
        db.execute(
            "DELETE FROM learned WHERE id = (SELECT id FROM learned WHERE client ="
            " (SELECT client FROM learned GROUP BY client ORDER BY COUNT(*) DESC, MIN(last_used) LIMIT 1)"
            " ORDER BY last_used, id LIMIT 1)"
        )


def parse_row(row: tuple[object, ...]) -> LearnedMessage | None:
    """Convert a database row to a learned message; None if the row is invalid."""
    values = dict(zip(("id", *COLUMNS), row, strict=True))
    kinds = {"id": int, "uses": int, "misses": int, "first_used": float, "last_used": float, "vector": bytes}
    if not all(isinstance(value, kinds.get(name, str)) for name, value in values.items()):
        return None
    message = LearnedMessage(**values)  # type: ignore[arg-type]
    is_valid = message.origin in get_args(Origin) and message.uses > 0 and message.misses >= 0
    return message if is_valid and _is_hex(message.sketch, 64) else None


def _is_hex(text: str, length: int) -> bool:
    return len(text) == length and all(char in "0123456789abcdef" for char in text)
