"""Dialect of OpenAI's Responses API: typed input items, and a client-executed tool search."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from toolfold.core.errors import shorten
from toolfold.core.events import Usage
from toolfold.core.types import BRIDGE_SEARCH, Definition, Json, Media, ToolCall, ToolResult
from toolfold.models.dialect import (
    DEFERRED,
    Dialect,
    DialectName,
    Message,
    arguments_text,
    data_uri,
    is_older_version,
    is_search_result,
    repair_arguments,
    select_mappings,
    simplify_schema,
    split_search_result,
)
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

_FIRST_NATIVE_VERSION = (5, 4)
_CALL_TYPES = ("function_call", "tool_search_call")
_REASONING_MODEL = re.compile(r"\bo[1-9]\b")


class OpenAIResponses(Dialect):
    """OpenAI's Responses format: a list of input items, some of which may add tools."""

    name: ClassVar[DialectName] = "responses"
    default_model = "gpt"
    model_family = "gpt"
    accepts_tools_in_input = True

    def render_tool(self, definition: Definition) -> Json:
        function = definition["function"]
        parameters = simplify_schema(function.get("parameters") or {})
        # Without this key the provider assumes a strict schema.
        return {"type": "function", **function, "parameters": parameters, "strict": False}

    def render_tools(
        self,
        definitions: Sequence[Definition],
        *,
        deferred: Sequence[Definition] = (),  # noqa: ARG002 - sent with the search result instead
        native: bool = False,
        cache_after: int = 0,  # noqa: ARG002 - the prefix is cached without marks
    ) -> list[Json]:
        tools = [self.render_tool(each) for each in definitions]
        return [_as_native_search(tool) for tool in tools] if native else tools

    def render_result(
        self,
        result: ToolResult,
        media: Sequence[Media],
        *,
        deferred: Mapping[str, Definition] | None = None,
    ) -> list[Json]:
        if deferred is not None and is_search_result(result, deferred):
            return self._render_search_result(result, deferred)
        images = [self.render_image(each) for each in media if each.kind == "image"]
        output = [self.render_text(result.text), *images] if images else result.text
        return [{"type": "function_call_output", "call_id": result.call_id, "output": output}]

    def _render_search_result(self, result: ToolResult, deferred: Mapping[str, Definition]) -> list[Json]:
        names, rest = split_search_result(result.text, deferred)
        output = {
            "type": "tool_search_output",
            "execution": "client",
            "call_id": result.call_id,
            "status": "completed",
            "tools": [self.render_tool(deferred[name]) | DEFERRED for name in names],
        }
        return [output, *([{"role": "developer", "content": rest}] if rest else [])]

    def is_result_part(self, part: Json) -> bool:
        return str(part.get("type")).endswith("_output")

    def render_text(self, text: str) -> Json:
        return {"type": "input_text", "text": text}

    def render_added_tools(self, definitions: Sequence[Definition]) -> Json:
        tools = [self.render_tool(each) for each in definitions]
        return {"type": "additional_tools", "role": "developer", "tools": tools}

    def build_body(self, request: ModelRequest) -> Json:
        body: Json = {
            "model": request.model,
            "input": [_with_valid_arguments(message) for message in request.messages],
            # The history is ours: nothing is stored at the provider, so reasoning must travel with it.
            "store": False,
            "include": ["reasoning.encrypted_content"],
        }
        if request.system:
            body["instructions"] = request.system
        if request.tools:
            body["tools"] = list(request.tools)
        if request.max_output_tokens is not None:
            body["max_output_tokens"] = request.max_output_tokens
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if request.stream:
            body["stream"] = True
        return body | dict(request.options)

    def start_reply(self) -> ReplyReader:
        return _ResponsesReplyReader()

    def read_reply(self, body: Json) -> Reply:
        reader = _ResponsesReplyReader()
        list(reader.feed({"type": f"response.{body.get('status') or 'completed'}", "response": body}))
        return reader.finish()

    def render_image(self, image: Media) -> Json:
        return {"type": "input_image", "image_url": data_uri(image), "detail": "auto"}

    def user_message(self, text: str) -> Json:
        return {"role": "user", "content": text}

    def assistant_message(self, text: str) -> Json:
        return {"role": "assistant", "content": text}

    def render_calls(self, text: str, calls: Sequence[ToolCall]) -> list[Json]:
        rendered: list[Json] = [
            {
                "type": "function_call",
                "call_id": call.id,
                "name": call.name,
                "arguments": arguments_text(call),
            }
            for call in calls
        ]
        return [*([self.assistant_message(text)] if text else []), *rendered]

    def find_calls(self, messages: Sequence[Message]) -> list[tuple[str, str]]:
        return [
            (text_of(item.get("call_id")), text_of(item.get("name")) or BRIDGE_SEARCH)
            for item in messages
            if item.get("type") in _CALL_TYPES
        ]

    def find_result_ids(self, messages: Sequence[Message]) -> set[str]:
        return {
            text_of(item.get("call_id")) for item in messages if text_of(item.get("type")).endswith("_output")
        }

    def explain_missing_native(self, model: str) -> str:
        name = model.lower()
        if (
            _REASONING_MODEL.search(name)
            or "gpt-oss" in name
            or is_older_version(name, "gpt", _FIRST_NATIVE_VERSION)
        ):
            return f"{shorten(model)!r} cannot load tools on demand; OpenAI's models can from gpt-5.4 on"
        return ""


class _ResponsesReplyReader(ReplyReader):
    """Parser that assembles one streamed response from its output items."""

    def __init__(self) -> None:
        self._items: dict[int, Json] = {}
        self._pending: dict[int, str] = {}
        """Text received so far of each output item that is not complete."""
        self._thinking: dict[int, str] = {}
        """Reasoning shown to the user, by output item."""
        self._usage = Usage()
        self._finish: FinishReason = "stop"
        self._model = self._id = ""

    def feed(self, event: Json) -> Iterator[Delta]:
        match event.get("type"):
            case "response.output_text.delta" | "response.refusal.delta":
                text, index = text_of(event.get("delta")), _index_of(event)
                self._pending[index] = self._pending.get(index, "") + text
                yield TextDelta(text)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                text, index = text_of(event.get("delta")), _index_of(event)
                self._thinking[index] = self._thinking.get(index, "") + text
                yield ThinkingDelta(text)
            case "response.output_item.done":
                index = _index_of(event)
                self._items[index] = event.get("item") or {}
                self._pending.pop(index, None)
            case "response.completed" | "response.incomplete":
                self._read_response(event.get("response") or {})
            case "response.failed" | "error":
                raise read_stream_error(
                    (event.get("response") or {}).get("error") or event.get("error") or event
                )

    def _read_response(self, response: Json) -> None:
        self._model = text_of(response.get("model"))
        self._id = text_of(response.get("id"))
        self._usage = _read_usage(response.get("usage") or {})
        if items := select_mappings(response.get("output")):
            self._items, self._pending = dict(enumerate(items)), {}
        reason = text_of((response.get("incomplete_details") or {}).get("reason"))
        if response.get("status") == "incomplete":
            self._finish = "refusal" if reason == "content_filter" else "length"

    def finish(self, *, interrupted: bool = False) -> Reply:
        indexes = self._find_kept_items() if interrupted else sorted(self._items)
        kept = [_strip_empty(self._items[index]) for index in indexes]
        text = "".join(_item_text(item) for item in kept if item.get("type") == "message")
        if pending := "".join(self._pending[index] for index in sorted(self._pending)):
            kept.append({"role": "assistant", "content": pending})
            text += pending
        if not kept:
            kept.append({"role": "assistant", "content": INTERRUPTED_TEXT if interrupted else "[no answer]"})
        calls = [_read_call(item) for item in kept if item.get("type") in _CALL_TYPES]
        return Reply(
            messages=tuple(kept),
            text=text,
            calls=tuple(calls),
            usage=self._usage,
            finish_reason="interrupted" if interrupted else "tool_calls" if calls else self._finish,
            is_cut=self._finish == "length" and not interrupted,
            model=self._model,
            id=self._id,
            unsent_thinking=self._join_thinking(indexes) if interrupted else "",
        )

    def _find_kept_items(self) -> list[int]:
        """Return the indexes of an interrupted response's items that the next request may contain.

        Reasoning is valid only directly before the message it led to. Calls are dropped.
        """
        order = sorted(self._items)
        kinds = [self._items[index].get("type") for index in order]
        pairs = itertools.pairwise([*kinds, None])
        return [
            index
            for index, (kind, after) in zip(order, pairs, strict=True)
            if kind == "message" or (kind == "reasoning" and after == "message")
        ]

    def _join_thinking(self, kept: Sequence[int]) -> str:
        return "".join(text for index, text in sorted(self._thinking.items()) if index not in kept)


def _with_valid_arguments(item: Json) -> Json:
    """Return an input item in which the arguments of a call are a JSON object."""
    if item.get("type") != "function_call":
        return dict(item)
    return {**item, "arguments": repair_arguments(item.get("arguments"))}


def _read_call(item: Json) -> ToolCall:
    name = text_of(item.get("name")) or BRIDGE_SEARCH
    arguments = item.get("arguments")
    return ToolCall(
        name, arguments if isinstance(arguments, (dict, str)) else None, text_of(item.get("call_id"))
    )


def _strip_empty(item: Json) -> Json:
    """Return an output item without null values, which the API rejects as input."""
    return {key: value for key, value in item.items() if value is not None}


def _item_text(item: Json) -> str:
    parts = select_mappings(item.get("content"))
    return "".join(text_of(part.get("text")) or text_of(part.get("refusal")) for part in parts)


def _read_usage(usage: Json) -> Usage:
    return Usage(
        input_tokens=count_of(usage, "input_tokens"),
        output_tokens=count_of(usage, "output_tokens"),
        cached_tokens=count_of(usage, "input_tokens_details", "cached_tokens"),
        reasoning_tokens=count_of(usage, "output_tokens_details", "reasoning_tokens"),
    )


def _index_of(event: Json) -> int:
    index = event.get("output_index")
    return index if isinstance(index, int) else 0


def _as_native_search(tool: Json) -> Json:
    """Replace the tool `tool_search` by the API's native tool search; return other tools unchanged.

    Tools that the API's own search returns can be called at once.
    """
    if tool["name"] != BRIDGE_SEARCH:
        return tool
    return {"type": BRIDGE_SEARCH, "execution": "client"} | {
        key: tool[key] for key in ("description", "parameters")
    }
