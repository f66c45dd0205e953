"""The runtime's own tools that the proxy adds to model requests and runs itself.

Which tools a client gets is the intersection of `proxy.toolsets` with what its token grants at the gateway. A
call goes through the session of the client, and so through scope, hooks and approval like every other.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from toolfold.gateway.server import open_session
from toolfold.gateway.tokens import GatewayClient
from toolfold.model import Caller, Json, Tool, ToolCall, ToolResult
from toolfold.providers.wire import ClientTool, Wire
from toolfold.runtime import Runtime
from toolfold.session import Session
from toolfold.turn.assembly import render_definitions

log = logging.getLogger(__name__)

MAX_CLIENT_SESSIONS = 256


@dataclass(frozen=True, slots=True)
class AddedTools:
    """The tools that are added to one request, and the session that runs them."""

    tools: tuple[ClientTool, ...]
    session: Session

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools)

    async def run(self, call: ToolCall) -> ToolResult:
        """Run a call of one of these tools through the one dispatch path."""
        result = await self.session.call(call.name, call.arguments, call_id=call.id)
        log.info("the proxy ran %s: %s", result.name, "ok" if result.ok else "failed")
        return result


class RuntimeTools:
    """Finds the tools that are added to a client's requests. Thread-safe."""

    def __init__(self, runtime: Runtime, toolsets: tuple[str, ...]) -> None:
        """Raises UnknownToolset if a toolset of the setting does not exist."""
        runtime.toolsets().require(toolsets)
        self._runtime, self._toolsets = runtime, toolsets
        self._offered = runtime.session(toolsets)
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, client: GatewayClient, wire: Wire, taken: Collection[str]) -> AddedTools:
        """Return the tools for a client's request, without those whose names the client itself uses."""
        session = self._open_session(client)
        allowed = session.granted() & self._offered.granted()
        offered = [tool for tool in session.assemble().offered if tool.name in allowed]
        chosen = sorted((tool for tool in offered if tool.name not in taken), key=lambda tool: tool.name)
        return AddedTools(tuple(_as_client_tool(tool, wire) for tool in chosen), session)

    def _open_session(self, client: GatewayClient) -> Session:
        with self._lock:
            session = self._sessions.pop(client.id, None)
            if session is None:
                session = self._build_session(client)
            self._sessions[client.id] = session
            old = [self._sessions.popitem(last=False)[1]] if len(self._sessions) > MAX_CLIENT_SESSIONS else []
        for each in old:
            each.close()
        return session

    def _build_session(self, client: GatewayClient) -> Session:
        known = self._runtime.toolsets()
        granted = client.toolsets and tuple(name for name in client.toolsets if known.knows(name))
        return open_session(self._runtime, granted, client=client.id, caller=Caller(client.name))

    def close(self) -> None:
        """Close what tools hold open for the clients."""
        with self._lock:
            sessions = [*self._sessions.values(), self._offered]
            self._sessions.clear()
        for each in sessions:
            each.close()


def _as_client_tool(tool: Tool, wire: Wire) -> ClientTool:
    (definition,) = render_definitions([tool])
    entry: Json = wire.dialect.render_tool(definition)
    function = definition["function"]
    return ClientTool(
        tool.name, function.get("description", ""), function.get("parameters") or {}, entry, is_added=True
    )
