"""Conversations with OpenAI Agents. Usage: openai_agents_client.py PLAN, a `FrameworkPlan` as JSON.

Prints the results. The URL of the proxy comes from the environment, as its users set it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

# The packages are in an environment of their own.
from agents import (
    Agent,
    FunctionTool,
    Runner,
    set_default_openai_api,
    set_tracing_disabled,
)


def make_tool(definition: dict[str, Any], calls: list[Any], result: str) -> Any:
    async def run(_context: Any, arguments: str) -> str:
        calls.append([definition["name"], json.loads(arguments)])
        return result

    return FunctionTool(
        definition["name"],
        definition["description"],
        definition["parameters"],
        run,
        strict_json_schema=False,
    )


async def converse(plan: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    calls: list[Any] = []
    set_default_openai_api("chat_completions" if case["api"] == "chat" else "responses")
    tools = [make_tool(each, calls, plan["result"]) for each in plan["tools"]]
    agent = Agent("weather", model="gpt-4.1", tools=tools)
    if not case["stream"]:
        return {"text": (await Runner.run(agent, case["question"])).final_output, "calls": calls}
    running = Runner.run_streamed(agent, case["question"])
    async for _ in running.stream_events():
        pass
    return {"text": running.final_output, "calls": calls}


async def converse_in_turn(plan: dict[str, Any]) -> dict[str, Any]:
    set_tracing_disabled(True)  # traces would be sent over the network
    return {each["name"]: await converse(plan, each) for each in plan["cases"]}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(converse_in_turn(json.loads(sys.argv[1])))))
