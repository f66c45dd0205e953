"""Any model output becomes arguments that match the schema, or an error with advice."""

from __future__ import annotations

import copy
import gc
import http.server
import json
import math
import threading
import weakref
from collections import UserDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.cases import check_cases
from tests.thorough import try_examples
from tests.timing import run_with_limit
from toolfold.core.authoring import build_tool
from toolfold.core.errors import InvalidArguments
from toolfold.core.schema_cost import MAX_DEPTH, VisitCounter
from toolfold.core.types import Json, Tool
from toolfold.core.validation import MAX_TEXT_CHARS, Validation, parse_arguments
from toolfold.runtime.runtime import Runtime

modest = try_examples(100, suppress_health_check=[HealthCheck.too_slow])


def tool_with_schema(schema: object, **more: object) -> Tool:
    """Return a tool with one argument, `x`, of this schema."""
    parameters = {"type": "object", "properties": {"x": schema}, **more}
    return build_tool(name="probe", toolset="t", schema={"parameters": parameters}, handler=lambda args: args)


def coerce(schema: object, value: object, **more: object) -> Any:
    """Return `x` as the handler receives it."""
    return Validation()(tool_with_schema(schema, **more), {"x": value})["x"]


def validation_error(tool: Tool, arguments: Any) -> str:
    with pytest.raises(InvalidArguments) as caught:
        Validation()(tool, arguments)
    return str(caught.value)


# -- any JSON against any schema ------------------------------------------------------------------------

TEXTS = st.one_of(
    st.text(st.characters(), max_size=6),
    st.sampled_from(
        ["5", "-3", "5.0", "1e3", "1e999", "true", "False", "null", "", " 7 ", "nan", "Infinity"]
    ),
    st.sampled_from(
        ['{"a": "1"}', "[1, 2]", '["5"]', "[1e999]", "[NaN]", "{", '"5"', "[" * 2000, "9" * 5000]
    ),
)
NUMBERS = st.one_of(
    st.integers(-(10**30), 10**30), st.floats(allow_nan=False, allow_infinity=False, width=32).map(float)
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.integers(-3, 9).map(float), TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3)
    ),
    max_leaves=6,
)
KINDS = ["string", "integer", "number", "boolean", "null", "array", "object"]
PLAIN_SCHEMAS = st.one_of(
    st.booleans(),
    st.builds(dict),
    st.sampled_from(KINDS).map(lambda kind: {"type": kind}),
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=3, unique=True).map(lambda kinds: {"type": kinds}),
    st.lists(SCALARS.filter(lambda v: v == v), min_size=1, max_size=3).map(lambda values: {"enum": values}),
    st.integers(0, 9).map(lambda number: {"const": number}),
    st.integers(-2, 9).map(lambda number: {"type": "number", "minimum": number}),
    st.sampled_from(["#/$defs/d", "#", "#/$defs/missing", "#anchor", "other.json#/a"]).map(
        lambda reference: {"$ref": reference}
    ),
)
SCHEMAS = st.recursive(
    PLAIN_SCHEMAS,
    lambda inner: st.one_of(
        st.builds(lambda s: {"type": "array", "items": s}, inner),
        st.builds(lambda s, t: {"type": "array", "prefixItems": [s], "items": t}, inner, inner),
        st.builds(lambda s, t: {"type": "object", "properties": {"a": s, "b": t}}, inner, inner),
        st.builds(lambda s: {"type": "object", "additionalProperties": s}, inner),
        st.lists(inner, min_size=1, max_size=3).map(lambda them: {"anyOf": them}),
        st.lists(inner, min_size=1, max_size=3).map(lambda them: {"oneOf": them}),
        st.lists(inner, min_size=1, max_size=2).map(lambda them: {"allOf": them}),
        st.builds(lambda s: {"not": s}, inner),
    ),
    max_leaves=5,
)


def compile_schema(tool: Tool) -> Any | None:
    def refuse(uri: str) -> Any:
        raise ValueError(uri)

    try:
        schema = copy.deepcopy(tool.parameters)
        return jsonschema_rs.validator_for(schema, retriever=refuse, validate_formats=False)
    except ValueError:
        return None


def is_same_json(before: Any, after: Any) -> bool:
    """Return True for the same JSON, where 5.0 equals 5."""
    if isinstance(before, dict):
        return (
            isinstance(after, dict)
            and before.keys() == after.keys()
            and all(is_same_json(before[key], after[key]) for key in before)
        )
    if isinstance(before, list):
        return isinstance(after, list) and len(before) == len(after) and all(map(is_same_json, before, after))
    if isinstance(before, float):
        return type(after) in (int, float) and after == before
    return type(before) is type(after) and bool(before == after)


def iterate_leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from iterate_leaves(each)
    else:
        yield value


@modest
@given(SCHEMAS, SCHEMAS, VALUES)
def test_validating_arbitrary_json_against_an_arbitrary_schema_raises_only_invalid_arguments(
    schema: object, other: object, value: object
) -> None:
    tool = tool_with_schema(schema, **{"$defs": {"d": other}})
    validate = Validation()
    try:
        args = validate(tool, {"x": value})
    except InvalidArguments:
        return
    validator = compile_schema(tool)
    assert validator is None or validator.is_valid(args)


@modest
@given(SCHEMAS, SCHEMAS, VALUES)
def test_argument_that_matches_its_schema_is_not_changed(
    schema: object, other: object, value: object
) -> None:
    tool = tool_with_schema(schema, **{"$defs": {"d": other}})
    validator = compile_schema(tool)
    try:
        checkable = VisitCounter(tool.parameters).is_bounded
        fits = checkable and validator is not None and validator.is_valid({"x": value})
    except ValueError:  # lone surrogate
        return
    if fits and not any(isinstance(leaf, str) and not is_encodable(leaf) for leaf in iterate_leaves(value)):
        assert is_same_json({"x": value}, Validation()(tool, {"x": value}))


def is_encodable(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


@modest
@given(SCHEMAS, SCHEMAS, VALUES)
def test_validating_already_converted_arguments_again_does_not_change_them(
    schema: object, other: object, value: object
) -> None:
    tool, validate = tool_with_schema(schema, **{"$defs": {"d": other}}), Validation()
    if compile_schema(tool) is None:
        return  # without a type, text may be parsed again
    try:
        once = validate(tool, {"x": value})
    except InvalidArguments:
        return
    twice = validate(tool, once)
    assert json.dumps(twice) == json.dumps(once)


@modest
@given(SCHEMAS, st.recursive(st.one_of(st.floats(), TEXTS), lambda inner: st.lists(inner, max_size=3)))
def test_infinity_and_nan_arguments_are_rejected(schema: object, value: object) -> None:
    try:
        args = Validation()(tool_with_schema(schema), {"x": value})
    except InvalidArguments:
        return
    assert all(math.isfinite(leaf) for leaf in iterate_leaves(args) if isinstance(leaf, float))


@modest
@given(SCHEMAS, VALUES)
def test_arguments_given_as_json_text_are_validated_like_the_parsed_object(
    schema: object, value: object
) -> None:
    tool, validate = tool_with_schema(schema), Validation()
    try:
        expected = validate(tool, {"x": value})
    except InvalidArguments:
        with pytest.raises(InvalidArguments):
            validate(tool, json.dumps({"x": value}))
    else:
        assert json.dumps(validate(tool, json.dumps({"x": value}))) == json.dumps(expected)


# -- coercion -------------------------------------------------------------------------------------------


@check_cases(
    ("schema", "written", "meant"),
    [
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, " -12 ", -12),
        ({"type": "integer"}, "+7", 7),
        ({"type": "integer"}, "5.0", 5),
        ({"type": "integer"}, "1e3", 1000),
        ({"type": "integer"}, 5.0, 5),
        ({"type": "number"}, "5", 5),
        ({"type": "number"}, "2.5", 2.5),
        ({"type": "number"}, ".5", 0.5),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "False", False),
        ({"type": "null"}, "null", None),
        ({"type": ["integer", "null"]}, "", None),
        ({"type": ["integer", "null"]}, "8", 8),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"type": "array"}, "[1, 2]", [1, 2]),
        ({"type": "array", "items": {"type": "integer"}}, '["1", "2"]', [1, 2]),
        ({"type": "array", "items": {"type": "boolean"}}, ["true", False], [True, False]),
        ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}]}, ["1", ""], [1, None]),
        ({"type": "object", "properties": {"n": {"type": "integer"}}}, {"n": "5"}, {"n": 5}),
        ({"type": "object", "additionalProperties": {"type": "number"}}, {"k": "5"}, {"k": 5}),
        ({"type": "object", "properties": {"n": {"type": "integer"}}}, '{"n": "5"}', {"n": 5}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "5", 5),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
        ({"oneOf": [{"type": "boolean"}, {"type": "array"}]}, "true", True),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, "5", 5),
        ({"type": "integer", "anyOf": [{"minimum": 5}, {"maximum": 1}]}, "5", 5),
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": [True]}, "true", True),
        ({"type": ["string", "integer"], "enum": [1, 2]}, "2", 2),
        ({"const": 3}, "3", 3),
        ({"$ref": "#/$defs/count"}, "5", 5),
        ({"$ref": "#/properties/x/anyOf/0", "anyOf": [{"type": "integer"}]}, "5", 5),
        ({"$ref": "#/$defs/odd%20name~1part"}, "5", 5),
        ({"type": "array", "items": {"$ref": "#/$defs/tree"}}, [{"n": "1", "of": [{"n": "2"}]}],
         [{"n": 1, "of": [{"n": 2}]}]),
    ],
)  # fmt: skip
def test_text_argument_is_converted_to_the_type_required_by_the_schema(
    schema: Json, written: object, meant: object
) -> None:
    definitions = {
        "count": {"type": "integer"},
        "odd name/part": {"type": "integer"},
        "tree": {
            "type": "object",
            "properties": {
                "n": {"type": "integer"},
                "of": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
            },
        },
    }
    args = coerce(schema, written, **{"$defs": definitions})
    assert is_same_json(meant, args), args


def test_text_in_an_object_argument_is_converted_according_to_the_matching_any_of_alternative() -> None:
    alternatives = [
        {
            "type": "object",
            "properties": {"kind": {"const": kind}, name: {"type": "integer"}},
            "required": ["kind", name],
            "additionalProperties": False,
        }
        for kind, name in (("circle", "radius"), ("square", "side"))
    ]
    assert coerce({"anyOf": alternatives}, {"kind": "square", "side": "5"}) == {"kind": "square", "side": 5}


@check_cases(
    ("schema", "written"),
    [
        ({"type": "string"}, "5"),
        ({"type": "string"}, "true"),
        ({"type": "string"}, '{"a": 1}'),
        ({"type": ["integer", "string"]}, "5"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "5"),
        ({"anyOf": [{"type": "integer"}, {"description": "or anything"}]}, "5"),
        ({"anyOf": [{"type": "integer"}, True]}, "5"),
        ({"enum": ["5", 5]}, "5"),
        ({}, "5"),
        ({"description": "anything"}, "[1]"),
        ({"$ref": "#/$defs/missing"}, "5"),
    ],
)
def test_text_argument_is_not_converted_if_the_schema_accepts_text(schema: Json, written: str) -> None:
    assert coerce(schema, written) == written


def test_argument_valid_for_one_any_of_alternative_is_not_converted_for_another_alternative() -> None:
    alternatives = [
        {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}
        for name in ("radius", "side")
    ]
    assert coerce({"anyOf": alternatives}, {"side": 5, "radius": "5"}) == {"side": 5, "radius": "5"}


@check_cases("written", ["five", "1.5", "1e999", "nan", "inf", "0x10", "1_000", "٥", ""])
def test_non_integer_text_is_rejected_for_an_integer_argument(written: str) -> None:
    assert "was not invoked" in validation_error(tool_with_schema({"type": "integer"}), {"x": written})


@check_cases("written", ["1e999", "-1e999", "nan", "Infinity", "inf"])
def test_text_infinity_nan_or_a_too_large_number_is_rejected_for_a_number_argument(written: str) -> None:
    assert "was not invoked" in validation_error(tool_with_schema({"type": "number"}), {"x": written})


@check_cases("written", ["yes", "1", "on", "T"])
def test_texts_other_than_true_and_false_are_not_converted_to_booleans(written: str) -> None:
    assert "was not invoked" in validation_error(tool_with_schema({"type": "boolean"}), {"x": written})


def test_same_text_is_converted_for_an_integer_argument_and_unchanged_for_a_text_argument() -> None:
    tool = build_tool(
        name="two",
        toolset="t",
        schema={"properties": {"n": {"type": "integer"}, "s": {"type": "string"}}},
        handler=lambda args: args,
    )
    assert Validation()(tool, {"n": "5", "s": "5"}) == {"n": 5, "s": "5"}


def test_null_for_an_optional_property_is_removed_unless_the_schema_allows_null() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": ["integer", "null"]}}}
    tool = tool_with_schema(schema)
    assert Validation()(tool, {"x": {"a": None, "b": None}}) == {"x": {"b": None}}
    assert Validation()(tool, {"x": {"other": None}}) == {"x": {"other": None}}


def test_null_argument_for_a_required_property_is_rejected() -> None:
    tool = tool_with_schema({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})
    with pytest.raises(InvalidArguments, match="null"):
        Validation()(tool, {"x": {"a": None}})


def test_mutating_the_original_arguments_does_not_change_the_validated_arguments() -> None:
    given = {"x": {"list": [1]}}
    args = Validation()(tool_with_schema({"type": "object"}), given)
    given["x"]["list"].append(2)
    assert args == {"x": {"list": [1]}}


# -- input formats --------------------------------------------------------------------------------


@check_cases("arguments", [None, "", "  ", "null", "{}", '"{}"', '""'])
def test_missing_blank_or_null_arguments_text_is_treated_as_an_empty_object(arguments: str | None) -> None:
    assert parse_arguments("probe", arguments) == {}


def test_doubly_json_encoded_arguments_are_decoded() -> None:
    assert parse_arguments("probe", json.dumps(json.dumps({"x": 1}))) == {"x": 1}


@check_cases("arguments", ["[1]", "5", "true", '"text"', "{", "{'x': 1}", '{"x": NaN}'])
def test_arguments_text_that_is_not_a_json_object_is_rejected(arguments: str) -> None:
    with pytest.raises(InvalidArguments, match="'probe' was not invoked"):
        parse_arguments("probe", arguments)


def test_deeply_nested_arguments_text_is_rejected() -> None:
    with pytest.raises(InvalidArguments, match="more than 500 levels deep"):
        parse_arguments("probe", "[" * 10_000)


def test_arguments_text_with_too_many_values_is_rejected() -> None:
    with pytest.raises(InvalidArguments, match="more than 20,000 JSON values and keys"):
        parse_arguments("probe", '{"a": [' + "[]," * 20_000 + "[]]}")


def test_text_with_too_many_json_values_is_not_converted_for_an_array_argument() -> None:
    text = "[" + "[]," * 20_000 + "[]]"
    tool = tool_with_schema({"type": "array"})
    (name,) = tool.parameters["properties"]
    assert Validation().read(tool, {name: text}) == {name: text}


def test_number_argument_with_too_many_digits_is_rejected() -> None:
    with pytest.raises(InvalidArguments, match="not valid JSON"):
        parse_arguments("probe", '{"x": ' + "9" * 5000 + "}")
    assert "was not invoked" in validation_error(tool_with_schema({"type": "integer"}), {"x": "9" * 5000})


def test_overlong_arguments_text_is_rejected_before_parsing() -> None:
    with pytest.raises(InvalidArguments, match="characters long"):
        parse_arguments("probe", '"' + "a" * MAX_TEXT_CHARS + '"')


def test_arguments_given_as_a_mapping_other_than_dict_are_accepted() -> None:
    arguments: Any = UserDict({"x": UserDict({"y": "5"})})
    inner = {"type": "object", "properties": {"y": {"type": "integer"}}}
    assert Validation()(tool_with_schema(inner), arguments) == {"x": {"y": 5}}


@check_cases(
    "value", [b"bytes", {1, 2}, object(), Path("a"), float("nan"), [float("inf")], "\ud800", {"\udfff": 1}]
)
def test_error_for_a_non_json_argument_value_names_its_path(value: object) -> None:
    message = validation_error(tool_with_schema({}), {"x": value})
    assert "at /x" in message
    assert "is not JSON" in message


def test_json_text_with_a_lone_surrogate_or_infinite_number_is_rejected_for_an_array_argument() -> None:
    assert "is not JSON" in validation_error(tool_with_schema({"type": "array"}), {"x": '["\\ud800"]'})
    assert "is not JSON" in validation_error(tool_with_schema({"type": "array"}), {"x": "[1e999]"})


def test_deeply_nested_arguments_are_rejected() -> None:
    nested: Any = {}
    for _ in range(MAX_DEPTH + 1):
        nested = {"a": nested}
    assert f"more than {MAX_DEPTH} levels deep" in validation_error(tool_with_schema({}), {"x": nested})
    assert f"more than {MAX_DEPTH} levels deep" in validation_error(
        tool_with_schema({"type": "object"}), {"x": json.dumps(nested)}
    )


def test_validating_a_long_list_under_a_very_long_key_finishes_within_the_time_limit() -> None:
    run_with_limit(lambda: Validation()(tool_with_schema({}), {"k" * 10_000_000: [1] * 100_000}))


def test_self_referencing_argument_is_rejected() -> None:
    looped: Any = []
    looped.append(looped)
    assert "levels deep" in validation_error(tool_with_schema({}), {"x": looped})


# -- error messages -----------------------------------------------------------------------------


def test_error_for_a_missing_argument_contains_its_name_and_the_schema() -> None:
    tool = tool_with_schema({"type": "string"}, required=["x"])
    with pytest.raises(InvalidArguments) as caught:
        Validation()(tool, {})
    assert str(caught.value) == "'probe' was not invoked: at /: \"x\" is a required property."
    assert caught.value.details == {"parameters": tool.parameters}


def test_error_names_every_missing_parameter_and_counts_further_problems() -> None:
    names = [f"p{number}" for number in range(12)]
    properties = {name: {"type": "integer"} for name in names} | {"q": {"type": "string"}}
    probe = tool_with_schema({}, properties=properties, required=[*names[:5], "q"])
    missing = validation_error(probe, {})
    assert '"p0", "p1", "p2", "p3", "p4", "q" are required properties' in missing
    wrong = validation_error(probe, dict.fromkeys(names, "x"))
    assert '"q" is a required property' in wrong
    assert "; and 5 more." in wrong


def test_error_for_an_invalid_enum_argument_lists_the_allowed_values() -> None:
    assert '"fast" is not one of "slow" or "steady"' in validation_error(
        tool_with_schema({"enum": ["slow", "steady"]}), {"x": "fast"}
    )


def test_error_for_an_invalid_argument_contains_its_path() -> None:
    inner = {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    assert "at /x/1/n:" in validation_error(tool_with_schema(inner), {"x": [{"n": 1}, {"n": "one"}]})


def test_error_for_invalid_arguments_omits_a_long_schema() -> None:
    tool = tool_with_schema({"type": "string", "description": "a" * 10_000}, required=["x"])
    with pytest.raises(InvalidArguments) as caught:
        Validation()(tool, {})
    assert caught.value.details == {}


def test_error_message_for_500_invalid_array_items_is_shorter_than_1000_characters() -> None:
    message = validation_error(
        tool_with_schema({"type": "array", "items": {"type": "integer"}}), {"x": ["a" * 5000] * 500}
    )
    assert len(message) < 1_000


# -- hostile schemas ------------------------------------------------------------------------------------


class _Counting(http.server.BaseHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web() -> Iterator[tuple[str, list[str]]]:
    """Address of a real server, and the list of its requests."""
    asked: list[str] = []
    handler = type("Handler", (_Counting,), {"asked": asked})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()
        thread.join()


def test_remote_reference_in_a_tool_schema_is_never_fetched(web: tuple[str, list[str]]) -> None:
    address, asked = web
    assert coerce({"$ref": f"{address}/schema.json"}, "text") == "text"
    assert asked == []


def test_file_reference_in_a_tool_schema_is_never_opened(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "integer"}')
    assert coerce({"$ref": file.as_uri()}, "text") == "text"


@check_cases(
    "schema",
    [
        {"type": "nonsense"},
        {"pattern": "("},
        {"items": [{"type": "integer"}]},
        {"minimum": True},
        {"$ref": 5},
        {"$ref": "#/$defs/missing"},
        {"anyOf": "text"},
        {"properties": [], "additionalProperties": 7},
        {"type": [1, None]},
    ],
)
def test_arguments_of_a_tool_with_an_invalid_schema_are_not_changed(schema: Json) -> None:
    assert coerce(schema, {"a": "5"}) == {"a": "5"}


def test_schema_that_consists_only_of_a_self_reference_accepts_any_object() -> None:
    assert coerce({"$ref": "#"}, {"x": {"a": "5"}}) == {"x": {"a": "5"}}
    assert coerce({"$ref": "#/properties/x"}, {"a": "5"}) == {"a": "5"}


def test_schema_with_cyclic_alternatives_is_rejected_as_too_complex() -> None:
    names = [f"d{number}" for number in range(40)]
    everyone = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in names]}
    tool = tool_with_schema(
        {"type": "array", "items": everyone}, **{"$defs": dict.fromkeys(names, everyone), "required": ["x"]}
    )
    run_with_limit(lambda: validation_error(tool, {"x": [{"a": ["5"] * 50}] * 50}))
    assert validation_error(tool, {"x": []}) == "'probe' was not invoked: its schema is too complex to check."


def doubling_schema(keyword: str, levels: int, reference: str = "$ref", target: str = "#/$defs/d{}") -> Json:
    """Return a short schema that visits one value 2^levels times."""
    chain: Json = {
        f"d{level}": {keyword: [{reference: target.format(level + 1)}] * 2, "$anchor": f"d{level}"}
        for level in range(levels)
    }
    chain[f"d{levels}"] = {"type": "object", "$anchor": f"d{levels}", "required": ["missing"]}
    return {"$ref": "#/$defs/d0", "$defs": chain}


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("$ref", "#/$defs/d{}"),
        ("$ref", "#/%24defs%2Fd{}"),
        ("$ref", "./#/$defs/d{}"),
        ("$ref", "#d{}"),
        ("$dynamicRef", "#d{}"),
    ],
)
def test_arguments_are_rejected_if_the_references_of_the_schema_multiply_exponentially(
    keyword: str, reference: str, target: str
) -> None:
    schema = doubling_schema(keyword, 40, reference, target)
    tool = build_tool(name="probe", toolset="t", schema={"parameters": schema}, handler=lambda args: args)
    run_with_limit(lambda: validation_error(tool, {}))
    assert validation_error(tool, {}) == "'probe' was not invoked: its schema is too complex to check."


def test_schema_references_with_signed_list_indices_cannot_cause_exponential_validation_time() -> None:
    listed = [{"allOf": [{"$ref": f"#/listed/+{place + 1}"}] * 2} for place in range(40)]
    tool = tool_with_schema({"$ref": "#/listed/0"}, listed=[*listed, {"type": "object"}])
    run_with_limit(lambda: validation_error(tool, {"x": {}}))


def test_argument_that_fails_exponentially_many_alternatives_is_rejected_within_the_time_limit() -> None:
    tool = tool_with_schema({"$ref": "#/$defs/d0"}, **{"$defs": doubling_schema("anyOf", 18)["$defs"]})
    run_with_limit(lambda: validation_error(tool, {"x": {}}))
    assert "do not match its schema" in validation_error(tool, {"x": {}})


def test_array_argument_of_100000_invalid_values_is_rejected_within_the_time_limit() -> None:
    tool = tool_with_schema({"type": "array", "items": {"anyOf": [{"type": "integer"}] * 50}})
    run_with_limit(lambda: validation_error(tool, {"x": ["a"] * 100_000}))


def nest_value(levels: int) -> Json:
    value: Json = {}
    for _ in range(levels):
        value = {"x": value}
    return value


def test_deep_arguments_for_a_recursive_any_of_schema_are_rejected_as_too_complex_to_validate() -> None:
    node = {
        "anyOf": [
            {"type": "object", "properties": {"x": {"$ref": "#/$defs/node"}}, "required": [name]}
            for name in ("x", "y")
        ]
        + [{"type": "object", "maxProperties": 0}]
    }
    tool = tool_with_schema({"$ref": "#/$defs/node"}, **{"$defs": {"node": node}})
    assert Validation()(tool, nest_value(10)) == nest_value(10)
    run_with_limit(lambda: validation_error(tool, nest_value(45)))
    assert "too complex to check arguments of this size or depth" in validation_error(tool, nest_value(45))


def test_deep_arguments_for_recursive_schemas_without_branching_are_accepted() -> None:
    tree = {
        "type": "object",
        "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
    }
    anything = {
        "anyOf": [
            {"type": ["string", "number", "boolean", "null"]},
            {"type": "array", "items": {"$ref": "#/$defs/anything"}},
            {"type": "object", "additionalProperties": {"$ref": "#/$defs/anything"}},
        ]
    }
    definitions = {"$defs": {"tree": tree, "anything": anything}}
    grown: Json = {}
    for _ in range(30):
        grown = {"children": [grown, {}]}
    assert coerce({"$ref": "#/$defs/tree"}, grown, **definitions) == grown
    shaped = {"a": [{"b": [1, "two", {"c": [None, [True]]}]}] * 20}
    assert coerce({"$ref": "#/$defs/anything"}, shaped, **definitions) == shaped


def test_call_of_a_tool_with_30000_subschemas_is_rejected_as_too_complex() -> None:
    tool = tool_with_schema({"allOf": [{"type": "object"} for _ in range(30_000)]})
    assert "too complex" in validation_error(tool, {"x": {}})


def test_long_chain_of_schema_references_does_not_overflow_the_stack() -> None:
    chain: Json = {f"d{number}": {"$ref": f"#/$defs/d{number + 1}"} for number in range(3000)}
    chain["d3000"] = {"type": "integer"}
    message = validation_error(tool_with_schema({"$ref": "#/$defs/d0"}, **{"$defs": chain}), {"x": "five"})
    assert "was not invoked" in message


def test_catastrophic_regex_pattern_in_a_schema_does_not_block_validation() -> None:
    tool = tool_with_schema({"type": "string", "pattern": "^(a+)+$"})
    run_with_limit(lambda: validation_error(tool, {"x": "a" * 60 + "!"}))


def test_warning_about_an_invalid_tool_schema_is_logged_only_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    validate, tool = Validation(), tool_with_schema({"type": "nonsense"})
    validate(tool, {"x": 1})
    validate(tool, {"x": 1})
    assert sum("arguments are not checked" in record.getMessage() for record in caplog.records) == 1


def test_tool_whose_compiled_schema_is_cached_can_be_garbage_collected() -> None:
    validate, tool = Validation(), tool_with_schema({"type": "integer"})
    validate(tool, {"x": 1})
    gone = weakref.ref(tool)
    del tool
    gc.collect()
    assert gone() is None


def test_eight_threads_can_concurrently_validate_arguments_of_one_tool() -> None:
    validate, tool, read_ = Validation(), tool_with_schema({"type": "integer"}), []
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait(60)
        read_.append(validate(tool, {"x": "5"}))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert read_ == [{"x": 5}] * 8


def test_arguments_that_the_runtime_adds_are_not_in_the_schema_and_pass_the_check(runtime: Runtime) -> None:
    process = runtime.registry.snapshot().get("process")
    assert process is not None
    assert "context" not in process.parameters["properties"]
    args = {"action": "write", "data": "x", "process": "p1", "context": {"revision": 1}}
    assert Validation().check(process, args) == args
    assert "context" not in json.dumps(process.definition())
