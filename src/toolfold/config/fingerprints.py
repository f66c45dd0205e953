"""What a settings file or folder holds, in short: a fingerprint, and a signature that is cheap to compare.

Knows nothing of who changed what.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

ABSENT = "absent"
EMPTY = hashlib.sha256(b"").hexdigest()
MAX_FILE_BYTES = 64_000_000
MAX_FILES = 5_000
_BYTECODE = "__pycache__"  # never loaded from the folders of plugins

Signature: TypeAlias = tuple[tuple[str, int, int, int, int], ...]


def fingerprint(path: Path) -> str:
    """Return a hash of the content of a file, or of everything below a folder; links are followed once."""
    if _is_folder(path):
        digest = hashlib.sha256()
        for file in _files(path):
            digest.update(os.fsencode(file.relative_to(path)) + b"\0" + _hash_file(file).encode() + b"\0")
        return f"folder:{digest.hexdigest()}"
    return _hash_file(path)


def fingerprint_of(content: bytes) -> str:
    """Return the fingerprint of a file with this content."""
    return hashlib.sha256(content).hexdigest()


def signature(path: Path) -> Signature:
    """Return what changes with every change of the file or folder. The time of change cannot be set back."""
    return tuple(_stat(each) for each in (path, *(_files(path) if _is_folder(path) else ())))


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that no file can have
        return False


def _stat(path: Path) -> tuple[str, int, int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return str(path), 0, 0, 0, 0
    return str(path), found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _files(folder: Path) -> Iterator[Path]:
    """Every file below the folder, in an order that does not depend on the disk; no more than MAX_FILES."""
    count = 0
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if each != _BYTECODE)
        for name in sorted(names):
            yield Path(root, name)
            count += 1
            if count >= MAX_FILES:
                return


def _hash_file(path: Path) -> str:
    with contextlib.suppress(OSError):
        if not stat.S_ISREG(path.stat().st_mode):
            return "no file"
        with path.open("rb") as stream:
            return fingerprint_of(stream.read(MAX_FILE_BYTES))
    return ABSENT
