"""The bridge gives the real call inside it, or says what is wrong; it never breaks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolfold.errors import BridgeMisuse, InvalidArguments
from toolfold.model import BRIDGE_CALL, BRIDGE_NAMES, ToolCall
from toolfold.turn import unwrap


def through_the_bridge(arguments: Any) -> ToolCall:
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


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        JUNK,
        JUNK.map(json.dumps),
        JUNK.map(lambda junk: json.dumps(json.dumps(junk))),
        st.fixed_dictionaries({"name": JUNK}, optional={"arguments": JUNK, "extra": JUNK}),
        st.text(st.characters()),
    )
)
def test_any_junk_gives_a_call_or_says_what_is_wrong(junk: Any) -> None:
    try:
        call = through_the_bridge(junk)
    except (BridgeMisuse, InvalidArguments):
        return
    assert isinstance(call, ToolCall)
    assert call.name == call.name.strip() != ""
    assert call.name not in BRIDGE_NAMES
    assert call.id == "id-1"


def test_any_other_call_goes_through_untouched() -> None:
    call = ToolCall("read_file", '{"name": "x"}', "id-1")
    assert unwrap(call) is call


@pytest.mark.parametrize("arguments", [{"path": "a"}, '{"path": "a"}', None, "", []])
def test_the_real_call_keeps_its_arguments_and_the_id_of_the_call(arguments: Any) -> None:
    call = through_the_bridge({"name": "read_file", "arguments": arguments})
    assert call == ToolCall("read_file", arguments, "id-1")


def test_arguments_may_be_left_out() -> None:
    assert through_the_bridge('{"name": " read_file "}') == ToolCall("read_file", None, "id-1")


@pytest.mark.parametrize("name", sorted(BRIDGE_NAMES))
def test_a_bridge_tool_cannot_be_called_through_the_bridge(name: str) -> None:
    with pytest.raises(BridgeMisuse, match=f"'{name}' is a bridge tool: call it directly"):
        through_the_bridge({"name": f" {name}", "arguments": {"name": "x"}})


@pytest.mark.parametrize("name", ["Tool_Call", "tool-search", "ｔｏｏｌ_ｃａｌｌ", "tool_càll", "TOOL CALL"])
def test_what_only_looks_like_a_bridge_tool_is_refused_too(name: str) -> None:
    with pytest.raises(BridgeMisuse, match=r"is a bridge tool: .* Nothing was run"):
        through_the_bridge({"name": name, "arguments": {}})


@pytest.mark.parametrize("key", ["tool_name", "tool"])
def test_another_word_for_the_name_is_understood(key: str) -> None:
    call = through_the_bridge({key: "read_file", "arguments": {"path": "a"}})
    assert call == ToolCall("read_file", {"path": "a"}, "id-1")


@pytest.mark.parametrize("extra", [{"tool": "other"}, {"tool_name": "read_file"}])
def test_two_names_are_refused(extra: dict[str, str]) -> None:
    with pytest.raises(BridgeMisuse, match=r"takes only `name` and `arguments`.* Nothing was run"):
        through_the_bridge({"name": "read_file", "arguments": {}, **extra})


@pytest.mark.parametrize("key", ["args", "parameters", "params", "input"])
def test_another_word_for_the_arguments_is_explained_and_not_guessed(key: str) -> None:
    with pytest.raises(BridgeMisuse, match=rf"write `arguments` for {key}.* Nothing was run"):
        through_the_bridge({"name": "read_file", key: {"path": "a"}})


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "read_file", "name": "write_file"}',
        '{"name": "read_file", "arguments": {"path": "a", "path": "b"}}',
        json.dumps('{"name": "read_file", "name": "write_file"}'),
    ],
)
def test_a_key_that_is_there_twice_has_no_meaning(text: str) -> None:
    with pytest.raises(InvalidArguments, match=r"'tool_call' was not invoked: .*more than once"):
        through_the_bridge(text)


def test_very_many_keys_are_read_in_proportion() -> None:
    text = "{" + ",".join(f'"k{number}": 1' for number in range(9_000)) + ', "k8999": 2}'
    with pytest.raises(InvalidArguments, match="the key 'k8999' is there more than once"):
        through_the_bridge(text)


@pytest.mark.parametrize("name", [None, "", "  ", 5, ["read_file"], {"name": "read_file"}, True])
def test_a_call_without_a_name_says_what_the_bridge_needs(name: Any) -> None:
    with pytest.raises(BridgeMisuse, match="tool_call needs `name`"):
        through_the_bridge({"name": name, "arguments": {}})


def test_arguments_beside_instead_of_inside_are_not_dropped_in_silence() -> None:
    with pytest.raises(BridgeMisuse, match=r"put path inside `arguments`\. Nothing was run"):
        through_the_bridge({"name": "read_file", "path": "a"})


def test_a_long_list_of_misplaced_arguments_makes_a_short_message() -> None:
    with pytest.raises(BridgeMisuse) as caught:
        through_the_bridge({"name": "x", **{"k" * 5000 + str(number): 1 for number in range(500)}})
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("text", ["{", "[1]", "5", "not json"])
def test_bridge_arguments_that_are_no_json_object_are_invalid(text: str) -> None:
    with pytest.raises(InvalidArguments, match="'tool_call' was not invoked"):
        through_the_bridge(text)


@pytest.mark.parametrize("name", [None, 5, ["read_file"], {}])
def test_a_call_whose_own_name_is_no_text_is_refused(name: Any) -> None:
    with pytest.raises(BridgeMisuse, match="a call needs the name of a tool"):
        unwrap(ToolCall(name, {}))


def test_unwrapping_leaves_the_call_it_was_given_as_it_was() -> None:
    arguments = {"name": "read_file", "arguments": {"path": "a"}}
    through_the_bridge(arguments)
    assert arguments == {"name": "read_file", "arguments": {"path": "a"}}
