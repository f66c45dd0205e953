"""Parsing and rewriting of OpenAI's responses for the proxy.

Functions may be grouped in a namespace, as Codex does with those of an MCP server. Each is a tool of its own
here, under a name that contains the namespace; the model and the client see both apart, as the API defines.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolfold.core.types import BRIDGE_NAMES, BRIDGE_SEARCH, Json, ToolCall
from toolfold.models.dialect import Message, select_mappings
from toolfold.models.openai_responses import OpenAIResponses
from toolfold.models.provider_errors import ProviderError
from toolfold.models.reply import Reply, text_of
from toolfold.models.wire.chat_completions import read_function
from toolfold.models.wire.interface import (
    BodyMerger,
    ClientTool,
    ResolveCall,
    StreamMerger,
    Wire,
    add_usage,
    render_arguments,
)
from toolfold.models.wire.sse import ServerSentEvent, render_event

_STARTING = ("response.created", "response.in_progress", "response.queued")
_REPLY_ITEMS = ("reasoning", "function_call")
_LOADING_ITEMS = ("tool_search_output", "additional_tools")
"""Items whose tools the model can call from then on."""
_ENDING = ("response.completed", "response.incomplete")
_NAMESPACE = "namespace"
_SEPARATOR = "__"
"""Between namespace and name, as in the names that clients give to the tools of MCP servers."""


class ResponsesWire(Wire):
    """Parses and rewrites requests and replies of OpenAI's Responses API for the proxy."""

    dialect = OpenAIResponses()

    def read_tool(self, entry: Json) -> ClientTool | None:
        return read_function(entry, entry) if entry.get("type") == "function" else None

    def read_tools(self, entry: Json) -> list[ClientTool]:
        if entry.get("type") != _NAMESPACE:
            return super().read_tools(entry)
        namespace, inner = text_of(entry.get("name")), entry.get("tools")
        if not namespace or not isinstance(inner, list):
            return []
        read = [self.read_tool(each) if isinstance(each, dict) else None for each in inner]
        tools = [tool for tool in read if tool is not None]
        if len(tools) < len(inner):  # it also has tools of other kinds
            return []
        return [
            replace(tool, name=_join_name(namespace, tool.name), entry={**entry, "tools": [tool.entry]})
            for tool in tools
        ]

    def join_entries(self, entries: Sequence[Json]) -> list[Json]:
        joined: list[Json] = []
        places: dict[str, int] = {}
        for entry in entries:
            name = text_of(entry.get("name")) if entry.get("type") == _NAMESPACE else ""
            if name in places:
                first = joined[places[name]]
                joined[places[name]] = {**first, "tools": [*first["tools"], *entry["tools"]]}
                continue
            if name:
                places[name] = len(joined)
            joined.append(entry)
        return joined

    def find_calls(self, messages: Sequence[Message], names: Collection[str]) -> list[tuple[str, str]]:
        namespaces = {
            text_of(item.get("call_id")): text_of(item.get("namespace"))
            for item in messages
            if item.get("namespace")
        }
        found = []
        for call_id, name in self.dialect.find_calls(messages):
            joined = _join_name(namespaces.get(call_id, ""), name)
            found.append((call_id, joined if joined in names else name))
        return found

    def find_forced_tools(self, body: Json) -> set[str]:
        choice = body.get("tool_choice")
        if not isinstance(choice, dict):
            return set()
        forced = [choice, *select_mappings(choice.get("tools"))]
        names = {text_of(entry.get("name")) for entry in forced}
        for joined, (namespace, name) in _ClientNames(body).namespaced.items():
            if namespace in names or name in names:
                names.add(joined)
        return names

    def explain_unfoldable(self, body: Json) -> str:
        return "it runs in the background" if body.get("background") else ""

    def explain_unfoldable_tools(self, tools: Any) -> str:
        inner = (each for entry in select_mappings(tools) for each in select_mappings(entry.get("tools")))
        if any(each.get("defer_loading") for each in inner):
            return "the client itself defers the loading of tools"
        return super().explain_unfoldable_tools(tools)

    def find_loaded_tools(self, messages: Sequence[Json]) -> set[str]:
        items = (item for item in messages if item.get("type") in _LOADING_ITEMS)
        entries = (each for item in items for each in select_mappings(item.get("tools")))
        return {tool.name for entry in entries for tool in self.read_tools(entry)}

    def use_entries(self, messages: Sequence[Json], entries: Mapping[str, Json]) -> list[Json]:
        return [
            self._replace_entries(each, entries) if each.get("type") in _LOADING_ITEMS else each
            for each in messages
        ]

    def _replace_entries(self, item: Json, entries: Mapping[str, Json]) -> Json:
        """Return a conversation item that loads tools, with the client's definitions of these tools."""
        tools = [
            _load_entry(
                entries.get(text_of(each.get("name")), each), is_deferred=bool(each.get("defer_loading"))
            )
            for each in select_mappings(item.get("tools"))
        ]
        return {**item, "tools": self.join_entries(tools)}

    def read_messages(self, body: Json) -> list[Json] | None:
        messages = body.get("input")
        if isinstance(messages, str):
            return [{"role": "user", "content": messages}]
        is_list = isinstance(messages, list) and all(isinstance(each, dict) for each in messages)
        return messages if is_list else None

    def replace_messages(self, body: Json, messages: Sequence[Json]) -> Json:
        if isinstance(body.get("input"), str) and list(messages) == self.read_messages(body):
            return body
        return {**body, "input": list(messages)}

    def render_reply(self, reply: Reply) -> list[Json]:
        return list(map(_as_input, reply.messages))

    def is_reply_message(self, message: Json) -> bool:
        return message.get("role") == "assistant" or message.get("type") in _REPLY_ITEMS

    def merge_stream(
        self, request: Json, resolve: ResolveCall, hidden: Collection[str] = BRIDGE_NAMES
    ) -> StreamMerger:
        return _ResponsesStreamMerger(request, resolve, hidden)

    def merge_bodies(
        self, request: Json, resolve: ResolveCall, hidden: Collection[str] = BRIDGE_NAMES
    ) -> BodyMerger:
        return _ResponsesBodyMerger(request, resolve, hidden)


def _join_name(namespace: str, name: str) -> str:
    """Join a namespace and a function name into one tool name."""
    return f"{namespace.removesuffix(_SEPARATOR)}{_SEPARATOR}{name}" if namespace else name


def _load_entry(entry: Json, *, is_deferred: bool) -> Json:
    """Return a tools array entry, marked with `defer_loading` if `is_deferred` is set."""
    if not is_deferred:
        return entry
    if entry.get("type") == _NAMESPACE:
        return {**entry, "tools": [{**each, "defer_loading": True} for each in entry["tools"]]}
    return {**entry, "defer_loading": True}


class _ClientNames:
    """The function names in a client request, with and without namespaces."""

    def __init__(self, request: Json) -> None:
        self.namespaced: dict[str, tuple[str, str]] = {}
        """One name for each function in a namespace → the namespace and the name in it."""
        self._plain: set[str] = set()
        for entry in select_mappings(request.get("tools")):
            name = text_of(entry.get("name"))
            if entry.get("type") != _NAMESPACE:
                self._plain.add(name)
                continue
            for each in map(text_of, (inner.get("name") for inner in select_mappings(entry.get("tools")))):
                self.namespaced[_join_name(name, each)] = name, each

    def knows(self, item: Json) -> bool:
        """Return True if an output item calls a function in one of the client's namespaces."""
        place = text_of(item.get("namespace")), text_of(item.get("name"))
        return bool(place[0]) and self.namespaced.get(_join_name(*place)) == place

    def adapt(self, item: Json) -> Json:
        """Return a function call with the function name and namespace of the client's request.

        Providers also give a namespace to the calls of functions that were loaded on demand.
        """
        name = text_of(item.get("name"))
        if item.get("type") != "function_call" or self.knows(item):
            return item
        if name in self._plain:
            return {key: value for key, value in item.items() if key != "namespace"}
        if name in self.namespaced:
            namespace, name = self.namespaced[name]
            return {**item, "namespace": namespace, "name": name}
        return item


def _as_input(item: Json) -> Json:
    """Return an output item as an input item; drop the `status` of reasoning, which is invalid in input."""
    return {key: value for key, value in item.items() if key != "status"}


class _ResponsesStreamMerger(StreamMerger):
    """Merges the output items of several replies, omitting hidden calls and the reasoning before them."""

    def __init__(self, request: Json, resolve: ResolveCall, hidden: Collection[str]) -> None:
        super().__init__(resolve, hidden)
        self._request, self._names = request, _ClientNames(request)
        self._reader = OpenAIResponses().start_reply()
        self._indexes: dict[int, int] = {}
        """Index of an output item in the round → its index in the merged stream, if the client sees it."""
        self._hidden: set[int] = set()
        self._reasoning: list[tuple[int, Json]] = []
        """Events of reasoning items after which nothing visible has followed yet."""
        self._reasoning_items: set[int] = set()
        self._items: list[Json] = []
        """The items that the client has got completely."""
        self._done: set[int] = set()
        """Indexes of the items of the round that have ended."""
        self._next_index = self._sequence = 0
        self._end: Json | None = None
        self._usage: Any = None
        self._starting: list[Json] = []
        """Events that start the response, until the client gets the first item of a round."""
        self._shown_id = ""
        """The id of the response in the events that the client has got; it must not change."""

    def start_round(self) -> None:
        super().start_round()
        self._starting = []
        self._reader = OpenAIResponses().start_reply()
        self._indexes, self._hidden, self._done = {}, set(), set()
        self._reasoning, self._reasoning_items, self._end = [], set(), None

    def feed(self, event: ServerSentEvent) -> Iterator[bytes]:
        content = event.parse()
        if content is None:
            yield event.raw
            return
        try:
            list(self._reader.feed(content))
        except ProviderError:
            self.has_failed = True
            yield from self._release_start()
            yield self._render(content)
            return
        kind, index = content.get("type"), content.get("output_index")
        if kind in _STARTING:
            if not self._shown_id:
                self._starting.append(content)
        elif kind in _ENDING:
            self._end, self.is_complete = content, True
            self._usage = add_usage(self._usage, (content.get("response") or {}).get("usage"))
        elif isinstance(index, int):
            yield from self._feed_item(index, content)
        else:
            yield from self._release_start()
            yield self._render(content)

    def _release_start(self) -> Iterator[bytes]:
        """Yield the response's start events, which are held back until the first event for the client."""
        held, self._starting = self._starting, []
        for content in held:
            response = self._restore(content.get("response"))
            self._shown_id = text_of(response.get("id"))
            yield self._render({**content, "response": response})

    def _feed_item(self, index: int, content: Json) -> Iterator[bytes]:
        item = content.get("item")
        if content["type"] == "response.output_item.added" and isinstance(item, dict):
            yield from self._start_item(index, item)
        if index in self._hidden:
            if content["type"] == "response.output_item.done" and isinstance(item, dict):
                self._done.add(index)
                yield from self._end_hidden(item)
        elif index in self._reasoning_items and index not in self._indexes:
            self._reasoning.append((index, content))
        else:
            yield from self._release_start()
            yield self._show(index, content)

    def _start_item(self, index: int, item: Json) -> Iterator[bytes]:
        if self._is_hidden_call(item):
            self._hidden.add(index)
        elif item.get("type") == "reasoning":
            self._reasoning_items.add(index)
        else:
            yield from self._release_reasoning()

    def _release_reasoning(self) -> Iterator[bytes]:
        """Yield the delayed events of reasoning items when the following item is visible to the client."""
        held, self._reasoning = self._reasoning, []
        yield from self._release_start()
        for index, content in held:
            yield self._show(index, content)

    def _show(self, index: int, content: Json) -> bytes:
        """Return an event of a visible output item, with the item's index in the merged stream."""
        if index not in self._indexes:
            self._indexes[index] = self._take_index()
        item = content.get("item")
        if isinstance(item, dict):
            item = self._adapt(item)
            content = {**content, "item": item}
            if content["type"] == "response.output_item.done":
                self._done.add(index)
                self._items.append(item)
                self.visible_calls += _is_client_call(item)
        return self._render({**content, "output_index": self._indexes[index]})

    def _adapt(self, item: Json) -> Json:
        """Return an output item with the function name and namespace of the client's request."""
        shown = self._names.adapt(item)
        self.has_renamed_calls |= shown != item
        return shown

    def _is_hidden_call(self, item: Json) -> bool:
        return _is_hidden_call(item, self.is_hidden) and not self._names.knows(item)

    def _take_index(self) -> int:
        self._next_index += 1
        return self._next_index - 1

    def _render(self, content: Json) -> bytes:
        """Return an event as bytes, with the next sequence number of the merged stream."""
        if "sequence_number" in content:
            content = {**content, "sequence_number": self._sequence}
            self._sequence += 1
        return render_event(content, named=True)

    def _end_hidden(self, item: Json) -> Iterator[bytes]:
        resolved = self.resolve_call(_read_call(item))
        if resolved is None:
            return
        yield from self._release_reasoning()
        shown = self._adapt(_resolved_item(item, resolved))
        index, item_id = self._take_index(), shown.get("id")
        place = {"output_index": index, "item_id": item_id, "sequence_number": 0}
        started = {**shown, "arguments": "", "status": "in_progress"}
        arguments = shown["arguments"]
        self._items.append(shown)
        for event in (
            {
                "type": "response.output_item.added",
                "output_index": index,
                "item": started,
                "sequence_number": 0,
            },
            {"type": "response.function_call_arguments.delta", **place, "delta": arguments},
            {
                "type": "response.function_call_arguments.done",
                **place,
                "name": shown["name"],
                "arguments": arguments,
            },
            {"type": "response.output_item.done", "output_index": index, "item": shown, "sequence_number": 0},
        ):
            yield self._render(event)

    def end_round(self) -> Iterator[bytes]:
        """Yield events for items that only the final response object contains, and delayed reasoning."""
        output = select_mappings((self._end or {}).get("response", {}).get("output"))
        for index, item in enumerate(output):
            if index in self._done:
                continue
            if self._is_hidden_call(item):
                yield from self._end_hidden(item)
            else:
                self._items.append(self._adapt(item))
                self.visible_calls += _is_client_call(item)
        if not self.hidden_calls:
            yield from self._release_reasoning()

    @property
    def reply(self) -> Reply:
        return self._reader.finish()

    @property
    def alias(self) -> str:
        return self._shown_id if self.reply.id != self._shown_id else ""

    def finish(self) -> Iterator[bytes]:
        yield from self._release_start()
        if self._end is not None:
            response = {**self._restore(self._end.get("response")), "output": self._items}
            response |= {"id": self._shown_id} if self._shown_id else {}
            if self._usage is not None:
                response["usage"] = self._usage
            yield self._render({**self._end, "response": response})

    def render_error(self, problem: str) -> bytes:
        error = {"code": "server_error", "message": f"toolfold: {problem}", "param": None}
        return self._render({"type": "error", **error, "sequence_number": 0})

    def _restore(self, response: Any) -> Json:
        return _restore_tools(response if isinstance(response, dict) else {}, self._request)


class _ResponsesBodyMerger(BodyMerger):
    """Merges several responses into one that contains the visible output items of all responses."""

    def __init__(self, request: Json, resolve: ResolveCall, hidden: Collection[str]) -> None:
        super().__init__(resolve, hidden)
        self._request, self._names = request, _ClientNames(request)
        self._items: list[Json] = []
        self._usage: Any = None
        self._last: Json = {}

    def add(self, body: Json) -> Reply:
        self.visible_calls, self.hidden_calls, self.has_renamed_calls = 0, [], False
        shown: list[Json] = []
        for item in select_mappings(body["output"]):
            if not _is_hidden_call(item, self.is_hidden) or self._names.knows(item):
                self.visible_calls += _is_client_call(item)
                shown.append(self._names.adapt(item))
                self.has_renamed_calls |= shown[-1] != item
            elif resolved := self.resolve_call(_read_call(item)):
                shown.append(self._names.adapt(_resolved_item(item, resolved)))
        if any(item.get("type") != "reasoning" for item in shown) or not self.hidden_calls:
            self._items += shown
        self._usage = add_usage(self._usage, body.get("usage"))
        self._last = body
        return OpenAIResponses().read_reply(body)

    def merge(self) -> Json:
        return {**_restore_tools(self._last, self._request), "output": self._items, "usage": self._usage}


def _restore_tools(response: Json, request: Json) -> Json:
    """Return a response object that lists the client's tools instead of the reduced tools array."""
    return {**response, "tools": request["tools"]} if "tools" in response else response


def _is_hidden_call(item: Json, is_hidden: Callable[[Any], bool]) -> bool:
    """Return True if an output item is a tool call that is hidden from the client."""
    if item.get("type") == "tool_search_call":
        return item.get("execution") == "client"
    return item.get("type") == "function_call" and is_hidden(item.get("name"))


def _is_client_call(item: Json) -> bool:
    """Return True if an output item is a call that the client must answer."""
    return text_of(item.get("type")) in (
        "function_call",
        "custom_tool_call",
        "local_shell_call",
        "shell_call",
    )


def _read_call(item: Json) -> ToolCall:
    arguments = item.get("arguments")
    return ToolCall(
        text_of(item.get("name")) or BRIDGE_SEARCH,  # the API's own search has no name
        arguments if isinstance(arguments, (str, dict)) else None,
        text_of(item.get("call_id")),
    )


def _resolved_item(item: Json, call: ToolCall) -> Json:
    item = {key: value for key, value in item.items() if key != "namespace"}
    return {**item, "name": call.name, "arguments": render_arguments(call)}
