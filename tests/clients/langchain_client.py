"""A client with LangChain's MCP adapters. Usage: langchain_client.py PLAN, a `LibraryPlan` as JSON.

Over stdio it uses one session for all calls. Over HTTP it uses `get_tools()`, which opens a session for
each call.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

# The packages are in an environment of their own.
from langchain_mcp_adapters.callbacks import Callbacks  # type: ignore[import-not-found]
from langchain_mcp_adapters.client import MultiServerMCPClient  # type: ignore[import-not-found]
from langchain_mcp_adapters.tools import load_mcp_tools  # type: ignore[import-not-found]
from mcp.types import ElicitResult


def connection(plan: dict[str, Any]) -> dict[str, Any]:
    """Return LangChain's settings of the gateway."""
    if plan["url"]:
        return {"transport": "http", "url": plan["url"]}
    command, *arguments = plan["command"]
    return {"transport": "stdio", "command": command, "args": arguments, "env": plan["environment"]}


@asynccontextmanager
async def load_tools(client: Any, plan: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """Return the gateway's tools by name."""
    if plan["url"]:
        yield {each.name: each for each in await client.get_tools()}
    else:
        async with client.session("toolfold") as session:
            yield {each.name: each for each in await load_mcp_tools(session)}


async def run_plan(plan: dict[str, Any]) -> dict[str, Any]:
    answers = iter(plan["answers"])
    questions: list[str] = []

    async def answer_form(_mcp_context: Any, params: Any, _context: Any) -> Any:
        questions.append(params.message)
        answer = next(answers)
        return ElicitResult(action=answer, content={} if answer == "accept" else None)

    async def call(tool: Any, arguments: dict[str, Any]) -> str:
        request = {"type": "tool_call", "id": "1", "name": tool.name, "args": arguments}
        return str((await tool.ainvoke(request)).text)

    callbacks = Callbacks(on_elicitation=answer_form)
    client = MultiServerMCPClient({"toolfold": connection(plan)}, callbacks=callbacks)
    async with load_tools(client, plan) as tools:
        results = [await call(tools[each["tool"]], each["arguments"]) for each in plan["steps"]]
    return {"listed": list(tools), "results": results, "questions": questions}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run_plan(json.loads(sys.argv[1])))))
