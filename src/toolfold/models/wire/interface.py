"""Interface for parsing and rewriting requests and replies of one model API in the proxy.

A request is read for its function tools; everything that is not understood is left as it is. Replies of
several rounds, in which the model first searched for tools, are merged into the one reply that the client
sees. Knows nothing of how tools are chosen.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from toolfold.core.types import BRIDGE_CALL, BRIDGE_NAMES, Json, ToolCall
from toolfold.models.dialect import Dialect, Message
from toolfold.models.reply import Reply
from toolfold.models.wire.sse import KEEP_ALIVE_COMMENT, ServerSentEvent

ResolveCall = Callable[[ToolCall], ToolCall | None]
"""Returns the call of a client's tool that a call of `tool_call` means; None if the client gets none."""


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A function tool of a client's request."""

    name: str
    description: str
    parameters: Json
    entry: Json
    """The tool as the client wrote it."""
    is_added: bool = False
    """True for a tool that the proxy added to the request and runs itself."""


class Wire(ABC):
    """Parses and rewrites requests and replies of one model API for the proxy. Stateless and shared."""

    dialect: ClassVar[Dialect]
    names_events: ClassVar[bool] = True
    """True if the events of a stream have names."""

    @abstractmethod
    def read_tool(self, entry: Json) -> ClientTool | None:
        """Return a tools array entry as a function tool; None for other kinds of tools."""

    def read_tools(self, entry: Json) -> list[ClientTool]:
        """Return the function tools in a tools array entry; empty if the entry must stay unchanged."""
        tool = self.read_tool(entry)
        return [] if tool is None else [tool]

    def join_entries(self, entries: Sequence[Json]) -> list[Json]:
        """Return a tools array of these entries, with functions of the same namespace in one entry."""
        return list(entries)

    def find_calls(self, messages: Sequence[Message], names: Collection[str]) -> list[tuple[str, str]]:  # noqa: ARG002
        """Return the id and tool name of every call in a conversation; `names` are the known tools."""
        return self.dialect.find_calls(messages)

    @abstractmethod
    def find_forced_tools(self, body: Json) -> set[str]:
        """Return the tool names in the `tool_choice` of a request."""

    def explain_unfoldable(self, body: Json) -> str:  # noqa: ARG002
        """Return why the tools of this request cannot be reduced; empty if they can."""
        return ""

    def explain_unfoldable_tools(self, tools: Any) -> str:
        """Return why a tools array must stay unchanged; empty if it can be reduced."""
        if not isinstance(tools, list) or not all(isinstance(entry, dict) for entry in tools):
            return "it has no list of tools"
        if any(map(_defers_loading, tools)):
            return "the client itself defers the loading of tools"
        return ""

    def explain_missing_native(self, tools: Sequence[ClientTool]) -> str:  # noqa: ARG002
        """Return why the provider cannot load these tools on demand; empty if it can."""
        return ""

    def defer_tool(self, entry: Json) -> Json:
        """Return a tools array entry with the mark that makes the provider load the tool on demand."""
        kept = {key: value for key, value in entry.items() if key != "cache_control"}  # an error there
        return kept | {"defer_loading": True}

    def find_loaded_tools(self, messages: Sequence[Json]) -> set[str]:  # noqa: ARG002
        """Return the names of tools that the provider loaded on demand in a conversation."""
        return set()

    def use_entries(self, messages: Sequence[Json], entries: Mapping[str, Json]) -> list[Json]:  # noqa: ARG002
        """Return the messages with definitions of loaded tools replaced by the client's definitions."""
        return list(messages)

    def read_messages(self, body: Json) -> list[Json] | None:
        """Return the messages of a request; None if they are not a valid list."""
        messages = body.get("messages")
        return messages if _is_list_of_objects(messages) else None

    def replace_messages(self, body: Json, messages: Sequence[Json]) -> Json:
        """Return a copy of the request with its messages replaced."""
        return {**body, "messages": list(messages)}

    def append_messages(self, body: Json, added: Sequence[Json]) -> Json:
        """Return the request with these messages appended to its conversation."""
        return self.replace_messages(body, [*(self.read_messages(body) or []), *added])

    def render_reply(self, reply: Reply) -> list[Json]:
        """Return a model's reply as messages for the next request."""
        return list(reply.messages)

    def is_reply_message(self, message: Json) -> bool:
        """Return True if the model wrote this message; consecutive messages of the model form one reply."""
        return message.get("role") == "assistant"

    def forbid_calls(self, body: Json) -> Json:
        """Return the request with a `tool_choice` that forbids tool calls."""
        return {**body, "tool_choice": "none"}

    @abstractmethod
    def merge_stream(
        self, request: Json, resolve: ResolveCall, hidden: Collection[str] = BRIDGE_NAMES
    ) -> StreamMerger:
        """Return a merger for streamed replies to a client request.

        The client does not see calls of the `hidden` tools.
        """

    @abstractmethod
    def merge_bodies(
        self, request: Json, resolve: ResolveCall, hidden: Collection[str] = BRIDGE_NAMES
    ) -> BodyMerger:
        """Return a merger for non-streamed replies to a client request.

        The client does not see calls of the `hidden` tools.
        """


class StreamMerger(ABC):
    """Merges the streamed replies to several model requests into one stream for the client."""

    def __init__(self, resolve: ResolveCall, hidden: Collection[str] = BRIDGE_NAMES) -> None:
        self._resolve, self._hidden_names = resolve, hidden
        self.round = 0
        self.visible_calls = 0
        """Calls of the current round that the client sees."""
        self.hidden_calls: list[ToolCall] = []
        """Calls of the current round that the client does not see."""
        self.has_renamed_calls = False
        """True if the client sees a call of the current round under another name than the provider gave."""
        self.is_complete = False
        """True if the current round ended as the API requires."""
        self.has_failed = False
        """True if the provider reported an error in the stream, which the client has got."""

    def start_round(self) -> None:
        """Prepare for parsing the reply to the next model request."""
        self.round += 1
        self.visible_calls, self.hidden_calls, self.is_complete = 0, [], False
        self.has_renamed_calls = False

    @abstractmethod
    def feed(self, event: ServerSentEvent) -> Iterator[bytes]:
        """Parse an event of the current reply and yield the events to send to the client now."""

    @abstractmethod
    def end_round(self) -> Iterator[bytes]:
        """Yield the events of tool calls that were held back until the reply was complete."""

    @property
    @abstractmethod
    def reply(self) -> Reply:
        """Return the current reply as messages for the next request."""

    @property
    def alias(self) -> str:
        """Return the reply's id as sent to the client; empty if it is the same as the provider's id."""
        return ""

    @abstractmethod
    def finish(self) -> Iterator[bytes]:
        """Yield the final events of the stream, with the token usage of all replies."""

    @abstractmethod
    def render_error(self, problem: str) -> bytes:
        """Return the API's stream event for an error."""

    def render_keep_alive(self) -> bytes:
        """Return a stream comment that keeps the client's connection alive between two events."""
        return KEEP_ALIVE_COMMENT

    def is_hidden(self, name: Any) -> bool:
        """Return True if calls of the tool with this name are hidden from the client."""
        return isinstance(name, str) and name in self._hidden_names

    def resolve_call(self, call: ToolCall) -> ToolCall | None:
        """Return the client's tool call wrapped in a `tool_call`; None if it is hidden from the client."""
        resolved = self._resolve(call) if call.name == BRIDGE_CALL else None
        if resolved is None:
            self.hidden_calls.append(call)
        else:
            self.visible_calls += 1
        return resolved


class BodyMerger(ABC):
    """Merges the replies to several model requests into one response body for the client."""

    def __init__(self, resolve: ResolveCall, hidden: Collection[str] = BRIDGE_NAMES) -> None:
        self._resolve, self._hidden_names = resolve, hidden
        self.visible_calls = 0
        self.hidden_calls: list[ToolCall] = []
        self.has_renamed_calls = False
        """True if the client sees a call of the last reply under another name than the provider gave."""

    @abstractmethod
    def add(self, body: Json) -> Reply:
        """Add the response body of one model request and return the model's reply."""

    @abstractmethod
    def merge(self) -> Json:
        """Return the merged response body for the client."""

    def is_hidden(self, name: Any) -> bool:
        """Return True if calls of the tool with this name are hidden from the client."""
        return isinstance(name, str) and name in self._hidden_names

    def resolve_call(self, call: ToolCall) -> ToolCall | None:
        """Return the client's tool call wrapped in a `tool_call`; None if it is hidden from the client."""
        resolved = self._resolve(call) if call.name == BRIDGE_CALL else None
        if resolved is None:
            self.hidden_calls.append(call)
        else:
            self.visible_calls += 1
        return resolved


def _defers_loading(entry: Json) -> bool:
    """Return True if a tools array entry is a deferred tool or the provider's tool search."""
    default = entry.get("default_config")
    return bool(
        entry.get("defer_loading")
        or (isinstance(default, Mapping) and default.get("defer_loading"))
        or str(entry.get("type")).startswith("tool_search")
    )


def render_arguments(call: ToolCall) -> str:
    """Return the arguments of a tool call as JSON text."""
    return json.dumps(call.arguments, ensure_ascii=False, separators=(",", ":"))


def add_usage(first: Any, second: Any) -> Any:
    """Return the sum of two usage objects by field; fields that are not numbers come from the second."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return {
            key: add_usage(first.get(key), second.get(key)) if key in second else first[key]
            for key in (*second, *(key for key in first if key not in second))
        }
    if _is_number(first) and _is_number(second):
        return first + second
    return first if second is None else second


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)
