"""The core data types are immutable, independent of their sources, and serializable."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import weakref
from collections import UserDict
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import check_cases
from tests.thorough import try_examples
from toolfold.core.authoring import build_tool
from toolfold.core.types import (
    CallContext,
    Effect,
    FrozenDict,
    FrozenList,
    Json,
    Source,
    Tool,
    ToolCall,
    ToolResult,
    freeze,
)

modest = try_examples(50)
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=15,
)
json_objects = st.dictionaries(st.text(max_size=8), json_values, max_size=4)

DICT_CHANGES: dict[str, Callable[[Any], object]] = {
    "set": lambda d: d.__setitem__("new", 1),
    "delete": lambda d: d.__delitem__("new"),
    "update": lambda d: d.update(new=1),
    "setdefault": lambda d: d.setdefault("new", 1),
    "pop": lambda d: d.pop("new", None),
    "popitem": lambda d: d.popitem(),
    "clear": lambda d: d.clear(),
    "merge": lambda d: d.__ior__({"new": 1}),
}
LIST_CHANGES: dict[str, Callable[[Any], object]] = {
    "set": lambda x: x.__setitem__(slice(None), [1]),
    "delete": lambda x: x.__delitem__(slice(None)),
    "append": lambda x: x.append(1),
    "extend": lambda x: x.extend([1]),
    "insert": lambda x: x.insert(0, 1),
    "pop": lambda x: x.pop(),
    "remove": lambda x: x.remove(1),
    "clear": lambda x: x.clear(),
    "sort": lambda x: x.sort(),
    "reverse": lambda x: x.reverse(),
    "add": lambda x: x.__iadd__([1]),
    "multiply": lambda x: x.__imul__(2),
}


def iterate_containers(value: Any) -> Iterator[Any]:
    """Yield the value and every dict and list inside it."""
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from iterate_containers(each)
    elif isinstance(value, list):
        yield value
        for each in value:
            yield from iterate_containers(each)


def change_all(value: Any) -> None:
    """Change every dict and list inside a value."""
    for each in list(iterate_containers(value)):
        if isinstance(each, dict):
            each["scribbled"] = True
        else:
            each.append("scribbled")


def search_tool(parameters: Json | None = None) -> Tool:
    given = parameters or {"type": "object", "properties": {"q": {"type": "string", "enum": ["a", "b"]}}}
    return build_tool(
        name="search", toolset="web", schema={"description": "Find.", "parameters": given}, handler=len
    )


@modest
@given(json_values)
def test_changing_a_frozen_json_value_raises_an_exception(value: Any) -> None:
    frozen = freeze(value)
    for each in iterate_containers(frozen):
        for change in (DICT_CHANGES if isinstance(each, dict) else LIST_CHANGES).values():
            with pytest.raises(TypeError, match="read-only"):
                change(each)
        with pytest.raises(AttributeError):
            each.note = "x"
    assert frozen == value


@check_cases("kind", [dict, list])
def test_every_mutating_method_of_frozen_dicts_and_lists_raises_an_error(kind: type) -> None:
    frozen: Any = FrozenDict({"a": 1}) if kind is dict else FrozenList([1])
    reading = {
        *("__class__", "__new__", "__init__", "__init_subclass__", "__subclasshook__", "__reduce_ex__"),
        *("__reduce__", "__setattr__", "__delattr__", "__getattribute__", "__class_getitem__", "__format__"),
        *("__repr__", "__str__", "__hash__", "__doc__", "__dir__", "__sizeof__", "__getstate__"),
        *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__or__", "__ror__", "__add__"),
        *("__mul__", "__rmul__", "__iter__", "__reversed__", "__len__", "__contains__", "__getitem__"),
        *("get", "keys", "values", "items", "copy", "fromkeys", "count", "index"),
    }
    for name in set(dir(kind)) - reading:
        with pytest.raises(TypeError, match="read-only"):
            getattr(frozen, name)()


@modest
@given(json_objects)
def test_changing_a_schema_after_freezing_it_does_not_change_the_frozen_copy(value: Json) -> None:
    before = copy.deepcopy(value)
    frozen = freeze(value)
    change_all(value)
    assert frozen == before


@modest
@given(json_values)
def test_frozen_json_value_is_serialized_to_the_same_json_as_the_original(value: Any) -> None:
    assert json.dumps(freeze(value)) == json.dumps(value)


@modest
@given(json_objects)
def test_deep_copy_of_a_frozen_json_value_is_mutable(value: Json) -> None:
    frozen = freeze(value)
    mine = copy.deepcopy(frozen)
    assert mine == frozen
    assert all(type(each) in (dict, list) for each in iterate_containers(mine))
    change_all(mine)
    assert frozen == value


@modest
@given(json_objects)
def test_pickled_and_shallow_copies_of_frozen_values_are_frozen(value: Json) -> None:
    frozen = freeze(value)
    for copied in (pickle.loads(pickle.dumps(frozen)), copy.copy(frozen)):
        assert copied == value
        assert all(isinstance(each, FrozenDict | FrozenList) for each in iterate_containers(copied))


def test_freezing_converts_other_mappings_to_objects_and_tuples_to_arrays() -> None:
    assert freeze(UserDict({"a": (1, UserDict({"b": ()}))})) == {"a": [1, {"b": []}]}


@check_cases(
    "stranger",
    [
        *(float("nan"), float("inf"), float("-inf"), {1, 2}, object(), b"x", bytearray(b"x")),
        *(memoryview(b"x"), 1j, len),
    ],
)
def test_freezing_a_value_that_contains_non_json_data_at_any_depth_is_rejected(stranger: object) -> None:
    for value in (stranger, {"a": [stranger]}, [{"a": {"b": stranger}}]):
        with pytest.raises(TypeError, match="is not a JSON value"):
            freeze(value)


def test_changing_a_returned_tool_definition_does_not_change_definitions_returned_later() -> None:
    tool = search_tool()
    mine = tool.definition()
    mine["type"] = "changed"
    mine["function"]["name"] = "changed"
    mine["function"]["description"] = "changed"
    mine["function"]["parameters"] = {}
    assert tool.definition() == {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Find.",
            "parameters": {
                "type": "object",
                "properties": {"q": {"type": "string", "enum": ["a", "b"]}},
            },
        },
    }


def test_schema_in_a_tool_definition_is_read_only() -> None:
    tool = search_tool()
    with pytest.raises(TypeError, match="read-only"):
        tool.definition()["function"]["parameters"]["properties"]["q"]["enum"].append("c")
    assert tool.parameters["properties"]["q"]["enum"] == ["a", "b"]


@modest
@given(st.dictionaries(st.text(max_size=8), json_objects, max_size=4))
def test_changing_the_schema_dict_after_making_a_tool_does_not_change_the_tool(properties: Json) -> None:
    schema: Json = {"type": "object", "properties": properties}
    before = copy.deepcopy(schema)
    tool = search_tool(schema)
    change_all(schema)
    assert tool.parameters == before


def test_equal_strings_in_the_frozen_schemas_of_two_tools_share_one_object() -> None:
    one, other = (freeze(json.loads('{"größe": {"type": "string"}}')) for _ in range(2))
    assert next(iter(one)) is next(iter(other))
    assert one["größe"]["type"] is other["größe"]["type"]


def test_schema_passed_to_the_tool_constructor_is_copied_and_read_only() -> None:
    schema: Any = {"type": "object", "properties": {"q": {"type": "string"}}}
    tool = Tool(name="x", toolset="t", description="", parameters=schema, handler=lambda args, _: args)
    schema["properties"]["q"]["type"] = "changed"
    assert tool.parameters["properties"]["q"]["type"] == "string"
    with pytest.raises(TypeError, match="read-only"):
        tool.parameters["properties"].clear()


def test_schema_passed_to_dataclasses_replace_of_a_tool_is_frozen() -> None:
    schema: Any = {"type": "object", "properties": {}}
    tool = replace(search_tool(), parameters=schema)
    schema["properties"]["late"] = {}
    assert tool.parameters == {"type": "object", "properties": {}}


def test_assigning_to_an_attribute_of_a_tool_raises_an_error() -> None:
    tool = search_tool()
    with pytest.raises(FrozenInstanceError):
        tool.name = "tool_call"  # type: ignore[misc]
    assert tool.name == "search"


def test_two_tool_objects_with_the_same_content_are_not_equal() -> None:
    one, other = search_tool(), search_tool()
    assert len({one, other, one}) == 2


@pytest.mark.thorough
def test_tool_object_without_references_is_garbage_collected() -> None:
    tool = search_tool()
    watched = weakref.ref(tool)
    del tool
    gc.collect()
    assert watched() is None


def test_tool_calls_created_without_an_id_get_unique_ids() -> None:
    assert len({ToolCall("x").id for _ in range(100)}) == 100


def test_setting_the_cancelled_event_of_one_call_context_does_not_cancel_other_calls() -> None:
    one, other = CallContext(session_id="s"), CallContext(session_id="s")
    one.cancelled.set()
    assert not other.cancelled.is_set()


def test_tool_result_is_successful_only_if_its_error_is_none() -> None:
    fine = ToolResult(call_id="1", name="x", text="{}")
    assert fine.ok
    assert not replace(fine, error="").ok
    assert not replace(fine, error="no").ok


def test_effect_is_created_from_its_name_and_an_unknown_name_raises_value_error() -> None:
    assert Effect("destructive") is Effect.DESTRUCTIVE
    with pytest.raises(ValueError, match="harmless"):
        Effect("harmless")


def test_str_of_a_tool_source_is_its_kind_and_name() -> None:
    assert [str(Source()), str(Source("mcp", "github"))] == ["user", "mcp github"]
