"""A client with Pydantic AI. Usage: pydantic_ai_client.py PLAN, where PLAN is a `LibraryPlan` as JSON.

An agent with a scripted model makes the calls, so the results are what a model receives.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

# The packages are in an environment of their own.
from fastmcp.client.elicitation import ElicitResult  # type: ignore[import-not-found]
from fastmcp.client.transports import StdioTransport  # type: ignore[import-not-found]
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import (
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import FunctionModel

TIMEOUT_S = 300


def gateway_target(plan: dict[str, Any]) -> Any:
    """Return the gateway's URL, or a transport that starts the gateway."""
    command, *arguments = plan["command"]
    return plan["url"] or StdioTransport(command, arguments, env=plan["environment"], keep_alive=False)


def find_results(messages: list[Any]) -> list[str]:
    """Return the texts of all tool results in the messages of a run."""
    parts = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    return [part.model_response_str() for part in parts]


async def run_plan(plan: dict[str, Any]) -> dict[str, Any]:
    answers, steps = iter(plan["answers"]), iter(plan["steps"])
    questions: list[str] = []
    listed: list[str] = []

    async def answer_form(message: str, _type: Any, _params: Any, _context: Any) -> Any:
        questions.append(message)
        answer = next(answers)
        return ElicitResult(action=answer, content={} if answer == "accept" else None)

    def answer_as_model(_messages: Any, info: Any) -> Any:
        listed[:] = [each.name for each in info.function_tools]
        step = next(steps, None)
        return ModelResponse(
            [ToolCallPart(step["tool"], step["arguments"]) if step else TextPart("finished")]
        )

    toolset = MCPToolset(
        gateway_target(plan),
        elicitation_handler=answer_form,
        tool_error_behavior="failed",  # by default, two failed calls in a row end the run
        init_timeout=TIMEOUT_S,
        read_timeout=TIMEOUT_S,
    )
    run = await Agent(FunctionModel(answer_as_model), toolsets=[toolset]).run("use the notes")
    return {"listed": listed, "results": find_results(run.all_messages()), "questions": questions}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run_plan(json.loads(sys.argv[1])))))
