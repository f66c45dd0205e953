"""Echo server behind all endpoints of `benchmarks/gateway.py`.

    python gateway_echo.py [--port N]

Over stdio, or over Streamable HTTP at a port. Made with the official SDK alone.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import mcp_types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


async def listed(_context: Any, _params: Any) -> mcp_types.ListToolsResult:
    harmless = mcp_types.ToolAnnotations(read_only_hint=True)
    echo = mcp_types.Tool(
        name="echo", description="Gives back its text.", input_schema=TEXT, annotations=harmless
    )
    return mcp_types.ListToolsResult(tools=[echo])


async def called(_context: Any, params: Any) -> mcp_types.CallToolResult:
    words = mcp_types.TextContent(type="text", text=(params.arguments or {})["text"])
    return mcp_types.CallToolResult(content=[words])


def server() -> Server[Any]:
    return Server("echo", version="1", on_list_tools=listed, on_call_tool=called)


async def over_stdio() -> None:
    serving = server()
    async with stdio_server() as (reading, writing):
        await serving.run(reading, writing, serving.create_initialization_options())


def over_http(port: int) -> None:
    import uvicorn

    uvicorn.run(server().streamable_http_app(), host="127.0.0.1", port=port, log_level="error")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int)
    chosen = parser.parse_args()
    if chosen.port:
        over_http(chosen.port)
    else:
        asyncio.run(over_stdio())


if __name__ == "__main__":
    main()
