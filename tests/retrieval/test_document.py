"""Text for embedding models: short, clean, with the most informative parts first."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.cases import check_cases
from tests.thorough import try_examples
from tests.timing import run_with_limit
from toolfold.selection.retrieval.document import (
    MAX_DESCRIPTION_CHARS,
    MAX_ENUM_VALUES,
    MAX_NESTED_CHARS,
    MAX_PARAMETERS,
    MAX_PARAMETERS_CHARS,
    MAX_SYNONYMS_CHARS,
    QUERY_HEAD_CHARS,
    QUERY_TAIL_CHARS,
    clean_text,
    parameters_text,
    query_text,
    split_identifier,
    tool_text,
    truncate_text,
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


def test_text_to_embed_starts_with_name_then_synonyms_then_description_then_parameters() -> None:
    properties = {"city": {"type": "string", "description": "Where"}, "unit": {"enum": ["celsius", "kelvin"]}}
    text = tool_text(
        "getWeather", "Tells the weather.", {"properties": properties}, "meteo", ["forecast", "rain"]
    )
    assert text == ("meteo get Weather. forecast, rain. Tells the weather. city: Where, unit: celsius kelvin")


def test_server_name_contained_in_the_tool_name_is_not_repeated_in_the_text_to_embed() -> None:
    assert tool_text("github_create_issue", server="github") == "github create issue"
    assert tool_text("create_issue", server="github") == "github create issue"


def test_text_to_embed_for_a_tool_without_description_or_schema_is_its_name() -> None:
    assert tool_text("list_pods") == tool_text("list_pods", "", {}) == "list pods"


def test_version_suffix_of_a_tool_name_is_removed_before_embedding() -> None:
    assert tool_text("search__v2") == "search"


def test_links_and_markup_in_a_tool_description_are_not_in_the_text_to_embed() -> None:
    text = tool_text("x", "# Sends **mail** <br/> see https://a.b/d | now")
    assert text == "x. Sends mail see now"


@check_cases(
    "name",
    ["getUserByID", "get_User-By.ID", "get User By ID", "get\x00User\u200bBy\ud800ID", " getUser__ByID "],
)
def test_tool_names_in_all_naming_styles_split_into_the_same_words(name: str) -> None:
    assert split_identifier(name) == "get User By ID"


@check_cases("parameters", [None, {}, {"properties": []}, {"properties": None}, {"type": "object"}])
def test_schema_without_properties_adds_no_parameters_to_the_text_to_embed(parameters: Any) -> None:
    assert parameters_text(parameters) == ""


def test_text_to_embed_includes_only_the_first_parameters_and_enum_values() -> None:
    many = {"properties": {f"p{n}": {"enum": [f"v{m}" for m in range(50)]} for n in range(50)}}
    text = parameters_text(many)
    assert text.count("v0") == MAX_PARAMETERS
    assert f"v{MAX_ENUM_VALUES - 1}" in text
    assert f"v{MAX_ENUM_VALUES}" not in text


def test_text_to_embed_of_a_tool_with_huge_name_and_description_and_parameters_has_limited_length() -> None:
    properties = {f"parameter_{n}": {"description": "long " * 1000} for n in range(1000)}
    text = tool_text("n" * 5000, "word " * 100_000, {"properties": properties}, "s" * 5000, ["same"] * 5000)
    assert len(text) <= 401 + MAX_DESCRIPTION_CHARS + MAX_PARAMETERS_CHARS + MAX_SYNONYMS_CHARS + 3 * len(
        ". "
    )


def test_parameter_text_includes_descriptions_behind_ref_and_values_inside_anyof() -> None:
    schema = {
        "properties": {
            "unit": {"anyOf": [{"enum": ["celsius", "kelvin"]}, {"type": "null"}]},
            "place": {"$ref": "#/$defs/Place"},
            "kind": {"oneOf": [{"const": "rain"}, {"const": "snow"}], "description": "Of what"},
        },
        "$defs": {"Place": {"description": "Where it is", "properties": {"city": {}}}},
    }
    assert parameters_text(schema) == "unit: celsius kelvin, place: Where it is, kind: Of what: rain snow"


def test_nested_parameters_are_in_the_text_to_embed_only_if_the_tool_description_is_short() -> None:
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
    assert len(tool_text("x", "", schema)) < 20 + MAX_NESTED_CHARS


def test_nested_parameters_are_not_embedded_if_the_tool_description_is_a_chinese_sentence() -> None:
    inner: dict[str, Any] = {"properties": {"city": {}}}
    text = tool_text("x", "查询指定城市未来几天的天气预报", {"properties": {"place": inner}})
    assert text.endswith("place")


@check_cases("part", ["](", "<a", "`", "https://", "<a ](", " ", "\x00", "é"])
def test_text_to_embed_of_a_megabyte_of_hostile_markup_is_built_within_the_time_limit(part: str) -> None:
    hostile = part * (1_000_000 // len(part))
    run_with_limit(lambda: tool_text("x", hostile, {"properties": {"p": {"description": hostile}}}))
    run_with_limit(lambda: query_text(hostile))


def test_white_space_and_markup_are_removed_from_a_message_before_it_is_embedded() -> None:
    assert query_text("  what's\n\tthe **weather**\x00 today? ") == "what's the weather today?"


def test_text_to_embed_of_a_long_message_is_its_beginning_and_its_end() -> None:
    text = query_text("Translate this: " + "lorem ipsum " * 5000 + "into Finnish please")
    assert text.startswith("Translate this:")
    assert text.endswith("into Finnish please")
    assert len(text) <= QUERY_HEAD_CHARS + 1 + QUERY_TAIL_CHARS


@check_cases("message", ["", "   ", "\x00\x01\u200b", "``` ``"])
def test_blank_message_gives_an_empty_text_to_embed(message: str) -> None:
    assert query_text(message) == ""


def test_truncate_text_cuts_at_a_word_boundary_unless_the_first_word_is_too_long() -> None:
    assert truncate_text("one two three", 9) == "one two"
    assert truncate_text("one two three", 7) == "one two"
    assert truncate_text("x" * 30, 9) == "x" * 9
    assert truncate_text("short", 9) == "short"


@given(ANY_TEXT, ANY_TEXT, JUNK, ANY_TEXT, st.lists(ANY_TEXT, max_size=3))
@try_examples(150)
def test_text_to_embed_of_any_tool_has_no_control_characters(
    name: str, said: str, schema: Any, server: str, also: list[str]
) -> None:
    text = tool_text(name, said, schema if isinstance(schema, dict) else None, server, also)
    assert not any(ord(char) < 32 or 0xD800 <= ord(char) < 0xE000 for char in text)
    text.encode()


@given(ANY_TEXT)
@try_examples(100)
def test_clean_text_replaces_every_run_of_white_space_with_one_space(text: str) -> None:
    cleaned = clean_text(text)
    assert cleaned == " ".join(cleaned.split())
