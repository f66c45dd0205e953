"""Send a model only the tools that it needs now, and a search tool for the client's other tools.

The tools are chosen by a session over the client's own tools, with the rules of every other session. Tools
of other kinds, tools that `tool_choice` names and tools that the conversation has called stay in the request.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from toolfold.core.errors import CallError, error_message
from toolfold.core.events import Usage
from toolfold.core.naming import is_reserved
from toolfold.core.types import BRIDGE_CALL, BRIDGE_NAMES, Caller, Json, ToolCall, ToolResult
from toolfold.core.validation import Validation
from toolfold.models.wire import ClientTool, Wire
from toolfold.runtime.results import render
from toolfold.runtime.session import Session
from toolfold.selection.turn import Turn, unwrap
from toolfold.selection.turn.placement import Request
from toolfold.selection.turn.recent_messages import find_failed_ids, messages_since_user
from toolfold.serving.proxy.conversations import CACHE_MARK, Conversations
from toolfold.serving.proxy.reply_memory import ReplyMemory
from toolfold.serving.proxy.runtime_tools import AddedTools
from toolfold.serving.proxy.tool_arrays import MAX_ARRAYS
from toolfold.serving.proxy.tool_catalogs import Catalog, Catalogs, hash_tools, identify_prompts

log = logging.getLogger(__name__)

FindAdded = Callable[[bytes, set[str]], AddedTools]
"""Returns the tools to add to a request of a conversation whose own tools have these names."""


@dataclass(slots=True)
class FoldReport:
    """Report on a reduced tools array: tokens saved in a request, and tokens used by tool searches."""

    folded: int
    """Number of the client's tools that were not sent."""
    kept: int
    saved_tokens: int
    """Tokens of the tools that were not sent, without those of the bridge tools."""
    rounds: int = 0
    """Number of replies of the model for this request."""
    spent: Usage = field(default_factory=Usage)
    """Tokens of the replies in which the model only searched."""
    is_native: bool = False
    """True if the provider loads tools on demand in its own form."""
    ran: int = 0
    """Number of calls of tools that the proxy added and ran."""
    sent_tokens: int = 0
    """Tokens of the tools that were sent."""
    retrieval_ms: float = 0.0
    """Milliseconds that encoding and searching took to select the tools of the request."""

    def __str__(self) -> str:
        return (
            f"folded={self.folded}; kept={self.kept}; saved={self.saved_tokens}; rounds={self.rounds}; "
            f"spent={self.spent.total_tokens}; retrieval_ms={self.retrieval_ms:.2f}"
            f"{'; form=native' if self.is_native else ''}"
            f"{f'; ran={self.ran}' if self.ran else ''}"
        )


@dataclass(slots=True)
class Fold:
    """A request with a reduced tools array; converts the model's replies for the client."""

    wire: Wire
    original: Json
    """The request as the client sent it."""
    body: Json
    """The request with fewer tools."""
    turn: Turn
    session: Session
    validate: Validation
    report: FoldReport
    conversation: bytes
    memory: ReplyMemory
    request: Request
    entries: Mapping[str, Json]
    """The client's tools as it wrote them, by name."""
    added: AddedTools | None = None
    """Tools that the proxy added to the request and runs itself."""
    note_first_reply: Callable[[Sequence[str], str], None] | None = None
    """Gets calls and text of the reply if it is the first of its conversation, which is recognised by it."""
    _problems: dict[str, CallError] = field(default_factory=dict)

    @property
    def shown_names(self) -> tuple[str, ...]:
        """Return the names of the tools in the request, without tools such as `tool_search`."""
        sent = (each for each in self.body["tools"] if not each.get("defer_loading"))
        tools = [tool.name for each in sent for tool in self.wire.read_tools(each)]
        return tuple(name for name in tools if name not in BRIDGE_NAMES)

    @property
    def is_native(self) -> bool:
        """Return True if the request uses the provider's native deferred tools."""
        return self.request.deferred is not None

    def resolve(self, call: ToolCall) -> ToolCall | None:
        """Return the client's tool call wrapped in a `tool_call`; None if it is invalid or for the proxy."""
        try:
            inner = unwrap(call)
            if self.added is not None and inner.name in self.added.names:
                return None
            tool = self.turn.find_visible(inner.name)
            return ToolCall(tool.name, self.validate(tool, inner.arguments), call.id)
        except CallError as error:
            self._problems[call.id] = error
            return None

    def remember(self, call_ids: Sequence[str], text: str, messages: Sequence[Json]) -> None:
        """Remember all messages of a reply, because the client receives only some of its calls and text."""
        self.memory.remember(self.conversation, call_ids, text, messages)

    @property
    def hidden_names(self) -> frozenset[str]:
        """Return the names of the tools whose calls are hidden from the client."""
        return BRIDGE_NAMES | (self.added.names if self.added else frozenset())

    async def answer(self, calls: Sequence[ToolCall], *, run: bool = True) -> list[Json]:
        """Answer the calls hidden from the client, and return the messages with their results.

        Without `run`, only searches are answered, and no tool is run.
        """
        results = [await self._answer_one(call, run) for call in calls]
        rendered = self.wire.dialect.render_results(results, deferred=self.request.deferred)
        return self.wire.use_entries(rendered, self.entries) if self.is_native else rendered

    async def _answer_one(self, call: ToolCall, run: bool) -> ToolResult:
        if (inner := self._find_added_call(call)) is not None and self.added is not None:
            if not run:
                return _refuse(
                    call, CallError("It was not run, because the reply has other calls. Call it again.")
                )
            self.report.ran += 1
            return replace(await self.added.run(inner), name=call.name)
        if call.name == BRIDGE_CALL:
            return _refuse(call, self._problems.get(call.id) or CallError("The call is not valid."))
        return await self.session.call(call.name, call.arguments, call_id=call.id)

    def _find_added_call(self, call: ToolCall) -> ToolCall | None:
        """Return the call of a tool added by the proxy, unwrapped from any `tool_call`; otherwise None."""
        try:
            inner = unwrap(call)
        except CallError:
            return None
        is_added = self.added is not None and inner.name in self.added.names
        return replace(inner, id=call.id) if is_added else None


def _refuse(call: ToolCall, error: CallError) -> ToolResult:
    problem = error_message(error)
    text = render({"error": problem, **error.details})
    return ToolResult(call_id=call.id, name=call.name, text=text, error=problem)


class Folder:
    """Decides whether and how the tools array of each model request is reduced. Thread-safe."""

    def __init__(self, catalogs: Catalogs) -> None:
        self._catalogs = catalogs
        self._validate = Validation()
        self._memory = ReplyMemory()
        self._conversations = Conversations()
        self._arrays: OrderedDict[tuple[int, str], _ClientArray] = OrderedDict()
        """Arrays that were read, by the identity of the list and the dialect."""
        self._lock = threading.Lock()
        self._has_native_replies = False
        """True if replies in the provider's own form may be remembered."""

    def fold(
        self,
        body: Json,
        wire: Wire,
        client: str,
        caller: Caller | None = None,
        *,
        native: bool = False,
        find_added: FindAdded | None = None,
        is_counted: bool = False,
    ) -> Fold | None:
        """Return the request with a reduced tools array; None if its tools stay unchanged.

        `client` identifies the client's token, and `caller` is the client for learning from use. With
        `native`, the provider loads tools on demand in its own form, unless the tools do not allow it.
        `find_added` returns the tools that the proxy adds to the request. With `is_counted`, the request
        only counts tokens.
        """
        array = self._read_array(body, wire)
        written = wire.read_messages(body)
        if array is None or written is None:
            return None
        conversation = self._conversations.find(client, written, wire, is_counted=is_counted)
        added = find_added(conversation, _list_names(array)) if find_added else None
        if added is not None and not added.tools:
            added = None
        tools = [*array.tools, *added.tools] if added else array.tools
        catalog = self._catalogs.find(tools, hash_tools(tools) if added else array.checksum)
        native = native and not wire.explain_missing_native(tools)
        messages = self._restore_history(conversation, written, wire, native)
        model = str(body.get("model") or "")
        session = catalog.open_session(identify_prompts(conversation, model, native), caller or Caller())
        request = session.request(messages, model=model, form=wire.dialect.name, native=native)
        session.note_client_calls(_find_successful_calls(written, wire, catalog.tools))
        called = {name for _, name in wire.find_calls(messages, catalog.tools)}
        if native:
            called -= wire.find_loaded_tools(request.messages)
        needed = wire.find_forced_tools(body) | called
        sent_names = {tool.name for tool in request.turn.tools} | needed | {*catalog.own_tools}
        hidden = [tool.name for tool in tools if tool.name not in sent_names]
        if not hidden and added is None:
            return None
        sent_tools = _write_tools(array, catalog, request, needed, wire)
        sent_messages = wire.use_entries(request.messages, catalog.entries) if native else request.messages
        # The report is about the client's own tools.
        hidden_own = [name for name in hidden if added is None or name not in added.names]
        is_first_reply = not any(map(wire.is_reply_message, written))
        note_reply = functools.partial(self._conversations.note_reply, conversation, client, written)
        return Fold(
            wire=wire,
            original=body,
            body=wire.replace_messages({**body, "tools": sent_tools}, sent_messages),
            turn=request.turn,
            session=session,
            validate=self._validate,
            report=_make_report(array, catalog, request, hidden_own, native),
            conversation=conversation,
            memory=self._memory,
            request=request,
            entries=catalog.entries,
            added=added,
            note_first_reply=note_reply if is_first_reply else None,
        )

    def is_prepared(self, body: Json, wire: Wire) -> bool:
        """Return True if reducing the tools is fast, because they are known and need no search."""
        tools = body.get("tools")
        with self._lock:
            known = self._arrays.get((id(tools), wire.dialect.name))
        if known is None or known.entries is not tools:
            return False
        return not known.tools or self._catalogs.is_prepared(known.checksum)

    def _restore_history(
        self, conversation: bytes, written: list[Json], wire: Wire, native: bool
    ) -> list[Json]:
        """Return a client's message history with the tool searches that were hidden from the client.

        Without the provider's own form, replies that were remembered in it stay as the client saw them.
        """
        restored = self._memory.restore(conversation, written, wire)
        self._has_native_replies |= native
        if native or not self._has_native_replies or not wire.find_loaded_tools(restored):
            return restored
        return written

    def _read_array(self, body: Json, wire: Wire) -> _ClientArray | None:
        """Return the tools of a request; None if its tools array cannot be reduced."""
        if wire.explain_unfoldable(body):
            return None
        key = id(body["tools"]), wire.dialect.name
        with self._lock:
            known = self._arrays.get(key)
        if known is None or known.entries is not body["tools"]:
            known = _read_tools(body["tools"], wire)
            with self._lock:
                self._arrays[key] = known
                while len(self._arrays) > MAX_ARRAYS:
                    self._arrays.popitem(last=False)
        return known if known.tools else None


@dataclass(frozen=True, slots=True)
class _ClientArray:
    """The tools array of a client's request, divided into function tools and other tools."""

    entries: list[Json]
    tools: list[ClientTool]
    """Its function tools; empty if the array must stay as it is."""
    others: list[Json]
    checksum: bytes
    cache_mark: Any = None
    """The last mark for the provider's prompt cache that the client has set on a tool."""


def _find_successful_calls(messages: Sequence[Json], wire: Wire, tools: Collection[str]) -> list[str]:
    """Return the names of tools that the client has run successfully since the last user message."""
    recent = messages_since_user(messages)
    done = wire.dialect.find_result_ids(recent) - find_failed_ids(recent)
    return [name for call_id, name in wire.find_calls(recent, tools) if call_id in done]


def _read_tools(entries: Any, wire: Wire) -> _ClientArray:
    """Split a tools array into function tools and other tools; no function tools if it cannot be reduced."""
    reason = wire.explain_unfoldable_tools(entries)
    tools = [] if reason else [tool for entry in entries for tool in wire.read_tools(entry)]
    names = {tool.name for tool in tools}
    if len(names) < len(tools):
        reason = "two of its tools have the same name"
    elif any(map(is_reserved, names)):
        reason = "it has tools with the names of the bridge tools"
    if reason:
        log.info("the tools of a request are forwarded unchanged: %s", reason)
        return _ClientArray(entries, [], [], b"")
    others = [entry for entry in entries if not wire.read_tools(entry)]
    marks = [entry[CACHE_MARK] for entry in entries if entry.get(CACHE_MARK)]
    return _ClientArray(entries, tools, others, hash_tools(tools), marks[-1] if marks else None)


def _make_report(
    array: _ClientArray, catalog: Catalog, request: Request, hidden: Sequence[str], native: bool
) -> FoldReport:
    """Return the numbers of tools and tokens saved by hiding these tools from a request."""
    bridge = (tool for tool in request.turn.tools if tool.name in BRIDGE_NAMES)
    saved = catalog.count_tokens(hidden) - sum(map(catalog.weights.count_tool, bridge))
    selection = request.turn.selection
    return FoldReport(
        folded=len(hidden),
        kept=len(array.tools) - len(hidden),
        saved_tokens=saved,
        is_native=native,
        sent_tokens=catalog.total_tokens - saved,
        retrieval_ms=1e3 * selection.search_s if selection else 0.0,
    )


def _write_tools(
    array: _ClientArray, catalog: Catalog, request: Request, needed: set[str], wire: Wire
) -> list[Json]:
    """Return the tools array to send, with the client's original entries; rarely changed tools come first.

    Tools that the provider loads on demand are last, because they are not part of the prompt.
    """
    entries = catalog.entries
    shown = [
        rendered if tool.name in BRIDGE_NAMES else entries[tool.name]
        for tool, rendered in zip(request.turn.tools, request.tools, strict=False)
    ]
    listed = {tool.name for tool in request.turn.tools}
    own = [entries[name] for name in catalog.own_tools if name not in listed]
    listed |= {*catalog.own_tools}
    absent = needed - listed
    added = [entry for name, entry in entries.items() if name in absent] if absent else []
    kept = wire.join_entries(_keep_cache_mark(array.cache_mark, [*array.others, *own, *shown], added))
    if request.deferred is None or not wire.dialect.lists_deferred_tools:
        return kept
    return kept + [wire.defer_tool(entry) for name, entry in entries.items() if name not in listed | needed]


def _list_names(array: _ClientArray) -> set[str]:
    """Return the names of all tools of a client, including tools other than functions."""
    return {tool.name for tool in array.tools} | {str(entry.get("name")) for entry in array.others}


def _keep_cache_mark(mark: Any, constant: list[Json], added: list[Json]) -> list[Json]:
    """Concatenate constant and added tools; put the client's cache marker on the last constant tool."""
    tools = [*constant, *added]
    if mark and constant and not any(entry.get(CACHE_MARK) for entry in tools):
        tools[len(constant) - 1] = {**constant[-1], CACHE_MARK: mark}
    return tools
