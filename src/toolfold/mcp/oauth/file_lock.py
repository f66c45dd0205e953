"""Lock file that allows only one process at a time to perform an operation.

The operating system releases the lock when its process ends. Knows nothing of the operation.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

_POLL_INTERVAL_S = 0.05


@contextlib.asynccontextmanager
async def hold_lock(file: Path, timeout_s: float) -> AsyncIterator[None]:
    """Hold a lock file in an `async with` block. Raises TimeoutError if it is not free in time."""
    handle = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        async with asyncio.timeout(timeout_s):
            while not _try_lock(handle):  # noqa: ASYNC110 - another process cannot set an event
                await asyncio.sleep(_POLL_INTERVAL_S)
        yield
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    try:
        import fcntl
    except ImportError:  # no file locks on this platform; the files are still written atomically
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems have no locks
        return True
    return True
