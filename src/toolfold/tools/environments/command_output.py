"""Collect the output of a command: start and end in memory, all of it on disk if it is long.

Takes bytes and returns text. Knows nothing of commands.
"""

from __future__ import annotations

import codecs
import logging
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from toolfold.config.atomic import make_private_directory

Listener = Callable[[str], object]

log = logging.getLogger(__name__)

NUL = "\N{SYMBOL FOR NULL}"


def decode_text(data: bytes) -> str:
    """Decode bytes to text for a model; invalid UTF-8 and NUL become visible characters."""
    return data.decode("utf-8", "replace").replace("\0", NUL)


class OutputBuffer:
    """Buffer for output of any length, which keeps the first and last bytes of the output in memory."""

    def __init__(
        self,
        *,
        max_bytes: int,
        directory: Path | None = None,
        max_file_bytes: int = 0,
        listener: Listener | None = None,
    ) -> None:
        self.total_bytes = 0
        self.file: Path | None = None
        self._max_head_bytes = max_bytes // 2
        self._max_tail_bytes = max_bytes - self._max_head_bytes
        self._head, self._tail = bytearray(), bytearray()
        self._directory, self._max_file_bytes = directory, max_file_bytes
        self._file: BinaryIO | None = None
        self._written_bytes = 0
        self._listener = listener
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def append(self, data: bytes) -> None:
        """Add the next bytes of the output."""
        if not data:
            return
        self._buffer_bytes(data)
        self.total_bytes += len(data)
        self._notify_listener(self._decoder.decode(data))

    def finish(self) -> None:
        """Mark the output as complete and close its file."""
        self._notify_listener(self._decoder.decode(b"", final=True))
        if self._file:
            self._file.close()
            self._file = None

    @property
    def complete(self) -> bytes | None:
        """Return all bytes of the output; None if some were omitted."""
        return bytes(self._head + self._tail) if self._omitted_bytes == 0 else None

    @property
    def _omitted_bytes(self) -> int:
        return self.total_bytes - len(self._head) - len(self._tail)

    @property
    def is_truncated(self) -> bool:
        return self._omitted_bytes > 0

    @property
    def lost_bytes(self) -> int:
        """Return the number of output bytes that are neither in memory nor on disk."""
        return max(0, self.total_bytes - self._written_bytes) if self.is_truncated else 0

    def text(self) -> str:
        """Return the whole output, or its start and end with a line between that states the omitted size."""
        if self.complete is not None:
            return decode_text(self.complete)
        head, tail = trim_partial_character(bytes(self._head)), _skip_partial_character(bytes(self._tail))
        omitted = self.total_bytes - len(head) - len(tail)
        return f"{decode_text(head)}\n… ({omitted:,} bytes omitted) …\n{decode_text(tail)}"

    def _buffer_bytes(self, data: bytes) -> None:
        room = self._max_head_bytes - len(self._head)
        rest = data[max(0, room) :]
        fits = len(self._tail) + len(rest) <= self._max_tail_bytes
        if self._file or not fits:
            self._store_bytes(data)
        self._head += data[: max(0, room)]
        self._tail += rest[-self._max_tail_bytes :]
        del self._tail[: max(0, len(self._tail) - self._max_tail_bytes)]

    def _store_bytes(self, data: bytes) -> None:
        if self._directory is None:
            return
        try:
            if self.file is None:
                self._create_file(self._directory)
            if self._file:
                self._write_bytes(self._file, data[: max(0, self._max_file_bytes - self._written_bytes)])
        except OSError as error:  # a full disk must not stop the command
            log.warning("cannot store the complete output of a command: %s", error)
            self._directory = None

    def _create_file(self, directory: Path) -> None:
        """Create the output file and write everything received so far."""
        make_private_directory(directory)
        self.file = directory / f"output-{secrets.token_hex(6)}.txt"
        descriptor = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(descriptor, "wb", buffering=0)  # unbuffered: the byte count matches the file
        self._write_bytes(self._file, bytes(self._head + self._tail))

    def _write_bytes(self, file: BinaryIO, data: bytes) -> None:
        self._written_bytes += file.write(data)

    def _notify_listener(self, text: str) -> None:
        if self._listener and text:
            self._listener(text.replace("\0", NUL))


def trim_partial_character(data: bytes) -> bytes:
    """Remove an incomplete UTF-8 character at the end of the bytes.

    A character has up to four bytes, and its first byte tells how many.
    """
    for distance in range(1, min(4, len(data)) + 1):
        byte = data[-distance]
        if byte & 0xC0 != 0x80:
            length = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data if length <= distance else data[:-distance]
    return data


def _skip_partial_character(data: bytes) -> bytes:
    for start in range(min(4, len(data))):
        if data[start] & 0xC0 != 0x80:
            return data[start:]
    return data if len(data) >= 4 else b""  # four continuation bytes in a row: not UTF-8 text
