"""What a command wrote: its beginning and its end in memory, all of it on disk where that is not all.

Bytes come in as they are; text goes out that any reader can take. Knows nothing of commands.
"""

from __future__ import annotations

import codecs
import logging
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from toolfold.config.atomic import make_private_folder

Listener = Callable[[str], object]

log = logging.getLogger(__name__)

NUL = "\N{SYMBOL FOR NULL}"


def readable(data: bytes) -> str:
    """Text for a model: what is no UTF-8 and no character becomes a visible sign."""
    return data.decode("utf-8", "replace").replace("\0", NUL)


class Output:
    """Takes any number of bytes and keeps the first and the last of them."""

    def __init__(
        self,
        *,
        most: int,
        folder: Path | None = None,
        largest_file: int = 0,
        listener: Listener | None = None,
    ) -> None:
        self.total = 0
        self.stored: Path | None = None
        self._head_room = most // 2
        self._tail_room = most - self._head_room
        self._head, self._tail = bytearray(), bytearray()
        self._folder, self._largest_file = folder, largest_file
        self._file: BinaryIO | None = None
        self._written = 0
        self._listener = listener
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, data: bytes) -> None:
        """The next bytes."""
        if not data:
            return
        self._keep(data)
        self.total += len(data)
        self._tell(self._decoder.decode(data))

    def finish(self) -> None:
        """There are no more."""
        self._tell(self._decoder.decode(b"", final=True))
        if self._file:
            self._file.close()
            self._file = None

    @property
    def whole(self) -> bytes | None:
        """All of it, where nothing was left out."""
        return bytes(self._head + self._tail) if self._left_out == 0 else None

    @property
    def _left_out(self) -> int:
        return self.total - len(self._head) - len(self._tail)

    @property
    def cut(self) -> bool:
        return self._left_out > 0

    @property
    def lost(self) -> int:
        """How many bytes are neither shown nor on disk."""
        return max(0, self.total - self._written) if self.cut else 0

    def text(self) -> str:
        """All of it, or its head and its tail with a line between them that says so."""
        if self.whole is not None:
            return readable(self.whole)
        head, tail = whole_characters(bytes(self._head)), _from_whole_character(bytes(self._tail))
        left_out = self.total - len(head) - len(tail)
        return f"{readable(head)}\n… ({left_out:,} bytes left out) …\n{readable(tail)}"

    def _keep(self, data: bytes) -> None:
        room = self._head_room - len(self._head)
        rest = data[max(0, room) :]
        fits = len(self._tail) + len(rest) <= self._tail_room
        if self._file or not fits:
            self._store(data)
        self._head += data[: max(0, room)]
        self._tail += rest[-self._tail_room :]
        del self._tail[: max(0, len(self._tail) - self._tail_room)]

    def _store(self, data: bytes) -> None:
        if self._folder is None:
            return
        try:
            if self.stored is None:
                self._begin_file(self._folder)
            if self._file:
                self._write(self._file, data[: max(0, self._largest_file - self._written)])
        except OSError as error:  # a full disk must not end the command
            log.warning("the output of a command cannot be kept: %s", error)
            self._folder = None

    def _begin_file(self, folder: Path) -> None:
        """From the first byte: nothing has been left out so far."""
        make_private_folder(folder)
        self.stored = folder / f"output-{secrets.token_hex(6)}.txt"
        descriptor = os.open(self.stored, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(descriptor, "wb", buffering=0)  # what is counted is there
        self._write(self._file, bytes(self._head + self._tail))

    def _write(self, file: BinaryIO, data: bytes) -> None:
        self._written += file.write(data)

    def _tell(self, text: str) -> None:
        if self._listener and text:
            self._listener(text.replace("\0", NUL))


def whole_characters(data: bytes) -> bytes:
    """Without a part of a character at the end.

    A character is up to four bytes long, and its first byte says how long.
    """
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            length = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data if length <= back else data[:-back]
    return data


def _from_whole_character(data: bytes) -> bytes:
    for start in range(min(4, len(data))):
        if data[start] & 0xC0 != 0x80:
            return data[start:]
    return data if len(data) >= 4 else b""  # four such bytes in a row are no text at all
