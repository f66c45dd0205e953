"""Invisible characters are removed from the texts of tools."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import check_cases
from tests.conftest import RuntimeOpener
from toolfold.core.authoring import build_tool
from toolfold.core.invisible_characters import clean_schema, remove_invisible
from toolfold.core.registry import Registry
from toolfold.core.types import freeze
from toolfold.models import DIALECTS, DialectName

HIDDEN_TEXT = "\u200b\u202e\u2066\U000e0041\U000e0042\x1b[8m\x00\ufeff\u2063\U000e0101\u3164\x85"
CLEANED_TEXT = "[8m\n"
"""HIDDEN_TEXT after cleaning."""


@check_cases(
    ("written", "seen"),
    [
        ("a\u200bb", "ab"),
        ("pay \u202eevil\u202c now", "pay evil now"),
        ("tag\U000e0069\U000e0067", "tag"),
        ("one\u2028two\x85three", "one\ntwo\nthree"),
        ("a\x00\x1b[0m\x7f", "a[0m"),
        ("x\ufe0f\u200d\u200c", "x"),
        ("é\u200d\u200c\u200dé", "éé"),
        ("é\u200d\u200b\u200dé", "éé"),
        ("half \ud83d", "half "),
    ],
)
def test_invisible_characters_are_removed_from_tool_texts(written: str, seen: str) -> None:
    assert remove_invisible(written) == seen


@check_cases(
    "text",
    [
        "plain",
        "two\nlines\r\n\tand more",
        "Größe 漢字 🎲",
        "👨‍👩‍👧 ❤️‍🔥 1️⃣",
        "می‌خواهم",
        "क्‍ष",
        "naïve café",
        "a\xa0b",
        "",
    ],
)
def test_removing_invisible_characters_keeps_emoji_accents_and_joined_scripts_unchanged(
    text: str,
) -> None:
    assert remove_invisible(text) == text


@given(
    st.text(st.characters(codec=None) | st.sampled_from("\u200c\u200d\ufe0f\u200b\u202eé🎲a\n"), max_size=60)
)
def test_cleaned_tool_text_contains_no_control_bidi_or_zero_width_characters(text: str) -> None:
    seen = remove_invisible(text)
    assert not any(char in "\u200b\u200e\u200f\u061c\ufeff\xad" for char in seen)
    assert not any("\u202a" <= char <= "\u202e" or "\u2060" <= char <= "\u206f" for char in seen)
    assert not any("\ud800" <= char <= "\uf8ff" or char >= "\U000e0000" for char in seen)
    assert all(char in "\n\t\r" for char in seen if unicodedata.category(char) == "Cc")
    assert remove_invisible(seen) == seen


def test_invisible_characters_are_removed_from_schema_descriptions_but_not_from_names_and_values() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "title": f"T{HIDDEN_TEXT}",
        "properties": {
            f"a{HIDDEN_TEXT}": {
                "description": f"d{HIDDEN_TEXT}",
                "enum": [f"x{HIDDEN_TEXT}"],
                "default": f"x{HIDDEN_TEXT}",
            },
            "default": {
                "anyOf": [{"description": f"inner{HIDDEN_TEXT}"}, {"const": {"description": HIDDEN_TEXT}}]
            },
        },
        "required": [f"a{HIDDEN_TEXT}"],
        "$defs": {"enum": {"items": {"description": HIDDEN_TEXT}}},
    }
    seen = json.loads(json.dumps(clean_schema(freeze(schema))))
    kept = json.loads(json.dumps(freeze(schema)))  # lone surrogates are not valid text
    name = f"a{HIDDEN_TEXT}"
    assert seen["title"] == "T" + CLEANED_TEXT
    assert seen["properties"][name] == kept["properties"][name] | {"description": "d" + CLEANED_TEXT}
    assert seen["properties"]["default"]["anyOf"] == [
        {"description": "inner" + CLEANED_TEXT},
        {"const": {"description": HIDDEN_TEXT}},
    ]
    assert seen["required"] == [name]
    assert seen["$defs"] == {"enum": {"items": {"description": CLEANED_TEXT}}}


def test_cleaning_a_schema_without_invisible_characters_returns_it_unchanged() -> None:
    schema = freeze({"properties": {"größe": {"description": "Mißt.\nIn Metern 📏."}}})
    assert clean_schema(schema) is schema


def test_invisible_characters_can_be_removed_from_a_very_deep_schema() -> None:
    schema: dict[str, Any] = {"description": HIDDEN_TEXT}
    for _ in range(300):
        schema = {"items": schema, "description": HIDDEN_TEXT}
    assert clean_schema(freeze(schema))["description"] == CLEANED_TEXT


def make_poisoned_tool() -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "description": f"Where{HIDDEN_TEXT}."}},
    }
    return {"description": f"The weather{HIDDEN_TEXT} of a city.", "parameters": parameters}


def test_registry_stores_tool_texts_without_invisible_characters() -> None:
    registry = Registry()
    tool = registry.register(
        name="weather", toolset="t", schema=make_poisoned_tool(), handler=lambda args: args
    )
    assert tool is registry.snapshot()["weather"]
    assert tool.description == f"The weather{CLEANED_TEXT} of a city."
    clean = build_tool(
        name="clean", toolset="t", schema={"description": "Größe 🎲"}, handler=lambda args: args
    )
    assert registry.add(clean) is clean


@pytest.mark.parametrize("form", DIALECTS)
def test_tool_definitions_and_descriptions_added_to_messages_have_no_invisible_characters(
    open_test_runtime: RuntimeOpener, form: DialectName
) -> None:
    for placement in ("replace", "append", "tail"):
        runtime = open_test_runtime(
            {
                "tools.selection": "keyword",
                "tools.rag_need": "off",
                "tools.rag_placement": placement,
                "tools.tool_search.enabled": "on",
            }
        )
        runtime.registry.register(
            name="weather", toolset="t", schema=make_poisoned_tool(), handler=lambda args: args
        )
        session = runtime.session()
        request = session.request([{"role": "user", "content": "weather of the city"}], form=form)
        written = json.dumps(
            [request.tools, request.messages, session.definitions("weather")], ensure_ascii=False
        )
        assert "The weather" in written
        assert not {*HIDDEN_TEXT} & {*written} - {*CLEANED_TEXT}
    assert not {*HIDDEN_TEXT} & {*json.dumps(runtime.get_tool_definitions(), ensure_ascii=False)} - {
        *CLEANED_TEXT
    }


async def test_enum_values_with_invisible_characters_are_validated_exactly_as_written_by_the_author(
    open_test_runtime: RuntimeOpener,
) -> None:
    schema = {
        "description": "x",
        "parameters": {"type": "object", "properties": {"a\u200b": {"enum": ["b\u200b"]}}},
    }
    runtime = open_test_runtime()
    runtime.registry.register(name="odd", toolset="t", schema=schema, handler=lambda args: args)
    assert (await runtime.session().call("odd", {"a\u200b": "b\u200b"})).ok
    assert not (await runtime.session().call("odd", {"a\u200b": "b"})).ok
