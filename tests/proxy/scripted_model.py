"""A scripted model behind the three APIs: its replies with and without streaming, as providers write them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.proxy.upstream import Prepared, Received
from toolfold.core.types import Json

EVENT_STREAM = {"content-type": "text/event-stream"}
MODEL = "test-model-1"


@dataclass
class Say:
    """One reply of the model: reasoning, text, then calls.

    A call of a function in a namespace has the name NAMESPACE:FUNCTION.
    """

    text: str = ""
    calls: Sequence[tuple[str, Json]] = ()
    thinking: str = ""


Script = Sequence[Say] | Callable[[Json], Say]


@dataclass
class ScriptedModel:
    """Answers requests of all three APIs with the replies of a script, in order."""

    script: Script
    requests: list[Json] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __call__(self, received: Received) -> Prepared:
        body = received.json
        self.requests.append(body)
        say = self.script(body) if callable(self.script) else self.script[len(self.requests) - 1]
        path = received.path.removeprefix("/v1/").partition("?")[0]
        whole, events = RENDERERS[path](say, next(self._numbers), body)
        if not body.get("stream"):
            return Prepared([json.dumps(whole).encode()])
        named = path != "chat/completions"
        lines = [
            (f"event: {each['type']}\n" if named else "") + f"data: {json.dumps(each)}\n\n" for each in events
        ]
        end = [] if named else ["data: [DONE]\n\n"]
        return Prepared([line.encode() for line in [*lines, *end]], headers=EVENT_STREAM, chunked=True)


def split(text: str) -> list[str]:
    """Split a text into the pieces in which it is streamed."""
    return [text[start : start + 7] for start in range(0, len(text), 7)] or [""]


def _render_chat(say: Say, number: int, body: Json) -> tuple[Json, list[Json]]:
    ids = [f"call_{number}_{place}" for place in range(len(say.calls))]
    calls: list[Json] = [
        {"id": each, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for each, (name, arguments) in zip(ids, say.calls, strict=True)
    ]
    reason = "tool_calls" if calls else "stop"
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    message = {"role": "assistant", "content": say.text or None, **({"tool_calls": calls} if calls else {})}
    about = {"id": f"chatcmpl-{number}", "created": number, "model": MODEL}
    whole = {
        **about,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": usage,
    }

    def chunk(delta: Json, finish: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {**about, "object": "chat.completion.chunk", "choices": [choice]}

    events = [chunk({"role": "assistant", "content": ""})]
    events += [chunk({"content": piece}) for piece in split(say.text) if piece]
    for index, call in enumerate(calls):
        function = call["function"]
        events.append(
            chunk({"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]})
        )
        events += [
            chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            for piece in split(function["arguments"])
        ]
    events.append(chunk({}, reason))
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append({**chunk({}), "choices": [], "usage": usage})
    return whole, events


def _render_message(say: Say, number: int, _body: Json) -> tuple[Json, list[Json]]:
    blocks: list[Json] = []
    if say.thinking:
        blocks.append({"type": "thinking", "thinking": say.thinking, "signature": f"signed {number}"})
    if say.text:
        blocks.append({"type": "text", "text": say.text})
    blocks += [
        {"type": "tool_use", "id": f"toolu_{number}_{place}", "name": name, "input": arguments}
        for place, (name, arguments) in enumerate(say.calls)
    ]
    reason = "tool_use" if say.calls else "end_turn"
    usage = {"input_tokens": 100, "cache_read_input_tokens": 20, "output_tokens": 10}
    about = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "stop_sequence": None,
    }
    whole = {**about, "content": blocks, "stop_reason": reason, "usage": usage}
    start: Json = {**about, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    events: list[Json] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(blocks):
        deltas: list[Json]
        if block["type"] == "tool_use":
            empty: Json = {**block, "input": {}}
            deltas = [
                {"type": "input_json_delta", "partial_json": piece}
                for piece in split(json.dumps(block["input"]))
            ]
        elif block["type"] == "text":
            empty = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in split(block["text"])]
        else:
            empty = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in split(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    ending = {"stop_reason": reason, "stop_sequence": None}
    events.append({"type": "message_delta", "delta": ending, "usage": {"output_tokens": 10}})
    return whole, [*events, {"type": "message_stop"}]


def _render_response(say: Say, number: int, body: Json) -> tuple[Json, list[Json]]:
    output: list[Json] = []
    if say.thinking:
        summary = [{"type": "summary_text", "text": say.thinking}]
        output.append({"type": "reasoning", "id": f"rs_{number}", "summary": summary})
    if say.text:
        content = [{"type": "output_text", "text": say.text, "annotations": [], "logprobs": []}]
        output.append(
            {
                "type": "message",
                "id": f"m_{number}",
                "role": "assistant",
                "status": "completed",
                "content": content,
            }
        )
    for place, (name, arguments) in enumerate(say.calls):
        about = {"id": f"fc_{number}_{place}", "call_id": f"call_{number}_{place}", "status": "completed"}
        if {"tool_search"} & {name} & {each.get("type") for each in body.get("tools") or []}:
            about |= {"execution": "client"}
            output.append({"type": "tool_search_call", **about, "arguments": arguments})
            continue
        namespace, _, name = name.rpartition(":")
        about |= {"namespace": namespace} if namespace else {}
        output.append({"type": "function_call", **about, "name": name, "arguments": json.dumps(arguments)})
    usage = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 20},
        "output_tokens": 10,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 110,
    }
    whole: Json = {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": number,
        "model": MODEL,
        "status": "completed",
        "output": output,
        "usage": usage,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": body.get("tools") or [],
    }
    started = {**whole, "status": "in_progress", "output": [], "usage": None}
    events: list[Json] = [
        {"type": "response.created", "response": started},
        {"type": "response.in_progress", "response": started},
    ]
    for index, item in enumerate(output):
        events += _item_events(index, item)
    events.append({"type": "response.completed", "response": whole})
    return whole, [{**event, "sequence_number": place} for place, event in enumerate(events)]


def _item_events(index: int, item: Json) -> list[Json]:
    place = {"output_index": index, "item_id": item["id"]}
    begun: Json = {**item}
    middle: list[Json] = []
    if item["type"] == "function_call":
        begun |= {"arguments": "", "status": "in_progress"}
        kind = "response.function_call_arguments"
        middle = [{"type": f"{kind}.delta", **place, "delta": piece} for piece in split(item["arguments"])]
        middle.append({"type": f"{kind}.done", **place, "name": item["name"], "arguments": item["arguments"]})
    elif item["type"] == "message":
        begun |= {"content": [], "status": "in_progress"}
        part, spot = item["content"][0], {**place, "content_index": 0}
        text = part["text"]
        middle = [{"type": "response.content_part.added", **spot, "part": {**part, "text": ""}}]
        middle += [
            {"type": "response.output_text.delta", **spot, "delta": piece, "logprobs": []}
            for piece in split(text)
        ]
        middle.append({"type": "response.output_text.done", **spot, "text": text, "logprobs": []})
        middle.append({"type": "response.content_part.done", **spot, "part": part})
    elif item["type"] == "reasoning":
        begun |= {"summary": []}
        spot = {**place, "summary_index": 0}
        text = item["summary"][0]["text"]
        middle = [
            {"type": "response.reasoning_summary_text.delta", **spot, "delta": piece} for piece in split(text)
        ]
    return [
        {"type": "response.output_item.added", "output_index": index, "item": begun},
        *middle,
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


RENDERERS = {
    "chat/completions": _render_chat,
    "messages": _render_message,
    "responses": _render_response,
}
