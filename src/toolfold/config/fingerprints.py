"""Compute fingerprints of settings files and directories, to detect changes.

Links are followed, as the plugin loader does, and their targets are included. The fingerprint of something
too large to read never equals another one. Knows nothing of who changed a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

ABSENT = "absent"
EMPTY = hashlib.sha256(b"").hexdigest()
MAX_FILE_BYTES = 64_000_000
MAX_FILES = 10_000
_BYTECODE = "__pycache__"  # plugins are never loaded from it
_INCOMPLETE = "incomplete:"

_FileState: TypeAlias = tuple[str, int, int, int, int]
Signature: TypeAlias = tuple[_FileState, ...]


class _TooManyFiles(Exception):
    """A directory with settings contains more than MAX_FILES files."""


def fingerprint_path(path: Path) -> str:
    """Return a hash of a file's content, or of everything below a directory, following links.

    Content beyond MAX_FILES or MAX_FILE_BYTES gets a different fingerprint each time.
    """
    if not _is_directory(path):
        return _hash_file(path)
    digest = hashlib.sha256()
    try:
        for each in _walk_files(path):
            held = _hash_file(each)
            if is_incomplete(held):
                return held
            parts = os.fsencode(each.relative_to(path)), _link_target(each), held.encode()
            digest.update(b"\0".join(parts) + b"\0")
    except _TooManyFiles:
        return _new_incomplete_marker()
    return f"folder:{digest.hexdigest()}"


def fingerprint_bytes(content: bytes) -> str:
    """Return the fingerprint that a file with the given content has."""
    return hashlib.sha256(content).hexdigest()


def is_incomplete(found: str) -> bool:
    """Return True if a fingerprint is of a file or directory that was too large to read."""
    return found.startswith(_INCOMPLETE)


def stat_signature(path: Path) -> Signature:
    """Return metadata that changes with every change of a file or directory, including the ctime."""
    plain = stat_plain_file(path)
    if plain is not None:
        return plain
    try:
        below = list(_walk_files(path)) if _is_directory(path) else []
    except _TooManyFiles:
        return ((_new_incomplete_marker(), 0, 0, 0, 0),)
    return tuple(part for each in (path, *below) for part in _stat_path(each))


def stat_plain_file(path: Path) -> Signature | None:
    """Return the metadata of a regular or missing file with one system call; None for any other path."""
    try:
        found = os.lstat(path)
    except OSError:
        return ((str(path), 0, 0, 0, 0),)
    return (_describe_file(path, found),) if stat.S_ISREG(found.st_mode) else None


def have_signatures(paths: Iterable[tuple[str, Signature]]) -> bool:
    """Return True if all paths are regular or missing files whose metadata still equals their signature.

    Does the same as comparing with `stat_plain_file`, in less time: it is done several times for every call.
    """
    for path, signature in paths:
        try:
            found = os.lstat(path)
        except OSError:
            if signature != ((path, 0, 0, 0, 0),):
                return False
            continue
        state = path, found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
        if signature != (state,) or not stat.S_ISREG(found.st_mode):
            return False
    return True


def _describe_file(path: Path, found: os.stat_result) -> _FileState:
    return str(path), found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _new_incomplete_marker() -> str:
    return _INCOMPLETE + secrets.token_hex(16)


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # the name is too long for a file
        return False


def _stat_path(path: Path) -> Iterator[_FileState]:
    """Yield the metadata of a file; for a symbolic link, the metadata of its target and of the link."""
    for follow in (True, False) if _is_link(path) else (True,):
        try:
            found = path.stat(follow_symlinks=follow)
        except OSError:
            yield str(path), 0, 0, 0, 0
        else:
            yield _describe_file(path, found)


def _walk_files(directory: Path) -> Iterator[Path]:
    """Yield every file and link below a directory in a fixed order.

    Directories behind links are entered once each. Raises _TooManyFiles.
    """
    count, entered, pending = 0, {os.path.realpath(directory)}, [directory]
    while pending:
        for root, directories, names in os.walk(pending.pop()):
            directories[:] = sorted(each for each in directories if each != _BYTECODE)
            links = [each for each in (Path(root, name) for name in directories) if _is_link(each)]
            for each in (*links, *(Path(root, name) for name in sorted(names))):
                count += 1
                if count > MAX_FILES:
                    raise _TooManyFiles
                yield each
            for each in links:
                target = os.path.realpath(each)
                if target not in entered:
                    entered.add(target)
                    pending.append(each)


def _is_link(path: Path) -> bool:
    return os.path.islink(path)  # noqa: PTH114 - Path.is_symlink raises where the name is too long


def _link_target(path: Path) -> bytes:
    try:
        return os.fsencode(path.readlink())
    except OSError:  # not a link
        return b""


def _hash_file(path: Path) -> str:
    with contextlib.suppress(OSError):
        if not stat.S_ISREG(path.stat().st_mode):
            return "no file"
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
        return fingerprint_bytes(content) if len(content) <= MAX_FILE_BYTES else _new_incomplete_marker()
    return ABSENT
