"""Supervise one MCP server: start it when needed, refresh its tool list, reconnect on failure.

A server that fails is retried with growing backoff; after several failures calls are refused at once, with
the time of the next attempt. A call that may have run is never repeated. Everything runs in one event loop,
and nothing here knows other servers.
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

from toolfold.config.servers_settings import McpServerSettings
from toolfold.core.errors import ConfigError, SourceError
from toolfold.core.types import Json, Progress
from toolfold.mcp.call_relay import CallRelay
from toolfold.mcp.connection import ConnectionDeps, ServerConnection
from toolfold.mcp.faults import (
    NeedsLogin,
    NotStarted,
    RequestNotSent,
    ResponseTimeout,
    ServerBackingOff,
    ServerFailed,
)
from toolfold.mcp.sdk_compat import load_sdk
from toolfold.mcp.tool_listing import Listing

log = logging.getLogger(__name__)

MAX_FAILURES = 3
INITIAL_BACKOFF_S = 1.0
MAX_BACKOFF_S = 60.0
MAX_REOPEN_ATTEMPTS = 6
"""Attempts to reopen a lost server in the background; after that the next call does it."""
STABLE_AFTER_S = 20.0
"""Uptime after which earlier failures no longer count."""
PING_TIMEOUT_S = 5.0
RELIST_DELAY_S = 0.1
"""Time to collect further changes before listing again; grows while changes keep coming."""
MAX_RELIST_DELAY_S = 10.0

FIRST_MODERN_PROTOCOL = "2026-07-28"
"""The first protocol revision without an initialization handshake."""

StateName = Literal["idle", "starting", "up", "waiting", "resting", "login", "failed", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """State of an MCP server, for display."""

    name: str
    state: StateName
    error: str = ""
    next_try: float = 0.0
    """Seconds until the next attempt to connect; 0 if none is scheduled."""
    tools: int = 0
    held: int = 0
    protocol: str = ""
    seconds: float = 0.0
    """Seconds that the last start took."""


class ServerSupervisor:
    """Keeps one MCP server available: connects, reconnects and lists its tools."""

    def __init__(
        self,
        name: str,
        settings: McpServerSettings,
        *,
        build_deps: Callable[[ServerSupervisor], Awaitable[ConnectionDeps]],
        publish: Callable[[str, Listing], None],
    ) -> None:
        """Create a supervisor; `publish` is called with every new tool list of the server."""
        self.name, self.settings = name, settings
        self.credentials_version = ("", "")
        """User whose credentials the server has, and their version; empty if all users share them."""
        self._build_deps, self._publish = build_deps, publish
        self._connection: ServerConnection | None = None
        self._connections: set[ServerConnection] = set()
        """All connections that are not closed yet."""
        self._open_task: asyncio.Task[ServerConnection] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_relist_scheduled = False
        self._last_relist, self._rapid_changes = -MAX_RELIST_DELAY_S, 0
        """Time of the last relisting, and number of changes in quick succession before it."""
        self._publish_lock = asyncio.Lock()
        self._liveness_check: asyncio.Task[None] | None = None
        """Runs while a server that did not respond in time is checked."""
        self._failures = 0
        self._next_try = 0.0
        self._error: ServerFailed | None = None
        self._startup_seconds = 0.0
        self._closed = self._is_retired = False
        self._active_requests, self._idle = 0, asyncio.Event()
        self._idle.set()
        self.listing: Listing | None = None
        """Last known listing."""
        self.is_legacy = False
        self._subscriptions: set[str] = set()
        """URIs of resources that clients are subscribed to, renewed on every connection."""
        self.call_relays: list[CallRelay] = []
        """Relays of the calls in progress."""

    @property
    def state_name(self) -> StateName:
        if not self.settings.enabled:
            return "off"
        if self._connection is not None and self._connection.is_alive:
            return "up"
        if self._open_task is not None and not self._open_task.done():
            return "starting"
        if isinstance(self._error, NeedsLogin):
            return "login"
        if self._is_backing_off:
            return "resting"
        if self._error is not None:
            return "waiting" if self._backoff_remaining > 0 else "failed"
        return "idle"

    @property
    def state(self) -> ServerState:
        return ServerState(
            name=self.name,
            state=self.state_name,
            error=str(self._error) if self._error else "",
            next_try=self._backoff_remaining,
            tools=len(self.listing.tools) if self.listing else 0,
            protocol=self.listing.protocol if self.listing else "",
            seconds=self._startup_seconds,
        )

    def use_cached_listing(self, listing: Listing) -> None:
        """Use a tool list from an earlier run until the server is connected."""
        self.listing, self.is_legacy = listing, listing.protocol < FIRST_MODERN_PROTOCOL

    async def adopt_listing(self, listing: Listing, publish: Callable[[Listing], None]) -> None:
        """Use a tool list that another replica has read from the server, and call `publish` with it.

        A connected server is asked for its list instead: its process may be another version.
        """
        if self.state_name == "up":
            with contextlib.suppress(ServerFailed):
                await self.refresh_listing()
                return
        async with self._publish_lock:
            if self.state_name == "up" or self._closed or self._is_retired:
                return
            self.use_cached_listing(listing)
            await asyncio.to_thread(publish, listing)

    async def get_connection(self) -> ServerConnection:
        """Return the open connection, or open a connection; concurrent callers share one attempt."""
        if self._closed:
            raise NotStarted(self.name, "is closed because the runtime was closed.")
        if self._connection is not None and self._connection.is_alive:
            return self._connection
        if self._is_backing_off:
            raise ServerBackingOff(
                self.name, f"failed {self._failures} times: {self._last_problem}", advice=self._retry_advice
            )
        if self._open_task is None or self._open_task.done():
            self._open_task = self._start_task(self._open_connection())
        return await asyncio.shield(self._open_task)

    async def call_tool(
        self,
        tool: str,
        args: Json,
        relay: CallRelay | None = None,
        require: Callable[[Listing | None], None] | None = None,
        report_progress: Progress | None = None,
    ) -> Any:
        """Call a tool of the server; repeat the call after a failure only if the tool cannot have run.

        `require` is called before sending, with the current listing, and may raise. `report_progress`
        receives the server's progress notifications.
        """

        def send(connection: ServerConnection) -> Awaitable[Any]:
            if require is not None:
                require(self.listing)
            return connection.call_tool(tool, args, relay, report_progress)

        return await self._run_on_connection(send, relay)

    async def send_request(self, method: str, params: Json, relay: CallRelay | None = None) -> Any:
        """Send a request other than a tool call to the server."""
        seconds = self.settings.call_timeout_seconds
        if method == "resources/unsubscribe":  # even if the request fails: do not resubscribe
            self._subscriptions.discard(params["uri"])
        answer = await self._run_on_connection(
            lambda connection: connection.send_request(method, params, seconds, relay), relay
        )
        if method == "resources/subscribe":
            self._subscriptions.add(params["uri"])
        return answer

    async def refresh_listing(self) -> Listing:
        """Request the list of tools from the server now and return it."""
        connection = await self.get_connection()
        await self._publish_listing(await connection.list_tools(self.settings.connect_timeout_seconds))
        assert self.listing is not None  # noqa: S101 - set by `_publish_listing`
        return self.listing

    async def restart(self) -> None:
        """Close the connection to the server, reset the failure count and connect again."""
        if self._open_task is not None and not self._open_task.done():
            self._open_task.cancel()
            await asyncio.wait({self._open_task}, timeout=PING_TIMEOUT_S)
        await self._close_current()
        self._failures, self._next_try, self._error = 0, 0.0, None
        await self.get_connection()

    def take_over(self, other: ServerSupervisor) -> None:
        """Copy the resource subscriptions of the supervisor that this one replaces."""
        self._subscriptions = set(other._subscriptions)

    async def retire(self) -> None:
        """Reject new requests, and close the server once its requests in progress are done."""
        self._is_retired = True
        limit = self.settings.connect_timeout_seconds + self.settings.max_call_seconds
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), limit)
        await self.close()

    async def close(self) -> None:
        """Close all connections to the server within a limited time."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=PING_TIMEOUT_S)
        await self._close_current()
        for connection in tuple(self._connections):  # closing them was interrupted above
            await self._close_connection(connection, force=True)

    async def _run_on_connection(
        self, ask: Callable[[ServerConnection], Awaitable[Any]], relay: CallRelay | None
    ) -> Any:
        self._active_requests += 1
        self._idle.clear()
        try:
            return await self._run_counted(ask, relay)
        finally:
            self._active_requests -= 1
            if not self._active_requests:
                self._idle.set()

    async def _run_counted(
        self, ask: Callable[[ServerConnection], Awaitable[Any]], relay: CallRelay | None
    ) -> Any:
        if self._liveness_check is not None:
            await asyncio.wait({self._liveness_check})  # a hanging server would not answer another call
        connection = await self.get_connection()
        if relay is not None:
            self.call_relays.append(relay)
        try:
            return await ask(connection)
        except RequestNotSent:
            self._retire_connection(connection)
            return await ask(await self.get_connection())
        except ResponseTimeout:
            if self._liveness_check is None or self._liveness_check.done():
                self._liveness_check = self._start_task(self._close_if_unresponsive(connection))
            raise
        finally:
            if relay is not None:
                self.call_relays.remove(relay)

    async def _open_connection(self) -> ServerConnection:
        started = time.monotonic()
        try:
            connection, listing = await self._connect_and_list()
        except ServerFailed as error:
            self._record_failure(error)
            raise
        except ConfigError as error:
            problem = str(error).removesuffix(f"\n  {error.hint}")
            fault = NotStarted(self.name, f"cannot be started: {problem}", advice=error.hint)
            self._record_failure(fault)
            raise fault from None
        self._startup_seconds = time.monotonic() - started
        self._connection, self._next_try, self._error = connection, 0.0, None
        log.info("MCP server %r started in %.1f s", self.name, self._startup_seconds)
        self._start_task(self._watch_connection(connection))
        await self._publish_listing(listing)
        if self._subscriptions:
            seconds = self.settings.call_timeout_seconds
            self._start_task(connection.resubscribe(tuple(self._subscriptions), seconds))
        return connection

    async def _connect_and_list(self) -> tuple[ServerConnection, Listing]:
        # Loading the SDK takes a while, which must not count against the server's timeout.
        try:
            await asyncio.get_running_loop().run_in_executor(None, load_sdk)
        except SourceError as error:
            raise NotStarted(self.name, f"is not used: {error}") from error
        connection = ServerConnection(self.name, await self._build_deps(self))
        self._connections.add(connection)
        await connection.open(self.settings.connect_timeout_seconds)
        try:
            listing = await connection.list_tools(self.settings.connect_timeout_seconds)
        except BaseException:
            await self._close_connection(connection, force=True)
            raise
        self.is_legacy = connection.is_legacy
        return connection, listing

    async def _watch_connection(self, connection: ServerConnection) -> None:
        """Check a connection periodically until it ends, then reconnect after a backoff."""
        keepalive, started = self.settings.keepalive_seconds, time.monotonic()
        while connection.is_alive:
            await asyncio.wait({connection.run_task}, timeout=keepalive or None)
            if connection.is_alive and not connection.is_busy and connection.idle_seconds >= keepalive * 0.9:
                await self._close_if_unresponsive(connection)
        if time.monotonic() - started > STABLE_AFTER_S:
            self._failures = 0
        if self._connection is not connection or self._closed or self._is_retired:
            return
        await self._close_current()
        fault = ServerFailed(self.name, "exited.", advice="It is restarted when it is needed.")
        self._record_failure(fault)
        await self._reopen_with_backoff()

    async def _reopen_with_backoff(self) -> None:
        for _ in range(MAX_REOPEN_ATTEMPTS):
            await asyncio.sleep(self._backoff_remaining)
            if self._closed or self.state_name in ("up", "starting", "login"):
                return
            with contextlib.suppress(ServerFailed):
                self._open_task = self._start_task(self._open_connection())
                await asyncio.shield(self._open_task)
                return

    async def _close_if_unresponsive(self, connection: ServerConnection) -> None:
        """Ping the server, and close the connection if there is no response."""
        try:
            await connection.check_alive(PING_TIMEOUT_S)
        except ServerFailed as error:
            log.warning("MCP server %r does not respond and is terminated: %s", self.name, error)
            await self._close_connection(connection, force=True)

    def schedule_relist(self, kind: str) -> None:
        """List the server's tools again soon; several changes within the delay are handled together."""
        if (
            kind and not self._is_relist_scheduled and not self._closed
        ):  # resources and prompts become tools as well
            self._is_relist_scheduled = True
            self._start_task(self._relist_after_delay())

    async def _relist_after_delay(self) -> None:
        now = time.monotonic()
        self._rapid_changes = self._rapid_changes + 1 if now - self._last_relist < MAX_RELIST_DELAY_S else 0
        await asyncio.sleep(min(MAX_RELIST_DELAY_S, RELIST_DELAY_S * 2 ** min(self._rapid_changes, 10)))
        if self._open_task is not None:  # the first listing may be in progress
            await asyncio.wait({self._open_task})
        self._is_relist_scheduled, self._last_relist = False, time.monotonic()
        with contextlib.suppress(ServerFailed):
            connection = self._connection
            if connection is not None and connection.is_alive:
                await self._publish_listing(
                    await connection.list_tools(self.settings.connect_timeout_seconds)
                )

    async def _publish_listing(self, listing: Listing) -> None:
        """Publish a tool list in a thread, one list at a time, because checking many tools is slow."""
        async with self._publish_lock:
            self.listing = listing
            await asyncio.to_thread(self._publish, self.name, listing)

    async def _close_current(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._close_connection(connection)

    async def _close_connection(self, connection: ServerConnection, *, force: bool = False) -> None:
        await connection.close(force=force)
        self._connections.discard(connection)

    def _retire_connection(self, connection: ServerConnection) -> None:
        """Stop using a connection for new requests, and close it once its pending requests are done."""
        if self._connection is connection:
            self._connection = None
            self._start_task(self._close_when_idle(connection))

    async def _close_when_idle(self, connection: ServerConnection) -> None:
        try:
            while connection.is_busy and connection.is_alive:  # noqa: ASYNC110 - each request has a timeout
                await asyncio.sleep(0.1)
        finally:
            await self._close_connection(connection, force=True)

    def _record_failure(self, error: ServerFailed) -> None:
        self._error = error
        self.is_legacy = False  # the next process may be another version
        if isinstance(error, NeedsLogin):
            return
        self._failures += 1
        pause = min(MAX_BACKOFF_S, INITIAL_BACKOFF_S * 2 ** (self._failures - 1))
        self._next_try = time.monotonic() + pause * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not cryptography
        log.info("MCP server %r: %s", self.name, error)

    @property
    def _backoff_remaining(self) -> float:
        return max(0.0, self._next_try - time.monotonic())

    @property
    def _is_backing_off(self) -> bool:
        return self._failures >= MAX_FAILURES and self._backoff_remaining > 0

    @property
    def _last_problem(self) -> str:
        return self._error.problem if self._error else "no details are known."

    @property
    def _retry_advice(self) -> str:
        return f"It will be tried again in {self._backoff_remaining:.0f} s."

    def _start_task(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finish_task)
        return task

    def _finish_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, ServerFailed):
            log.error("internal error while supervising MCP server %r", self.name, exc_info=error)
