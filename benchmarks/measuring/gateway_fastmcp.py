"""FastMCP's proxy and client for `benchmarks/gateway.py`. Runs in an environment with FastMCP.

    python gateway_fastmcp.py proxy [--port N] [--kept] URL | COMMAND ARGUMENT… | FILE.json
    python gateway_fastmcp.py client CALLS NAME=URL…

The proxy opens a session behind it for every request, as FastMCP does unless told otherwise; with `--kept`
it has one connection that it keeps, the fastest it can be. A JSON file names several servers, as in the
settings of a client: `{"mcpServers": {…}}`. The client calls each address in turn and prints
the times in seconds as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

Client: Any = import_module("fastmcp").Client
StdioTransport: Any = import_module("fastmcp.client.transports").StdioTransport
create_proxy: Any = import_module("fastmcp.server").create_proxy


def locate(target: list[str]) -> Any:
    """Return the target of a FastMCP proxy: a configuration, a URL or a command."""
    if target[0].endswith(".json"):
        return json.loads(Path(target[0]).read_text(encoding="utf-8"))
    return target[0] if target[0].startswith("http") else StdioTransport(target[0], target[1:])


async def proxy(behind: Any, port: int | None, *, kept: bool) -> None:
    if not kept:
        await serve(create_proxy(behind), port)
        return
    async with Client(behind) as client:
        await serve(create_proxy(client), port)


async def serve(server: Any, port: int | None) -> None:
    if port is None:
        await server.run_async(transport="stdio", show_banner=False)
    else:
        options = {"host": "127.0.0.1", "port": port, "log_level": "error", "show_banner": False}
        await server.run_async(transport="http", **options)


async def calls(count: int, addresses: list[str]) -> dict[str, list[float]]:
    named = dict(each.split("=", 1) for each in addresses)
    times: dict[str, list[float]] = {name: [] for name in named}
    async with AsyncExitStack() as stack:
        clients = {name: await stack.enter_async_context(Client(url)) for name, url in named.items()}
        tools = {name: (await client.list_tools())[0].name for name, client in clients.items()}
        for number in range(count + 5):
            for name, client in clients.items():
                began = time.perf_counter()
                await client.call_tool(tools[name], {"text": "hello"})
                if number >= 5:  # the first warm up
                    times[name].append(time.perf_counter() - began)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    front = parts.add_parser("proxy")
    front.add_argument("--port", type=int)
    front.add_argument("--kept", action="store_true")
    front.add_argument("target", nargs=argparse.REMAINDER)
    client = parts.add_parser("client")
    client.add_argument("calls", type=int)
    client.add_argument("addresses", nargs="+")
    chosen = parser.parse_args()
    if chosen.part == "proxy":
        asyncio.run(proxy(locate(chosen.target), chosen.port, kept=chosen.kept))
    else:
        print(json.dumps(asyncio.run(calls(chosen.calls, chosen.addresses))))


if __name__ == "__main__":
    main()
