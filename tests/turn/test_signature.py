"""A signature shows on one line how to call a tool, whatever its schema is."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.cases import check_cases
from tests.thorough import try_examples
from toolfold import sample_catalog
from toolfold.core.types import Tool, freeze
from toolfold.selection.turn.signature import MAX_SIGNATURE_CHARS, signature


def render_signature(parameters: Any, name: str = "go") -> str:
    return signature(
        Tool(name=name, toolset="t", description="", parameters=freeze(parameters), handler=print)
    )


def render_optional(**properties: Any) -> str:
    """Return the parameter part of the signature of optional parameters."""
    return (
        render_signature({"type": "object", "properties": properties}).removeprefix("go(").removesuffix(")")
    )


def test_tool_signature_puts_required_parameters_first_and_contains_types_and_enum_values() -> None:
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
    assert render_signature(schema, "create_issue") == (
        "create_issue(repo: string, title: string, state?: 'open'|'closed', labels?: string[])"
    )


@check_cases(
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
        ({"type": "array", "items": {"enum": ["a", 1]}}, "('a'|1)[]"),
        ({"type": "array"}, "any[]"),
        ({"const": "fixed"}, "'fixed'"),
        ({"enum": ["it's", 'a "b"', "c\\d"]}, '"it\'s"|"a \\"b\\""|"c\\\\d"'),
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
def test_type_and_default_of_a_parameter_are_abbreviated_in_a_tool_signature(
    schema: Any, written: str
) -> None:
    assert render_optional(p=schema) == f"p?: {written}"


@check_cases(
    ("schema", "written"),
    [
        ({"type": "string", "pattern": "^INV-[0-9]+$"}, "string</^INV-[0-9]+$/>"),
        ({"type": "string", "format": "email", "maxLength": 64}, "string<email, ..64 chars>"),
        ({"type": "string", "minLength": 20}, "string<20.. chars>"),
        ({"type": "string", "minLength": 1}, "string"),
        ({"type": "string", "maxLength": 4000}, "string"),
        ({"type": "string", "minLength": 1, "maxLength": 4000}, "string"),
        ({"type": "string", "minLength": 5, "maxLength": 4000}, "string<5.. chars>"),
        ({"type": "string", "pattern": "x" * 500, "maxLength": 9}, f"string</{'x' * 60}…/>"),
        ({"type": "string", "pattern": "a\nb\u202e"}, "string</a b />"),
        ({"type": ["string", "null"], "pattern": "^[A-Z]{2}$"}, "string</^[A-Z]{2}$/>|null"),
        ({"type": "integer", "minimum": 1, "maximum": 100, "default": 20}, "integer<1..100> = 20"),
        ({"type": "integer", "minimum": 0}, "integer"),
        ({"type": "number", "minimum": -90.5}, "number<-90.5..>"),
        ({"type": "number", "maximum": 10**400}, "number"),
        ({"type": "integer", "maximum": True, "minimum": "1"}, "integer"),
        (
            {"type": "array", "items": {"type": "string", "pattern": "^a"}, "maxItems": 5},
            "string</^a/>[]<..5 items>",
        ),
        ({"type": "array", "minItems": 2}, "any[]<2.. items>"),
    ],
)
def test_rules_that_a_first_call_could_break_are_part_of_a_tool_signature(schema: Any, written: str) -> None:
    assert render_optional(p=schema) == f"p?: {written}"


def test_signature_says_which_optional_parameters_a_call_needs_one_of() -> None:
    sizes = {"width": {"type": "integer"}, "height": {"type": "integer"}}
    needed = {"properties": sizes, "anyOf": [{"required": ["width"]}, {"required": ["height"]}]}
    assert render_signature(needed) == "go(width?: integer, height?: integer) needs width or height"
    assert "needs" not in render_signature({"properties": sizes, "anyOf": [{"required": ["width"]}, {}]})


def test_signatures_of_the_sample_tools_contain_the_pattern_of_every_required_parameter() -> None:
    for tool in sample_catalog():
        written = signature(tool)
        for name in tool.parameters.get("required", ()):
            pattern = tool.parameters["properties"][name].get("pattern", "")
            assert pattern in written, (tool.name, name)


def test_local_schema_references_are_resolved_in_tool_signatures() -> None:
    schema = {
        "properties": {"who": {"$ref": "#/$defs/person"}},
        "$defs": {"person": {"properties": {"name": {"type": "string"}}, "required": ["name"]}},
    }
    assert render_signature(schema) == "go(who?: {name: string})"


def test_recursive_schema_is_truncated_in_a_tool_signature() -> None:
    node = {"properties": {"next": {"$ref": "#/properties/node"}}}
    written = render_optional(node=node)
    assert "…" in written
    assert len(written) < MAX_SIGNATURE_CHARS


def test_signature_of_a_tool_without_parameters_has_empty_parentheses() -> None:
    assert render_signature({}) == render_signature({"properties": []}) == "go()"


def test_long_tool_signature_has_all_required_parameters_and_the_number_of_omitted_parameters() -> None:
    properties = {f"a_rather_long_name_{number}": {"type": "string"} for number in range(100)}
    written = render_signature({"properties": properties, "required": ["a_rather_long_name_99"]})
    assert len(written) <= MAX_SIGNATURE_CHARS + 40
    assert written.startswith("go(a_rather_long_name_99: string, a_rather_long_name_0?: string")
    assert written.endswith(f"… {100 - written.count('string')} more)")


def test_long_enum_is_truncated_in_a_tool_signature() -> None:
    assert render_optional(p={"enum": list(range(50))}).endswith("|11|…")
    assert len(render_optional(p={"enum": ["x" * 5_000]})) < 100


def test_control_characters_in_parameter_names_and_values_are_escaped_in_a_tool_signature() -> None:
    written = render_optional(**{"a b\n": {"enum": ["line\nbreak", "\u202ereversed\x07"]}})
    assert written.isprintable()
    assert written.startswith('"a b\\n"?: "line\\nbreak"|')


@check_cases("odd", ["\u202e", "\u2028", "\u200b"])
def test_overlong_names_and_values_with_invisible_characters_are_printable_in_a_tool_signature(
    odd: str,
) -> None:
    long = f"{odd}{'x' * 44}"
    written = render_optional(**{long: {"enum": [long], "default": long}})
    assert written.isprintable()
    assert written == f'" {"x" * 39}…?: " {"x" * 39}…'


def test_signature_of_every_sample_tool_is_one_printable_line_within_the_length_limit() -> None:
    for tool in sample_catalog():
        written = signature(tool)
        assert written.startswith(f"{tool.name}(")
        assert written.isprintable()
        assert len(written) < MAX_SIGNATURE_CHARS + 100


KEYS = st.sampled_from(
    [
        *("type", "properties", "items", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "default"),
        *(
            "required",
            "additionalProperties",
            "format",
            "pattern",
            "maximum",
            "maxItems",
            "string",
            "object",
            "array",
        ),
        *("#", "#/properties/a", "a"),
    ]
)
JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), KEYS, st.text(st.characters(), max_size=6)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=5)),
    max_leaves=12,
)


@try_examples(200)
@given(st.dictionaries(KEYS, JUNK, max_size=6))
def test_tool_signature_for_any_schema_is_one_printable_line_of_limited_length(
    schema: dict[str, Any],
) -> None:
    written = render_signature(schema)
    json.dumps(written).encode()
    assert written.isprintable()
    assert len(written) < MAX_SIGNATURE_CHARS + 200


@check_cases("key", ["anyOf", "properties", "allOf"])
def test_tool_signature_for_an_exponentially_large_schema_is_made_within_the_time_limit(key: str) -> None:
    def level(number: int) -> Any:
        parts = [{"$ref": f"#/$defs/d{number + 1}"}] * 12
        return {
            key: {f"p{place}": part for place, part in enumerate(parts)} if key == "properties" else parts
        }

    schema = level(0) | {"properties": {"p": level(0)}, "$defs": {f"d{n}": level(n) for n in range(40)}}
    assert len(render_signature(schema)) < MAX_SIGNATURE_CHARS + 200


def test_parameter_with_a_too_long_type_is_written_as_name_and_ellipsis_in_a_tool_signature() -> None:
    huge = {"properties": {f"a_rather_long_name_{n}": {"enum": ["x" * 30] * 10 + [n]} for n in range(12)}}
    schema = {"properties": {"huge": huge, "small": {"type": "string"}}, "required": ["huge", "small"]}
    assert render_signature(schema) == "go(huge: …, small: string)"
