"""The record of every decision: one JSON object a line, only ever added to, readable by the user alone.

Each line is written by one call to the system, so that the lines of several processes never mix. A file that
has grown large is put aside, and of those only the newest are kept. Knows nothing of how decisions are made.
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
from toolfold.model import Json, encodable
from toolfold.redaction import Redaction

__all__ = ["AuditLog"]

FILE = "approvals.jsonl"
LARGEST = 4_000_000
KEPT = 4
LONGEST_LINE = 60_000
MAX_TEXT_CHARS = 20_000
LONGEST_CUT = 500
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class AuditLog:
    """The log in one folder. `redact` takes secrets out of text and bounds its length."""

    def __init__(
        self,
        folder: Path,
        redact: Redaction | None = None,
        *,
        largest: int = LARGEST,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._largest, self._clock = folder, largest, clock
        self._redact = redact or Redaction(longest=MAX_TEXT_CHARS)

    @property
    def file(self) -> Path:
        return self._folder / FILE

    def write(self, entry: Json) -> None:
        """Add one entry. Raises OSError."""
        redact = self._redact.knowing(str(entry.get("command", "")))  # reasons quote words of it
        plain = {key: _plain(value, redact) for key, value in entry.items()}
        stamped = {"time": _stamp(self._clock()), **plain}
        line = json.dumps(stamped, ensure_ascii=True, separators=(",", ":"))
        if len(line) > LONGEST_LINE:
            stamped = {key: _cut(value) for key, value in stamped.items() if not isinstance(value, list)}
            line = json.dumps({**stamped, "cut": True}, ensure_ascii=True, separators=(",", ":"))
        self._append(line.encode() + b"\n")

    def entries(self, most: int | None = None) -> list[Json]:
        """The newest entries, oldest first. What is not an entry is passed over."""
        found: list[Json] = []
        for file in self._files():
            found[:0] = list(_read(file))
            if most is not None and len(found) >= most:
                break
        return found if most is None else found[len(found) - min(most, len(found)) :]

    def _append(self, line: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(self.file, _APPEND, 0o600)
        try:
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":  # somebody's last line was torn off
                line = b"\n" + line
            if os.write(handle, line) != len(line):
                raise OSError("the log could not be written in full")
        finally:
            os.close(handle)
        if size + len(line) > self._largest:
            with contextlib.suppress(OSError, ConfigError):  # the entry is written; there is a next time
                self._put_aside()

    def _put_aside(self) -> None:
        with lock_directory(self._folder):
            if self.file.stat().st_size <= self._largest:
                return  # another process was first
            for number in range(KEPT - 1, 0, -1):
                older = self._aside(number)
                if older.exists():
                    older.replace(self._aside(number + 1))
            self.file.replace(self._aside(1))

    def _aside(self, number: int) -> Path:
        return self.file.with_name(f"{FILE}.{number}")

    def _files(self) -> Iterator[Path]:
        """Newest first."""
        yield self.file
        yield from (self._aside(number) for number in range(1, KEPT + 1))


def _plain(value: Any, redact: Redaction) -> Any:
    if isinstance(value, str):
        return encodable(redact(value))
    if isinstance(value, (list, tuple)):
        return [_plain(each, redact) for each in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return _plain(str(value), redact)


def _cut(value: Any) -> Any:
    return value[:LONGEST_CUT] if isinstance(value, str) else value


def _read(file: Path) -> Iterator[Json]:
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


def _stamp(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"
