"""A limit that holds whatever the one that is limited thinks of it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from toolfold.environments.within import within


async def stubborn(until: asyncio.Event) -> str:
    """Takes no notice of being cancelled."""
    while not until.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await until.wait()
    return "at last"


async def test_an_answer_is_an_answer_and_an_error_an_error() -> None:
    async def answer() -> int:
        return 1

    async def failure() -> int:
        raise KeyError("it")

    assert await within(10, answer()) == 1
    with pytest.raises(KeyError):
        await within(10, failure())


async def test_what_cannot_be_cancelled_is_left_behind() -> None:
    over = asyncio.Event()
    with pytest.raises(TimeoutError):
        await within(0.01, stubborn(over))
    over.set()


async def test_whoever_is_cancelled_need_not_wait_for_it() -> None:
    over = asyncio.Event()
    caller = asyncio.create_task(within(3600, stubborn(over)))
    await asyncio.sleep(0)
    caller.cancel()
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError):
            await caller
    over.set()


async def test_what_cancels_itself_does_not_cancel_its_caller() -> None:
    async def broken() -> None:
        raise asyncio.CancelledError

    with pytest.raises(ConnectionError, match="broken off"):
        await within(10, broken())
