"""Parsing and rewriting of Anthropic's messages for the proxy."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from toolfold.core.types import BRIDGE_NAMES, Json, ToolCall
from toolfold.models.anthropic_messages import AnthropicMessages
from toolfold.models.dialect import select_mappings
from toolfold.models.provider_errors import ProviderError
from toolfold.models.reply import Reply, text_of
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

_THINKING = ("thinking", "redacted_thinking")


class MessagesWire(Wire):
    """Parses and rewrites requests and replies of Anthropic's Messages API for the proxy."""

    dialect = AnthropicMessages()

    def read_tool(self, entry: Json) -> ClientTool | None:
        name, schema = entry.get("name"), entry.get("input_schema")
        if entry.get("type") not in (None, "custom") or not isinstance(name, str) or not name:
            return None
        if not isinstance(schema, dict):
            return None
        return ClientTool(name, text_of(entry.get("description")), schema, entry)

    def find_forced_tools(self, body: Json) -> set[str]:
        choice = body.get("tool_choice")
        return {text_of(choice.get("name"))} if isinstance(choice, dict) else set()

    def explain_missing_native(self, tools: Sequence[ClientTool]) -> str:
        has_examples = any(tool.entry.get("input_examples") for tool in tools)
        return "deferred tools may not have input examples" if has_examples else ""

    def forbid_calls(self, body: Json) -> Json:
        return {**body, "tool_choice": {"type": "none"}}

    def find_loaded_tools(self, messages: Sequence[Json]) -> set[str]:
        results = (block for each in messages for block in select_mappings(each.get("content")))
        parts = (part for block in results for part in select_mappings(block.get("content")))
        return {text_of(part.get("tool_name")) for part in parts if part.get("type") == "tool_reference"}

    def merge_stream(
        self,
        request: Json,  # noqa: ARG002
        resolve: ResolveCall,
        hidden: Collection[str] = BRIDGE_NAMES,
    ) -> StreamMerger:
        return _MessagesStreamMerger(resolve, hidden)

    def merge_bodies(
        self,
        request: Json,  # noqa: ARG002
        resolve: ResolveCall,
        hidden: Collection[str] = BRIDGE_NAMES,
    ) -> BodyMerger:
        return _MessagesBodyMerger(resolve, hidden)


class _MessagesStreamMerger(StreamMerger):
    """Merges the content blocks of several replies, omitting hidden calls and the thinking before them."""

    def __init__(self, resolve: ResolveCall, hidden: Collection[str]) -> None:
        super().__init__(resolve, hidden)
        self._reader = AnthropicMessages().start_reply()
        self._indexes: dict[int, int] = {}
        """Index of a block in the round → its index in the merged stream, for blocks that the client sees."""
        self._hidden: dict[int, tuple[Json, list[str]]] = {}
        """Bridge calls that are being received: the block, and the pieces of its input."""
        self._thinking: list[tuple[Json, ServerSentEvent]] = []
        """Events of thinking blocks for which nothing visible has followed yet."""
        self._thinking_blocks: set[int] = set()
        self._starting: list[bytes] = []
        """Events that start the message, until the client gets the first block: until then nothing is sent,
        so that an error can be answered with its own status or by the original request."""
        self._has_shown = False
        """True if the client has got an event."""
        self._next_index = 0
        self._delta: Json | None = None
        self._stop: bytes = b""
        self._usage: Any = None
        """The usage of all rounds that have ended."""
        self._round_usage: Json = {}

    def start_round(self) -> None:
        super().start_round()
        self._reader = AnthropicMessages().start_reply()
        self._indexes, self._hidden, self._thinking, self._thinking_blocks = {}, {}, [], set()
        self._delta, self._stop, self._starting = None, b"", []

    def feed(self, event: ServerSentEvent) -> Iterator[bytes]:
        content = event.parse()
        if content is None:
            yield from self._show(event.raw)
            return
        try:
            list(self._reader.feed(content))
        except ProviderError:
            self.has_failed = True
            yield from self._show(event.raw)
            return
        match content.get("type"):
            case "message_start":
                self._round_usage = _known_counts((content.get("message") or {}).get("usage"))
                if not self._has_shown:
                    self._starting.append(event.raw)
            case "ping" if len(self._starting) == 1:  # a second one means that the reply takes long
                self._starting.append(event.raw)
            case "content_block_start" | "content_block_delta" | "content_block_stop":
                for shown in self._feed_block(content, event):
                    yield from self._show(shown)
            case "message_delta":
                self._round_usage |= _known_counts(content.get("usage"))
                self._delta = content
            case "message_stop":
                self._stop, self.is_complete = event.raw, True
                self._usage = add_usage(self._usage, self._round_usage)
            case _:
                yield from self._show(event.raw)

    def _show(self, event: bytes) -> Iterator[bytes]:
        """Yield an event for the client, preceded by the message's start events if it is the first event."""
        held, self._starting, self._has_shown = self._starting, [], True
        yield from held
        yield event

    def _feed_block(self, content: Json, event: ServerSentEvent) -> Iterator[bytes]:
        index = content.get("index")
        if not isinstance(index, int):
            yield event.raw
            return
        if content["type"] == "content_block_start":
            yield from self._start_block(index, content, event)
        elif index in self._hidden:
            yield from self._read_hidden(index, content)
        elif index in self._thinking_blocks and index not in self._indexes:
            self._thinking.append((content, event))
        else:
            yield self._renumber(content, event)

    def _start_block(self, index: int, content: Json, event: ServerSentEvent) -> Iterator[bytes]:
        block = content.get("content_block") or {}
        if block.get("type") == "tool_use" and self.is_hidden(block.get("name")):
            self._hidden[index] = block, []
            return
        if block.get("type") in _THINKING:
            self._thinking_blocks.add(index)
            self._thinking.append((content, event))
            return
        yield from self._release_thinking()
        self.visible_calls += block.get("type") == "tool_use"
        self._indexes[index] = self._take_index()
        yield self._renumber(content, event)

    def _release_thinking(self) -> Iterator[bytes]:
        """Yield the delayed events of thinking blocks when the following block is visible to the client."""
        for content, event in self._thinking:
            if content["type"] == "content_block_start":
                self._indexes[content["index"]] = self._take_index()
            yield self._renumber(content, event)
        self._thinking = []

    def _take_index(self) -> int:
        self._next_index += 1
        return self._next_index - 1

    def _renumber(self, content: Json, event: ServerSentEvent) -> bytes:
        index = self._indexes.get(content["index"], content["index"])
        return (
            event.raw if index == content["index"] else render_event({**content, "index": index}, named=True)
        )

    def _read_hidden(self, index: int, content: Json) -> Iterator[bytes]:
        block, pieces = self._hidden[index]
        if content["type"] == "content_block_delta":
            pieces.append(text_of((content.get("delta") or {}).get("partial_json")))
            return
        arguments = "".join(pieces) or block.get("input")
        resolved = self.resolve_call(ToolCall(block["name"], arguments, text_of(block.get("id"))))
        if resolved is None:
            return
        yield from self._release_thinking()
        shown = self._take_index()
        started = {**block, "name": resolved.name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": render_arguments(resolved)}
        for event in (
            {"type": "content_block_start", "index": shown, "content_block": started},
            {"type": "content_block_delta", "index": shown, "delta": delta},
            {"type": "content_block_stop", "index": shown},
        ):
            yield render_event(event, named=True)

    def end_round(self) -> Iterator[bytes]:
        if not self.hidden_calls:
            for shown in self._release_thinking():
                yield from self._show(shown)

    @property
    def reply(self) -> Reply:
        return self._reader.finish()

    def finish(self) -> Iterator[bytes]:
        yield from self._starting
        if self._delta is not None:
            delta = self._delta.get("delta") or {}
            reason = _stop_reason(delta.get("stop_reason"), self.visible_calls)
            usage = {"usage": self._total_usage(self._delta["usage"])} if "usage" in self._delta else {}
            yield render_event(
                {**self._delta, "delta": {**delta, "stop_reason": reason}, **usage}, named=True
            )
        if self._stop:
            yield self._stop

    def _total_usage(self, last: Any) -> Any:
        """Return the token usage for the end of the stream, summed over all replies."""
        if self.round == 1 or not isinstance(last, dict):
            return last
        numbers = {key: value for key, value in self._usage.items() if isinstance(value, int)}
        return {**last, **numbers}

    def render_keep_alive(self) -> bytes:
        # The API's own event is not allowed before the message has begun.
        return render_event({"type": "ping"}, named=True) if self._has_shown else super().render_keep_alive()

    def render_error(self, problem: str) -> bytes:
        error = {"type": "api_error", "message": f"toolfold: {problem}"}
        return render_event({"type": "error", "error": error}, named=True)


class _MessagesBodyMerger(BodyMerger):
    """Merges several messages into one that contains the visible content blocks of all messages."""

    def __init__(self, resolve: ResolveCall, hidden: Collection[str]) -> None:
        super().__init__(resolve, hidden)
        self._blocks: list[Json] = []
        self._usage: Any = None
        self._last: Json = {}

    def add(self, body: Json) -> Reply:
        self.visible_calls, self.hidden_calls = 0, []
        blocks = map(self._show_block, select_mappings(body["content"]))
        shown = [block for block in blocks if block is not None]
        if any(block.get("type") not in _THINKING for block in shown) or not self.hidden_calls:
            self._blocks += shown
        self._usage = add_usage(self._usage, body.get("usage"))
        self._last = body
        return AnthropicMessages().read_reply(body)

    def _show_block(self, block: Json) -> Json | None:
        if block.get("type") != "tool_use":
            return block
        if not self.is_hidden(block.get("name")):
            self.visible_calls += 1
            return block
        resolved = self.resolve_call(ToolCall(block["name"], block.get("input"), text_of(block.get("id"))))
        return None if resolved is None else {**block, "name": resolved.name, "input": resolved.arguments}

    def merge(self) -> Json:
        reason = _stop_reason(self._last.get("stop_reason"), self.visible_calls)
        return {**self._last, "content": self._blocks, "stop_reason": reason, "usage": self._usage}


def _known_counts(usage: Any) -> Json:
    return (
        {key: value for key, value in usage.items() if value is not None} if isinstance(usage, dict) else {}
    )


def _stop_reason(reason: Any, visible_calls: int) -> Any:
    """Return the stop reason for the client: `end_turn` if all tool calls of the model are hidden."""
    return "end_turn" if reason == "tool_use" and not visible_calls else reason
