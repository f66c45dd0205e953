"""Store the text of a model's answer while it is streamed, always before the text is displayed.

A crash must not lose what a person has read, so each piece is written to the store before it is published.
Pieces that arrive within a few hundredths of a second, or while others are written, are written together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from toolfold.agent.store_thread import StoreThread

FLUSH_INTERVAL_S = 0.03


class DraftWriter:
    """Writer that stores and publishes the text chunks of one model answer as they arrive."""

    def __init__(
        self, thread: StoreThread, save: Callable[[str], None], publish: Callable[[str], None]
    ) -> None:
        self._thread, self._save, self._publish = thread, save, publish
        self._text = ""
        self._shown = 0
        self._last_flush = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None

    def add(self, text: str) -> None:
        """Add a text chunk of the answer; it is stored and published within `FLUSH_INTERVAL_S`.

        Raises the error of an earlier piece that could not be stored.
        """
        self._text += text
        wait = self._last_flush + FLUSH_INTERVAL_S - time.monotonic()
        if wait <= 0:
            self._flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(wait, self._flush)

    async def finish(self) -> None:
        """Store and publish all text chunks of the model's reply added so far."""
        self._cancel_timer()
        while self._shown < len(self._text):
            self._flush()
            if self._saving is not None:
                await self._saving

    def _flush(self) -> None:
        """Store and publish the text chunks of the answer that are not stored yet."""
        self._cancel_timer()
        if self._saving is not None and self._saving.done():
            self._saving.result()
        if self._shown == len(self._text) or self._saving is not None:
            return
        self._last_flush = time.monotonic()
        if self._thread.is_remote:
            self._saving = asyncio.create_task(self._save_remotely(self._text))
        else:
            self._save(self._text)
            self._show(self._text)

    async def _save_remotely(self, text: str) -> None:
        await self._thread.run(lambda: self._save(text))
        self._saving = None
        self._show(text)
        if self._shown < len(self._text) and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_INTERVAL_S, self._flush)

    def _show(self, text: str) -> None:
        new, self._shown = text[self._shown :], len(text)
        self._publish(new)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
