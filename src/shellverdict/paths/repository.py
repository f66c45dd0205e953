"""Determine which paths a git repository tracks and ignores, by reading its files.

Git itself is not run, because a repository's configuration can name programs that git would start.
Everything that is read is bounded. If something cannot be read, the result is "unknown".
"""

from __future__ import annotations

import hashlib
import os
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shellverdict.paths.gitignore import IgnorePattern, is_ignored, read_patterns

__all__ = ["Repository", "find_repository"]

MAX_INDEX_BYTES = 32_000_000
MAX_ENTRIES = 150_000  # takes about 0.3 s to read; larger repositories count as unknown
MAX_IGNORE_BYTES = 65_536
MAX_LEVELS = 40
_ENTRY = struct.Struct(">10I20sH")
_EXTENDED = 0x4000
_CHECKSUM_BYTES = 20
_MAX_POINTER_BYTES = 4_096


@dataclass(slots=True)
class Repository:
    """A git repository: its working tree and its index (the list of tracked files)."""

    root: Path
    index: Path
    _entries: dict[bytes, bytes] | None = field(default=None, repr=False)
    _lowered: list[bytes] | None = field(default=None, repr=False)
    _ignore_patterns: dict[str, tuple[IgnorePattern, ...]] = field(default_factory=dict, repr=False)

    def tracks_anything(self, relative: str) -> bool | None:
        """Return True if git tracks the path or anything below it; None if that cannot be determined.

        Letter case is ignored, because some file systems ignore it.
        """
        entries = self._read_entries()
        if entries is None:
            return None
        if self._lowered is None:
            self._lowered = sorted(map(bytes.lower, entries))
        path = os.fsencode(relative).lower()
        if any(_contains_entry(self._lowered, each) for each in (path, *_collapsed_parents(path))):
            return True
        return _first_entry_from(self._lowered, path + b"/").startswith(path + b"/")

    def tracked_below(self, relative: str) -> Iterator[str] | None:
        """Return the files that git tracks in a directory (`""` for the whole tree); None if unknown."""
        entries = self._read_entries()
        if entries is None:
            return None
        start = os.fsencode(f"{relative}/" if relative else "")
        return (os.fsdecode(each) for each in entries if each.startswith(start))

    def ignores(self, relative: str) -> bool:
        """Return True if a tracked `.gitignore` file ignores the path or one of its parents.

        Only `.gitignore` files that are tracked and unchanged count: the author of the command could have
        written or changed the file just before.
        """
        parts = relative.split("/")
        if len(parts) > MAX_LEVELS:
            return False
        for length in range(1, len(parts) + 1):
            ignored = False
            for depth in range(length):
                verdict = is_ignored(
                    self._patterns_of("/".join((*parts[:depth], ".gitignore"))), parts[depth:length]
                )
                ignored = ignored if verdict is None else verdict
            if ignored:
                return True
        return False

    def _patterns_of(self, relative: str) -> tuple[IgnorePattern, ...]:
        """Return the patterns of one `.gitignore` file, which is read only once."""
        if relative not in self._ignore_patterns:
            self._ignore_patterns[relative] = read_patterns(self._unchanged_text(relative))
        return self._ignore_patterns[relative]

    def _unchanged_text(self, relative: str) -> str:
        entries = self._read_entries() or {}
        known = entries.get(os.fsencode(relative))
        try:
            with (self.root / relative).open("rb") as file:
                content = file.read(MAX_IGNORE_BYTES + 1)
        except OSError:
            return ""
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).digest()
        return content.decode("utf-8", "replace") if known == blob else ""

    def _read_entries(self) -> dict[bytes, bytes] | None:
        if self._entries is None:
            try:
                self._entries = _read_index(self.index)
            except (OSError, ValueError, struct.error, IndexError):
                return None
        return self._entries


def find_repository(directory: Path) -> Repository | None:
    """Return the git repository whose working tree contains a directory; None if there is none."""
    for _ in range(MAX_LEVELS):
        marker = directory / ".git"
        if marker.is_dir():
            return Repository(directory, marker / "index")
        if marker.is_file():
            return _read_gitdir_file(directory, marker)
        if directory.parent == directory:
            return None
        directory = directory.parent
    return None


def _read_gitdir_file(directory: Path, marker: Path) -> Repository | None:
    """Return the repository of a worktree or submodule, whose `.git` file names its git directory."""
    try:
        with marker.open("rb") as file:
            content = file.read(_MAX_POINTER_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return None
    if not content.startswith("gitdir:"):
        return None
    return Repository(directory, directory / content.removeprefix("gitdir:").strip() / "index")


def _first_entry_from(entries: Sequence[bytes], path: bytes) -> bytes:
    """Return the first entry of the sorted git index at or after a path; empty if there is none."""
    at = bisect_left(entries, path)
    return entries[at] if at < len(entries) else b""


def _contains_entry(entries: Sequence[bytes], path: bytes) -> bool:
    return bool(path) and _first_entry_from(entries, path) == path


def _collapsed_parents(path: bytes) -> Iterator[bytes]:
    """Yield each parent directory of a path with and without a final slash, as a git index may list it.

    The index then has one entry for the directory and none for the files in it.
    """
    parts = path.split(b"/")
    for length in range(1, len(parts)):
        above = b"/".join(parts[:length])
        yield above
        yield above + b"/"


def _read_index(file: Path) -> dict[bytes, bytes]:
    """Return the paths in a git index file and their content hashes.

    Raises ValueError, OSError, struct.error.
    """
    with file.open("rb") as stream:
        data = stream.read(MAX_INDEX_BYTES + 1)
    signature, version, count = struct.unpack_from(">4sII", data)
    if signature != b"DIRC" or version not in (2, 3, 4) or len(data) > MAX_INDEX_BYTES or count > MAX_ENTRIES:
        raise ValueError("the git index has an unsupported format or is too large")
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
    _check_extensions(data, at)
    return entries


def _check_extensions(data: bytes, at: int) -> None:
    """Raise ValueError if part of the git index is in another file, or if its checksum is wrong.

    An index with longer hashes, for example, ends with another checksum.
    """
    end = len(data) - _CHECKSUM_BYTES
    while at < end:
        signature, size = struct.unpack_from(">4sI", data, at)
        if signature == b"link":
            raise ValueError("the git index is a split index: some of its entries are in another file")
        at += 8 + size
    expected = hashlib.sha1(data[:end], usedforsecurity=False).digest()
    if at != end or data[end:] not in (expected, bytes(_CHECKSUM_BYTES)):
        raise ValueError("corrupt git index")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    value, at = byte & 0x7F, at + 1
    while byte & 0x80:
        byte = data[at]
        value, at = ((value + 1) << 7) | (byte & 0x7F), at + 1
    return value, at
