"""What a server of the newest revision tells unasked: a subscription, taken up again where it is cut.

A subscription cannot be changed: to follow one resource more, another is opened before the old one ends, so
that nothing is missed in between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

PAUSE = 0.5
LONGEST_PAUSE = 60.0
STEADY_SECONDS = 60.0

Listen = Callable[..., Any]
"""The client's own `listen`."""


class News:
    """One subscription, listened to from now on."""

    def __init__(
        self, listen: Callable[[], Any], heard: Callable[[Any], None], opened: Callable[[bool], None]
    ) -> None:
        """`opened` is told of every opening, and whether it is another one: what was said before is lost."""
        self._listen, self._heard, self._opened = listen, heard, opened
        self._is_told = asyncio.Event()
        self._was_open = False
        self._refusal: Exception | None = None
        self._task = asyncio.create_task(self._go_on())

    async def settled(self) -> None:
        """Until it is open, or known never to be, in which case it raises why."""
        await self._is_told.wait()
        if self._refusal is not None and not self._was_open:
            raise self._refusal

    def end(self) -> None:
        self._task.cancel()

    async def _go_on(self) -> None:
        pause = PAUSE
        while True:
            began = time.monotonic()
            try:
                await self._listened()
            except Exception as error:  # keepalive and calls find out the rest
                self._refusal = error
            self._is_told.set()
            if not self._was_open:
                return  # a server need not offer it
            pause = PAUSE if time.monotonic() - began > STEADY_SECONDS else min(LONGEST_PAUSE, 2 * pause)
            await asyncio.sleep(pause)

    async def _listened(self) -> None:
        """Listen to the end of it."""
        async with self._listen() as events:
            was_open, self._was_open = self._was_open, True
            self._is_told.set()
            self._opened(was_open)
            async for event in events:
                self._heard(event)


class Followed:
    """The resources of one server that somebody follows: one subscription for them all."""

    def __init__(self, listen: Listen, told: Callable[[str], None]) -> None:
        """`told` gets the address of a resource that is not what it was."""
        self._listen, self._told = listen, told
        self._uris: frozenset[str] = frozenset()
        self._news: News | None = None
        self._turn = asyncio.Lock()
        self._is_over = False

    async def change(self, uri: str, *, wanted: bool) -> None:
        """Follow a resource, or no longer. Raises what the server refuses it with."""
        async with self._turn:
            uris = self._uris | {uri} if wanted else self._uris - {uri}
            if uris == self._uris:
                return
            news = await self._opened(uris) if uris else None
            if self._news is not None:
                self._news.end()
            self._uris, self._news = uris, news
            if self._is_over:  # since it was asked for
                self.end()

    def end(self) -> None:
        """Listen to nothing any more, neither to what is just being opened."""
        self._is_over = True
        if self._news is not None:
            self._news.end()

    async def _opened(self, uris: frozenset[str]) -> News:
        def opened(again: bool) -> None:
            for uri in uris if again else ():  # nobody knows what became of them meanwhile
                self._told(uri)

        listen = partial(self._listen, resource_subscriptions=sorted(uris))
        news = News(listen, lambda event: self._told(str(event.uri)), opened)
        try:
            await news.settled()
        except BaseException:
            news.end()
            raise
        return news
