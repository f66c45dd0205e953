"""Audit log of all approval decisions: append-only JSON lines, readable by the user only.

Each line is written with one system call, so that lines of several processes never mix. A large file is
rotated, and only the newest files are kept. The module knows nothing about how decisions are made.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from toolfold.config.atomic import lock_directory
from toolfold.errors import ConfigError
from toolfold.model import Json, make_encodable
from toolfold.redaction import Redaction

__all__ = ["AuditLog"]

FILE_NAME = "approvals.jsonl"
MAX_FILE_BYTES = 4_000_000
MAX_ROTATED_FILES = 4
MAX_LINE_CHARS = 60_000
MAX_TEXT_CHARS = 20_000
MAX_TRUNCATED_CHARS = 500
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class AuditLog:
    """Audit log of approval decisions in one directory. `redact` removes secrets from entries."""

    def __init__(
        self,
        directory: Path,
        redact: Redaction | None = None,
        *,
        max_file_bytes: int = MAX_FILE_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory, self._max_file_bytes, self._clock = directory, max_file_bytes, clock
        self._redact = redact or Redaction(max_chars=MAX_TEXT_CHARS)

    @property
    def file(self) -> Path:
        return self._directory / FILE_NAME

    def write(self, entry: Json) -> None:
        """Append one entry to the audit log. Raises OSError."""
        redact = self._redact.with_secrets_from(
            str(entry.get("command", ""))
        )  # reasons quote words of the command
        plain = {key: _to_json_value(value, redact) for key, value in entry.items()}
        stamped = {"time": _format_time(self._clock()), **plain}
        line = json.dumps(stamped, ensure_ascii=True, separators=(",", ":"))
        if len(line) > MAX_LINE_CHARS:
            stamped = {key: _truncate(value) for key, value in stamped.items() if not isinstance(value, list)}
            line = json.dumps({**stamped, "cut": True}, ensure_ascii=True, separators=(",", ":"))
        self._append(line.encode() + b"\n")

    def read_entries(self, limit: int | None = None) -> list[Json]:
        """Return the newest entries of the audit log, oldest first. Invalid lines are skipped."""
        entries: list[Json] = []
        for file in self._files_newest_first():
            entries[:0] = list(_read_lines(file))
            if limit is not None and len(entries) >= limit:
                break
        return entries if limit is None else entries[len(entries) - min(limit, len(entries)) :]

    def _append(self, line: bytes) -> None:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(self.file, _APPEND, 0o600)
        try:
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":  # the last line is incomplete
                line = b"\n" + line
            if os.write(handle, line) != len(line):
                raise OSError("the audit log entry could not be written completely")
        finally:
            os.close(handle)
        if size + len(line) > self._max_file_bytes:
            with contextlib.suppress(
                OSError, ConfigError
            ):  # the entry is written; rotation is retried next time
                self._rotate()

    def _rotate(self) -> None:
        with lock_directory(self._directory):
            if self.file.stat().st_size <= self._max_file_bytes:
                return  # another process has rotated it
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


def _read_lines(file: Path) -> Iterator[Json]:
    try:
        lines = file.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            yield entry


def _format_time(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"
