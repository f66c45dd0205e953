"""Replacing a file's content all at once, one process after the other; folders that are private.

Knows nothing of what the content means.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from toolfold.errors import ConfigError

LOCK_TIMEOUT_S = 10.0
_LOCK_POLL_S = 0.005


def make_private_directory(folder: Path) -> None:
    """Make a folder, and the missing ones above it, that only their owner can list."""
    for each in reversed((folder, *folder.parents)):
        if not each.is_dir():
            each.mkdir(exist_ok=True, mode=0o700)


@contextlib.contextmanager
def lock_directory(folder: Path) -> Iterator[None]:
    """Wait for every other writer in the folder. The folder itself is the lock: nothing is left behind.

    Raises ConfigError where another process keeps the lock for longer than LOCK_TIMEOUT_S.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"the folder cannot be used: {error.strerror}", file=str(folder)) from None
    try:
        _acquire_lock(handle, folder)
        yield
    finally:
        os.close(handle)


def _acquire_lock(handle: int, folder: Path) -> None:
    """Lock the folder. Raises ConfigError where that takes longer than LOCK_TIMEOUT_S."""
    try:
        import fcntl
    except ImportError:  # no such lock on this platform; a replacement is still all or nothing
        return
    end = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                problem = f"another process has kept the folder locked for {LOCK_TIMEOUT_S:g} s"
                raise ConfigError(problem, file=str(folder), hint="end it, then try again") from None
            time.sleep(_LOCK_POLL_S)
        except OSError:  # some network file systems cannot lock a folder; that is no reason to refuse
            return
        else:
            return


def replace_file(file: Path, content: bytes, *, mode: int | None = None) -> None:
    """Write beside the file, then take its place. Keeps the mode and the owner the file had."""
    beside = file.with_name(f".{file.name}.{secrets.token_hex(4)}.tmp")
    try:
        # Never more than the file will have: between these lines others could read it.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        handle = os.open(beside, flags, mode or _file_mode(file) or 0o666)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            _copy_owner_and_mode(file, stream.fileno(), mode)
            os.fsync(stream.fileno())
        beside.replace(file)
        _sync_directory(file.parent)
    except OSError as error:
        raise ConfigError(f"the file cannot be written: {error.strerror}", file=str(file)) from None
    finally:
        with contextlib.suppress(OSError):  # it may never have been there: a name can be too long
            beside.unlink(missing_ok=True)


def _file_mode(file: Path) -> int | None:
    try:
        return file.stat().st_mode & 0o777
    except FileNotFoundError:
        return None


def _copy_owner_and_mode(file: Path, handle: int, mode: int | None) -> None:
    with contextlib.suppress(FileNotFoundError):
        before = file.stat()
        with contextlib.suppress(PermissionError):
            os.fchown(handle, before.st_uid, before.st_gid)
        os.fchmod(handle, mode or before.st_mode & 0o7777)


def _sync_directory(folder: Path) -> None:
    """A rename is only safe from a power cut once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
