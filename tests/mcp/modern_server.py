"""MCP server of the newest revision, on the official SDK: calling `grow` adds a tool to its list.

python modern_server.py [PORT]        # over stdio, or over Streamable HTTP at a port
"""

from __future__ import annotations

import sys

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("modern")


@server.tool()
def echo(text: str) -> str:
    """Gives back the text it is given."""
    return text


@server.tool()
async def grow(context: Context) -> str:
    """Brings another tool."""
    server.add_tool(arrived, name="arrived_late")
    await context.notify_tools_changed()
    return "grown"


@server.resource("note://{name}")
def note(name: str) -> str:
    """A note that can be followed."""
    return name


@server.tool()
async def touch(context: Context, name: str) -> str:
    """Says that a note has changed."""
    await context.notify_resource_updated(f"note://{name}")
    return "touched"


def arrived() -> str:
    """Was not there before."""
    return "here"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
