"""A shortened schema takes fewer tokens and accepts the same instances."""

from __future__ import annotations

import copy
import gc
import json
import weakref
from typing import Any

import jsonschema_rs
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.cases import check_cases
from tests.thorough import try_examples
from toolfold.core.authoring import build_tool
from toolfold.core.schema_cost import MAX_VISITS, VisitCounter
from toolfold.core.types import Definition, FrozenDict, Json, Tool, freeze
from toolfold.selection.turn.slimming import Slimmer, slim, slim_schema
from toolfold.selection.turn.tokens import TokenCounter
from toolfold.tools.catalog import sample_catalog

COUNTER = TokenCounter()
DRAFT_07 = "http://json-schema.org/draft-07/schema#"
LATEST = "https://json-schema.org/draft/2020-12/schema"


def make_definition(parameters: Json, description: str = "Does it.", name: str = "do_it") -> Definition:
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def tool(parameters: Json) -> Tool:
    return build_tool(
        name="do_it", toolset="x", schema=make_definition(parameters), handler=lambda args: args
    )


def tokens(schema: Json) -> int:
    return COUNTER.text(json.dumps(schema, ensure_ascii=False, separators=(",", ":")))


def accepts(schema: Json, value: Any) -> bool:
    return bool(make_validator(schema).is_valid(value))


def make_validator(schema: Json) -> Any:
    return jsonschema_rs.validator_for(plain(schema), validate_formats=False)


def plain(schema: Any) -> Any:
    return json.loads(json.dumps(schema))


# Any schema, any arguments

NAMES = st.sampled_from(["a", "limit", "userId", "title", "description", "$schema", "default", "properties"])
WORDS = st.sampled_from(
    ["", " ", "Limit", "limit", "User Id", "Does it.", "Do it", "two\n    lines\n\n\n\n  of it"]
)
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "title", 1.0, 2.5])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
TYPES = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])
POINTERS = st.sampled_from(["#", "#/$defs/A", "#/$defs/B", "#/$defs/title", "#/definitions/C"])
ODD_POINTERS = st.sampled_from(
    ["#/properties/a", "#/additionalProperties", "#/$defs/A/items", "#/default", "#/examples/0", "#/title"]
)
LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
    "title": WORDS,
    "description": WORDS,
    "default": VALUES,
    "examples": st.lists(VALUES, max_size=5),
    "const": VALUES,
    "enum": st.lists(VALUES, min_size=1, max_size=3),
    "required": st.lists(NAMES, max_size=2, unique=True),
    "minimum": st.integers(-2, 2),
    "minLength": st.integers(0, 2),
    "minItems": st.integers(0, 1),
    "uniqueItems": st.booleans(),
    "deprecated": st.booleans(),
    "$comment": WORDS,
    "x-own": VALUES,
}


def nodes(inner: st.SearchStrategy[Any], pointers: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    named = st.dictionaries(NAMES, inner, max_size=3)
    listed = st.lists(inner, min_size=1, max_size=2)
    held = {
        "properties": named,
        "items": inner,
        "additionalProperties": st.booleans() | inner,
        "unevaluatedProperties": st.booleans(),
        "propertyNames": st.sampled_from([True, {}, {"type": "string"}, {"minLength": 2}]),
        "anyOf": listed,
        "oneOf": listed,
        "allOf": listed,
        "not": inner,
        "contains": inner,
        "prefixItems": listed,
        "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=1), max_size=1),
        "$ref": pointers,
    }
    every = {**LEAVES, **held}
    picked = st.lists(st.sampled_from(sorted(every)), max_size=5, unique=True)
    return picked.flatmap(lambda keys: st.fixed_dictionaries({key: every[key] for key in keys}))


def roots(pointers: st.SearchStrategy[str]) -> st.SearchStrategy[Json]:
    schemas = st.recursive(
        st.booleans() | nodes(st.just({}), pointers), lambda inner: nodes(inner, pointers), max_leaves=5
    )
    definitions = st.fixed_dictionaries({}, optional=dict.fromkeys(("A", "B", "title"), schemas))
    return st.fixed_dictionaries(
        {"properties": st.dictionaries(NAMES, schemas, max_size=4)},
        optional={
            "$schema": st.sampled_from([LATEST, DRAFT_07]),
            "$id": st.just("https://example.org/it"),
            "title": st.sampled_from(["do_itArguments", "Other"]),
            "description": WORDS,
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": st.booleans() | schemas,
            "unevaluatedProperties": st.booleans(),
            "anyOf": st.lists(schemas, min_size=1, max_size=2),
            "$defs": definitions,
            "definitions": st.fixed_dictionaries({}, optional={"C": schemas}),
        },
    )


ANY_SCHEMA = roots(POINTERS) | roots(POINTERS | ODD_POINTERS)
ARGUMENTS = st.dictionaries(NAMES, VALUES, max_size=4)


@try_examples(60)
@given(ANY_SCHEMA, st.lists(ARGUMENTS | VALUES, min_size=1, max_size=8))
def test_shortened_schema_accepts_and_rejects_the_same_values_as_the_original(
    schema: Json, values: list[Any]
) -> None:
    looks = VisitCounter(schema)
    assume(looks.is_bounded)
    try:
        original = make_validator(schema)
    except ValueError:
        assume(False)
    slimmed = make_validator(slim_schema(schema, "do_it", "Does it."))
    for value in values:
        if sum(size * each for size, each in looks.visits_per_level({"": value})) <= MAX_VISITS:
            assert slimmed.is_valid(value) == original.is_valid(value)


@try_examples(30)
@given(ANY_SCHEMA)
def test_shortening_an_already_shortened_schema_changes_nothing(schema: Json) -> None:
    once = slim(make_definition(schema))
    assert slim(once) == once


@try_examples(30)
@given(ANY_SCHEMA)
def test_shortening_never_makes_a_schema_longer(schema: Json) -> None:
    assert tokens(slim_schema(schema, "do_it", "Does it.")) <= tokens(schema)


@try_examples(20)
@given(ANY_SCHEMA)
def test_shortening_a_schema_does_not_modify_the_original(schema: Json) -> None:
    definition = make_definition(schema)
    before = copy.deepcopy(definition)
    slim(definition)
    assert definition == before


def test_shortened_schemas_of_the_sample_catalog_are_smaller_and_accept_the_same_values() -> None:
    for each in sample_catalog():
        slimmed = slim(each.definition())
        assert COUNTER.definition(slimmed) <= COUNTER.definition(each.definition())
        assert slim(slimmed) == slimmed
        assert accepts(slimmed["function"]["parameters"], {}) == accepts(each.parameters, {})


# What goes


def slimmed_property(schema: Json, name: str = "maxRecords") -> Json:
    slimmed = slim_schema({"type": "object", "properties": {name: schema}}, "do_it", "Does it.")
    found: Json = slimmed["properties"][name]
    return found


@check_cases(
    "noise",
    [
        {"title": "Max Records"},
        {"title": "max_records"},
        {"title": ""},
        {"title": "Most", "description": "most of them"},
        {"description": " \n "},
        {"description": "Max records."},
        {"description": "Does it."},
        {"default": None},
        {"default": ""},
        {"default": []},
        {"default": {}},
        {"required": []},
        {"additionalProperties": True},
        {"additionalProperties": {}},
        {"propertyNames": {"type": "string"}},
        {"uniqueItems": False},
        {"minLength": 0},
        {"deprecated": False},
        {"$comment": "from the generator"},
    ],
)
def test_titles_and_other_keywords_without_information_are_removed_from_a_schema(noise: Json) -> None:
    kept = {"description": "most of them"} if len(noise) > 1 else {}
    assert slimmed_property({"type": ["object", "string"], **noise}) == {"type": ["object", "string"], **kept}


@check_cases(
    "meaning",
    [
        {"title": "Rows of the table"},
        {"description": "At most 100."},
        {"default": False},
        {"default": 0},
        {"required": ["a"]},
        {"additionalProperties": False},
        {"additionalProperties": {"type": "string"}},
        {"propertyNames": {"pattern": "^x"}},
        {"properties": {}},
        {"items": {}},
        {"uniqueItems": True},
        {"minLength": 1},
        {"format": "date-time"},
        {"x-own": {"title": ""}},
    ],
)
def test_keywords_that_inform_or_restrict_are_not_removed_from_a_schema(meaning: Json) -> None:
    assert slimmed_property({"type": ["object", "string"], **meaning}) == {
        "type": ["object", "string"],
        **meaning,
    }


def test_property_named_like_a_removable_schema_keyword_is_not_removed() -> None:
    names = ["title", "description", "$schema", "$id", "default", "required", "$comment", "examples", "const"]
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names}
    assert slim_schema(schema) == schema


@check_cases("key", ["default", "const", "enum", "examples", "x-own"])
def test_default_and_example_values_that_look_like_a_schema_are_not_shortened(key: str) -> None:
    data = {"title": "", "properties": {"a": {"title": "A", "default": None}}, "required": [], "$ref": "#/x"}
    value = [data] if key in ("enum", "examples") else data
    assert slimmed_property({key: value}) == {key: value}


def test_long_list_of_examples_in_a_schema_is_truncated() -> None:
    assert slimmed_property({"examples": [1, 2, 3, 4, 5]}) == {"examples": [1, 2, 3]}


def test_type_implied_by_const_is_removed_from_a_schema() -> None:
    assert slimmed_property({"type": "string", "const": "a"}) == {"const": "a"}
    assert slimmed_property({"type": "integer", "const": True}) == {"type": "integer", "const": True}
    assert slimmed_property({"type": "string", "enum": ["a"]}) == {"type": "string", "enum": ["a"]}


def test_common_indentation_of_a_description_is_removed_and_relative_indentation_is_preserved() -> None:
    slimmed = slim(make_definition({}, description="\n    Runs it.\n\n\n\n    Args:\n        a: one  \n    "))
    assert slimmed["function"]["description"] == "Runs it.\n\nArgs:\n    a: one"


def test_description_equal_to_the_description_of_the_parent_schema_is_removed() -> None:
    branches = [{"type": "string", "description": "A name."}, {"type": "null"}]
    assert slimmed_property({"description": "A name.", "anyOf": branches}) == {
        "description": "A name.",
        "anyOf": [{"type": "string"}, {"type": "null"}],
    }


# The dialect


def test_keywords_dollar_schema_and_dollar_id_are_removed_if_they_do_not_affect_validation() -> None:
    schema = {"$schema": DRAFT_07, "$id": "https://example.org/x", "type": "object", "properties": {}}
    assert slim_schema(schema) == {"type": "object", "properties": {}}


@check_cases(
    "inner",
    [
        {"items": [{"type": "string"}]},
        {"$ref": "#/definitions/a", "minLength": 3},
        {"dependentRequired": {"a": ["b"]}},
        {"contentEncoding": "base64"},
        {"unevaluatedProperties": False},
    ],
)
def test_keyword_dollar_schema_with_a_json_schema_version_is_kept_if_it_affects_validation(
    inner: Json,
) -> None:
    schema = {
        "$schema": DRAFT_07,
        "properties": {"x": inner},
        "definitions": {"a": {"type": "string"}, "b": {"$ref": "#/definitions/a"}},
    }
    assert slim_schema(schema)["$schema"] == DRAFT_07


@check_cases("dialect", ["http://json-schema.org/draft-04/schema#", "https://example.org/own", 7, None])
def test_schema_of_an_unknown_json_schema_version_is_not_shortened(dialect: Any) -> None:
    schema = {"$schema": dialect, "title": "", "properties": {"a": {"default": None}}}
    assert slim_schema(schema) == schema


# Definitions


def test_unreferenced_schema_definitions_are_removed() -> None:
    schema = {
        "properties": {"a": {"type": "string"}},
        "$defs": {"loop": {"items": {"$ref": "#/$defs/loop"}}, "other": {"type": "string"}},
    }
    assert slim_schema(schema) == {"properties": {"a": {"type": "string"}}}


def test_schema_definition_used_once_is_inlined() -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/A", "description": "The first."}},
        "$defs": {"A": {"type": "object", "properties": {"b": {"$ref": "#/$defs/B"}}}, "B": {"enum": [1]}},
    }
    assert slim_schema(schema) == {
        "properties": {
            "a": {"type": "object", "properties": {"b": {"enum": [1]}}, "description": "The first."}
        }
    }


@check_cases(
    "uses",
    [
        {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "#/$defs/A"}},
        {"a": {"$ref": "#/$defs/A", "description": "Another."}},
        {"a": {"$ref": "#/$defs/A", "maxLength": 3}},
        {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "#/$defs/A/items"}},
    ],
)
def test_schema_definition_used_twice_or_with_further_keywords_is_not_inlined(uses: Json) -> None:
    schema = {"properties": uses, "$defs": {"A": {"description": "One.", "items": {"type": "string"}}}}
    assert slim_schema(schema) == schema


def test_recursive_schema_definition_is_not_inlined() -> None:
    schema = {
        "properties": {"tree": {"$ref": "#/$defs/Node"}},
        "$defs": {"Node": {"properties": {"children": {"items": {"$ref": "#/$defs/Node"}}}}},
    }
    assert slim_schema(schema) == schema


def test_schema_definition_name_with_slashes_is_not_treated_as_a_path() -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/A/items"}, "b": {"$ref": "#/$defs/A"}},
        "$defs": {"A": {"items": {"type": "string"}}, "A/items": {"type": "integer"}},
    }
    assert slim_schema(schema) == schema


# What depends on what was said elsewhere


def test_additional_properties_keyword_is_kept_if_it_affects_validation() -> None:
    schema = {"allOf": [{"additionalProperties": True}], "unevaluatedProperties": False}
    assert slim_schema(schema) == schema
    assert accepts(slim_schema(schema), {"a": 1})


@check_cases("key", ["additionalProperties", "propertyNames"])
def test_empty_schema_keyword_is_not_removed_if_a_reference_points_to_it(key: str) -> None:
    schema = {"properties": {"a": {"$ref": f"#/{key}"}}, key: {}}
    assert slim_schema(schema) == schema


# Schemas nobody would write


@check_cases(
    "names",
    [{"$anchor": "a"}, {"$dynamicRef": "#a"}, {"$id": "https://example.org/inner"}, {"id": "#x"}],
)
def test_schemas_with_ids_or_anchors_are_not_shortened(names: Json) -> None:
    schema = {"title": "", "properties": {"a": {"default": None, **names}}}
    assert slim_schema(schema) == schema


@check_cases("pointer", ["#/default", "#/x-own/1", "other.json#/a", "#a", "#/examples/0", 5, None])
def test_schema_with_references_to_other_files_or_to_non_schemas_is_not_shortened(pointer: Any) -> None:
    schema = {"title": "", "default": {}, "properties": {"a": {"$ref": pointer}}}
    assert slim_schema(schema) == schema


def nested(levels: int) -> Json:
    schema: Json = {"title": ""}
    for _ in range(levels):
        schema = {"items": schema, "title": ""}
    return schema


def test_schema_object_that_contains_itself_is_not_shortened() -> None:
    endless: Json = {"title": ""}
    endless["properties"] = {"a": endless}
    assert slim_schema(endless) is endless
    deep = nested(5_000)
    assert slim_schema(deep) is deep


def test_schema_with_a_default_value_that_contains_itself_is_not_shortened() -> None:
    endless: list[Any] = []
    endless.append(endless)
    schema = {"title": "", "properties": {"a": {"default": endless}}}
    assert slim_schema(schema) is schema


def test_schema_with_100_000_properties_is_not_shortened() -> None:
    schema = {"properties": {f"p{n}": {"title": ""} for n in range(100_000)}}
    assert slim_schema(schema) is schema


def test_chain_of_a_thousand_schema_definitions_is_not_inlined() -> None:
    chain = {f"d{n}": {"items": {"$ref": f"#/$defs/d{n + 1}"}, "title": ""} for n in range(1_000)}
    chain["d1000"] = {"type": "string"}
    slimmed = slim_schema({"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": chain})
    assert len(slimmed["$defs"]) == 1_001
    assert slimmed["$defs"]["d7"] == {"items": {"$ref": "#/$defs/d8"}}


@check_cases(
    "junk",
    [
        {
            "properties": [1],
            "items": 5,
            "anyOf": {"title": ""},
            "required": "a",
            "title": 5,
            "description": [],
        },
        {"properties": {"a": None, "b": True, "c": []}, "$defs": 7, "additionalProperties": "yes"},
        {"properties": {"a": {"$ref": ["#"]}}, "examples": "none", "minItems": False, "uniqueItems": 0},
    ],
)
def test_invalid_parts_of_a_schema_are_not_changed_by_shortening(junk: Json) -> None:
    assert slim_schema(junk) == junk


def test_shortening_a_tool_definition_without_schema_or_description_raises_no_error() -> None:
    functions: list[Json] = [{"name": "a"}, {"name": "a", "parameters": None}, {"description": None}]
    for function in functions:
        assert slim({"type": "function", "function": function}) == {"type": "function", "function": function}


# Kept


def test_shortened_schema_of_a_tool_is_one_cached_read_only_object() -> None:
    slimmer, each = Slimmer(), tool({"type": "object", "properties": {"a": {"title": "A"}}})
    first, second = slimmer(each), slimmer(each)
    assert first == second
    assert first["function"]["parameters"] is second["function"]["parameters"]
    assert type(first["function"]["parameters"]) is FrozenDict
    first["function"]["name"] = "changed"
    assert slimmer(each) == second


def test_shortening_a_schema_does_not_modify_the_tool() -> None:
    schema = {"type": "object", "properties": {"a": {"title": "A", "type": "string"}}}
    each = tool(schema)
    Slimmer()(each)
    assert each.parameters == schema


def test_schema_that_cannot_be_shortened_is_returned_as_the_same_object() -> None:
    schema = freeze({"type": "object", "properties": {"a": {"type": "string"}}})
    assert slim_schema(schema) is schema


def test_tool_whose_shortened_schema_is_cached_can_be_garbage_collected() -> None:
    slimmer, each = Slimmer(), tool({"type": "object", "properties": {}})
    slimmer(each)
    gone = weakref.ref(each)
    del each
    gc.collect()
    assert gone() is None
