"""Journal files for entries of the usage history that are not stored yet.

An entry is written to the file before the call that it describes is answered, so that it survives the sudden
end of the process. Entries are in segments, one file each: a segment is removed once its entries are in the
store. The segments of a process that has ended are stored by the next one that uses the directory.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
from collections.abc import Generator, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from toolfold.state.store.usage import UsageEntry

log = logging.getLogger(__name__)

SUFFIX = ".jsonl"
MAX_JOURNAL_BYTES = 256_000_000
"""Size of all segments after which no more entries are written: the store has failed for a long time."""
MAX_RECOVERED_SEGMENTS = 1_000
_ENTRY_FIELDS = tuple(each.name for each in fields(UsageEntry))


@dataclass(frozen=True, slots=True)
class RecoveredEntries:
    """Usage entries in a journal file left behind by an ended process."""

    entries: tuple[UsageEntry, ...]
    used_searches: tuple[str, ...]


class UsageJournal:
    """The journal files of one process in a directory. Not thread-safe: callers must hold a lock."""

    def __init__(self, directory: Path) -> None:
        """Create a journal in a directory, which is created when the first entry is written."""
        self._directory, self._name = directory, secrets.token_hex(6)
        self._number = self._size = 0
        self._current: tuple[Path, int] | None = None
        self._closed: tuple[Path, int] | None = None
        """The segment whose entries are being stored."""
        self._has_failed = False

    def append(self, entry: UsageEntry) -> None:
        """Write an entry to the journal file; a failure is logged, not raised.

        The caller still has the entry in memory.
        """
        # Its values are texts and numbers, of which `asdict` would make deep copies for every call.
        self._append({"entry": {name: getattr(entry, name) for name in _ENTRY_FIELDS}})

    def append_used_search(self, key: str) -> None:
        """Record in the journal that a search result was used."""
        self._append({"used": key})

    def start_segment(self) -> None:
        """Write later entries to a new journal file, so that the previous file can be removed.

        Does nothing while an earlier journal file exists, whose entries could not be stored.
        """
        if self._closed is None:
            self._closed, self._current = self._current, None

    def remove_segment(self) -> None:
        """Remove the journal file closed by the last `start_segment`, after its entries were stored."""
        if self._closed is not None:
            _remove(*self._closed)
            self._closed = None
            self._size = 0 if self._current is None else os.fstat(self._current[1]).st_size

    def read_segments(self) -> Iterator[RecoveredEntries]:
        """Yield the entries in the journal files of this process."""
        for segment in (self._closed, self._current):
            if segment is not None:
                yield _read_segment(segment[0])

    def close(self) -> None:
        """Close the journal files. The next process stores the entries that were not stored yet."""
        for segment in (self._closed, self._current):
            if segment is not None:
                os.close(segment[1])
        self._closed = self._current = None

    def recover(self) -> Generator[RecoveredEntries, None, None]:
        """Yield the entries of each journal file of an ended process, then remove the file."""
        if not self._directory.is_dir():
            return
        files = sorted(each for each in self._directory.iterdir() if each.suffix == SUFFIX)
        for file in files[:MAX_RECOVERED_SEGMENTS]:
            if file.name.startswith(self._name):
                continue
            with contextlib.suppress(FileNotFoundError):  # another process has just stored it
                descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW)
                if not _lock(descriptor):
                    os.close(descriptor)
                    continue
                try:
                    yield _read_segment(file)
                    file.unlink()
                finally:  # also if the entries could not be stored, so that they can be recovered again
                    os.close(descriptor)

    def _append(self, data: dict[str, object]) -> None:
        line = json.dumps(data, separators=(",", ":")).encode() + b"\n"
        try:
            if self._size + len(line) > MAX_JOURNAL_BYTES:
                raise OSError(f"it has {self._size:,} bytes already")
            written = os.write(self._open_segment(), line)
            if written != len(line):
                raise OSError("an entry could not be written completely to the journal of the usage history")
            self._size += written
        except OSError as error:
            if not self._has_failed:
                log.warning("the journal of the usage history cannot be written: %s", error)
            self._has_failed = True
        else:
            self._has_failed = False

    def _open_segment(self) -> int:
        if self._current is None:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._number += 1
            file = self._directory / f"{self._name}-{self._number}{SUFFIX}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            descriptor = os.open(file, flags, 0o600)
            if not _lock(descriptor):  # another process takes the empty file for one that was left behind
                os.close(descriptor)
                return self._open_segment()
            self._current = file, descriptor
        return self._current[1]


def open_journal(directory: Path) -> UsageJournal | None:
    """Return a journal in a directory; None on a platform without file locks."""
    try:
        import fcntl  # noqa: F401
    except ImportError:
        return None
    return UsageJournal(directory)


def _lock(descriptor: int) -> bool:
    """Lock a journal file until this process ends; return False if another process has locked it."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove(file: Path, descriptor: int) -> None:
    with contextlib.suppress(OSError):
        file.unlink()
    os.close(descriptor)


def _read_segment(file: Path) -> RecoveredEntries:
    """Read a journal file, skipping incomplete lines such as the last line of a killed process."""
    entries: list[UsageEntry] = []
    used: list[str] = []
    with file.open("rb") as stream:
        for line in stream:
            with contextlib.suppress(ValueError, TypeError, KeyError):
                data = json.loads(line)
                if "used" in data:
                    used.append(str(data["used"]))
                else:
                    entries.append(UsageEntry(**data["entry"]))
    return RecoveredEntries(tuple(entries), tuple(used))
