"""Tools, notes about tools, and results in the message format of each provider."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.cases import check_cases
from toolfold.agent.convert import read_results
from toolfold.core.types import Definition, Json, Media, ToolResult
from toolfold.models import DIALECTS, DialectName, get_dialect, is_user_message
from toolfold.models.anthropic_messages import MAX_TOOLS
from toolfold.models.dialect import NOTICE_OPENING, simplify_schema, write_as_text
from toolfold.selection.turn.recent_messages import Conversation

SCHEMA: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def definition(name: str = "weather", parameters: Json | None = None) -> Definition:
    function = {"name": name, "description": f"does {name}", "parameters": parameters or SCHEMA}
    return {"type": "function", "function": function}


SEARCH = definition("tool_search", {"type": "object", "properties": {"query": {"type": "string"}}})


def search_result(*names: str, **more: Any) -> ToolResult:
    told = {"matches": [{"name": name, "signature": f"{name}()"} for name in names], **more}
    return ToolResult(call_id="call-1", name="tool_search", text=json.dumps(told))


def render(tool: Definition, form: DialectName) -> Json:
    return get_dialect(form).render_tool(tool)


def answers(results: Sequence[ToolResult], form: DialectName, **options: Any) -> list[Json]:
    """Return the messages for some results; for Anthropic the blocks of the one user message."""
    if "takes" in options:
        options["media_kinds"] = options.pop("takes")
    messages = get_dialect(form).render_results(results, **options)
    if form == "anthropic":
        (message,) = messages
        assert message["role"] == "user"
        return list(message["content"])
    return messages


def answer(result: ToolResult, form: DialectName, **options: Any) -> list[Json]:
    return answers([result], form, **options)


# -- tools ----------------------------------------------------------------------------------------------


def test_tool_definition_is_rendered_in_the_format_of_each_provider() -> None:
    assert render(definition(), "openai") == definition()
    assert render(definition(), "anthropic") == {
        "name": "weather",
        "description": "does weather",
        "input_schema": SCHEMA,
    }
    assert render(definition(), "responses") == {
        "type": "function",
        "name": "weather",
        "description": "does weather",
        "parameters": SCHEMA,
        "strict": False,
    }


@check_cases("form", DIALECTS)
def test_tool_schema_without_a_type_gets_the_type_object(form: DialectName) -> None:
    written = json.dumps(render(definition(parameters={"properties": {"city": {}}}), form))
    assert '"type": "object"' in written


def test_properties_in_top_level_anyof_of_a_tool_schema_are_merged_into_one_object_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "integer"}},
        "required": ["id"],
        "anyOf": [
            {"required": ["title"], "properties": {"title": {"type": "string"}}},
            {"properties": {"body": {"type": "string"}, "id": {"type": "string"}}},
            True,
        ],
    }
    plain = simplify_schema(schema)
    assert "anyOf" not in plain
    assert plain["required"] == ["id"]
    assert plain["properties"] == {
        "title": {"type": "string"},
        "body": {"type": "string"},
        "id": {"type": "integer"},
    }


def test_simplify_schema_does_not_change_a_tool_schema_without_top_level_alternatives() -> None:
    assert simplify_schema(SCHEMA) is SCHEMA


def test_anthropic_cache_marker_is_placed_on_the_last_tool_that_is_identical_in_every_request() -> None:
    tools = get_dialect("anthropic").render_tools(
        [definition("a"), definition("b"), definition("c")], cache_after=2
    )
    assert ["cache_control" in tool for tool in tools] == [False, True, False]


@check_cases("form", ["openai", "responses"])
def test_cache_marker_is_not_sent_to_providers_other_than_anthropic(form: DialectName) -> None:
    assert "cache_control" not in json.dumps(get_dialect(form).render_tools([definition()], cache_after=1))


def test_deferred_tools_are_sent_to_anthropic_after_other_tools_and_without_a_cache_marker() -> None:
    late = [definition("late"), definition("later")]
    tools = get_dialect("anthropic").render_tools([SEARCH], deferred=late, native=True, cache_after=1)
    assert [tool["name"] for tool in tools] == ["tool_search", "late", "later"]
    assert [tool.get("defer_loading", False) for tool in tools] == [False, True, True]
    assert not any("cache_control" in tool and "defer_loading" in tool for tool in tools)


def test_first_tool_of_an_anthropic_request_is_never_deferred() -> None:
    tools = get_dialect("anthropic").render_tools(
        [], deferred=[definition("late"), definition("later")], native=True
    )
    assert [tool.get("defer_loading", False) for tool in tools] == [False, True]


def test_tool_search_is_sent_to_the_openai_responses_api_as_a_native_client_side_search_tool() -> None:
    (tool,) = get_dialect("responses").render_tools([SEARCH], native=True)
    assert tool == {
        "type": "tool_search",
        "execution": "client",
        "description": "does tool_search",
        "parameters": SEARCH["function"]["parameters"],
    }


def test_deferred_tools_are_omitted_from_an_openai_chat_request() -> None:
    assert get_dialect("openai").render_tools([SEARCH], deferred=[definition()], native=True) == [SEARCH]


def test_anthropic_request_allows_at_most_ten_thousand_tools() -> None:
    assert MAX_TOOLS == 10_000


# -- notes ----------------------------------------------------------------------------------------------


@check_cases("form", DIALECTS)
def test_text_appended_to_a_message_is_added_to_its_text_or_as_another_content_part(
    form: DialectName,
) -> None:
    kind = "input_text" if form == "responses" else "text"
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    assert get_dialect(form).append_text({"role": "user", "content": "Hi"}, "note")["content"] == "Hi\n\nnote"
    assert get_dialect(form).append_text({"role": "user", "content": ""}, "note")["content"] == "note"
    assert get_dialect(form).append_text({"role": "user", "content": None}, "note")["content"] == "note"
    assert get_dialect(form).append_text({"role": "user", "content": [image]}, "note")["content"] == [
        image,
        {"type": kind, "text": "note"},
    ]


def test_appending_text_to_a_message_does_not_modify_the_original_message() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    get_dialect("openai").append_text(message, "note")
    assert message == {"role": "user", "content": [{"type": "text", "text": "Hi"}]}


@check_cases(
    ("message", "expected"),
    [
        ({"role": "user", "content": "Hi"}, True),
        ({"role": "user", "content": ""}, True),
        ({"role": "user"}, True),
        ({"role": "user", "content": []}, True),
        ({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}, True),
        ({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"}]}, False),
        ({"role": "user", "content": [{"type": "tool_result"}, {"type": "text", "text": "and?"}]}, True),
        ({"role": "user", "content": {"odd": True}}, False),
        ({"role": "assistant", "content": "Hi"}, False),
        ({"role": "tool", "content": "{}"}, False),
        ({"type": "function_call_output", "output": "{}"}, False),
    ],
)
def test_message_without_the_role_user_or_with_only_tool_results_is_no_user_message(
    message: Json, expected: bool
) -> None:
    assert is_user_message(message) is expected


def test_tools_added_during_a_conversation_are_sent_to_the_openai_responses_api_as_an_input_item() -> None:
    assert get_dialect("responses").render_added_tools([definition()]) == {
        "type": "additional_tools",
        "role": "developer",
        "tools": [render(definition(), "responses")],
    }


# -- answers --------------------------------------------------------------------------------------------


def test_tool_result_contains_the_id_of_its_call_in_every_provider_format() -> None:
    result = ToolResult(call_id="call-7", name="weather", text='{"sun": true}')
    assert answer(result, "openai") == [
        {"role": "tool", "tool_call_id": "call-7", "content": '{"sun": true}'}
    ]
    assert answer(result, "anthropic") == [
        {"type": "tool_result", "tool_use_id": "call-7", "content": '{"sun": true}'}
    ]
    assert answer(result, "responses") == [
        {"type": "function_call_output", "call_id": "call-7", "output": '{"sun": true}'}
    ]


def test_failed_tool_result_is_sent_to_anthropic_with_is_error() -> None:
    result = ToolResult(call_id="1", name="weather", text='{"error": "no"}', error="no")
    assert answer(result, "anthropic")[0]["is_error"] is True


def test_tools_found_by_search_are_sent_to_anthropic_as_tool_references() -> None:
    deferred = {"weather": definition(), "tides": definition("tides")}
    assert answer(search_result("weather", "tides"), "anthropic", deferred=deferred) == [
        {
            "type": "tool_result",
            "tool_use_id": "call-1",
            "content": [
                {"type": "tool_reference", "tool_name": "weather"},
                {"type": "tool_reference", "tool_name": "tides"},
            ],
        }
    ]


def test_text_of_a_tool_search_result_follows_the_tool_references_in_an_anthropic_message() -> None:
    deferred = {"weather": definition()}
    result, text = answer(
        search_result("weather", "shown", hint="Look again."), "anthropic", deferred=deferred
    )
    assert {block["type"] for block in result["content"]} == {"tool_reference"}
    opening, _, rest = text["text"].partition("\n")
    assert opening == NOTICE_OPENING
    assert json.loads(rest) == {
        "hint": "Look again.",
        "matches": [{"name": "shown", "signature": "shown()"}],
    }
    assert not is_user_message({"role": "user", "content": [result, text]})
    assert is_user_message({"role": "user", "content": [result, text, {"type": "text", "text": "And now?"}]})


def test_tool_search_result_naming_a_tool_that_is_not_deferred_is_sent_to_anthropic_as_text() -> None:
    found = search_result("elsewhere")
    assert answer(found, "anthropic", deferred={"weather": definition()}) == answer(found, "anthropic")
    assert answer(found, "anthropic")[0]["content"] == found.text


def test_tools_found_by_search_are_sent_to_the_openai_responses_api_as_tool_definitions() -> None:
    output, text = answer(
        search_result("weather", hint="Look."), "responses", deferred={"weather": definition()}
    )
    assert output == {
        "type": "tool_search_output",
        "execution": "client",
        "call_id": "call-1",
        "status": "completed",
        "tools": [render(definition(), "responses") | {"defer_loading": True}],
    }
    assert text == {"role": "developer", "content": '{"hint": "Look."}'}


@pytest.mark.parametrize("text", ["[]", "not json", '{"matches": 3}', '{"matches": [1, {"name": 2}]}', "{}"])
@pytest.mark.parametrize("form", DIALECTS)
def test_malformed_tool_search_result_is_rendered_with_the_id_of_its_call(
    text: str, form: DialectName
) -> None:
    result = ToolResult(call_id="call-1", name="tool_search", text=text)
    first, *_ = answer(result, form, deferred={"weather": definition()})
    assert "call-1" in first.values()


def test_failed_tool_search_is_rendered_with_no_tools_and_the_error_message() -> None:
    result = ToolResult(call_id="call-1", name="tool_search", text='{"error": "no words"}', error="no words")
    output, text = answer(result, "responses", deferred={})
    assert output["tools"] == []
    assert "no words" in text["content"]
    assert answer(result, "anthropic", deferred={})[0]["is_error"] is True


# -- images and sounds ----------------------------------------------------------------------------------

IMAGE = Media(kind="image", mime_type="image/png", data=b"png", label="image 1")
SOUND = Media(kind="audio", mime_type="audio/wav", data=b"wav", label="audio 1")
OGG = Media(kind="audio", mime_type="audio/ogg", data=b"ogg", label="audio 2")
TEXT = '{"result":"see image 1"}'
IMAGE_URL = "data:image/png;base64,cG5n"


def result_with_media(*media: Media, call_id: str = "call-1") -> ToolResult:
    return ToolResult(call_id=call_id, name="camera", text=TEXT, media=media)


def test_image_from_a_tool_is_sent_to_openai_chat_in_a_user_message_after_the_tool_message() -> None:
    told, shown = answer(result_with_media(IMAGE), "openai")
    assert (told["role"], told["tool_call_id"]) == ("tool", "call-1")
    assert told["content"].startswith(TEXT)
    assert "not from the user" in told["content"]
    assert shown["role"] == "user"
    assert shown["content"] == [{"type": "image_url", "image_url": {"url": IMAGE_URL}}]


def test_message_that_carries_an_image_from_a_tool_is_not_treated_as_a_user_message() -> None:
    _, shown = answer(result_with_media(IMAGE), "openai")
    assert not is_user_message(shown)
    assert Conversation.from_messages([{"role": "user", "content": "take a picture"}, shown]).user_texts == (
        "take a picture",
    )


def test_images_from_tools_are_sent_inside_the_tool_result_to_openai_responses_and_anthropic() -> None:
    assert answer(result_with_media(IMAGE), "responses") == [
        {
            "type": "function_call_output",
            "call_id": "call-1",
            "output": [
                {"type": "input_text", "text": TEXT},
                {"type": "input_image", "image_url": IMAGE_URL, "detail": "auto"},
            ],
        }
    ]
    source = {"type": "base64", "media_type": "image/png", "data": "cG5n"}
    assert answer(result_with_media(IMAGE), "anthropic") == [
        {
            "type": "tool_result",
            "tool_use_id": "call-1",
            "content": [{"type": "text", "text": TEXT}, {"type": "image", "source": source}],
        }
    ]


@check_cases("form", DIALECTS)
def test_images_and_audio_from_tools_are_not_sent_to_models_without_support_for_them(
    form: DialectName,
) -> None:
    plain = answer(result_with_media(), form)
    assert answer(result_with_media(IMAGE, SOUND), form, takes=()) == plain
    assert answer(result_with_media(SOUND), form) == plain


def test_wav_audio_from_a_tool_is_sent_to_openai_models_that_support_audio() -> None:
    _, played = answer(result_with_media(SOUND, OGG), "openai", takes=("audio",))
    assert played["content"] == [{"type": "input_audio", "input_audio": {"data": "d2F2", "format": "wav"}}]
    assert len(answer(result_with_media(OGG), "openai", takes=("audio",))) == 1


@check_cases("form", ["anthropic", "responses"])
def test_audio_from_a_tool_is_omitted_in_provider_formats_without_audio_support(form: DialectName) -> None:
    assert answer(result_with_media(SOUND), form, takes=("audio",)) == answer(result_with_media(), form)


def test_tool_results_are_sent_before_their_images_and_audio() -> None:
    told = answers([result_with_media(IMAGE), result_with_media(IMAGE, call_id="call-2")], "openai")
    assert [each["role"] for each in told] == ["tool", "tool", "user", "user"]
    assert [each.get("tool_call_id") for each in told[:2]] == ["call-1", "call-2"]


def test_all_tool_results_precede_the_text_of_search_results_in_an_anthropic_message() -> None:
    results = [search_result("weather", note="more"), result_with_media(IMAGE, call_id="call-2")]
    told = answers(results, "anthropic", deferred={"weather": definition()})
    assert [each["type"] for each in told] == ["tool_result", "tool_result", "text"]


def test_failed_tool_result_with_an_image_is_sent_to_anthropic_with_is_error() -> None:
    (block,) = answer(replace(result_with_media(IMAGE), error="no"), "anthropic")
    assert block["is_error"] is True
    assert [each["type"] for each in block["content"]] == ["text", "image"]


def test_interrupted_anthropic_reply_keeps_signed_thinking_blocks_and_drops_unfinished_blocks() -> None:
    reader = get_dialect("anthropic").start_reply()
    first = {"type": "thinking", "thinking": "done"}
    deltas = [{"type": "signature_delta", "signature": "s1"}, {"type": "thinking_delta", "thinking": "half"}]
    for event in (
        {"type": "content_block_start", "index": 0, "content_block": first},
        {"type": "content_block_delta", "index": 0, "delta": deltas[0]},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 1, "delta": deltas[1]},
    ):
        list(reader.feed(event))
    reply = reader.finish(interrupted=True)
    (message,) = reply.messages
    assert message["content"][0] == {**first, "signature": "s1"}
    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    assert reply.unsent_thinking == "half"


def test_interrupted_openai_responses_reply_is_truncated_after_its_last_message() -> None:
    reader = get_dialect("responses").start_reply()
    text = {"type": "output_text", "text": "Well."}
    items: list[Json] = [
        {"type": "reasoning", "id": "r1", "summary": []},
        {"type": "message", "id": "m1", "role": "assistant", "content": [text]},
        {"type": "reasoning", "id": "r2", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "forecast", "arguments": "{}"},
    ]
    for index, item in enumerate(items):
        if item["type"] == "reasoning":
            delta = {"type": "response.reasoning_summary_text.delta", "output_index": index}
            list(reader.feed({**delta, "delta": f"thought {index}"}))
        list(reader.feed({"type": "response.output_item.done", "output_index": index, "item": item}))
    reply = reader.finish(interrupted=True)
    assert [item["id"] for item in reply.messages] == ["r1", "m1"]
    assert (reply.text, reply.calls, reply.unsent_thinking) == ("Well.", (), "thought 2")


@check_cases("form", DIALECTS)
def test_reply_interrupted_before_its_first_event_becomes_one_empty_message_in_every_format(
    form: DialectName,
) -> None:
    reply = get_dialect(form).start_reply().finish(interrupted=True)
    assert (reply.finish_reason, reply.calls, reply.text) == ("interrupted", (), "")
    assert len(reply.messages) == 1


class TestTextResults:
    @pytest.mark.parametrize("name", [*DIALECTS])
    def test_texts_of_several_lines_are_sent_as_text_below_the_other_fields(self, name: DialectName) -> None:
        value = {"path": "a.py", "content": '1\tprint("hi")\n2\tend', "lines": 2}
        result = ToolResult(call_id="c1", name="read_file", text=json.dumps(value))
        (message,) = get_dialect(name).render_results([result])
        ((_, text),) = [(each.call_id, each.text) for each in read_results(message, {})]
        assert text == '{"path":"a.py","lines":2}\n--- content\n1\tprint("hi")\n2\tend'

    @check_cases(
        ("value", "text"),
        [
            ({"result": "one\ntwo"}, "one\ntwo"),
            ({"result": "one"}, '{"result": "one"}'),
            ({"rows": [{"note": "a\nb"}]}, '{"rows": [{"note": "a\\nb"}]}'),
            ({"error": "it failed:\nbadly"}, '{"error": "it failed:\\nbadly"}'),
            ({"head": "a\nb", "tail": "y\nz", "lines": 9}, '{"lines":9}\n--- head\na\nb\n--- tail\ny\nz'),
        ],
    )
    def test_only_long_texts_of_successful_results_change(self, value: Json, text: str) -> None:
        assert write_as_text(json.dumps(value)) == text

    def test_search_results_that_load_tools_stay_structured(self) -> None:
        found = {"matches": [{"name": "a"}], "note": "one\ntwo"}
        result = ToolResult(call_id="c1", name="tool_search", text=json.dumps(found))
        (output, rest) = get_dialect("responses").render_results([result], deferred={"a": definition("a")})
        assert output["type"] == "tool_search_output"
        assert json.loads(rest["content"]) == {"note": "one\ntwo"}
