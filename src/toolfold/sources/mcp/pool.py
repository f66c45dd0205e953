"""All MCP servers of a runtime: their state, and their tools in the registry.

The servers run in an event loop and thread of their own, so that they cannot block a session and do not end
with one. Cached tools are available at once; a server is started when it is needed. Listed tools are checked
against the trust policy before they are registered, and again before each call.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from toolfold.config import Config
from toolfold.config.servers import McpServerSettings
from toolfold.errors import CallError, ConfigError, RegistryError, shorten
from toolfold.json_limits import is_large
from toolfold.model import MCP_PREFIX, CallContext, Content, Json, Tool
from toolfold.redaction import Redaction
from toolfold.registry import Registry
from toolfold.sources.mcp.call_relay import CallRelay, EventBroadcaster, ServerRequestRouter
from toolfold.sources.mcp.connection import ConnectionDeps
from toolfold.sources.mcp.content import McpResponse, tool_result_content
from toolfold.sources.mcp.elicitation import InteractionCallbacks
from toolfold.sources.mcp.faults import NotStarted, RequestRejected, ServerFailed, ToolHeldForReview
from toolfold.sources.mcp.isolation import is_per_client
from toolfold.sources.mcp.item_lists import LIST_TIMEOUT_S, ItemLists, fetch_all_pages
from toolfold.sources.mcp.listing_cache import ListingCache
from toolfold.sources.mcp.lock import lock_path
from toolfold.sources.mcp.naming import ToolNames
from toolfold.sources.mcp.scan import neutralise_text, scan_text
from toolfold.sources.mcp.server_process import ServerLog
from toolfold.sources.mcp.setting_references import build_environment, collect_secrets, resolve_settings
from toolfold.sources.mcp.supervisor import ServerState, ServerSupervisor
from toolfold.sources.mcp.tool_listing import ListedTool, Listing
from toolfold.sources.mcp.tools import build_auxiliary_tools, build_tools
from toolfold.sources.mcp.trust import HeldTool, Trust
from toolfold.visible_text import remove_invisible

log = logging.getLogger(__name__)

T = TypeVar("T")

CLOSE_TIMEOUT_S = 10.0
MAX_WARNINGS = 5
"""Warnings that are logged for one listing; `toolfold mcp review` shows all of them."""
MAX_SCANNED_CHARS = 150_000
"""Characters that are scanned for injected instructions as one text."""
SEAM_CHARS = 2_000
_UNSCANNED_START = "\n⟦The following data was not scanned.⟧\n"
_UNSCANNED_END = "\n⟦End of the data that was not scanned.⟧\n"
STALE_AFTER_S = 24 * 3600.0
"""Age after which a cached listing is refreshed although the server was not called."""
MAX_CHARS_IN_LOOP = 8_000
"""Characters of a result that are scanned in the event loop; longer results are scanned in a thread."""
MAX_BLOCKS_IN_LOOP = 20
"""Content blocks of a result that are read in the event loop; more are read in a thread."""


class McpServers:
    """All enabled servers of the configuration."""

    def __init__(
        self,
        config: Config,
        registry: Registry,
        *,
        trust: Trust | None = None,
        callbacks: InteractionCallbacks | None = None,
        behind_gateway: bool = False,
    ) -> None:
        """Create supervisors for all servers; nothing is started yet.

        Behind a gateway tool names have no `mcp_` prefix, since clients add their own, and servers may send
        elicitation and sampling requests to the gateway's clients.
        """
        self._config, self._registry, self._behind_gateway = config, registry, behind_gateway
        self._settings = {
            name: each for name, each in config.mcp.servers.items() if config.mcp.enabled and each.enabled
        }
        self.trust = trust or Trust.from_config(config)
        self._callbacks = callbacks or InteractionCallbacks()
        prefixes = {name: each.name_prefix(name) for name, each in self._settings.items()}
        taken = registry.snapshot() if behind_gateway else ()
        self._names = ToolNames(self._settings, prefixes=prefixes if behind_gateway else None, taken=taken)
        self._cache = ListingCache(config.paths.cache_dir / "mcp")
        self._loop = _BackgroundLoop()
        self._servers = {name: self._create_supervisor(name, each) for name, each in self._settings.items()}
        self._client_servers: dict[tuple[str, str], ServerSupervisor] = {}
        """Servers that only one client uses, by client and server name."""
        self._closing: set[concurrent.futures.Future[None]] = set()
        """Closing servers of clients that are gone."""
        self._sharing: dict[str, tuple[Listing | None, bool]] = {}
        """Cached result of `is_shared` with its listing, which may have thousands of tools."""
        self.events = EventBroadcaster()
        """Events of servers outside of any call: `(server, kind, detail)`."""
        self._item_lists = ItemLists(
            self._cache, self._settings, self._request_shared, self._broadcast_list_change
        )
        self._held_tools: dict[str, tuple[HeldTool, ...]] = {}
        self._starting: dict[str, concurrent.futures.Future[Any]] = {}
        self._closed = False

    @property
    def servers(self) -> Mapping[str, ServerSupervisor]:
        return self._servers

    def open(self) -> None:
        """Register the cached tools and start servers without a cached listing. Does not wait."""
        for name, settings in self._settings.items():
            cached = self._cache.read(name, settings)
            if cached is not None:
                self._servers[name].use_cached_listing(cached[0])
                self._publish_tools(name, cached[0])
            if cached is None or cached[1] > STALE_AFTER_S:
                start = self._start_server(name)
                if cached is None and not self._cache.has_failed(name, settings):
                    self._starting[name] = start

    def settle(self, seconds: float | None = None) -> None:
        """Wait until new servers have listed their tools or failed, up to the given number of seconds.

        A server that takes longer is not waited for again until it has listed its tools once.
        """
        wait = (
            self._config.mcp.listing_wait(behind_gateway=self._behind_gateway) if seconds is None else seconds
        )
        concurrent.futures.wait(self._starting.values(), timeout=wait)
        for name, start in self._starting.items():
            if not start.done():
                self._cache.record_failure(name, self._settings[name])
        self._starting = {}

    def states(self) -> list[ServerState]:
        """Return the state of each server."""
        return [
            replace(each.state, held=len(self._held_tools.get(name, ())))
            for name, each in self._servers.items()
        ]

    def listing_files(self) -> Iterator[Path]:
        """Yield the files that determine which tools are registered before any server is started."""
        for name, settings in self._settings.items():
            yield self._cache.listing_file(name, settings)
            yield self._cache.item_lists_file(name, settings)
            yield lock_path(self._config, name)

    def listing(self, server: str) -> Listing | None:
        """Return the last known listing of a server."""
        return self._servers[server].listing

    def find_tool(self, server: str, tool: str) -> ListedTool | None:
        """Return a tool as its server describes it, or None."""
        return _find_tool(self._servers[server].listing, tool) if server in self._servers else None

    def held_tools(self, server: str) -> tuple[HeldTool, ...]:
        """Return the tools of a server that are held until a person reviews them."""
        return self._held_tools.get(server, ())

    def held_tool_names(self) -> Mapping[str, frozenset[str]]:
        """Map each toolset to the names that its held tools would have."""
        held = [(server, each) for server, each in tuple(self._held_tools.items()) if each]
        return {
            MCP_PREFIX + server: frozenset(self._names.names_of(server, one.tool.name)[0] for one in each)
            for server, each in held
        }

    async def call_tool(
        self,
        server: str,
        tool: str,
        args: Json,
        context: CallContext,
        require: Callable[[Listing | None], None] | None = None,
    ) -> Any:
        """Call a tool of a server and return the result as a protocol object.

        `require` is called before the call is sent, with the current listing, and may raise.
        """
        supervised = self._server_for(server, context.client)
        return await self._run_on_loop(supervised.call_tool(tool, args, _relay_of(context), require))

    async def send_request(
        self, server: str, method: str, *, context: CallContext | None = None, **params: Any
    ) -> Any:
        """Send a resource or prompt request to a server."""
        supervised = self._server_for(server, context.client if context else "")
        return await self._run_on_loop(
            supervised.send_request(method, params, _relay_of(context) if context else None)
        )

    async def get_items(self, server: str, method: str, *, client: str = "", start: bool = True) -> list[Any]:
        """Return the resources, templates or prompts of a server.

        The client's own process is asked if it runs. Otherwise the cached list is returned; a list that is
        not cached is fetched, unless `start` is False.
        """
        own = self._client_servers.get((client, server))
        if own is not None and own.state_name == "up":
            return await self._run_on_loop(self._fetch_client_items(own, method))
        if start:
            wait = self._config.mcp.listing_wait(behind_gateway=self._behind_gateway)
            return await self._run_on_loop(self._item_lists.get_items(server, method, wait))
        return self._item_lists.cached_items(server, method)

    async def _fetch_client_items(self, own: ServerSupervisor, method: str) -> list[Any]:
        try:
            async with asyncio.timeout(LIST_TIMEOUT_S):
                return await fetch_all_pages(lambda params: own.send_request(method, params), method)
        except (ServerFailed, TimeoutError):
            return []

    async def _request_shared(self, server: str, method: str, params: Json) -> Any:
        return await self._servers[server].send_request(method, params)

    def _broadcast_list_change(self, server: str, kind: str) -> None:
        self.events.broadcast(server, kind, None)

    def is_shared(self, server: str) -> bool:
        """Return True if all clients use the same process of this server."""
        listing = self._servers[server].listing
        if server not in self._sharing or self._sharing[server][0] is not listing:
            is_shared = not is_per_client(server, self._servers[server].settings, listing)
            self._sharing[server] = listing, is_shared
        return self._sharing[server][1]

    def close_client(self, client: str) -> None:
        """Close the servers that only this client used, without waiting for them to exit."""
        for key in [key for key in self._client_servers if key[0] == client]:
            ending = self._loop.submit(self._client_servers.pop(key).close())
            self._closing.add(ending)
            ending.add_done_callback(self._closing.discard)

    def _server_for(self, server: str, client: str) -> ServerSupervisor:
        """Return the supervisor that this client uses: the shared one or its own."""
        if not client or self.is_shared(server):
            return self._servers[server]
        if (client, server) not in self._client_servers:
            shared = self._servers[server]
            own = ServerSupervisor(
                server, shared.settings, build_deps=self._build_deps, publish=_ignore_listing
            )
            own.is_legacy = shared.is_legacy
            self._client_servers[client, server] = own
        return self._client_servers[client, server]

    def refresh_listing(self, server: str, seconds: float | None = None) -> Listing:
        """List a server's tools now, even if they are cached. Raises ServerFailed."""
        limit = seconds or 2 * self._settings[server].connect_timeout_seconds
        return self._run_blocking(self._servers[server].refresh_listing(), server, limit)

    def restart(self, server: str) -> None:
        """Restart a server. Raises ServerFailed."""
        limit = 2 * self._settings[server].connect_timeout_seconds
        self._run_blocking(self._servers[server].restart(), server, limit)

    def publish_reviewed(self, server: str) -> None:
        """Register the tools of a server again, after a review has accepted some of them."""
        if (listing := self._servers[server].listing) is not None:
            self._publish_tools(server, listing)

    def close(self) -> None:
        """Close every server in a bounded time."""
        if self._closed:
            return
        self._closed = True
        if self._loop.is_started:
            concurrent.futures.wait(tuple(self._closing), timeout=CLOSE_TIMEOUT_S)
            with contextlib.suppress(concurrent.futures.TimeoutError):
                self._loop.submit(self._close()).result(CLOSE_TIMEOUT_S + 5)
            self._loop.close()

    async def _close(self) -> None:
        ending = [
            asyncio.create_task(each.close())
            for each in (*self._servers.values(), *self._client_servers.values())
        ]
        if ending:
            await asyncio.wait(ending, timeout=CLOSE_TIMEOUT_S)

    def _create_supervisor(self, name: str, settings: McpServerSettings) -> ServerSupervisor:
        return ServerSupervisor(name, settings, build_deps=self._build_deps, publish=self._handle_listing)

    def _start_server(self, name: str) -> concurrent.futures.Future[Any]:
        future = self._loop.submit(self._servers[name].get_connection())
        future.add_done_callback(lambda done: self._handle_start_result(name, done))
        return future

    def _handle_start_result(self, name: str, start: concurrent.futures.Future[Any]) -> None:
        error = None if start.cancelled() else start.exception()
        if isinstance(error, ServerFailed):
            self._cache.record_failure(name, self._settings[name])
        elif error is not None:
            log.error("internal error while starting MCP server %r", name, exc_info=error)

    async def _build_deps(self, server: ServerSupervisor) -> ConnectionDeps:
        settings, variables = server.settings, self._config.environment
        look_up = asyncio.get_running_loop().run_in_executor  # a keyring may wait for a person
        environment = await look_up(None, build_environment, settings, variables)
        resolved = await look_up(None, resolve_settings, settings, variables)
        secrets = await look_up(None, collect_secrets, settings, variables)
        file = self._config.paths.state_dir / "mcp" / "logs" / f"{server.name}.log"
        redact = Redaction((*self._config.secret_values(), *secrets))
        prompt_handler = self._callbacks.create_prompt_handler(server.name, settings)
        relay = ServerRequestRouter(server, prompt_handler) if self._behind_gateway else None
        return ConnectionDeps(
            settings=resolved,
            environment=environment,
            log=ServerLog(file, redact),
            auth=self._load_auth(server),
            elicit=relay.elicit if relay else prompt_handler.elicitation_callback,
            sample=relay.sample if relay else prompt_handler.sampling_callback,
            is_awaiting_user=lambda: prompt_handler.is_waiting or bool(relay and relay.is_asking),
            on_change=lambda kind: self._handle_change(server, kind),
            on_update=lambda uri: self.events.broadcast(server.name, "update", uri),
            on_log=relay.log if relay else None,
            legacy=server.is_legacy or settings.protocol == "legacy",
        )

    def _handle_change(self, server: ServerSupervisor, kind: str) -> None:
        server.schedule_relist(kind)
        if kind == "tools":
            return
        is_shared = server is self._servers[server.name]
        if not (is_shared and self._item_lists.refresh(server.name, kind)):
            self.events.broadcast(server.name, kind, None)

    def _load_auth(self, server: ServerSupervisor) -> Any:
        """Return the stored OAuth login of a server, if any. No login is started while a call waits."""
        settings, config = server.settings, self._config
        if settings.effective_transport == "stdio" or "authorization" in map(str.lower, settings.headers):
            return None
        from toolfold.sources.mcp.oauth import create_auth

        directory = config.paths.state_dir / "oauth"
        return create_auth(
            server.name, settings, directory, interactive=False, environment=config.environment
        )

    def _handle_listing(self, name: str, listing: Listing) -> None:
        """Cache and register the tools that a server has listed."""
        self._cache.write(name, self._settings[name], listing)
        self._publish_tools(name, listing)
        self._loop.call_soon(self._item_lists.refresh, name)

    def _publish_tools(self, name: str, listing: Listing) -> None:
        """Register the tools that the trust policy accepts; none if the lock file cannot be read."""
        try:
            sifted = self.trust.check_tools(name, self._settings[name].trust, listing.tools)
        except ConfigError as error:
            log.error("MCP server %r is not used: %s", name, error)
            self._registry.replace_toolset(MCP_PREFIX + name, ())
            return
        self._held_tools[name] = sifted.held
        if sifted.updated:
            names = ", ".join(
                repr(shorten(remove_invisible(each.name), 80)) for each in sifted.updated[:MAX_WARNINGS]
            )
            log.info(
                "MCP server %r: recorded harmless changes of %d tools: %s", name, len(sifted.updated), names
            )
        warnings = (*listing.problems, *sifted.warnings)
        for warning in warnings[:MAX_WARNINGS]:
            log.warning("MCP server %r: %s", name, warning)
        if len(warnings) > MAX_WARNINGS:
            log.warning(
                "MCP server %r: %d more warnings; run `toolfold mcp review` to see them",
                name,
                len(warnings) - MAX_WARNINGS,
            )
        if not self._closed:
            self._register_tools(name, self._build_tools(name, listing, sifted.accepted))
            self.events.broadcast(name, "tools", None)

    def _register_tools(self, name: str, tools: list[Tool]) -> None:
        """Replace the server's tools in the registry; with none, if the registry rejects them."""
        try:
            self._registry.replace_toolset(MCP_PREFIX + name, tools)
        except RegistryError as error:
            log.error("MCP server %r is not used: %s", name, error)
            self._registry.replace_toolset(MCP_PREFIX + name, ())

    def _build_tools(self, name: str, listing: Listing, accepted: Iterable[ListedTool]) -> list[Tool]:
        settings = self._settings[name]

        async def call(tool: ListedTool, args: Json, context: CallContext) -> Content:
            require = partial(self._require_allowed, name, tool)
            try:
                answer = await self.call_tool(name, tool.name, args, context, require)
            except RequestRejected as error:
                if _relay_of(context) is None:
                    raise
                raw = McpResponse(error.original) if error.original is not None else None
                return Content(value=str(error), is_error=True, raw=raw)
            if hasattr(answer, "input_requests"):
                question = "The server needs more input before it continues."
                return Content(value=question, raw=McpResponse(answer))
            if _is_long_result(answer):  # scanning it in the loop would block other servers
                return await asyncio.to_thread(tool_result_content, answer, name, mark=mark_injections)
            return tool_result_content(answer, name, mark=mark_injections)

        async def ask(method: str, params: Json, context: CallContext) -> Any:
            return await self.send_request(name, method, context=context, **params)

        tools = build_tools(name, settings, accepted, self._names, call)
        return [
            *tools,
            *build_auxiliary_tools(name, settings, listing, self._names, ask, mark=mark_injections),
        ]

    def _require_allowed(self, server: str, tool: ListedTool, listing: Listing | None) -> None:
        """Raise ToolHeldForReview if the tool is not accepted as the server lists it now.

        A server that was just started may list another tool than the cached one.
        """
        now = _find_tool(listing, tool.name) or tool
        policy = self._settings[server].trust
        for each in (tool, now) if now is not tool else (tool,):
            if held := self.trust.check_call(server, policy, each):
                advice = "A person can review it with `toolfold mcp review`."
                raise ToolHeldForReview(
                    server, f"has a tool that must be reviewed first: {held}.", advice=advice
                )

    async def _run_on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the servers' event loop, from any other loop."""
        if self._closed:
            work.close()
            raise CallError("The runtime and its MCP servers are closed.")
        return await asyncio.wrap_future(self._loop.submit(work))

    def _run_blocking(self, work: Coroutine[Any, Any, T], server: str, seconds: float) -> T:
        future = self._loop.submit(work)
        try:
            return future.result(seconds)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise NotStarted(server, f"did not respond within {seconds:g} s.") from None


def _find_tool(listing: Listing | None, tool: str) -> ListedTool | None:
    return next((each for each in listing.tools if each.name == tool), None) if listing else None


class _BackgroundLoop:
    """Event loop in a thread of its own, started on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_started(self) -> bool:
        return self._loop is not None

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._ensure_running())

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function in the loop."""
        with contextlib.suppress(RuntimeError):  # it is closing
            self._ensure_running().call_soon_threadsafe(function, *args)

    def close(self) -> None:
        with self._lock:
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_TIMEOUT_S)

    def _ensure_running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                # The SDK logs every invalid message; they are in the servers' own logs already.
                logging.getLogger("mcp").addHandler(logging.NullHandler())
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run_loop, name="toolfold-mcp", daemon=True)
                self._thread.start()
            return self._loop

    def _run_loop(self) -> None:
        loop = self._loop
        assert loop is not None  # noqa: S101 - set before the thread is started
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=2.0))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()


def _is_long_result(answer: Any) -> bool:
    blocks = getattr(answer, "content", None) or ()
    chars = sum(len(getattr(block, "text", None) or "") for block in blocks)
    if len(blocks) > MAX_BLOCKS_IN_LOOP or chars > MAX_CHARS_IN_LOOP:
        return True
    return is_large(getattr(answer, "structured_content", None), max_items=200, max_chars=MAX_CHARS_IN_LOOP)


def mark_injections(text: str) -> str:
    """Return the text with injected instructions marked as data.

    Of a very long text only the beginning and the end are scanned: no more of it is shown to a model.
    """
    if len(text) <= MAX_SCANNED_CHARS:
        return _mark_piece(text)
    if len(text) <= 2 * MAX_SCANNED_CHARS:
        cut = _find_split(text)
        return _mark_piece(text[:cut]) + mark_injections(text[cut:])
    unread = text[MAX_SCANNED_CHARS:-MAX_SCANNED_CHARS].replace("⟦", "[").replace("⟧", "]")
    return (
        _mark_piece(text[:MAX_SCANNED_CHARS])
        + _UNSCANNED_START
        + unread
        + _UNSCANNED_END
        + _mark_piece(text[-MAX_SCANNED_CHARS:])
    )


def _mark_piece(text: str) -> str:
    findings = scan_text(text)
    return neutralise_text(text, findings) if findings else text


def _find_split(text: str) -> int:
    """Return a position to split a text at, where no injected instruction crosses the boundary."""
    places = range(MAX_SCANNED_CHARS, MAX_SCANNED_CHARS - 4 * SEAM_CHARS, -SEAM_CHARS)
    return next(
        (at for at in places if not scan_text(text[at - SEAM_CHARS // 2 : at + SEAM_CHARS // 2])),
        MAX_SCANNED_CHARS,
    )


def _relay_of(context: CallContext) -> CallRelay | None:
    return context.surface if isinstance(context.surface, CallRelay) else None


def _ignore_listing(_server: str, _listing: Listing) -> None:
    """Ignore the listing of a client's own process: only tools that the shared process lists are offered."""
