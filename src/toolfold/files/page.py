"""Reading a text file page by page, however large it is.

Works on an open file and counts in lines. Which file that is, and whether it is text at all, was settled
before.
"""

from __future__ import annotations

import codecs
import os
import threading
from dataclasses import dataclass, field
from typing import BinaryIO

from toolfold.errors import CallError
from toolfold.model import Json

PAGE_LINES, PAGE_CHARACTERS, LINE_CHARACTERS = 500, 40_000, 2_000
COUNTED_BYTES = 50_000_000
"""Up to this size a read also counts all the lines of the file."""

_CHUNK = 1 << 20


@dataclass(slots=True)
class Page:
    """Some lines of a file of any size, read without holding more than a page of it."""

    file: BinaryIO
    offset: int
    limit: int
    cancelled: threading.Event
    lines: list[str] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    ended: bool = False

    def read(self, size: int) -> Json:
        """The lines with their numbers, and how to read on; `size` is the whole file's."""
        skipped = self._skip(self.offset - 1)
        if skipped < self.offset - 1 or self.file.tell() == size:
            return self._nothing_here(skipped)
        self._collect()
        last = self.offset + len(self.lines) - 1
        total = self._total(last, size)
        numbered = (f"{number}\t{line}" for number, line in enumerate(self.lines, self.offset))
        answer: Json = {"lines": "\n".join(numbered), "first_line": self.offset, "last_line": last}
        answer["total_lines"] = total
        if not self.ended:
            answer["more"] = f"Call again with offset={last + 1} to read on."
        if self.notes:
            answer["notes"] = list(self.notes)
        return answer

    def _nothing_here(self, total: int) -> Json:
        if total == 0:
            return {
                "lines": "",
                "first_line": 0,
                "last_line": 0,
                "total_lines": 0,
                "notes": ["the file is empty"],
            }
        raise CallError(f"offset {self.offset} is past the end: the file has {total} lines.")

    def _skip(self, count: int) -> int:
        """Pass over that many line ends; fewer if the file ends first, whose last line then counts too."""
        passed, tail = 0, b"\n"
        while passed < count:
            chunk = self._chunk()
            if not chunk:
                return passed + (tail[-1:] != b"\n")
            tail, here = chunk, chunk.count(b"\n")
            if passed + here >= count:
                position = _after_line_ends(chunk, count - passed)
                self.file.seek(position - len(chunk), os.SEEK_CUR)
                return count
            passed += here
        return passed

    def _chunk(self) -> bytes:
        if self.cancelled.is_set():
            raise CallError("Reading was cancelled.")
        return self.file.read(_CHUNK)

    def _collect(self) -> None:
        characters = 0
        while len(self.lines) < self.limit:
            before = self.file.tell()
            line = self._line()
            if line is None:
                self.ended = True
                return
            characters += len(line)
            if self.lines and characters > PAGE_CHARACTERS:
                self.file.seek(before)
                self.ended = False
                return
            self.lines.append(line)
        self.ended = self.ended or not self.file.read(1)

    def _line(self) -> str | None:
        start = self.file.tell()
        raw = self.file.readline(LINE_CHARACTERS * 4)
        if not raw:
            return None
        whole = raw.endswith(b"\n")
        if not whole and len(raw) == LINE_CHARACTERS * 4:
            whole = self._skip(1) == 1 and self._stands_after_line_end()
        if not whole:
            self.notes["no newline at the end of the file"] = None
            self.ended = True
        return self._shown(raw, at_start=start == 0)

    def _stands_after_line_end(self) -> bool:
        self.file.seek(-1, os.SEEK_CUR)
        return self.file.read(1) == b"\n"

    def _shown(self, raw: bytes, *, at_start: bool) -> str:
        line = self._decoded(raw).removesuffix("\n")
        if line.endswith("\r"):
            line = line[:-1]
            self.notes["CRLF line endings"] = None
        if at_start and line.startswith("\ufeff"):
            line = line[1:]
            self.notes["starts with a byte order mark"] = None
        if len(line) > LINE_CHARACTERS:
            self.notes[f"lines longer than {LINE_CHARACTERS} characters are cut"] = None
            return line[:LINE_CHARACTERS] + "… [cut]"
        return line

    def _decoded(self, raw: bytes) -> str:
        # A line that was cut by bytes may end inside a character; that is no encoding error.
        cut = len(raw) == LINE_CHARACTERS * 4 and not raw.endswith(b"\n")
        try:
            return codecs.getincrementaldecoder("utf-8")().decode(raw, final=not cut)
        except UnicodeDecodeError:
            self.notes["not valid UTF-8: such bytes are shown as \ufffd"] = None
            return raw.decode("utf-8", "replace")

    def _total(self, last: int, size: int) -> int | None:
        if self.ended:
            return last
        if size > COUNTED_BYTES:
            self.notes[f"the file has {size:,} bytes, too many to count its lines"] = None
            return None
        self.file.seek(0)
        return self._skip(size + 1)


def _after_line_ends(chunk: bytes, count: int) -> int:
    position = 0
    for _ in range(count):
        position = chunk.index(b"\n", position) + 1
    return position
