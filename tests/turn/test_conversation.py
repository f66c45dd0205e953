"""Conversations in all provider formats are read within limits; invalid messages cause no errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import check_cases
from toolfold.selection.turn.notes import CLOSING, OPENING
from toolfold.selection.turn.recent_messages import (
    MAX_EARLIER_CHARS,
    MAX_USED_TOOLS,
    MAX_USER_TEXTS,
    Conversation,
)

OPENAI: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "weather in Oslo"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}},
            {"id": "2", "type": "function", "function": {"name": "get_tides", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "rain"},
    {"role": "assistant", "content": "Rain."},
    {"role": "user", "content": [{"type": "text", "text": "and"}, {"type": "text", "text": "tomorrow?"}]},
]
RESPONSES: list[dict[str, Any]] = [
    {"role": "user", "content": "weather in Oslo"},
    {"type": "function_call", "call_id": "1", "name": "get_weather", "arguments": "{}"},
    {"type": "function_call", "call_id": "2", "name": "get_tides", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": "rain"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Rain."}]},
    {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "and"}, {"type": "input_text", "text": "tomorrow?"}],
    },
]
ANTHROPIC = [
    {"role": "user", "content": "weather in Oslo"},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "1", "name": "get_weather", "input": {}},
            {"type": "tool_use", "id": "2", "name": "get_tides", "input": {}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "rain"}]},
    {"role": "assistant", "content": "Rain."},
    {"role": "user", "content": [{"type": "text", "text": "and"}, {"type": "text", "text": "tomorrow?"}]},
]


@pytest.mark.parametrize("history", [OPENAI, RESPONSES, ANTHROPIC], ids=["openai", "responses", "anthropic"])
def test_message_histories_in_all_provider_formats_are_read_as_the_same_conversation(
    history: list[dict[str, Any]],
) -> None:
    conversation = Conversation.from_messages(history)
    assert conversation.user_texts == ("weather in Oslo", "and\ntomorrow?")
    assert conversation.used_tools == ("get_weather", "get_tides")


def test_single_string_is_read_as_a_conversation_with_one_user_message() -> None:
    assert Conversation.from_messages("weather in Oslo") == Conversation(("weather in Oslo",))
    assert Conversation.from_messages("  \n") == Conversation(())


@check_cases(
    "arguments",
    [{"name": "get_weather", "arguments": {}}, '{"name": "get_weather", "arguments": {"city": "Oslo"}}'],
)
def test_tool_called_through_the_bridge_is_listed_as_used_in_the_history(arguments: Any) -> None:
    call = {"function": {"name": "tool_call", "arguments": arguments}}
    assert Conversation.from_messages([{"role": "assistant", "tool_calls": [call]}]).used_tools == (
        "get_weather",
    )
    block = {"type": "tool_use", "name": "tool_call", "input": arguments}
    assert Conversation.from_messages([{"role": "assistant", "content": [block]}]).used_tools == (
        "get_weather",
    )


@check_cases("name", ["tool_search", "tool_describe", "Tool-Search"])
def test_tool_search_and_tool_describe_are_not_listed_as_used_tools_of_a_history(name: str) -> None:
    call = {"type": "function_call", "name": name, "arguments": "{}"}
    nested = {"type": "function_call", "name": "tool_call", "arguments": json.dumps({"name": name})}
    assert Conversation.from_messages([call, nested]).used_tools == ()


@check_cases("arguments", [None, "", "{", "[]", "3", "{}", '{"name": 5}', '{"name": " "}', 7])
def test_tool_call_bridge_without_a_tool_name_is_ignored_in_the_history(arguments: Any) -> None:
    assert (
        Conversation.from_messages(
            [{"type": "function_call", "name": "tool_call", "arguments": arguments}]
        ).used_tools
        == ()
    )


def test_start_marker_of_added_descriptions_without_an_end_marker_is_treated_as_user_text() -> None:
    text = f"Weather? {OPENING} and a song {CLOSING[:-1]}"
    (said,) = Conversation.from_messages([{"role": "user", "content": text}]).user_texts
    assert said.startswith("Weather?")
    assert "and a song" in said


def test_tool_used_several_times_in_a_history_is_listed_once_at_its_last_use() -> None:
    calls = [{"type": "function_call", "name": name} for name in ("a", "b", "a", "c", "b")]
    assert Conversation.from_messages(calls).used_tools == ("a", "c", "b")


def test_only_the_latest_user_messages_and_used_tools_of_a_long_history_are_read() -> None:
    history: list[dict[str, Any]] = []
    for number in range(30):
        history += [
            {"role": "user", "content": f"wish {number}"},
            {"type": "function_call", "name": f"tool_{number}"},
        ]
    conversation = Conversation.from_messages(history)
    assert conversation.user_texts == tuple(f"wish {number}" for number in range(30 - MAX_USER_TEXTS, 30))
    assert conversation.used_tools == tuple(f"tool_{number}" for number in range(30 - MAX_USED_TOOLS, 30))


def test_user_message_before_a_thousand_tool_calls_is_found_in_the_history() -> None:
    calls = [{"type": "function_call", "name": "again", "arguments": "{}"} for _ in range(1_000)]
    assert Conversation.from_messages([{"role": "user", "content": "go"}, *calls]).user_texts == ("go",)


def test_all_user_messages_of_a_huge_history_except_the_last_are_truncated() -> None:
    big = "x" * 1_000_000
    history = [
        {"role": "user", "content": big},
        {
            "type": "function_call",
            "name": "tool_call",
            "arguments": json.dumps({"name": "t", "arguments": big}),
        },
    ] * 2_000
    conversation = Conversation.from_messages(history)  # reading it all would take a minute
    assert len(conversation.user_texts[-1]) == len(big)
    assert max(map(len, conversation.user_texts[:-1])) == MAX_EARLIER_CHARS


@check_cases("odd", [None, 5, b"bytes", {"role": "user", "content": "x"}, [None, 5, "x", []], object()])
def test_invalid_history_gives_an_empty_conversation(odd: Any) -> None:
    assert Conversation.from_messages(odd) == Conversation(())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
ROLES = st.sampled_from(["user", "assistant", "tool", "system"]) | JSON
KINDS = st.sampled_from(["text", "input_text", "tool_use", "function_call", "message"]) | JSON
NAMES = st.sampled_from(["tool_call", "tool_search", "get_weather"]) | JSON
BLOCKS = st.fixed_dictionaries(
    {},
    optional={"type": KINDS, "text": JSON, "name": NAMES, "input": JSON, "arguments": JSON, "function": JSON},
)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "role": ROLES,
        "type": KINDS,
        "name": NAMES,
        "arguments": JSON,
        "content": st.lists(BLOCKS | JSON, max_size=4) | JSON,
        "tool_calls": st.lists(st.fixed_dictionaries({"function": BLOCKS | JSON}) | JSON, max_size=4) | JSON,
        "function_call": BLOCKS | JSON,
    },
)


@given(st.lists(MESSAGES | JSON, max_size=12) | JSON)
def test_conversation_read_from_any_value_is_limited_in_size_and_lists_no_bridge_tools(history: Any) -> None:
    conversation = Conversation.from_messages(history)
    assert len(conversation.user_texts) <= MAX_USER_TEXTS
    assert len(conversation.used_tools) <= MAX_USED_TOOLS
    assert len(set(conversation.used_tools)) == len(conversation.used_tools)
    assert all(
        isinstance(each, str) and each.strip()
        for each in (*conversation.user_texts, *conversation.used_tools)
    )
    assert not {"tool_call", "tool_search", "tool_describe"} & set(conversation.used_tools)


@given(st.lists(st.text(max_size=30), max_size=8), st.sampled_from(["user", "assistant"]))
def test_user_texts_of_a_conversation_do_not_contain_assistant_messages(texts: list[str], role: str) -> None:
    said = Conversation.from_messages([{"role": role, "content": text} for text in texts]).user_texts
    assert said == (tuple(text for text in texts if text.strip())[-MAX_USER_TEXTS:] if role == "user" else ())


def test_conversation_is_in_progress_from_a_tool_call_until_the_reply_is_complete() -> None:
    assert not Conversation.from_messages(OPENAI[:2]).in_progress
    assert Conversation.from_messages(OPENAI[:4]).in_progress
    assert not Conversation.from_messages(OPENAI).in_progress
    assert Conversation.from_messages(RESPONSES[:4]).in_progress
