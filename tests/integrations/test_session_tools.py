"""Names of tools in agent frameworks."""

from __future__ import annotations

from toolfold.agent.integrations.session_tools import make_identifiers


def test_tool_names_that_differ_only_in_punctuation_get_different_python_identifiers() -> None:
    names = ["a_b", "a.b", "a-b", "a_b_2"]
    expected = {"a_b": "a_b", "a_b_2": "a_b_2", "a-b": "a_b_3", "a.b": "a_b_4"}
    assert make_identifiers(names) == expected
    assert make_identifiers(names[::-1]) == expected


def test_tool_name_that_is_not_a_python_identifier_is_converted_to_a_python_identifier() -> None:
    assert make_identifiers(["class", "2nd"]) == {"class": "tool_class", "2nd": "tool_2nd"}
