"""A signature says how to call a tool, on one line, whatever its schema is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolfold import sample_catalog
from toolfold.model import Tool, freeze
from toolfold.turn.signature import MAX_SIGNATURE_CHARS, signature


def signed(parameters: Any, name: str = "go") -> str:
    return signature(
        Tool(name=name, toolset="t", description="", parameters=freeze(parameters), handler=print)
    )


def of(**properties: Any) -> str:
    """The signature of optional parameters, without what is around it."""
    return signed({"type": "object", "properties": properties}).removeprefix("go(").removesuffix(")")


def test_the_example_of_the_documentation() -> None:
    schema = {
        "type": "object",
        "properties": {
            "state": {"enum": ["open", "closed"]},
            "labels": {"type": "array", "items": {"type": "string"}},
            "repo": {"type": "string", "description": "Owner and name."},
            "title": {"type": "string"},
        },
        "required": ["repo", "title"],
    }
    assert signed(schema, "create_issue") == (
        'create_issue(repo: string, title: string, state?: "open"|"closed", labels?: string[])'
    )


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ({"type": "integer"}, "integer"),
        ({"type": "integer", "default": 5}, "integer = 5"),
        ({"type": "boolean", "default": False}, "boolean = false"),
        ({"type": "string", "default": ""}, "string"),
        ({"type": "string", "default": "x" * 60}, "string"),
        ({"type": "string", "format": "date"}, "string<date>"),
        ({"type": ["string", "null"]}, "string|null"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "integer"}]}, "integer|string"),
        ({"type": "array", "items": {"enum": ["a", 1]}}, '("a"|1)[]'),
        ({"type": "array"}, "any[]"),
        ({"const": "fixed"}, '"fixed"'),
        ({"allOf": [{"type": "string"}]}, "string"),
        (
            {"type": "object", "properties": {"a": {}, "b": {"type": "string"}}, "required": ["b"]},
            "{b: string, a?: any}",
        ),
        ({"properties": {"a": {"type": "number"}}}, "{a?: number}"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "{[key]: number}"),
        ({"type": "object"}, "object"),
        ({}, "any"),
        (True, "any"),
        ({"type": 5}, "any"),
        ({"$ref": "#/properties/p/missing"}, "any"),
        ({"$ref": "https://elsewhere.example/schema"}, "any"),
    ],
)
def test_every_kind_of_schema_has_a_type(schema: Any, written: str) -> None:
    assert of(p=schema) == f"p?: {written}"


def test_references_inside_the_schema_are_followed() -> None:
    schema = {
        "properties": {"who": {"$ref": "#/$defs/person"}},
        "$defs": {"person": {"properties": {"name": {"type": "string"}}, "required": ["name"]}},
    }
    assert signed(schema) == "go(who?: {name: string})"


def test_a_schema_that_refers_to_itself_is_cut() -> None:
    node = {"properties": {"next": {"$ref": "#/properties/node"}}}
    written = of(node=node)
    assert "…" in written
    assert len(written) < MAX_SIGNATURE_CHARS


def test_a_tool_without_parameters_has_empty_brackets() -> None:
    assert signed({}) == signed({"properties": []}) == "go()"


def test_a_long_signature_keeps_the_required_parameters_and_says_how_many_are_missing() -> None:
    properties = {f"a_rather_long_name_{number}": {"type": "string"} for number in range(100)}
    written = signed({"properties": properties, "required": ["a_rather_long_name_99"]})
    assert len(written) <= MAX_SIGNATURE_CHARS + 40
    assert written.startswith("go(a_rather_long_name_99: string, a_rather_long_name_0?: string")
    assert written.endswith(f"… {100 - written.count('string')} more)")


def test_a_long_enumeration_is_cut() -> None:
    assert of(p={"enum": list(range(50))}).endswith("|11|…")
    assert len(of(p={"enum": ["x" * 5_000]})) < 100


def test_names_and_values_from_elsewhere_stay_on_their_line() -> None:
    written = of(**{"a b\n": {"enum": ["line\nbreak", "\u202ereversed\x07"]}})
    assert written.isprintable()
    assert written.startswith('"a b\\n"?: "line\\nbreak"|')


@pytest.mark.parametrize("odd", ["\u202e", "\u2028", "\u200b"])
def test_names_and_values_that_are_cut_stay_on_their_line_as_well(odd: str) -> None:
    long = f"{odd}{'x' * 44}"
    written = of(**{long: {"enum": [long], "default": long}})
    assert written.isprintable()
    assert written == f'" {"x" * 39}…?: " {"x" * 39}…'


def test_every_tool_of_the_sample_has_a_short_signature() -> None:
    for tool in sample_catalog():
        written = signature(tool)
        assert written.startswith(f"{tool.name}(")
        assert written.isprintable()
        assert len(written) < MAX_SIGNATURE_CHARS + 100


KEYS = st.sampled_from(
    [
        *("type", "properties", "items", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "default"),
        *("required", "additionalProperties", "format", "string", "object", "array"),
        *("#", "#/properties/a", "a"),
    ]
)
JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), KEYS, st.text(st.characters(), max_size=6)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=5)),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(KEYS, JUNK, max_size=6))
def test_any_schema_at_all_gives_one_printable_bounded_line(schema: dict[str, Any]) -> None:
    written = signed(schema)
    json.dumps(written).encode()
    assert written.isprintable()
    assert len(written) < MAX_SIGNATURE_CHARS + 200


@pytest.mark.parametrize("key", ["anyOf", "properties", "allOf"])
def test_a_schema_made_to_explode_ends_soon(key: str) -> None:
    def level(number: int) -> Any:
        parts = [{"$ref": f"#/$defs/d{number + 1}"}] * 12
        return {
            key: {f"p{place}": part for place, part in enumerate(parts)} if key == "properties" else parts
        }

    schema = level(0) | {"properties": {"p": level(0)}, "$defs": {f"d{n}": level(n) for n in range(40)}}
    assert len(signed(schema)) < MAX_SIGNATURE_CHARS + 200


def test_a_parameter_too_long_to_write_leaves_its_name_and_room_for_the_others() -> None:
    huge = {"properties": {f"a_rather_long_name_{n}": {"enum": ["x" * 30] * 10 + [n]} for n in range(12)}}
    schema = {"properties": {"huge": huge, "small": {"type": "string"}}, "required": ["huge", "small"]}
    assert signed(schema) == "go(huge: …, small: string)"
