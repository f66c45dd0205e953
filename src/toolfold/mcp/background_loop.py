"""Event loop in a separate thread, in which a runtime connects to its MCP servers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from toolfold.core.loops import make_network_loop

__all__ = ["CLOSE_TIMEOUT_S", "BackgroundLoop"]

T = TypeVar("T")

CLOSE_TIMEOUT_S = 10.0


class BackgroundLoop:
    """Event loop in a separate thread that is started on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_started(self) -> bool:
        return self._loop is not None

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._ensure_running())

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop's thread and await its result; cancelling the caller cancels it.

        Does the same as waiting for `submit`, with fewer steps, because every tool call waits for it.
        """
        own, loop = asyncio.get_running_loop(), self._ensure_running()
        outcome: asyncio.Future[T] = own.create_future()
        tasks: list[asyncio.Task[None]] = []

        def deliver(set_outcome: Callable[..., object], *args: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop of the caller is closed
                own.call_soon_threadsafe(_settle, outcome, set_outcome, *args)

        async def run_and_deliver() -> None:
            try:
                result = await work
            except Exception as error:
                deliver(outcome.set_exception, error)
            else:
                deliver(outcome.set_result, result)

        def start() -> None:
            tasks.append(loop.create_task(run_and_deliver()))
            tasks[0].add_done_callback(deliver_failure)

        def deliver_failure(task: asyncio.Task[None]) -> None:
            if task.cancelled():  # perhaps before it has started
                deliver(outcome.cancel)
            elif (error := task.exception()) is not None:  # it ends the event loop, such as SystemExit
                deliver(outcome.set_exception, error)

        loop.call_soon_threadsafe(start)
        try:
            return await outcome
        except asyncio.CancelledError:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            raise

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function in the event loop's thread, without waiting; do nothing if the loop is closing."""
        with contextlib.suppress(RuntimeError):  # it is closing
            self._ensure_running().call_soon_threadsafe(function, *args)

    def close(self) -> None:
        with self._lock:
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_TIMEOUT_S)

    def _ensure_running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                # The SDK logs every invalid message; they are in the servers' own logs already.
                logging.getLogger("mcp").addHandler(logging.NullHandler())
                self._loop = make_network_loop()
                self._thread = threading.Thread(target=self._run_loop, name="toolfold-mcp", daemon=True)
                self._thread.start()
            return self._loop

    def _run_loop(self) -> None:
        loop = self._loop
        assert loop is not None  # noqa: S101 - set before the thread is started
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=2.0))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()


def _settle(outcome: asyncio.Future[Any], set_outcome: Callable[..., object], *args: object) -> None:
    if not outcome.done():  # the caller may have been cancelled
        set_outcome(*args)
