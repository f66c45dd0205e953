"""One client at the gateway: its session, what it is shown, and what it has open.

A seat works through a session like any other surface, so scope, hooks, approval and quarantine hold here as
everywhere. It shows what the session's turn shows and begins a new turn when the tools have changed. Knows
the protocol's types, and no transport.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolfold.errors import OutOfScope, shorten
from toolfold.gateway.addresses import Addresses
from toolfold.gateway.answers import shown_tool
from toolfold.gateway.asking import WaitingRoom
from toolfold.gateway.listing_record import LISTINGS
from toolfold.gateway.tokens import Client
from toolfold.model import MCP_SOURCE, CallContext, Json, Tool, ToolResult
from toolfold.registry import Snapshot
from toolfold.session import Session
from toolfold.sources.mcp.courier import Courier

if TYPE_CHECKING:
    import mcp_types

    from toolfold.runtime import Runtime

MOST_STREAMS = 32
EXTRAS = frozenset({"list_resources", "read_resource", "list_prompts", "get_prompt"})

_RESOURCES, _PROMPTS = "read_resource", "get_prompt"


class ClientSession:
    """What one client has at the gateway."""

    def __init__(
        self, key: str, client: Client, runtime: Runtime, session: Session, addresses: Addresses
    ) -> None:
        self.key, self.client, self.session = key, client, session
        self.protocol_session = ""
        """The id of the session of the protocol; empty where there are none."""
        self.display_name = client.name
        """The name of its token; over stdio, the name that the client gives itself."""
        self._runtime, self._addresses = runtime, addresses
        self._turn: Any = None
        self._extra_tools: tuple[Snapshot, list[Tool]] | None = None
        self.waiting = WaitingRoom()
        self.followed: Counter[str] = Counter()
        """The addresses of resources, and by how many of its requests and streams each is followed."""
        self._given: dict[str, str] = {}
        """Method → a digest of the list that the client was last given or told of."""
        self.level = "debug"
        self.connections: list[Any] = []
        """Where it can be told something outside of a call."""
        self.used = time.monotonic()
        self.calls = 0
        """Calls and other requests to servers that are in progress."""
        self._bus, self._listener = _listening()

    @property
    def is_listening(self) -> bool:
        """Whether anybody is there who can be told something outside of a call."""
        return bool(self.connections or self._listener._streams)

    @property
    def is_busy(self) -> bool:
        """Whether something would be cut short if it were closed: a call, a question or a stream."""
        return bool(self.calls or len(self.waiting) or self._listener._streams)

    def release_servers(self) -> None:
        """End the servers that only this client uses; they start again with its next call."""
        self._runtime.mcp.leave(self.key)

    async def listen(self, context: Any, params: Any) -> Any:
        """Serve a stream of news, of this client's alone."""
        return await self._listener(context, params)

    async def publish(self, kind: str, uri: str) -> None:
        """Put news on the streams. What was not asked for there is left out by them."""
        from mcp.shared import subscriptions

        events = {
            "tools": subscriptions.ToolsListChanged,
            "prompts": subscriptions.PromptsListChanged,
            "resources": subscriptions.ResourcesListChanged,
        }
        await self._bus.publish(events[kind]() if kind in events else subscriptions.ResourceUpdated(uri))

    async def tools(self) -> list[mcp_types.Tool]:
        """What the client is shown now."""
        tools = await self._tools()
        self._given["tools/list"] = _digest(tools)
        return tools

    async def _tools(self) -> list[mcp_types.Tool]:
        turn = await self._current()
        return [shown_tool(tool, self._runtime.mcp) for tool in turn.tools if not self._is_extra(tool)]

    async def changed_lists(self, news: Mapping[str, Collection[str]]) -> list[str]:
        """Return the kinds of lists that are not what the client was last given or told of.

        `news` has the servers that speak of a change, by kind. With its tools, all of a server may change.
        """
        return [kind for kind in dict.fromkeys(LISTINGS.values()) if await self._has_changed(kind, news)]

    async def _has_changed(self, kind: str, news: Mapping[str, Collection[str]]) -> bool:
        methods = [each for each, its_kind in LISTINGS.items() if its_kind == kind]
        given = [each for each in methods if each in self._given]
        if not given and not any(map(self.may_use, news.get(kind, ()))):
            return False  # it has not asked for them, and none of these servers is one of its own
        if kind not in news and "tools" not in news:
            return False
        compared = given or (["tools/list"] if kind == "tools" else [])  # nothing else tells of no change
        before = {each: self._given.get(each) for each in compared}
        now = {each: _digest(await self._listed_now(each)) for each in compared}
        self._given.update(now)
        return before != now or not compared

    async def _listed_now(self, method: str) -> Sequence[Any]:
        """Return what the client would be given, without starting a server for it."""
        if method == "tools/list":
            return await self._tools()
        extra = _PROMPTS if method == "prompts/list" else _RESOURCES
        return await self._gathered(self._offering(extra), method, start=False)

    async def call(
        self, name: str, args: Json | None, *, approver: Any = None, courier: Courier | None = None
    ) -> ToolResult:
        """Call a tool by the name it is shown under, or by any other that means it."""
        await self._current()
        return await self.session.call(self._here(name), args, approver=approver, surface=courier)

    def _here(self, name: str) -> str:
        """The name of a tool that is called as in a runtime without a gateway.

        Looks at what is granted alone: whether there is another must show in no answer.
        """
        plain = name.removeprefix("mcp_")
        if plain == name or plain not in (granted := self.session.granted()):
            return name
        return name if any(tool.name in granted for tool in self._named(name)) else plain

    def _named(self, name: str) -> Sequence[Tool]:
        return self._runtime.registry.snapshot().named(name)

    async def resources(self, method: str) -> list[tuple[str, Any]]:
        """The resources, or templates of them, of every server that may be read from, with its name."""
        return await self._given_items(self._offering(_RESOURCES), method)

    async def prompts(self) -> list[tuple[str, Any]]:
        """The prompts of every server that may be asked for them, with its name."""
        return await self._given_items(self._offering(_PROMPTS), "prompts/list")

    async def _given_items(self, servers: Sequence[str], method: str) -> list[tuple[str, Any]]:
        items = await self._gathered(servers, method)
        self._given[method] = _digest(items)
        return items

    async def read(self, uri: str, **how: Any) -> ToolResult:
        """Read a resource by the address the client knows."""
        server, own = self.owner(self._addresses.own_resource(uri), _RESOURCES, uri)
        return await self.session.call(self._extras(_RESOURCES)[server], {"uri": own}, **how)

    async def prompt(self, name: str, args: Json, **how: Any) -> ToolResult:
        """Get a prompt by the name the client knows."""
        server, own = self.owner(self._addresses.own_prompt(name), _PROMPTS, name)
        given = {"name": own, "arguments": args} if args else {"name": own}
        return await self.session.call(self._extras(_PROMPTS)[server], given, **how)

    def resource_owner(self, uri: str) -> tuple[str, str]:
        """The server of a resource and its own address for it."""
        return self.owner(self._addresses.own_resource(uri), _RESOURCES, uri)

    def shares_owner(self, uri: str) -> bool:
        """Whether others use the same server for it."""
        return self._runtime.mcp.is_shared(self.resource_owner(uri)[0])

    def prompt_owner(self, name: str) -> tuple[str, str]:
        """The server of a prompt and its own name for it."""
        return self.owner(self._addresses.own_prompt(name), _PROMPTS, name)

    def owner(self, candidates: Iterable[tuple[str, str]], extra: str, wanted: str) -> tuple[str, str]:
        """The first of them that this client may use. Raises OutOfScope, whether or not it exists."""
        allowed = set(self._offering(extra))
        for server, own in candidates:
            if server in allowed:
                return server, own
        raise OutOfScope(shorten(wanted, 200), hint="List what there is.")

    def readable(self, uris: Iterable[str]) -> dict[str, str]:
        """Those of the resources that this client may read, each once, with the server."""
        allowed = set(self._offering(_RESOURCES))
        owners = {
            uri: next((server for server, _ in self._addresses.own_resource(uri) if server in allowed), None)
            for uri in uris
        }
        return {uri: server for uri, server in owners.items() if server is not None}

    def may_use(self, server: str) -> bool:
        """Whether anything of the server is granted to this client."""
        granted = self.session.granted()
        snapshot = self._runtime.registry.snapshot()
        return any(snapshot[name].source.name == server for name in granted if name in snapshot)

    def close(self) -> None:
        """The client is gone: so is what waited for it and what it alone used."""
        self.waiting.close()
        self._listener.close()
        self._runtime.mcp.leave(self.key)

    async def _current(self) -> Any:
        """The turn, begun anew when the tools are others than those it was begun with."""
        self.used = time.monotonic()
        snapshot = self._runtime.registry.snapshot()
        if self._turn is None or self._turn[0] is not snapshot:
            self._turn = snapshot, await self.session.prepare()
        return self._turn[1]

    def _is_extra(self, tool: Tool) -> bool:
        """Clients have requests of their own for resources and prompts."""
        if tool.source.kind != MCP_SOURCE or tool.own_name not in EXTRAS:
            return False
        return self._runtime.mcp.offer(tool.source.name, tool.own_name) is None

    def _offering(self, extra: str) -> list[str]:
        """The servers of which this client was granted the tool that reads resources or prompts."""
        return list(self._extras(extra))

    def _extras(self, extra: str) -> dict[str, str]:
        """Server → the name of that tool. By its source: two servers can spell one long name."""
        tools = (tool for tool in self._granted_extras() if tool.own_name == extra)
        return {tool.source.name: tool.name for tool in tools if self._is_extra(tool)}

    def _granted_extras(self) -> list[Tool]:
        """What may be one, of all that is granted: looked for once, as there may be thousands of tools."""
        snapshot = self._runtime.registry.snapshot()
        if self._extra_tools is None or self._extra_tools[0] is not snapshot:
            granted = self.session.granted()
            tools = (snapshot[name] for name in sorted(granted) if name in snapshot)
            self._extra_tools = snapshot, [tool for tool in tools if tool.own_name in EXTRAS]
        return self._extra_tools[1]

    async def ask(self, server: str, method: str, **params: Any) -> Any:
        """Ask a server something: this client's own, where each has one."""
        context = CallContext(session_id=self.session.id, client=self.key)
        return await self._runtime.mcp.ask(server, method, context=context, **params)

    async def _gathered(
        self, servers: Sequence[str], method: str, *, start: bool = True
    ) -> list[tuple[str, Any]]:
        """All servers at once, each within its time: one that hangs is left out."""
        known = self._runtime.mcp.items
        lists = await asyncio.gather(*(known(each, method, client=self.key, start=start) for each in servers))
        return [(server, item) for server, items in zip(servers, lists, strict=True) for item in items]


def _digest(items: Iterable[Any]) -> str:
    """Return a digest of a list: of models, each alone or with the name of its server."""
    digest = hashlib.sha256()
    for item in items:
        server, model = item if isinstance(item, tuple) else ("", item)
        digest.update(f"{server} {model.model_dump_json(by_alias=True)}\n".encode())
    return digest.hexdigest()


def _listening() -> tuple[Any, Any]:
    from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler

    bus = InMemorySubscriptionBus()
    return bus, ListenHandler(bus, max_subscriptions=MOST_STREAMS)
