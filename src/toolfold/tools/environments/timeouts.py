"""Apply a time limit to coroutines of other packages, which may ignore cancellation.

An SDK may wait for its server before it gives up a call, or lose the cancellation. So the caller does not
wait for it: after the timeout, or when the caller is cancelled, the call is cancelled and abandoned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def call_with_timeout(timeout_s: float, call: Coroutine[Any, Any, T]) -> T:
    """Await `call` and return its result. Raises TimeoutError after `timeout_s` seconds."""
    task = asyncio.ensure_future(call)
    task.add_done_callback(consume_exception)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    finally:
        task.cancel()
    if not task.done():
        raise TimeoutError
    if task.cancelled():  # it cancelled itself: this function was not cancelled
        raise ConnectionError("the backend's client library cancelled the request")
    return task.result()


def consume_exception(task: asyncio.Future[Any]) -> None:
    """Retrieve a task's exception in a done callback, so that asyncio does not log it as never retrieved."""
    if not task.cancelled():
        task.exception()
