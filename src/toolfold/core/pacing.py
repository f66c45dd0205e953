"""Divide the event loop's time fairly among servers."""

from __future__ import annotations

import asyncio
import time

MAX_WORK_S = 0.005
"""CPU time that reading one connection may take before other tasks run."""
MAX_BURST_S = 1.0
"""CPU time after which a connection without pauses gets half of the loop's time."""
MAX_REST_S = 0.1
_WAITED_S = 0.001


class Pacer:
    """Lets other tasks run while a connection is read, and throttles a connection that sends constantly."""

    def __init__(self) -> None:
        self._began, self._active = time.thread_time(), time.monotonic()
        self._burst = 0.0

    def resume(self) -> None:
        """Record that the server has sent data; after a pause in the data, start a new time slice."""
        now = time.monotonic()
        if now - self._active > _WAITED_S:
            self._burst = max(0.0, self._burst - (now - self._active))
            self._began = time.thread_time()
        self._active = now

    async def rest_if_due(self) -> None:
        """Let other tasks run if the time slice is used up; sleep if the connection was busy too long."""
        spent = time.thread_time() - self._began
        if spent >= MAX_WORK_S:
            self._burst += spent
            await asyncio.sleep(min(spent, MAX_REST_S) if self._burst > MAX_BURST_S else 0)
            self._began = time.thread_time()
        self._active = time.monotonic()
