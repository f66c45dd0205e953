"""Cache the tools of each client across requests, so that they are prepared and indexed once.

A catalog is the set of function tools of one tools array. Requests of the same conversation share a session
over it, which keeps their prompts alike. Clients run their tools themselves; nothing here can.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from toolfold.config.settings import ToolsSettings
from toolfold.core.errors import CallError
from toolfold.core.registry import Snapshot
from toolfold.core.scope import Scope
from toolfold.core.types import CallContext, Caller, Json, Source, Tool, freeze
from toolfold.models.wire import ClientTool
from toolfold.runtime.runtime import Runtime
from toolfold.runtime.session import Session, SessionDeps
from toolfold.selection.retrieval.tool_search import Retriever
from toolfold.selection.turn.token_counts import ToolTokenCounts
from toolfold.serving.proxy.conversations import hash_json

MAX_CATALOGS = 32
MAX_SESSIONS_PER_CATALOG = 256
_MCP_NAME_PREFIX = "mcp__"
"""How coding agents begin the names of tools of MCP servers: mcp__SERVER__TOOL."""
_CLIENT_TOOLSET = "client"


@dataclass(slots=True)
class Catalog:
    """The function tools in a client's requests, and a session for each conversation."""

    tools: Mapping[str, ClientTool]
    snapshot: Snapshot
    deps: SessionDeps
    weights: ToolTokenCounts
    retriever: Retriever
    own_tools: tuple[str, ...]
    """Tools that always stay in the request: the client's own beside those of MCP servers."""
    _sessions: OrderedDict[bytes, Session] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _counted: tuple[tuple[str, ...], int] = ((), 0)
    _total_tokens: int | None = None
    _entries: Mapping[str, Json] | None = None

    @property
    def entries(self) -> Mapping[str, Json]:
        """Return the client's original tool definitions by tool name."""
        if self._entries is None:
            self._entries = {name: tool.entry for name, tool in self.tools.items()}
        return self._entries

    @property
    def total_tokens(self) -> int:
        """Return the number of tokens in the definitions of all tools."""
        if self._total_tokens is None:
            self._total_tokens = sum(map(self.weights.count_tool, self.snapshot.values()))
        return self._total_tokens

    def open_session(self, prompts: bytes, caller: Caller) -> Session:
        """Return the session that builds a conversation's model requests, creating it if necessary."""
        with self._lock:
            session = self._sessions.pop(prompts, None)
            if session is None:
                session = Session(self.deps, Scope(), caller=caller)
            self._sessions[prompts] = session
            while len(self._sessions) > MAX_SESSIONS_PER_CATALOG:
                self._sessions.popitem(last=False)
            return session

    def count_tokens(self, names: Sequence[str]) -> int:
        """Return the number of tokens in the definitions of these tools."""
        key, counted = tuple(names), self._counted  # read once: another thread may replace it
        if counted[0] != key:
            counted = key, sum(self.weights.count_tool(self.snapshot[name]) for name in names)
            self._counted = counted
        return counted[1]


class Catalogs:
    """The tool catalogs of all clients, in order of last use. Thread-safe."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._catalogs: OrderedDict[tuple[bytes, int], Catalog] = OrderedDict()

    def find(self, tools: Sequence[ClientTool], checksum: bytes) -> Catalog:
        """Return the catalog for the tools with this checksum, building it if necessary."""
        key = checksum, self._runtime.settings_version
        with self._lock:
            catalog = self._catalogs.pop(key, None) or self._build(tools)
            self._catalogs[key] = catalog
            old = [self._catalogs.popitem(last=False)[1]] if len(self._catalogs) > MAX_CATALOGS else []
        for each in old:
            each.retriever.close()
        return catalog

    def is_prepared(self, checksum: bytes) -> bool:
        """Return True if these tools are indexed and the settings require no tool search per message."""
        is_searched = self._runtime.config.tools.selection != "eager"
        return not is_searched and (checksum, self._runtime.settings_version) in self._catalogs

    def close(self) -> None:
        """Stop indexing the tools of all catalogs."""
        with self._lock:
            catalogs = list(self._catalogs.values())
            self._catalogs.clear()
        for each in catalogs:
            each.retriever.close()

    def _build(self, tools: Sequence[ClientTool]) -> Catalog:
        settings = self._folding_settings()
        has_servers = any(tool.name.startswith(_MCP_NAME_PREFIX) for tool in tools)
        snapshot = Snapshot({tool.name: _as_tool(tool, has_servers) for tool in tools}, 0)
        retriever, weights = self._runtime.retriever.make_sibling(), ToolTokenCounts()
        deps = self._runtime.build_foreign_deps(snapshot, settings, retriever, weights)
        own = tuple(name for name, tool in snapshot.items() if tool.core)
        return Catalog({tool.name: tool for tool in tools}, snapshot, deps, weights, retriever, own)

    def _folding_settings(self) -> ToolsSettings:
        config = self._runtime.config
        if config.proxy.folding != "on":
            return config.tools
        search = config.tools.tool_search.model_copy(update={"enabled": "on"})
        return config.tools.model_copy(update={"tool_search": search})


def identify_prompts(conversation: bytes, model: str, native: bool) -> bytes:
    """Return the session key for a conversation's requests to one model.

    Requests to another model, or with the provider's native deferred tools, have another session.
    """
    return hash_json([conversation.hex(), model, native])


def hash_tools(tools: Sequence[ClientTool]) -> bytes:
    """Return a checksum that identifies a set of tools in later requests."""
    text = json.dumps([tool.entry for tool in tools])
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _as_tool(tool: ClientTool, has_servers: bool) -> Tool:
    """Convert a client's tool to a Toolfold tool that can be searched but not run.

    If some tools are from MCP servers, all others are the client's own, which it always needs.
    """
    is_served = tool.name.startswith(_MCP_NAME_PREFIX)
    server = tool.name.removeprefix(_MCP_NAME_PREFIX).partition("__")[0] if is_served else _CLIENT_TOOLSET
    return Tool(
        name=tool.name,
        toolset=_CLIENT_TOOLSET,
        description=tool.description,
        parameters=freeze(tool.parameters),
        handler=_refuse_run,
        core=has_servers and not is_served and not tool.is_added,
        source=Source("client", server),
    )


def _refuse_run(_args: Json, _context: CallContext) -> NoReturn:
    raise CallError("This tool is run by the client of the proxy, not by the proxy. Nothing was run.")
