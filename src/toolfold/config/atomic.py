"""Replacing a file's content all at once, one process after the other; folders that are private.

Knows nothing of what the content means.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from toolfold.errors import ConfigError


def make_private_folder(folder: Path) -> None:
    """Make a folder, and the missing ones above it, that only their owner can list."""
    for each in reversed((folder, *folder.parents)):
        if not each.is_dir():
            each.mkdir(exist_ok=True, mode=0o700)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait for every other writer in the folder. The folder itself is the lock: nothing is left behind."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"the folder cannot be used: {error.strerror}", file=str(folder)) from None
    try:
        _lock(handle)
        yield
    finally:
        os.close(handle)


def _lock(handle: int) -> None:
    try:
        import fcntl
    except ImportError:  # no such lock on this platform; a replacement is still all or nothing
        return
    # Some network file systems cannot lock a folder; that is no reason to refuse the change.
    with contextlib.suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_EX)


def replace(file: Path, content: bytes, *, mode: int | None = None) -> None:
    """Write beside the file, then take its place. Keeps the mode and the owner the file had."""
    beside = file.with_name(f".{file.name}.{secrets.token_hex(4)}.tmp")
    try:
        # Never more than the file will have: between these lines others could read it.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        handle = os.open(beside, flags, mode or _mode_of(file) or 0o666)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            _like_before(file, stream.fileno(), mode)
            os.fsync(stream.fileno())
        beside.replace(file)
        _persist(file.parent)
    except OSError as error:
        raise ConfigError(f"the file cannot be written: {error.strerror}", file=str(file)) from None
    finally:
        with contextlib.suppress(OSError):  # it may never have been there: a name can be too long
            beside.unlink(missing_ok=True)


def _mode_of(file: Path) -> int | None:
    try:
        return file.stat().st_mode & 0o777
    except FileNotFoundError:
        return None


def _like_before(file: Path, handle: int, mode: int | None) -> None:
    with contextlib.suppress(FileNotFoundError):
        before = file.stat()
        with contextlib.suppress(PermissionError):
            os.fchown(handle, before.st_uid, before.st_gid)
        os.fchmod(handle, mode or before.st_mode & 0o7777)


def _persist(folder: Path) -> None:
    """A rename is only safe from a power cut once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
