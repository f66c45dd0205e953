"""All ways to define a tool give the same Tool, or an error that says what to change."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import operator
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from tests.cases import check_cases
from tests.thorough import try_examples
from toolfold.core.authoring import ToolFunction, build_tool, tool, tool_from_function
from toolfold.core.errors import InvalidArguments, InvalidTool
from toolfold.core.types import CallContext, Effect, Json, Source, Tool

if TYPE_CHECKING:
    from somewhere import OnlyForCheckers  # type: ignore[import-not-found]

CONTEXT = CallContext(session_id="session-1", task_id="task-1", user_task="do it")
PARAMETERS: Json = {
    "type": "object",
    "properties": {"q": {"type": "string", "description": "what to find"}},
    "required": ["q"],
}


def make_tool(schema: Any = None, handler: Any = len, **options: Any) -> Tool:
    return build_tool(
        **{"name": "search", "toolset": "web", "schema": schema or {}, "handler": handler, **options}
    )


def call_tool(made: Tool, args: Json | None = None) -> Any:
    answer = made.handler(args if args is not None else {"q": "x"}, CONTEXT)
    return asyncio.run(answer) if inspect.iscoroutine(answer) else answer


# Schema dialects

DIALECTS: dict[str, Json] = {
    "openai chat": {
        "type": "function",
        "function": {"name": "search", "description": "Find.", "parameters": PARAMETERS},
    },
    "openai function": {"name": "search", "description": "Find.", "parameters": PARAMETERS},
    "openai responses": {
        "type": "function",
        "name": "search",
        "description": "Find.",
        "parameters": PARAMETERS,
        "strict": True,
    },
    "anthropic": {"name": "search", "description": "Find.", "input_schema": PARAMETERS},
    "mcp": {"name": "search", "description": "Find.", "inputSchema": PARAMETERS},
    "mcp inside function": {"function": {"description": "Find.", "inputSchema": PARAMETERS}},
}


@check_cases("dialect", DIALECTS)
def test_tool_schemas_in_the_formats_of_all_providers_and_mcp_produce_the_same_tool_definition(
    dialect: str,
) -> None:
    made = make_tool(DIALECTS[dialect])
    assert made.definition() == {
        "type": "function",
        "function": {"name": "search", "description": "Find.", "parameters": PARAMETERS},
    }


def test_plain_json_schema_passed_as_a_tool_schema_becomes_the_parameters_of_the_tool() -> None:
    made = make_tool({**PARAMETERS, "description": "Find."})
    assert made.description == "Find."
    assert made.parameters["properties"] == PARAMETERS["properties"]
    assert made.parameters["required"] == ["q"]


@check_cases(
    "schema",
    [
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"additionalProperties": True},
        {"type": "object", "minProperties": 1},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}},
        {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    ],
)
def test_all_keywords_of_a_plain_json_schema_without_properties_become_the_tool_parameters(
    schema: Json,
) -> None:
    assert make_tool(schema).parameters == {"type": "object", "properties": {}, **schema}


@check_cases(
    "schema",
    [
        {},
        {"name": "search"},
        {"name": "search", "parameters": None},
        {"type": "function", "function": {"name": "search"}},
        {"type": "function", "name": "search"},
        {"parameters": {}},
        {"parameters": {"type": "object"}},
        {"inputSchema": {"type": "object", "properties": None}},
        {"inputSchema": {"type": None, "properties": {}}},
    ],
)
def test_tool_whose_schema_has_no_parameters_gets_an_empty_object_schema(schema: Json) -> None:
    assert make_tool(schema or {"name": "x"}).parameters == {"type": "object", "properties": {}}


def test_unusual_json_schema_keywords_in_the_parameters_of_a_tool_are_preserved() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"type": ["string", "null"], "x-odd": 1}},
        "$defs": {"A": {"oneOf": [{"type": "integer"}, {"const": "x"}]}},
        "additionalProperties": False,
    }
    assert json.dumps(make_tool({"parameters": schema}).parameters) == json.dumps(schema)


def test_description_argument_overrides_the_description_in_the_tool_schema() -> None:
    assert make_tool(DIALECTS["mcp"], description="Better.").description == "Better."
    assert make_tool(DIALECTS["mcp"], description="").description == "Find."


@check_cases("description", [None, 5, ["Find."]])
def test_description_in_a_tool_schema_is_ignored_if_it_is_not_a_string(description: object) -> None:
    assert make_tool({"description": description, "parameters": PARAMETERS}).description == ""


@check_cases(
    ("schema", "reason"),
    [
        (5, "the schema must be a mapping, not int"),
        ("{}", "the schema must be a mapping, not str"),
        ({"parameters": []}, "its parameters must be a JSON Schema object"),
        ({"parameters": "object"}, "its parameters must be a JSON Schema object"),
        ({"parameters": True}, "its parameters must be a JSON Schema object"),
        ({"parameters": {"type": "array"}}, "its parameters must have type 'object', not 'array'"),
        ({"parameters": {"properties": ["a"]}}, "its properties must be an object, not list"),
        ({"parameters": {"properties": {"a": {1, 2}}}}, "its schema is not JSON"),
        ({"parameters": {"properties": {"a": {"default": float("nan")}}}}, "its schema is not JSON"),
        ({"parameters": {"properties": {"a": {"default": b"x"}}}}, "its schema is not JSON"),
    ],
)
def test_invalid_tool_schema_is_rejected_with_the_reason(schema: Any, reason: str) -> None:
    with pytest.raises(InvalidTool, match=f"tool 'search': {reason}"):
        make_tool(schema)


def test_self_referencing_python_dict_as_a_tool_schema_is_rejected() -> None:
    loop: Json = {"type": "object"}
    loop["properties"] = {"again": loop}
    with pytest.raises(InvalidTool, match="nested too deeply"):
        make_tool({"parameters": loop})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "function", "parameters", "properties", "inputSchema", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@try_examples(100)
@given(json_values)
def test_building_a_tool_from_an_arbitrary_schema_succeeds_or_raises_invalid_tool(schema: Any) -> None:
    try:
        made = build_tool(name="x", toolset="t", schema=schema, handler=len)
    except InvalidTool:
        return
    assert made.parameters["type"] == "object"
    assert isinstance(made.parameters["properties"], dict)
    json.dumps(made.definition())


# The parts of a registration


@check_cases("name", ["", "  ", None, 5])
def test_tool_without_a_name_is_rejected(name: Any) -> None:
    with pytest.raises(InvalidTool, match="a tool needs a name"):
        make_tool(name=name)


@check_cases("toolset", ["", "  ", None, 5])
def test_tool_without_a_toolset_is_rejected(toolset: Any) -> None:
    with pytest.raises(InvalidTool, match="tool 'search' needs a toolset"):
        make_tool(toolset=toolset)


def test_every_option_passed_to_a_new_tool_is_an_attribute_of_the_tool() -> None:
    def check() -> bool:
        return True

    made = make_tool(
        *(DIALECTS["mcp"],),
        check_fn=check,
        requires_env=["KEY", "OTHER"],
        title="Search",
        emoji="🔎",
        synonyms=["look up"],
        effects=["network", Effect.READ],
        parallel=True,
        core=True,
        agent_level=True,
        timeout=2.5,
        source=Source("mcp", "brave"),
    )
    assert made.check is check
    assert made.requires_env == ("KEY", "OTHER")
    assert (made.title, made.emoji, made.synonyms) == ("Search", "🔎", ("look up",))
    assert made.effects == {Effect.NETWORK, Effect.READ}
    assert (made.parallel, made.core, made.agent_level, made.timeout) == (True, True, True, 2.5)
    assert made.source == Source("mcp", "brave")


def test_tool_option_set_to_none_gets_its_default_value() -> None:
    made = make_tool(
        check_fn=None,
        requires_env=None,
        is_async=None,
        description=None,
        emoji=None,
        title=None,
        synonyms=None,
        effects=None,
    )
    assert (made.requires_env, made.synonyms, made.effects) == ((), (), frozenset())
    assert (made.description, made.emoji, made.title, made.is_async) == ("", "", "", False)


@pytest.mark.parametrize("field", ["requires_env", "synonyms", "effects"])
@pytest.mark.parametrize("words", ["KEY", [1]])
def test_tool_option_that_requires_a_list_of_strings_rejects_a_string_or_a_number(
    field: str, words: Any
) -> None:
    with pytest.raises(InvalidTool, match=f"{field} must be a list of strings"):
        make_tool(**{field: words})


def test_error_for_an_unknown_tool_effect_lists_the_allowed_effects() -> None:
    with pytest.raises(InvalidTool, match=r"'destroys' is not an effect \(.*destructive\)"):
        make_tool(effects=["destroys"])


@check_cases("timeout", [0, -1, float("nan")])
def test_tool_timeout_that_is_not_positive_is_rejected(timeout: float) -> None:
    with pytest.raises(InvalidTool, match="its timeout must be more than 0 seconds"):
        make_tool(timeout=timeout)


def test_tool_is_rejected_if_its_availability_check_is_not_callable() -> None:
    with pytest.raises(InvalidTool, match="its check_fn is not callable"):
        make_tool(check_fn="ENV_KEY")


def test_unknown_tool_option_raises_an_error() -> None:
    with pytest.raises(TypeError, match="chek_fn"):
        make_tool(chek_fn=len)


# Calling conventions


class Handlers:
    def method(self, args: Json) -> Any:
        return args["q"]

    def method_with_context(self, args: Json, context: CallContext) -> Any:
        return args["q"], context.session_id

    @staticmethod
    def static(args: Json) -> Any:
        return args["q"]

    @classmethod
    def of_class(cls, args: Json, task_id: str | None = None) -> Any:
        return args["q"], task_id


class Callable1:
    def __call__(self, args: Json) -> Any:
        return args["q"]


class Callable2:
    async def __call__(self, args: Json, context: CallContext) -> Any:
        return args["q"], context.session_id


def passes_on(handler: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handler)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return handler(*args, **kwargs)

    return wrapper


def adds_context(handler: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handler)
    def wrapper(args: Json, context: CallContext, retries: int = 3) -> Any:
        return handler(args), context.session_id

    return wrapper


def only_args(args: Json) -> Any:
    return args["q"]


def args_and_context(args: Json, context: CallContext) -> Any:
    return args["q"], context.session_id


async def async_args(args: Json) -> Any:
    return args["q"]


async def async_args_and_context(args: Json, context: CallContext) -> Any:
    return args["q"], context.session_id


def with_any_keywords(args: Json, **kw: Any) -> Any:
    return args["q"], kw


def with_task(args: Json, task_id: str | None = None) -> Any:
    return args["q"], task_id


def with_required_task(args: Json, task_id: str) -> Any:
    return args["q"], task_id


def with_words(args: Json, *, user_task: str, session_id: str = "", limit: int = 7) -> Any:
    return args["q"], user_task, session_id, limit


def with_optional_context(args: Json, context: CallContext | None = None) -> Any:
    return args["q"], context and context.session_id


def with_named_context(args: Json, *, context: CallContext) -> Any:
    return args["q"], context.session_id


def with_everything(args: Json, ctx: CallContext, task_id: str, *, context: Any = None, **kw: Any) -> Any:
    return args["q"], ctx.session_id, task_id, context.session_id, kw


def with_unknown_option(args: Json, limit: int = 7) -> Any:
    return args["q"], limit


def with_places(*given: Any) -> Any:
    return given[0]["q"], given[1].session_id


def with_anything(*given: Any, **named: Any) -> Any:
    return given[0]["q"], given[1].session_id, named


def positional_only(args: Json, context: CallContext, /) -> Any:
    return args["q"], context.session_id


def default_args(args: Json | None = None) -> Any:
    return (args or {})["q"]


IDS = {"task_id": "task-1", "user_task": "do it", "session_id": "session-1"}


@check_cases(
    ("handler", "answer"),
    [
        (only_args, "x"),
        (args_and_context, ("x", "session-1")),
        (async_args, "x"),
        (async_args_and_context, ("x", "session-1")),
        (lambda args: args["q"], "x"),
        (lambda args, **kw: (args["q"], kw["task_id"]), ("x", "task-1")),
        (with_any_keywords, ("x", IDS)),
        (with_task, ("x", "task-1")),
        (with_required_task, ("x", "task-1")),
        (with_words, ("x", "do it", "session-1", 7)),
        (with_optional_context, ("x", "session-1")),
        (with_named_context, ("x", "session-1")),
        (with_everything, ("x", "session-1", "task-1", "session-1", {})),
        (with_unknown_option, ("x", 7)),
        (with_places, ("x", "session-1")),
        (with_anything, ("x", "session-1", {})),
        (positional_only, ("x", "session-1")),
        (default_args, "x"),
        (Handlers().method, "x"),
        (Handlers().method_with_context, ("x", "session-1")),
        (Handlers.static, "x"),
        (Handlers.of_class, ("x", "task-1")),
        (Callable1(), "x"),
        (Callable2(), ("x", "session-1")),
        (functools.partial(with_unknown_option, limit=9), ("x", 9)),
        (functools.partial(args_and_context), ("x", "session-1")),
        (functools.partial(async_args), "x"),
        (passes_on(only_args), "x"),
        (passes_on(args_and_context), ("x", "session-1")),
        (adds_context(only_args), ("x", "session-1")),
        (operator.itemgetter("q"), "x"),
        (len, 1),
        (dict, {"q": "x"}),
    ],
)
def test_handler_receives_the_arguments_and_the_context_values_named_by_its_parameters(
    handler: Callable[..., Any], answer: object
) -> None:
    assert call_tool(make_tool(handler=handler)) == answer


@check_cases(
    ("handler", "is_async"),
    [
        (only_args, False),
        (async_args, True),
        (functools.partial(async_args), True),
        (async_args_and_context, True),
    ],
)
def test_tool_is_async_if_its_handler_is_an_async_function_or_a_partial_of_an_async_function(
    handler: Callable[..., Any], is_async: bool
) -> None:
    assert make_tool(handler=handler).is_async is is_async


@check_cases("is_async", [True, False])
def test_is_async_option_determines_whether_a_tool_with_a_lambda_handler_is_async(is_async: bool) -> None:
    assert make_tool(handler=lambda args: async_args(args), is_async=is_async).is_async is is_async


def no_arguments() -> None: ...
def only_named(*, q: str) -> None: ...
def only_keywords(**kwargs: Any) -> None: ...


@check_cases("handler", [no_arguments, only_named, only_keywords])
def test_handler_without_parameters_is_rejected(handler: Callable[..., Any]) -> None:
    with pytest.raises(InvalidTool, match="its handler must accept the arguments as one dict"):
        make_tool(handler=handler)


def three(args: Json, context: CallContext, third: str) -> None: ...
def unknown_word(args: Json, *, limit: int) -> None: ...
def third_in_place(args: Json, context: CallContext, third: str, /) -> None: ...


@check_cases(("handler", "parameter"), [(three, "third"), (unknown_word, "limit"), (third_in_place, "third")])
def test_handler_with_a_parameter_that_the_runtime_cannot_fill_is_rejected(
    handler: Callable[..., Any], parameter: str
) -> None:
    with pytest.raises(InvalidTool, match=f"has a parameter '{parameter}' that the runtime cannot fill"):
        make_tool(handler=handler)


@check_cases("handler", [None, "module.function", {}])
def test_handler_that_is_not_callable_is_rejected(handler: Any) -> None:
    with pytest.raises(InvalidTool, match="its handler is not callable"):
        make_tool(handler=handler)


# Derived from typed functions


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Street(BaseModel):
    """Where someone lives."""

    name: str = Field(description="without the number")
    number: int = 1


class Person(BaseModel):
    street: Street
    friends: list[Person] = []


class Range(TypedDict):
    low: int
    high: int


@dataclass
class Point:
    x: float
    y: float = 0.0


def schema_of(function: Callable[..., Any]) -> Json:
    parameters: Json = json.loads(json.dumps(tool_from_function(function).parameters))
    return parameters


def property_of(function: Callable[..., Any], name: str) -> Json:
    found: Json = schema_of(function)["properties"][name]
    return found


def google(place: str, days: int = 3) -> None:
    """Forecast the weather.

    Only for places on land.

    Args:
        place: The town, with
            its country.
        days (int): How many days.

    Returns:
        Nothing.
    """


def numpy_style(place: str, days: int = 3) -> None:
    """Forecast the weather.

    Only for places on land.

    Parameters
    ----------
    place : str
        The town, with
        its country.
    days : int, optional
        How many days.

    Returns
    -------
    None
        Nothing.
    """


def rest(place: str, days: int = 3) -> None:
    """Forecast the weather.

    Only for places on land.

    :param place: The town, with
        its country.
    :param int days: How many days.
    :returns: Nothing.
    """


@check_cases("function", [google, numpy_style, rest])
def test_google_numpy_and_rest_docstrings_produce_the_same_tool_and_parameter_descriptions(
    function: Callable[..., Any],
) -> None:
    made = tool_from_function(function)
    assert made.description == "Forecast the weather.\n\nOnly for places on land."
    assert made.parameters == {
        "type": "object",
        "properties": {
            "place": {"type": "string", "description": "The town, with its country."},
            "days": {"type": "integer", "default": 3, "description": "How many days."},
        },
        "required": ["place"],
        "additionalProperties": False,
    }


def test_parameters_documented_together_in_a_docstring_share_the_description() -> None:
    def move(x: float, y: float) -> None:
        """Move.

        Parameters
        ----------
        x, y : float
            Where to.
        """

    assert {property_of(move, name)["description"] for name in "xy"} == {"Where to."}


def test_tool_from_a_function_without_docstring_has_no_description() -> None:
    def bare(a: int) -> int:
        return a

    made = tool_from_function(bare)
    assert made.description == ""
    assert made.parameters["properties"] == {"a": {"type": "integer"}}


def test_docstring_entries_for_parameters_that_the_function_does_not_have_are_ignored() -> None:
    def changed(new: int) -> None:
        """Do.

        Args:
            old: gone
        """

    assert schema_of(changed)["properties"] == {"new": {"type": "integer"}}


@try_examples(100)
@given(
    st.text(max_size=80)
    | st.lists(
        st.sampled_from(
            [
                "Args:",
                "a: x",
                "  a: x",
                ":param",
                ":param a:",
                ":x y z: t",
                "---",
                "",
                "@param a:",
                "Parameters",
                "a : int",
            ]
        ),
        max_size=8,
    ).map("\n".join)
)
def test_function_with_an_arbitrary_docstring_can_become_a_tool(text: str) -> None:
    def function(a: int) -> int:
        return a

    function.__doc__ = text
    assert call_tool(tool_from_function(function), {"a": 5}) == 5


def typed(  # type: ignore[no-untyped-def]
    text: str,
    choice: Literal["a", "b"],
    maybe: Optional[int],  # noqa: UP045  (as people still write it)
    maybe_new: int | None = None,
    many: list[str] = [],  # noqa: B006
    table: dict[str, float] | None = None,
    colour: Colour = Colour.RED,
    when: date | None = None,
    file: Path = Path("x"),
    bounded: Annotated[int, Field(ge=1, le=9, description="from one to nine")] = 5,
    anything: Any = None,
    untyped=0,
) -> Any:
    return locals()


@check_cases(
    ("name", "schema"),
    [
        ("text", {"type": "string"}),
        ("choice", {"type": "string", "enum": ["a", "b"]}),
        ("maybe", {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        ("maybe_new", {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}),
        ("many", {"type": "array", "items": {"type": "string"}, "default": []}),
        (
            "table",
            {
                "anyOf": [{"type": "object", "additionalProperties": {"type": "number"}}, {"type": "null"}],
                "default": None,
            },
        ),
        ("colour", {"$ref": "#/$defs/Colour", "default": "red"}),
        ("when", {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}], "default": None}),
        ("file", {"type": "string", "format": "path", "default": "x"}),
        (
            "bounded",
            {"type": "integer", "minimum": 1, "maximum": 9, "description": "from one to nine", "default": 5},
        ),
        ("anything", {"default": None}),
        ("untyped", {"default": 0}),
    ],
)
def test_python_types_of_parameters_become_json_schema(name: str, schema: Json) -> None:
    assert property_of(typed, name) == schema


def test_only_parameters_without_a_default_value_are_required_in_the_generated_schema() -> None:
    assert schema_of(typed)["required"] == ["text", "choice", "maybe"]


def test_tool_function_receives_json_arguments_converted_to_enum_date_and_path_types() -> None:
    received = call_tool(
        tool_from_function(typed),
        {"text": "t", "choice": "b", "maybe": None, "colour": "blue", "when": "2026-01-02", "file": "a/b"},
    )
    assert (received["colour"], received["when"], received["file"]) == (
        *(Colour.BLUE, date(2026, 1, 2), Path("a/b")),
    )
    assert (received["many"], received["bounded"], received["untyped"]) == ([], 5, 0)


def nested(person: Person, span: Range, points: list[Point]) -> Any:
    """Nested.

    Args:
        person: who
    """
    return person, span, points


def test_nested_pydantic_models_appear_in_the_schema_and_are_passed_to_the_function_as_instances() -> None:
    schema = schema_of(nested)
    assert schema["properties"]["person"] == {"$ref": "#/$defs/Person", "description": "who"}
    assert schema["$defs"]["Street"] == {
        "type": "object",
        "description": "Where someone lives.",
        "properties": {
            "name": {"type": "string", "description": "without the number"},
            "number": {"type": "integer", "default": 1},
        },
        "required": ["name"],
    }
    person, span, points = call_tool(
        tool_from_function(nested),
        {"person": {"street": {"name": "A"}}, "span": {"low": 1, "high": 2}, "points": [{"x": 1}]},
    )
    assert person == Person(street=Street(name="A"))
    assert span == {"low": 1, "high": 2}
    assert points == [Point(1.0)]


def test_schema_generated_from_a_function_has_no_title_keywords() -> None:
    assert '"title"' not in json.dumps([schema_of(nested), schema_of(typed)])


def test_function_parameter_named_title_is_kept_in_the_generated_schema() -> None:
    def post(title: str) -> str:
        return title

    assert schema_of(post)["properties"] == {"title": {"type": "string"}}
    assert call_tool(tool_from_function(post), {"title": "x"}) == "x"


def test_description_in_a_pydantic_field_overrides_the_docstring() -> None:
    def both(a: Annotated[int, Field(description="for the model")]) -> None:
        """Do.

        Args:
            a: for people
        """

    assert property_of(both, "a")["description"] == "for the model"


def test_default_and_description_are_read_from_a_pydantic_field_used_as_parameter_default() -> None:
    def old(
        a: int = Field(7, ge=1, description="seven"),
        b: str = Field(description="needed"),
        c: list[int] = Field(default_factory=list),  # noqa: B008
    ) -> Any:
        return a, b, c

    assert schema_of(old)["required"] == ["b"]
    assert property_of(old, "a") == {"type": "integer", "default": 7, "minimum": 1, "description": "seven"}
    assert call_tool(tool_from_function(old), {"b": "x"}) == (7, "x", [])


def test_default_value_that_is_not_json_is_passed_to_the_function_but_omitted_from_the_schema() -> None:
    missing = object()

    def find(a: Any = missing) -> bool:
        return a is missing

    assert property_of(find, "a") == {}
    assert call_tool(tool_from_function(find), {}) is True


def test_mutable_default_value_of_a_tool_function_is_copied_for_each_call() -> None:
    def collect(item: int, into: list[int] = []) -> list[int]:  # noqa: B006
        into.append(item)
        return into

    made = tool_from_function(collect)
    assert [call_tool(made, {"item": 1}), call_tool(made, {"item": 2})] == [[1], [2]]


ODD_NAMES = [
    *("json", "schema", "dict", "copy", "model_x", "model_config", "model_fields", "p0", "p1", "self", "cls"),
    *(
        "args",
        "kwargs",
        "context",
        "name",
        "function",
        "type",
        "id",
        "_private",
        "__dunder",
        "größe",
        "values",
    ),
    *("validate", "construct", "register", "title", "description", "properties", "default", "call", "field"),
]


@check_cases("name", ODD_NAMES)
def test_function_with_any_valid_python_parameter_name_becomes_a_tool_that_can_be_called(name: str) -> None:
    space: dict[str, Any] = {}
    exec(f"def odd(first: int, {name}: str = 'd') -> tuple:\n    return first, {name}", space)
    made = tool_from_function(space["odd"])
    assert set(made.parameters["properties"]) == {"first", name}
    assert call_tool(made, {"first": 1, name: "x"}) == (1, "x")
    assert call_tool(made, {"first": 1}) == (1, "d")


def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b


@check_cases(
    ("args", "problem"),
    [
        ({}, "at /a: Field required"),
        ({"a": "many"}, "at /a: Input should be a valid integer"),
        ({"a": 1, "c": 2}, "at /c: Extra inputs are not permitted"),
        ({"p0": 1}, "at /a: Field required; at /p0: Extra inputs are not permitted"),
    ],
)
def test_tool_function_does_not_run_with_invalid_arguments(args: Json, problem: str) -> None:
    ran: list[object] = []

    def add(a: int, b: int = 1) -> None:
        ran.append((a, b))

    with pytest.raises(InvalidArguments) as caught:
        call_tool(tool_from_function(add), args)
    assert str(caught.value).startswith(f"'add' was not invoked: {problem}")
    assert "p1" not in str(caught.value)
    assert ran == []


def test_error_for_rejected_arguments_does_not_repeat_the_invalid_value() -> None:
    with pytest.raises(InvalidArguments) as caught:
        call_tool(tool_from_function(add), {"a": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_exception_in_a_tool_function_is_not_reported_as_an_argument_error() -> None:
    def strict(a: int) -> Street:
        return Street.model_validate({"number": a})

    with pytest.raises(ValueError, match="validation error for Street"):
        call_tool(tool_from_function(strict), {"a": 1})


async def async_add(a: int, b: int = 1) -> int:
    """Add, later."""
    await asyncio.sleep(0)
    return a + b


def test_async_function_becomes_an_async_tool() -> None:
    made = tool_from_function(async_add)
    assert made.is_async
    assert made.description == "Add, later."
    assert call_tool(made, {"a": 1, "b": 2}) == 3


# The context


def takes_context(a: int, context: CallContext) -> Any:
    return a, context.session_id


def takes_context_by_any_name(where: CallContext, a: int) -> Any:
    return a, where.session_id


def takes_context_maybe(a: int, context: CallContext | None = None) -> Any:
    return a, context and context.session_id


def takes_context_annotated(a: int, *, context: Annotated[CallContext, "note"]) -> Any:
    return a, context.session_id


@check_cases(
    "function", [takes_context, takes_context_by_any_name, takes_context_maybe, takes_context_annotated]
)
def test_context_parameter_of_a_tool_function_is_injected_and_hidden_from_the_model(
    function: Callable[..., Any],
) -> None:
    made = tool_from_function(function)
    assert made.parameters["properties"] == {"a": {"type": "integer"}}
    assert call_tool(made, {"a": 1}) == (1, "session-1")


def test_model_arguments_that_contain_the_context_parameter_are_rejected() -> None:
    with pytest.raises(InvalidArguments):
        call_tool(tool_from_function(takes_context), {"a": 1, "context": {"session_id": "other"}})


# The decorator


@tool
def plain(a: int) -> int:
    """Twice."""
    return 2 * a


@tool(
    name="renamed",
    toolset="math",
    description="Better.",
    emoji="➕",
    synonyms=["plus"],
    effects=["read"],
    parallel=True,
    requires_env=["KEY"],
    timeout=3,
)
def with_options(a: int) -> int:
    """Worse."""
    return a


def test_function_decorated_as_a_tool_can_still_be_called_like_a_plain_function() -> None:
    assert plain(4) == 8
    assert plain.__name__ == "plain"
    assert plain.__doc__ == "Twice."
    assert inspect.signature(plain) == inspect.signature(plain.__wrapped__)  # type: ignore[attr-defined]


def test_tool_attribute_of_a_decorated_function_is_a_tool_with_the_name_of_the_function() -> None:
    made = plain.tool
    assert (made.name, made.toolset, made.description) == ("plain", "user", "Twice.")
    assert call_tool(made, {"a": 4}) == 8


def test_options_passed_to_the_tool_decorator_are_set_on_the_tool() -> None:
    made = with_options.tool
    assert (made.name, made.toolset, made.description, made.emoji) == ("renamed", "math", "Better.", "➕")
    assert (made.synonyms, made.effects, made.parallel) == (("plus",), frozenset({Effect.READ}), True)
    assert (made.requires_env, made.timeout) == (("KEY",), 3)


def test_tool_attribute_of_a_decorated_function_always_returns_the_same_object() -> None:
    assert plain.tool is plain.tool


def test_function_decorated_twice_with_different_names_creates_two_tools() -> None:
    first = plain.tool
    again = tool(name="again")(plain)
    assert again.tool.name == "again"
    assert call_tool(again.tool, {"a": 4}) == 8
    assert plain.tool is first


def test_decorating_a_function_as_a_tool_imports_no_heavy_module() -> None:
    program = """
import sys
from toolfold.core.authoring import tool
@tool
def f(a: int) -> int:
    return a
print(sorted({"pydantic", "docstring_parser"} & set(sys.modules)))
"""
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout == "[]\n"


class Counter:
    def __init__(self) -> None:
        self.total = 0

    def plain_method(self, by: int) -> int:
        """Count."""
        self.total += by
        return self.total

    @tool
    def count(self, by: int) -> int:
        """Count."""
        self.total += by
        return self.total

    @tool(name="later")
    async def count_later(self, by: int) -> int:
        self.total += by
        return self.total

    @staticmethod
    @tool
    def alone(a: int) -> int:
        return a


def test_tool_made_from_a_bound_method_operates_on_the_instance_of_that_method() -> None:
    counter = Counter()
    made = tool_from_function(counter.plain_method)
    assert (made.name, made.description) == ("plain_method", "Count.")
    assert made.parameters["properties"] == {"by": {"type": "integer"}}
    assert call_tool(made, {"by": 2}) == counter.total == 2


def test_tool_made_from_a_decorated_method_operates_only_on_its_own_instance() -> None:
    one, other = Counter(), Counter()
    assert one.count(1) == 1
    assert one.count.tool.parameters["properties"] == {"by": {"type": "integer"}}
    assert call_tool(one.count.tool, {"by": 2}) == one.total == 3
    assert other.total == 0


def test_tool_made_from_a_decorated_async_method_is_async_and_uses_the_decorator_name() -> None:
    made = Counter().count_later.tool
    assert (made.name, made.is_async) == ("later", True)
    assert call_tool(made, {"by": 2}) == 2


def test_decorated_static_method_becomes_a_tool() -> None:
    assert call_tool(Counter.alone.tool, {"a": 1}) == call_tool(Counter().alone.tool, {"a": 1}) == 1


def test_method_decorated_as_a_tool_can_be_called_through_its_class_with_an_instance() -> None:
    assert isinstance(Counter.count, ToolFunction)
    assert Counter.count(Counter(), 5) == 5


# Functions that cannot be tools


def starred(*values: int) -> None: ...
def double_starred(**values: int) -> None: ...
def in_place(value: int, /) -> None: ...


@check_cases(
    ("function", "parameter"), [(starred, "values"), (double_starred, "values"), (in_place, "value")]
)
def test_tool_function_with_a_parameter_that_cannot_be_passed_by_name_is_rejected(
    function: Callable[..., Any], parameter: str
) -> None:
    with pytest.raises(InvalidTool, match=f"the parameter '{parameter}' cannot be passed by name"):
        tool_from_function(function)


class Opaque:
    pass


def opaque(a: Opaque) -> None: ...
def callback(a: Callable[[int], int]) -> None: ...
def wrong_bound(a: Annotated[Opaque, Field(ge=1)]) -> None: ...


def unknown_type(a: Any) -> None: ...


unknown_type.__annotations__["a"] = "NoSuchType"


def broken_type(a: Any) -> None: ...


broken_type.__annotations__["a"] = "list["


@check_cases(
    "function",
    [opaque, callback, wrong_bound, unknown_type, broken_type, functools.partial(add, b=1), dict],
)
def test_function_with_parameters_that_json_schema_cannot_describe_is_rejected(
    function: Callable[..., Any],
) -> None:
    with pytest.raises(InvalidTool, match="no schema can be derived from its parameters: "):
        tool_from_function(function)


def returns_what_only_checkers_know(a: int) -> OnlyForCheckers:
    return a


def test_function_with_an_unresolvable_return_annotation_can_become_a_tool() -> None:
    assert call_tool(tool_from_function(returns_what_only_checkers_know), {"a": 3}) == 3


def test_tool_made_from_a_functools_wrapper_has_the_name_and_parameters_of_the_wrapped_function() -> None:
    made = tool_from_function(passes_on(google))
    assert made.name == "google"
    assert set(made.parameters["properties"]) == {"place", "days"}


@pytest.mark.parametrize("effects", [["destructiv"], "destructive"])
def test_effect_that_does_not_exist_is_rejected_where_the_tool_is_defined(effects: Any) -> None:
    def wipe() -> None:
        """Wipe the disk."""

    with pytest.raises(InvalidTool, match=r"Did you mean destructive\?|must be a list of strings"):
        tool(effects=effects)(wipe)
