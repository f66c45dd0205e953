"""Vectors of tools in the database shared by replicas, so that each tool is embedded only once.

A vector belongs to a model and to the text that the model has read, not to a name: two servers with the same
definition share it. Vectors are read in parts and written by a thread, so that a slow database delays neither
a search nor the model. If the database fails, tools are embedded as if they were new.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence

from toolfold.selection.retrieval.vector_store import collect_rows
from toolfold.selection.retrieval.vectors import PackedVectors
from toolfold.state.database import Database, DatabaseError, RowCursor, clean_text

log = logging.getLogger(__name__)

READ_BATCH = 2_000
WRITE_BATCH = 500
MAX_UNWRITTEN = 100_000
"""Vectors that wait for the database; more are not stored, and other replicas compute them themselves."""
RETRY_INTERVAL_S = 10.0
"""Time after a failure in which the database is not asked again."""
CLOSE_TIMEOUT_S = 5.0
UNUSED_DAYS = 90
"""Vectors that no replica has read for so long are removed."""
_SELECT = "SELECT checksum, numbers, scale FROM tool_vectors WHERE model = %s AND checksum = ANY(%s)"
_TOUCH = (
    "UPDATE tool_vectors SET used = CURRENT_DATE"
    " WHERE model = %s AND checksum = ANY(%s) AND used < CURRENT_DATE - 7"
)
_INSERT = (
    "INSERT INTO tool_vectors (model, checksum, numbers, scale)"
    " SELECT %s, * FROM unnest(%s::bytea[], %s::bytea[], %s::real[])"
    " ON CONFLICT (model, checksum) DO UPDATE SET numbers = excluded.numbers, scale = excluded.scale"
    " WHERE length(tool_vectors.numbers) != length(excluded.numbers)"
)
"""A stored vector is replaced only by one of another length, of another model that has this name now."""


class SharedVectors:
    """Vectors of tools in a database shared by all replicas. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._unwritten: dict[tuple[str, bytes], tuple[bytes, float]] = {}
        self._version = 0
        self._retry_at = 0.0
        self._changed, self._ended = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._unsubscribe = database.on_change("tool_vectors", self._count_change)

    def version(self) -> int:
        """Return a number that changes when any replica has added vectors. Fast."""
        return self._version

    def read(self, model: str, checksums: Sequence[bytes]) -> tuple[list[int], PackedVectors]:
        """Return the positions of the texts that have a stored vector, and the vectors of these texts.

        Nothing is found if the database fails now, or has failed some seconds ago.
        """
        rows: dict[bytes, tuple[bytes, float]] = {}
        try:
            for start in range(0, len(checksums), READ_BATCH):
                if time.monotonic() < self._retry_at:
                    break
                rows |= self._read_batch(clean_text(model), list(checksums[start : start + READ_BATCH]))
        except DatabaseError as error:
            self._pause(f"vectors cannot be read from the database, tools are embedded here: {error}")
        return collect_rows(checksums, rows)

    def write(self, model: str, checksums: Sequence[bytes], packed: PackedVectors) -> None:
        """Store vectors in a background thread, except zero vectors."""
        name = clean_text(model)
        rows = zip(checksums, packed.numbers, packed.scales.tolist(), packed.has_vector, strict=True)
        with self._lock:
            for checksum, numbers, scale, has_vector in rows:
                if has_vector and len(self._unwritten) < MAX_UNWRITTEN:
                    self._unwritten[name, checksum] = numbers.tobytes(), scale
            if self._thread is None and not self._ended.is_set():
                self._thread = threading.Thread(target=self._run, name="toolfold-vectors", daemon=True)
                self._thread.start()
        self._changed.set()

    def close(self) -> None:
        """Write the remaining vectors to the database within a few seconds, and stop the thread."""
        self._unsubscribe()
        self._ended.set()
        self._changed.set()
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT_S)

    def _count_change(self) -> None:
        self._version += 1

    def _read_batch(self, model: str, checksums: list[bytes]) -> dict[bytes, tuple[bytes, float]]:
        def read(cursor: RowCursor) -> dict[bytes, tuple[bytes, float]]:
            found = cursor.execute(_SELECT, (model, checksums), binary=True).fetchall()
            cursor.execute(_TOUCH, (model, checksums))
            return {row["checksum"]: (row["numbers"], row["scale"]) for row in found}

        return self._database.run(read)

    def _run(self) -> None:
        self._remove_unused()
        while True:
            self._changed.wait()
            self._changed.clear()
            is_last = self._ended.is_set()
            while self._write_batch():
                pass
            if is_last:
                return
            if self._unwritten:  # the database failed
                self._ended.wait(RETRY_INTERVAL_S)
                self._changed.set()

    def _write_batch(self) -> bool:
        """Write some of the queued vectors; return False if there are none or the database failed."""
        with self._lock:
            batch = dict(list(self._unwritten.items())[:WRITE_BATCH])
        if not batch:
            return False
        try:
            self._database.run(lambda cursor: _insert_rows(cursor, batch))
        except DatabaseError as error:
            self._pause(f"vectors cannot be stored in the database now: {error}")
            return False
        with self._lock:
            for key in batch:
                self._unwritten.pop(key, None)
        return True

    def _remove_unused(self) -> None:
        try:
            self._database.execute(f"DELETE FROM tool_vectors WHERE used < CURRENT_DATE - {UNUSED_DAYS}")  # noqa: S608
        except DatabaseError as error:
            log.debug("unused vectors are not removed now: %s", error)

    def _pause(self, problem: str) -> None:
        if time.monotonic() >= self._retry_at:
            log.warning("%s", problem)
        self._retry_at = time.monotonic() + RETRY_INTERVAL_S


def _insert_rows(cursor: RowCursor, batch: Mapping[tuple[str, bytes], tuple[bytes, float]]) -> None:
    for model in {name for name, _ in batch}:
        # In order, so that two replicas that write the same vectors do not wait for each other in a circle.
        rows = sorted((checksum, *row) for (name, checksum), row in batch.items() if name == model)
        cursor.execute(_INSERT, (model, *(list(column) for column in zip(*rows, strict=True))))
