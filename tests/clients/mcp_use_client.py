"""A client with mcp-use. Usage: mcp_use_client.py PLAN, where PLAN is a `LibraryPlan` as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

# The packages are in an environment of their own.
from mcp.types import ElicitResult
from mcp_use import MCPClient  # type: ignore[import-not-found]

TIMEOUT_S = 300


def gateway_entry(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of the gateway in the library's configuration."""
    if plan["url"]:
        return {"url": plan["url"], "timeout": TIMEOUT_S}
    command, *arguments = plan["command"]
    return {"command": command, "args": arguments, "env": plan["environment"]}


async def run_plan(plan: dict[str, Any]) -> dict[str, Any]:
    answers = iter(plan["answers"])
    questions: list[str] = []

    async def answer_form(_context: Any, params: Any) -> Any:
        questions.append(params.message)
        answer = next(answers)
        return ElicitResult(action=answer, content={} if answer == "accept" else None)

    config = {"mcpServers": {"toolfold": gateway_entry(plan)}}
    client = MCPClient(config, elicitation_callback=answer_form)
    try:
        session = await client.create_session("toolfold")
        listed = [each.name for each in await session.list_tools()]
        results = [await session.call_tool(each["tool"], each["arguments"]) for each in plan["steps"]]
    finally:
        await client.close_all_sessions()
    texts = [each.content[0].text for each in results]
    return {"listed": listed, "results": texts, "questions": questions}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run_plan(json.loads(sys.argv[1])))))
