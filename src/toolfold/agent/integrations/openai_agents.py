"""Toolfold's tools for the OpenAI Agents SDK: `agent = add_tools(Agent(name="…"), session)`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from agents import Agent, FunctionTool, Model, ModelProvider, MultiProvider, Tool
from agents.items import ModelResponse, TResponseInputItem, TResponseStreamEvent
from agents.tool_context import ToolContext

from toolfold.agent.integrations.session_tools import SessionTools
from toolfold.core.types import Definition
from toolfold.runtime.session import Session

__all__ = ["SelectingModel", "add_tools", "make_tools"]


def add_tools(agent: Agent[Any], session: Session, *, provider: ModelProvider | None = None) -> Agent[Any]:
    """Return a copy of an agent with a session's tools; its model sees only those that fit the conversation.

    `provider` resolves the name of the agent's model; the default is the SDK's own.
    """
    model = agent.model
    if not isinstance(model, Model):
        model = (provider or MultiProvider()).get_model(model)
    return agent.clone(tools=[*agent.tools, *make_tools(session)], model=SelectingModel(model, session))


def make_tools(session: Session) -> list[Tool]:
    """Return every tool that a session may call."""
    tools = SessionTools(session)
    return [_make_tool(tools, each) for each in tools.list_all()]


def _make_tool(tools: SessionTools, definition: Definition) -> FunctionTool:
    function = definition["function"]

    async def call(context: ToolContext[Any], arguments: str) -> str:
        return (await tools.call(function["name"], arguments, context.tool_call_id)).text

    return FunctionTool(
        name=function["name"],
        description=function.get("description", ""),
        params_json_schema=function["parameters"],
        on_invoke_tool=call,
        strict_json_schema=False,  # the session validates arguments itself
    )


class SelectingModel(Model):
    """Wraps a model and shows it only those tools of the session that fit the conversation."""

    def __init__(self, model: Model, session: Session) -> None:
        self._model, self._tools = model, SessionTools(session)

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],  # noqa: A002  (as in the base class)
        model_settings: Any,
        tools: list[Tool],
        *arguments: Any,
        **options: Any,
    ) -> ModelResponse:
        """Call the model with the selected tools."""
        shown = await self._select(input, tools)
        return await self._model.get_response(
            system_instructions, input, model_settings, shown, *arguments, **options
        )

    async def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],  # noqa: A002  (as in the base class)
        model_settings: Any,
        tools: list[Tool],
        *arguments: Any,
        **options: Any,
    ) -> AsyncIterator[TResponseStreamEvent]:
        """Call the model with the selected tools and yield its events."""
        shown = await self._select(input, tools)
        events = self._model.stream_response(
            system_instructions, input, model_settings, shown, *arguments, **options
        )
        async for event in events:
            yield event

    async def close(self) -> None:
        """Close the wrapped model."""
        await self._model.close()

    async def _select(self, history: str | Sequence[Any], tools: list[Tool]) -> list[Tool]:
        return await self._tools.keep_selected(tools, lambda each: each.name, history)
