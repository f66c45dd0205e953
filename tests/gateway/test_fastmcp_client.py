"""FastMCP's client at the gateway: several clients at once, each with its own grant."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.gateway.harness import fault_server, serve_gateway
from tests.mcp.servers import fastmcp_python

pytestmark = pytest.mark.clients

PROGRAM = """
import asyncio, json, sys
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport

async def main(url, token, tool):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with Client(StreamableHttpTransport(url, headers=headers)) as client:
        tools = sorted(each.name for each in await client.list_tools())
        result = await client.call_tool(tool, {"text": "hello"}, raise_on_error=False)
        print(json.dumps({"tools": tools, "error": result.is_error, "text": result.content[0].text}))

asyncio.run(main(*sys.argv[1:]))
"""


async def test_concurrent_fastmcp_clients_see_only_the_tools_granted_to_them(tmp_path: Path) -> None:
    python = fastmcp_python()
    servers = {"one": fault_server("--tools", "2"), "two": fault_server("--tools", "2")}

    async def use(url: str, token: str, tool: str) -> dict[str, object]:
        process = await asyncio.create_subprocess_exec(
            *(python, "-c", PROGRAM, url, token, tool), stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        found: dict[str, object] = json.loads(output.splitlines()[-1])
        return found

    with serve_gateway(tmp_path, servers) as served:
        one = served.tokens.add("one", ["mcp-one"])
        everybody, granted, refused = await asyncio.gather(
            use(served.url, "", "two_echo"),
            use(served.url, one, "one_echo"),
            use(served.url, one, "two_echo"),
        )
    assert everybody == {
        "tools": ["one_echo", "one_tool_2", "two_echo", "two_tool_2"],
        "error": False,
        "text": "hello",
    }
    assert granted == {"tools": ["one_echo", "one_tool_2"], "error": False, "text": "hello"}
    assert (refused["tools"], refused["error"]) == (["one_echo", "one_tool_2"], True)
