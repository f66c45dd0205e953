"""A session: the tools, turns and calls of one conversation.

A session can see and call only what it was granted; a session that it delegates to can do at most the same.
Agent loops, gateways and command lines all use this class.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from toolfold.config import Config
from toolfold.core.availability import Availability
from toolfold.core.errors import CallError
from toolfold.core.scope import Scope, Toolsets
from toolfold.core.types import (
    AgentServices,
    Approver,
    CallContext,
    Caller,
    CallOrigin,
    Definition,
    GrantLimit,
    Json,
    Tool,
    ToolCall,
    ToolResult,
)
from toolfold.models import DialectName, get_dialect
from toolfold.models.model_table import find_limits
from toolfold.runtime.dispatch import Dispatch
from toolfold.selection.turn import (
    Bridge,
    Conversation,
    Disclosure,
    Grant,
    GrantCache,
    Selector,
    Turn,
    begin_turn,
    plan_turn,
    unwrap,
)
from toolfold.selection.turn.placement import Request
from toolfold.selection.turn.request_builder import RequestBuilder, RequestPolicy

Message: TypeAlias = str | Sequence[Mapping[str, Any]]
"""The user's message, or the conversation so far in any provider's format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDeps:
    """Components shared by all sessions of a runtime."""

    config: Config
    availability: Availability
    dispatch: Dispatch
    bridge: Bridge
    disclosure: Disclosure
    selector: Selector
    requests: RequestPolicy
    toolsets: Callable[[], Toolsets]
    """Function that returns the current toolsets."""
    scope: Scope = field(default_factory=Scope)
    """What the configuration allows; the scope of every session is derived from it."""
    latest: Callable[[], SessionDeps] | None = None
    """Function that returns the components for the current settings, which may have changed since."""
    awaiting: Callable[[], Mapping[str, frozenset[str]]] = dict
    """Function that returns, by toolset, the tools that a person must accept before they can be used."""
    explain_missing: Callable[[str], Mapping[str, str]] = lambda _name: {}
    """Function that returns, by toolset, why tools are not known yet that could have a name, or any name."""
    wait_for_tool: Callable[[str], Awaitable[None]] | None = None
    """Function that waits for servers that are starting and could have a tool of this name."""
    grants: GrantCache = field(default_factory=GrantCache)
    release: Callable[[str], None] = lambda _session_id: None
    """Function that closes what tools have opened for a session, such as browser pages."""


@dataclass(frozen=True, slots=True)
class SessionLimit:
    """Limit on the tools that a session's client may use; it can change while the session is open."""

    find: Callable[[], GrantLimit]
    """Function that returns the limit that applies now."""
    current: GrantLimit
    root: Scope
    """The scope that the configuration allows."""
    scope: Scope
    """The scope `root`, limited by `current`."""

    @classmethod
    def open(cls, find: Callable[[], GrantLimit], root: Scope) -> SessionLimit:
        """Create the limit on a client's tools, within the scope that the configuration allows."""
        current = find()
        return cls(find, current, root, root.narrow(current.enabled, current.disabled))

    def follow(self, root: Scope, derived: Scope) -> tuple[SessionLimit, Scope]:
        """Return the client's current limit, and the scope `derived` adapted to it."""
        current = self.find()
        if root is self.root and current == self.current:
            return self, derived
        changed = SessionLimit(self.find, current, root, root.narrow(current.enabled, current.disabled))
        return changed, derived.rebase(self.scope, changed.scope)


class Session:
    """A conversation and its tools. Open a session with `runtime.session(…)`."""

    def __init__(
        self,
        deps: SessionDeps,
        scope: Scope,
        *,
        id: str | None = None,  # noqa: A002  (the name callers expect)
        agent: AgentServices | None = None,
        approver: Approver | None = None,
        context_tokens: int | None = None,
        client: str = "",
        caller: Caller | None = None,
        has_user: bool = True,
        limit: SessionLimit | None = None,
    ) -> None:
        """Open a session; `has_user` is False if a model writes its messages, as in a delegated session.

        `limit` must be the limit from whose scope `scope` was derived.
        """
        if context_tokens is not None and context_tokens <= 0:
            raise ValueError(f"context_tokens must be positive, not {context_tokens}")
        self.id = id or secrets.token_hex(8)
        self._context_tokens = context_tokens
        self._scope = scope
        self.agent = agent
        self._deps, self._deps_lock = deps, threading.Lock()
        self._approver = approver
        self._client, self._caller = client, caller or Caller()
        self._has_user, self._limit = has_user, limit
        self._dispatch = _with_approver(deps.dispatch, approver)
        self._turn: Turn | None = None
        self._requests = RequestBuilder(deps.requests)

    @property
    def scope(self) -> Scope:
        """Return the scope of this session, which changes only with the settings and client permissions."""
        return self._scope

    def _follow_settings(self) -> None:
        """Switch to the components for the current settings if the settings have changed."""
        with self._deps_lock:
            latest = self._deps.latest() if self._deps.latest else self._deps
            if self._limit is not None:
                self._limit, self._scope = self._limit.follow(latest.scope, self._scope)
            elif latest is not self._deps:
                self._scope = self._scope.rebase(self._deps.scope, latest.scope)
            if latest is not self._deps:
                self._deps, self._dispatch = latest, _with_approver(latest.dispatch, self._approver)
                self._requests.use_policy(latest.requests)

    def current_limit(self) -> GrantLimit | None:
        """Return the current toolset limits of this session's client; None if only the settings apply."""
        return None if self._limit is None else self._limit.find()

    def granted(self) -> frozenset[str]:
        """Return the names of all existing tools that this session may call."""
        self._follow_settings()
        return self.scope.granted(self._deps.toolsets())

    def assemble(self, message: Message = "", *, model: str = "") -> Turn:
        """Begin a turn: decide which tools the model sees for this message, and which it may call.

        A whole conversation, in any provider's format, gives better results than its last message alone.
        The `model` decides the context window as in `request`.
        """
        self._turn = self._assemble_turn(self._current_grant(), message, model)
        return self._turn

    async def prepare(self, message: Message = "") -> Turn:
        """Begin a turn like `assemble`, without blocking the event loop during availability checks."""
        return await self._dispatch.loops.run_in_thread(lambda: self.assemble(message))

    def definitions(self, message: Message = "") -> list[Definition]:
        """Begin a turn and return its tools array."""
        return self.assemble(message).definitions()

    def request(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        model: str = "",
        form: DialectName = "openai",
        native: bool | None = None,
        cache: bool = False,
    ) -> Request:
        """Begin a turn and build the model request for a message history in a provider's format.

        The history stays the caller's; what was added beside its messages before is added again. The
        `model` decides the context window if the session has none of its own and the shipped table knows the
        model. Raises ValueError if `native` is requested and the form or the model does not support it.
        """
        dialect = get_dialect(form)
        history = self._requests.read(messages)
        grant = self._current_grant()
        turn = self._assemble_turn(grant, history.plain_messages(), model)
        request = self._requests.build(
            grant, turn, history, dialect=dialect, model=model, native=native, cache=cache
        )
        self._turn = request.turn
        return request

    def set_context_tokens(self, tokens: int | None) -> None:
        """Set the model's context window, which decides when tools are deferred."""
        self._context_tokens = tokens

    def export_state(self) -> Json:
        """Return the session state as JSON data, from which a later session can restore its prompt prefix."""
        return self._requests.export_state()

    def restore_state(self, state: Json) -> None:
        """Restore exported state, so that the next request begins with the same prompt prefix."""
        self._requests.restore_state(state)

    async def prepare_request(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Request:
        """Build a model request like `request`, without blocking the event loop during tool selection."""
        return await self._dispatch.loops.run_in_thread(lambda: self.request(messages, **options))

    async def call(
        self,
        name: str,
        arguments: Json | str | None = None,
        *,
        call_id: str | None = None,
        task_id: str | None = None,
        user_task: str | None = None,
        approver: Approver | None = None,
        surface: CallOrigin | None = None,
    ) -> ToolResult:
        """Run one tool call, in the current turn if there is one. Errors are part of the result.

        `approver` replaces the session's own for this call only.
        """
        call = ToolCall(name, arguments, call_id) if call_id else ToolCall(name, arguments)
        context = replace(self._call_context(), task_id=task_id, user_task=user_task, surface=surface)
        turn = self._turn
        if turn is None:
            turn = await self._dispatch.loops.run_in_thread(lambda: self._single_call_turn(call))
        else:
            turn = await self._recheck_failing(turn, [call])
        return await _with_approver(self._dispatch, approver)(turn, call, context)

    async def wait_for_tool(self, name: str, arguments: Json | str | None = None) -> None:
        """Wait for a starting server that could have the called tool; the next turn has its tools."""
        called, wait = _real_name(ToolCall(name, arguments)), self._deps.wait_for_tool
        if wait is None or self._current_grant().snapshot.named(called):
            return
        if self._explain_missing(called):
            await wait(called)

    async def call_all(
        self, calls: Sequence[ToolCall], *, on_result: Callable[[ToolResult], None] | None = None
    ) -> list[ToolResult]:
        """Run all calls of one model reply and return the results in the order of the calls.

        `on_result` receives each result as soon as it is there.
        """
        turn = self._turn
        if turn is None:
            turn = await self._dispatch.loops.run_in_thread(lambda: self._full_turn(self._current_grant()))
        else:
            turn = await self._recheck_failing(turn, calls)
        return await self._dispatch.call_all(turn, calls, self._call_context(), on_result=on_result)

    def note_client_calls(self, names: Iterable[str]) -> None:
        """Learn from successful calls of tools that the client ran itself in the current turn."""
        usage, turn = self._dispatch.usage, self._turn
        if usage is None or turn is None or not usage.enabled:
            return
        for name in names:
            usage.note_success(turn, name, self.id, self._caller.learner)

    def call_sync(self, name: str, arguments: Json | str | None = None, **options: Any) -> ToolResult:
        """Run one tool call from synchronous code, in any thread, even if an event loop is running."""
        return self._dispatch.loops.run(self.call(name, arguments, **options))

    def call_all_sync(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Run all calls of one model reply from synchronous code, and return the results in call order."""
        return self._dispatch.loops.run(self.call_all(calls))

    def delegate(
        self,
        enabled_toolsets: Iterable[str] | None = None,
        disabled_toolsets: Iterable[str] = (),
        *,
        agent: AgentServices | None = None,
        context_tokens: int | None = None,
        id: str | None = None,  # noqa: A002 - the word callers expect
    ) -> Session:
        """Return a session with a subset of this session's tools and, by default, its context window.

        It acts for the same client, whose user is not asked about its calls.
        """
        self._follow_settings()
        scope = self.scope.delegated(self._deps.toolsets(), enabled_toolsets, disabled_toolsets)
        window = self._context_tokens if context_tokens is None else context_tokens
        return Session(
            self._deps,
            scope,
            id=id,
            agent=agent,
            approver=self._approver,
            context_tokens=window,
            client=self._client,
            caller=replace(self._caller, asks_user=False),
            has_user=False,
            limit=self._limit,
        )

    def close(self) -> None:
        """Close resources of tools in this session, such as browser pages. Later calls reopen them."""
        self._deps.release(self.id)

    def _current_grant(self) -> Grant:
        """Return the existing tools that this session may call."""
        self._follow_settings()
        offers = frozenset(self.agent.offers if self.agent else ())
        return self._deps.grants.get_grant(self._deps.toolsets(), self.scope, offers)

    def _assemble_turn(self, grant: Grant, message: Message, model: str = "") -> Turn:
        whole = self._full_turn(grant)
        conversation = Conversation.from_messages(message)
        self._note_message(whole, conversation)
        return plan_turn(
            grant,
            whole,
            conversation,
            disclosure=self._deps.disclosure,
            selector=self._deps.selector,
            context_tokens=self._find_context_tokens(model),
            client=self._caller.learner,
            is_incomplete=bool(self._explain_missing("")),
        )

    def _find_context_tokens(self, model: str) -> int | None:
        """Return the session's context window or, if unset, the window of the model in the model table."""
        if self._context_tokens is not None:
            return self._context_tokens
        limits = find_limits(model)
        return limits.context if limits else None

    async def _recheck_failing(self, turn: Turn, calls: Sequence[ToolCall]) -> Turn:
        """Repeat the failed availability checks of the tools about to be called."""
        if not turn.failing:
            return turn
        named = (tool for call in calls for tool in turn.snapshot.named(_real_name(call)))
        tools = list({tool.name: tool for tool in named if tool.name in turn.failing}.values())
        if not tools:
            return turn
        failures = await self._dispatch.loops.run_in_thread(
            lambda: self._deps.availability.find_failures(tools)
        )
        untouched = {name: why for name, why in turn.failing.items() if name not in {t.name for t in tools}}
        return replace(turn, failing={**untouched, **failures.failing, **failures.unavailable})

    def _full_turn(self, grant: Grant, checked: Sequence[Tool] | None = None) -> Turn:
        """Return a turn with a session's available tools, limited to the tools in `checked` if given."""
        checked_grant = grant if checked is None else replace(grant, tools=checked)
        grounds, direct = self._deps, self._deps.disclosure.always_shown(grant)
        return begin_turn(
            checked_grant,
            grounds.availability,
            grounds.bridge,
            awaiting=self._awaiting_names(),
            explain_missing=self._explain_missing,
            direct=direct,
        )

    def _awaiting_names(self) -> frozenset[str]:
        """Return the tools that the session could use after a person has accepted them."""
        toolsets = self._deps.toolsets()
        held = self._deps.awaiting().items()
        return frozenset[str]().union(*(names for each, names in held if self.scope.covers(toolsets, each)))

    def _explain_missing(self, name: str) -> str:
        """Return why a tool is not known yet that a granted server could have; empty if there is no reason.

        An empty name stands for any tool.
        """
        toolsets, reasons = self._deps.toolsets(), self._deps.explain_missing(name).items()
        return next((why for each, why in reasons if self.scope.covers(toolsets, each)), "")

    def _single_call_turn(self, call: ToolCall) -> Turn:
        """Return a turn for a call made before the first turn, checking only the called tool."""
        grant = self._current_grant()
        name = _real_name(call)
        if name in self._deps.bridge:
            return self._full_turn(grant)
        checked = [tool for tool in grant.snapshot.named(name) if tool.name in grant.names]
        return self._full_turn(grant, checked)

    def _call_context(self) -> CallContext:
        result_dir = self._dispatch.results.session_dir(self.id)
        return CallContext(
            session_id=self.id,
            agent=self.agent,
            readable=(result_dir,),
            client=self._client,
            caller=self._caller,
            grant_limits=self._scope.list_limits(),
        )

    def _note_message(self, turn: Turn, conversation: Conversation) -> None:
        """Record the user's latest message, which tool search learns if a tool call follows."""
        usage = self._dispatch.usage
        if usage is not None and self._has_user and conversation.user_texts:
            usage.note_message(self.id, self._caller.learner, conversation.user_texts[-1], turn)


def _real_name(call: ToolCall) -> str:
    """Return the name of the tool that a call runs, even through `tool_call`; empty for an invalid call."""
    try:
        return unwrap(call).name
    except CallError:
        return ""  # dispatch reports the error


def _with_approver(dispatch: Dispatch, approver: Approver | None) -> Dispatch:
    return (
        dispatch
        if approver is None
        else replace(dispatch, approval=dispatch.approval.with_approver(approver))
    )
