"""Parsing and rewriting of OpenAI's chat completions for the proxy."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from toolfold.core.types import BRIDGE_NAMES, Json, ToolCall
from toolfold.models.dialect import select_mappings
from toolfold.models.openai_chat import OpenAIChat
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

_DONE = b"data: [DONE]\n\n"


class ChatWire(Wire):
    """Parses and rewrites requests and replies of OpenAI's Chat Completions API for the proxy."""

    dialect = OpenAIChat()
    names_events = False

    def read_tool(self, entry: Json) -> ClientTool | None:
        function = entry.get("function")
        if entry.get("type") != "function" or not isinstance(function, dict):
            return None
        return read_function(function, entry)

    def find_forced_tools(self, body: Json) -> set[str]:
        choice = body.get("tool_choice")
        if not isinstance(choice, dict):
            return set()
        allowed = choice.get("allowed_tools")
        entries = [choice, *select_mappings(allowed.get("tools") if isinstance(allowed, dict) else None)]
        functions = (entry.get("function") for entry in entries)
        return {text_of(each.get("name")) for each in functions if isinstance(each, dict)}

    def explain_unfoldable(self, body: Json) -> str:
        if body.get("n") not in (None, 1):
            return "it asks for several answers"
        return "it uses the old form of tools" if "functions" in body else ""

    def merge_stream(
        self,
        request: Json,  # noqa: ARG002
        resolve: ResolveCall,
        hidden: Collection[str] = BRIDGE_NAMES,
    ) -> StreamMerger:
        return _ChatStreamMerger(resolve, hidden)

    def merge_bodies(
        self,
        request: Json,  # noqa: ARG002
        resolve: ResolveCall,
        hidden: Collection[str] = BRIDGE_NAMES,
    ) -> BodyMerger:
        return _ChatBodyMerger(resolve, hidden)


def read_function(function: Json, entry: Json) -> ClientTool | None:
    """Return a function tool; None if its name is missing or its parameters are not a JSON schema."""
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not name or not (parameters is None or isinstance(parameters, dict)):
        return None
    schema: Json = parameters or {"type": "object", "properties": {}}
    return ClientTool(name, text_of(function.get("description")), schema, entry)


class _ChatStreamMerger(StreamMerger):
    """Merges the streams of several replies into one stream, which the client sees as a single reply.

    Calls that follow a call of a bridge tool are held back until the reply ends, to keep their order.
    """

    def __init__(self, resolve: ResolveCall, hidden: Collection[str]) -> None:
        super().__init__(resolve, hidden)
        self._reader = OpenAIChat().start_reply()
        self._first: Json = {}
        """The identity of the first chunk, which all chunks of the merged stream have."""
        self._starting: list[bytes] = []
        """Chunks without content, until the client gets the first with content: until then nothing is sent,
        so that an error can be answered with its own status or by the original request."""
        self._has_shown = False
        """True if the client has got a chunk."""
        self._is_continued = False
        """True if the client has got a chunk of an earlier round."""
        self._keys: dict[int, int] = {}
        """The index of a call in the provider's stream → its number in the round."""
        self._ids: dict[int, str] = {}
        self._held: dict[int, Json] = {}
        """Calls that the client does not get yet, by number."""
        self._sent: dict[int, int] = {}
        """Calls that the client gets, by number, with their index in the merged stream."""
        self._next_index = 0
        self._finish: Json | None = None
        self._usage_chunk: Json | None = None
        self._usage: Any = None
        self._has_done = False

    def start_round(self) -> None:
        super().start_round()
        self._reader = OpenAIChat().start_reply()
        self._keys, self._ids, self._held, self._sent = {}, {}, {}, {}
        self._finish = self._usage_chunk = None
        self._is_continued, self._starting = self._has_shown, []
        if not self._has_shown:
            self._first = {}

    def feed(self, event: ServerSentEvent) -> Iterator[bytes]:
        if event.data.strip() == "[DONE]":
            self._has_done = self.is_complete = True
            return
        chunk = event.parse()
        if chunk is None:
            yield from self._show(event.raw)
            return
        if chunk.get("error"):
            self.has_failed = True
            yield from self._show(event.raw)
            return
        yield from self._feed_chunk(chunk, event)

    def _feed_chunk(self, chunk: Json, event: ServerSentEvent) -> Iterator[bytes]:
        if not self._first:
            self._first = {key: chunk[key] for key in ("id", "created", "model") if key in chunk}
        choices = select_mappings(chunk.get("choices"))
        choice = choices[0] if choices else None
        delta = choice.get("delta") if choice else None
        delta = delta if isinstance(delta, dict) else {}
        calls = select_mappings(delta["tool_calls"]) if "tool_calls" in delta else []
        parts = [self._number_part(part) for part in calls]
        self._read(chunk, choice, delta, parts)
        if chunk.get("usage") is not None:
            self._usage = add_usage(self._usage, chunk["usage"])
        if choice is None:
            self._usage_chunk = chunk
            return
        visible = self._split_parts(parts) if parts else []
        if choice.get("finish_reason") is not None:
            self._finish, self.is_complete = chunk, True
        elif not self._is_continued and not parts:
            if self._has_shown and not self._starting:
                yield event.raw
            elif any(value not in (None, "") for key, value in delta.items() if key != "role"):
                yield from self._show(event.raw)
            else:
                self._starting.append(event.raw)
            return
        yield from self._render_delta(chunk, choice, delta, visible)

    def _read(self, chunk: Json, choice: Json | None, delta: Json, parts: list[Json]) -> None:
        """Add a stream chunk to the reply, correcting the indexes of its tool calls."""
        if parts or choice is None or choice.get("delta") is not delta:
            numbered = [{**choice, "delta": {**delta, "tool_calls": parts}}] if choice else []
            chunk = {**chunk, "choices": numbered}
        try:
            for _ in self._reader.feed(chunk):
                pass
        except ProviderError:  # a malformed chunk; the client gets what it can read
            return

    def _number_part(self, part: Json) -> Json:
        """Return a tool call fragment with the correct index, because some servers send 0 for every call."""
        index = part.get("index")
        key = index if isinstance(index, int) else -1
        call_id = text_of(part.get("id"))
        is_new = key not in self._keys or (bool(call_id) and self._ids[self._keys[key]] not in ("", call_id))
        if is_new:
            self._keys[key] = len(self._ids)
            self._ids[self._keys[key]] = ""
        number = self._keys[key]
        self._ids[number] = self._ids[number] or call_id
        return {**part, "index": number}

    def _split_parts(self, parts: list[Json]) -> list[Json]:
        """Return the tool call fragments to send to the client now; hold the others until the reply ends."""
        visible: list[Json] = []
        for part in parts:
            number, function = part["index"], part.get("function") or {}
            if number not in self._sent and number not in self._held:
                if self._held or self.is_hidden(function.get("name")):
                    self._held[number] = {"id": "", "name": "", "arguments": ""}
                else:
                    self._sent[number] = self._take_index()
            if number in self._sent:
                visible.append({**part, "index": self._sent[number]})
            else:
                call = self._held[number]
                call["id"] = call["id"] or text_of(part.get("id"))
                call["name"] += text_of(function.get("name"))
                call["arguments"] += text_of(function.get("arguments"))
        return visible

    def _take_index(self) -> int:
        self.visible_calls += 1
        self._next_index += 1
        return self._next_index - 1

    def _render_delta(self, chunk: Json, choice: Json, delta: Json, visible: list[Json]) -> Iterator[bytes]:
        """Yield a chunk with only the tool calls for the client; finish reason and usage are sent later."""
        left = {key: value for key, value in delta.items() if key != "tool_calls"}
        if self._is_continued:
            left.pop("role", None)
            left = {key: value for key, value in left.items() if value not in (None, "")}
        if visible:
            left["tool_calls"] = visible
        if not any(value not in (None, "") for value in left.values()):
            return
        shown = {**choice, "delta": left, "finish_reason": None}
        kept = {key: value for key, value in chunk.items() if key != "usage"}
        yield from self._show(render_event({**kept, **self._first, "choices": [shown]}, named=False))

    def _show(self, event: bytes) -> Iterator[bytes]:
        """Yield an event for the client, preceded by the stream's start chunks if it is the first event."""
        held, self._starting, self._has_shown = self._starting, [], True
        yield from held
        yield event

    def end_round(self) -> Iterator[bytes]:
        for number, call in sorted(self._held.items()):
            read = ToolCall(call["name"], call["arguments"], call["id"] or f"call_{number}")
            if self.is_hidden(read.name):
                resolved = self.resolve_call(read)
                if resolved is None:
                    continue
                call = {**call, "name": resolved.name, "arguments": render_arguments(resolved)}
                index = self._next_index
                self._next_index += 1
            else:
                index = self._take_index()
            function = {"name": call["name"], "arguments": call["arguments"]}
            part = {"index": index, "id": read.id, "type": "function", "function": function}
            yield from self._show(self._render_chunk({"tool_calls": [part]}, None))
        self._held = {}

    def _render_chunk(self, delta: Json, finish_reason: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        chunk = {"object": "chat.completion.chunk", **self._first, "choices": [choice]}
        return render_event(chunk, named=False)

    @property
    def reply(self) -> Reply:
        return self._reader.finish()

    def finish(self) -> Iterator[bytes]:
        yield from self._starting
        if self._finish is not None:
            choice = select_mappings(self._finish.get("choices"))[0]
            reason = _finish_reason(choice.get("finish_reason"), self.visible_calls)
            usage = {"usage": self._usage} if self._finish.get("usage") is not None else {}
            last = {**choice, "delta": {}, "finish_reason": reason}
            yield render_event({**self._finish, **self._first, "choices": [last], **usage}, named=False)
        if self._usage_chunk is not None:
            yield render_event({**self._usage_chunk, **self._first, "usage": self._usage}, named=False)
        if self._has_done:
            yield _DONE

    def render_error(self, problem: str) -> bytes:
        error = {"message": f"toolfold: {problem}", "type": "api_error", "param": None, "code": None}
        return f"data: {json.dumps({'error': error})}\n\n".encode()


class _ChatBodyMerger(BodyMerger):
    """Merges several chat completions into one: the texts of all, and the tool calls of the last one."""

    def __init__(self, resolve: ResolveCall, hidden: Collection[str]) -> None:
        super().__init__(resolve, hidden)
        self._texts: list[str] = []
        self._calls: list[Json] = []
        self._usage: Any = None
        self._last: Json = {}

    def add(self, body: Json) -> Reply:
        self.visible_calls, self.hidden_calls, self._calls = 0, [], []
        message = _message_of(body)
        self._texts.append(text_of(message.get("content")))
        self._usage = add_usage(self._usage, body.get("usage"))
        self._last = body
        for call in select_mappings(message.get("tool_calls")):
            if (shown := self._show_call(call)) is not None:
                self._calls.append(shown)
        return OpenAIChat().read_reply(body)

    def _show_call(self, call: Json) -> Json | None:
        function = call.get("function") or {}
        if not self.is_hidden(function.get("name")):
            self.visible_calls += 1
            return call
        read = ToolCall(function["name"], text_of(function.get("arguments")), text_of(call.get("id")))
        resolved = self.resolve_call(read)
        if resolved is None:
            return None
        return {**call, "function": {"name": resolved.name, "arguments": render_arguments(resolved)}}

    def merge(self) -> Json:
        choice = select_mappings(self._last.get("choices"))[0]
        message = {**_message_of(self._last)}
        message.pop("tool_calls", None)
        message["content"] = "".join(self._texts) or None
        if self._calls:
            message["tool_calls"] = self._calls
        reason = _finish_reason(choice.get("finish_reason"), self.visible_calls)
        merged = {**self._last, "choices": [{**choice, "message": message, "finish_reason": reason}]}
        return merged | ({"usage": self._usage} if self._usage is not None else {})


def _message_of(body: Json) -> Json:
    choices = select_mappings(body.get("choices"))
    message = choices[0].get("message") if choices else None
    return message if isinstance(message, dict) else {}


def _finish_reason(reason: Any, visible_calls: int) -> Any:
    """Return the finish reason for the client: `stop` if all tool calls of the model are hidden."""
    return "stop" if reason == "tool_calls" and not visible_calls else reason
