"""Replace files atomically under a lock, and create private directories.

Knows nothing of what the content means.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from toolfold.core.errors import ConfigError

LOCK_TIMEOUT_S = 10.0
_LOCK_POLL_S = 0.005


def make_private_directory(directory: Path) -> None:
    """Create a directory and its missing parents, all readable by their owner only."""
    for each in reversed((directory, *directory.parents)):
        if not each.is_dir():
            each.mkdir(exist_ok=True, mode=0o700)


@contextlib.contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Hold an exclusive lock on a directory in a `with` block, without creating a lock file.

    Has no effect on Windows and on file systems that cannot lock a directory.
    Raises ConfigError if another process keeps the lock for longer than LOCK_TIMEOUT_S.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Windows can neither open nor lock a directory. A file is replaced atomically there, too, but of two
        # processes that read, change and replace it at the same time, one loses its change.
        handle = os.open(directory, os.O_RDONLY) if os.name == "posix" else None
    except OSError as error:
        raise ConfigError(
            f"the directory cannot be created or opened: {error.strerror}", file=str(directory)
        ) from None
    if handle is None:
        yield
        return
    try:
        _acquire_lock(handle, directory)
        yield
    finally:
        os.close(handle)


def _acquire_lock(handle: int, directory: Path) -> None:
    """Lock a directory. Raises ConfigError if that takes longer than LOCK_TIMEOUT_S."""
    try:
        import fcntl
    except ImportError:  # a system without locks of files
        return
    end = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                problem = f"another process has locked the directory for {LOCK_TIMEOUT_S:g} s"
                raise ConfigError(
                    problem, file=str(directory), hint="end the process that holds the lock, then try again"
                ) from None
            time.sleep(_LOCK_POLL_S)
        except OSError:  # some network file systems cannot lock a directory; go on without a lock
            return
        else:
            return


def replace_file(file: Path, content: bytes, *, mode: int | None = None) -> None:
    """Replace a file atomically by renaming a temporary file; preserve the file's mode and owner."""
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}.tmp")
    try:
        # Not more permissive than the final mode: others could read the file before it is set.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        handle = os.open(temporary, flags, mode or _file_mode(file) or 0o666)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            _copy_owner_and_mode(file, stream.fileno(), mode)
            os.fsync(stream.fileno())
        temporary.replace(file)
        _sync_directory(file.parent)
    except OSError as error:
        raise ConfigError(f"the file cannot be written: {error.strerror}", file=str(file)) from None
    finally:
        with contextlib.suppress(OSError):  # it was not created if the name is too long
            temporary.unlink(missing_ok=True)


def _file_mode(file: Path) -> int | None:
    try:
        return file.stat().st_mode & 0o777
    except FileNotFoundError:
        return None


def _copy_owner_and_mode(file: Path, handle: int, mode: int | None) -> None:
    if not hasattr(os, "fchmod"):
        return  # Windows: the rights of the directory apply
    with contextlib.suppress(FileNotFoundError):
        before = file.stat()
        with contextlib.suppress(PermissionError):
            os.fchown(handle, before.st_uid, before.st_gid)
        os.fchmod(handle, mode or before.st_mode & 0o7777)


def _sync_directory(directory: Path) -> None:
    """Flush a directory to disk, so that the rename of a file in it survives a power failure."""
    if os.name != "posix":
        return  # Windows cannot open a directory
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
