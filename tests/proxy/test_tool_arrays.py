"""Tools arrays that clients repeat are parsed once, and requests are read as by any JSON parser."""

from __future__ import annotations

import json

import pytest

from toolfold.core.types import Json
from toolfold.serving.proxy import tool_arrays
from toolfold.serving.proxy.tool_arrays import MAX_ARRAYS, ToolArrays

TOOLS: list[Json] = [
    {"type": "function", "function": {"name": f"t{n}", "description": 'é"x\\' * 9}} for n in range(90)
]


def body(text: str, tools: object = TOOLS, **more: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"content": text}], "tools": tools, **more}).encode()


def test_tools_array_is_parsed_only_once_if_two_requests_contain_the_same_json_text() -> None:
    arrays = ToolArrays()
    first, second = arrays.parse(body("one")), arrays.parse(body("two", stream=True))
    assert first is not None
    assert second is not None
    assert second == json.loads(body("two", stream=True))
    assert second["tools"] is first["tools"]


def test_tools_array_is_parsed_again_if_its_json_text_differs_from_the_cached_text() -> None:
    arrays = ToolArrays()
    arrays.parse(body("one"))
    changed = [*TOOLS[:-1], {"type": "other"}]
    assert arrays.parse(body("two", changed)) == json.loads(body("two", changed))
    assert arrays.parse(body("three", TOOLS[:-1])) == json.loads(body("three", TOOLS[:-1]))


def test_array_inside_a_message_is_not_mistaken_for_the_tools_array_of_the_request() -> None:
    arrays = ToolArrays()
    arrays.parse(body("one"))
    quoted = body(json.dumps({"tools": TOOLS}), [])
    nested = json.dumps({"messages": [{"tools": TOOLS}], "tools": []}).encode()
    twice = json.dumps({"messages": [{"tools": TOOLS}], "tools": TOOLS}).encode()
    for data in (quoted, nested, twice):
        assert arrays.parse(data) == json.loads(data)


def test_tools_array_with_0_instead_of_false_does_not_match_the_cached_array() -> None:
    strict = [{**tool, "strict": False} for tool in TOOLS]
    text = json.dumps(strict)
    arrays = ToolArrays()
    arrays.parse(b'{"x": {"tools": %b}, "tools": %b}' % (text.encode(), text.replace("false", "0").encode()))
    read = arrays.parse(b'{"tools": %b}' % text.encode())
    assert read is not None
    assert json.dumps(read["tools"]) == text


def test_parsing_a_request_body_that_is_not_a_json_object_returns_none() -> None:
    arrays = ToolArrays()
    for data in (b"", b"[1]", b"\xff", b'{"a":', b"[" * 100_000):
        assert arrays.parse(data) is None


def test_oldest_cached_tools_array_is_dropped_above_the_maximum_number_of_arrays() -> None:
    arrays = ToolArrays()
    first = arrays.parse(body("one"))
    for number in range(MAX_ARRAYS):
        arrays.parse(body("x", [*TOOLS, {"number": number}]))
    again = arrays.parse(body("one"))
    assert first == again
    assert first is not None
    assert again is not None
    assert again["tools"] is not first["tools"]


def test_message_that_contains_the_text_of_a_cached_tools_array_is_parsed_correctly() -> None:
    arrays = ToolArrays()
    numbers = [1] * 2_000
    arrays.parse(body("one", numbers))
    quoted = body(json.dumps(numbers), [2])
    assert arrays.parse(quoted) == json.loads(quoted)


def test_number_of_nested_arrays_scanned_to_find_the_tools_array_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[int] = []
    decode = tool_arrays._decode

    def count(text: str, start: int) -> tuple[object, int]:
        parsed.append(start)
        return decode(text, start)

    monkeypatch.setattr(tool_arrays, "_decode", count)
    nested = '{"tools":[' * 300 + "[]" + "]}" * 300
    request = f'{{"a": {nested}, "tools": {json.dumps(TOOLS)}}}'.encode()
    assert ToolArrays().parse(request) == json.loads(request)
    assert len(parsed) <= tool_arrays.MAX_LEARN_ATTEMPTS
