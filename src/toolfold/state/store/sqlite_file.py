"""Open SQLite files that only the user can read, and write to them in transactions.

A full disk, a damaged file and other faults of the machine raise StoreFileError, which says what to do.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from toolfold.core.errors import ToolfoldError
from toolfold.core.types import make_json_encodable

BUSY_TIMEOUT_S = 10.0
"""How long a statement waits for another process that writes to the file."""
_RETRY_INTERVAL_S = 0.01
_MIN_FREE_BYTES = 64 * 1024  # SQLite's shared memory file has 32 KiB
_DAMAGED = "is damaged: {error}. `toolfold store recover` sets it aside and keeps what can still be read"
_FULL = "cannot be written: the disk is full. Free some space, then try again"
_UNUSABLE = "cannot be read or written: {error}. Check the disk, and the permissions of the file"
_FAULTS = {
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_IOERR: _UNUSABLE,
    sqlite3.SQLITE_CANTOPEN: _UNUSABLE,
    sqlite3.SQLITE_READONLY: _UNUSABLE,
    sqlite3.SQLITE_PERM: _UNUSABLE,
}

P = ParamSpec("P")
T = TypeVar("T")


class StoreFileError(ToolfoldError, sqlite3.OperationalError):
    """A file with Toolfold's state cannot be used: the disk is full, or the file is damaged."""

    def __init__(self, file: str, error: sqlite3.Error) -> None:
        self.sqlite_errorcode = getattr(error, "sqlite_errorcode", 0)
        problem = _FAULTS.get(self.sqlite_errorcode & 0xFF, _UNUSABLE)
        if problem is _UNUSABLE and _is_disk_full(file):  # such as SQLITE_IOERR_SHMSIZE
            problem = _FULL
        super().__init__(f"{file} {problem.format(error=error)}.")


def _is_disk_full(file: str) -> bool:
    with contextlib.suppress(OSError):
        return shutil.disk_usage(Path(file).parent).free < _MIN_FREE_BYTES
    return False


def is_damage(error: sqlite3.Error) -> bool:
    """Return True if an error means that the content of the file is damaged."""
    return _FAULTS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF) is _DAMAGED


def _report_faults(method: Callable[P, T]) -> Callable[P, T]:
    """Raise StoreFileError if a method of a connection or cursor fails because of the file or the disk."""

    @functools.wraps(method)
    def call(*parts: P.args, **options: P.kwargs) -> T:
        try:
            return method(*parts, **options)
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code not in _FAULTS or isinstance(error, StoreFileError):
                raise
            raise StoreFileError(str(getattr(parts[0], "file", "")), error) from error

    return call


class _Cursor(sqlite3.Cursor):
    """Cursor that stores texts with lone surrogates, which SQLite refuses, without them."""

    file = ""

    @_report_faults
    def execute(self, statement: str, values: Any = ()) -> Any:
        try:
            return super().execute(statement, values)
        except UnicodeEncodeError:
            return super().execute(statement, make_json_encodable(values))

    @_report_faults
    def executemany(self, statement: str, rows: Iterable[Any]) -> Any:
        return super().executemany(statement, map(make_json_encodable, rows))

    fetchone = _report_faults(sqlite3.Cursor.fetchone)
    fetchall = _report_faults(sqlite3.Cursor.fetchall)
    __next__ = _report_faults(sqlite3.Cursor.__next__)  # type: ignore[arg-type]


class _Connection(sqlite3.Connection):
    file = ""

    def cursor(self, factory: Any = _Cursor) -> Any:
        cursor = super().cursor(factory)
        cursor.file = self.file
        return cursor

    def execute(self, *parts: Any) -> sqlite3.Cursor:
        found: sqlite3.Cursor = self.cursor().execute(*parts)
        return found

    def executemany(self, *parts: Any) -> sqlite3.Cursor:
        found: sqlite3.Cursor = self.cursor().executemany(*parts)
        return found


def open_private_file(file: Path, *, synchronous: Literal["NORMAL", "FULL"] = "NORMAL") -> sqlite3.Connection:
    """Open or create an SQLite file that only the user can read; rows support access by column name.

    With `FULL`, a finished transaction also survives a power failure.
    """
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    db = connect(file)
    with close_on_error(db):
        file.chmod(0o600)
        _use_write_ahead_log(db)
        for setting in (f"synchronous = {synchronous}", "foreign_keys = ON"):
            db.execute(f"PRAGMA {setting}")
    return db


def _use_write_ahead_log(db: sqlite3.Connection) -> None:
    """Change a new file to a write-ahead log, also if another process does the same at this moment.

    SQLite waits only for a process that reads the file, not for one that changes it.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_INTERVAL_S)
        else:
            return


def connect(file: Path | str) -> sqlite3.Connection:
    """Open an SQLite file, or `:memory:`, for use in several threads."""
    try:
        db = _Connection(file, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    except sqlite3.OperationalError as error:
        raise StoreFileError(str(file), error) from error
    db.file = str(file)
    db.row_factory = sqlite3.Row
    return db


@contextlib.contextmanager
def close_on_error(db: sqlite3.Connection) -> Iterator[None]:
    """Close a connection if the `with` block fails, for a caller that could not close it then."""
    try:
        yield
    except BaseException:
        db.close()
        raise


@contextlib.contextmanager
def write_transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run a `with` block as one transaction; roll back if the block or the commit fails."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
