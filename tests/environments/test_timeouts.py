"""A timeout holds even if the call ignores cancellation."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from toolfold.tools.environments.timeouts import call_with_timeout


async def ignore_cancellation(until: asyncio.Event) -> str:
    """Wait for the event and ignore cancellation."""
    while not until.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await until.wait()
    return "at last"


async def test_call_with_timeout_returns_the_result_or_raises_the_exception_of_the_call() -> None:
    async def answer() -> int:
        return 1

    async def failure() -> int:
        raise KeyError("it")

    assert await call_with_timeout(10, answer()) == 1
    with pytest.raises(KeyError):
        await call_with_timeout(10, failure())


async def test_call_with_timeout_raises_timeout_error_even_if_the_call_ignores_cancellation() -> None:
    over = asyncio.Event()
    with pytest.raises(TimeoutError):
        await call_with_timeout(0.01, ignore_cancellation(over))
    over.set()


async def test_cancelling_call_with_timeout_does_not_wait_for_a_call_that_ignores_cancellation() -> None:
    over = asyncio.Event()
    caller = asyncio.create_task(call_with_timeout(3600, ignore_cancellation(over)))
    await asyncio.sleep(0)
    caller.cancel()
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError):
            await caller
    over.set()


async def test_call_with_timeout_raises_connection_error_if_the_called_library_raises_cancelled_error() -> (
    None
):
    async def broken() -> None:
        raise asyncio.CancelledError

    with pytest.raises(ConnectionError, match="client library cancelled the request"):
        await call_with_timeout(10, broken())
