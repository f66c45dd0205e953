"""Toolfold's tools for Google's Agent Development Kit: `LlmAgent(tools=[ToolfoldToolset(session)])`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.models.llm_request import LlmRequest
from google.adk.tools import BaseTool, ToolContext
from google.adk.tools.base_toolset import BaseToolset
from google.genai import types

from toolfold.agent.integrations.session_tools import SessionTools, make_call
from toolfold.core.types import Definition, Json
from toolfold.runtime.session import Session

__all__ = ["SessionTool", "ToolfoldToolset"]


class ToolfoldToolset(BaseToolset):
    """All tools of a session; each model request declares only those that fit the conversation."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._tools = SessionTools(session)

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        """Return every tool that the session may call."""
        return [SessionTool(self._tools, each) for each in self._tools.list_all()]

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: LlmRequest) -> None:
        """Declare the selected tools to the model, which may also call tools that were not selected."""
        tools = await self.get_tools_with_prefix(
            tool_context
        )  # first, because listing all tools begins a turn
        shown = await self._tools.select_names(list(convert_contents(llm_request.contents)))
        llm_request.append_tools([each for each in tools if each.name in shown])
        hidden = {each.name: each for each in tools if each.name not in llm_request.tools_dict}
        llm_request.tools_dict.update(hidden)


class SessionTool(BaseTool):
    """A tool of a Toolfold session, as an ADK tool."""

    def __init__(self, tools: SessionTools, definition: Definition) -> None:
        function = definition["function"]
        super().__init__(name=function["name"], description=function.get("description", ""))
        self._tools, self._parameters = tools, function["parameters"]

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        """Run a tool call in the Toolfold session."""
        result = await self._tools.call(self.name, args, tool_context.function_call_id or "")
        return {"result" if result.ok else "error": result.text}

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: LlmRequest) -> None:
        """Do nothing: the toolset has already added the tool to the request."""

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name, description=self.description, parameters_json_schema=self._parameters
        )


def convert_contents(contents: Sequence[types.Content]) -> Iterator[Json]:
    """Yield a request's messages in the OpenAI format, without parts that tool selection does not read."""
    for content in contents:
        parts = content.parts or []
        asked = (part.function_call for part in parts if part.function_call)
        calls = [make_call(each.id, each.name or "", each.args or {}) for each in asked]
        responses = [part.function_response for part in parts if part.function_response]
        for response in responses:
            yield {"role": "tool", "tool_call_id": response.id or "", "content": str(response.response)}
        text = "\n".join(part.text for part in parts if part.text)
        if text or calls:
            role = "assistant" if content.role == "model" else "user"
            yield {"role": role, "content": text, **({"tool_calls": calls} if calls else {})}
