"""Toolfold's tools for LlamaIndex: `SelectingAgent(session=session, llm=llm)` is a `FunctionAgent`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.agent.workflow.workflow_events import AgentOutput
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import BaseMemory
from llama_index.core.tools import AsyncBaseTool, ToolMetadata, ToolOutput
from pydantic import PrivateAttr

from toolfold.agent.integrations.session_tools import SessionTools, make_call
from toolfold.core.types import Definition, Json, ToolResult
from toolfold.runtime.session import Session

__all__ = ["SelectingAgent", "SessionTool", "make_tools"]


class SelectingAgent(FunctionAgent):
    """A `FunctionAgent` with a session's tools that shows its model only tools that fit the conversation."""

    _tools: SessionTools = PrivateAttr()

    def __init__(self, *, session: Session, tools: Sequence[Any] = (), **options: Any) -> None:
        super().__init__(tools=[*tools, *make_tools(session)], **options)
        self._tools = SessionTools(session)

    async def take_step(
        self, ctx: Any, llm_input: list[ChatMessage], tools: Sequence[AsyncBaseTool], memory: BaseMemory
    ) -> AgentOutput:
        """Call the model with the session's selected tools and all tools from other sources."""
        messages = [convert_message(each) for each in llm_input]
        kept = await self._tools.keep_selected(tools, _name, messages)
        return await super().take_step(ctx, llm_input, kept, memory)


class SessionTool(AsyncBaseTool):
    """A tool of a Toolfold session, as a LlamaIndex tool."""

    def __init__(self, tools: SessionTools, definition: Definition) -> None:
        self._tools, self._metadata = tools, _SchemaMetadata(definition)

    @property
    def metadata(self) -> ToolMetadata:
        return self._metadata

    def call(self, **arguments: Any) -> ToolOutput:
        """Run a tool call in the Toolfold session."""
        return _convert_result(self._tools.call_sync(_name(self), arguments), arguments)

    async def acall(self, **arguments: Any) -> ToolOutput:
        """Run a tool call in the Toolfold session."""
        return _convert_result(await self._tools.call(_name(self), arguments), arguments)


class _SchemaMetadata(ToolMetadata):
    """Tool metadata with a given JSON schema instead of the schema of a Pydantic model."""

    def __init__(self, definition: Definition) -> None:
        function = definition["function"]
        super().__init__(description=function.get("description", ""), name=function["name"], fn_schema=None)
        self._parameters = function["parameters"]

    def get_parameters_dict(self) -> Json:
        return self._parameters

    def to_openai_tool(self, skip_length_check: bool = False) -> Json:
        return super().to_openai_tool(skip_length_check=True)  # providers accept long descriptions


def make_tools(session: Session) -> list[SessionTool]:
    """Return every tool that a session may call."""
    tools = SessionTools(session)
    return [SessionTool(tools, each) for each in tools.list_all()]


def convert_message(message: ChatMessage) -> Json:
    """Convert a LlamaIndex message to the OpenAI format, without parts that tool selection does not read."""
    converted: Json = {"role": str(message.role.value), "content": message.content or ""}
    calls = [each for each in message.blocks if each.block_type == "tool_call"]
    if calls:
        converted["tool_calls"] = [
            make_call(each.tool_call_id, each.tool_name, each.tool_kwargs) for each in calls
        ]
    return converted


def _convert_result(result: ToolResult, arguments: Json) -> ToolOutput:
    return ToolOutput(
        tool_name=result.name,
        content=result.text,
        raw_input=arguments,
        raw_output=result.value,
        is_error=not result.ok,
    )


def _name(tool: AsyncBaseTool) -> str:
    return tool.metadata.get_name()
