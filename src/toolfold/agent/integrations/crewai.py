"""Toolfold's tools for CrewAI: `Agent(tools=make_tools(session, task_description), …)`.

CrewAI fixes an agent's tools before its task begins, so tools are selected once, by the description of the
task. The model reaches all others through the bridge tools.
"""

from __future__ import annotations

from typing import Any

from crewai.tools import BaseTool
from pydantic import BaseModel, ConfigDict, PrivateAttr

from toolfold.agent.integrations.session_tools import SessionTools
from toolfold.core.types import Definition, Json, copy_mutable
from toolfold.runtime.session import Session

__all__ = ["SessionTool", "make_tools"]


class SessionTool(BaseTool):
    """A tool of a Toolfold session, as a CrewAI tool."""

    _tools: SessionTools = PrivateAttr()

    def __init__(self, tools: SessionTools, definition: Definition) -> None:
        function = definition["function"]
        super().__init__(
            name=function["name"],
            description=function.get("description", ""),
            args_schema=make_arguments_model(function["name"], function["parameters"]),
        )
        self._tools = tools

    def _run(self, **arguments: Any) -> str:
        return self._tools.call_sync(self.name, arguments).text


def make_arguments_model(name: str, schema: Json) -> type[BaseModel]:
    """Return a Pydantic model with this JSON schema that validates nothing, because the session validates."""

    class Arguments(BaseModel):
        model_config = ConfigDict(extra="allow", title=name)

        @classmethod
        def model_json_schema(cls, *_: Any, **__: Any) -> Json:
            copied: Json = copy_mutable(schema)
            return copied

    return Arguments


def make_tools(session: Session, message: str) -> list[SessionTool]:
    """Return the tools of a session that fit a message, for example the description of a task."""
    tools = SessionTools(session)
    return [SessionTool(tools, each) for each in tools.select_sync(message)]
