"""Store the text of a model's answer while it is being received, before it is shown.

A crash must not lose what a person has read, so each piece is written to the store before it is published.
Pieces that arrive within a few hundredths of a second are written together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

FLUSH_INTERVAL_S = 0.03


class DraftWriter:
    """Stores and publishes the pieces of one answer while they arrive."""

    def __init__(self, save: Callable[[str], None], publish: Callable[[str], None]) -> None:
        self._save, self._publish = save, publish
        self._text = ""
        self._shown = 0
        self._last_flush = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, text: str) -> None:
        """Add a piece of the answer; it is stored and published at once or within `FLUSH_INTERVAL_S`."""
        self._text += text
        wait = self._last_flush + FLUSH_INTERVAL_S - time.monotonic()
        if wait <= 0:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(wait, self.flush)

    def flush(self) -> None:
        """Store and publish the pieces of the model's reply that were added since the last time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._shown == len(self._text):
            return
        self._save(self._text)
        new, self._shown = self._text[self._shown :], len(self._text)
        self._last_flush = time.monotonic()
        self._publish(new)
