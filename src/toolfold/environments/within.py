"""A time limit for code that is not ours, which may take no notice of being cancelled.

An SDK may wait for its server before it lets go of a call, or lose the cancellation on the way. So we do not
wait for it: where the time is over or we are cancelled, it is told so and left behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def within(seconds: float, call: Coroutine[Any, Any, T]) -> T:
    """What it answers. Raises TimeoutError where it does not answer in time."""
    task = asyncio.ensure_future(call)
    task.add_done_callback(heard)
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
    if not task.done():
        raise TimeoutError
    if task.cancelled():  # by itself: nobody has cancelled us
        raise ConnectionError("it was broken off")
    return task.result()


def heard(task: asyncio.Future[Any]) -> None:
    """Let it fail in silence, as a callback: nobody may be left to whom an exception could be told."""
    if not task.cancelled():
        task.exception()
