"""One server, looked after: started when it is needed, asked anew when it changes, opened again when it fell.

A server that fails is tried again after a while that grows; one that keeps failing is left alone until a
moment that is told to whoever asks. A call that may have run is never repeated. All of it happens in one
loop, and nothing here knows of any other server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from toolfold.config.servers import McpServer
from toolfold.errors import ConfigError
from toolfold.model import Json
from toolfold.sources.mcp.connection import Connection, Wiring
from toolfold.sources.mcp.courier import Courier
from toolfold.sources.mcp.faults import NeedsLogin, NoAnswer, NotStarted, Resting, ServerFailed, Unsent
from toolfold.sources.mcp.offers import Listing
from toolfold.sources.mcp.sdk import load_sdk

log = logging.getLogger(__name__)

MOST_FAILURES = 3
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
MOST_ATTEMPTS = 6
"""How often a lost server is opened again by itself; then the next call does it."""
STEADY_SECONDS = 20.0
"""How long a server must live until its earlier failures are forgotten."""
SIGN_SECONDS = 5.0
SETTLE_SECONDS = 0.1
"""How long a change of a list is left to be followed by others; longer, where they have no end."""
LONGEST_SETTLE = 10.0

NEWEST = "2026-07-28"
"""The first revision that is spoken without a handshake."""

Word = Literal["idle", "starting", "up", "waiting", "resting", "login", "failed", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How a server fares, for people."""

    name: str
    state: Word
    error: str = ""
    next_try: float = 0.0
    """In how many seconds it will be tried again; 0 where nobody waits for it."""
    tools: int = 0
    held: int = 0
    protocol: str = ""
    seconds: float = 0.0
    """How long it took to get ready."""


class Supervised:
    """One server."""

    def __init__(
        self,
        name: str,
        settings: McpServer,
        *,
        wiring: Callable[[Supervised], Awaitable[Wiring]],
        publish: Callable[[str, Listing], None],
    ) -> None:
        """`wiring` gathers what a connection needs; `publish` is told of every new listing."""
        self.name, self.settings = name, settings
        self._wiring, self._publish = wiring, publish
        self._connection: Connection | None = None
        self._connections: set[Connection] = set()
        """All that were opened and have not ended yet."""
        self._opening: asyncio.Task[Connection] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._changing = False
        self._relisted, self._restless = -LONGEST_SETTLE, 0
        """When a change was last followed, and how many came close upon each other before."""
        self._telling = asyncio.Lock()
        self._doubt: asyncio.Task[None] | None = None
        """Under way while it is found out whether a server that did not answer still lives."""
        self._failures = 0
        self._next_try = 0.0
        self._error: ServerFailed | None = None
        self._seconds = 0.0
        self._closed = False
        self.listing: Listing | None = None
        """What it offers, as far as anybody knows."""
        self.is_legacy = False
        self._followed: set[str] = set()
        """Resources that somebody wants news of, on every connection."""
        self.couriers: list[Courier] = []
        """The ways back to those whose calls are under way."""

    @property
    def word(self) -> Word:
        if not self.settings.enabled:
            return "off"
        if self._connection is not None and self._connection.alive:
            return "up"
        if self._opening is not None and not self._opening.done():
            return "starting"
        if isinstance(self._error, NeedsLogin):
            return "login"
        if self._is_resting:
            return "resting"
        if self._error is not None:
            return "waiting" if self._pause_left > 0 else "failed"
        return "idle"

    @property
    def state(self) -> State:
        return State(
            name=self.name,
            state=self.word,
            error=str(self._error) if self._error else "",
            next_try=self._pause_left,
            tools=len(self.listing.offers) if self.listing else 0,
            protocol=self.listing.protocol if self.listing else "",
            seconds=self._seconds,
        )

    def remember(self, listing: Listing) -> None:
        """What it offered another time, before it is up."""
        self.listing, self.is_legacy = listing, listing.protocol < NEWEST

    async def connection(self) -> Connection:
        """A live connection: the one there is, or a new one. Callers at the same time share the opening."""
        if self._closed:
            raise NotStarted(self.name, "is closed, as its runtime is.")
        if self._connection is not None and self._connection.alive:
            return self._connection
        if self._is_resting:
            raise Resting(
                self.name, f"failed {self._failures} times: {self._last_problem}", advice=self._when
            )
        if self._opening is None or self._opening.done():
            self._opening = self._go(self._open())
        return await asyncio.shield(self._opening)

    async def call(
        self,
        tool: str,
        args: Json,
        courier: Courier | None = None,
        require: Callable[[Listing | None], None] | None = None,
    ) -> Any:
        """Call a tool. Only a call that cannot have run is sent again, once.

        `require` is asked once there is a connection, and with it a list that is no older.
        """

        def send(connection: Connection) -> Awaitable[Any]:
            if require is not None:
                require(self.listing)
            return connection.call(tool, args, courier)

        return await self._asked(send, courier)

    async def ask(self, method: str, params: Json, courier: Courier | None = None) -> Any:
        """Ask for something else than a tool's work."""
        seconds = self.settings.call_timeout_seconds
        if method == "resources/unsubscribe":  # also where it does not hear of it: it is not asked again
            self._followed.discard(params["uri"])
        answer = await self._asked(lambda it: it.ask(method, params, seconds, courier), courier)
        if method == "resources/subscribe":
            self._followed.add(params["uri"])
        return answer

    async def refresh(self) -> Listing:
        """Ask for its tools now."""
        connection = await self.connection()
        await self._take(await connection.listed(self.settings.connect_timeout_seconds))
        assert self.listing is not None  # noqa: S101 - just taken
        return self.listing

    async def restart(self) -> None:
        """Begin anew, whatever happened before."""
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait({self._opening}, timeout=SIGN_SECONDS)
        await self._drop()
        self._failures, self._next_try, self._error = 0, 0.0, None
        await self.connection()

    async def close(self) -> None:
        """End it. Takes a bounded time."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=SIGN_SECONDS)
        await self._drop()
        for connection in tuple(self._connections):  # their end was under way, and was cut short
            await self._end(connection, at_once=True)

    async def _asked(self, ask: Callable[[Connection], Awaitable[Any]], courier: Courier | None) -> Any:
        if self._doubt is not None:
            await asyncio.wait({self._doubt})  # a server that hangs would get no other call done
        connection = await self.connection()
        if courier is not None:
            self.couriers.append(courier)
        try:
            return await ask(connection)
        except Unsent:
            self._retire(connection)
            return await ask(await self.connection())
        except NoAnswer:
            if self._doubt is None or self._doubt.done():
                self._doubt = self._go(self._look_after(connection))
            raise
        finally:
            if courier is not None:
                self.couriers.remove(courier)

    async def _open(self) -> Connection:
        began = time.monotonic()
        try:
            connection, listing = await self._opened()
        except ServerFailed as error:
            self._failed(error)
            raise
        except ConfigError as error:
            problem = str(error).removesuffix(f"\n  {error.hint}")
            fault = NotStarted(self.name, f"cannot be started: {problem}", advice=error.hint)
            self._failed(fault)
            raise fault from None
        self._seconds = time.monotonic() - began
        self._connection, self._next_try, self._error = connection, 0.0, None
        self._go(self._watch(connection))
        await self._take(listing)
        if self._followed:
            seconds = self.settings.call_timeout_seconds
            self._go(connection.follow_again(tuple(self._followed), seconds))
        return connection

    async def _opened(self) -> tuple[Connection, Listing]:
        # Loading the SDK takes a while, which is none of the server's time.
        await asyncio.get_running_loop().run_in_executor(None, load_sdk)
        connection = Connection(self.name, await self._wiring(self))
        self._connections.add(connection)
        await connection.open(self.settings.connect_timeout_seconds)
        try:
            listing = await connection.listed(self.settings.connect_timeout_seconds)
        except BaseException:
            await self._end(connection, at_once=True)
            raise
        self.is_legacy = connection.is_legacy
        return connection, listing

    async def _watch(self, connection: Connection) -> None:
        """From the moment it is up until it is gone; then open another, after a while."""
        keepalive, began = self.settings.keepalive_seconds, time.monotonic()
        while connection.alive:
            await asyncio.wait({connection.gone}, timeout=keepalive or None)
            if connection.alive and not connection.is_busy and connection.idle_seconds >= keepalive * 0.9:
                await self._look_after(connection)
        if time.monotonic() - began > STEADY_SECONDS:
            self._failures = 0
        if self._connection is not connection or self._closed:
            return
        await self._drop()
        fault = ServerFailed(self.name, "ended.", advice="It is started again when it is needed.")
        self._failed(fault)
        await self._reopen()

    async def _reopen(self) -> None:
        for _ in range(MOST_ATTEMPTS):
            await asyncio.sleep(self._pause_left)
            if self._closed or self.word in ("up", "starting", "login"):
                return
            with contextlib.suppress(ServerFailed):
                self._opening = self._go(self._open())
                await asyncio.shield(self._opening)
                return

    async def _look_after(self, connection: Connection) -> None:
        """Whether it still lives. One that gives no sign is ended: nothing else will wake it."""
        try:
            await connection.sign(SIGN_SECONDS)
        except ServerFailed as error:
            log.warning("MCP server %r gives no sign of life and is ended: %s", self.name, error)
            await self._end(connection, at_once=True)

    def changed(self, what: str) -> None:
        """Told by the connection that a list is not what it was. Many such words are one."""
        if what and not self._changing and not self._closed:  # resources and prompts are tools as well
            self._changing = True
            self._go(self._relist())

    async def _relist(self) -> None:
        now = time.monotonic()
        self._restless = self._restless + 1 if now - self._relisted < LONGEST_SETTLE else 0
        await asyncio.sleep(min(LONGEST_SETTLE, SETTLE_SECONDS * 2 ** min(self._restless, 10)))
        if self._opening is not None:  # it may have changed while it was listed for the first time
            await asyncio.wait({self._opening})
        self._changing, self._relisted = False, time.monotonic()
        with contextlib.suppress(ServerFailed):
            connection = self._connection
            if connection is not None and connection.alive:
                await self._take(await connection.listed(self.settings.connect_timeout_seconds))

    async def _take(self, listing: Listing) -> None:
        """Tell of a listing, one at a time, and away from the loop: to look at many tools takes a while."""
        async with self._telling:
            self.listing = listing
            await asyncio.to_thread(self._publish, self.name, listing)

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._end(connection)

    async def _end(self, connection: Connection, *, at_once: bool = False) -> None:
        await connection.close(at_once=at_once)
        self._connections.discard(connection)

    def _retire(self, connection: Connection) -> None:
        """Use it for nothing new, unless that was decided already. What it is busy with it may finish."""
        if self._connection is connection:
            self._connection = None
            self._go(self._close_when_idle(connection))

    async def _close_when_idle(self, connection: Connection) -> None:
        try:
            while connection.is_busy and connection.alive:  # noqa: ASYNC110 - every answer has its time limit
                await asyncio.sleep(0.1)
        finally:
            await self._end(connection, at_once=True)

    def _failed(self, error: ServerFailed) -> None:
        self._error = error
        self.is_legacy = False  # it may be another program by now
        if isinstance(error, NeedsLogin):
            return
        self._failures += 1
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self._failures - 1))
        self._next_try = time.monotonic() + pause * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        log.info("MCP server %r: %s", self.name, error)

    @property
    def _pause_left(self) -> float:
        return max(0.0, self._next_try - time.monotonic())

    @property
    def _is_resting(self) -> bool:
        return self._failures >= MOST_FAILURES and self._pause_left > 0

    @property
    def _last_problem(self) -> str:
        return self._error.problem if self._error else "no more is known."

    @property
    def _when(self) -> str:
        return f"It will be tried again in {self._pause_left:.0f} s."

    def _go(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, ServerFailed):
            log.error("supervising MCP server %r failed", self.name, exc_info=error)
