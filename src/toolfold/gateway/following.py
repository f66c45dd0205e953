"""Which resources clients follow, by request or for as long as a stream is open.

A server knows one client, us: it is asked for news whenever somebody begins to follow, and told that they are
not wanted only when nobody follows any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from typing import Any

from toolfold.gateway.seats import ClientSession

ASK_SECONDS = 5.0
"""How long a stream waits for servers to say that they will tell. One that hangs must not keep it away."""
AT_ONCE = 10
"""How many resources a server is asked for side by side: a client has only so many requests under way."""

Ask = Callable[[ClientSession, str, str, str], Awaitable[Any]]
"""Asks a server: the seat, the server, the method, the server's own address of the resource."""


class Following:
    """What the seats of a gateway follow."""

    def __init__(self, seats: Mapping[str, ClientSession], ask: Ask) -> None:
        self._seats, self._ask = seats, ask
        self._ending: set[asyncio.Task[None]] = set()

    async def begin(self, seat: ClientSession, uri: str) -> None:
        """Ask the server for its news. Raises OutOfScope, or what it refuses to with."""
        seat.resource_owner(uri)
        seat.followed[uri] += 1  # before it is asked, so that nobody who ends meanwhile ends it for all
        try:
            await self._begin(seat, uri)
        except asyncio.CancelledError:
            self._beside(self._end_all(seat, [uri]))
            raise

    async def _begin(self, seat: ClientSession, uri: str) -> None:
        """Ask for what counts already. Cut off, it counts until it is ended: it may have been heard."""
        try:
            server, own = seat.resource_owner(uri)
            await self._ask(seat, server, "resources/subscribe", own)
        except Exception:
            _count_less(seat, uri)
            raise

    async def end(self, seat: ClientSession, uri: str, *, wholly: bool = False) -> None:
        """One who followed does no longer; `wholly` where all of the seat's do not."""
        server, own = seat.resource_owner(uri)
        _count_less(seat, uri, wholly=wholly)
        if not any(uri in each.followed for each in self._seats.values()):
            await self._ask(seat, server, "resources/unsubscribe", own)

    @asynccontextmanager
    async def meanwhile(self, seat: ClientSession, uris: Sequence[str]) -> AsyncIterator[None]:
        """Follow these for as long as a stream of news is open; what a server refuses is not followed."""
        by_server = _by_server(seat, uris)
        unasked, begun = {uri for each in by_server for uri in each}, set[str]()
        seat.followed.update(unasked)

        async def begin(left: Iterator[str]) -> None:
            for uri in left:
                unasked.discard(uri)
                begun.add(uri)
                try:
                    await self._begin(seat, uri)
                except Exception:
                    begun.discard(uri)

        servers = map(iter, by_server)
        beginning = asyncio.gather(*(begin(left) for left in servers for _ in range(AT_ONCE)))
        try:
            await asyncio.wait({beginning}, timeout=ASK_SECONDS)  # the rest is asked while the stream is open
            yield
        finally:  # beside: the stream ends at once, and it may end by being cut off
            beginning.cancel()
            for uri in unasked:
                _count_less(seat, uri)
            self._beside(self._end_all(seat, tuple(begun)))

    def leave(self, seat: ClientSession) -> None:
        """A client has left its seat: what it followed is ended where nobody else follows it."""
        if seat.followed:
            self._beside(self._end_left(seat, tuple(seat.followed)))

    async def _end_all(self, seat: ClientSession, uris: Collection[str]) -> None:
        for uri in uris:
            if self._seats.get(seat.key) is not seat:
                return  # it has left, and all that it followed is ended
            with contextlib.suppress(Exception):
                await self.end(seat, uri)

    async def _end_left(self, seat: ClientSession, uris: Collection[str]) -> None:
        for uri in uris:
            with contextlib.suppress(Exception):
                if seat.shares_owner(uri):  # the others were its own, and went with it
                    await self.end(seat, uri, wholly=True)

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def _by_server(seat: ClientSession, uris: Sequence[str]) -> Collection[list[str]]:
    """Each once, those of every server for themselves: one that hangs keeps no other from being asked."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for uri, server in seat.readable(uris).items():
        found[server].append(uri)
    return found.values()


def _count_less(seat: ClientSession, uri: str, *, wholly: bool = False) -> None:
    left = 0 if wholly else seat.followed[uri] - 1
    if left > 0:
        seat.followed[uri] = left
    else:
        seat.followed.pop(uri, None)
