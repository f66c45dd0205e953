"""The `code_execution` toolset: run Python code that can call the tools of its session.

Defines the schema and result of `execute_code`. `tools.code_execution` runs the code in the terminal's
environment. The tool calls of the code go through `CallContext.nested`, so that scope, hooks, approval and
events apply to each of them. The code itself passes approval before this module gets it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from toolfold.core.errors import CallError
from toolfold.core.types import (
    CallContext,
    Effect,
    Json,
    Meaning,
    NestedCalls,
    Tool,
    ToolResult,
    read_json,
)
from toolfold.tools.builtin import OutsideText, Services
from toolfold.tools.builtin._builtin import build_builtin_tool
from toolfold.tools.builtin.terminal import CODE_SOURCE, OVERHEAD_TIMEOUT_S, get_output_dir, get_task_name
from toolfold.tools.code_execution import CodeLimits, CodeResult, CodeRun
from toolfold.tools.environments.environment_thread import EnvironmentThread

DEFAULT_TIMEOUT_S = 300.0
MAX_CODE_CHARS = 60_000
MAX_CALLS_TIME_S = 3_600.0
"""Maximum total time of all tool calls that one execution of code makes."""
MAX_LISTED_TOOLS = 500
"""Maximum number of tools whose parameters the code gets; further tools need keyword arguments."""

_DESCRIPTION = (
    "Run Python code that can call your tools. Use it when several calls depend on each other, or when large"
    " results should be filtered before you read them. Only what the code prints is returned. Each tool is a"
    " function with keyword arguments that returns its result as Python data or raises ToolError:"
    " `from toolfold_tools import NAME, ToolError`, or `call_tool('NAME', {…})`. Every tool that you can call"
    " or find works{delegate_task?, except delegate_task}."
)
_SCHEMA: Json = {
    "description": _DESCRIPTION,
    "parameters": {
        "type": "object",
        "properties": {
            "code": {"type": "string", "minLength": 1, "maxLength": MAX_CODE_CHARS},
            "timeout": {
                "type": "number",
                "exclusiveMinimum": 0,
                "default": DEFAULT_TIMEOUT_S,
                "description": "Seconds until it is terminated; the time of its tool calls does not count.",
            },
            "workdir": {"type": "string", "maxLength": 4_096, "description": "Directory to run it in."},
        },
        "required": ["code"],
        "additionalProperties": False,
    },
}


def tools(services: Services) -> list[Tool]:
    """Return the tool `execute_code`; an empty list if the runtime has no terminal."""
    if services.terminal is None:
        return []
    code = CodeTool(services.terminal, services.max_command_s, services.outside_text)
    return [
        build_builtin_tool(
            name="execute_code",
            toolset="code_execution",
            schema=_SCHEMA,
            handler=code.run,
            check_fn=services.terminal.check,
            emoji="🐍",
            effects=(Effect.EXECUTE, Effect.WRITE, Effect.NETWORK),
            judged_as={"code": Meaning.PYTHON, "workdir": Meaning.FOLDER},
            standalone=True,
            timeout=services.max_command_s + MAX_CALLS_TIME_S + OVERHEAD_TIMEOUT_S,
            synonyms=("python", "script", "program", "compute"),
            source=CODE_SOURCE,
        )
    ]


@dataclass(frozen=True, slots=True)
class CodeTool:
    """Handler of the tool `execute_code`."""

    terminal: EnvironmentThread
    max_timeout_s: float
    outside_text: OutsideText

    async def run(self, args: Json, context: CallContext) -> Json:
        nested = context.nested
        if nested is None:
            raise CallError("Code can be run only through a session.")
        limits = CodeLimits(timeout_s=min(args.get("timeout") or DEFAULT_TIMEOUT_S, self.max_timeout_s))
        loop = asyncio.get_running_loop()

        async def call_tool(name: str, arguments: Json) -> Json:
            """Call a tool on behalf of the executed code, in the event loop of the handler."""
            work = asyncio.run_coroutine_threadsafe(_make_reply(nested, name, arguments), loop)
            return await asyncio.wrap_future(work)

        result = await self.terminal.run(
            lambda environment: CodeRun(environment, call_tool, limits).run(
                args["code"],
                _describe_parameters(nested.tools),
                task=get_task_name(args, context),
                directory=args.get("workdir") or "",
                output_dir=get_output_dir(context),
            )
        )
        answer = _describe_result(result, limits)
        # What the code prints may come from files, pages or servers.
        return {**answer, "output": await self.outside_text.mark(answer["output"])}


async def _make_reply(nested: NestedCalls, name: str, arguments: Json) -> Json:
    result = await nested(name, arguments)
    return {"error": result.error} if result.error is not None else {"value": _full_value(result)}


def _full_value(result: ToolResult) -> object:
    """Return a tool's complete result as Python data, even if the model receives a truncated result."""
    # Not the value of the result: a hook may have changed only the text, to remove something from it.
    return read_json(result.text if result.whole_text is None else result.whole_text)


def _describe_parameters(tools: Sequence[Tool]) -> dict[str, list[str]]:
    core_first = sorted(tools, key=lambda tool: (not tool.core, tool.name))[:MAX_LISTED_TOOLS]
    return {tool.name: list(tool.parameters.get("properties") or ()) for tool in core_first}


def _describe_result(result: CodeResult, limits: CodeLimits) -> Json:
    output = result.output
    answer: Json = {"output": output.text(), "exit_code": result.exit_code, "tool_calls": result.calls}
    if result.exit_code is None:
        answer["note"] = f"Terminated after {limits.timeout_s:g} s, with all its processes."
    if output.file is not None:
        answer |= {"bytes": output.total_bytes, "stored": str(output.file)}
    if dropped := result.dropped_bytes + output.lost_bytes:
        answer["lost_bytes"] = dropped
    return answer
