"""Vectors of texts in an SQLite file of this machine, so that each text is embedded only once.

A vector belongs to a model and to the text that the model has read, not to a tool or a catalog. The file is
a cache: it may be deleted at any time. It may also be damaged, foreign or malicious, so every row is checked,
and a file that is not a store of vectors is replaced. Several processes may read and write it at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sqlite3
import stat
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from toolfold.selection.retrieval.embedding import OutageLog
from toolfold.selection.retrieval.vectors import MAX_DIMENSIONS, PackedVectors

log = logging.getLogger(__name__)

VECTOR_DIRECTORY = "index"
"""Subdirectory of the cache directory."""
FILE_NAME = "vectors.sqlite"
MAX_FILE_BYTES = 2 << 30
"""About three million vectors of the default model."""
UNUSED_DAYS = 90
"""Vectors that no process has read for so long are removed."""
IN_USE_DAYS = 7
"""Vectors that were read within this time are not removed to make room for others."""
_PAGE_BYTES = 4_096
_BUSY_TIMEOUT_S = 5.0
_READ_BATCH = 500
_DAY_S = 86_400
_SCHEMA = (
    "CREATE TABLE vectors (key BLOB PRIMARY KEY, numbers BLOB NOT NULL, scale REAL NOT NULL,"
    " checksum INTEGER NOT NULL, used INTEGER NOT NULL)"
)
_INSERT = (
    "INSERT INTO vectors VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (key) DO UPDATE SET numbers = excluded.numbers, scale = excluded.scale,"
    " checksum = excluded.checksum, used = excluded.used"
)
_Row = tuple[bytes, bytes, float, int, int]
_BROKEN_CODES = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def document_checksum(text: str, messages: Sequence[str]) -> bytes:
    """Return a hash of a tool's text for the embedding model."""
    read = repr((text, tuple(messages))).encode("utf-8", "backslashreplace")
    return hashlib.blake2b(read, digest_size=16).digest()


class VectorStore(Protocol):
    """Vectors of texts by model and checksum of the text. Thread-safe."""

    def version(self) -> int:
        """Return a number that changes when another process has added vectors. Fast."""

    def read(self, model: str, checksums: Sequence[bytes]) -> tuple[list[int], PackedVectors]:
        """Return the positions of the texts that have a stored vector, and the vectors of these texts."""

    def write(self, model: str, checksums: Sequence[bytes], packed: PackedVectors) -> None:
        """Store vectors, except zero vectors."""

    def close(self) -> None:
        """Write what is not written yet."""


class VectorFile:
    """Vectors in an SQLite file; each operation opens it, so that it may be replaced in between."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / FILE_NAME
        self._has_written = False
        self._failure_log = OutageLog("the vectors of tools cannot be stored and will be computed again")

    def version(self) -> int:
        """Return a number that changes when any process has added vectors. Fast."""
        try:
            return self._file.stat().st_mtime_ns
        except OSError:
            return 0

    def read(self, model: str, checksums: Sequence[bytes]) -> tuple[list[int], PackedVectors]:
        """Return the positions of the texts that have a stored vector, and the vectors of these texts.

        Nothing is found if the file cannot be read.
        """
        keys = [_make_key(model, checksum) for checksum in checksums]
        rows: dict[bytes, tuple[bytes, float]] = {}
        if keys and os.path.lexists(self._file):
            try:
                rows = self._read_rows(keys)
            except (OSError, sqlite3.Error) as error:
                self._handle_error(error)
        return collect_rows(keys, rows)

    def write(self, model: str, checksums: Sequence[bytes], packed: PackedVectors) -> None:
        """Store vectors, except zero vectors."""
        vectors = zip(checksums, packed.numbers, packed.scales.tolist(), packed.has_vector, strict=True)
        rows = [
            _make_row(_make_key(model, checksum), numbers.tobytes(), scale)
            for checksum, numbers, scale, has_vector in vectors
            if has_vector
        ]
        try:
            self._write_rows(rows)
        except (OSError, sqlite3.Error) as error:
            if not self._handle_error(error):
                return
            with contextlib.suppress(OSError, sqlite3.Error):  # the damaged file is gone
                self._write_rows(rows)

    def close(self) -> None:
        """Do nothing: the file is open only during an operation."""

    def _read_rows(self, keys: Sequence[bytes]) -> dict[bytes, tuple[bytes, float]]:
        rows: dict[bytes, tuple[bytes, float]] = {}
        old: list[tuple[int, bytes]] = []
        today = _count_days()
        with self._open() as db:
            for start in range(0, len(keys), _READ_BATCH):
                part = keys[start : start + _READ_BATCH]
                wanted = ", ".join("?" * len(part))
                query = f"SELECT key, numbers, scale, checksum, used FROM vectors WHERE key IN ({wanted})"  # noqa: S608
                for key, numbers, scale, checksum, used in db.execute(query, part):
                    if _is_valid(key, numbers, scale, checksum):
                        rows[key] = numbers, scale
                        if used != today:
                            old.append((today, key))
            if old:
                with contextlib.suppress(sqlite3.OperationalError):  # read-only, or locked for long
                    db.executemany("UPDATE vectors SET used = ? WHERE key = ?", old)
                    db.commit()
        return rows

    def _write_rows(self, rows: Sequence[_Row]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._open() as db:
            if not self._has_written:
                self._has_written = True
                db.execute("DELETE FROM vectors WHERE used < ?", (_count_days() - UNUSED_DAYS,))
            try:
                db.executemany(_INSERT, rows)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                    raise
                db.rollback()
                _make_room(db)
                db.executemany(_INSERT, rows)
            db.commit()

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open the file, and create or replace it if necessary."""
        _require_regular(self._file)
        db = sqlite3.connect(self._file, timeout=_BUSY_TIMEOUT_S)
        try:
            db.execute("PRAGMA trusted_schema = OFF")
            db.execute("PRAGMA cell_size_check = ON")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(f"PRAGMA max_page_count = {MAX_FILE_BYTES // _PAGE_BYTES}")
            _prepare_schema(db)
            yield db
        finally:
            db.close()

    def _handle_error(self, error: Exception) -> bool:
        """Remove a damaged file, or log that the file cannot be used; return True if it was removed."""
        code = getattr(error, "sqlite_errorcode", None)
        if isinstance(error, _NotAStore) or (code is not None and code & 0xFF in _BROKEN_CODES):
            log.warning("%s cannot be used and is rebuilt: %s", self._file.name, error)
            with contextlib.suppress(OSError):
                for suffix in ("", "-journal", "-wal", "-shm"):
                    Path(f"{self._file}{suffix}").unlink(missing_ok=True)
            return True
        self._failure_log.warn_once(str(error))
        return False


class _NotAStore(OSError):
    """The file is not a store of vectors that this version has written."""


def _require_regular(file: Path) -> None:
    """Raise _NotAStore for a pipe, symbolic link or oversized file in place of the store."""
    try:
        status = file.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        raise _NotAStore("not a regular file")
    if status.st_size > MAX_FILE_BYTES:
        raise _NotAStore(f"larger than {MAX_FILE_BYTES:,} bytes")


def _prepare_schema(db: sqlite3.Connection) -> None:
    """Create the table in a new file. Raises _NotAStore if the file has any other content."""
    found = _list_schema(db)
    if not found:
        with db:
            db.execute("BEGIN IMMEDIATE")
            if not _list_schema(db):  # another process may have created it meanwhile
                db.execute(_SCHEMA)
        found = _list_schema(db)
    if found != [_SCHEMA]:
        raise _NotAStore("written by another version of Toolfold or by another program")


def _list_schema(db: sqlite3.Connection) -> list[str]:
    return [sql for (sql,) in db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL LIMIT 8")]


def _make_room(db: sqlite3.Connection) -> None:
    """Remove the vectors that were not used lately; the file keeps its size and the pages are used again."""
    with db:
        db.execute("DELETE FROM vectors WHERE used < ?", (_count_days() - IN_USE_DAYS,))


def _count_days() -> int:
    return int(time.time() // _DAY_S)


def _make_key(model: str, checksum: bytes) -> bytes:
    name = hashlib.blake2b(model.encode("utf-8", "backslashreplace"), digest_size=32).digest()
    return hashlib.blake2b(checksum, key=name, digest_size=16).digest()


def _make_row(key: bytes, numbers: bytes, scale: float) -> _Row:
    return key, numbers, scale, _sum_row(key, numbers, scale), _count_days()


def _sum_row(key: bytes, numbers: bytes, scale: float) -> int:
    """Return a checksum of a row, which SQLite does not have."""
    return zlib.crc32(key + numbers + scale.hex().encode())


def _is_valid(key: object, numbers: object, scale: object, checksum: object) -> bool:
    return (
        isinstance(key, bytes)
        and isinstance(numbers, bytes)
        and isinstance(scale, float)
        and checksum == _sum_row(key, numbers, scale)
    )


def collect_rows(
    keys: Sequence[bytes], rows: dict[bytes, tuple[bytes, float]]
) -> tuple[list[int], PackedVectors]:
    """Return the positions and vectors of valid rows; drop vectors that differ in length from most others."""
    lengths = [len(numbers) for numbers, _ in rows.values()]
    width = max(set(lengths), key=lengths.count) if lengths else 0
    if not 0 < width <= MAX_DIMENSIONS:
        return [], PackedVectors.empty(0, 0)
    found = [
        position
        for position, key in enumerate(keys)
        if key in rows and len(rows[key][0]) == width and 0 < rows[key][1] < np.inf
    ]
    numbers = np.frombuffer(b"".join(rows[keys[each]][0] for each in found), np.int8)
    scales = np.array([rows[keys[each]][1] for each in found], np.float32)
    return found, PackedVectors(numbers.reshape(len(found), width), scales)
