"""Streams of providers that deviate from the usual form are read without losing a call or its arguments."""

from __future__ import annotations

import json
from collections.abc import Sequence

from toolfold.core.types import Json, ToolCall
from toolfold.core.validation import parse_arguments
from toolfold.models.wire import WIRES, EventParser, StreamMerger

ARGUMENTS = {"name": "get_forecast", "arguments": {"city": "Porto"}}


def resolve(call: ToolCall) -> ToolCall:
    wrapped = parse_arguments(call.name, call.arguments)
    return ToolCall(wrapped["name"], wrapped["arguments"], call.id)


def merge(path: str, events: Sequence[Json], *, end: bytes = b"") -> tuple[StreamMerger, list[Json]]:
    """Return the merger after one round of these events, and the events that the client gets."""
    merger, parser = WIRES[path].merge_stream({"tools": []}, resolve), EventParser()
    merger.start_round()
    data = b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events) + end
    parts = [part for event in parser.feed(data) for part in merger.feed(event)]
    parts += [*merger.end_round(), *merger.finish()]
    shown = [content for event in parser.feed(b"".join(parts)) if (content := event.parse())]
    return merger, shown


def chunk(delta: Json, finish: str | None = None) -> Json:
    return {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def calls_of(chunks: Sequence[Json]) -> list[tuple[int, str, str]]:
    """Return index, name and arguments of the calls in chat chunks."""
    calls: dict[int, list[str]] = {}
    for each in chunks:
        for part in each["choices"][0]["delta"].get("tool_calls", []):
            call = calls.setdefault(part["index"], ["", ""])
            call[0] += part["function"].get("name", "")
            call[1] += part["function"].get("arguments", "")
    return [(index, *call) for index, call in sorted(calls.items())]  # type: ignore[misc]


def test_parallel_tool_calls_streamed_with_the_same_index_0_stay_separate() -> None:
    parts = [
        {"index": 0, "id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for name in ("a", "b", "c")
    ]
    events = [*(chunk({"tool_calls": [part]}) for part in parts), chunk({}, "tool_calls")]
    _, shown = merge("chat/completions", events, end=b"data: [DONE]\n\n")
    assert calls_of(shown) == [(0, "a", "{}"), (1, "b", "{}"), (2, "c", "{}")]


def test_text_and_a_tool_call_in_the_same_stream_chunk_both_reach_the_client() -> None:
    function = {"name": "tool_call", "arguments": json.dumps(ARGUMENTS)}
    delta = {
        "content": "Look:",
        "tool_calls": [{"index": 0, "id": "x", "type": "function", "function": function}],
    }
    merger, shown = merge("chat/completions", [chunk(delta), chunk({}, "tool_calls")])
    assert shown[0]["choices"][0]["delta"] == {"content": "Look:"}
    assert calls_of(shown) == [(0, "get_forecast", '{"city":"Porto"}')]
    assert shown[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert merger.reply.calls[0].name == "tool_call"


def test_tool_arguments_sent_only_in_the_start_event_of_a_content_block_reach_the_client() -> None:
    block = {"type": "tool_use", "id": "x", "name": "tool_call", "input": ARGUMENTS}
    events: list[Json] = [
        {"type": "message_start", "message": {"usage": {"input_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    _, shown = merge("messages", events)
    assert [event["type"] for event in shown].count("message_start") == 1
    assert shown[1]["content_block"] == {"type": "tool_use", "id": "x", "name": "get_forecast", "input": {}}
    assert json.loads(shown[2]["delta"]["partial_json"]) == {"city": "Porto"}
    assert shown[-2]["delta"]["stop_reason"] == "tool_use"


def test_stream_events_of_provider_executed_tools_are_forwarded_unchanged() -> None:
    block = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": '{"query": "weather"}'}
    events: list[Json] = [
        {"type": "message_start", "message": {}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ]
    merger, shown = merge("messages", events)
    assert merger.reply.messages[0]["content"][0] == {**block, "input": {"query": "weather"}}
    assert merger.reply.calls == ()
    assert shown == events


def test_tool_arguments_sent_only_in_the_done_event_of_an_output_item_reach_the_client() -> None:
    item = {"type": "function_call", "id": "f", "call_id": "x", "name": "tool_call"}
    done = {**item, "arguments": json.dumps(ARGUMENTS)}
    events: list[Json] = [
        {"type": "response.created", "response": {"id": "r", "output": []}, "sequence_number": 0},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "arguments": ""}},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {"type": "response.completed", "response": {"id": "r", "output": [done]}, "sequence_number": 3},
    ]
    _, shown = merge("responses", events)
    (call,) = shown[-1]["response"]["output"]
    assert (call["name"], call["arguments"]) == ("get_forecast", '{"city":"Porto"}')
    assert [event["type"].rpartition(".")[2] for event in shown] == [
        *("created", "added", "delta", "done", "done", "completed")
    ]


def test_tool_calls_sent_only_in_the_completed_event_of_a_response_reach_the_client() -> None:
    call = {"type": "function_call", "id": "f", "call_id": "x", "name": "tool_call"}
    output = [
        {**call, "arguments": json.dumps(ARGUMENTS)},
        {**call, "call_id": "y", "name": "own", "arguments": "{}"},
    ]
    end = {"type": "response.completed", "response": {"id": "r", "output": output}}
    merger, shown = merge("responses", [{"type": "response.created", "response": {"id": "r"}}, end])
    assert [item["name"] for item in shown[-1]["response"]["output"]] == ["get_forecast", "own"]
    assert merger.visible_calls == 2


def test_stream_events_are_parsed_correctly_regardless_of_network_chunk_boundaries() -> None:
    data = b'event: a\r\ndata: {"x":\r\ndata: 1}\r\n\r\n: comment\n\ndata: [DONE]\n\n'
    for size in range(1, len(data)):
        parser = EventParser()
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        events = [event for piece in pieces for event in parser.feed(piece)]
        assert b"".join(event.raw for event in events) == data
        assert (events[0].name, events[0].parse()) == ("a", {"x": 1})
        assert events[-1].data == "[DONE]"
