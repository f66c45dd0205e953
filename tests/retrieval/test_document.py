"""What a model reads of tools and messages is short, clean, and has the telling parts first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.timing import in_time
from toolfold.retrieval.document import (
    DESCRIPTION_CHARS,
    ENUM_VALUES,
    NESTED_CHARS,
    PARAMETERS_CHARS,
    PARAMETERS_SHOWN,
    QUERY_HEAD_CHARS,
    QUERY_TAIL_CHARS,
    SYNONYMS_CHARS,
    clean,
    cut,
    in_words,
    parameters_text,
    query_text,
    tool_text,
)

ANY_TEXT = st.text(st.characters(), max_size=80)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | ANY_TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["properties", "description", "enum", "items", "x"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


def test_a_tool_reads_as_name_synonyms_description_and_parameters_in_this_order() -> None:
    properties = {"city": {"type": "string", "description": "Where"}, "unit": {"enum": ["celsius", "kelvin"]}}
    text = tool_text(
        "getWeather", "Tells the weather.", {"properties": properties}, "meteo", ["forecast", "rain"]
    )
    assert text == ("meteo get Weather. forecast, rain. Tells the weather. city: Where, unit: celsius kelvin")


def test_a_server_that_the_name_says_already_is_not_said_twice() -> None:
    assert tool_text("github_create_issue", server="github") == "github create issue"
    assert tool_text("create_issue", server="github") == "github create issue"


def test_a_tool_without_description_or_schema_is_its_name() -> None:
    assert tool_text("list_pods") == tool_text("list_pods", "", {}) == "list pods"


def test_a_version_mark_is_no_word() -> None:
    assert tool_text("search__v2") == "search"


def test_links_and_markup_take_no_room() -> None:
    text = tool_text("x", "# Sends **mail** <br/> see https://a.b/d | now")
    assert text == "x. Sends mail see now"


@pytest.mark.parametrize(
    "name",
    ["getUserByID", "get_User-By.ID", "get User By ID", "get\x00User\u200bBy\ud800ID", " getUser__ByID "],
)
def test_names_of_every_style_read_alike(name: str) -> None:
    assert in_words(name) == "get User By ID"


@pytest.mark.parametrize(
    "parameters", [None, {}, {"properties": []}, {"properties": None}, {"type": "object"}]
)
def test_a_schema_without_properties_says_nothing(parameters: Any) -> None:
    assert parameters_text(parameters) == ""


def test_only_the_first_parameters_and_values_are_read() -> None:
    many = {"properties": {f"p{n}": {"enum": [f"v{m}" for m in range(50)]} for n in range(50)}}
    text = parameters_text(many)
    assert text.count("v0") == PARAMETERS_SHOWN
    assert f"v{ENUM_VALUES - 1}" in text
    assert f"v{ENUM_VALUES}" not in text


def test_the_parts_of_a_tool_are_bounded() -> None:
    properties = {f"parameter_{n}": {"description": "long " * 1000} for n in range(1000)}
    text = tool_text("n" * 5000, "word " * 100_000, {"properties": properties}, "s" * 5000, ["same"] * 5000)
    assert len(text) <= 401 + DESCRIPTION_CHARS + PARAMETERS_CHARS + SYNONYMS_CHARS + 3 * len(". ")


def test_what_a_parameter_means_may_stand_in_what_it_refers_to_or_may_be() -> None:
    schema = {
        "properties": {
            "unit": {"anyOf": [{"enum": ["celsius", "kelvin"]}, {"type": "null"}]},
            "place": {"$ref": "#/$defs/Place"},
            "kind": {"oneOf": [{"const": "rain"}, {"const": "snow"}], "description": "Of what"},
        },
        "$defs": {"Place": {"description": "Where it is", "properties": {"city": {}}}},
    }
    assert parameters_text(schema) == "unit: celsius kelvin, place: Where it is, kind: Of what: rain snow"


def test_a_tool_that_hardly_describes_itself_is_told_by_its_parameters_and_what_is_in_them() -> None:
    inner = {"type": "object", "properties": {"city": {"description": "Where"}, "country": {}}}
    schema = {"properties": {f"place_{n}": inner for n in range(9)}}
    told = tool_text("x", "Does it.", {"properties": {"place": inner}, "type": "object"})
    assert told == "x. Does it. place, city: Where, country"
    long = tool_text("x", "Does what it says at some length, for once.", {"properties": {"place": inner}})
    assert long.endswith("for once. place")
    assert (
        len(tool_text("x", "", {"properties": {f"p{n}": {"description": "word " * 9} for n in range(40)}}))
        > 300
    )
    assert len(tool_text("x", "", schema)) < 20 + NESTED_CHARS


def test_a_short_chinese_description_is_none_too_short() -> None:
    inner: dict[str, Any] = {"properties": {"city": {}}}
    text = tool_text("x", "查询指定城市未来几天的天气预报", {"properties": {"place": inner}})
    assert text.endswith("place")


@pytest.mark.parametrize("part", ["](", "<a", "`", "https://", "<a ](", " ", "\x00", "é"])
def test_a_hostile_megabyte_is_read_soon(part: str) -> None:
    hostile = part * (1_000_000 // len(part))
    in_time(lambda: tool_text("x", hostile, {"properties": {"p": {"description": hostile}}}))
    in_time(lambda: query_text(hostile))


def test_a_short_message_is_read_whole_and_on_one_line() -> None:
    assert query_text("  what's\n\tthe **weather**\x00 today? ") == "what's the weather today?"


def test_a_long_message_keeps_its_beginning_and_its_end() -> None:
    text = query_text("Translate this: " + "lorem ipsum " * 5000 + "into Finnish please")
    assert text.startswith("Translate this:")
    assert text.endswith("into Finnish please")
    assert len(text) <= QUERY_HEAD_CHARS + 1 + QUERY_TAIL_CHARS


@pytest.mark.parametrize("message", ["", "   ", "\x00\x01\u200b", "``` ``"])
def test_a_message_that_says_nothing_reads_as_nothing(message: str) -> None:
    assert query_text(message) == ""


def test_cutting_ends_with_a_whole_word_where_there_is_one() -> None:
    assert cut("one two three", 9) == "one two"
    assert cut("one two three", 7) == "one two"
    assert cut("x" * 30, 9) == "x" * 9
    assert cut("short", 9) == "short"


@given(ANY_TEXT, ANY_TEXT, JUNK, ANY_TEXT, st.lists(ANY_TEXT, max_size=3))
@settings(max_examples=150, deadline=None)
def test_any_tool_becomes_clean_text(name: str, said: str, schema: Any, server: str, also: list[str]) -> None:
    text = tool_text(name, said, schema if isinstance(schema, dict) else None, server, also)
    assert not any(ord(char) < 32 or 0xD800 <= ord(char) < 0xE000 for char in text)
    text.encode()


@given(ANY_TEXT)
@settings(max_examples=100, deadline=None)
def test_cleaning_leaves_no_runs_of_space_at_all(text: str) -> None:
    cleaned = clean(text)
    assert cleaned == " ".join(cleaned.split())
