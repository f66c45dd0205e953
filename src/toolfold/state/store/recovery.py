"""Recover damaged SQLite files: set the file aside, and keep the rows that can still be read."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toolfold.state.store.sqlite_file import StoreFileError, connect, is_damage

__all__ = ["RecoveredFile", "find_damage", "list_store_files", "recover_file"]

log = logging.getLogger(__name__)

_STORE_FILES = ("*.db", "gateway/*.db", "learned/*.sqlite")
_COMPANIONS = ("", "-wal", "-shm")
_MAX_ROW_ID = 2**63 - 1
_DISTANCES: tuple[int, ...] = (*range(1, 4096), *(2**power for power in range(12, 64)))
"""How far after a damaged row to look for the next readable one: first at each id, then farther."""


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
            source.execute("PRAGMA writable_schema = ON")  # read tables beside a bad definition
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
    for each in (each for each in own if each["type"] == "table"):
        if _run_if_valid(target, each["sql"]) and each["name"] not in virtual:
            rows += _copy_rows(source, target, each["name"])
    for name in virtual:  # full-text indexes of copied tables
        _run_if_valid(target, f'INSERT INTO "{name}" ("{name}") VALUES (\'rebuild\')')  # noqa: S608
    for each in own:  # triggers last: they must not fire for copied rows
        if each["type"] != "table":
            _run_if_valid(target, each["sql"])
    target.execute(f"PRAGMA user_version = {int(version)}")
    target.execute("COMMIT")
    return rows


def _run_if_valid(target: sqlite3.Connection, statement: str) -> bool:
    """Run a statement of a schema that may be damaged; return False if it cannot be run."""
    try:
        target.execute(statement)
    except StoreFileError:  # such as a full disk
        raise
    except sqlite3.DatabaseError as error:
        log.warning("part of the damaged file is left out: %s", error)
        return False
    return True


def _copy_rows(source: sqlite3.Connection, target: sqlite3.Connection, table: str) -> int:
    """Copy the rows of a table with their ids, except those in damaged places; return their number."""
    count = 0
    for row in _read_rows(source, table):
        columns = ", ".join(f'"{name}"' for name in row.keys())  # noqa: SIM118 - a row is no mapping
        marks = ", ".join("?" * len(row))
        done = target.execute(
            f'INSERT OR IGNORE INTO "{table}" ({columns}) VALUES ({marks})',  # noqa: S608
            tuple(row),
        )
        count += done.rowcount
    return count


def _read_rows(source: sqlite3.Connection, table: str) -> Iterator[sqlite3.Row]:
    """Yield the rows of a table in the order of their ids, without those in damaged places."""
    start: int | None = 1  # the least id that SQLite assigns
    while start is not None:
        try:
            row = _read_row(source, table, start)
        except sqlite3.DatabaseError:
            start = _skip_damage(source, table, start)
            continue
        if row is None:
            return
        yield row
        start = row[0] + 1


def _read_row(source: sqlite3.Connection, table: str, start: int) -> sqlite3.Row | None:
    """Return the first row whose id is not below `start`.

    Rows are read one by one because Python discards a row if SQLite cannot read the row after it.
    """
    query = f'SELECT rowid AS rowid, * FROM "{table}" WHERE rowid >= ? ORDER BY rowid LIMIT 1'  # noqa: S608
    row: sqlite3.Row | None = source.execute(query, (min(start, _MAX_ROW_ID),)).fetchone()
    if row is not None and row[0] < start:
        raise sqlite3.DatabaseError("the rows are not in order")
    return row


def _skip_damage(source: sqlite3.Connection, table: str, start: int) -> int | None:
    """Return the least id from which rows can be read again; None if there is no such id."""

    def is_readable(distance: int) -> bool:
        try:
            _read_row(source, table, start + distance)
        except sqlite3.DatabaseError:
            return False
        return True

    low = 0
    distance: int
    for distance in _DISTANCES:
        if is_readable(distance):
            break
        low = distance
    else:
        return None
    while distance - low > 1:  # the damaged place ends between them
        middle = (low + distance) // 2
        low, distance = (low, middle) if is_readable(middle) else (middle, distance)
    return start + distance
