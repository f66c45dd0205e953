"""What goes between a server and the client of a gateway while a call is under way.

A gateway hands one to each call; the pool gives it what the server says meanwhile: progress, words for the
log, questions. It belongs to the loop it was made in, and may be used from any other. Knows neither server
nor transport.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from toolfold.visible import visible

if TYPE_CHECKING:
    from toolfold.sources.mcp.people import Voice
    from toolfold.sources.mcp.supervisor import Supervised


MOST_ASKED = 8
"""How many questions of one server wait for a client at once."""
MOST_UNTOLD = 200


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Courier:
    """The way back to one client, for one call."""

    client: str
    progress: Callable[[float, float | None, str | None], Coroutine[Any, Any, None]] | None = None
    log: Callable[[str, Any], Coroutine[Any, Any, None]] | None = None
    """Told which server said it, and what."""
    elicit: Callable[[Any], Coroutine[Any, Any, Any]] | None = None
    sample: Callable[[Any], Coroutine[Any, Any, Any]] | None = None
    capabilities: dict[str, Any] | None = None
    """What the client can be asked, as it declared it."""
    resolves: bool = False
    """Whether the client answers by itself what a server wants to know before it goes on."""
    responses: Any = None
    """What the client answered when the same call was made before."""
    state: str | None = None
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    untold: set[Any] = field(default_factory=set)
    """What is on its way to the client."""

    async def ask(self, way: Callable[[Any], Coroutine[Any, Any, Any]], params: Any) -> Any:
        """Ask the client, in its own loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(way(params), self.loop))

    def tell(self, work: Coroutine[Any, Any, None]) -> None:
        """Tell the client something. Nobody waits for it, and a client that is gone is no fault.

        One that does not listen is told no more until it has heard what is on its way.
        """
        if len(self.untold) >= MOST_UNTOLD:
            work.close()
            return
        with contextlib.suppress(RuntimeError):
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
            self.untold.add(future)
            future.add_done_callback(self.untold.discard)
            future.add_done_callback(lambda done: done.cancelled() or done.exception())


def one_of(couriers: list[Courier]) -> Courier | None:
    """The courier of the only client there is: a question of unknown origin is no other client's business."""
    clients = {each.client for each in couriers}
    return couriers[-1] if len(clients) == 1 else None


def in_its_name(params: Any, server: str) -> Any:
    """A server's question, which says whose it is: its words may claim to be ours or another's."""
    return params.model_copy(update={"message": f"The server {server!r} asks: {visible(params.message)}"})


class Relay:
    """Carries what a server asks to the client that called it, and else to whoever answers for the person."""

    def __init__(self, server: Supervised, voice: Voice) -> None:
        self._server, self._voice = server, voice
        self._asking = 0

    @property
    def is_asking(self) -> bool:
        return self._asking > 0

    async def elicit(self, context: Any, params: Any) -> Any:
        """A question for a person."""
        from mcp_types import ElicitResult

        courier = one_of(self._server.couriers)
        if self._server.settings.elicitation == "ask" and courier is not None and courier.elicit is not None:
            if self._asking >= MOST_ASKED:  # nobody can answer a flood
                return ElicitResult(action="decline")
            return await self._asked(courier, courier.elicit, in_its_name(params, self._server.name))
        if (answer := self._voice.elicitation) is not None:
            return await answer(context, params)
        return ElicitResult(action="decline")

    async def sample(self, context: Any, params: Any) -> Any:
        """A question for the model."""
        courier = one_of(self._server.couriers) if self._asking < MOST_ASKED else None
        if self._server.settings.sampling != "deny" and courier is not None and courier.sample is not None:
            return await self._asked(courier, courier.sample, params)
        if (answer := self._voice.sampling) is not None:
            return await answer(context, params)
        from mcp_types import INVALID_REQUEST, ErrorData

        return ErrorData(code=INVALID_REQUEST, message="nobody here lets servers use a model")

    async def log(self, params: Any) -> None:
        """Words for the log of whoever has a call under way. With several, nobody knows whose they are."""
        courier = one_of(self._server.couriers)
        if courier is not None and courier.log is not None:
            courier.tell(courier.log(self._server.name, params))

    async def _asked(
        self, courier: Courier, way: Callable[[Any], Coroutine[Any, Any, Any]], params: Any
    ) -> Any:
        self._asking += 1
        try:
            return await courier.ask(way, params)
        finally:
            self._asking -= 1


class Signal:
    """Tells everybody who listens, from any thread."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[str, str, Any], None]] = []

    def listen(self, listener: Callable[[str, str, Any], None]) -> None:
        self._listeners.append(listener)

    def tell(self, server: str, kind: str, what: Any) -> None:
        for listener in tuple(self._listeners):
            listener(server, kind, what)
