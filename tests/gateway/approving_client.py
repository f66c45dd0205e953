"""An MCP client that calls a command through a gateway and accepts every question.

Usage: approving_client.py URL REVISION COMMAND OUTPUT [TOKEN]. Writes the outcome to OUTPUT, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx2
import mcp_types
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


async def call(url: str, revision: str, command: str, token: str = "") -> dict[str, Any]:
    asked: list[str] = []

    async def accept(context: Any, params: Any) -> mcp_types.ElicitResult:
        asked.append(params.message)
        return mcp_types.ElicitResult(action="accept", content={"answer": "once"})

    headers = {"X-Forwarded-For": "192.0.2.7", "Forwarded": "for=192.0.2.7"}
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(
            streamable_http_client(url, http_client=http), mode=revision, elicitation_callback=accept
        ) as client,
    ):
        result = await client.call_tool("terminal", {"command": command})
    text = "\n".join(block.text for block in result.content if block.type == "text")
    return {"asked": len(asked), "is_error": bool(result.is_error), "text": text}


if __name__ == "__main__":
    url, revision, command, output, *rest = sys.argv[1:]
    found = asyncio.run(call(url, revision, command, *rest))
    unfinished = Path(f"{output}.new")
    unfinished.write_text(json.dumps(found))
    unfinished.rename(output)
