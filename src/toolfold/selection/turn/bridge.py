"""The bridge: three tools with which a model finds and calls tools not in its request.

`tool_search` and `tool_describe` are tools like any others: scope, hooks and time limit apply to them under
their own names, and they only read. `tool_call` is not a tool: `unwrap`, the first step of dispatch, replaces
it by the call that it contains, and later steps know nothing of the bridge. The three definitions do not
mention the tools that they reach, so that a prompt cache stays valid when tools are added or removed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

from toolfold.core.errors import BridgeMisuse, shorten
from toolfold.core.naming import is_reserved
from toolfold.core.types import (
    BRIDGE_CALL,
    BRIDGE_DESCRIBE,
    BRIDGE_SEARCH,
    CallContext,
    Effect,
    Json,
    Source,
    Tool,
    ToolCall,
    freeze,
)
from toolfold.core.validation import parse_arguments
from toolfold.selection.turn.answers import BridgeAnswers
from toolfold.selection.turn.assembly import Turn

_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_NAME_KEYS = ("name", "tool_name", "tool")
_ARGUMENT_KEYS = frozenset({"args", "parameters", "params", "input"})


class Bridge:
    """Definitions and handlers of the tools `tool_search`, `tool_describe` and `tool_call`."""

    def __init__(self, answers: BridgeAnswers) -> None:
        self._answers: dict[str, Callable[[Turn, Json, str], Json]] = {
            BRIDGE_SEARCH: answers.search,
            BRIDGE_DESCRIBE: lambda turn, args, _client: answers.describe(turn, args),
        }
        self.tools = (
            _bridge_tool(
                BRIDGE_SEARCH,
                "Find tools beyond those listed here. Say in a few words what is to be done. Gives names,"
                " descriptions and signatures (? is optional, … is cut); call what you find with tool_call.",
                {
                    "query": {**_TEXT, "description": "One need, e.g. 'create calendar event'."},
                    "queries": {**_TEXTS, "description": "Several needs at once."},
                    "limit": {"type": "integer", "description": "Hits per query."},
                },
            ),
            _bridge_tool(
                BRIDGE_DESCRIBE,
                "Full description and JSON Schema of tools, for when a signature does not suffice.",
                {"name": _TEXT, "names": _TEXTS},
            ),
            _bridge_tool(
                BRIDGE_CALL,
                "Call a tool found with tool_search.",
                {
                    "name": {**_TEXT, "description": "Exact name."},
                    "arguments": {"type": "object", "description": "As its signature asks."},
                },
                required=("name", "arguments"),
            ),
        )

    def __contains__(self, name: object) -> bool:
        """Return True for the names `tool_search` and `tool_describe`, which this class implements.

        False for `tool_call`: the call inside it is run instead.
        """
        return isinstance(name, str) and name in self._answers

    def tool(self, name: str, turn: Turn) -> Tool:
        """Return the tool `tool_search` or `tool_describe`, bound to the tools of this turn."""
        definition = next(tool for tool in self.tools if tool.name == name)
        return replace(definition, handler=functools.partial(_run_answer, self._answers[name], turn))


def unwrap(call: ToolCall, *, is_nested: bool = False) -> ToolCall:
    """Return the inner call of `tool_call(name, arguments)`; return other calls unchanged.

    A call that a model has wrapped twice is unwrapped twice.
    """
    called: object = call.name
    if not isinstance(called, str):
        raise BridgeMisuse(f"a call needs the name of a tool, not {type(called).__name__}. Nothing was run.")
    if called != BRIDGE_CALL:
        return call
    wrapped = parse_arguments(BRIDGE_CALL, call.arguments)
    name = wrapped.pop(next((key for key in _NAME_KEYS if key in wrapped), "name"), None)
    arguments = wrapped.pop("arguments", None)
    if not isinstance(name, str) or not name.strip():
        raise BridgeMisuse(
            "tool_call needs `name`, the tool to call, and `arguments`, an object. Nothing was run."
        )
    if name.strip() == BRIDGE_CALL and not wrapped and not is_nested:
        return unwrap(ToolCall(BRIDGE_CALL, arguments, call.id), is_nested=True)
    if is_reserved(shorten(name)):
        called = shorten(name.strip())
        raise BridgeMisuse(
            f"{called!r} cannot be called through tool_call: call it directly. Nothing was run."
        )
    if wrapped:
        raise BridgeMisuse(
            f"tool_call takes no arguments other than `name` and `arguments`: {_explain_extra_keys(wrapped)}."
            " Nothing was run."
        )
    return ToolCall(name.strip(), arguments, call.id)


def _explain_extra_keys(extra: Json) -> str:
    """Explain to the model that arguments of the inner tool belong in the object `arguments`.

    They are not moved automatically: the tool may have a parameter with the same name.
    """
    names = [shorten(str(key), 40) for key in list(extra)[:5]]
    if len(extra) == 1 and extra.keys() <= _ARGUMENT_KEYS:
        return f"write `arguments` for {names[0]}, or put {names[0]} inside `arguments`"
    return f"put {', '.join(names)} inside `arguments`"


def _run_answer(
    answer: Callable[[Turn, Json, str], Json], turn: Turn, args: Json, context: CallContext
) -> Json:
    return answer(turn, args, context.caller.learner)


def _bridge_tool(name: str, description: str, properties: Json, required: tuple[str, ...] = ()) -> Tool:
    parameters: Json = {"type": "object", "properties": properties}
    return Tool(
        name=name,
        toolset="bridge",
        description=description,
        parameters=freeze(parameters | ({"required": required} if required else {})),
        handler=_refuse_direct_run,
        effects=frozenset({Effect.READ}),
        parallel=True,
        core=True,
        source=Source("builtin", "bridge"),
    )


def _refuse_direct_run(_args: Any, _context: CallContext) -> NoReturn:
    raise BridgeMisuse(
        "tool_search, tool_describe and tool_call work only in a turn of a session. Nothing was run."
    )
