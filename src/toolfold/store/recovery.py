"""Recover damaged SQLite files: set the file aside, and keep the rows that can still be read."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toolfold.store.sqlite_file import connect, is_damage

__all__ = ["RecoveredFile", "find_damage", "list_store_files", "recover_file"]

_STORE_FILES = ("*.db", "gateway/*.db", "learned/*.sqlite")
_COMPANIONS = ("", "-wal", "-shm")


@dataclass(frozen=True, slots=True)
class RecoveredFile:
    """Result of recovering a file: the rows that were kept, and where the damaged file is now."""

    rows: int
    damaged: Path


def list_store_files(state_dir: Path) -> list[Path]:
    """Return the SQLite files in a state directory."""
    return sorted(file for pattern in _STORE_FILES for file in state_dir.glob(pattern))


def find_damage(file: Path) -> str:
    """Return the first fault of an SQLite file; empty if the file is good. Reads all of it.

    Raises sqlite3.Error if the file cannot be checked, for example because another process locks it.
    """
    try:
        with contextlib.closing(connect(file)) as db:
            found = str(db.execute("PRAGMA integrity_check(1)").fetchone()[0])
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        return str(error.__cause__ or error)
    return "" if found == "ok" else found


def recover_file(file: Path) -> RecoveredFile:
    """Replace a damaged file by one with the rows that can still be read; the damaged file is kept beside it.

    No other process may have the file open. Raises OSError or sqlite3.Error.
    """
    recovered = file.with_name(f"{file.name}.recovered")
    recovered.unlink(missing_ok=True)
    os.close(os.open(recovered, os.O_CREAT | os.O_WRONLY, 0o600))
    try:
        with contextlib.closing(connect(file)) as source, contextlib.closing(connect(recovered)) as target:
            source.text_factory = lambda data: data.decode(errors="replace")
            rows = _copy_database(source, target)
    except BaseException:
        recovered.unlink()
        raise
    damaged = file.with_name(f"{file.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    for suffix in _COMPANIONS:
        with contextlib.suppress(FileNotFoundError):
            Path(f"{file}{suffix}").rename(f"{damaged}{suffix}")
    if rows:
        recovered.rename(file)
    else:
        recovered.unlink()  # a new file is created when it is needed
    return RecoveredFile(rows, damaged)


def _copy_database(source: sqlite3.Connection, target: sqlite3.Connection) -> int:
    """Copy tables, indexes and triggers, and return the number of copied rows."""
    try:
        found = source.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        version = source.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.DatabaseError:
        return 0
    virtual = [each["name"] for each in found if each["sql"].startswith("CREATE VIRTUAL")]
    own = [each for each in found if not any(each["name"].startswith(f"{name}_") for name in virtual)]
    own = [each for each in own if not each["name"].startswith("sqlite_")]
    rows = 0
    target.execute("BEGIN")
    for each in sorted(own, key=lambda each: each["type"] != "table"):
        if each["name"] in virtual or each["type"] == "table":
            target.execute(each["sql"])
        if each["type"] == "table" and each["name"] not in virtual:
            rows += _copy_rows(source, target, each["name"])
    for name in virtual:  # full-text indexes of copied tables
        target.execute(f'INSERT INTO "{name}" ("{name}") VALUES (\'rebuild\')')  # noqa: S608
    for each in own:  # triggers last: they must not fire for copied rows
        if each["type"] != "table":
            target.execute(each["sql"])
    target.execute(f"PRAGMA user_version = {int(version)}")
    target.execute("COMMIT")
    return rows


def _copy_rows(source: sqlite3.Connection, target: sqlite3.Connection, table: str) -> int:
    """Copy the rows before the first damaged place and those after the last one; return their number."""
    count = 0
    for order in ("ASC", "DESC"):
        is_complete = True
        for row in _read_rows(source, table, order):
            if row is None:
                is_complete = False
                break
            marks = ", ".join("?" * len(row))
            done = target.execute(f'INSERT OR IGNORE INTO "{table}" VALUES ({marks})', tuple(row))  # noqa: S608
            count += done.rowcount
        if is_complete:
            break
    return count


def _read_rows(source: sqlite3.Connection, table: str, order: str) -> Iterator[sqlite3.Row | None]:
    """Yield the rows of a table, and None where reading fails."""
    try:
        yield from source.execute(f'SELECT * FROM "{table}" ORDER BY rowid {order}')  # noqa: S608
    except sqlite3.DatabaseError:
        yield None
