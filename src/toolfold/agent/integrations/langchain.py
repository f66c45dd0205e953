"""Toolfold's tools for LangChain and LangGraph.

`create_agent(model, middleware=[ToolfoldMiddleware(session)])`, or `ToolCallNode(session)` in a graph.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AnyMessage, ToolMessage, convert_to_openai_messages
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command

from toolfold.agent.integrations.session_tools import SessionTools
from toolfold.core.types import Definition, Json, ToolCall, ToolResult
from toolfold.runtime.session import Session

__all__ = ["ToolCallNode", "ToolfoldMiddleware", "select_definitions"]

ToolAnswer: TypeAlias = ToolMessage | Command[Any]


class ToolfoldMiddleware(AgentMiddleware[Any, Any]):
    """Middleware that adds tools that fit the conversation to each model request, and runs their calls."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._tools = SessionTools(session)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Add the selected tools to a model request."""
        return handler(_add_tools(request, self._tools.select_sync(convert_messages(request.messages))))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Add the selected tools to a model request."""
        return await handler(
            _add_tools(request, await self._tools.select(convert_messages(request.messages)))
        )

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolAnswer]
    ) -> ToolAnswer:
        """Run a tool call in the session; calls of the agent's own tools run as usual."""
        call = request.tool_call
        if request.tool is not None:
            return handler(request)
        return convert_result(self._tools.call_sync(call["name"], call["args"], call["id"] or ""))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolAnswer]]
    ) -> ToolAnswer:
        """Run a tool call in the session; calls of the agent's own tools run as usual."""
        call = request.tool_call
        if request.tool is not None:
            return await handler(request)
        return convert_result(await self._tools.call(call["name"], call["args"], call["id"] or ""))


class ToolCallNode:
    """Node of a LangGraph graph that runs the tool calls of the last message and returns their results."""

    def __init__(self, session: Session) -> None:
        self._tools = SessionTools(session)

    async def __call__(self, state: Mapping[str, Any]) -> Json:
        """Run the tool calls of the last message and return the results as an update of the graph's state."""
        last = state["messages"][-1]
        calls = [ToolCall(each["name"], each["args"], each["id"] or "") for each in last.tool_calls]
        return {"messages": [convert_result(each) for each in await self._tools.call_all(calls)]}


def select_definitions(session: Session, messages: Sequence[AnyMessage]) -> list[Definition]:
    """Return the tools that fit a conversation, for `model.bind_tools`."""
    return SessionTools(session).select_sync(convert_messages(messages))


def convert_messages(messages: Sequence[AnyMessage]) -> list[Json]:
    """Convert LangChain messages to the OpenAI format."""
    return cast("list[Json]", convert_to_openai_messages(list(messages)))


def convert_result(result: ToolResult) -> ToolMessage:
    """Return a tool result as the message that LangChain appends to the history."""
    status = "success" if result.ok else "error"
    return ToolMessage(result.text, tool_call_id=result.call_id, name=result.name, status=status)


def _add_tools(request: ModelRequest[Any], definitions: list[Definition]) -> ModelRequest[Any]:
    return request.override(tools=[*request.tools, *definitions])
