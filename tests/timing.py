"""What can be said of time on any machine: that work ends, and how its cost grows with what it is given."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LONG = 120.0
"""Seconds that no machine needs for work in proportion to its input; what grows faster takes hours."""


def in_time(work: Callable[[], T]) -> T:
    """What the work gives; it fails, instead of hanging the tests, where the work does not end."""
    given: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            given.append(work())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LONG)
    assert not thread.is_alive(), "it did not end"
    if raised:
        raise raised[0]
    return given[0]


def growth(small: Callable[[], object], large: Callable[[], object], repetitions: int = 3) -> float:
    """How many times the processor time of the small work the large one takes, in the best case of each."""
    return min(_seconds(large, repetitions)) / max(min(_seconds(small, repetitions)), 1e-6)


def _seconds(work: Callable[[], object], repetitions: int) -> list[float]:
    return [_once(work) for _ in range(repetitions)]


def _once(work: Callable[[], object]) -> float:
    begun = time.thread_time()
    work()
    return time.thread_time() - begun
