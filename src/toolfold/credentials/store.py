"""Store encrypted credentials: in an SQLite file, or in the database that replicas share.

A credential has a user, a server and a name. Only encrypted values are stored; the keys are elsewhere.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolfold.credentials.keys import CredentialKeys, read_key_id
from toolfold.database import SharedCopy
from toolfold.errors import ConfigError
from toolfold.store.sqlite_file import open_private_file, write_transaction

if TYPE_CHECKING:
    from toolfold.database import Database, RowCursor

OWNER = ""
"""User id of credentials of the installation itself: for its own sessions, and to list a server's tools."""
MAX_SECRET_CHARS = 65_536
MAX_PER_SERVER = 50
"""Credentials of one user for one server."""
TOPIC = "credentials"
_NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class Credential:
    """A stored credential, encrypted."""

    user_id: str
    server: str
    name: str
    value: str
    updated: float

    @property
    def key_id(self) -> str:
        """Return the id of the key with which the credential is encrypted."""
        return read_key_id(self.value)

    @property
    def owner(self) -> tuple[str, str, str]:
        """Return the user, server and name of the credential, to which its encrypted value is bound."""
        return self.user_id, self.server, self.name


class CredentialStore(ABC):
    """The credentials of all users. Thread-safe."""

    def __init__(self, load_keys: Callable[[], CredentialKeys]) -> None:
        """Create a store; `load_keys` is called whenever something is encrypted or decrypted."""
        self._load_keys = load_keys

    @functools.cached_property
    def keys(self) -> CredentialKeys:
        """Return the encryption keys. Raises ConfigError if they are missing or invalid."""
        return self._load_keys()

    def set(self, user_id: str, server: str, name: str, secret: str) -> None:
        """Store a credential, replacing one of the same name. Raises ConfigError."""
        _require_valid(name, secret)
        others = {each.name for each in self.list_credentials(user_id) if each.server == server} - {name}
        if len(others) >= MAX_PER_SERVER:
            raise ConfigError(f"a user can have at most {MAX_PER_SERVER} credentials for one server")
        value = self.keys.encrypt(secret, (user_id, server, name))
        self._write([Credential(user_id, server, name, value, time.time())])

    def load(self, user_id: str, server: str) -> dict[str, str]:
        """Return the decrypted credentials of a user for a server, by name. Raises UnreadableCredential."""
        found = list(self._find(user_id, server))
        if any(each.key_id not in self.keys.ids for each in found):
            self.__dict__.pop("keys", None)  # they were replaced since, by `toolfold credentials rotate-key`
        return {each.name: self.keys.decrypt(each.value, each.owner) for each in found}

    def find_version(self, user_id: str, server: str) -> str:
        """Return a text that differs after each change of a user's credentials for a server; empty for none.

        Does not wait for a database. Raises DatabaseUnavailable if removed ones may not be known here.
        """
        values = sorted((each.name, each.value) for each in self._find(user_id, server))
        return hashlib.sha256(repr(values).encode()).hexdigest() if values else ""

    def rotate(self) -> int:
        """Encrypt all credentials with the first key; return how many were encrypted with another key.

        Raises UnreadableCredential if one cannot be decrypted; then nothing is changed.
        """

        def encrypt_again(stored: Sequence[Credential]) -> list[Credential]:
            old = [each for each in stored if each.key_id != self.keys.primary]
            plain = [self.keys.decrypt(each.value, each.owner) for each in old]
            return [
                Credential(*each.owner, self.keys.encrypt(text, each.owner), each.updated)
                for each, text in zip(old, plain, strict=True)
            ]

        return self._rewrite(encrypt_again)

    @abstractmethod
    def list_credentials(self, user_id: str | None = None) -> list[Credential]:
        """Return the credentials of one user, or of all users, sorted by user, server and name."""

    @abstractmethod
    def remove(self, user_id: str, server: str | None = None, name: str | None = None) -> int:
        """Delete credentials of a user; return how many were deleted."""

    @abstractmethod
    def close(self) -> None:
        """Close the file of the store, if it has one."""

    @abstractmethod
    def _find(self, user_id: str, server: str) -> Iterable[Credential]:
        """Return the credentials of a user for a server."""

    @abstractmethod
    def _write(self, credentials: Sequence[Credential]) -> None:
        """Add or replace credentials in one transaction."""

    @abstractmethod
    def _rewrite(self, change: Callable[[Sequence[Credential]], Sequence[Credential]]) -> int:
        """Replace credentials by those that a function returns; other processes cannot write meanwhile."""


class SqliteCredentialStore(CredentialStore):
    """Credentials in a file on this machine that only its owner can read."""

    def __init__(self, file: Path, load_keys: Callable[[], CredentialKeys]) -> None:
        """Open the credentials file, which is created if it does not exist."""
        super().__init__(load_keys)
        self._lock = threading.Lock()
        with _report_errors("opened"):
            self._db = open_private_file(file, synchronous="FULL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS credentials (user_id TEXT NOT NULL, server TEXT NOT NULL,"
                " name TEXT NOT NULL, value TEXT NOT NULL, updated REAL NOT NULL,"
                " PRIMARY KEY (user_id, server, name))"
            )

    def list_credentials(self, user_id: str | None = None) -> list[Credential]:
        condition, values = ("", ()) if user_id is None else (" WHERE user_id = ?", (user_id,))
        return self._query(f"SELECT * FROM credentials{condition} ORDER BY user_id, server, name", values)  # noqa: S608

    def remove(self, user_id: str, server: str | None = None, name: str | None = None) -> int:
        condition, values = _select("?", user_id, server, name)
        with self._transaction():
            return self._db.execute(f"DELETE FROM credentials WHERE {condition}", values).rowcount  # noqa: S608

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _find(self, user_id: str, server: str) -> Iterable[Credential]:
        return self._query("SELECT * FROM credentials WHERE user_id = ? AND server = ?", (user_id, server))

    def _write(self, credentials: Sequence[Credential]) -> None:
        with self._transaction():
            self._insert(credentials)

    def _rewrite(self, change: Callable[[Sequence[Credential]], Sequence[Credential]]) -> int:
        with self._transaction():
            rows = self._db.execute("SELECT * FROM credentials").fetchall()
            changed = change([_read_row(dict(row)) for row in rows])
            self._insert(changed)
        return len(changed)

    def _insert(self, credentials: Sequence[Credential]) -> None:
        self._db.executemany(
            "INSERT OR REPLACE INTO credentials (user_id, server, name, value, updated)"
            " VALUES (?, ?, ?, ?, ?)",
            [(*each.owner, each.value, each.updated) for each in credentials],
        )

    def _query(self, statement: str, values: Sequence[str]) -> list[Credential]:
        with _report_errors("read"), self._lock:
            return [_read_row(dict(row)) for row in self._db.execute(statement, values).fetchall()]

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with _report_errors("stored"), self._lock, write_transaction(self._db):
            yield


class SharedCredentialStore(CredentialStore):
    """Credentials in a database that all replicas share. Encrypted values are cached and kept up to date."""

    def __init__(self, database: Database, load_keys: Callable[[], CredentialKeys]) -> None:
        """Read the credentials from the database. Raises DatabaseError."""
        super().__init__(load_keys)
        self._database = database
        self._copy = SharedCopy(database, TOPIC, self._read_all, "credentials")

    def list_credentials(self, user_id: str | None = None) -> list[Credential]:
        found = [each for group in self._copy.value.values() for each in group]
        return sorted(
            (each for each in found if user_id is None or each.user_id == user_id),
            key=lambda each: each.owner,
        )

    def remove(self, user_id: str, server: str | None = None, name: str | None = None) -> int:
        condition, values = _select("%s", user_id, server, name)
        removed = self._database.execute(f"DELETE FROM credentials WHERE {condition}", values)  # noqa: S608
        self._copy.reload()
        return removed

    def close(self) -> None:
        """Do nothing: the shared database stays open for its other users."""

    def _find(self, user_id: str, server: str) -> Iterable[Credential]:
        return self._copy.require_recent().get((user_id, server), ())

    def _write(self, credentials: Sequence[Credential]) -> None:
        self._database.run(lambda cursor: _insert_shared(cursor, credentials))
        self._copy.reload()

    def _rewrite(self, change: Callable[[Sequence[Credential]], Sequence[Credential]]) -> int:
        def run(cursor: RowCursor) -> int:
            cursor.execute("LOCK TABLE credentials IN SHARE ROW EXCLUSIVE MODE")
            cursor.execute("SELECT * FROM credentials")
            changed = change([_read_row(row) for row in cursor.fetchall()])
            _insert_shared(cursor, changed)
            return len(changed)

        changed = self._database.run(run)
        self._copy.reload()
        return changed

    def _read_all(self) -> dict[tuple[str, str], list[Credential]]:
        """Return all credentials by user and server."""
        known: dict[tuple[str, str], list[Credential]] = {}
        for row in self._database.query("SELECT * FROM credentials"):
            each = _read_row(row)
            known.setdefault((each.user_id, each.server), []).append(each)
        return known


@contextlib.contextmanager
def _report_errors(action: str) -> Iterator[None]:
    """Raise ConfigError if SQLite or the file system reports an error in a `with` block."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise ConfigError(f"the credentials cannot be {action}: {error}") from None


def _insert_shared(cursor: RowCursor, credentials: Sequence[Credential]) -> None:
    cursor.executemany(
        "INSERT INTO credentials (user_id, server, name, value, updated) VALUES (%s, %s, %s, %s, %s)"
        " ON CONFLICT (user_id, server, name)"
        " DO UPDATE SET value = excluded.value, updated = excluded.updated",
        [(*each.owner, each.value, each.updated) for each in credentials],
    )


def _select(mark: str, user_id: str, server: str | None, name: str | None) -> tuple[str, tuple[str, ...]]:
    """Return an SQL condition, with placeholders, for credentials of a user."""
    wanted = {"user_id": user_id, "server": server, "name": name}
    given = {column: value for column, value in wanted.items() if value is not None}
    return " AND ".join(f"{column} = {mark}" for column in given), tuple(given.values())


def _read_row(row: dict[str, object]) -> Credential:
    return Credential(
        str(row["user_id"]),
        str(row["server"]),
        str(row["name"]),
        str(row["value"]),
        float(str(row["updated"])),
    )


def _require_valid(name: str, secret: str) -> None:
    if not _NAME_PATTERN.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a credential",
            hint="use up to 64 letters, digits and _, not starting with a digit",
        )
    if not 0 < len(secret) <= MAX_SECRET_CHARS or "\0" in secret:
        raise ConfigError(
            f"a credential must have between 1 and {MAX_SECRET_CHARS:,} characters, without NUL"
        )
