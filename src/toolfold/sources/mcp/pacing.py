"""Fair use of the loop that all servers share."""

from __future__ import annotations

import asyncio
import time

MAX_WORK_S = 0.005
"""Processor time that reading one connection may take before the others have their turn."""
MAX_REST_S = 0.1
_WAITED_S = 0.001


class Pacer:
    """Gives the reader of one connection at most half of the loop's time, in short slices."""

    def __init__(self) -> None:
        self._began, self._active = time.thread_time(), time.monotonic()

    def resume(self) -> None:
        """Note that something was received; if it was waited for, a new slice begins."""
        now = time.monotonic()
        if now - self._active > _WAITED_S:
            self._began = time.thread_time()
        self._active = now

    async def rest_if_due(self) -> None:
        """Sleep for as long as the slice took, if it took long."""
        spent = time.thread_time() - self._began
        if spent >= MAX_WORK_S:
            await asyncio.sleep(min(spent, MAX_REST_S))
            self._began = time.thread_time()
        self._active = time.monotonic()
