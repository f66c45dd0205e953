"""The gateway's MCP server: handles each request in the session of the client that made it.

Built on the SDK's server, which speaks the handshake revisions and the newest one, which has no sessions.
Every tool call goes through the same dispatch as in a runtime. Notifications of servers are forwarded to the
clients that may use them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from pydantic import BaseModel

from toolfold.core.errors import CallError, OutOfScope, escape_unprintable, shorten
from toolfold.core.events import ConfigReloaded, Event
from toolfold.core.types import BRIDGE_SEARCH, MCP_SOURCE, Approver, Caller, GrantLimit, Json, ToolResult
from toolfold.mcp.call_relay import CallRelay
from toolfold.mcp.content import McpResponse
from toolfold.mcp.sdk_compat import get_connection, load_sdk, skip_unused_tracing
from toolfold.selection.turn.token_counts import ToolTokenCounts
from toolfold.serving.gateway import client_approval, result_namespacing
from toolfold.serving.gateway.client_channels import (
    ClientChannels,
    client_capabilities,
    is_modern,
    send_log_message,
)
from toolfold.serving.gateway.client_results import mark_server_state, to_call_result
from toolfold.serving.gateway.client_sessions import ClientSession
from toolfold.serving.gateway.client_tokens import ANONYMOUS, GatewayClient, TokenStore
from toolfold.serving.gateway.header_check import HeaderCheck
from toolfold.serving.gateway.peers import PeerProcesses
from toolfold.serving.gateway.refusal_log import RefusalLog
from toolfold.serving.gateway.server_prefixes import ServerPrefixes
from toolfold.serving.gateway.subscriptions import ClientSubscriptions
from toolfold.state.users.directory import NOTHING
from toolfold.state.users.quotas import CALL_METERS, SEARCH_METERS, QuotaExceeded

if TYPE_CHECKING:
    import mcp_types
    from mcp import MCPError
    from mcp.server.connection import Connection
    from mcp.server.lowlevel import NotificationOptions, Server
    from mcp.server.models import InitializationOptions

    from toolfold.mcp.supervisor import ServerSupervisor
    from toolfold.runtime.runtime import Runtime
    from toolfold.runtime.session import Session
    from toolfold.serving.gateway.client_channels import RequestContext

    InteractiveParams: TypeAlias = (
        mcp_types.CallToolRequestParams
        | mcp_types.ReadResourceRequestParams
        | mcp_types.GetPromptRequestParams
    )

log = logging.getLogger(__name__)

M = TypeVar("M", bound=BaseModel)
RunCall = Callable[[Approver | None, CallRelay], Coroutine[Any, Any, ToolResult]]
"""Runs a call with the approver and the relay of its client."""

LOCAL_TOOLSETS = (
    *("file", "terminal", "code_execution", "web", "browser", "messaging"),
    *("skills", "tts", "image_gen", "cronjob", "vision", "moa", "homeassistant", "rl"),
)
"""Toolsets that are granted only where they are named: most clients have similar tools themselves."""
IDLE_TIMEOUT_S = 1_800.0
MAX_SESSIONS = 1_000
MAX_SESSIONS_PER_CLIENT = 40
"""Each session may have its own process of every stateful server."""
MAX_CALLS_PER_CLIENT = 500
MAX_SUBSCRIPTIONS = 1_000
MAX_CLIENT_NAME_CHARS = 256
MAX_URI_LENGTH = 4_096
MAX_PAGE_CHARS = 500_000
"""Characters of JSON in one page of a list."""
NOTIFY_TIMEOUT_S = 5.0
NOTIFY_DELAY_S = 0.05
"""Equal notifications within this time are forwarded once."""
LIMIT_REACHED = -32029
"""Code of the JSON-RPC error for a limit that is reached, from the range for errors of a server."""
RETRY_AFTER_S = 5
CLIENT_SCOPE_KEY = "toolfold.client"
"""Key of the ASGI scope under which the HTTP app stores the authenticated client."""
_INSTRUCTIONS = (
    "Tools of several servers. If what you need is not in the list, look for it with tool_search, "
    "read it with tool_describe and run it with tool_call."
)
_LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


class Gateway:
    """MCP server for all clients of one runtime."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        default_client: GatewayClient | None = None,
        is_local: bool = False,
        tokens: TokenStore | None = None,
    ) -> None:
        """Create a gateway; `default_client` is used for requests without a token, None to refuse them.

        `is_local` means that only programs on this machine can connect. `tokens` are those of the clients.
        """
        load_sdk()  # servers of the runtime may be loading it in another thread
        self._runtime = self.runtime = runtime
        self.on_tokens_changed: Callable[[], None] = lambda: None
        """Called in the event loop after tokens, users or teams have changed."""
        self.follow: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]] | None = None
        """Function that shows the gateway's questions and events to a dashboard on its control socket."""
        self._default_client, self._tokens = default_client, tokens
        self._client_asks_user = is_local and runtime.config.gateway.trust_client_approval
        self._sessions: dict[str, ClientSession] = {}
        self._session_keys: dict[str, set[str]] = {}
        """MCP session id → keys of its client sessions: one for each client that has used it."""
        self._prefixes = ServerPrefixes({})
        self._weights = ToolTokenCounts()
        self._refusals = RefusalLog(runtime, tokens)
        self._known_servers: Mapping[str, ServerSupervisor] = {}
        self._follow_servers()
        self._peers = PeerProcesses()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._notifications: set[tuple[str, str, str | None]] = set()
        """Notifications of servers that were not forwarded yet: server, kind and resource URI."""
        self._notifications_lock = threading.Lock()
        self._active_calls: Counter[str] = Counter()
        self._subscriptions = ClientSubscriptions(self._sessions, self._request_resource)
        runtime.mcp.events.subscribe(self._receive_notification)
        self._unsubscribe_events = runtime.events.subscribe(self._receive_event, only=ConfigReloaded)
        runtime.watch_settings()
        if tokens:
            runtime.retriever.learned.find_sharing = tokens.users.find_sharing
        self._unwatch_tokens = tokens.on_change(self._handle_changed_tokens) if tokens else None

    def make_server(self) -> Server[Any]:
        """Return the SDK's server with the gateway's request handlers."""
        import mcp_types
        from mcp.server.lowlevel import NotificationOptions, Server

        changes = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        headers = HeaderCheck(self._runtime.registry.snapshot)

        class GatewayServer(Server[Any]):
            """SDK server that declares to clients that it notifies them of changed lists."""

            get_tool_input_schema = property(lambda _: headers.lookup, lambda _, __: None)

            def create_initialization_options(
                self,
                notification_options: NotificationOptions | None = None,
                experimental_capabilities: dict[str, Json] | None = None,
                extensions: dict[str, Json] | None = None,
            ) -> InitializationOptions:
                return super().create_initialization_options(
                    notification_options or changes, experimental_capabilities, extensions
                )

        server: Server[Any] = GatewayServer(
            "toolfold",
            version=version("toolfold"),
            instructions=_INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
            on_subscribe_resource=self._subscribe,
            on_unsubscribe_resource=self._unsubscribe,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_completion=self._complete_argument,
            on_subscriptions_listen=self._listen,
        )
        server.add_request_handler("logging/setLevel", mcp_types.SetLevelRequestParams, self._set_log_level)
        skip_unused_tracing(server)
        return server

    def close(self) -> None:
        """Close the sessions of all clients."""
        self._unsubscribe_events()
        if self._unwatch_tokens:
            self._unwatch_tokens()
        self._session_keys.clear()
        while self._sessions:
            self._sessions.popitem()[1].close()
        if self._tokens and self._tokens.quotas:
            try:
                self._tokens.quotas.close()
            except OSError as error:
                log.warning("the latest token counts and costs of users could not be stored: %s", error)

    def _session_for(self, context: RequestContext) -> ClientSession:
        """Return the session of the client that made the request; open a session for a new client."""
        self._loop = self._loop or asyncio.get_running_loop()
        self._follow_servers()
        connection = get_connection(context.session)
        client = self._identify_client(context)
        key = self._session_key(context, connection, client)
        session = self._sessions.get(key)
        if session is not None and session.client != client:
            self._close_session(key)  # its grant has changed since
            session = None
        if session is None:
            session = self._open_client_session(key, client, self._make_caller(context, client))
            if connection.session_id:
                session.protocol_session = connection.session_id
                self._session_keys.setdefault(connection.session_id, set()).add(key)
            if _is_persistent(context, connection):
                connection.exit_stack.callback(self._close_session, key)
        if _is_persistent(context, connection) and connection not in session.connections:
            session.connections.append(connection)
        session.last_used = time.monotonic()
        return session

    def _follow_servers(self) -> None:
        """Update the prefixes of URIs and names if servers were added, removed or changed."""
        servers = self._runtime.mcp.servers
        if servers is not self._known_servers:
            self._known_servers = servers
            self._prefixes.update({name: each.settings.name_prefix(name) for name, each in servers.items()})

    def _identify_client(self, context: RequestContext) -> GatewayClient:
        scope = getattr(context.request, "scope", None) or {}
        client = scope.get(CLIENT_SCOPE_KEY, self._default_client)
        if not isinstance(client, GatewayClient):
            raise _invalid_params("the request has no authenticated client")
        return client

    def _user_check(self, context: RequestContext) -> client_approval.RequireUser:
        """Return a function that raises an error if the client must not answer approval questions."""

        async def require_user() -> None:
            if context.request is None:
                return
            scope = context.request.scope
            has_token = self._identify_client(context).name != ANONYMOUS
            await self._peers.require_user(scope.get("client"), scope.get("server"), has_token=has_token)

        return require_user

    def _session_key(self, context: RequestContext, connection: Connection, client: GatewayClient) -> str:
        """Return the key of a client's session: its MCP session or, if none, its token and client name."""
        if connection.session_id:
            return f"{client.id} session {connection.session_id}"
        if context.request is None:
            return "stdio"
        params = context.session.client_params
        name = params.client_info.name if params else ""
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()  # it may be of any length
        return f"{client.id} named {shorten(name, 40)} {digest[:32]}"

    def _make_caller(self, context: RequestContext, client: GatewayClient) -> Caller:
        """Return the client's identity for approval; over stdio, with the name that the client declares."""
        params = context.session.client_params
        own_name = params.client_info.name if context.request is None and params else client.name
        return Caller(
            own_name[:MAX_CLIENT_NAME_CHARS],
            asks_user=self._client_asks_user,
            may_use_keys=client.may_use_keys,
            user_id=client.user_id,
            since=client.created,
        )

    def _open_client_session(self, key: str, client: GatewayClient, caller: Caller) -> ClientSession:
        self._make_room(client)
        runtime_session = open_session(
            self._runtime,
            self._existing_toolsets(client),
            client=key,
            caller=caller,
            find_limits=functools.partial(self._tokens.list_limits, client) if self._tokens else None,
        )
        session = ClientSession(
            key, client, self._runtime, runtime_session, self._prefixes, self._weights, self._refusals
        )
        session.display_name = caller.name or client.name
        self._sessions[key] = session
        log.info(
            "client %s: connected, may use %d tools", session.display_name, len(runtime_session.granted())
        )
        return session

    def _existing_toolsets(self, client: GatewayClient) -> tuple[str, ...] | None:
        """Return the existing toolsets that a client may use; log and omit missing toolsets."""
        if client.toolsets is None:
            return None
        toolsets = self._runtime.toolsets()
        missing = [name for name in client.toolsets if not toolsets.knows(name)]
        if missing:
            log.warning(
                "the token of %r grants toolsets that do not exist: %s", client.name, ", ".join(missing)
            )
        return tuple(name for name in client.toolsets if name not in missing)

    def _make_room(self, client: GatewayClient) -> None:
        """Close the least recently used idle sessions of a client with too many sessions.

        Only the client's own sessions are closed. A session with a connection stays open, but the servers
        that only it uses are stopped.
        """
        self._close_idle_sessions()
        own = [session for session in self._sessions.values() if session.client == client]
        surplus = len(own) - MAX_SESSIONS_PER_CLIENT + 1
        idle = sorted((session for session in own if not session.is_busy), key=lambda each: each.last_used)
        for session in idle[: max(0, surplus)]:
            if session.connections:
                session.release_servers()
            else:
                self._close_session(session.key)
        if surplus > len(idle):
            raise _invalid_params(
                f"{MAX_SESSIONS_PER_CLIENT} sessions of this client are busy; wait until one of them is idle"
            )

    def _close_idle_sessions(self) -> None:
        """Close unconnected idle sessions: after a timeout, or at once if the total limit is reached."""
        idle = (each for each in self._sessions.values() if not each.connections and not each.is_busy)
        now = time.monotonic()
        for session in sorted(idle, key=lambda each: each.last_used):
            if now - session.last_used > IDLE_TIMEOUT_S or len(self._sessions) >= MAX_SESSIONS:
                self._close_session(session.key)

    def client_sessions(self) -> list[ClientSession]:
        """Return the sessions of the currently connected clients."""
        return list(self._sessions.values())

    def is_busy(self, session_id: str) -> bool:
        """Return True if an MCP session has a call in progress."""
        sessions = map(self._sessions.get, self._session_keys.get(session_id, ()))
        return any(session is not None and session.is_busy for session in sessions)

    def _close_session(self, key: str) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            self._remove_session_key(session)
            self._subscriptions.drop_session(session)
            session.close()
            log.info("client %s: disconnected", session.display_name)

    def _remove_session_key(self, session: ClientSession) -> None:
        keys = self._session_keys.get(session.protocol_session, set())
        keys.discard(session.key)
        if not keys:
            self._session_keys.pop(session.protocol_session, None)

    async def _list_tools(
        self, context: RequestContext, _params: mcp_types.PaginatedRequestParams | None
    ) -> mcp_types.ListToolsResult:
        import mcp_types

        return mcp_types.ListToolsResult(tools=await self._session_for(context).list_tools())

    async def _call_tool(
        self, context: RequestContext, params: mcp_types.CallToolRequestParams
    ) -> mcp_types.CallToolResult | mcp_types.InputRequiredResult:
        import mcp_types
        from mcp import MCPError

        session = self._session_for(context)

        async def call(approver: Approver | None, relay: CallRelay) -> ToolResult:
            return await session.call(params.name, params.arguments, approver=approver, relay=relay)

        result = await self._run_interactive(session, context, params, params.name, params.arguments, call)
        if not isinstance(result, ToolResult):
            return result
        if isinstance(result.raw, McpResponse) and isinstance(result.raw.result, MCPError):
            raise result.raw.result  # the response to the request is an error, not a tool result
        response = to_call_result(result)
        if isinstance(response, mcp_types.CallToolResult) and not result_namespacing.has_resource_uris(
            response
        ):
            return response
        return await self._namespace_result(
            response, self._server_of_tool(result.name), result_namespacing.prefix_call_result
        )

    def _server_of_tool(self, name: str) -> str:
        """Return the name of a tool's MCP server; empty if the tool is not from an MCP server."""
        tool = self._runtime.registry.snapshot().get(name)
        return tool.source.name if tool is not None and tool.source.kind == MCP_SOURCE else ""

    async def _namespace_result(
        self,
        result: M | mcp_types.InputRequiredResult,
        server: str,
        add_prefixes: Callable[[M, result_namespacing.AddPrefix], M],
    ) -> M | mcp_types.InputRequiredResult:
        """Return a server's result with prefixed URIs; if it asks the user for input, name the server in it.

        Runs in a thread: scanning a large result must not block other clients.
        """
        import mcp_types

        if not server:
            return result
        if isinstance(result, mcp_types.InputRequiredResult):
            return result_namespacing.name_server_in_requests(result, server)
        prefix_uri = functools.partial(self._prefixes.prefix_uri, server)
        return await asyncio.to_thread(add_prefixes, result, prefix_uri)

    async def _read_resource(
        self, context: RequestContext, params: mcp_types.ReadResourceRequestParams
    ) -> mcp_types.ReadResourceResult | mcp_types.InputRequiredResult:
        session = self._session_for(context)
        uri = str(params.uri)

        async def read(approver: Approver | None, relay: CallRelay) -> ToolResult:
            return await session.read_resource(uri, approver=approver, relay=relay)

        with _not_found_if_out_of_scope(uri):
            result = await self._run_interactive(session, context, params, uri, None, read)
        server, _ = session.resolve_resource(uri)
        response: mcp_types.ReadResourceResult | mcp_types.InputRequiredResult = _raw_result(result, uri)
        return await self._namespace_result(response, server, result_namespacing.prefix_read_result)

    async def _get_prompt(
        self, context: RequestContext, params: mcp_types.GetPromptRequestParams
    ) -> mcp_types.GetPromptResult | mcp_types.InputRequiredResult:
        session = self._session_for(context)
        args: Json = dict(params.arguments or {})

        async def get(approver: Approver | None, relay: CallRelay) -> ToolResult:
            return await session.get_prompt(params.name, args, approver=approver, relay=relay)

        try:
            result = await self._run_interactive(session, context, params, params.name, args, get)
        except OutOfScope as error:
            raise _invalid_params(str(error)) from None
        server, _ = session.resolve_prompt(params.name)
        response: mcp_types.GetPromptResult | mcp_types.InputRequiredResult
        response = _raw_result(result, params.name)
        return await self._namespace_result(response, server, result_namespacing.prefix_prompt_result)

    async def _list_resources(
        self, context: RequestContext, params: mcp_types.PaginatedRequestParams | None
    ) -> mcp_types.ListResourcesResult:
        import mcp_types

        found = await self._collect(context, lambda session: session.list_resources("resources/list"))
        items, cursor = await self._list_page(found, "uri", self._prefixes.prefix_uri, params)
        return mcp_types.ListResourcesResult(resources=items, next_cursor=cursor)

    async def _list_templates(
        self, context: RequestContext, params: mcp_types.PaginatedRequestParams | None
    ) -> mcp_types.ListResourceTemplatesResult:
        import mcp_types

        method = "resources/templates/list"
        found = await self._collect(context, lambda session: session.list_resources(method))
        items, cursor = await self._list_page(found, "uri_template", self._prefixes.prefix_uri, params)
        return mcp_types.ListResourceTemplatesResult(resource_templates=items, next_cursor=cursor)

    async def _list_prompts(
        self, context: RequestContext, params: mcp_types.PaginatedRequestParams | None
    ) -> mcp_types.ListPromptsResult:
        import mcp_types

        found = await self._collect(context, lambda session: session.list_prompts())
        items, cursor = await self._list_page(found, "name", self._prefixes.prefix_prompt, params)
        return mcp_types.ListPromptsResult(prompts=items, next_cursor=cursor)

    async def _collect(
        self,
        context: RequestContext,
        list_items: Callable[[ClientSession], Awaitable[list[tuple[str, Any]]]],
    ) -> list[tuple[str, Any]]:
        """Return the resources, templates or prompts of all servers, each with the name of its server.

        The listing is counted like a call in progress, of which a client may have MAX_CALLS_PER_CLIENT.
        """
        session = self._session_for(context)
        with self._count_call(session):
            return await list_items(session)

    async def _list_page(
        self,
        items: list[tuple[str, M]],
        field: str,
        add_prefix: Callable[[str, str], str],
        params: mcp_types.PaginatedRequestParams | None,
    ) -> tuple[list[M], str | None]:
        """Return the requested page of list entries with prefixed names, and the next cursor."""
        prefixed = await asyncio.to_thread(result_namespacing.prefix_listing, items, field, add_prefix)
        return _cut_page(prefixed, params)

    async def _subscribe(
        self, context: RequestContext, params: mcp_types.SubscribeRequestParams
    ) -> mcp_types.EmptyResult:
        import mcp_types

        session, uri = self._session_for(context), str(params.uri)
        if len(session.subscriptions) >= MAX_SUBSCRIPTIONS and uri not in session.subscriptions:
            raise _invalid_params(
                f"a client may subscribe to at most {MAX_SUBSCRIPTIONS:,} resources; unsubscribe from some"
            )
        if len(uri) > MAX_URI_LENGTH:
            raise _invalid_params(f"the URI is longer than {MAX_URI_LENGTH:,} characters")
        with _not_found_if_out_of_scope(uri):
            await self._subscriptions.subscribe(session, uri)
        return mcp_types.EmptyResult()

    async def _unsubscribe(
        self, context: RequestContext, params: mcp_types.UnsubscribeRequestParams
    ) -> mcp_types.EmptyResult:
        import mcp_types

        uri = str(params.uri)
        with _not_found_if_out_of_scope(uri):
            await self._subscriptions.unsubscribe(self._session_for(context), uri, entirely=True)
        return mcp_types.EmptyResult()

    async def _listen(
        self, context: RequestContext, params: mcp_types.SubscriptionsListenRequestParams
    ) -> mcp_types.SubscriptionsListenResult:
        """Stream notifications to the client: changed lists, and updates of resources that it may read."""
        session = self._session_for(context)
        wanted = params.notifications
        uris = [uri for uri in wanted.resource_subscriptions or () if len(uri) <= MAX_URI_LENGTH]
        readable = _limit_subscriptions(session, session.find_readable(uris[:MAX_SUBSCRIPTIONS]))
        wanted = wanted.model_copy(update={"resource_subscriptions": readable or None})
        async with self._subscriptions.while_open(session, readable):
            return await session.listen(context, params.model_copy(update={"notifications": wanted}))

    async def _complete_argument(
        self, context: RequestContext, params: mcp_types.CompleteRequestParams
    ) -> mcp_types.CompleteResult:
        session = self._session_for(context)
        ref = params.ref
        if ref.type == "ref/prompt":
            with _not_found_if_out_of_scope(ref.name):
                server, own = session.resolve_prompt(ref.name)
            own_ref: BaseModel = ref.model_copy(update={"name": own})
        else:
            with _not_found_if_out_of_scope(ref.uri):
                server, own = session.resolve_resource(ref.uri)
            own_ref = ref.model_copy(update={"uri": own})
        argument = {"name": params.argument.name, "value": params.argument.value}
        result: mcp_types.CompleteResult = await self._request_server(
            session, server, "completion/complete", ref=own_ref, argument=argument
        )
        return result

    async def _request_resource(self, session: ClientSession, server: str, method: str, uri: str) -> object:
        return await self._request_server(session, server, method, uri=uri)

    async def _request_server(
        self, session: ClientSession, server: str, method: str, **params: object
    ) -> Any:
        try:
            with self._count_call(session):
                return await session.request_server(server, method, **params)
        except CallError as error:
            raise _invalid_params(str(error)) from None

    async def _set_log_level(
        self, context: RequestContext, params: mcp_types.SetLevelRequestParams
    ) -> mcp_types.EmptyResult:
        import mcp_types

        self._session_for(context).log_level = params.level
        return mcp_types.EmptyResult()

    async def _run_interactive(
        self,
        session: ClientSession,
        context: RequestContext,
        params: InteractiveParams,
        name: str,
        args: Json | None,
        run: RunCall,
    ) -> ToolResult | mcp_types.InputRequiredResult:
        """Run a call that may ask the client's user questions, as the client's MCP version supports it."""
        if not (is_modern(context) and params.request_state in session.paused_calls):
            await self._require_quota(session, name)  # a paused call was counted when it began
        with self._count_call(session):
            if is_modern(context):
                return await self._run_pausable(session, context, params, name, args, run)
            channels = ClientChannels.during_call(context, self._user_check(context))
            return await run(channels.approver, self._make_relay(session, context, params, channels))

    async def _require_quota(self, session: ClientSession, name: str) -> None:
        """Count a call or tool search towards the user's limits. Raises MCPError if a limit is reached."""
        if self._tokens is None:
            return
        try:
            meters = SEARCH_METERS if name == BRIDGE_SEARCH else CALL_METERS
            await self._tokens.require_quota(session.client, meters)
        except QuotaExceeded as error:
            called = escape_unprintable(shorten(name))
            log.info("client %s: the call of %s was refused: %s", session.display_name, called, error)
            raise _limit_reached(str(error), error.retry_after_s) from None
        except OSError as error:
            log.warning("the usage limits of client %s cannot be checked: %s", session.display_name, error)
            problem = "The gateway cannot check your limits now: its database cannot be reached."
            raise _limit_reached(problem, RETRY_AFTER_S) from None

    @contextlib.contextmanager
    def _count_call(self, session: ClientSession) -> Iterator[None]:
        """Count a call as in progress during a `with` block; refuse it if the client has too many calls."""
        client = session.client.id
        if self._active_calls[client] >= MAX_CALLS_PER_CLIENT:
            raise _invalid_params(
                f"this client has {MAX_CALLS_PER_CLIENT} calls in progress; wait until some of them end"
            )
        self._active_calls[client] += 1
        session.active_calls += 1
        try:
            yield
        finally:
            session.active_calls -= 1
            self._active_calls[client] -= 1
            if not self._active_calls[client]:
                del self._active_calls[client]

    async def _run_pausable(
        self,
        session: ClientSession,
        context: RequestContext,
        params: InteractiveParams,
        name: str,
        args: Json | None,
        run: RunCall,
    ) -> ToolResult | mcp_types.InputRequiredResult:
        """Start or resume a call; return its result, or a request that the client must answer first."""
        state = params.request_state or ""
        if state.startswith(client_approval.GATEWAY_STATE_PREFIX):
            paused = session.paused_calls.take(state, name, args)
            if paused is None:
                raise _invalid_params("the request state is unknown, was used, or belongs to another call")
            call = paused
            call.resume(params.input_responses, self._user_check(context))
        elif state and not state.startswith(client_approval.SERVER_STATE_PREFIX):
            raise _invalid_params("the request state was not issued by this server")
        else:
            call = client_approval.PausedCall(name, args, self._user_check(context))
            channels = ClientChannels.between_calls(context, call)
            call.start(run(channels.approver, self._make_relay(session, context, params, channels)))
        result = await call.wait()
        if result is not None:
            return result
        return client_approval.build_input_required(call.request, session.paused_calls.add(call))

    def _make_relay(
        self,
        session: ClientSession,
        context: RequestContext,
        params: InteractiveParams,
        channels: ClientChannels,
    ) -> CallRelay:
        """Return a relay that forwards messages of a server to the client during a call."""
        state = (params.request_state or "").removeprefix(client_approval.SERVER_STATE_PREFIX)
        server_session = context.session

        async def report_progress(done: float, total: float | None, message: str | None) -> None:
            with contextlib.suppress(Exception):  # the client may be gone
                await server_session.report_progress(done, total, message)

        async def forward_log(server: str, message: mcp_types.LoggingMessageNotificationParams) -> None:
            if _LOG_LEVELS.index(message.level) >= _LOG_LEVELS.index(session.log_level):
                with contextlib.suppress(Exception):
                    await send_log_message(server_session, message, server, context.request_id)

        return CallRelay(
            client=session.key,
            progress=report_progress,
            log=forward_log,
            elicit=channels.elicit,
            sample=channels.sample,
            capabilities=client_capabilities(context),
            handles_input_requests=is_modern(context),
            input_responses=params.input_responses,
            request_state=state or None,
        )

    def _handle_changed_tokens(self) -> None:
        """Close sessions of clients that are no longer accepted; notify other clients of changed lists."""
        self._receive_notification("", "tools", None)
        if self._loop is not None and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # the loop is closing
                self._loop.call_soon_threadsafe(self._close_refused_sessions)

    def _is_accepted(self, client: GatewayClient) -> bool:
        """Return False if a client's token was revoked, or its user was disabled or removed."""
        if self._tokens is None:
            return True
        if client.is_login:  # it has an access token, which each request is checked for
            return self._tokens.list_limits(client)[0] is not NOTHING
        return self._tokens.is_valid(client)

    def _close_refused_sessions(self) -> None:
        for key, session in list(self._sessions.items()):
            if session.client != self._default_client and not self._is_accepted(session.client):
                self._close_session(key)
        self.on_tokens_changed()

    def _receive_event(self, _event: Event) -> None:
        """Check which clients' tool lists have changed after settings such as `tools.disabled` changed."""
        self._receive_notification("", "tools", None)

    def _receive_notification(self, server: str, kind: str, uri: str | None) -> None:
        """Queue a server's notification for the clients; called in the server's thread."""
        if self._loop is None or self._loop.is_closed():
            return
        with self._notifications_lock:
            is_first = not self._notifications
            self._notifications.add((server, kind, uri))
        if is_first:
            with contextlib.suppress(RuntimeError):  # the loop is closing
                asyncio.run_coroutine_threadsafe(self._forward_notifications(), self._loop)

    async def _forward_notifications(self) -> None:
        """Forward queued notifications to all clients concurrently; a slow client delays no other client."""
        await asyncio.sleep(NOTIFY_DELAY_S)
        self._follow_servers()
        with self._notifications_lock:
            notifications, self._notifications = self._notifications, set()
        sessions = [session for session in self._sessions.values() if session.is_listening]
        await asyncio.gather(
            *(self._notify_session(session, notifications) for session in sessions), return_exceptions=True
        )

    async def _notify_session(
        self, session: ClientSession, notifications: Collection[tuple[str, str, str | None]]
    ) -> None:
        """Send a client the resource updates and list changes that affect it."""
        for server, kind, uri in notifications:
            if kind == "update" and uri is not None and session.can_use_server(server):
                await self._send_notification(session, kind, self._prefixes.prefix_uri(server, uri))
        changes: dict[str, set[str]] = {}
        for server, kind, _ in notifications:
            changes.setdefault(kind, set()).add(server)
        for kind in await session.find_changed_lists(changes):
            await self._send_notification(session, kind, "")

    async def _send_notification(self, session: ClientSession, kind: str, uri: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NOTIFY_TIMEOUT_S):
                await session.publish(kind, uri)
                await self._send_to_connections(session, kind, uri)

    async def _send_to_connections(self, session: ClientSession, kind: str, uri: str) -> None:
        if kind == "update" and uri not in session.subscriptions:
            return
        for connection in session.connections:
            senders: dict[str, Callable[[], Awaitable[None]]] = {
                "tools": connection.send_tool_list_changed,
                "prompts": connection.send_prompt_list_changed,
                "resources": connection.send_resource_list_changed,
                "update": functools.partial(connection.send_resource_updated, uri),
            }
            try:
                await senders[kind]()
            except TimeoutError:
                raise
            except Exception:  # noqa: S112 - the client may be gone
                continue


def open_session(
    runtime: Runtime,
    toolsets: tuple[str, ...] | None,
    *,
    client: str = "",
    caller: Caller | None = None,
    approver: Approver | None = None,
    find_limits: Callable[[], tuple[GrantLimit, GrantLimit]] | None = None,
) -> Session:
    """Open a runtime session with the given toolsets; None means all except LOCAL_TOOLSETS.

    `approver` is asked instead of the runtime's own. `find_limits` returns what the client's user and what
    its token may use now. A user that is allowed only some toolsets may use LOCAL_TOOLSETS among them.
    """
    known = runtime.toolsets()  # some exist only if their tools are configured
    local = tuple(name for name in LOCAL_TOOLSETS if known.knows(name)) if toolsets is None else ()

    def find_limit() -> GrantLimit:
        user, token = find_limits() if find_limits else (GrantLimit(), GrantLimit())
        hidden = local if user.enabled is None else ()
        return GrantLimit(user.enabled, (*user.disabled, *token.disabled, *hidden))

    return runtime.session(toolsets, client=client, caller=caller, approver=approver, find_limit=find_limit)


def _limit_subscriptions(session: ClientSession, uris: Collection[str]) -> list[str]:
    """Return the URIs to which the client can subscribe within its subscription limit."""
    new = itertools.islice(
        (uri for uri in uris if uri not in session.subscriptions),
        max(0, MAX_SUBSCRIPTIONS - len(session.subscriptions)),
    )
    allowed = set(new)
    return [uri for uri in uris if uri in session.subscriptions or uri in allowed]


def _is_persistent(context: RequestContext, connection: Connection) -> bool:
    """Return True if the connection lasts for a client's whole session rather than for one request.

    In the newest revision each request has its own connection.
    """
    return connection.has_standalone_channel and not is_modern(context)


def _cut_page(
    items: Sequence[M], params: mcp_types.PaginatedRequestParams | None
) -> tuple[list[M], str | None]:
    """Return one page of list entries at the request's cursor, and the cursor of the next page."""
    cursor = (params.cursor if params else None) or "0"
    start = int(cursor) if cursor.isascii() and cursor.isdigit() and len(cursor) < 10 else len(items)
    left, end = MAX_PAGE_CHARS, start
    while end < len(items) and (left := left - len(items[end].model_dump_json())) > 0:
        end += 1
    end = max(end, start + 1)  # a single item may exceed the limit
    return list(items[start:end]), str(end) if end < len(items) else None


def _raw_result(result: ToolResult | mcp_types.InputRequiredResult, requested: str) -> Any:
    """Return the server's unchanged result of a resource or prompt request. Raises MCPError on failure."""
    import mcp_types

    if not isinstance(result, ToolResult):
        return result
    if not isinstance(result.raw, McpResponse) or not result.ok:
        if result.error:
            raise _not_found(requested, result.error)
        raise _invalid_params("a hook has replaced the result, which cannot be sent as a resource or prompt")
    response = result.raw.result
    return mark_server_state(response) if isinstance(response, mcp_types.InputRequiredResult) else response


@contextlib.contextmanager
def _not_found_if_out_of_scope(requested: str) -> Iterator[None]:
    """Report OutOfScope as "not found", so that clients cannot discover what exists."""
    try:
        yield
    except OutOfScope:
        raise _not_found(requested) from None


def _not_found(requested: str, problem: str = "") -> MCPError:
    from mcp import MCPError
    from mcp_types import INVALID_PARAMS

    return MCPError(INVALID_PARAMS, problem or f"{requested!r} was not found", {"uri": requested})


def _limit_reached(problem: str, retry_after_s: int) -> MCPError:
    from mcp import MCPError

    return MCPError(LIMIT_REACHED, problem, {"retry_after_s": retry_after_s})


def _invalid_params(problem: str) -> MCPError:
    from mcp import MCPError
    from mcp_types import INVALID_PARAMS

    return MCPError(INVALID_PARAMS, problem)
