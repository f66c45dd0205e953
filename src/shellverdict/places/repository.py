"""What a git repository tracks and ignores, read from its files as data.

Git itself is not run: a repository's configuration can name programs for it to start. Everything that is read
is bounded. Where something cannot be read, the answer is that nothing is known.
"""

from __future__ import annotations

import hashlib
import os
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shellverdict.places.ignoring import IgnorePattern, is_ignored, read_patterns

__all__ = ["Repository", "find_repository"]

MAX_INDEX_BYTES = 32_000_000
MAX_ENTRIES = 150_000  # a third of a second; in a larger repository people are asked
MAX_IGNORE_BYTES = 65_536
MAX_LEVELS = 40
_ENTRY = struct.Struct(">10I20sH")
_EXTENDED = 0x4000
_CHECKSUM_BYTES = 20
_MAX_POINTER_BYTES = 4_096


@dataclass(slots=True)
class Repository:
    """One working tree and its index."""

    root: Path
    index: Path
    _entries: dict[bytes, bytes] | None = field(default=None, repr=False)
    _lowered: list[bytes] | None = field(default=None, repr=False)
    _ignore_patterns: dict[str, tuple[IgnorePattern, ...]] = field(default_factory=dict, repr=False)

    def tracks_anything(self, relative: str) -> bool | None:
        """Whether the path, something in it, or a collapsed directory above it is tracked. None: not known.

        The case of letters does not count: on some file systems it makes no difference.
        """
        entries = self._read()
        if entries is None:
            return None
        if self._lowered is None:
            self._lowered = sorted(map(bytes.lower, entries))
        path = os.fsencode(relative).lower()
        if any(_holds(self._lowered, each) for each in (path, *_collapsed_above(path))):
            return True
        return _first_from(self._lowered, path + b"/").startswith(path + b"/")

    def tracked_below(self, relative: str) -> Iterator[str] | None:
        """The tracked files in a directory, `""` for all of them. None: not known."""
        entries = self._read()
        if entries is None:
            return None
        start = os.fsencode(f"{relative}/" if relative else "")
        return (os.fsdecode(each) for each in entries if each.startswith(start))

    def ignores(self, relative: str) -> bool:
        """Whether a committed-to rule ignores the path or a directory above it.

        Only `.gitignore` files count that are tracked and as the index knows them: one that was written or
        changed a moment ago could have been changed by the command's author.
        """
        parts = relative.split("/")
        if len(parts) > MAX_LEVELS:
            return False
        for length in range(1, len(parts) + 1):
            decided = False
            for depth in range(length):
                verdict = is_ignored(
                    self._patterns("/".join((*parts[:depth], ".gitignore"))), parts[depth:length]
                )
                decided = decided if verdict is None else verdict
            if decided:
                return True
        return False

    def _patterns(self, relative: str) -> tuple[IgnorePattern, ...]:
        """The patterns of one `.gitignore` file, which is read once."""
        if relative not in self._ignore_patterns:
            self._ignore_patterns[relative] = read_patterns(self._unchanged_text(relative))
        return self._ignore_patterns[relative]

    def _unchanged_text(self, relative: str) -> str:
        entries = self._read() or {}
        known = entries.get(os.fsencode(relative))
        try:
            with (self.root / relative).open("rb") as file:
                content = file.read(MAX_IGNORE_BYTES + 1)
        except OSError:
            return ""
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).digest()
        return content.decode("utf-8", "replace") if known == blob else ""

    def _read(self) -> dict[bytes, bytes] | None:
        if self._entries is None:
            try:
                self._entries = _read_index(self.index)
            except (OSError, ValueError, struct.error, IndexError):
                return None
        return self._entries


def find_repository(folder: Path) -> Repository | None:
    """The repository whose working tree holds a directory."""
    for _ in range(MAX_LEVELS):
        marker = folder / ".git"
        if marker.is_dir():
            return Repository(folder, marker / "index")
        if marker.is_file():
            return _linked(folder, marker)
        if folder.parent == folder:
            return None
        folder = folder.parent
    return None


def _linked(folder: Path, marker: Path) -> Repository | None:
    """A worktree or a submodule: the marker says where its own folder is."""
    try:
        with marker.open("rb") as file:
            said = file.read(_MAX_POINTER_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return None
    if not said.startswith("gitdir:"):
        return None
    return Repository(folder, folder / said.removeprefix("gitdir:").strip() / "index")


def _first_from(entries: Sequence[bytes], path: bytes) -> bytes:
    """The first of the sorted entries that is not before the path, empty where there is none."""
    at = bisect_left(entries, path)
    return entries[at] if at < len(entries) else b""


def _holds(entries: Sequence[bytes], path: bytes) -> bool:
    return bool(path) and _first_from(entries, path) == path


def _collapsed_above(path: bytes) -> Iterator[bytes]:
    """Directories that a sparse index holds as one entry, and submodules, have everything below them."""
    parts = path.split(b"/")
    for length in range(1, len(parts)):
        above = b"/".join(parts[:length])
        yield above
        yield above + b"/"


def _read_index(file: Path) -> dict[bytes, bytes]:
    """The tracked paths and the hashes of their contents. Raises ValueError, OSError and struct.error."""
    with file.open("rb") as stream:
        data = stream.read(MAX_INDEX_BYTES + 1)
    signature, version, count = struct.unpack_from(">4sII", data)
    if signature != b"DIRC" or version not in (2, 3, 4) or len(data) > MAX_INDEX_BYTES or count > MAX_ENTRIES:
        raise ValueError("not an index that can be read")
    entries: dict[bytes, bytes] = {}
    at, path = 12, b""
    for _ in range(count):
        *_, digest, flags = _ENTRY.unpack_from(data, at)
        start = at + _ENTRY.size + (2 if flags & _EXTENDED else 0)
        if version == 4:
            strip, start = _read_varint(data, start)
            end = data.index(b"\0", start)
            path = path[: len(path) - strip] + data[start:end]
            at = end + 1
        else:
            end = data.index(b"\0", start)
            path = data[start:end]
            at += (end - at + 8) // 8 * 8
        entries[path] = digest
    _check_rest(data, at)
    return entries


def _check_rest(data: bytes, at: int) -> None:
    """Raise ValueError if the entries were not read as they were meant, or are not all of them.

    An index with longer hashes, for one, ends with another checksum.
    """
    end = len(data) - _CHECKSUM_BYTES
    while at < end:
        signature, size = struct.unpack_from(">4sI", data, at)
        if signature == b"link":
            raise ValueError("a split index: the rest is in another file")
        at += 8 + size
    expected = hashlib.sha1(data[:end], usedforsecurity=False).digest()
    if at != end or data[end:] not in (expected, bytes(_CHECKSUM_BYTES)):
        raise ValueError("a broken index")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    value, at = byte & 0x7F, at + 1
    while byte & 0x80:
        byte = data[at]
        value, at = ((value + 1) << 7) | (byte & 0x7F), at + 1
    return value, at
