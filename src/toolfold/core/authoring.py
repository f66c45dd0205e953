"""Build tools from an OpenAI schema and a handler, or from a typed Python function.

Normalizes foreign input (schema dialects, calling conventions, docstrings), so that other modules know only
`Tool`. Keeps no list of tools: that is the registry's.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType, MethodType, SimpleNamespace
from typing import Annotated, Any, Generic, ParamSpec, TypeAlias, TypeVar, get_args, get_type_hints, overload

from toolfold.core.errors import InvalidArguments, InvalidTool, closest_names, did_you_mean
from toolfold.core.types import (
    Adapt,
    CallContext,
    Check,
    Effect,
    FrozenDict,
    Handler,
    Json,
    Meaning,
    Precheck,
    Source,
    Tool,
    freeze,
    make_encodable,
)

log = logging.getLogger(__name__)

DEFAULT_TOOLSET = "user"

P = ParamSpec("P")
R = TypeVar("R")

_EMPTY_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {}}
_SCHEMA_KEYWORDS = frozenset({"properties", "additionalProperties", "$ref", "allOf", "anyOf", "oneOf"})
_CONTEXT_NAMES = frozenset({"task_id", "user_task", "session_id"})
# Shared by all tools without effects and judged arguments, which are most of them.
_NO_EFFECTS: frozenset[Effect] = frozenset()
_NOT_JUDGED = FrozenDict()


def build_tool(
    *,
    name: str,
    toolset: str,
    schema: Mapping[str, Any],
    handler: Callable[..., Any],
    check_fn: Check | None = None,
    requires_env: Iterable[str] | None = (),
    is_async: bool | None = None,
    description: str | None = None,
    title: str | None = "",
    emoji: str | None = "",
    synonyms: Iterable[str] | None = (),
    effects: Iterable[Effect | str] | None = (),
    judged_as: Mapping[str, Meaning | str] | None = None,
    parallel: bool = False,
    core: bool = False,
    agent_level: bool = False,
    standalone: bool = False,
    timeout: float | None = None,
    adapt: Adapt | None = None,
    precheck: Precheck | None = None,
    source: Source | None = None,
) -> Tool:
    """Build a tool from a schema and a handler. Raises InvalidTool with the reason."""
    if not isinstance(name, str) or not name.strip():
        raise InvalidTool("a tool needs a name")
    if not isinstance(toolset, str) or not toolset.strip():
        raise InvalidTool(f"tool {name!r} needs a toolset")
    if check_fn is not None and not callable(check_fn):
        raise InvalidTool(f"tool {name!r}: its check_fn is not callable")
    if timeout is not None and not timeout > 0:
        raise InvalidTool(f"tool {name!r}: its timeout must be more than 0 seconds, not {timeout!r}")
    schema_description, parameters = _read_schema(name, schema)
    return Tool(
        name=name,
        toolset=toolset,
        description=make_encodable(description or schema_description),
        parameters=parameters,
        handler=_normalize_handler(name, handler),
        title=title or "",
        emoji=emoji or "",
        synonyms=_to_strings(name, "synonyms", synonyms),
        is_async=inspect.iscoroutinefunction(handler) if is_async is None else is_async,
        check=check_fn,
        requires_env=_to_strings(name, "requires_env", requires_env),
        effects=frozenset(_parse_effect(name, each) for each in _to_strings(name, "effects", effects))
        or _NO_EFFECTS,
        judged_as=_parse_meanings(name, judged_as, parameters) if judged_as else _NOT_JUDGED,
        parallel=parallel,
        core=core,
        agent_level=agent_level,
        standalone=standalone,
        timeout=timeout,
        adapt=adapt,
        precheck=precheck,
        source=source or Source(),
    )


class ToolFunction(Generic[P, R]):
    """Function decorated as a tool: it stays callable, and its attribute `tool` can be registered."""

    __name__: str

    def __init__(self, function: Callable[P, R], options: Mapping[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self.__dict__.pop("tool", None)  # left by an earlier decoration of the same function
        self._function = function
        self._options = options
        name = str(options.get("name") or getattr(function, "__name__", ""))
        for each in _to_strings(name, "effects", options.get("effects")):
            _parse_effect(name, each)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> ToolFunction[..., R]:
        """Bind the tool to an object, like a method, so that it operates on that object."""
        if instance is None:
            return self
        return ToolFunction(MethodType(self._function, instance), self._options)

    @functools.cached_property
    def tool(self) -> Tool:
        """Return the tool, built on first use so that decorating does not slow down imports."""
        return tool_from_function(self._function, **self._options)


ToolLike: TypeAlias = Tool | ToolFunction[..., Any] | Callable[..., Any]
"""A tool, a `@tool` function, or a typed function."""


@overload
def tool(function: Callable[P, R], /) -> ToolFunction[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    toolset: str = DEFAULT_TOOLSET,
    description: str | None = None,
    title: str = "",
    emoji: str = "",
    synonyms: Iterable[str] = (),
    effects: Iterable[Effect | str] = (),
    judged_as: Mapping[str, Meaning | str] | None = None,
    parallel: bool = False,
    check_fn: Check | None = None,
    requires_env: Iterable[str] = (),
    timeout: float | None = None,
) -> Callable[[Callable[P, R]], ToolFunction[P, R]]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Convert a typed function to a tool; its types become the schema, its docstring the descriptions.

    A parameter annotated `CallContext` is filled in by the runtime and not shown to the model.
    """
    if function is not None:
        return ToolFunction(function, {})
    return lambda each: ToolFunction(each, options)


def tool_from_function(
    function: Callable[..., Any], *, name: str | None = None, toolset: str = DEFAULT_TOOLSET, **options: Any
) -> Tool:
    """Return a tool built from a typed function."""
    chosen = name or str(getattr(function, "__name__", type(function).__name__))
    summary, schema, call = _derive_tool(chosen, function)
    options = {"description": summary, **{k: v for k, v in options.items() if v is not None}}
    return build_tool(
        name=chosen,
        toolset=toolset,
        schema={"parameters": schema},
        handler=call,
        is_async=inspect.iscoroutinefunction(function),
        **options,
    )


def as_tool(value: object) -> Tool:
    """Return a tool, the tool of a `@tool` function, or one built from a plain typed function."""
    if isinstance(value, (FunctionType, MethodType)):
        return tool_from_function(value)
    found = value.tool if isinstance(value, ToolFunction) else value
    if not isinstance(found, Tool):
        raise InvalidTool(f"expected a Tool or a @tool function, not {type(found).__name__}")
    return found


def _read_schema(name: str, schema: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the description and parameters of a tool schema in any common format."""
    if not isinstance(schema, Mapping):
        raise InvalidTool(f"tool {name!r}: the schema must be a mapping, not {type(schema).__name__}")
    inner = schema.get("function") if isinstance(schema.get("function"), Mapping) else schema
    assert isinstance(inner, Mapping)  # noqa: S101  (narrowing only)
    parameters = next(
        (inner[key] for key in ("parameters", "input_schema", "inputSchema") if inner.get(key) is not None),
        None,
    )
    if parameters is None:
        is_schema = inner.get("type") == "object" or not _SCHEMA_KEYWORDS.isdisjoint(inner)
        parameters = inner if is_schema else _EMPTY_SCHEMA
    description = inner.get("description")
    return (description if isinstance(description, str) else ""), _object_schema(name, parameters)


def _object_schema(name: str, parameters: object) -> Any:
    if not isinstance(parameters, Mapping):
        raise InvalidTool(f"tool {name!r}: its parameters must be a JSON Schema object")
    # Some servers write null instead of omitting a key.
    missing = {key: value for key, value in _EMPTY_SCHEMA.items() if parameters.get(key) is None}
    if "type" not in missing and parameters["type"] != "object":
        raise InvalidTool(
            f"tool {name!r}: its parameters must have type 'object', not {parameters['type']!r}"
        )
    if "properties" not in missing and not isinstance(parameters["properties"], Mapping):
        kind = type(parameters["properties"]).__name__
        raise InvalidTool(f"tool {name!r}: its properties must be an object, not {kind}")
    try:
        return freeze({**parameters, **missing} if missing else parameters)
    except RecursionError:
        raise InvalidTool(f"tool {name!r}: its schema is nested too deeply") from None
    except TypeError as error:
        raise InvalidTool(f"tool {name!r}: its schema is not JSON: {error}") from None


def _normalize_handler(name: str, handler: Callable[..., Any]) -> Handler:
    """Return a tool's handler as `handler(args, context)`, regardless of its calling convention."""
    if not callable(handler):
        raise InvalidTool(f"tool {name!r}: its handler is not callable")
    positional = _count_positional(handler)
    if positional == 2:
        return handler
    if positional == 1:
        return lambda args, _: handler(args)
    return _adapt_handler(name, handler, _handler_parameters(handler))


def _count_positional(handler: Callable[..., Any]) -> int:
    """Return 1 for `def handler(args)`, 2 for `def handler(args, context)`, 0 for any other signature."""
    # Reads the code object, because `inspect` is slow for ten thousand tools.
    if not isinstance(handler, FunctionType) or handler.__defaults__:
        return 0
    code = handler.__code__
    if code.co_kwonlyargcount or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return 0
    named_context = _CONTEXT_NAMES.intersection(code.co_varnames[1 : code.co_argcount])
    return code.co_argcount if code.co_argcount in (1, 2) and not named_context else 0


def _handler_parameters(handler: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return a handler's parameters; if they are only `*args, **kwargs`, those of the function it wraps."""
    try:
        own = list(inspect.signature(handler, follow_wrapped=False).parameters.values())
        if all(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in own):
            own = list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):  # written in C, without a signature
        return [inspect.Parameter("args", inspect.Parameter.POSITIONAL_ONLY)]
    return own


def _adapt_handler(name: str, handler: Callable[..., Any], parameters: list[inspect.Parameter]) -> Handler:
    """Wrap a handler of any calling convention as `handler(args, context)`.

    Raises InvalidTool if that is impossible.
    """
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_any_positional = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    takes_any_keyword = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if not positional and not takes_any_positional:
        raise InvalidTool(f"tool {name!r}: its handler must accept the arguments as one dict")
    second = positional[1] if len(positional) > 1 else None
    takes_context = takes_any_positional or (
        second and _is_required(second) and second.name not in _CONTEXT_NAMES
    )
    filled = {p.name for p in positional[: 2 if takes_context else 1]}
    others = [p for p in parameters if p.name not in filled]
    context_names = {p.name for p in others if p.kind is not p.POSITIONAL_ONLY} & {*_CONTEXT_NAMES, "context"}
    if unfilled := [p.name for p in others if _is_required(p) and p.name not in context_names]:
        raise InvalidTool(
            f"tool {name!r}: its handler has a parameter {unfilled[0]!r} that the runtime cannot fill"
        )
    if takes_any_keyword and not takes_context:
        context_names |= _CONTEXT_NAMES

    def call(args: Json, context: CallContext) -> Any:
        named = {each: context if each == "context" else getattr(context, each) for each in context_names}
        return handler(args, context, **named) if takes_context else handler(args, **named)

    return call


def _is_required(parameter: inspect.Parameter) -> bool:
    optional = (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and parameter.kind not in optional


def _to_strings(name: str, field: str, words: Iterable[str] | None) -> tuple[str, ...]:
    if not words:
        return ()
    listed = tuple(words)
    if isinstance(words, str) or not all(isinstance(each, str) for each in listed):
        raise InvalidTool(f"tool {name!r}: {field} must be a list of strings, not {words!r}")
    return listed


def _parse_effect(name: str, effect: Effect | str) -> Effect:
    try:
        return Effect(effect)
    except ValueError:
        near = did_you_mean(closest_names(str(effect), Effect, count=1))
        raise InvalidTool(
            f"tool {name!r}: {effect!r} is not an effect ({', '.join(Effect)}).{near}"
        ) from None


def _parse_meanings(name: str, judged_as: Mapping[str, Meaning | str], parameters: Json) -> FrozenDict:
    try:
        meanings = FrozenDict({str(each): Meaning(meaning) for each, meaning in judged_as.items()})
    except (AttributeError, ValueError):
        allowed = ", ".join(Meaning)
        problem = f"judged_as must map arguments to meanings ({allowed}), not {judged_as!r}"
        raise InvalidTool(f"tool {name!r}: {problem}") from None
    known = parameters["properties"]
    # A typo would disable the check. What the runtime sets is not a parameter of the model.
    of_model = [each for each, meaning in meanings.items() if meaning is not Meaning.INPUT_CONTEXT]
    if unknown := [each for each in of_model if known and each not in known]:
        near = did_you_mean(closest_names(unknown[0], known))
        raise InvalidTool(f"tool {name!r}: judged_as names {unknown[0]!r}, which is not a parameter.{near}")
    return meanings


def _derive_tool(name: str, function: Callable[..., Any]) -> tuple[str, Json, Handler]:
    """Return the summary, parameter schema and handler of a tool built from a typed function."""
    from pydantic import ValidationError
    from pydantic.errors import PydanticUserError

    summary, descriptions = _read_docstring(function)
    try:
        parameters, context_name = _collect_parameters(name, function)
        model = _build_model(name, parameters, descriptions)
        schema = _untitled_schema(model)
    except (PydanticUserError, AttributeError, NameError, SyntaxError, TypeError, ValueError) as error:
        raise InvalidTool(f"tool {name!r}: no schema can be derived from its parameters: {error}") from error
    names = {f"p{number}": parameter.name for number, (parameter, _) in enumerate(parameters)}

    def call(args: Json, context: CallContext) -> Any:
        try:
            values = model.model_validate(args)
        except ValidationError as error:
            raise InvalidArguments(f"{name!r} was not invoked: {_describe_errors(error)}.") from None
        arguments = {names[field]: getattr(values, field) for field in names}
        return function(**arguments, **({context_name: context} if context_name else {}))

    return summary, schema, call


def _read_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the descriptions of a function and its parameters from a docstring in any common style."""
    import docstring_parser

    text = inspect.getdoc(function) or ""
    try:
        doc = docstring_parser.parse(text)
    except docstring_parser.ParseError:
        return text, {}
    descriptions = {
        each_name.strip(): " ".join((each.description or "").split())
        for each in doc.params
        for each_name in each.arg_name.split(",")
    }
    return "\n\n".join(part for part in (doc.short_description, doc.long_description) if part), descriptions


def _collect_parameters(
    name: str, function: Callable[..., Any]
) -> tuple[list[tuple[inspect.Parameter, Any]], str | None]:
    hints = _parameter_hints(function)
    shown: list[tuple[inspect.Parameter, Any]] = []
    context_name = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidTool(
                f"tool {name!r}: the parameter {parameter.name!r} cannot be passed by name,"
                " so a model cannot fill it"
            )
        hint = hints.get(parameter.name, Any)
        if hint is CallContext or CallContext in get_args(hint):
            context_name = parameter.name
        else:
            shown.append((parameter, hint))
    return shown, context_name


def _parameter_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a function's parameters.

    The return type is ignored: it may exist for type checkers only.
    """
    inner = inspect.unwrap(function)
    annotations = {name: hint for name, hint in inner.__annotations__.items() if name != "return"}
    bare = SimpleNamespace(__annotations__=annotations)
    return get_type_hints(bare, getattr(inner, "__globals__", {}), include_extras=True)


def _build_model(
    name: str, parameters: list[tuple[inspect.Parameter, Any]], descriptions: Mapping[str, str]
) -> Any:
    """Return a pydantic model of a function's parameters."""
    from pydantic import ConfigDict, create_model

    # Fields are numbered and aliased: a parameter may be named `json` or `schema`, a pydantic field may not.
    fields: dict[str, Any] = {
        f"p{number}": _build_field(parameter, hint, descriptions.get(parameter.name, ""))
        for number, (parameter, hint) in enumerate(parameters)
    }
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


def _build_field(parameter: inspect.Parameter, hint: Any, description: str) -> Any:
    from pydantic import Field

    derived = Field(alias=parameter.name, description=description or None)
    # The author's own Field comes last and so takes precedence.
    own = getattr(hint, "__metadata__", ())
    bare = hint.__origin__ if own else hint
    default = ... if parameter.default is parameter.empty else parameter.default
    return Annotated[(bare, derived, *own)], default


def _describe_errors(error: Any) -> str:
    """Return pydantic's first validation errors as text with their locations."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)[:3]
    return "; ".join(f"at /{'/'.join(map(str, each['loc']))}: {each['msg']}" for each in errors)


def _untitled_schema(model: Any) -> Json:
    """Return a model's JSON Schema without the titles that pydantic derives from names."""
    from pydantic.json_schema import GenerateJsonSchema

    class Untitled(GenerateJsonSchema):
        def emit_warning(self, kind: Any, detail: str) -> None:
            log.debug("the schema of %r: %s (%s)", model.__name__, detail, kind)

        def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
            return False

    schema: Json = model.model_json_schema(schema_generator=Untitled)
    schema.pop("title", None)
    for name, each in schema.get("$defs", {}).items():
        if each.get("title") == name:
            del each["title"]
    return schema
