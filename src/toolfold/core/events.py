"""The event stream of sessions, as typed data for chat, dashboard, logs and tracing.

Agent, gateway and proxy publish; readers subscribe. Events name real tools, never the bridge tools. Knows
nothing of who publishes or reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from toolfold.core.types import Json

log = logging.getLogger(__name__)

MAX_QUEUED_EVENTS = 10_000
"""How many events wait for one slow reader before the oldest are dropped."""

StopReason = Literal[
    "completed",
    "interrupted",
    "step_limit",
    "token_limit",
    "time_limit",
    "cost_limit",
    "output_limit",
    "repeated_failure",
    "empty_reply",
    "error",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of one or more model calls."""

    input_tokens: int = 0
    """All input, cached input included."""
    output_tokens: int = 0
    cached_tokens: int = 0
    """The part of the input that was read from the provider's prompt cache."""
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        )

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base class of events in a session."""

    type: ClassVar[str] = "event"
    session_id: str
    at: float = field(default_factory=time.time)
    """Time of the event in seconds since the epoch."""

    def to_json(self) -> Json:
        """Return the event as JSON data, including its type."""
        values = {each.name: _to_json(getattr(self, each.name)) for each in fields(self)}
        return {"type": self.type, **values}


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted(Event):
    """The agent accepted a user message."""

    type: ClassVar[str] = "turn_started"
    turn: int
    message: str
    model: str = ""
    """Name of the model as PROVIDER:MODEL."""
    parent_session_id: str = ""
    """The session that delegated the message to this sub-agent's session; empty if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsSelected(Event):
    """An agent, the model proxy or the gateway selected the tools for the next model calls."""

    type: ClassVar[str] = "tools_selected"
    turn: int
    shown: tuple[str, ...]
    """Names of the tools in the tools array, without the bridge tools."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why each tool was selected, by tool name."""
    available: int = 0
    """The number of tools that can be called."""
    tool_search: bool = False
    """True if the tools that are not shown can be found through tool search."""
    tokens: int = 0
    """The size of the tools array in tokens."""
    tokens_saved: int = 0
    """Tokens saved compared with a tools array of all available tools."""
    why: str = ""
    """Why the other tools are behind tool search, or why they are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReceived(Event):
    """A text chunk of the model's answer was received."""

    type: ClassVar[str] = "text_received"
    turn: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingReceived(Event):
    """A chunk of the model's visible reasoning was received."""

    type: ClassVar[str] = "thinking_received"
    turn: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRetried(Event):
    """A model call failed and is retried."""

    type: ClassVar[str] = "model_retried"
    turn: int
    attempt: int
    delay_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReplied(Event):
    """A model call ended."""

    type: ClassVar[str] = "model_replied"
    turn: int
    model: str
    usage: Usage
    cost: float | None = None
    """Cost in dollars; None if the model's price is unknown."""
    duration_s: float = 0.0
    calls: tuple[str, ...] = ()
    """The names of the tools that the reply calls, directly or through `tool_call`."""
    provider: str = ""
    """The provider's name in the configuration."""
    purpose: Literal["answer", "summary"] = "answer"
    """`answer` for a normal model call, `summary` for a call that summarised old messages."""
    user_id: str = ""
    """Id of the gateway's user whose request it was; empty if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted(Event):
    """Processing of a permitted tool call started."""

    type: ClassVar[str] = "tool_started"
    call_id: str
    tool: str
    arguments: Json
    """Arguments of the call, with secrets removed."""
    emoji: str = ""
    toolset: str = ""
    parent_id: str = ""
    """Id of the call that made this one, such as code that calls tools; empty for the model's own calls."""
    client: str = ""
    """Name of the gateway's client that made the call; empty if there is none."""
    user_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProgressed(Event):
    """A running tool reported its progress."""

    type: ClassVar[str] = "tool_progressed"
    call_id: str
    tool: str
    message: str = ""
    progress: float | None = None
    total: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFinished(Event):
    """A tool call ended."""

    type: ClassVar[str] = "tool_finished"
    call_id: str
    tool: str
    ok: bool
    duration_s: float
    result: str = ""
    """The beginning of the result's text, with secrets removed."""
    error: str = ""
    refused: bool = False
    """True if a hook, the approval policy or a person refused the call, so that it was not run."""
    registered: bool = True
    """False if there is no tool with this name, so that `tool` is any text the model wrote."""
    client: str = ""
    user_id: str = ""
    """Id of the gateway's user who made the call; empty if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsSearched(Event):
    """The model searched for tools, or read the description of a tool."""

    type: ClassVar[str] = "tools_searched"
    call_id: str
    queries: tuple[str, ...]
    found: tuple[str, ...]
    client: str = ""
    user_id: str = ""
    """Id of the gateway's user who searched; empty if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAsked(Event):
    """A person was asked to approve a call."""

    type: ClassVar[str] = "approval_asked"
    call_id: str
    tool: str
    reason: str
    """Why approval is needed."""
    command: str = ""
    """The shell command in the call, if it has one, with secrets removed."""
    severity: str = ""
    answers: tuple[str, ...] = ()
    """The answers that the person can choose from."""
    client: str = ""
    user_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAnswered(Event):
    """An approval question was answered or withdrawn."""

    type: ClassVar[str] = "approval_answered"
    call_id: str
    tool: str
    allowed: bool
    answer: str = ""
    """The chosen answer; empty if the person did not choose one, for example after a timeout."""
    reason: str = ""
    """Why the call was allowed or refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextCompressed(Event):
    """Old messages of a session were replaced by a summary, to save tokens."""

    type: ClassVar[str] = "context_compressed"
    turn: int
    messages_before: int
    messages_after: int
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReloaded(Event):
    """Settings or servers changed; the change takes effect in the next turn of every session."""

    type: ClassVar[str] = "config_reloaded"
    session_id: str = ""
    """Always empty: the event concerns every session."""
    changes: tuple[str, ...] = ()
    """One line for each change, such as `mcp.servers.git added` or `tools.disabled changed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexUpdated(Event):
    """The search index changed: it became usable before all tools were embedded, or embedding finished."""

    type: ClassVar[str] = "index_updated"
    session_id: str = ""
    """Always empty: the event concerns every session."""
    tools: int
    embedded: int
    """Number of tools with an embedding; the others are found by keywords only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFailed(Event):
    """The search index in the database failed; keyword search in memory replaced it or failed as well."""

    type: ClassVar[str] = "search_failed"
    session_id: str = ""
    """Always empty: the event concerns every session."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFinished(Event):
    """The agent finished processing a user message, or a request through the model proxy failed."""

    type: ClassVar[str] = "turn_finished"
    turn: int
    reason: StopReason
    text: str = ""
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    error: str = ""


Listener = Callable[[Event], None]


class EventBus:
    """Delivers each event to every subscriber, in the order of publication. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: tuple[tuple[Listener, type[Event] | None], ...] = ()

    @property
    def has_listeners(self) -> bool:
        """Return True if there are listeners; if not, callers need not create events."""
        return bool(self._listeners)

    def has_listeners_for(self, event_type: type[Event]) -> bool:
        """Return True if there are listeners for this event type; if not, callers need not create events."""
        return any(only is None or issubclass(event_type, only) for _, only in self._listeners)

    def subscribe(self, listener: Listener, *, only: type[Event] | None = None) -> Callable[[], None]:
        """Subscribe a listener to all future events; return a function that ends the subscription.

        With `only`, the listener gets events of this type alone, and others are not built for it.
        """
        entry = (listener, only)
        with self._lock:
            self._listeners = (*self._listeners, entry)

        def unsubscribe() -> None:
            with self._lock:
                self._listeners = tuple(each for each in self._listeners if each is not entry)

        return unsubscribe

    def publish(self, event: Event) -> None:
        """Deliver an event to all listeners; log exceptions of listeners."""
        for listener, only in self._listeners:
            if only is not None and not isinstance(event, only):
                continue
            try:
                listener(event)
            except Exception:
                log.exception("an event listener failed on %s", event.type)

    @contextlib.contextmanager
    def stream(self, session_id: str | None = None) -> Iterator[AsyncIterator[Event]]:
        """Iterate over the events of one session, or of all sessions, in the current event loop.

        Events that concern every session, such as `ConfigReloaded`, are included.
        The oldest events are dropped if the reader falls `MAX_QUEUED_EVENTS` behind.
        """
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Event] = asyncio.Queue()

        def put(event: Event) -> None:
            if queue.qsize() >= MAX_QUEUED_EVENTS:
                queue.get_nowait()
            queue.put_nowait(event)

        def listener(event: Event) -> None:
            if session_id is None or event.session_id in ("", session_id):
                loop.call_soon_threadsafe(put, event)

        unsubscribe = self.subscribe(listener)
        try:
            yield _read_queue(queue)
        finally:
            unsubscribe()


async def _read_queue(queue: asyncio.Queue[Event]) -> AsyncIterator[Event]:
    while True:
        yield await queue.get()


def _to_json(value: Any) -> Any:
    if isinstance(value, Usage):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value
