"""A call of `tool_call` is unwrapped to the call inside it, or the error says what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import check_cases
from tests.thorough import try_examples
from toolfold.core.errors import BridgeMisuse, InvalidArguments
from toolfold.core.types import BRIDGE_CALL, BRIDGE_NAMES, ToolCall
from toolfold.selection.turn import unwrap


def unwrap_call(arguments: Any) -> ToolCall:
    return unwrap(ToolCall(BRIDGE_CALL, arguments, "id-1"))


JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(), max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.sampled_from(["name", "arguments", "tool"]), st.text(max_size=4)), inner, max_size=4
        ),
    ),
    max_leaves=6,
)


@try_examples(200)
@given(
    st.one_of(
        JUNK,
        JUNK.map(json.dumps),
        JUNK.map(lambda junk: json.dumps(json.dumps(junk))),
        st.fixed_dictionaries({"name": JUNK}, optional={"arguments": JUNK, "extra": JUNK}),
        st.text(st.characters()),
    )
)
def test_bridged_call_with_any_arguments_gives_an_inner_call_or_an_error(
    junk: Any,
) -> None:
    try:
        call = unwrap_call(junk)
    except (BridgeMisuse, InvalidArguments):
        return
    assert isinstance(call, ToolCall)
    assert call.name == call.name.strip() != ""
    assert call.name not in BRIDGE_NAMES
    assert call.id == "id-1"


def test_unwrapping_a_direct_call_of_a_tool_returns_the_call_unchanged() -> None:
    call = ToolCall("read_file", '{"name": "x"}', "id-1")
    assert unwrap(call) is call


@check_cases("arguments", [{"path": "a"}, '{"path": "a"}', None, "", []])
def test_inner_call_of_a_bridged_call_has_the_given_arguments_and_the_id_of_the_outer_call(
    arguments: Any,
) -> None:
    call = unwrap_call({"name": "read_file", "arguments": arguments})
    assert call == ToolCall("read_file", arguments, "id-1")


def test_bridged_call_without_the_key_arguments_calls_the_tool_without_arguments() -> None:
    assert unwrap_call('{"name": " read_file "}') == ToolCall("read_file", None, "id-1")


@check_cases("name", sorted(BRIDGE_NAMES - {BRIDGE_CALL}))
def test_bridge_tools_such_as_tool_search_cannot_be_called_through_the_bridge(name: str) -> None:
    with pytest.raises(BridgeMisuse, match=f"'{name}' cannot be called through tool_call: call it directly"):
        unwrap_call({"name": f" {name}", "arguments": {"name": "x"}})


def test_bridged_call_that_is_wrapped_twice_is_unwrapped() -> None:
    twice = {"name": "tool_call", "arguments": {"tool": "read_file", "arguments": {"path": "a"}}}
    assert unwrap_call(twice) == ToolCall("read_file", {"path": "a"}, "id-1")


def test_bridged_call_that_is_wrapped_three_times_is_rejected() -> None:
    once: dict[str, Any] = {"name": "read_file", "arguments": {}}
    wrapped = {"name": "tool_call", "arguments": {"name": "tool_call", "arguments": once}}
    with pytest.raises(BridgeMisuse, match=r"cannot be called through tool_call: .* Nothing was run"):
        unwrap_call(wrapped)


@check_cases("name", ["Tool_Call", "tool-search", "ｔｏｏｌ_ｃａｌｌ", "tool_càll", "TOOL CALL"])
def test_bridged_call_of_a_name_that_resembles_a_bridge_tool_is_rejected(name: str) -> None:
    with pytest.raises(BridgeMisuse, match=r"cannot be called through tool_call: .* Nothing was run"):
        unwrap_call({"name": name, "arguments": {}})


@check_cases("key", ["tool_name", "tool"])
def test_bridged_call_accepts_the_keys_tool_name_and_tool_in_place_of_the_key_name(key: str) -> None:
    call = unwrap_call({key: "read_file", "arguments": {"path": "a"}})
    assert call == ToolCall("read_file", {"path": "a"}, "id-1")


@check_cases("extra", [{"tool": "other"}, {"tool_name": "read_file"}])
def test_bridged_call_with_both_keys_name_and_tool_is_rejected(extra: dict[str, str]) -> None:
    with pytest.raises(
        BridgeMisuse, match=r"takes no arguments other than `name` and `arguments`.* Nothing was run"
    ):
        unwrap_call({"name": "read_file", "arguments": {}, **extra})


@check_cases("key", ["args", "parameters", "params", "input"])
def test_error_for_a_bridged_call_with_the_key_args_or_params_says_to_use_the_key_arguments(key: str) -> None:
    with pytest.raises(BridgeMisuse, match=rf"write `arguments` for {key}.* Nothing was run"):
        unwrap_call({"name": "read_file", key: {"path": "a"}})


@check_cases(
    "text",
    [
        '{"name": "read_file", "name": "write_file"}',
        '{"name": "read_file", "arguments": {"path": "a", "path": "b"}}',
        json.dumps('{"name": "read_file", "name": "write_file"}'),
    ],
)
def test_bridged_call_with_a_duplicate_json_key_in_its_arguments_is_rejected(text: str) -> None:
    with pytest.raises(InvalidArguments, match=r"'tool_call' was not invoked: .*more than once"):
        unwrap_call(text)


def test_bridged_call_with_many_json_keys_is_read_in_linear_time() -> None:
    text = "{" + ",".join(f'"k{number}": 1' for number in range(9_000)) + ', "k8999": 2}'
    with pytest.raises(InvalidArguments, match="the key 'k8999' occurs more than once"):
        unwrap_call(text)


@check_cases("name", [None, "", "  ", 5, ["read_file"], {"name": "read_file"}, True])
def test_error_for_a_bridged_call_without_a_tool_name_explains_the_expected_arguments(name: Any) -> None:
    with pytest.raises(BridgeMisuse, match="tool_call needs `name`"):
        unwrap_call({"name": name, "arguments": {}})


def test_error_for_a_bridged_call_with_inner_arguments_at_the_top_level_says_where_to_put_them() -> None:
    with pytest.raises(BridgeMisuse, match=r"put path inside `arguments`\. Nothing was run"):
        unwrap_call({"name": "read_file", "path": "a"})


def test_error_for_a_bridged_call_with_many_arguments_at_the_top_level_is_truncated() -> None:
    with pytest.raises(BridgeMisuse) as caught:
        unwrap_call({"name": "x", **{"k" * 5000 + str(number): 1 for number in range(500)}})
    assert len(str(caught.value)) < 500


@check_cases("text", ["{", "[1]", "5", "not json"])
def test_bridged_call_whose_inner_arguments_are_not_a_json_object_is_rejected(text: str) -> None:
    with pytest.raises(InvalidArguments, match="'tool_call' was not invoked"):
        unwrap_call(text)


@check_cases("name", [None, 5, ["read_file"], {}])
def test_bridged_call_with_a_tool_name_that_is_not_a_string_is_rejected(name: Any) -> None:
    with pytest.raises(BridgeMisuse, match="a call needs the name of a tool"):
        unwrap(ToolCall(name, {}))


def test_reading_the_inner_call_of_a_bridged_call_does_not_change_the_arguments_of_the_outer_call() -> None:
    arguments = {"name": "read_file", "arguments": {"path": "a"}}
    unwrap_call(arguments)
    assert arguments == {"name": "read_file", "arguments": {"path": "a"}}
