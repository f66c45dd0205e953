"""A client with FastMCP. Usage: fastmcp_client.py PLAN, where PLAN is a `LibraryPlan` as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from fastmcp import Client  # type: ignore[import-not-found]  # in an environment of its own
from fastmcp.client.elicitation import ElicitResult  # type: ignore[import-not-found]
from fastmcp.client.transports import StdioTransport  # type: ignore[import-not-found]


async def run_plan(plan: dict[str, Any]) -> dict[str, Any]:
    answers = iter(plan["answers"])
    questions: list[str] = []

    async def answer_form(message: str, _type: Any, _params: Any, _context: Any) -> Any:
        questions.append(message)
        answer = next(answers)
        return ElicitResult(action=answer, content={} if answer == "accept" else None)

    command, *arguments = plan["command"]
    server = StdioTransport(command, arguments, env=plan["environment"], keep_alive=False)
    async with Client(server, elicitation_handler=answer_form, init_timeout=300) as client:
        listed = [each.name for each in await client.list_tools()]
        results = [
            await client.call_tool(each["tool"], each["arguments"], raise_on_error=False)
            for each in plan["steps"]
        ]
    return {"listed": listed, "results": [each.content[0].text for each in results], "questions": questions}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run_plan(json.loads(sys.argv[1])))))
