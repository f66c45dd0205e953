"""One after the other, across processes: a file is locked for as long as something is done.

The lock goes with its process, whatever ends it. Knows nothing of what is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

_LOOK_SECONDS = 0.05


@contextlib.asynccontextmanager
async def turn(file: Path, seconds: float) -> AsyncIterator[None]:
    """Wait for whoever has the file, then have it. Raises TimeoutError."""
    handle = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        async with asyncio.timeout(seconds):
            while not _taken(handle):  # noqa: ASYNC110 - another process tells no event
                await asyncio.sleep(_LOOK_SECONDS)
        yield
    finally:
        os.close(handle)


def _taken(handle: int) -> bool:
    try:
        import fcntl
    except ImportError:  # no such lock on this platform; the files themselves are still all or nothing
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems lock nothing
        return True
    return True
