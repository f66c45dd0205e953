"""All MCP servers of a runtime: their state, and their tools in the tool registry.

The servers run in an event loop and thread of their own, so that they cannot block a session and do not end
with one. Cached tools are available at once; a server is started when it is needed. Listed tools are checked
against the trust policy before they are registered, and again before each call. Servers can be added, removed
and changed at any time: the others, and calls in progress, are not affected.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from toolfold.config import Config
from toolfold.config.load import check_server
from toolfold.config.servers_settings import McpServerSettings
from toolfold.core.errors import CallError, ConfigError, RegistryError, ToolfoldError, shorten
from toolfold.core.invisible_characters import remove_invisible
from toolfold.core.registry import Registry
from toolfold.core.types import MCP_PREFIX, CallContext, Content, Json, Tool
from toolfold.mcp.background_loop import CLOSE_TIMEOUT_S, BackgroundLoop
from toolfold.mcp.call_relay import CallRelay, EventBroadcaster, ServerRequestRouter
from toolfold.mcp.connection import ConnectionDeps
from toolfold.mcp.content import McpResponse, tool_result_content
from toolfold.mcp.elicitation import InteractionCallbacks
from toolfold.mcp.faults import (
    NotStarted,
    RequestRejected,
    ServerFailed,
    ToolHeldForReview,
)
from toolfold.mcp.isolation import is_per_client
from toolfold.mcp.item_lists import LIST_TIMEOUT_S, ItemLists, fetch_all_pages
from toolfold.mcp.listing_cache import ListingCache
from toolfold.mcp.listing_exchange import ListingExchange
from toolfold.mcp.mcp_tools import build_auxiliary_tools, build_tools, is_wanted
from toolfold.mcp.oauth.login_store import LoginStore
from toolfold.mcp.result_scanning import is_long_result, mark_injections
from toolfold.mcp.server_changes import compare_servers
from toolfold.mcp.server_credentials import ServerCredentials
from toolfold.mcp.server_process import ServerLog
from toolfold.mcp.setting_references import (
    add_credentials,
    build_environment,
    collect_secrets,
    resolve_settings,
)
from toolfold.mcp.supervisor import ServerState, ServerSupervisor
from toolfold.mcp.tool_listing import ListedTool, Listing
from toolfold.mcp.tool_names import ToolNames
from toolfold.mcp.trust import HeldTool, Trust, TrustResult
from toolfold.mcp.user_credentials import uses_login
from toolfold.mcp.user_logins import UserLogins
from toolfold.safety.approval.allowed_tools import is_own_server
from toolfold.safety.redaction import Redaction
from toolfold.state.credentials import OWNER
from toolfold.state.database import Database

if TYPE_CHECKING:
    from toolfold.mcp.oauth import OpenUrl
    from toolfold.mcp.oauth.redirect_listener import Redirect

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_WARNINGS = 5
"""Warnings that are logged for one listing; `toolfold mcp review` shows all of them."""
CREDENTIALS_POLL_S = 2.0
"""How often new credentials are looked for, while a server could not be started without them."""
STALE_AFTER_S = 24 * 3600.0
"""Age after which a cached listing is refreshed although the server was not called."""


class McpServers:
    """All enabled MCP servers of a configuration."""

    def __init__(
        self,
        config: Config,
        registry: Registry,
        *,
        trust: Trust | None = None,
        database: Database | None = None,
        callbacks: InteractionCallbacks | None = None,
        behind_gateway: bool = False,
        client_names: bool = False,
    ) -> None:
        """Create supervisors for all servers, without starting any server.

        With a `database`, tools that were accepted by any replica are accepted here, and tool lists that any
        replica has read are used until a server is connected.

        With `client_names`, and always behind a gateway, tool names have no `mcp_` prefix, since clients add
        their own. Behind a gateway, servers may send elicitation and sampling requests to its clients.
        """
        self._config, self._registry, self._behind_gateway = config, registry, behind_gateway
        self._change_lock = threading.RLock()
        self._added: dict[str, McpServerSettings] = {}
        """Servers that `add` has added; they replace those of the configuration with the same name."""
        self._removed: set[str] = set()
        """Servers of the configuration that `remove` has removed."""
        self._settings: Mapping[str, McpServerSettings] = self._effective_settings()
        """Settings of the servers in use. Replaced as a whole, never changed: several threads read it."""
        self.trust = trust or Trust.from_config(config, database)
        self._callbacks = callbacks or InteractionCallbacks()
        self._taken_names = tuple(registry.snapshot())
        self._has_client_names = behind_gateway or client_names
        self._names = self._build_names()
        self._cache = ListingCache(config.paths.cache_dir / "mcp")
        self._exchange = (
            None
            if database is None
            else ListingExchange(database, lambda: self._settings, self._adopt_listing)
        )
        """Exchanges tool lists with other replicas; None if all state is in files of this machine."""
        self._loop = BackgroundLoop()
        self._servers: Mapping[str, ServerSupervisor] = {
            name: self._create_supervisor(name, each) for name, each in self._settings.items()
        }
        """Supervisors of the servers in use. Replaced as a whole, like the settings."""
        self._client_servers: dict[tuple[str, str], ServerSupervisor] = {}
        """Servers that only one client uses, by client and server name."""
        self._closing: set[concurrent.futures.Future[None]] = set()
        """Closing servers of clients that are gone."""
        self._retired: set[ServerSupervisor] = set()
        """Removed and replaced servers whose requests have not finished."""
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
        self._credentials = ServerCredentials(lambda: self._config, database)
        self.user_logins = UserLogins()
        """Asks users of the gateway to log in to servers with `credentials: per-user`."""
        self.has_started_programs = False
        """True once a server was started on this machine; it may have left processes when it ended."""
        self.on_servers_changed: Callable[[tuple[str, ...]], None] = lambda _changes: None
        """Called with a description of the changes after `add` or `remove`."""

    @property
    def servers(self) -> Mapping[str, ServerSupervisor]:
        """Return the supervisors of the servers in use, by name; the mapping is replaced, never modified."""
        return self._servers

    def open(self) -> None:
        """Register the cached tools; start servers without cached tools in the background."""
        for name in self._settings:
            self._open_server(name)

    def _open_server(self, name: str) -> None:
        settings, server = self._settings[name], self._servers[name]
        cached = self._read_known_listing(name, settings)
        if cached is not None:
            server.use_cached_listing(cached[0])
            self._publish_tools(server, cached[0])
        if cached is None or cached[1] > STALE_AFTER_S:
            start = self._start_server(server)
            if cached is None and not self._cache.has_failed(name, settings):
                self._starting[name] = start

    def _read_known_listing(self, name: str, settings: McpServerSettings) -> tuple[Listing, float] | None:
        """Return a server's cached tool list or, if none is cached, another replica's list, with its age.

        Does not wait for the database if a list is cached: a newer list of another replica is adopted later.
        """
        own = self._cache.read(name, settings)
        if self._exchange is None:
            return own
        if own is not None:
            self._exchange.note_cached(name, settings, *own)
            return own
        shared = self._exchange.read(name, settings)
        if shared is not None:
            self._cache.write(name, settings, shared[0], age_s=shared[1])
        return shared

    def add(
        self,
        name: str,
        settings: McpServerSettings | Mapping[str, object],
        *,
        wait_seconds: float | None = None,
    ) -> None:
        """Add an MCP server to this runtime, or replace the server of this name. Writes no settings file.

        `settings` are the keys below `mcp.servers.NAME` of a settings file. Waits until the server has
        listed its tools or failed, by default at most `mcp.wait_seconds`; `states` tells which. Sessions
        that were granted its toolset, `mcp-NAME`, see its tools in their next turn. Raises ConfigError if
        the settings are invalid or MCP servers are disabled.
        """
        checked = check_server(name, settings)
        if not self._config.mcp.enabled:
            raise ConfigError(
                f"server {name!r} cannot be added: MCP servers are disabled",
                key="mcp.enabled",
                hint="enable MCP servers: toolfold config set mcp.enabled true",
            )
        with self._change_lock:
            self._added[name] = checked
            self._removed.discard(name)
            changes = self._apply_settings()
        if changes:
            self.on_servers_changed(changes)
        self.settle(wait_seconds)

    def remove(self, name: str) -> bool:
        """Remove an MCP server from this runtime; return False if it does not exist. Writes no settings file.

        Its tools are gone in the next turn of every session. Calls in progress may finish; then the server
        is stopped.
        """
        with self._change_lock:
            if name not in self._settings:
                return False
            self._added.pop(name, None)
            self._removed.add(name)
            changes = self._apply_settings()
        self.on_servers_changed(changes)
        return True

    def update(self, config: Config) -> tuple[str, ...]:
        """Apply the servers of a changed configuration without waiting; return a description of each change.

        What `add` and `remove` did in this runtime stays in force.
        """
        with self._change_lock:
            self._config = config
            self.trust.use_config(config)
            return self._apply_settings()

    def find_own_servers(self) -> list[str]:
        """Return the names of the servers that do not come from project settings."""
        return [name for name in self._settings if name in self._added or is_own_server(self._config, name)]

    def _effective_settings(self) -> dict[str, McpServerSettings]:
        if not self._config.mcp.enabled:
            return {}
        configured = {
            name: each for name, each in self._config.mcp.servers.items() if name not in self._removed
        }
        return {name: each for name, each in (configured | self._added).items() if each.enabled}

    def _apply_settings(self) -> tuple[str, ...]:
        """Start, stop and adjust servers to match the settings; return a description of each change."""
        settings = self._effective_settings()
        changes = compare_servers(self._settings, settings)
        if not changes or self._closed:
            return ()
        former, servers = self._servers, dict(self._servers)
        for name in changes.removed:
            del servers[name]
        for name in (*changes.added, *changes.reconnected):
            servers[name] = self._create_supervisor(name, settings[name])
        for name in changes.reconnected:
            servers[name].take_over(former[name])
        self._settings, self._servers = settings, servers
        self._item_lists.use_settings(settings, (*changes.removed, *changes.reconnected))
        renamed = self._rename_tools()
        for name in changes.removed:
            self._unregister_server(name)
        self._retire_servers((*changes.removed, *changes.reconnected), former)
        self._adjust_servers(changes.adjusted)
        for name in (*changes.added, *changes.reconnected):
            self._open_server(name)
        for name in {*changes.adjusted, *renamed} - {*changes.added, *changes.reconnected}:
            self.publish_reviewed(name)
        return changes.describe()

    def _rename_tools(self) -> set[str]:
        """Compute the tool names again; return the servers with renamed tools.

        A new server may have a better claim to a name, or a removed one may have left it.
        """
        before, self._names = self._names, self._build_names()
        return {
            name
            for name, server in self._servers.items()
            for tool in (server.listing.tools if server.listing else ())
            if before.names_of(name, tool.name) != self._names.names_of(name, tool.name)
        }

    def _build_names(self) -> ToolNames:
        prefixes = {name: each.name_prefix(name) for name, each in self._settings.items()}
        return ToolNames(
            self._settings,
            prefixes=prefixes,
            taken=self._taken_names,
            for_clients=self._has_client_names,
        )

    def _unregister_server(self, name: str) -> None:
        self._held_tools.pop(name, None)
        self._sharing.pop(name, None)
        self.trust.drop_listing(name)
        self._registry.replace_toolset(MCP_PREFIX + name, ())
        self.events.broadcast(name, "tools", None)

    def _retire_servers(self, names: Iterable[str], former: Mapping[str, ServerSupervisor]) -> None:
        """Close the old processes of the named servers once they are idle."""
        names = frozenset(names)
        own = [key for key in tuple(self._client_servers) if key[1] in names]
        retired = [former[name] for name in names] + [self._client_servers.pop(key) for key in own]
        for server in retired if self._loop.is_started else ():
            self._retired.add(server)
            self._loop.submit(self._retire_server(server))

    async def _retire_server(self, server: ServerSupervisor) -> None:
        try:
            await server.retire()
        finally:
            self._retired.discard(server)

    def _adjust_servers(self, names: Iterable[str]) -> None:
        """Apply new settings to servers that keep running."""
        names = frozenset(names)
        own = [each for key, each in tuple(self._client_servers.items()) if key[1] in names]
        for server in (*(self._servers[name] for name in names), *own):
            server.settings = self._settings[server.name]
            self._sharing.pop(server.name, None)

    def settle(self, seconds: float | None = None) -> None:
        """Wait until new servers have listed their tools or failed, or until the timeout expires.

        A server that takes longer is not waited for again until it has listed its tools once.
        """
        wait = self._config.mcp.wait_seconds if seconds is None else seconds
        starting, self._starting = self._starting, {}
        concurrent.futures.wait(starting.values(), timeout=wait)
        for name, start in starting.items():
            if not start.done() and name in self._settings:
                self._cache.record_failure(name, self._settings[name])

    def states(self) -> list[ServerState]:
        """Return the state of each MCP server."""
        return [
            replace(each.state, held=len(self._held_tools.get(name, ())))
            for name, each in self._servers.items()
        ]

    def listing(self, server: str) -> Listing | None:
        """Return the most recent tool list of a server."""
        return self._servers[server].listing

    def find_tool(self, server: str, tool: str) -> ListedTool | None:
        """Return a tool as its server describes it, or None."""
        return _find_tool(self._servers[server].listing, tool) if server in self._servers else None

    def held_tools(self, server: str) -> tuple[HeldTool, ...]:
        """Return the tools of a server that cannot be used until a person reviews them."""
        return self._held_tools.get(server, ())

    def held_tool_names(self) -> Mapping[str, frozenset[str]]:
        """Map each toolset to the names of its tools that cannot be used until a person reviews them."""
        held = [(server, each) for server, each in tuple(self._held_tools.items()) if each]
        return {
            MCP_PREFIX + server: frozenset(self._names.registered_name(server, one.tool.name) for one in each)
            for server, each in held
        }

    def find_holding_server(self, name: str) -> str | None:
        """Return the server that has a tool with this name awaiting review; None if there is none."""
        for server, held in tuple(self._held_tools.items()):
            if any(name in self._names.names_of(server, each.tool.name).all for each in held):
                return server
        return None

    def explain_missing_tools(self, name: str = "") -> Mapping[str, str]:
        """Return, by toolset, why the tools of servers are not known.

        With `name`, only for servers that could have a tool of this name.
        """
        return {
            MCP_PREFIX + each: _explain_missing_list(server)
            for each, server in self._servers.items()
            if server.settings.enabled
            and server.listing is None
            and (not name or self._names.may_name(each, name))
        }

    async def wait_for_tool(self, name: str) -> None:
        """Wait until servers that are starting and could have this tool have listed their tools or failed.

        Does not wait longer than `mcp.wait_seconds`, and not for servers whose tools are known.
        """
        toolsets = self.explain_missing_tools(name)
        servers = [self._servers[each.removeprefix(MCP_PREFIX)] for each in toolsets]
        starting = [each for each in servers if each.state_name == "starting"]
        if starting:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.mcp.wait_seconds):
                    await asyncio.gather(
                        *(self._loop.run(each.get_connection()) for each in starting), return_exceptions=True
                    )

    async def call_tool(
        self,
        server: str,
        tool: str,
        args: Json,
        context: CallContext,
        require: Callable[[Listing | None], None] | None = None,
    ) -> Any:
        """Call a tool of an MCP server and return its result as a protocol object.

        `require` is called before the call is sent, with the current listing, and may raise.
        """

        async def call() -> Any:
            version = await self._find_credentials_version(server, context.client, context.caller.user_id)
            supervised = self._server_for(server, context.client, context.caller.user_id, version)
            return await supervised.call_tool(
                tool, args, _relay_of(context), require, context.report_progress
            )

        return await self._run_on_loop(self._send_logged_in(server, context, call))

    async def send_request(
        self, server: str, method: str, *, context: CallContext | None = None, **params: Any
    ) -> Any:
        """Send a resource or prompt request to an MCP server."""

        async def send() -> Any:
            caller = (context.client, context.caller.user_id) if context else ("", "")
            version = await self._find_credentials_version(server, *caller)
            supervised = self._server_for(server, *caller, version)
            return await supervised.send_request(method, params, _relay_of(context) if context else None)

        return await self._run_on_loop(self._send_logged_in(server, context, send))

    async def _send_logged_in(
        self, server: str, context: CallContext | None, send: Callable[[], Coroutine[Any, Any, Any]]
    ) -> Any:
        """Send a request; if the user must log in first, ask for a login and then send the request again."""
        user_id, settings = context.caller.user_id if context else "", self._find_server(server).settings
        if context is None or not user_id or settings.credentials != "per-user" or not uses_login(settings):
            return await send()

        async def find_version() -> str:
            return await self._credentials.read_user_version(server, user_id)

        return await self.user_logins.retry_after_login(
            server, user_id, _relay_of(context), send, find_version
        )

    async def get_items(self, server: str, method: str, *, client: str = "", start: bool = True) -> list[Any]:
        """Return the resources, templates or prompts of an MCP server.

        The client's own process is asked if it runs. Otherwise the cached list is returned; a list that is
        not cached is fetched, unless `start` is False.
        """
        own = self._client_servers.get((client, server))
        if own is not None and own.state_name == "up":
            return await self._run_on_loop(self._fetch_client_items(own, method))
        if client and self._find_server(server).settings.credentials == "per-user":
            return []  # the cached lists belong to another user
        if start:
            wait = self._config.mcp.wait_seconds
            return await self._run_on_loop(self._item_lists.get_items(server, method, wait))
        return self._item_lists.cached_items(server, method)

    async def _fetch_client_items(self, own: ServerSupervisor, method: str) -> list[Any]:
        try:
            async with asyncio.timeout(LIST_TIMEOUT_S):
                return await fetch_all_pages(lambda params: own.send_request(method, params), method)
        except (ServerFailed, TimeoutError):
            return []

    async def _request_shared(self, server: str, method: str, params: Json) -> Any:
        return await self._find_server(server).send_request(method, params)

    def _broadcast_list_change(self, server: str, kind: str) -> None:
        self.events.broadcast(server, kind, None)

    def is_shared(self, server: str) -> bool:
        """Return True if all clients use the same process of this server."""
        supervised = self._find_server(server)
        listing = supervised.listing
        cached = self._sharing.get(server)
        if cached is None or cached[0] is not listing:
            is_shared = not is_per_client(server, supervised.settings, listing)
            cached = self._sharing[server] = listing, is_shared
        return cached[1]

    def close_client(self, client: str) -> None:
        """Close the servers that only this client used, without waiting for their exit."""
        for key in [key for key in tuple(self._client_servers) if key[0] == client]:
            own = self._client_servers.pop(key, None)
            if own is not None:
                ending = self._loop.submit(own.close())
                self._closing.add(ending)
                ending.add_done_callback(self._closing.discard)

    def _find_server(self, server: str) -> ServerSupervisor:
        """Return the shared supervisor of a server. Raises NotStarted if the server was removed."""
        found = self._servers.get(server)
        if found is None:
            raise NotStarted(server, "was removed or disabled.", advice="Use another tool.")
        return found

    def _server_for(
        self, server: str, client: str, user_id: str = "", credentials_version: str = ""
    ) -> ServerSupervisor:
        """Return the supervisor of the server process that this client uses: shared or private.

        Runs in the servers' event loop, so that no server is retired before the request is counted.
        """
        shared = self._find_server(server)
        if shared.settings.credentials == "per-user" and (client or user_id):
            if not credentials_version:  # the setting was changed since the credentials were looked up
                raise NotStarted(server, "is being restarted with changed settings.", advice="Try again.")
            return self._server_of_user(shared, client or f"user {user_id}", user_id, credentials_version)
        if not client or self.is_shared(server):
            return shared
        if (client, server) not in self._client_servers:
            own = ServerSupervisor(
                server, shared.settings, build_deps=self._build_deps, publish=_ignore_listing
            )
            own.is_legacy = shared.is_legacy
            self._client_servers[client, server] = own
        return self._client_servers[client, server]

    def _server_of_user(
        self, shared: ServerSupervisor, client: str, user_id: str, version: str
    ) -> ServerSupervisor:
        """Return the supervisor of the client's private server process, which uses the user's credentials.

        It is replaced when the version of the credentials has changed.
        """
        name = shared.name
        own = self._client_servers.get((client, name))
        if own is not None and own.credentials_version != (user_id, version):
            self._retired.add(self._client_servers.pop((client, name)))
            self._loop.submit(self._retire_server(own))
            own = None
        if own is None:
            build_deps = partial(self._build_deps, user_id=user_id)
            own = ServerSupervisor(name, shared.settings, build_deps=build_deps, publish=_ignore_listing)
            own.is_legacy, own.credentials_version = shared.is_legacy, (user_id, version)
            self._client_servers[client, name] = own
        return own

    async def _find_credentials_version(self, server: str, client: str, user_id: str) -> str:
        """Return the version of the user's credentials that a call needs; empty if the call needs none.

        Raises NotStarted or NeedsLogin if the user has none.
        """
        if self._find_server(server).settings.credentials != "per-user" or not (client or user_id):
            return ""
        if not user_id:
            raise NotStarted(
                server,
                "needs credentials of the calling user, and this client belongs to no user.",
                advice="Connect with a login, or with a token that belongs to a user.",
            )
        return await self._credentials.require_user_version(self._find_server(server), user_id)

    def refresh_listing(self, server: str, seconds: float | None = None) -> Listing:
        """List a server's tools now, even if they are cached. Raises ServerFailed."""
        limit = seconds or 2 * self._settings[server].connect_timeout_seconds
        return self._run_blocking(self._servers[server].refresh_listing(), server, limit)

    async def fetch_listing(self, server: str, seconds: float) -> Listing:
        """List a server's tools now, without blocking a thread; cancelling the caller cancels the request.

        Raises ServerFailed.
        """
        future = asyncio.wrap_future(self._loop.submit(self._servers[server].refresh_listing()))
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            raise NotStarted(server, f"did not respond within {seconds:g} s.") from None

    def restart(self, server: str) -> None:
        """Restart an MCP server. Raises ServerFailed."""
        limit = 2 * self._settings[server].connect_timeout_seconds
        self._run_blocking(self._servers[server].restart(), server, limit)

    def publish_reviewed(self, server: str) -> None:
        """Register a server's tools again after a review has accepted some of them."""
        supervised = self._servers[server]
        if supervised.listing is not None:
            self._publish_tools(supervised, supervised.listing)

    def accept_held(self, server: str, tools: Iterable[ListedTool]) -> None:
        """Accept tools that a person has reviewed, and register them. Raises ConfigError."""
        self.trust.accept(server, tools)
        self.publish_reviewed(server)

    def registered_name(self, server: str, tool: str) -> str:
        """Return the name under which a server's tool is registered, or would be registered after review."""
        return self._names.registered_name(server, tool)

    def follow_shared_pins(self, database: Database) -> None:
        """Register tools whenever other replicas accept them, and remove tools no longer accepted."""
        shared = self.trust.shared
        if shared is None:
            return

        def read_again() -> None:
            shared.reload()
            self.publish_all_reviewed()

        database.on_change("pins", read_again)

    def follow_shared_listings(self) -> None:
        """Start applying tool lists that other replicas have read from their servers."""
        if self._exchange is not None:
            self._exchange.follow()

    def publish_all_reviewed(self) -> None:
        """Register reviewed tools that were accepted in another process."""
        for name in [name for name, held in tuple(self._held_tools.items()) if held]:
            if name in self._servers:
                self.publish_reviewed(name)

    def close(self) -> None:
        """Close all MCP servers within a limited time."""
        with self._change_lock:
            if self._closed:
                return
            self._closed = True
        if self._exchange is not None:
            self._exchange.close()
        if self._loop.is_started:
            concurrent.futures.wait(tuple(self._closing), timeout=CLOSE_TIMEOUT_S)
            with contextlib.suppress(concurrent.futures.TimeoutError):
                self._loop.submit(self._close()).result(CLOSE_TIMEOUT_S + 5)
            self._loop.close()
        self._credentials.close()

    async def _close(self) -> None:
        ending = [
            asyncio.create_task(each.close())
            for each in (*self._servers.values(), *self._client_servers.values(), *self._retired)
        ]
        if ending:
            await asyncio.wait(ending, timeout=CLOSE_TIMEOUT_S)

    def _create_supervisor(self, name: str, settings: McpServerSettings) -> ServerSupervisor:
        def publish(_name: str, listing: Listing) -> None:
            self._handle_listing(supervisor, listing)

        supervisor = ServerSupervisor(name, settings, build_deps=self._build_deps, publish=publish)
        return supervisor

    def _is_in_use(self, server: ServerSupervisor) -> bool:
        """Return False if the server was removed or replaced."""
        return self._servers.get(server.name) is server

    def _start_server(self, server: ServerSupervisor) -> concurrent.futures.Future[Any]:
        future = self._loop.submit(server.get_connection())
        future.add_done_callback(lambda done: self._handle_start_result(server, done))
        return future

    def _handle_start_result(self, server: ServerSupervisor, start: concurrent.futures.Future[Any]) -> None:
        error = None if start.cancelled() else start.exception()
        if isinstance(error, ServerFailed):
            self._handle_failed_start(server)
        elif error is not None:
            log.error("internal error while starting MCP server %r", server.name, exc_info=error)

    def _handle_failed_start(self, server: ServerSupervisor) -> None:
        self._cache.record_failure(server.name, server.settings)
        needs_credentials = server.settings.credentials == "per-user" or server.state_name == "login"
        if needs_credentials and not self._closed:
            self._loop.submit(self._restart_with_new_credentials(server))
        toolset = MCP_PREFIX + server.name
        with self._change_lock:
            if server.listing is None and self._is_in_use(server) and self._has_tools(toolset):
                self._registry.replace_toolset(toolset, ())  # tools of the process before the change
                self.events.broadcast(server.name, "tools", None)

    async def _restart_with_new_credentials(self, server: ServerSupervisor) -> None:
        """Restart a server when the installation's credentials or OAuth login for the server have changed."""
        tried, read = server.credentials_version, asyncio.get_running_loop().run_in_executor
        while not self._closed and self._is_in_use(server) and server.state_name != "up":
            try:
                version = OWNER, await read(None, self._credentials.find_owner_version, server)
                if version not in (tried, server.credentials_version):
                    tried = version  # a start may fail before the server has read its credentials
                    await server.restart()
                    return
            except ServerFailed as error:
                log.info("MCP server %r cannot be started with its new credentials: %s", server.name, error)
            except (ToolfoldError, OSError) as error:
                log.debug("credentials of MCP server %r cannot be read: %s", server.name, error)
            await asyncio.sleep(CREDENTIALS_POLL_S)

    def _has_tools(self, toolset: str) -> bool:
        return toolset in self._registry.snapshot().toolsets

    async def _build_deps(self, server: ServerSupervisor, user_id: str = OWNER) -> ConnectionDeps:
        """Return the settings and callbacks of a connection, with a user's credentials if needed."""
        settings = server.settings
        self.has_started_programs |= bool(settings.command)
        look_up = asyncio.get_running_loop().run_in_executor  # a keyring may wait for a person
        if user_id == OWNER:  # before they are loaded, so that a change in between is noticed
            with contextlib.suppress(ToolfoldError, OSError):  # of a database; the server may need none
                server.credentials_version = (
                    OWNER,
                    await look_up(None, self._credentials.find_owner_version, server),
                )
        credentials = await look_up(None, self._credentials.load, server, user_id)
        variables = add_credentials(self._config.environment, credentials)
        environment = await look_up(None, build_environment, settings, variables)
        resolved = await look_up(None, resolve_settings, settings, variables)
        secrets = await look_up(None, collect_secrets, settings, variables)
        file = self._config.paths.state_dir / "mcp" / "logs" / f"{server.name}.log"
        redact = Redaction((*self._config.secret_values(), *secrets, *credentials.values()))
        prompt_handler = self._callbacks.create_prompt_handler(server.name, settings)
        relay = ServerRequestRouter(server, prompt_handler) if self._behind_gateway else None
        return ConnectionDeps(
            settings=resolved,
            environment=environment,
            log=ServerLog(file, redact),
            auth=self._credentials.load_auth(server, user_id),
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
        is_shared = self._is_in_use(server)
        if not (is_shared and self._item_lists.refresh(server.name, kind)):
            self.events.broadcast(server.name, kind, None)

    async def log_in_user(
        self, server: str, user_id: str, redirect: Redirect, *, open_url: OpenUrl, timeout_s: float
    ) -> None:
        """Log a user in to a server through a browser, wait for the redirect, and store the login.

        Raises ServerFailed and ConfigError.
        """
        await self._credentials.log_in_user(
            self._find_server(server), user_id, redirect, open_url=open_url, timeout_s=timeout_s
        )

    def open_logins(self, user_id: str = OWNER) -> LoginStore:
        """Return the store of a user's OAuth logins or, by default, of the installation's own logins."""
        return self._credentials.open_logins(user_id)

    def _handle_listing(self, server: ServerSupervisor, listing: Listing) -> None:
        """Cache and register the tools that a server has listed, unless it was removed or replaced."""
        if not self._is_in_use(server):
            return
        self._cache.write(server.name, server.settings, listing)
        self._publish_tools(server, listing)
        if self._exchange is not None:
            self._exchange.offer(server.name, server.settings, listing)
        self._loop.call_soon(self._item_lists.refresh, server.name)

    def _adopt_listing(self, name: str, settings: McpServerSettings, listing: Listing, age_s: float) -> None:
        """Use a tool list that another replica has read from a server with the same settings."""
        with self._change_lock:
            server = self._servers.get(name)
            if server is None or self._closed or self._settings.get(name) != settings:
                return
            self._cache.write(name, settings, listing, age_s=age_s)
            work = server.adopt_listing(listing, partial(self._publish_tools, server))
            self._loop.submit(work).add_done_callback(partial(_log_failed_adoption, name))

    def _publish_tools(self, server: ServerSupervisor, listing: Listing) -> None:
        """Register the trusted tools of a server; register none if the lock file cannot be read."""
        name = server.name
        try:
            sifted = self.trust.check_tools(name, server.settings.trust, listing.tools)
        except ConfigError as error:
            log.error("MCP server %r is not used: %s", name, error)
            self._register_tools(server, [])
            return
        self._log_trust_result(name, listing, sifted)
        with self._change_lock:
            if self._closed or not self._is_in_use(server):
                return
            self._held_tools[name] = sifted.held
            self._register_tools(server, self._build_tools(name, listing, sifted.accepted))
        self.events.broadcast(name, "tools", None)

    def _log_trust_result(self, name: str, listing: Listing, sifted: TrustResult) -> None:
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

    def _register_tools(self, server: ServerSupervisor, tools: list[Tool]) -> None:
        """Replace the server's tools in the registry; remove them if the registry rejects the new ones."""
        toolset = MCP_PREFIX + server.name
        with self._change_lock:
            if not self._is_in_use(server):
                return
            try:
                self._registry.replace_toolset(toolset, tools)
            except RegistryError as error:
                log.error("MCP server %r is not used: %s", server.name, error)
                self._registry.replace_toolset(toolset, ())

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
            if is_long_result(answer):  # scanning it in the loop would block other servers
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
        """Raise ToolHeldForReview if the tool's current definition was not accepted.

        A server that was just started may list another tool than the cached one.
        """
        now = _find_tool(listing, tool.name) or tool
        settings = self._find_server(server).settings
        if not is_wanted(settings, tool.name):
            raise NotStarted(server, f"has no enabled tool {tool.name!r}.", advice="Use another tool.")
        policy = settings.trust
        for each in (tool, now) if now is not tool else (tool,):
            if held := self.trust.check_call(server, policy, each):
                advice = "A person can review it with `toolfold mcp review`."
                raise ToolHeldForReview(
                    server, f"has a tool that must be reviewed first: {held}.", advice=advice
                )

    async def _run_on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop of the MCP servers, awaited from another event loop."""
        if self._closed:
            work.close()
            raise CallError("The runtime and its MCP servers are closed.")
        return await self._loop.run(work)

    def _run_blocking(self, work: Coroutine[Any, Any, T], server: str, seconds: float) -> T:
        future = self._loop.submit(work)
        try:
            return future.result(seconds)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise NotStarted(server, f"did not respond within {seconds:g} s.") from None


def _log_failed_adoption(server: str, done: concurrent.futures.Future[None]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        log.error("internal error while using the shared tool list of MCP server %r", server, exc_info=error)


def _explain_missing_list(server: ServerSupervisor) -> str:
    """Return for a model why the tools of a server are not known, and what to do."""
    if server.state_name == "starting":
        return f"MCP server {server.name!r} is still starting. Call the tool again in a few seconds."
    return (
        f"MCP server {server.name!r} could not be started. A person can check it: `toolfold mcp test"
        f" {server.name}`."
    )


def _find_tool(listing: Listing | None, tool: str) -> ListedTool | None:
    return next((each for each in listing.tools if each.name == tool), None) if listing else None


def _relay_of(context: CallContext) -> CallRelay | None:
    return context.surface if isinstance(context.surface, CallRelay) else None


def _ignore_listing(_server: str, _listing: Listing) -> None:
    """Ignore the tool list of a private server process; only the shared process's tools are registered."""
