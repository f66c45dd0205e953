"""Tools of the runtime that the proxy adds to model requests and runs itself.

Which tools a client gets is the intersection of `proxy.toolsets` with what its token grants at the gateway.
Each conversation has a session with this grant, so that calls, also those that a tool makes itself, pass
scope, hooks and approval like all others. Nobody is asked for approval during a model request.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

from toolfold.core.types import ApprovalRequest, Caller, Json, Tool, ToolCall, ToolResult
from toolfold.models.wire import ClientTool, Wire
from toolfold.runtime.runtime import Runtime
from toolfold.runtime.session import Session
from toolfold.safety.approval.prompting import QuestionUnanswered
from toolfold.selection.turn.assembly import render_definitions
from toolfold.serving.gateway.client_tokens import GatewayClient, TokenStore
from toolfold.serving.gateway.server import open_session

log = logging.getLogger(__name__)

MAX_SESSIONS = 256
MAX_CLIENT_SESSIONS = 64
"""Conversations of one client whose sessions are kept; programs without a token are one client."""
IDLE_TIMEOUT_S = 3_600.0
"""How long a session is kept after its last request or call."""


@dataclass(slots=True)
class ConversationSession:
    """The session that runs the tools added by the proxy in one conversation."""

    session: Session
    client: GatewayClient
    last_used: float = field(default_factory=time.monotonic)
    running: int = 0
    """Number of its calls in progress."""

    @contextmanager
    def mark_running(self) -> Iterator[Session]:
        """Keep the session open while a call is running."""
        self.running += 1
        try:
            yield self.session
        finally:
            self.running -= 1
            self.last_used = time.monotonic()


@dataclass(frozen=True, slots=True)
class AddedTools:
    """Tools added by the proxy to one request, and the session that runs them."""

    tools: tuple[ClientTool, ...]
    conversation: ConversationSession
    granted: frozenset[str]
    """All tools that the client could use when these were chosen."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools)

    async def run(self, call: ToolCall) -> ToolResult:
        """Run a call of one of the added tools in the session."""
        with self.conversation.mark_running() as session:
            if session.granted() != self.granted:  # the client's rules have changed since then
                await session.prepare()
            result = await session.call(call.name, call.arguments, call_id=call.id)
        log.info("the proxy ran %s: %s", result.name, "ok" if result.ok else "failed")
        return result


class RuntimeTools:
    """Finds the tools that the proxy adds to a client's requests. Thread-safe."""

    def __init__(
        self,
        runtime: Runtime,
        toolsets: tuple[str, ...],
        *,
        idle_timeout: float = IDLE_TIMEOUT_S,
        tokens: TokenStore | None = None,
    ) -> None:
        """Read the setting `proxy.toolsets`. Raises UnknownToolset if one of its toolsets does not exist."""
        self._tokens = tokens
        runtime.toolsets().require(toolsets)
        self._runtime, self._toolsets, self._idle_timeout = runtime, toolsets, idle_timeout
        self._sessions: OrderedDict[tuple[GatewayClient, bytes], ConversationSession] = OrderedDict()
        """By client and conversation, the latest used last."""
        self._lock = threading.Lock()

    def find(
        self, client: GatewayClient, wire: Wire, conversation: bytes, taken: Collection[str]
    ) -> AddedTools:
        """Return the tools to add to a client's request, except those whose names the client already uses."""
        opened = self._open_session(client, conversation)
        granted = opened.session.granted()
        offered = [tool for tool in opened.session.assemble().offered if tool.name in granted]
        chosen = sorted((tool for tool in offered if tool.name not in taken), key=lambda tool: tool.name)
        return AddedTools(tuple(_as_client_tool(tool, wire) for tool in chosen), opened, granted)

    def _open_session(self, client: GatewayClient, conversation: bytes) -> ConversationSession:
        key = client, conversation
        with self._lock:
            old = self._remove_idle(keep=key)
            opened = self._sessions.pop(key, None)
            if opened is None:
                old += self._make_room(client)
                opened = ConversationSession(self._build_session(client), client)
            opened.last_used = time.monotonic()
            self._sessions[key] = opened
        for each in old:
            each.session.close()
        return opened

    def _remove_idle(self, keep: tuple[GatewayClient, bytes]) -> list[ConversationSession]:
        """Remove and return the sessions idle for longer than the idle limit."""
        limit = time.monotonic() - self._idle_timeout
        idle = [key for key, each in self._sessions.items() if not each.running and each.last_used <= limit]
        return [self._sessions.pop(key) for key in idle if key != keep]

    def _make_room(self, client: GatewayClient) -> list[ConversationSession]:
        """Remove and return the sessions to close before another session is opened for a client.

        A client that has too many loses its own, not those of others. A session with a running call is
        removed only if there is no other.
        """
        own = [key for key, each in self._sessions.items() if each.client == client]
        if len(own) >= MAX_CLIENT_SESSIONS:
            candidates = own
        elif len(self._sessions) >= MAX_SESSIONS:
            candidates = list(self._sessions)
        else:
            return []
        oldest = next((key for key in candidates if not self._sessions[key].running), candidates[0])
        return [self._sessions.pop(oldest)]

    def _build_session(self, client: GatewayClient) -> Session:
        """Return a session with the tools of `proxy.toolsets` that the client's token permits."""
        known = self._runtime.toolsets()
        granted = client.toolsets and tuple(name for name in client.toolsets if known.knows(name))
        caller = Caller(
            client.name,
            may_use_keys=client.may_use_keys,
            user_id=client.user_id,
            since=client.created,
        )
        whole = open_session(
            self._runtime,
            granted,
            client=client.id,
            caller=caller,
            approver=_refuse_approval,
            find_limits=functools.partial(self._tokens.list_limits, client) if self._tokens else None,
        )
        return whole.delegate(name for name in self._toolsets if known.knows(name))

    def close(self) -> None:
        """Close the sessions of all clients and the resources of their tools."""
        with self._lock:
            sessions = list(self._sessions.values())
            self._sessions.clear()
        for each in sessions:
            each.session.close()


def _refuse_approval(_request: ApprovalRequest) -> NoReturn:
    """Refuse every call that needs approval, even if a person could be asked in a dashboard.

    That person would decide about a conversation of somebody else, which the dashboard does not show.
    """
    raise QuestionUnanswered("nobody can be asked for approval during a model request")


def _as_client_tool(tool: Tool, wire: Wire) -> ClientTool:
    (definition,) = render_definitions([tool])
    entry: Json = wire.dialect.render_tool(definition)
    function = definition["function"]
    return ClientTool(
        tool.name, function.get("description", ""), function.get("parameters") or {}, entry, is_added=True
    )
