"""An environment that lives in an event loop of its own, so that any other loop, or none, can use it.

Sessions are called from loops that come and go, while a connection and what watches over background
processes belong to one loop for as long as they last.
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

CLOSE_SECONDS = 40.0
READY_SECONDS = 60.0
"""How long a check that passed is believed."""


class Resident:
    """Starts its loop, in a thread of its own, with the first use."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        """From another loop, only to be looked at."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._found_ready = 0.0

    async def use(self, work: Callable[[Environment], Coroutine[Any, Any, T]]) -> T:
        """Do something with it. Whoever stops waiting also stops the work, which still tidies up."""
        loop = self._running()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(self.environment), loop))

    def check(self) -> bool:
        """Whether it can be used. Raises EnvironmentFailed with what to do where it cannot."""
        if self._found_ready and time.monotonic() - self._found_ready < READY_SECONDS:
            return True
        backend = self.environment.backend
        readiness = asyncio.run(backend.check())
        if not readiness.available:
            raise EnvironmentFailed(f"{backend.name}: {readiness.reason}.", advice=readiness.advice)
        self._found_ready = time.monotonic()
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
            closing.result(CLOSE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_SECONDS)

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._closed:
                raise EnvironmentFailed("The runtime is closed.", advice="Open another one.")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run, args=(self._loop,), name="toolfold-environment", daemon=True
                )
                self._thread.start()
            return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        _cancel_what_is_left(loop)
    finally:
        loop.close()


def _cancel_what_is_left(loop: asyncio.AbstractEventLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
