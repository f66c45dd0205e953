"""A client with OpenAI Agents. Usage: openai_agents_client.py PLAN, where PLAN is a `LibraryPlan` as JSON.

The library supports no forms, so the plan's answers are not used.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

# The package is in an environment of its own.
from agents.mcp import MCPServerStdio, MCPServerStreamableHttp  # type: ignore[import-not-found]

TIMEOUT_S = 300  # the default of 5 seconds is too short for a busy machine


def gateway_server(plan: dict[str, Any]) -> Any:
    """Return the library's object for the gateway: a running one, or one that it starts."""
    if plan["url"]:
        params = {"url": plan["url"], "timeout": TIMEOUT_S}
        return MCPServerStreamableHttp(params, client_session_timeout_seconds=TIMEOUT_S)
    command, *arguments = plan["command"]
    start = {"command": command, "args": arguments, "env": plan["environment"]}
    return MCPServerStdio(start, client_session_timeout_seconds=TIMEOUT_S)


async def run_plan(plan: dict[str, Any]) -> dict[str, Any]:
    async with gateway_server(plan) as server:
        listed = [each.name for each in await server.list_tools()]
        results = [await server.call_tool(each["tool"], each["arguments"]) for each in plan["steps"]]
    return {"listed": listed, "results": [each.content[0].text for each in results]}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run_plan(json.loads(sys.argv[1])))))
