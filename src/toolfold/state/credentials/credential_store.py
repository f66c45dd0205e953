"""Store encrypted credentials and logins: in an SQLite file, or in the database shared by replicas.

A credential has a user, a server and a name. A login is what an OAuth issuer has granted to a user for a
server; there is at most one, and its id is another one after each login, but not after its tokens were
refreshed. Only encrypted values are stored; the keys are elsewhere.
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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolfold.core.errors import ConfigError
from toolfold.state.copy_report import CopyReport
from toolfold.state.credentials.keys import CredentialKeys, read_key_id
from toolfold.state.database import SharedCopy
from toolfold.state.store.sqlite_file import close_on_error, open_private_file, write_transaction

if TYPE_CHECKING:
    from toolfold.state.database import Database, RowCursor

OWNER = ""
"""User id of credentials of the installation itself: for its own sessions, and to list a server's tools."""
MAX_SECRET_CHARS = 65_536
MAX_PER_SERVER = 50
"""Credentials of one user for one server."""
MAX_LOGIN_CHARS = 500_000
LOGIN_PREFIX = "login:"
"""Start of the names of logins in lists of credentials; no credential has such a name."""
TOPIC = "credentials"
LOGINS_TOPIC = "logins"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS credentials (
    user_id TEXT NOT NULL, server TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
    updated REAL NOT NULL, PRIMARY KEY (user_id, server, name)
);
CREATE TABLE IF NOT EXISTS logins (
    user_id TEXT NOT NULL, server TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
    updated REAL NOT NULL, PRIMARY KEY (user_id, server)
);
CREATE TABLE IF NOT EXISTS login_leases (
    user_id TEXT NOT NULL, server TEXT NOT NULL, operation TEXT NOT NULL, owner TEXT NOT NULL,
    expires REAL NOT NULL, PRIMARY KEY (user_id, server, operation)
);
"""
_NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class Credential:
    """Encrypted credential in the store."""

    user_id: str
    server: str
    name: str
    value: str
    updated: float

    @property
    def key_id(self) -> str:
        """Return the id of the key that encrypts the credential."""
        return read_key_id(self.value)

    @property
    def owner(self) -> tuple[str, str, str]:
        """Return the user, server and name of the credential, to which its encrypted value is bound."""
        return self.user_id, self.server, self.name

    @property
    def is_login(self) -> bool:
        """Return True for an OAuth login; False for a credential that settings can refer to by name."""
        return self.name.startswith(LOGIN_PREFIX)


@dataclass(frozen=True, slots=True)
class Lease:
    """Reservation of an operation on a login, such as refreshing its tokens, by one process."""

    user_id: str
    server: str
    operation: str
    owner: str
    """Random id of the reservation."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Return the key of the reservation: user, server and operation."""
        return self.user_id, self.server, self.operation


class CredentialStore(ABC):
    """Store of the credentials and logins of all users. Thread-safe."""

    def __init__(self, load_keys: Callable[[], CredentialKeys]) -> None:
        """Create a store; `load_keys` is called when the encryption keys are first needed."""
        self._load_keys = load_keys

    @functools.cached_property
    def keys(self) -> CredentialKeys:
        """Return the encryption keys. Raises ConfigError if they are missing or invalid."""
        return self._load_keys()

    def reload_keys(self) -> CredentialKeys:
        """Read the encryption keys again, and return them. Raises ConfigError.

        Another process may have replaced them since, with `toolfold credentials rotate-key`.
        """
        self.__dict__["keys"] = keys = self._load_keys()
        return keys

    def set(self, user_id: str, server: str, name: str, secret: str) -> None:
        """Store a credential, replacing an existing one with the same name. Raises ConfigError."""
        _require_valid(name, secret)
        others = {each.name for each in self._find(user_id, server) if not each.is_login} - {name}
        if len(others) >= MAX_PER_SERVER:
            raise ConfigError(f"a user can have at most {MAX_PER_SERVER} credentials for one server")
        value = self.reload_keys().encrypt(secret, (user_id, server, name))
        self._write([Credential(user_id, server, name, value, time.time())])

    def load(self, user_id: str, server: str) -> dict[str, str]:
        """Return a user's decrypted credentials for a server, by name. Raises UnreadableCredential."""
        found = [each for each in self._find(user_id, server) if not each.is_login]
        return {each.name: self._decrypt(each) for each in found}

    def load_login(self, user_id: str, server: str) -> tuple[str, str] | None:
        """Return the id and decrypted text of a user's login at a server, read without a cache.

        Raises UnreadableCredential.
        """
        found = self._find_login(user_id, server)
        return None if found is None else (found.name.removeprefix(LOGIN_PREFIX), self._decrypt(found))

    def save_login(self, user_id: str, server: str, login_id: str, text: str, *, is_new: bool) -> bool:
        """Store a login; with `is_new`, replace any other login of the user at the server.

        Otherwise it replaces only the stored login with the same id: return False if that was removed or
        replaced meanwhile. Raises ConfigError.
        """
        if not 0 < len(text) <= MAX_LOGIN_CHARS:
            raise ConfigError(f"a stored login must have between 1 and {MAX_LOGIN_CHARS:,} characters")
        name = LOGIN_PREFIX + login_id
        value = self.reload_keys().encrypt(text, (user_id, server, name))
        return self._write_login(Credential(user_id, server, name, value, time.time()), is_new=is_new)

    def _decrypt(self, stored: Credential) -> str:
        if stored.key_id not in self.keys.ids:
            self.reload_keys()
        return self.keys.decrypt(stored.value, stored.owner)

    def find_version(self, user_id: str, server: str, *, is_fresh: bool = False) -> str:
        """Return a hash that changes when a user's credentials for a server change; empty if there are none.

        A new login counts as a change, refreshed tokens do not. Does not wait for a database, unless
        `is_fresh` is set: then changes that were made just now on another replica count. Raises
        DatabaseUnavailable if removed ones may not be known here.
        """
        found = self._read(user_id, server) if is_fresh else self._find(user_id, server)
        values = sorted((each.name, each.value) for each in found)
        return hashlib.sha256(repr(values).encode()).hexdigest() if values else ""

    def rotate(self) -> int:
        """Re-encrypt all credentials and logins that use an old key with the first key; return their number.

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
        """Return the credentials and logins of one user or all users, sorted by user, server and name."""

    def list_key_ids(self) -> frozenset[str]:
        """Return the ids of the keys that encrypt stored credentials and logins."""
        return frozenset(each.key_id for each in self.list_credentials())

    @abstractmethod
    def remove(self, user_id: str, server: str | None = None, name: str | None = None) -> int:
        """Delete a user's credentials and, if no name is given, the logins; return how many were deleted."""

    @abstractmethod
    def remove_login(self, user_id: str, server: str) -> bool:
        """Delete a user's login at a server; return False if there is none."""

    @abstractmethod
    def take_lease(self, lease: Lease, seconds: float) -> bool:
        """Reserve an operation for one process for a limited time; return False if it is already reserved."""

    @abstractmethod
    def end_lease(self, lease: Lease) -> None:
        """Release the reservation of an operation, unless another process has reserved it meanwhile."""

    @abstractmethod
    def close(self) -> None:
        """Close the store's file, if it has one."""

    @abstractmethod
    def _find(self, user_id: str, server: str) -> Iterable[Credential]:
        """Return a user's credentials for a server, and the user's login without its value."""

    @abstractmethod
    def _read(self, user_id: str, server: str) -> Iterable[Credential]:
        """Return the same credentials and login as `_find`, read without a cache."""

    @abstractmethod
    def _find_login(self, user_id: str, server: str) -> Credential | None:
        """Return a user's login at a server, read without a cache."""

    @abstractmethod
    def _write_login(self, login: Credential, *, is_new: bool) -> bool:
        """Add or replace a login, as described in `save_login`."""

    @abstractmethod
    def _write(self, credentials: Sequence[Credential]) -> None:
        """Add or replace credentials in one transaction."""

    @abstractmethod
    def _rewrite(self, change: Callable[[Sequence[Credential]], Sequence[Credential]]) -> int:
        """Replace credentials by the result of a function; block other writers in the meantime."""


class SqliteCredentialStore(CredentialStore):
    """Store that keeps credentials in a local file that only its owner can read."""

    def __init__(self, file: Path, load_keys: Callable[[], CredentialKeys]) -> None:
        """Open the credentials file; create it if it does not exist."""
        super().__init__(load_keys)
        self._lock = threading.Lock()
        with _report_errors("opened"):
            self._db = open_private_file(file, synchronous="FULL")
            with close_on_error(self._db):
                self._db.executescript(_SCHEMA)

    def list_credentials(self, user_id: str | None = None) -> list[Credential]:
        condition, values = ("", ()) if user_id is None else (" WHERE user_id = ?", (user_id,))
        rows = self._query(f"SELECT * FROM credentials{condition}", values)  # noqa: S608
        rows += self._query(f"SELECT * FROM logins{condition}", values)  # noqa: S608
        return sorted(rows, key=lambda each: each.owner)

    def remove(self, user_id: str, server: str | None = None, name: str | None = None) -> int:
        condition, values = _select("?", user_id, server, name)
        with self._transaction():
            removed = self._db.execute(f"DELETE FROM credentials WHERE {condition}", values).rowcount  # noqa: S608
            if name is None:
                removed += self._db.execute(f"DELETE FROM logins WHERE {condition}", values).rowcount  # noqa: S608
        return removed

    def remove_login(self, user_id: str, server: str) -> bool:
        with self._transaction():
            statement = "DELETE FROM logins WHERE user_id = ? AND server = ?"
            return self._db.execute(statement, (user_id, server)).rowcount > 0

    def take_lease(self, lease: Lease, seconds: float) -> bool:
        now = time.time()
        with self._transaction():
            return (
                self._db.execute(
                    "INSERT INTO login_leases (user_id, server, operation, owner, expires)"
                    " VALUES (?, ?, ?, ?, ?) ON CONFLICT (user_id, server, operation)"
                    " DO UPDATE SET owner = excluded.owner, expires = excluded.expires"
                    " WHERE login_leases.expires < ?",
                    (*lease.key, lease.owner, now + seconds, now),
                ).rowcount
                > 0
            )

    def end_lease(self, lease: Lease) -> None:
        with self._transaction():
            self._db.execute(
                "DELETE FROM login_leases WHERE user_id = ? AND server = ? AND operation = ? AND owner = ?",
                (*lease.key, lease.owner),
            )

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _find(self, user_id: str, server: str) -> Iterable[Credential]:
        return self._read(user_id, server)

    def _read(self, user_id: str, server: str) -> Iterable[Credential]:
        return self._query(
            "SELECT * FROM credentials WHERE user_id = ? AND server = ? UNION ALL"
            " SELECT user_id, server, name, '' AS value, updated FROM logins"
            " WHERE user_id = ? AND server = ?",
            (user_id, server, user_id, server),
        )

    def _find_login(self, user_id: str, server: str) -> Credential | None:
        found = self._query("SELECT * FROM logins WHERE user_id = ? AND server = ?", (user_id, server))
        return found[0] if found else None

    def _write_login(self, login: Credential, *, is_new: bool) -> bool:
        with self._transaction():
            if is_new:
                self._db.execute(
                    "INSERT OR REPLACE INTO logins (user_id, server, name, value, updated)"
                    " VALUES (?, ?, ?, ?, ?)",
                    (*login.owner, login.value, login.updated),
                )
                return True
            return self._db.execute(_UPDATE_LOGIN.replace("%s", "?"), _login_values(login)).rowcount > 0

    def _write(self, credentials: Sequence[Credential]) -> None:
        with self._transaction():
            self._insert(credentials)

    def _rewrite(self, change: Callable[[Sequence[Credential]], Sequence[Credential]]) -> int:
        with self._transaction():
            rows = self._db.execute("SELECT * FROM credentials UNION ALL SELECT * FROM logins").fetchall()
            changed = change([_read_row(dict(row)) for row in rows])
            self._insert([each for each in changed if not each.is_login])
            for login in (each for each in changed if each.is_login):
                self._db.execute(_UPDATE_LOGIN.replace("%s", "?"), _login_values(login))
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
    """Store that keeps credentials in the shared database, and caches the encrypted values in memory."""

    def __init__(self, database: Database, load_keys: Callable[[], CredentialKeys]) -> None:
        """Read the credentials from the database. Raises DatabaseError."""
        super().__init__(load_keys)
        self._database = database
        self._copy = SharedCopy(database, TOPIC, self._read_credentials, "credentials")
        self._login_names = SharedCopy(database, LOGINS_TOPIC, self._read_login_names, "logins")

    def list_credentials(self, user_id: str | None = None) -> list[Credential]:
        condition, values = ("", ()) if user_id is None else (" WHERE user_id = %s", (user_id, user_id))
        statement = f"SELECT * FROM credentials{condition} UNION ALL SELECT * FROM logins{condition}"  # noqa: S608
        return sorted(map(_read_row, self._database.query(statement, values)), key=lambda each: each.owner)

    def list_key_ids(self) -> frozenset[str]:
        rows = self._database.query(
            "SELECT split_part(value, '.', 2) AS id FROM credentials"
            " UNION SELECT split_part(value, '.', 2) FROM logins"
        )
        return frozenset(row["id"] for row in rows)

    def remove(self, user_id: str, server: str | None = None, name: str | None = None) -> int:
        condition, values = _select("%s", user_id, server, name)
        tables = ("credentials", "logins") if name is None else ("credentials",)

        def delete(cursor: RowCursor) -> int:
            statements = [f"DELETE FROM {table} WHERE {condition}" for table in tables]  # noqa: S608
            return sum(cursor.execute(each.encode(), values).rowcount for each in statements)

        removed = self._database.run(delete)
        self._copy.reload()
        if name is None:
            self._login_names.reload()
        return removed

    def remove_login(self, user_id: str, server: str) -> bool:
        statement = "DELETE FROM logins WHERE user_id = %s AND server = %s"
        removed = self._database.execute(statement, (user_id, server))
        self._login_names.reload()
        return removed > 0

    def take_lease(self, lease: Lease, seconds: float) -> bool:
        taken = self._database.execute(  # two replicas wait for each other at the row
            "INSERT INTO login_leases (user_id, server, operation, owner, expires)"
            " VALUES (%s, %s, %s, %s, clock_timestamp() + make_interval(secs => %s))"
            " ON CONFLICT (user_id, server, operation)"
            " DO UPDATE SET owner = excluded.owner, expires = excluded.expires"
            " WHERE login_leases.expires < clock_timestamp()",
            (*lease.key, lease.owner, seconds),
        )
        return taken > 0

    def end_lease(self, lease: Lease) -> None:
        self._database.execute(
            "DELETE FROM login_leases WHERE user_id = %s AND server = %s AND operation = %s AND owner = %s",
            (*lease.key, lease.owner),
        )

    def copy_from(self, source: CredentialStore, user_ids: Collection[str], *, dry_run: bool) -> CopyReport:
        """Add the encrypted credentials and logins that the database lacks; with `dry_run`, only report it.

        Those of users who are not in `user_ids` are not added.
        """
        report = CopyReport("credentials and logins of users")
        known = {_copy_key(each): each for each in self.list_credentials()}
        for each in source.list_credentials():
            name = f"{each.server} {'login' if each.is_login else each.name} {each.user_id}".strip()
            found = known.get(_copy_key(each))
            if found is not None:
                report.note_known(name, is_same=found.value == each.value)
            elif each.user_id != OWNER and each.user_id not in user_ids:
                report.conflicts[name] = "its user is not in the database"
            else:
                if not dry_run and each.is_login:
                    self._write_login(each, is_new=True)
                elif not dry_run:
                    self._write([each])
                report.copied.append(name)
        return report

    def close(self) -> None:
        """Do nothing, because other objects still use the shared database."""

    def _find(self, user_id: str, server: str) -> Iterable[Credential]:
        found = self._copy.require_recent().get((user_id, server), [])
        name = self._login_names.require_recent().get((user_id, server))
        return found if name is None else [*found, Credential(user_id, server, name, "", 0.0)]

    def _read(self, user_id: str, server: str) -> Iterable[Credential]:
        rows = self._database.query(
            "SELECT * FROM credentials WHERE user_id = %s AND server = %s UNION ALL"
            " SELECT user_id, server, name, '' AS value, 0 AS updated FROM logins"
            " WHERE user_id = %s AND server = %s",
            (user_id, server, user_id, server),
        )
        return map(_read_row, rows)

    def _find_login(self, user_id: str, server: str) -> Credential | None:
        statement = "SELECT * FROM logins WHERE user_id = %s AND server = %s"
        rows = self._database.query(statement, (user_id, server))
        return _read_row(rows[0]) if rows else None

    def _write_login(self, login: Credential, *, is_new: bool) -> bool:
        if not is_new:
            return self._database.execute(_UPDATE_LOGIN, _login_values(login)) > 0
        self._database.execute(
            "INSERT INTO logins (user_id, server, name, value, updated) VALUES (%s, %s, %s, %s, %s)"
            " ON CONFLICT (user_id, server)"
            " DO UPDATE SET name = excluded.name, value = excluded.value, updated = excluded.updated",
            (*login.owner, login.value, login.updated),
        )
        self._login_names.reload()
        return True

    def _write(self, credentials: Sequence[Credential]) -> None:
        self._database.run(lambda cursor: _insert_shared(cursor, credentials))
        self._copy.reload()

    def _rewrite(self, change: Callable[[Sequence[Credential]], Sequence[Credential]]) -> int:
        def run(cursor: RowCursor) -> int:
            cursor.execute("LOCK TABLE credentials, logins IN SHARE ROW EXCLUSIVE MODE")
            cursor.execute("SELECT * FROM credentials UNION ALL SELECT * FROM logins")
            changed = change([_read_row(row) for row in cursor.fetchall()])
            _insert_shared(cursor, [each for each in changed if not each.is_login])
            logins = [_login_values(each) for each in changed if each.is_login]
            cursor.executemany(_UPDATE_LOGIN, logins)
            return len(changed)

        changed = self._database.run(run)
        self._copy.reload()
        return changed

    def _read_credentials(self) -> dict[tuple[str, str], list[Credential]]:
        """Return all credentials except logins, by user and server."""
        known: dict[tuple[str, str], list[Credential]] = {}
        for row in self._database.query("SELECT * FROM credentials"):
            each = _read_row(row)
            known.setdefault((each.user_id, each.server), []).append(each)
        return known

    def _read_login_names(self) -> dict[tuple[str, str], str]:
        """Return the names of all logins, by user and server."""
        rows = self._database.query("SELECT user_id, server, name FROM logins")
        return {(row["user_id"], row["server"]): row["name"] for row in rows}


def _copy_key(credential: Credential) -> tuple[str, str, str]:
    """Return what identifies a credential, or the only login of a user at a server."""
    return credential.user_id, credential.server, LOGIN_PREFIX if credential.is_login else credential.name


_UPDATE_LOGIN = "UPDATE logins SET value = %s, updated = %s WHERE user_id = %s AND server = %s AND name = %s"


def _login_values(login: Credential) -> tuple[str, float, str, str, str]:
    """Return the parameters of the SQL statement that replaces the tokens of a login."""
    return login.value, login.updated, *login.owner


@contextlib.contextmanager
def _report_errors(action: str) -> Iterator[None]:
    """Raise ConfigError if SQLite or the file system fails within a `with` block."""
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
    """Return an SQL condition, with placeholders, that selects credentials of a user."""
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
            hint="a credential name has up to 64 letters, digits and _, and does not start with a digit",
        )
    if not 0 < len(secret) <= MAX_SECRET_CHARS or "\0" in secret:
        raise ConfigError(
            f"a credential must have between 1 and {MAX_SECRET_CHARS:,} characters, without NUL"
        )
