"""Machine-independent assertions about time: that work ends, and how its cost grows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

WORK_TIMEOUT_S = 120.0
"""Seconds that no machine needs for work in proportion to its input; what grows faster takes hours."""


def run_with_limit(work: Callable[[], T]) -> T:
    """Return the result of the work; fail instead of hanging if it does not end."""
    given: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            given.append(work())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(WORK_TIMEOUT_S)
    assert not thread.is_alive(), "it did not end"
    if raised:
        raise raised[0]
    return given[0]


def cost_ratio(small: Callable[[], object], large: Callable[[], object], repetitions: int = 3) -> float:
    """Return the CPU time of `large` divided by that of `small`, using the fastest run of each."""
    return min(_cpu_seconds(large, repetitions)) / max(min(_cpu_seconds(small, repetitions)), 1e-6)


def _cpu_seconds(work: Callable[[], object], repetitions: int) -> list[float]:
    return [_measure_once(work) for _ in range(repetitions)]


def _measure_once(work: Callable[[], object]) -> float:
    begun = time.thread_time()
    work()
    return time.thread_time() - begun


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true; fail if that takes longer than any machine needs."""
    deadline = time.monotonic() + WORK_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.01)
