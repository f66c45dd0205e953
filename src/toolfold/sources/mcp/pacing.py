"""Fair use of the loop that all servers share."""

from __future__ import annotations

import asyncio
import time

MAX_WORK_S = 0.005
"""Processor time that reading one connection may take before the others have their turn."""
MAX_BURST_S = 1.0
"""Processor time after which a connection that never pauses gets half of the loop's time."""
MAX_REST_S = 0.1
_WAITED_S = 0.001


class Pacer:
    """Lets others have their turn while a connection is read, and slows down one that never pauses."""

    def __init__(self) -> None:
        self._began, self._active = time.thread_time(), time.monotonic()
        self._burst = 0.0

    def resume(self) -> None:
        """Note that something was received; if it was waited for, a new slice begins."""
        now = time.monotonic()
        if now - self._active > _WAITED_S:
            self._burst = max(0.0, self._burst - (now - self._active))
            self._began = time.thread_time()
        self._active = now

    async def rest_if_due(self) -> None:
        """Let others have their turn if the slice took long, for as long as it took if the burst did."""
        spent = time.thread_time() - self._began
        if spent >= MAX_WORK_S:
            self._burst += spent
            await asyncio.sleep(min(spent, MAX_REST_S) if self._burst > MAX_BURST_S else 0)
            self._began = time.thread_time()
        self._active = time.monotonic()
