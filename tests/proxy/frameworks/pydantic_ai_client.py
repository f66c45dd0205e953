"""Conversations with Pydantic AI. Usage: pydantic_ai_client.py PLAN, a `FrameworkPlan` as JSON.

Prints the results. The URL of the proxy comes from the environment, as a user of Pydantic AI sets it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

# The packages are in an environment of their own.
from pydantic_ai import Agent, Tool

MODELS = {
    "chat": "openai-chat:gpt-4.1",
    "responses": "openai-responses:gpt-4.1",
    "messages": "anthropic:claude-test-5",
}


def make_tool(definition: dict[str, Any], calls: list[Any], result: str) -> Any:
    def run(**arguments: Any) -> str:
        calls.append([definition["name"], arguments])
        return result

    return Tool.from_schema(run, definition["name"], definition["description"], definition["parameters"])


async def converse(plan: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    calls: list[Any] = []
    tools = [make_tool(each, calls, plan["result"]) for each in plan["tools"]]
    agent = Agent(MODELS[case["api"]], tools=tools)
    if not case["stream"]:
        return {"text": (await agent.run(case["question"])).output, "calls": calls}
    async with agent.run_stream(case["question"]) as events:
        return {"text": await events.get_output(), "calls": calls}


async def converse_in_turn(plan: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: await converse(plan, each) for each in plan["cases"]}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(converse_in_turn(json.loads(sys.argv[1])))))
