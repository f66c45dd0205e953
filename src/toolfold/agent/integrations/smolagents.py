"""Toolfold's tools for smolagents.

`ToolCallingAgent(tools=make_tools(session), model=SelectingModel(model, session))`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from smolagents import ChatMessage, ChatMessageStreamDelta, Model, Tool

from toolfold.agent.integrations.session_tools import SessionTools, make_identifiers
from toolfold.core.types import Definition, Json
from toolfold.runtime.session import Session

__all__ = ["SelectingModel", "SessionTool", "make_tools"]

_JSON_TYPES = frozenset({"string", "boolean", "integer", "number", "array", "object", "null"})


class SelectingModel(Model):
    """Wraps a model and shows it only those tools of the session that fit the conversation."""

    def __init__(self, model: Model, session: Session) -> None:
        super().__init__(model_id=model.model_id)
        self._model, self._tools = model, SessionTools(session)

    def generate(
        self, messages: Sequence[Any], *arguments: Any, tools_to_call_from: Any = None, **options: Any
    ) -> ChatMessage:
        """Call the model with the selected tools."""
        shown = self._select(messages, tools_to_call_from)
        return self._model.generate(messages, *arguments, tools_to_call_from=shown, **options)

    def generate_stream(
        self, messages: Sequence[Any], *arguments: Any, tools_to_call_from: Any = None, **options: Any
    ) -> Iterator[ChatMessageStreamDelta]:
        """Call the model with the selected tools and yield the parts of its reply."""
        shown = self._select(messages, tools_to_call_from)
        yield from self._model.generate_stream(messages, *arguments, tools_to_call_from=shown, **options)

    def parse_tool_calls(self, message: ChatMessage) -> ChatMessage:
        """Parse the tool calls in a reply with the method of the wrapped model."""
        return self._model.parse_tool_calls(message)

    def _select(self, messages: Sequence[Any], tools: Sequence[Tool] | None) -> list[Tool] | None:
        if not tools:  # a request without tools, such as a plan
            return None
        shown = self._tools.select_names_sync([convert_message(each) for each in messages])
        return [each for each in tools if getattr(each, "session_name", None) in (None, *shown)]


class SessionTool(Tool):
    """A tool of a Toolfold session, as a smolagents tool."""

    skip_forward_signature_validation = True
    output_type = "string"

    def __init__(self, tools: SessionTools, definition: Definition, identifier: str) -> None:
        """Create a tool; `identifier` is the Python identifier by which the model calls it."""
        function = definition["function"]
        self.session_name = function["name"]
        self.name = identifier
        self.description = function.get("description", "")
        self.inputs = convert_parameters(function["parameters"])
        self._tools = tools
        super().__init__()

    def forward(self, **arguments: Any) -> str:
        """Run a tool call in the Toolfold session."""
        return self._tools.call_sync(self.session_name, arguments).text


def make_tools(session: Session) -> list[SessionTool]:
    """Return every tool that a session may call."""
    tools = SessionTools(session)
    definitions = tools.list_all()
    identifiers = make_identifiers([each["function"]["name"] for each in definitions])
    return [SessionTool(tools, each, identifiers[each["function"]["name"]]) for each in definitions]


def convert_parameters(schema: Json) -> Json:
    """Convert the JSON schema of a tool's parameters to the inputs of a smolagents tool.

    smolagents knows only one type per input: a parameter with alternatives accepts any value here, and the
    session checks it.
    """
    required = schema.get("required", [])
    return {
        name: _convert_property(each if isinstance(each, dict) else {}, optional=name not in required)
        for name, each in schema.get("properties", {}).items()
    }


def _convert_property(schema: Json, *, optional: bool) -> Json:
    kind = schema.get("type")
    if not isinstance(kind, str) or kind not in _JSON_TYPES:
        kind = "any"
    details = {key: each for key, each in schema.items() if key not in ("anyOf", "oneOf", "allOf", "$ref")}
    converted: Json = {**details, "type": kind, "description": schema.get("description", "")}
    return {**converted, "nullable": True} if optional else converted


def convert_message(message: Any) -> Json:
    """Convert a smolagents message to the OpenAI format, without parts that tool selection does not read."""
    data: Json = message if isinstance(message, dict) else message.dict()
    role = getattr(data.get("role"), "value", data.get("role"))
    plain = {"tool-call": "assistant", "tool-response": "tool"}
    return {"role": plain.get(str(role), str(role)), "content": data.get("content") or ""}
