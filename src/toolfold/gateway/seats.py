"""One client at the gateway: its session, what it is shown, and what it has open.

A seat works through a session like any other surface, so scope, hooks, approval and quarantine hold here as
everywhere. It shows what the session's turn shows and begins a new turn when the tools have changed. Knows
the protocol's types, and no transport.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from toolfold.errors import OutOfScope, shown
from toolfold.gateway.addresses import Addresses
from toolfold.gateway.answers import shown_tool
from toolfold.gateway.asking import WaitingRoom
from toolfold.gateway.tokens import Client
from toolfold.model import MCP_SOURCE, CallContext, Json, Tool, ToolResult
from toolfold.registry import Snapshot
from toolfold.session import Session
from toolfold.sources.mcp.courier import Courier
from toolfold.sources.mcp.faults import ServerFailed

if TYPE_CHECKING:
    import mcp_types

    from toolfold.runtime import Runtime

LIST_SECONDS = 10.0
MOST_PAGES = 20
MOST_LISTED = 5_000
LARGEST_ITEM = 50_000  # characters of JSON
LARGEST_LIST = 2_000_000
MOST_STREAMS = 32
EXTRAS = frozenset({"list_resources", "read_resource", "list_prompts", "get_prompt"})

_RESOURCES, _PROMPTS = "read_resource", "get_prompt"


class Seat:
    """What one client has at the gateway."""

    def __init__(
        self, key: str, client: Client, runtime: Runtime, session: Session, addresses: Addresses
    ) -> None:
        self.key, self.client, self.session = key, client, session
        self.display_name = client.name
        """The name of its token; over stdio, the name that the client gives itself."""
        self._runtime, self._addresses = runtime, addresses
        self._turn: Any = None
        self._extra_tools: tuple[Snapshot, list[Tool]] | None = None
        self.waiting = WaitingRoom()
        self.followed: Counter[str] = Counter()
        """The addresses of resources, and by how many of its requests and streams each is followed."""
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
        turn = await self._current()
        return [shown_tool(tool, self._runtime.mcp) for tool in turn.tools if not self._is_extra(tool)]

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

    async def resources(self, kind: str) -> list[tuple[str, Any]]:
        """The resources, or templates of them, of every server that may be read from, with its name."""
        attribute = "resources" if kind == "resources/list" else "resource_templates"
        return await self._gathered(self._offering(_RESOURCES), kind, attribute)

    async def prompts(self) -> list[tuple[str, Any]]:
        """The prompts of every server that may be asked for them, with its name."""
        return await self._gathered(self._offering(_PROMPTS), "prompts/list", "prompts")

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
        raise OutOfScope(shown(wanted, 200), hint="List what there is.")

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

    async def _gathered(self, servers: Sequence[str], method: str, attribute: str) -> list[tuple[str, Any]]:
        """All servers at once, each within its time: one that hangs is left out."""
        lists = await asyncio.gather(*(self._listed(each, method, attribute) for each in servers))
        return [(server, item) for server, items in zip(servers, lists, strict=True) for item in items]

    async def _listed(self, server: str, method: str, attribute: str) -> list[Any]:
        async def page(cursor: str | None) -> Any:
            given: Json = {"cursor": cursor} if cursor else {}
            return await self.ask(server, method, **given)

        try:
            async with asyncio.timeout(LIST_SECONDS):
                return await _all_pages(page, attribute)
        except (ServerFailed, TimeoutError):
            return []


def _listening() -> tuple[Any, Any]:
    from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler

    bus = InMemorySubscriptionBus()
    return bus, ListenHandler(bus, max_subscriptions=MOST_STREAMS)


async def _all_pages(page: Callable[[str | None], Awaitable[Any]], attribute: str) -> list[Any]:
    items: list[Any] = []
    cursor: str | None = None
    left = LARGEST_LIST
    for _ in range(MOST_PAGES):
        answer = await page(cursor)
        for item in getattr(answer, attribute):
            left -= (size := len(item.model_dump_json()))
            if left > 0 and size <= LARGEST_ITEM:
                items.append(item)
        cursor = answer.next_cursor
        if cursor is None or len(items) >= MOST_LISTED or left <= 0:
            break
    return items[:MOST_LISTED]
