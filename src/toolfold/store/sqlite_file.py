"""Open SQLite files that only the user can read, and write to them in transactions."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

BUSY_TIMEOUT_S = 10.0
"""How long a statement waits for another process that writes to the file."""
_RETRY_INTERVAL_S = 0.01


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
    db = sqlite3.connect(file, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
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
