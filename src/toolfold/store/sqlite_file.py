"""Open SQLite files that only the user can read, and write to them in transactions."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

BUSY_TIMEOUT_S = 10.0
"""How long a statement waits for another process that writes to the file."""


def open_private_file(file: Path, *, synchronous: Literal["NORMAL", "FULL"] = "NORMAL") -> sqlite3.Connection:
    """Open or create an SQLite file that only the user can read; rows support access by column name.

    With `FULL`, a finished transaction also survives a power failure.
    """
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    db = connect(file)
    file.chmod(0o600)
    for setting in ("journal_mode = WAL", f"synchronous = {synchronous}", "foreign_keys = ON"):
        db.execute(f"PRAGMA {setting}")
    return db


def connect(file: Path | str) -> sqlite3.Connection:
    """Open an SQLite file, or `:memory:`, for use in several threads."""
    db = sqlite3.connect(file, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    db.row_factory = sqlite3.Row
    return db


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
