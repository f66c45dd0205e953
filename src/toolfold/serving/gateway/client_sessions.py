"""State of one gateway client: session, lists already sent, subscriptions and paused calls.

Every call goes through a runtime session, so scope, hooks, approval and quarantine apply as everywhere else.
The client is shown the tools of the session's turn; a new turn begins when the tools have changed. Knows the
protocol's types, and no transport.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import BaseModel

from toolfold.core.errors import OutOfScope, escape_unprintable, shorten
from toolfold.core.events import ToolsSelected
from toolfold.core.types import (
    BRIDGE_NAMES,
    MCP_SOURCE,
    Approver,
    CallContext,
    Caller,
    GrantLimit,
    Json,
    Tool,
    ToolResult,
)
from toolfold.mcp.call_relay import CallRelay
from toolfold.runtime.session import Session
from toolfold.safety.redaction import NO_SECRETS
from toolfold.selection.turn.assembly import Turn
from toolfold.selection.turn.token_counts import ToolTokenCounts
from toolfold.serving.gateway.client_approval import PausedCalls
from toolfold.serving.gateway.client_results import to_protocol_tool
from toolfold.serving.gateway.client_tokens import GatewayClient
from toolfold.serving.gateway.refusal_log import Refusal, RefusalLog
from toolfold.serving.gateway.server_prefixes import ServerPrefixes

if TYPE_CHECKING:
    import mcp_types
    from mcp.server.connection import Connection
    from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler

    from toolfold.runtime.runtime import Runtime
    from toolfold.serving.gateway.client_channels import RequestContext

log = logging.getLogger(__name__)

GONE_AFTER_S = 120.0
"""Idle time after which a client without an open connection is no longer reported as connected."""

MAX_STREAMS = 32
LISTINGS: Mapping[str, str] = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resources",
    "prompts/list": "prompts",
}
"""Method → the kind of list in `list_changed` notifications."""
RESOURCE_AND_PROMPT_TOOLS = frozenset({"list_resources", "read_resource", "list_prompts", "get_prompt"})
"""Tools that stand in for resources and prompts; clients of a gateway use protocol requests instead."""

MAX_LOGGED_ERROR_CHARS = 500

_ToolsState: TypeAlias = tuple[int, int, GrantLimit | None]
"""Generation of the registry, version of the settings, and what the client may use."""
_READ_RESOURCE, _GET_PROMPT = "read_resource", "get_prompt"


class ClientSession:
    """State of one client of the gateway."""

    def __init__(
        self,
        key: str,
        client: GatewayClient,
        runtime: Runtime,
        session: Session,
        prefixes: ServerPrefixes,
        weights: ToolTokenCounts,
        refusals: RefusalLog,
    ) -> None:
        self._refusals = refusals
        self.key, self.client, self.session = key, client, session
        self.protocol_session = ""
        """The id of the MCP session; empty if the client has none."""
        self.display_name = client.name
        """The name of the client's token; over stdio, the name that the client declares."""
        self._runtime, self._prefixes, self._weights = runtime, prefixes, weights
        self._turn: tuple[_ToolsState, Turn] | None = None
        self._stand_in_tools: tuple[_ToolsState, list[Tool]] | None = None
        self.paused_calls = PausedCalls()
        self.subscriptions: Counter[str] = Counter()
        """Resource URI → number of requests and streams of this client that subscribe to it."""
        self._list_digests: dict[str, str] = {}
        """Method → digest of the list that the client last received or was notified about."""
        self.log_level: mcp_types.LoggingLevel = "debug"
        self.connections: list[Connection] = []
        """Connections that accept notifications outside of a call."""
        self.last_used = time.monotonic()
        self.active_calls = 0
        """Calls and other requests to servers that are in progress."""
        self._publishing: asyncio.Future[None] | None = None
        """The last measurement of the client's list of tools, in a thread."""
        self._bus, self._listener = _make_event_bus()

    @property
    def is_listening(self) -> bool:
        """Return True if the client can receive notifications outside of a call."""
        return bool(self.connections or self._listener._streams)

    @property
    def is_busy(self) -> bool:
        """Return True if closing the session would interrupt a call, a paused call or an event stream."""
        return bool(self.active_calls or len(self.paused_calls) or self._listener._streams)

    @property
    def is_gone(self) -> bool:
        """Return True if the client has probably exited: nothing connects it, and it was idle for a while."""
        is_idle = time.monotonic() - self.last_used > GONE_AFTER_S
        return is_idle and bool(self.protocol_session) and not (self.is_listening or self.is_busy)

    def release_servers(self) -> None:
        """Stop the server processes that only this client uses; the client's next call restarts them."""
        self._runtime.mcp.close_client(self.key)

    async def listen(
        self, context: RequestContext, params: mcp_types.SubscriptionsListenRequestParams
    ) -> mcp_types.SubscriptionsListenResult:
        """Serve a `subscriptions/listen` stream with the notifications for this client."""
        return await self._listener(context, params)

    async def publish(self, kind: str, uri: str) -> None:
        """Send a list change or resource update to the client's open streams that subscribe to it."""
        from mcp.shared import subscriptions

        events: dict[str, subscriptions.ServerEvent] = {
            "tools": subscriptions.ToolsListChanged(),
            "prompts": subscriptions.PromptsListChanged(),
            "resources": subscriptions.ResourcesListChanged(),
        }
        await self._bus.publish(events.get(kind) or subscriptions.ResourceUpdated(uri))

    async def list_tools(self) -> list[mcp_types.Tool]:
        """Return the tools that are currently listed for the client."""
        tools = await self._current_tools()
        self._list_digests["tools/list"] = _digest_list(tools)
        return tools

    async def _current_tools(self) -> list[mcp_types.Tool]:
        turn = await self._current_turn()
        return [
            to_protocol_tool(tool, self._runtime.mcp) for tool in turn.tools if not self._is_stand_in(tool)
        ]

    async def find_changed_lists(self, changes: Mapping[str, Collection[str]]) -> list[str]:
        """Return the kinds of lists (tools, resources, prompts) that changed since the client received them.

        `changes` maps kinds to the servers that reported a change. A change of a server's tools may change
        its resources and prompts too.
        """
        return [kind for kind in dict.fromkeys(LISTINGS.values()) if await self._has_changed(kind, changes)]

    async def _has_changed(self, kind: str, changes: Mapping[str, Collection[str]]) -> bool:
        methods = [method for method, its_kind in LISTINGS.items() if its_kind == kind]
        requested = [method for method in methods if method in self._list_digests]
        if not requested and not any(map(self.can_use_server, changes.get(kind, ()))):
            return False  # the client has not requested the list, and may use none of these servers
        if kind not in changes and "tools" not in changes:
            return False
        # A list that was never requested cannot be compared; only tools are cheap enough to list now.
        compared = requested or (["tools/list"] if kind == "tools" else [])
        before = {method: self._list_digests.get(method) for method in compared}
        now = {method: _digest_list(await self._list_cached(method)) for method in compared}
        self._list_digests.update(now)
        return before != now or not compared

    async def _list_cached(self, method: str) -> Sequence[BaseModel | tuple[str, BaseModel]]:
        """Return a list for the client from cached data, without starting servers."""
        if method == "tools/list":
            return await self._current_tools()
        tool = _GET_PROMPT if method == "prompts/list" else _READ_RESOURCE
        return await self._collect_items(self._servers_with(tool), method, start=False)

    async def call(
        self,
        name: str,
        args: Json | None,
        *,
        approver: Approver | None = None,
        relay: CallRelay | None = None,
    ) -> ToolResult:
        """Call a tool for the client, by its name in the tool list or as `mcp_server_tool`."""
        await self.session.wait_for_tool(name, args)
        await self._current_turn()
        result = await self.session.call(
            self._resolve_tool_name(name), args, approver=approver, surface=relay
        )
        self._log_call(result)
        if not result.ok and result.name not in self.session.granted():
            snapshot = self._runtime.registry.snapshot()
            self._note_refusal(result.name, lambda: snapshot.named(result.name))
        return result

    def _log_call(self, result: ToolResult) -> None:
        call = (self.display_name, escape_unprintable(result.name), result.milliseconds)
        if result.ok:
            log.info("client %s: the call of %s succeeded after %.0f ms", *call, extra={NO_SECRETS: True})
        else:
            problem = escape_unprintable(shorten(result.error or "", MAX_LOGGED_ERROR_CHARS))
            log.info("client %s: the call of %s failed after %.0f ms: %s", *call, problem)

    def _resolve_tool_name(self, name: str) -> str:
        """Return the name in the tool list for a tool that may be called by its long name `mcp_server_tool`.

        Looks only at granted tools: the response must not reveal whether another tool exists.
        """
        plain = name.removeprefix("mcp_")
        if plain == name or plain not in (granted := self.session.granted()):
            return name
        candidates = self._runtime.registry.snapshot().named(name)
        return name if any(tool.name in granted for tool in candidates) else plain

    async def list_resources(self, method: str) -> list[tuple[str, BaseModel]]:
        """Return the resources or resource templates that the client may read, with their servers' names."""
        return await self._list_items(self._servers_with(_READ_RESOURCE), method)

    async def list_prompts(self) -> list[tuple[str, BaseModel]]:
        """Return the prompts that the client may use, with their servers' names."""
        return await self._list_items(self._servers_with(_GET_PROMPT), "prompts/list")

    async def _list_items(self, servers: Sequence[str], method: str) -> list[tuple[str, BaseModel]]:
        items = await self._collect_items(servers, method)
        self._list_digests[method] = _digest_list(items)
        return items

    async def read_resource(
        self, uri: str, *, approver: Approver | None = None, relay: CallRelay | None = None
    ) -> ToolResult:
        """Read a resource by the prefixed URI that the client uses."""
        server, own = self.resolve_resource(uri)
        tool = self._stand_in_names(_READ_RESOURCE)[server]
        return await self.session.call(tool, {"uri": own}, approver=approver, surface=relay)

    async def get_prompt(
        self, name: str, args: Json, *, approver: Approver | None = None, relay: CallRelay | None = None
    ) -> ToolResult:
        """Get a prompt by the prefixed name that the client uses."""
        server, own = self.resolve_prompt(name)
        arguments = {"name": own, "arguments": args} if args else {"name": own}
        tool = self._stand_in_names(_GET_PROMPT)[server]
        return await self.session.call(tool, arguments, approver=approver, surface=relay)

    def resolve_resource(self, uri: str) -> tuple[str, str]:
        """Return the server of a prefixed resource URI, and the URI without prefix. Raises OutOfScope."""
        return self._first_allowed(self._prefixes.resolve_uri(uri), _READ_RESOURCE, uri)

    def is_on_shared_server(self, uri: str) -> bool:
        """Return True if other clients use the same process of the resource's server."""
        return self._runtime.mcp.is_shared(self.resolve_resource(uri)[0])

    def resolve_prompt(self, name: str) -> tuple[str, str]:
        """Return the server of a prefixed prompt name, and the name without prefix. Raises OutOfScope."""
        return self._first_allowed(self._prefixes.resolve_prompt(name), _GET_PROMPT, name)

    def _first_allowed(
        self, candidates: Iterable[tuple[str, str]], tool: str, requested: str
    ) -> tuple[str, str]:
        """Return the first candidate server that this client may use. Raises OutOfScope if there is none."""
        allowed, refused = set(self._servers_with(tool)), []
        for server, own in candidates:
            if server in allowed:
                return server, own
            refused.append(server)
        self._note_refused_item(requested, refused, tool)
        raise OutOfScope(shorten(requested, 200), hint="List what there is.")

    def _note_refused_item(self, requested: str, servers: Collection[str], tool: str) -> None:
        """Log why the client may not use a resource or prompt that exists on these servers."""
        snapshot = self._runtime.registry.snapshot()
        self._note_refusal(
            requested,
            lambda: [
                each for each in snapshot.values() if each.own_name == tool and each.source.name in servers
            ],
        )

    def _note_refusal(self, requested: str, find_tools: Callable[[], Iterable[Tool]]) -> None:
        granted = self.session.granted()
        self._refusals.note(Refusal(self.client, self.display_name, requested, granted, find_tools))

    def find_readable(self, uris: Iterable[str]) -> dict[str, str]:
        """Return the server of each distinct resource URI that this client may read."""
        allowed = set(self._servers_with(_READ_RESOURCE))
        owners = {
            uri: next((server for server, _ in self._prefixes.resolve_uri(uri) if server in allowed), None)
            for uri in uris
        }
        return {uri: server for uri, server in owners.items() if server is not None}

    def can_use_server(self, server: str) -> bool:
        """Return True if this client may use at least one tool of the server."""
        granted = self.session.granted()
        snapshot = self._runtime.registry.snapshot()
        return any(snapshot[name].source.name == server for name in granted if name in snapshot)

    def close(self) -> None:
        """Cancel paused calls, end notification streams, and stop the servers that only this client uses."""
        self.paused_calls.close()
        self._listener.close()
        self._runtime.mcp.close_client(self.key)
        self.session.close()

    async def _current_turn(self) -> Turn:
        """Return the tools selected for this client; select again if tools or settings have changed."""
        self.last_used = time.monotonic()
        state = self._tools_state()
        if self._turn is None or self._turn[0] != state:
            self._turn = state, await self.session.prepare()
            if self._runtime.events.has_listeners_for(ToolsSelected):
                # In a thread: to measure thousands of tools takes a moment, and no client has to wait for it.
                turn = self._turn[1]
                loop = asyncio.get_running_loop()
                self._publishing = loop.run_in_executor(None, self._publish_selection, turn)
                self._publishing.add_done_callback(_log_publish_error)
        return self._turn[1]

    def _publish_selection(self, turn: Turn) -> None:
        """Publish the token counts of the client's tool list and of the tools that are not listed."""
        tokens = self._weights.estimate(turn.tools)
        self._runtime.events.publish(
            ToolsSelected(
                session_id=self.session.id,
                turn=0,
                shown=tuple(tool.name for tool in turn.tools if tool.name not in BRIDGE_NAMES),
                available=len(turn.offered),
                tool_search=turn.searchable,
                tokens=tokens,
                tokens_saved=max(0, self._weights.estimate(turn.offered) - tokens),
                why=turn.why,
            )
        )

    def _tools_state(self) -> _ToolsState:
        """Return a value that changes whenever the tools, the settings or the client's permissions change."""
        generation = self._runtime.registry.snapshot().generation
        return generation, self._runtime.settings_version, self.session.current_limit()

    def _is_stand_in(self, tool: Tool) -> bool:
        """Return True if Toolfold generated this tool for access to a server's resources or prompts."""
        if tool.source.kind != MCP_SOURCE or tool.own_name not in RESOURCE_AND_PROMPT_TOOLS:
            return False
        return self._runtime.mcp.find_tool(tool.source.name, tool.own_name) is None

    def _servers_with(self, tool: str) -> list[str]:
        """Return the servers for which this client may use the generated tool `tool`."""
        return list(self._stand_in_names(tool))

    def _stand_in_names(self, own_name: str) -> dict[str, str]:
        """Map each server to the name of the tool generated for its resources or prompts."""
        tools = (tool for tool in self._granted_stand_ins() if tool.own_name == own_name)
        return {tool.source.name: tool.name for tool in tools if self._is_stand_in(tool)}

    def _granted_stand_ins(self) -> list[Tool]:
        """Return the tools generated for resources or prompts that this client may use."""
        state = self._tools_state()
        if self._stand_in_tools is None or self._stand_in_tools[0] != state:
            snapshot, granted = self._runtime.registry.snapshot(), self.session.granted()
            tools = (snapshot[name] for name in sorted(granted) if name in snapshot)
            stand_ins = [tool for tool in tools if tool.own_name in RESOURCE_AND_PROMPT_TOOLS]
            self._stand_in_tools = state, stand_ins
        return self._stand_in_tools[1]

    async def request_server(self, server: str, method: str, **params: object) -> Any:
        """Send a request to an MCP server.

        If each client has its own process of the server, the request goes to this client's process.
        """
        caller = Caller(self.client.name, user_id=self.client.user_id)
        context = CallContext(session_id=self.session.id, client=self.key, caller=caller)
        return await self._runtime.mcp.send_request(server, method, context=context, **params)

    async def _collect_items(
        self, servers: Sequence[str], method: str, *, start: bool = True
    ) -> list[tuple[str, BaseModel]]:
        """List resources or prompts of all servers concurrently; skip servers that time out."""
        list_items = self._runtime.mcp.get_items
        lists = await asyncio.gather(
            *(list_items(each, method, client=self.key, start=start) for each in servers)
        )
        return [(server, item) for server, items in zip(servers, lists, strict=True) for item in items]


def _digest_list(items: Iterable[BaseModel | tuple[str, BaseModel]]) -> str:
    """Return a hash of a list of tools, resources or prompts, to detect changes."""
    digest = hashlib.sha256()
    for item in items:
        server, model = item if isinstance(item, tuple) else ("", item)
        digest.update(f"{server} {model.model_dump_json(by_alias=True)}\n".encode())
    return digest.hexdigest()


def _log_publish_error(publishing: asyncio.Future[None]) -> None:
    """Log why the size of a client's tool list could not be published."""
    if not publishing.cancelled() and (error := publishing.exception()):
        log.warning("the tokens of a client's tool list could not be counted: %s", error, exc_info=error)


def _make_event_bus() -> tuple[InMemorySubscriptionBus, ListenHandler]:
    from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler

    bus = InMemorySubscriptionBus()
    return bus, ListenHandler(bus, max_subscriptions=MAX_STREAMS)
