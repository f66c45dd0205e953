"""A client with the Python SDK. Usage: python_sdk_client.py PLAN, where PLAN is a `LibraryPlan` as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import mcp_types
from mcp import Client, StdioServerParameters


async def run_plan(plan: dict[str, Any]) -> dict[str, Any]:
    answers = iter(plan["answers"])
    questions: list[str] = []

    async def answer_form(context: Any, params: Any) -> mcp_types.ElicitResult:
        questions.append(params.message)
        answer = next(answers)
        return mcp_types.ElicitResult(action=answer, content={} if answer == "accept" else None)

    command, *arguments = plan["command"]
    server = StdioServerParameters(command=command, args=arguments, env=plan["environment"])
    async with Client(server, elicitation_callback=answer_form) as client:
        listed = [each.name for each in (await client.list_tools()).tools]
        results = [await client.call_tool(each["tool"], each["arguments"]) for each in plan["steps"]]
    texts = ["".join(block.text for block in each.content if block.type == "text") for each in results]
    return {"listed": listed, "results": texts, "questions": questions}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run_plan(json.loads(sys.argv[1])))))
