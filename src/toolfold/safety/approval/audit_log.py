"""Audit log of all approval decisions: append-only JSON lines, readable by the user only.

Every entry contains the hash of the one before, so that a changed or removed entry can be detected. Lines of
several processes never mix, because each is written under a lock. A large file is rotated, and only the
newest files are kept. The module knows nothing about how decisions are made.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from toolfold.core.types import Json, make_encodable
from toolfold.safety.approval.hash_chain import (
    START,
    ChainReport,
    Link,
    find_last_link,
    seal_entry,
    verify_chain,
)
from toolfold.safety.redaction import Redaction

__all__ = ["AuditLog", "DecisionLog"]

FILE_NAME = "approvals.jsonl"
MAX_FILE_BYTES = 4_000_000
MAX_ROTATED_FILES = 4
MAX_LINE_CHARS = 60_000
MAX_TEXT_CHARS = 20_000
MAX_TRUNCATED_CHARS = 500
LOCK_TIMEOUT_S = 10.0
_LOCK_POLL_S = 0.002
_TAIL_BYTES = (8_000, 2 * MAX_LINE_CHARS)
"""Bytes at the end of a file in which its last entry is looked for; the second is longer than any entry."""
_BINARY = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_BINARY"))  # the second only on Windows
_READ = os.O_RDONLY | _BINARY
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | _BINARY | getattr(os, "O_NOFOLLOW", 0)


class DecisionLog(ABC):
    """Base class of logs of approval decisions, which removes secrets from the entries."""

    place = ""
    """Where the audit log is stored, as text for a person: a path or the name of a database."""
    is_remote = False
    """True if writing takes so long that it must not block an event loop."""

    def __init__(self, redact: Redaction | None, clock: Callable[[], float]) -> None:
        self._redact, self._clock = redact or Redaction(max_chars=MAX_TEXT_CHARS), clock

    def write(self, entry: Json) -> None:
        """Append one entry to the audit log. Raises OSError if it cannot be written."""
        redact = self._redact.with_secrets_from(
            str(entry.get("command", ""))
        )  # reasons quote words of the command
        plain = {key: _to_json_value(value, redact) for key, value in entry.items()}
        stamped = {"time": _format_time(self._clock()), **plain}
        if len(json.dumps(stamped, ensure_ascii=True, separators=(",", ":"))) > MAX_LINE_CHARS:
            stamped = {key: _truncate(value) for key, value in stamped.items() if not isinstance(value, list)}
            stamped["cut"] = True
        self._append(stamped)

    def verify(self, known: str = "") -> ChainReport:
        """Check by the hash chain that no audit log entry was changed, removed or inserted.

        `known` is the hash of an entry that was noted earlier and must still exist.
        """
        return verify_chain(self._read_lines(), known)

    @abstractmethod
    def read_entries(self, limit: int | None = None) -> list[Json]:
        """Return the newest entries of the audit log, oldest first. Invalid lines are skipped."""

    @abstractmethod
    def _append(self, entry: Json) -> None:
        """Add an entry to the end of the hash chain in the audit log."""

    @abstractmethod
    def _read_lines(self) -> Iterable[str]:
        """Return all lines of the audit log, oldest first."""


class AuditLog(DecisionLog):
    """Audit log of approval decisions, stored as files in one directory."""

    def __init__(
        self,
        directory: Path,
        redact: Redaction | None = None,
        *,
        max_file_bytes: int = MAX_FILE_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(redact, clock)
        self._directory, self._max_file_bytes = directory, max_file_bytes
        self.place = str(self.file)

    @property
    def file(self) -> Path:
        return self._directory / FILE_NAME

    def read_entries(self, limit: int | None = None) -> list[Json]:
        entries: list[Json] = []
        for file in self._files_newest_first():
            entries[:0] = list(parse_lines(_read_file_lines(file)))
            if limit is not None and len(entries) >= limit:
                break
        return entries if limit is None else entries[len(entries) - min(limit, len(entries)) :]

    def _read_lines(self) -> Iterable[str]:
        with contextlib.ExitStack() as stack:
            for handle, size in reversed(self._open_all(stack)):
                yield from _read_at(handle, 0, size).decode("utf-8", "replace").splitlines()

    def _open_all(self, stack: contextlib.ExitStack) -> list[tuple[int, int]]:
        """Open all audit log files while no entry is being written; return handles and sizes, newest first.

        Raises OSError if another process keeps the lock.
        """
        while True:
            try:
                with self._open_locked(_READ):
                    return _open_files(self._files_newest_first(), stack)
            except (
                FileNotFoundError
            ):  # nothing was written since the last rotation, so there is nothing to lock
                with contextlib.ExitStack() as attempt:
                    opened = _open_files(self._files_newest_first(), attempt)
                    if not self.file.exists() and self._is_newest_rotated(opened):
                        stack.push(attempt.pop_all())
                        return opened

    def _is_newest_rotated(self, opened: Sequence[tuple[int, int]]) -> bool:
        """Return True if the first of the opened files is the most recently rotated log file."""
        try:
            newest = self._rotated_file(1).stat()
        except FileNotFoundError:
            return not opened
        return bool(opened) and os.path.samestat(os.fstat(opened[0][0]), newest)

    def _append(self, entry: Json) -> None:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._open_locked() as handle:
            size = os.fstat(handle).st_size
            line = seal_entry(entry, self._find_last_link(handle, size))[0].encode() + b"\n"
            if size and _read_at(handle, size - 1, size) != b"\n":  # the last line is incomplete
                line = b"\n" + line
            if os.write(handle, line) != len(line):
                raise OSError("the audit log entry could not be written completely")
            if size + len(line) > self._max_file_bytes:
                with contextlib.suppress(OSError):  # the entry is written; rotation is retried next time
                    self._rotate()

    @contextlib.contextmanager
    def _open_locked(self, flags: int = _APPEND) -> Iterator[int]:
        """Open the current log file with a lock. Raises OSError if another process keeps the lock."""
        end = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            handle = os.open(self.file, flags, 0o600)
            try:
                if _try_lock(handle) and self._is_current(handle):  # another process may have rotated it
                    yield handle
                    return
            finally:
                os.close(handle)
            if time.monotonic() > end:
                raise OSError(
                    f"the audit log was not opened: another process kept it locked for {LOCK_TIMEOUT_S:g} s"
                )
            time.sleep(_LOCK_POLL_S)

    def _is_current(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), self.file.stat())
        except FileNotFoundError:
            return False

    def _find_last_link(self, handle: int, size: int) -> Link:
        if size:
            return _read_last_link(handle, size)
        try:
            with self._rotated_file(1).open("rb") as before:
                return _read_last_link(before.fileno(), os.fstat(before.fileno()).st_size)
        except FileNotFoundError:
            return START

    def _rotate(self) -> None:
        """Start a new audit log file; called while the current file is locked."""
        for number in range(MAX_ROTATED_FILES - 1, 0, -1):
            older = self._rotated_file(number)
            if older.exists():
                older.replace(self._rotated_file(number + 1))
        self.file.replace(self._rotated_file(1))

    def _rotated_file(self, number: int) -> Path:
        return self.file.with_name(f"{FILE_NAME}.{number}")

    def _files_newest_first(self) -> Iterator[Path]:
        yield self.file
        yield from (self._rotated_file(number) for number in range(1, MAX_ROTATED_FILES + 1))


def _try_lock(handle: int) -> bool:
    """Lock an open file; return False if another process has locked it."""
    try:
        import fcntl
    except ImportError:  # not available on this platform
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems cannot lock; go on without a lock
        return True
    return True


def _open_files(files: Iterable[Path], stack: contextlib.ExitStack) -> list[tuple[int, int]]:
    """Open those files that exist and let `stack` close them; return their handles and sizes."""
    opened = []
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(file, _READ)
            stack.callback(os.close, handle)
            opened.append((handle, os.fstat(handle).st_size))
    return opened


def _read_at(handle: int, start: int, end: int) -> bytes:
    """Return the bytes of a file from `start` to `end`; replaces `os.pread`, which Windows lacks."""
    os.lseek(handle, start, os.SEEK_SET)
    parts: list[bytes] = []
    while start < end and (part := os.read(handle, end - start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def _read_last_link(handle: int, size: int) -> Link:
    """Return the last link of the hash chain in an audit log file: an entry's number and hashes."""
    for count in _TAIL_BYTES:
        start = max(0, size - count)
        lines = _read_at(handle, start, start + count).decode("utf-8", "replace").split("\n")
        complete = lines if start == 0 else lines[1:]
        link = find_last_link(reversed(complete))
        if link is not START:
            return link
    return START


def _to_json_value(value: Any, redact: Redaction) -> Any:
    if isinstance(value, str):
        return make_encodable(redact(value))
    if isinstance(value, (list, tuple)):
        return [_to_json_value(each, redact) for each in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return _to_json_value(str(value), redact)


def _truncate(value: Any) -> Any:
    return value[:MAX_TRUNCATED_CHARS] if isinstance(value, str) else value


def _read_file_lines(file: Path) -> list[str]:
    try:
        return file.read_bytes().decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def parse_lines(lines: Iterable[str]) -> Iterator[Json]:
    """Return the entries in lines of an audit log; invalid lines are skipped."""
    for line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            yield entry


def _format_time(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"
