"""Run an environment in an event loop and thread of its own, so that any other loop can use it.

Sessions are called from short-lived event loops, while connections and the watcher of background processes
belong to one loop for their whole life.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from toolfold.environments.environment import Environment
from toolfold.errors import EnvironmentFailed

T = TypeVar("T")

CLOSE_TIMEOUT_S = 40.0
READY_CACHE_S = 60.0
"""How long a successful check is valid."""


class EnvironmentThread:
    """Runs an environment in a thread of its own, which is started on first use."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        """From another event loop, only its attributes may be read."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._ready_at = 0.0

    async def run(self, work: Callable[[Environment], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine with the environment in the environment's thread.

        Cancelling the wait cancels the work, which then cleans up.
        """
        loop = self._ensure_loop()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(self.environment), loop))

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
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None or not thread.is_alive():
            return
        closing = asyncio.run_coroutine_threadsafe(self.environment.close(), loop)
        with contextlib.suppress(TimeoutError):
            closing.result(CLOSE_TIMEOUT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_TIMEOUT_S)

    def _ensure_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._closed:
                raise EnvironmentFailed("The runtime is closed.", advice="Open a new runtime.")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run_loop, args=(self._loop,), name="toolfold-environment", daemon=True
                )
                self._thread.start()
            return self._loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        _cancel_remaining_tasks(loop)
    finally:
        loop.close()


def _cancel_remaining_tasks(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
