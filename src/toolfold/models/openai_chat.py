"""Dialect of OpenAI's Chat Completions API, which most other servers support."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from toolfold.core.events import Usage
from toolfold.core.types import Definition, Json, Media, ToolCall, ToolResult
from toolfold.models.dialect import (
    MEDIA_SENDER,
    Dialect,
    DialectName,
    Message,
    arguments_text,
    data_uri,
    encode_base64,
    repair_arguments,
    select_mappings,
    simplify_schema,
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

_AUDIO_FORMATS = {"audio/wav": "wav", "audio/mpeg": "mp3"}
_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "refusal",
}
_TEXT_KEYS = frozenset({"role", "content"})
_THINKING_KEYS = ("reasoning_content", "reasoning")
"""Message keys in which OpenAI-compatible servers return reasoning; it is not sent back to them."""
_MEDIA_NOTICE = (
    "(What it shows follows in a message of its own. It is data from this tool, not from the user.)"
)


class OpenAIChat(Dialect):
    """OpenAI's chat format: messages with the roles system, user, assistant and tool."""

    name: ClassVar[DialectName] = "openai"
    model_family = "gpt"

    def render_tool(self, definition: Definition) -> Json:
        function = definition["function"]
        parameters = simplify_schema(function.get("parameters") or {})
        return {**definition, "function": {**function, "parameters": parameters}}

    def render_tools(
        self,
        definitions: Sequence[Definition],
        *,
        deferred: Sequence[Definition] = (),  # noqa: ARG002 - nothing can be deferred here
        native: bool = False,  # noqa: ARG002
        cache_after: int = 0,  # noqa: ARG002 - the prefix is cached without marks
    ) -> list[Json]:
        return [self.render_tool(each) for each in definitions]

    def render_result(
        self,
        result: ToolResult,
        media: Sequence[Media],
        *,
        deferred: Mapping[str, Definition] | None = None,  # noqa: ARG002
    ) -> list[Json]:
        """Return a tool message with the text of a result; media follow in a user message."""
        message = {"role": "tool", "tool_call_id": result.call_id, "content": result.text}
        parts = [part for each in media if (part := _render_media(each))]
        if not parts:
            return [message]
        message["content"] = f"{result.text}\n\n{_MEDIA_NOTICE}"
        return [message, {"role": "user", "name": MEDIA_SENDER, "content": parts}]

    def is_result_part(self, part: Json) -> bool:
        return part.get("role") == "tool"

    def build_body(self, request: ModelRequest) -> Json:
        system = [{"role": "system", "content": request.system}] if request.system else []
        messages = [*system, *map(_with_valid_arguments, request.messages)]
        body: Json = {"model": request.model, "messages": messages}
        if request.tools:
            body["tools"] = list(request.tools)
        if request.max_output_tokens is not None:
            body["max_completion_tokens"] = request.max_output_tokens
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if request.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body | dict(request.options)

    def start_reply(self) -> ReplyReader:
        return _ChatReplyReader()

    def read_reply(self, body: Json) -> Reply:
        choice = next(iter(select_mappings(body.get("choices"))), {})
        message = choice.get("message") or {}
        reader = _ChatReplyReader()
        delta = {**message, "tool_calls": _number_calls(message.get("tool_calls"))}
        event = {**body, "choices": [{"delta": delta, "finish_reason": choice.get("finish_reason")}]}
        list(reader.feed(event))
        return reader.finish()

    def render_image(self, image: Media) -> Json:
        return _render_image(image)

    def user_message(self, text: str) -> Json:
        return {"role": "user", "content": text}

    def assistant_message(self, text: str) -> Json:
        return {"role": "assistant", "content": text}

    def render_calls(self, text: str, calls: Sequence[ToolCall]) -> list[Json]:
        rendered = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": arguments_text(call)},
            }
            for call in calls
        ]
        return [{"role": "assistant", "content": text or None, "tool_calls": rendered}]

    def find_calls(self, messages: Sequence[Message]) -> list[tuple[str, str]]:
        return [
            (text_of(call.get("id")), text_of((call.get("function") or {}).get("name")))
            for message in messages
            for call in select_mappings(message.get("tool_calls"))
        ]

    def find_result_ids(self, messages: Sequence[Message]) -> set[str]:
        return {text_of(each.get("tool_call_id")) for each in messages if each.get("role") == "tool"}

    def explain_missing_native(self, model: str) -> str:  # noqa: ARG002
        return "OpenAI chat has no form of its own for tools that are loaded on demand"


class _ChatReplyReader(ReplyReader):
    """Parser that assembles one streamed chat completion from its chunks."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._refusal: list[str] = []
        self._calls: dict[int, Json] = {}
        self._finish: FinishReason = "stop"
        self._usage = Usage()
        self._model = ""

    def feed(self, event: Json) -> Iterator[Delta]:
        if error := event.get("error"):
            raise read_stream_error(error)
        self._model = text_of(event.get("model")) or self._model
        if isinstance(event.get("usage"), Mapping):
            self._usage = _read_usage(event["usage"])
        for choice in select_mappings(event.get("choices"))[:1]:
            self._finish = _FINISH_REASONS.get(text_of(choice.get("finish_reason")), self._finish)
            yield from self._read_delta(choice.get("delta") or {})

    def _read_delta(self, delta: Json) -> Iterator[Delta]:
        if delta.keys() <= _TEXT_KEYS:  # as most pieces of a stream
            if text := text_of(delta.get("content")):
                self._text.append(text)
                yield TextDelta(text)
            return
        if thinking := next((text for key in _THINKING_KEYS if (text := text_of(delta.get(key)))), ""):
            self._thinking.append(thinking)
            yield ThinkingDelta(thinking)
        if refusal := text_of(delta.get("refusal")):
            self._refusal.append(refusal)
            yield TextDelta(refusal)
        if text := text_of(delta.get("content")):
            self._text.append(text)
            yield TextDelta(text)
        for part in select_mappings(delta.get("tool_calls")):
            self._read_call(part)

    def _read_call(self, part: Json) -> None:
        index = part.get("index")
        if not isinstance(index, int):  # some servers send whole calls without an index
            index = len(self._calls)
        call = self._calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        function = part.get("function") or {}
        call["id"] = text_of(part.get("id")) or call["id"]
        call["name"] += text_of(function.get("name"))
        call["arguments"] += text_of(function.get("arguments"))

    def finish(self, *, interrupted: bool = False) -> Reply:
        text = "".join(self._text) or "".join(self._refusal)
        calls = [] if interrupted else [each for _, each in sorted(self._calls.items()) if each["name"]]
        for number, call in enumerate(calls):
            call["id"] = call["id"] or f"call_{number}"
        read = [ToolCall(call["name"], call["arguments"], call["id"]) for call in calls]
        (message,) = OpenAIChat().render_calls(text, read)
        if not calls:
            del message["tool_calls"]
            message["content"] = text or (INTERRUPTED_TEXT if interrupted else "")
        reason: FinishReason = "interrupted" if interrupted else "tool_calls" if calls else self._finish
        return Reply(
            messages=(message,),
            text=text,
            calls=tuple(read),
            usage=self._usage,
            finish_reason="refusal" if self._refusal and not interrupted else reason,
            is_cut=self._finish == "length" and not interrupted,
            model=self._model,
            unsent_thinking="".join(self._thinking) if interrupted else "",
        )


def _with_valid_arguments(message: Json) -> Json:
    """Return a message whose tool calls have JSON objects as arguments; the history keeps the originals."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    valid = []
    for call in select_mappings(calls):
        function = call.get("function") or {}
        arguments = repair_arguments(function.get("arguments"))
        valid.append({**call, "function": {**function, "arguments": arguments}})
    return {**message, "tool_calls": valid}


def _number_calls(calls: Any) -> list[Json]:
    return [{**call, "index": number} for number, call in enumerate(select_mappings(calls))]


def _read_usage(usage: Mapping[str, Any]) -> Usage:
    return Usage(
        input_tokens=count_of(usage, "prompt_tokens"),
        output_tokens=count_of(usage, "completion_tokens"),
        cached_tokens=count_of(usage, "prompt_tokens_details", "cached_tokens"),
        reasoning_tokens=count_of(usage, "completion_tokens_details", "reasoning_tokens"),
    )


def _render_image(image: Media) -> Json:
    return {"type": "image_url", "image_url": {"url": data_uri(image)}}


def _render_media(media: Media) -> Json | None:
    if media.kind == "image":
        return _render_image(media)
    audio_format = _AUDIO_FORMATS.get(media.mime_type)
    if audio_format is None:
        return None
    return {"type": "input_audio", "input_audio": {"data": encode_base64(media), "format": audio_format}}
