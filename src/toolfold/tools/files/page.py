"""Read a text file of any size page by page.

Works on an open file and counts in lines. The caller has chosen the file and made sure that it is text.
"""

from __future__ import annotations

import codecs
import os
import threading
from dataclasses import dataclass, field
from typing import BinaryIO

from toolfold.core.errors import CallError
from toolfold.core.types import Json

DEFAULT_PAGE_LINES, MAX_PAGE_CHARS, MAX_LINE_CHARS = 500, 40_000, 2_000
MAX_COUNTED_BYTES = 50_000_000
"""Up to this size a read also counts all lines of the file."""

_CHUNK_BYTES = 1 << 20


@dataclass(slots=True)
class PageReader:
    """Reader for a range of lines of a file of any size, with at most one page in memory."""

    file: BinaryIO
    offset: int
    limit: int
    cancelled: threading.Event
    lines: list[str] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    ended: bool = False

    def read(self, size: int) -> Json:
        """Return the lines of a page with their numbers, and how to read the next page."""
        skipped = self._skip_lines(self.offset - 1)
        if skipped < self.offset - 1 or self.file.tell() == size:
            return self._answer_past_end(skipped)
        self._collect_lines()
        last = self.offset + len(self.lines) - 1
        total = self._count_lines(last, size)
        numbered = (f"{number}\t{line}" for number, line in enumerate(self.lines, self.offset))
        answer: Json = {"lines": "\n".join(numbered), "first_line": self.offset, "last_line": last}
        answer["total_lines"] = total
        if not self.ended:
            answer["more"] = f"Call again with offset={last + 1} to read on."
        if self.notes:
            answer["notes"] = list(self.notes)
        return answer

    def _answer_past_end(self, total: int) -> Json:
        if total == 0:
            return {
                "lines": "",
                "first_line": 0,
                "last_line": 0,
                "total_lines": 0,
                "notes": ["the file is empty"],
            }
        raise CallError(f"offset {self.offset} is past the end: the file has {total} lines.")

    def _skip_lines(self, count: int) -> int:
        """Skip up to `count` lines, including an unterminated last line; return the number skipped."""
        passed, tail = 0, b"\n"
        while passed < count:
            chunk = self._read_chunk()
            if not chunk:
                return passed + (tail[-1:] != b"\n")
            tail, here = chunk, chunk.count(b"\n")
            if passed + here >= count:
                position = _position_after_lines(chunk, count - passed)
                self.file.seek(position - len(chunk), os.SEEK_CUR)
                return count
            passed += here
        return passed

    def _read_chunk(self) -> bytes:
        if self.cancelled.is_set():
            raise CallError("Reading was cancelled.")
        return self.file.read(_CHUNK_BYTES)

    def _collect_lines(self) -> None:
        characters = 0
        while len(self.lines) < self.limit:
            before = self.file.tell()
            line = self._read_line()
            if line is None:
                self.ended = True
                return
            characters += len(line)
            if self.lines and characters > MAX_PAGE_CHARS:
                self.file.seek(before)
                self.ended = False
                return
            self.lines.append(line)
        self.ended = self.ended or not self.file.read(1)

    def _read_line(self) -> str | None:
        start = self.file.tell()
        raw = self.file.readline(MAX_LINE_CHARS * 4)
        if not raw:
            return None
        whole = raw.endswith(b"\n")
        if not whole and len(raw) == MAX_LINE_CHARS * 4:
            whole = self._skip_lines(1) == 1 and self._is_after_newline()
        if not whole:
            self.notes["no newline at the end of the file"] = None
            self.ended = True
        return self._format_line(raw, at_start=start == 0)

    def _is_after_newline(self) -> bool:
        self.file.seek(-1, os.SEEK_CUR)
        return self.file.read(1) == b"\n"

    def _format_line(self, raw: bytes, *, at_start: bool) -> str:
        line = self._decode_line(raw).removesuffix("\n")
        if line.endswith("\r"):
            line = line[:-1]
            self.notes["CRLF line endings"] = None
        if at_start and line.startswith("\ufeff"):
            line = line[1:]
            self.notes["starts with a byte order mark"] = None
        if len(line) > MAX_LINE_CHARS:
            self.notes[f"lines longer than {MAX_LINE_CHARS} characters are truncated"] = None
            return line[:MAX_LINE_CHARS] + "… [truncated]"
        return line

    def _decode_line(self, raw: bytes) -> str:
        # A truncated line may end inside a character, which is no encoding error.
        cut = len(raw) == MAX_LINE_CHARS * 4 and not raw.endswith(b"\n")
        try:
            return codecs.getincrementaldecoder("utf-8")().decode(raw, final=not cut)
        except UnicodeDecodeError:
            self.notes["not valid UTF-8: such bytes are shown as \ufffd"] = None
            return raw.decode("utf-8", "replace")

    def _count_lines(self, last: int, size: int) -> int | None:
        if self.ended:
            return last
        if size > MAX_COUNTED_BYTES:
            self.notes[f"the file has {size:,} bytes, too many to count its lines"] = None
            return None
        self.file.seek(0)
        return self._skip_lines(size + 1)


def _position_after_lines(chunk: bytes, count: int) -> int:
    position = 0
    for _ in range(count):
        position = chunk.index(b"\n", position) + 1
    return position
