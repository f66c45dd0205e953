"""Toolfold's tools for Pydantic AI: `Agent(model, capabilities=[ToolfoldTools(session)])`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pydantic_ai import BinaryContent, RunContext, ToolDefinition, ToolReturn
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from toolfold.agent.integrations.session_tools import SessionTools, make_call
from toolfold.core.types import Definition, Json, Media, ToolResult
from toolfold.runtime.session import Session

__all__ = ["SessionToolset", "ToolfoldTools"]

ANY_ARGUMENTS = SchemaValidator(core_schema.any_schema())  # the session validates arguments itself
MAX_RETRIES = 0  # an invalid call returns a result that tells the model what to correct


class ToolfoldTools(AbstractCapability[Any]):
    """Pydantic AI capability with all tools of a session; its model sees those that fit the conversation."""

    def __init__(self, session: Session) -> None:
        self._tools = SessionTools(session)

    def get_toolset(self) -> SessionToolset:
        """Return every tool of the session, so that the model can also call tools that it was not shown."""
        return SessionToolset(self._tools.session)

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Remove session tools that were not selected from the request; keep tools from other sources."""
        parameters = request_context.model_request_parameters
        messages = list(convert_messages(request_context.messages))
        kept = await self._tools.keep_selected(parameters.function_tools, lambda each: each.name, messages)
        return replace(request_context, model_request_parameters=replace(parameters, function_tools=kept))


class SessionToolset(AbstractToolset[Any]):
    """Pydantic AI toolset with all tools of a session, from which `ToolfoldTools` selects."""

    def __init__(self, session: Session, *, id: str = "toolfold") -> None:  # noqa: A002  (as in the base class)
        self._tools, self._id = SessionTools(session), id

    @property
    def id(self) -> str:
        return self._id

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return every tool that the session may call."""
        return {each["function"]["name"]: self._convert_tool(each) for each in self._tools.list_all()}

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Run a tool call of the model in the session."""
        return convert_result(await self._tools.call(name, tool_args, ctx.tool_call_id or ""))

    def _convert_tool(self, definition: Definition) -> ToolsetTool[Any]:
        function = definition["function"]
        converted = ToolDefinition(
            name=function["name"],
            description=function.get("description", ""),
            parameters_json_schema=function["parameters"],
        )
        return ToolsetTool(
            toolset=self, tool_def=converted, max_retries=MAX_RETRIES, args_validator=ANY_ARGUMENTS
        )


def convert_result(result: ToolResult) -> str | ToolReturn[Any]:
    """Convert a tool result for Pydantic AI: its text, and its images or audio if it has any."""
    media = [_convert_media(each) for each in result.media]
    return ToolReturn(return_value=result.text, content=media) if media else result.text


def _convert_media(media: Media) -> BinaryContent:
    return BinaryContent(data=media.data, media_type=media.mime_type)


def convert_messages(messages: Sequence[ModelMessage]) -> Iterator[Json]:
    """Convert Pydantic AI messages to the OpenAI format, without parts that tool selection ignores."""
    for message in messages:
        if isinstance(message, ModelResponse):
            yield _convert_response(message)
            continue
        for part in message.parts:
            if isinstance(part, UserPromptPart):
                yield {"role": "user", "content": _read_prompt(part)}
            elif isinstance(part, ToolReturnPart):
                content = part.model_response_str()
                yield {"role": "tool", "tool_call_id": part.tool_call_id, "content": content}


def _convert_response(message: ModelResponse) -> Json:
    texts = [part.content for part in message.parts if isinstance(part, TextPart)]
    calls = [
        make_call(part.tool_call_id, part.tool_name, part.args_as_json_str())
        for part in message.parts
        if isinstance(part, ToolCallPart)
    ]
    converted: Json = {"role": "assistant", "content": "\n".join(texts)}
    return {**converted, "tool_calls": calls} if calls else converted


def _read_prompt(part: UserPromptPart) -> str:
    if isinstance(part.content, str):
        return part.content
    return "\n".join(each for each in part.content if isinstance(each, str))
