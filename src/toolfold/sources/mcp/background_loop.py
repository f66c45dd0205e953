"""Event loop in a separate thread, in which a runtime connects to its MCP servers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["CLOSE_TIMEOUT_S", "BackgroundLoop"]

T = TypeVar("T")

CLOSE_TIMEOUT_S = 10.0


class BackgroundLoop:
    """Event loop in a separate thread, which is started on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_started(self) -> bool:
        return self._loop is not None

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._ensure_running())

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
                self._loop = asyncio.new_event_loop()
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
