"""Schema walking finds parameters anywhere and is bounded for hostile schemas."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.cases import check_cases
from tests.thorough import try_examples
from toolfold.selection.retrieval.schemas import MAX_VARIANTS, iterate_schemas, listed_values, schema_variants

KEYS = [
    "properties",
    "items",
    "additionalProperties",
    "anyOf",
    "allOf",
    "$ref",
    "$defs",
    "enum",
    "const",
    "x",
]
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["#/x", "#/$defs/x", "#", "#/anyOf/0", "y"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=20,
)


def names(schema: Any, depth: int = 4, limit: int = 100) -> list[str]:
    return [name for name, _ in iterate_schemas(schema, depth=depth, limit=limit) if name]


def of(*parameters: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "string"} for name in parameters}}


@check_cases(
    "schema",
    [
        of("wanted"),
        {"properties": {"outer": of("wanted")}},
        {"properties": {"outer": {"type": "array", "items": of("wanted")}}},
        {"properties": {"outer": {"additionalProperties": of("wanted")}}},
        {"properties": {"outer": {"anyOf": [of("wanted"), {"type": "null"}]}}},
        {"properties": {"outer": {"oneOf": [{"type": "string"}, of("wanted")]}}},
        {"allOf": [of("other"), of("wanted")]},
        {"$ref": "#/$defs/Input", "$defs": {"Input": of("wanted")}},
        {"properties": {"outer": {"$ref": "#/definitions/A~1B"}}, "definitions": {"A/B": of("wanted")}},
        {
            "properties": {"outer": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}},
            "$defs": {"A": {"allOf": [{"$ref": "#/$defs/B"}]}, "B": of("wanted")},
        },
    ],
)
def test_parameters_inside_arrays_and_alternatives_and_references_of_a_schema_are_found(
    schema: dict[str, Any],
) -> None:
    assert "wanted" in names(schema)


def test_parameter_names_of_a_schema_are_listed_depth_first_in_document_order() -> None:
    schema = {"properties": {"a": of("b", "c"), "d": True, "e": of("f")}}
    assert names(schema) == ["a", "b", "c", "d", "e", "f"]
    assert names(schema, depth=0) == ["a", "d", "e"]


def test_parameters_that_share_a_schema_object_are_all_listed() -> None:
    shared = of("inner")
    assert names({"properties": {"a": shared, "b": shared}}) == ["a", "inner", "b"]


@check_cases("reference", ["other.json#/x", "https://a.b/c", "#/$defs/Missing", "#", "", None, 3])
def test_external_and_broken_references_are_ignored_when_listing_parameters_of_a_schema(
    reference: Any,
) -> None:
    assert names({"properties": {"a": {"$ref": reference}}}) == ["a"]


def test_parameters_of_a_recursive_schema_are_each_listed_once() -> None:
    node = {"properties": {"value": {}, "next": {"$ref": "#/$defs/Node"}, "rest": {"$ref": "#/$defs/Node"}}}
    schema = {"$ref": "#/$defs/Node", "$defs": {"Node": node}}
    assert names(schema, depth=50) == ["value", "next", "rest"]


def test_schema_with_exponentially_many_references_is_walked_in_a_limited_number_of_steps() -> None:
    steps = {
        f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(60)
    }
    schema: dict[str, Any] = {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": steps}
    assert len(list(iterate_schemas(schema, depth=4, limit=10_000))) < 200
    assert len(list(schema_variants(steps["d0"], schema))) <= MAX_VARIANTS


def test_walking_a_schema_stops_at_the_maximum_number_of_visited_subschemas() -> None:
    schema = of(*(f"p{n}" for n in range(5_000)))
    assert len(list(iterate_schemas(schema, depth=4, limit=70))) == 70


def test_schema_nested_300_levels_deep_is_walked_only_to_the_depth_limit() -> None:
    schema: dict[str, Any] = {}
    for n in range(300):
        schema = {"anyOf": [schema]} if n % 2 else {"items": schema}
    assert len(list(iterate_schemas(schema, depth=4, limit=10_000))) < 50


def test_allowed_values_of_a_schema_are_the_strings_in_its_enum_and_const() -> None:
    assert listed_values({"enum": ["a", 1, None, "b"], "const": "c"}) == ["a", "b", "c"]
    assert listed_values({"enum": "abc", "const": 3}) == []


@given(JUNK)
@try_examples(200)
def test_walking_any_json_value_as_a_schema_raises_no_error_and_yields_limited_alternatives(
    junk: Any,
) -> None:
    for name, inner in iterate_schemas(junk, depth=3, limit=50):
        assert isinstance(name, str)
        assert len(list(schema_variants(inner, junk))) <= MAX_VARIANTS
        assert all(isinstance(value, str) for value in listed_values(inner))
