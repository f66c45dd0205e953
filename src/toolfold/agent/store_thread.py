"""Run the operations of a session's store in order, without blocking the event loop.

A store in a database may take seconds to answer, in which other sessions of the process must go on. Its
operations run in one thread per session. Those of a store in a file take less than a thread switch, and run
at once. Knows nothing of sessions and messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from toolfold.state.store import SessionStore

log = logging.getLogger(__name__)

Value = TypeVar("Value")


def _ignore(_value: object) -> None:
    return None


class StoreThread:
    """Executor that runs a session's store operations in order, in a thread if the store is remote.

    Use it from one event loop at a time.
    """

    def __init__(self, store: SessionStore) -> None:
        self._executor = (
            ThreadPoolExecutor(1, thread_name_prefix="toolfold-session")
            if getattr(store, "is_remote", False)
            else None
        )
        self._failure: BaseException | None = None

    @property
    def is_remote(self) -> bool:
        """Return True if the session store is remote, in which case its operations run in a thread."""
        return self._executor is not None

    async def run(self, work: Callable[[], Value], apply: Callable[[Value], None] = _ignore) -> Value:
        """Run a store operation after all earlier operations; pass the result to `apply` and return it.

        A cancelled caller gets the cancellation after the operation has ended and was applied, so that memory
        and store stay the same. Raises what the operation raises, or an earlier one that was submitted.
        """
        if self._executor is None:
            value = work()
            apply(value)
            return value
        future = asyncio.get_running_loop().run_in_executor(self._executor, self._after_failures(work))
        try:
            value = await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({future})
            if error := future.exception():
                log.warning("the last change to an interrupted session could not be stored: %s", error)
            else:
                apply(future.result())
            raise
        apply(value)
        return value

    async def finish(self, work: Callable[[], object]) -> None:
        """Run the last operation and end the thread, then raise the errors of earlier operations."""
        try:
            await self.run(lambda: None)
        finally:
            try:
                await self.run(work)
            finally:
                self.close()

    def submit(self, work: Callable[[], object]) -> None:
        """Queue a store operation without waiting for it; the next `run` reports failures."""
        if self._executor is None:
            work()
        else:
            self._executor.submit(work).add_done_callback(self._note_failure)

    def close(self) -> None:
        """End the thread after all submitted operations."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)

    def _note_failure(self, future: Future[object]) -> None:
        self._failure = self._failure or future.exception()

    def _after_failures(self, work: Callable[[], Value]) -> Callable[[], Value]:
        def run() -> Value:
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            return work()

        return run
