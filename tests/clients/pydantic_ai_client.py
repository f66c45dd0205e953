"""A client with Pydantic AI. Usage: pydantic_ai_client.py PLAN, where PLAN is a `LibraryPlan` as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

# The packages are in an environment of their own.
from fastmcp.client.elicitation import ElicitResult  # type: ignore[import-not-found]
from fastmcp.client.transports import StdioTransport  # type: ignore[import-not-found]
from pydantic_ai import ModelRetry  # type: ignore[import-not-found]
from pydantic_ai.mcp import MCPToolset  # type: ignore[import-not-found]

TIMEOUT_S = 300


def gateway_target(plan: dict[str, Any]) -> Any:
    """Return the gateway's URL, or a transport that starts the gateway."""
    command, *arguments = plan["command"]
    return plan["url"] or StdioTransport(command, arguments, env=plan["environment"], keep_alive=False)


async def call_tool(toolset: Any, request: dict[str, Any]) -> str:
    """Call a tool, and return what a model would get, which is also the text of a failed call."""
    try:
        result = await toolset.direct_call_tool(request["tool"], request["arguments"])
    except ModelRetry as failed:
        return str(failed.message)
    return result if isinstance(result, str) else json.dumps(result)


async def run_plan(plan: dict[str, Any]) -> dict[str, Any]:
    answers = iter(plan["answers"])
    questions: list[str] = []

    async def answer_form(message: str, _type: Any, _params: Any, _context: Any) -> Any:
        questions.append(message)
        answer = next(answers)
        return ElicitResult(action=answer, content={} if answer == "accept" else None)

    toolset = MCPToolset(
        gateway_target(plan), elicitation_handler=answer_form, init_timeout=TIMEOUT_S, read_timeout=TIMEOUT_S
    )
    async with toolset:
        listed = [each.name for each in await toolset.list_tools()]
        results = [await call_tool(toolset, each) for each in plan["steps"]]
    return {"listed": listed, "results": results, "questions": questions}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run_plan(json.loads(sys.argv[1])))))
