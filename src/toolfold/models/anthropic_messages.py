"""Dialect of Anthropic's Messages API: content blocks, cache markers, tools loaded by reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from toolfold.core.errors import shorten
from toolfold.core.events import Usage
from toolfold.core.types import Definition, Json, Media, ToolCall, ToolResult, read_json
from toolfold.models.dialect import (
    DEFERRED,
    NOTICE_OPENING,
    Dialect,
    DialectName,
    Message,
    encode_base64,
    is_older_version,
    is_search_result,
    repair_arguments,
    select_mappings,
    simplify_schema,
    split_search_result,
)
from toolfold.models.model_table import default_output_tokens
from toolfold.models.provider_errors import read_stream_error
from toolfold.models.reply import (
    INTERRUPTED_TEXT,
    Delta,
    FinishReason,
    ModelRequest,
    Reply,
    ReplyReader,
    TextDelta,
    ThinkingDelta,
    count_of,
    text_of,
)

MAX_TOOLS = 10_000
"""The number of tools that one request may contain, including those loaded on demand."""

_FINISH_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}
_PROVIDER_CALLS = ("server_tool_use", "mcp_tool_use")
"""Blocks with calls that the provider runs itself."""
_CACHE_MARK = {"cache_control": {"type": "ephemeral"}}
_FIRST_NATIVE_VERSION = (4, 5)


class AnthropicMessages(Dialect):
    """Anthropic's format: messages of content blocks, with all results of a reply in one user message."""

    name: ClassVar[DialectName] = "anthropic"
    default_model = "claude"
    model_family = "claude"
    lists_deferred_tools = True
    requires_output_limit = True
    # Some deployments know deferred tools only as a beta feature.
    native_headers: ClassVar[Mapping[str, str]] = {"anthropic-beta": "advanced-tool-use-2025-11-20"}

    def render_tool(self, definition: Definition) -> Json:
        function = definition["function"]
        return {
            "name": function["name"],
            "description": function.get("description", ""),
            "input_schema": simplify_schema(function.get("parameters") or {}),
        }

    def render_tools(
        self,
        definitions: Sequence[Definition],
        *,
        deferred: Sequence[Definition] = (),
        native: bool = False,  # noqa: ARG002 - the search stays a tool; its results carry references
        cache_after: int = 0,
    ) -> list[Json]:
        if not definitions:  # at least one tool must not be deferred
            definitions, deferred = deferred[:1], deferred[1:]
        tools = [self.render_tool(each) for each in definitions]
        if 0 < cache_after <= len(tools):
            tools[cache_after - 1] |= _CACHE_MARK
        return tools + [self.render_tool(each) | DEFERRED for each in deferred]

    def render_result(
        self,
        result: ToolResult,
        media: Sequence[Media],
        *,
        deferred: Mapping[str, Definition] | None = None,
    ) -> list[Json]:
        block: Json = {"type": "tool_result", "tool_use_id": result.call_id}
        names: list[str] = []
        rest = ""
        if deferred is not None and is_search_result(result, deferred):
            names, rest = split_search_result(result.text, deferred)
        if not names:
            failed = {"is_error": True} if result.error is not None else {}
            return [block | {"content": _render_content(result, media)} | failed]
        references = [{"type": "tool_reference", "tool_name": name} for name in names]
        # A result with references may hold nothing else, so the remaining text follows it.
        return [
            block | {"content": references},
            *([self.render_text(f"{NOTICE_OPENING}\n{rest}")] if rest else []),
        ]

    def is_result_part(self, part: Json) -> bool:
        return part.get("type") == "tool_result"

    def wrap_parts(self, parts: list[Json]) -> list[Json]:
        return [{"role": "user", "content": parts}] if parts else []

    def build_body(self, request: ModelRequest) -> Json:
        body: Json = {
            "model": request.model,
            "max_tokens": request.max_output_tokens or default_output_tokens(request.model),
            "messages": _mark_newest(request.messages),
        }
        if request.system:
            body["system"] = [{"type": "text", "text": request.system, **_CACHE_MARK}]
        if request.tools:
            body["tools"] = list(request.tools)
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if request.stream:
            body["stream"] = True
        return body | dict(request.options)

    def start_reply(self) -> ReplyReader:
        return _AnthropicReplyReader()

    def read_reply(self, body: Json) -> Reply:
        reader = _AnthropicReplyReader()
        reader.read_message(body)
        for index, block in enumerate(select_mappings(body.get("content"))):
            reader.add_block(index, block)
        return reader.finish()

    def render_image(self, image: Media) -> Json:
        return _render_image(image)

    def user_message(self, text: str) -> Json:
        return {"role": "user", "content": [{"type": "text", "text": text}]}

    def assistant_message(self, text: str) -> Json:
        return {"role": "assistant", "content": [{"type": "text", "text": text}]}

    def render_calls(self, text: str, calls: Sequence[ToolCall]) -> list[Json]:
        blocks: list[Json] = [self.render_text(text)] if text.strip() else []
        for call in calls:
            arguments = read_json(repair_arguments(call.arguments))
            blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments})
        return [{"role": "assistant", "content": blocks}]

    def find_calls(self, messages: Sequence[Message]) -> list[tuple[str, str]]:
        return [
            (text_of(block.get("id")), text_of(block.get("name")))
            for message in messages
            for block in select_mappings(message.get("content"))
            if block.get("type") == "tool_use"
        ]

    def find_result_ids(self, messages: Sequence[Message]) -> set[str]:
        return {
            text_of(block.get("tool_use_id"))
            for message in messages
            for block in select_mappings(message.get("content"))
            if block.get("type") == "tool_result"
        }

    def explain_missing_native(self, model: str) -> str:
        if is_older_version(model, "claude", _FIRST_NATIVE_VERSION):
            return f"{shorten(model)!r} cannot load tools on demand; Claude can from 4.5 on"
        return ""


class _AnthropicReplyReader(ReplyReader):
    """Parser that assembles one streamed Anthropic message from its content blocks."""

    def __init__(self) -> None:
        self._blocks: dict[int, Json] = {}
        self._inputs: dict[int, str] = {}
        self._closed: set[int] = set()
        self._usage: Json = {}
        self._finish: FinishReason = "stop"
        self._model = ""

    def feed(self, event: Json) -> Iterator[Delta]:
        match event.get("type"):
            case "message_start":
                self.read_message(event.get("message") or {})
            case "content_block_start":
                block = dict(event.get("content_block") or {})
                self._blocks[_index_of(event)] = block
                if text := text_of(block.get("text")):
                    yield TextDelta(text)
            case "content_block_delta":
                yield from self._read_delta(_index_of(event), event.get("delta") or {})
            case "content_block_stop":
                self._closed.add(_index_of(event))
            case "message_delta":
                self._usage |= _known_counts(event.get("usage"))
                reason = text_of((event.get("delta") or {}).get("stop_reason"))
                self._finish = _FINISH_REASONS.get(reason, self._finish)
            case "error":
                raise read_stream_error(event.get("error"))

    def read_message(self, message: Json) -> None:
        """Extract the token usage and the stop reason from an Anthropic message object."""
        self._model = text_of(message.get("model"))
        self._usage |= _known_counts(message.get("usage"))
        self._finish = _FINISH_REASONS.get(text_of(message.get("stop_reason")), self._finish)

    def add_block(self, index: int, block: Json) -> None:
        """Add a complete content block to the reply."""
        self._blocks[index] = dict(block)
        self._closed.add(index)

    def _read_delta(self, index: int, delta: Json) -> Iterator[Delta]:
        block = self._blocks.setdefault(index, {"type": "text", "text": ""})
        match delta.get("type"):
            case "text_delta":
                text = text_of(delta.get("text"))
                block["text"] = text_of(block.get("text")) + text
                yield TextDelta(text)
            case "thinking_delta":
                thinking = text_of(delta.get("thinking"))
                block["thinking"] = text_of(block.get("thinking")) + thinking
                yield ThinkingDelta(thinking)
            case "signature_delta":
                block["signature"] = text_of(block.get("signature")) + text_of(delta.get("signature"))
            case "input_json_delta":
                self._inputs[index] = self._inputs.get(index, "") + text_of(delta.get("partial_json"))

    def finish(self, *, interrupted: bool = False) -> Reply:
        blocks: list[Json] = []
        calls: list[ToolCall] = []
        unsent: list[str] = []
        for index, block in sorted(self._blocks.items()):
            kind = block.get("type")
            if kind == "tool_use":
                if interrupted:
                    continue
                arguments, block = self._read_input(index, block)
                calls.append(ToolCall(text_of(block.get("name")), arguments, text_of(block.get("id"))))
            elif kind in _PROVIDER_CALLS:
                _, block = self._read_input(index, block)
            elif kind == "text" and not text_of(block.get("text")).strip():
                continue  # the provider refuses empty text
            elif kind in ("thinking", "redacted_thinking") and interrupted and index not in self._closed:
                unsent.append(text_of(block.get("thinking")))
                continue  # without its signature it would be refused
            blocks.append(block)
        text = "".join(text_of(block.get("text")) for block in blocks if block.get("type") == "text")
        if not any(block.get("type") in ("text", "tool_use") for block in blocks):
            blocks.append({"type": "text", "text": INTERRUPTED_TEXT if interrupted else "[no answer]"})
        return Reply(
            messages=({"role": "assistant", "content": blocks},),
            text=text,
            calls=tuple(calls),
            usage=_read_usage(self._usage),
            finish_reason="interrupted" if interrupted else "tool_calls" if calls else self._finish,
            is_cut=self._finish == "length" and not interrupted,
            model=self._model,
            unsent_thinking="".join(unsent),
        )

    def _read_input(self, index: int, block: Json) -> tuple[Json | str, Json]:
        """Return the arguments of a tool call, and its content block completed with these arguments.

        Text that is not a JSON object is returned as it is, and the block then has no arguments.
        """
        written = self._inputs.get(index, "")
        if not written:
            given = block.get("input")
            return (given, block) if isinstance(given, dict) else ({}, {**block, "input": {}})
        try:
            parsed = read_json(written)
        except ValueError:
            return written, {**block, "input": {}}
        return (
            (parsed, {**block, "input": parsed})
            if isinstance(parsed, dict)
            else (written, {**block, "input": {}})
        )


def _mark_newest(messages: Sequence[Message]) -> list[Json]:
    """Add a cache marker to the newest message, so that the provider caches the conversation."""
    marked = [dict(message) for message in messages]
    if not marked:
        return marked
    content = marked[-1].get("content")
    if isinstance(content, str) and content:
        marked[-1]["content"] = [{"type": "text", "text": content, **_CACHE_MARK}]
    elif isinstance(content, list) and content and _can_carry_mark(content[-1]):
        marked[-1]["content"] = [*content[:-1], {**content[-1], **_CACHE_MARK}]
    return marked


def _can_carry_mark(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") not in ("thinking", "redacted_thinking")


def _known_counts(usage: Any) -> Json:
    """Return the token counts of a usage object, omitting null values."""
    return (
        {key: value for key, value in usage.items() if value is not None}
        if isinstance(usage, Mapping)
        else {}
    )


def _read_usage(usage: Json) -> Usage:
    cached = count_of(usage, "cache_read_input_tokens")
    written = count_of(usage, "cache_creation_input_tokens")
    return Usage(
        input_tokens=count_of(usage, "input_tokens") + cached + written,
        output_tokens=count_of(usage, "output_tokens"),
        cached_tokens=cached,
        cache_write_tokens=written,
    )


def _index_of(event: Json) -> int:
    index = event.get("index")
    return index if isinstance(index, int) else 0


def find_references(messages: Sequence[Message]) -> set[str]:
    """Return the names of tools referenced by tool results; the request must define these tools."""
    return {
        str(reference.get("tool_name"))
        for message in messages
        for part in select_mappings(message.get("content"))
        if part.get("type") == "tool_result"
        for reference in select_mappings(part.get("content"))
        if reference.get("type") == "tool_reference"
    }


def _render_image(image: Media) -> Json:
    source = {"type": "base64", "media_type": image.mime_type, "data": encode_base64(image)}
    return {"type": "image", "source": source}


def _render_content(result: ToolResult, media: Sequence[Media]) -> str | list[Json]:
    images = [_render_image(each) for each in media if each.kind == "image"]
    return [{"type": "text", "text": result.text}, *images] if images else result.text
