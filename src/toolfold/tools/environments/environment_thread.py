"""Run an environment in a separate thread with its own event loop, so that any other loop can use it.

Sessions are called from short-lived event loops, while connections and the watcher of background processes
belong to one loop for their whole life.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from toolfold.core.errors import EnvironmentFailed
from toolfold.core.loops import LoopThread, LoopThreadClosed
from toolfold.tools.environments.environment import Environment

T = TypeVar("T")

CLOSE_TIMEOUT_S = 40.0
READY_CACHE_S = 60.0
"""How long a successful check is valid."""


class EnvironmentThread:
    """Runs an environment in a separate thread, which is started on first use."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        """From another event loop, only its attributes may be read."""
        self._thread = LoopThread("toolfold-environment")
        self._ready_at = 0.0

    async def run(self, work: Callable[[Environment], Coroutine[Any, Any, T]]) -> T:
        """Run a function that takes the environment and returns a coroutine, in the environment's thread.

        Cancelling the wait cancels the work, which then cleans up.
        """
        try:
            return await self._thread.run(lambda: work(self.environment))
        except LoopThreadClosed:
            raise EnvironmentFailed("The runtime is closed.", advice="Open a new runtime.") from None

    def check(self) -> bool:
        """Return True if the environment can be used. Raises EnvironmentFailed, with advice, if not."""
        if self._ready_at and time.monotonic() - self._ready_at < READY_CACHE_S:
            return True
        backend = self.environment.backend
        readiness = asyncio.run(backend.check())
        if not readiness.available:
            raise EnvironmentFailed(f"{backend.name}: {readiness.reason}.", advice=readiness.advice)
        self._ready_at = time.monotonic()
        return True

    def close(self) -> None:
        """Close the environment, if it was ever used."""
        self._thread.close(self.environment.close, CLOSE_TIMEOUT_S)
