"""Check whether a socket has unread data or is closed, on every platform.

For kept connections: one at which something has arrived, or which the other end has closed, cannot be used
for another request. Knows no protocol.
"""

from __future__ import annotations

import select
from collections.abc import Callable

__all__ = ["make_arrival_check"]


def make_arrival_check(descriptor: int) -> Callable[[], bool]:
    """Return a non-blocking function that returns True if a socket has unread data or is closed."""
    if not hasattr(select, "poll"):  # on Windows, where `select` has no limit for descriptors
        return lambda: _is_readable(descriptor)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return lambda: bool(poll.poll(0))


def _is_readable(descriptor: int) -> bool:
    try:
        return bool(select.select([descriptor], [], [], 0)[0])
    except (OSError, ValueError):  # it was closed here
        return True
