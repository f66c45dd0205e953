"""Count the tokens of tool listings of 58 real servers: connected one by one, and through the gateway.

    python benchmarks/gateway_tokens.py [--servers FOLDER] [--picture FILE] [--json]

The folder holds `tools/list` answers of MCP servers, one JSON file each; without it, `../shared/mcp` beside
the project, and where that is missing there is nothing to measure. Every file is served as an MCP server of
its own over HTTP. The official SDK's client lists the tools of each of them, and then those of `toolfold
serve` in front of all. Counted are each tool's name, description and input schema as compact JSON, by o200k.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import mcp_types
import uvicorn
from mcp import Client
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.routing import Route

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from measuring.peers import print_progress
from tests.mcp.servers import run_http_server

from toolfold.selection.turn.tokens import TokenCounter, compact

CURRENT_DIRECTORY = Path(__file__).resolve().parent.parent
SERVERS = CURRENT_DIRECTORY.parent / "shared" / "mcp"
PICTURE = CURRENT_DIRECTORY / "docs" / "figures" / "gateway.svg"
TOOLFOLD = str(Path(sys.executable).with_name("toolfold"))
WINDOW = 200_000
Listed = Sequence[mcp_types.Tool]


def answers(folder: Path) -> dict[str, list[mcp_types.Tool]]:
    """Return the tools of each server, by the server's name."""
    read = (json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json")))
    return {each["server"]: [mcp_types.Tool.model_validate(tool) for tool in each["tools"]] for each in read}


def static(name: str, tools: Listed) -> StreamableHTTPSessionManager:
    """Return a server that lists the given tools and whose tools are never called."""

    async def listed(_context: Any, _params: Any) -> mcp_types.ListToolsResult:
        return mcp_types.ListToolsResult(tools=list(tools))

    return StreamableHTTPSessionManager(Server(name, on_list_tools=listed), json_response=True)


@contextmanager
def served(known: Mapping[str, Listed]) -> Iterator[dict[str, str]]:
    """Run every server in this process, each at its own URL."""
    managers = {name: static(name, tools) for name, tools in known.items()}

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for manager in managers.values():
                await stack.enter_async_context(manager.run())
            yield

    routes = [Route(f"/{name}/mcp", StreamableHTTPASGIApp(each)) for name, each in managers.items()]
    app = Starlette(routes=routes, lifespan=lifespan)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield {name: f"http://127.0.0.1:{port}/{name}/mcp" for name in known}
    finally:
        server.should_exit = True
        thread.join(10)


async def listed(url: str) -> list[mcp_types.Tool]:
    """List all tools at a URL."""
    async with Client(url) as client:
        tools: list[mcp_types.Tool] = []
        cursor = None
        while True:
            page = await client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None:
                return tools


def gateway(urls: Mapping[str, str], folder: Path) -> Any:
    """Run `toolfold serve` with default settings in front of all servers, with their listings cached."""
    file = folder / "settings.yaml"
    settings = {"mcp": {"servers": {name: {"url": url} for name, url in urls.items()}}}
    file.write_text(json.dumps(settings), encoding="utf-8")
    env = {"TOOLFOLD_HOME": str(folder), "TOOLFOLD_CONFIG": str(file)}
    tested = subprocess.run(
        [TOOLFOLD, "mcp", "test", "--json"], env={**os.environ, **env}, capture_output=True, text=True
    )
    seen = json.loads(tested.stdout)
    tools, held = (sum(len(each[key]) for each in seen) for key in ("tools", "held"))
    print_progress(f"toolfold has seen {tools} tools, {held} of them held for review")
    words = ("sh", "-c", f'exec {TOOLFOLD} serve --port "$PORT"')
    return run_http_server(words, lambda port: {"PORT": str(port), **env}, "/mcp", folder / "gateway.log")


def tokens(tools: Listed, counter: TokenCounter) -> int:
    """Return the number of tokens of the tool definitions, as they are sent to a model."""
    return sum(
        counter.text(
            compact(
                {"name": each.name, "description": each.description or "", "parameters": each.input_schema}
            )
        )
        for each in tools
    )


async def measure(folder: Path) -> dict[str, Any]:
    counter = TokenCounter()
    known = answers(folder)
    with served(known) as urls, tempfile.TemporaryDirectory(prefix="tf-") as name:
        before = {server: await listed(url) for server, url in urls.items()}
        print_progress(f"{len(before)} servers listed; now the gateway in front of them")
        with gateway(urls, Path(name)) as front:
            after = await listed(front.url)
    return {
        "servers": {server: tokens(tools, counter) for server, tools in before.items()},
        "tools": sum(map(len, before.values())),
        "before": sum(tokens(tools, counter) for tools in before.values()),
        "after": tokens(after, counter),
        "shown": [tool.name for tool in after],
    }


def picture(result: Mapping[str, Any]) -> str:
    """Draw the token counts without and with the gateway as bars of the same scale."""
    wide, left, top = 860, 20, 74
    scale = (wide - 2 * left) / result["before"]
    parts, across = [], float(left)
    shades = ("#d9822b", "#e8a35c")
    for place, (name, count) in enumerate(sorted(result["servers"].items(), key=lambda it: -it[1])):
        width = count * scale
        parts.append(
            f'<rect x="{across:.1f}" y="{top}" width="{width:.1f}" height="44" fill="{shades[place % 2]}">'
            f"<title>{escape(name)}: {count:,} tokens</title></rect>"
        )
        if width > 8 * len(name):
            middle = across + width / 2
            parts.append(
                f'<text x="{middle:.1f}" y="{top + 27}" text-anchor="middle" class="in">{escape(name)}</text>'
            )
        across += width
    edge = left + WINDOW * scale
    share = result["after"] / result["before"]
    parts += [
        f'<line x1="{edge:.1f}" y1="{top - 6}" x2="{edge:.1f}" y2="{top + 50}" class="edge"/>',
        f'<text x="{edge:.1f}" y="{top + 64}" text-anchor="middle" class="note">'
        f"a window of {WINDOW:,} tokens ends here</text>",
        f'<rect x="{left}" y="{top + 104}" width="{max(2.0, result["after"] * scale):.1f}" height="44"'
        ' fill="#1f5fa8"/>',
        f'<text x="{left}" y="{top - 12}" class="head">{len(result["servers"])} servers, each by itself: '
        f"{result['tools']:,} tools, {result['before']:,} tokens</text>",
        f'<text x="{left}" y="{top + 92}" class="head">the same servers behind toolfold: '
        f"{len(result['shown'])} tools, {result['after']:,} tokens</text>",
        f'<text x="{left + 14}" y="{top + 131}" class="note">{share:.2%} of it: '
        f"{escape(', '.join(result['shown']))}, through which the rest is found and called</text>",
        f'<text x="{left}" y="28" class="title">What a client’s tools/list costs its model</text>',
    ]
    style = (
        "text{font-family:system-ui,sans-serif;fill:#24292f}.title{font-size:18px;font-weight:600}"
        ".head{font-size:14px}.note{font-size:12px;fill:#57606a}.in{font-size:11px;fill:#fff}"
        ".edge{stroke:#24292f;stroke-width:1.5;stroke-dasharray:4 3}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} 240" width="{wide}" height="240">'
        f'<style>{style}</style><rect width="{wide}" height="240" rx="8" fill="#ffffff"/>'
        f"{''.join(parts)}</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", type=Path, default=SERVERS)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    if not chosen.servers.is_dir():
        print(f"left out: the answers of real servers ({chosen.servers}) are not here", file=sys.stderr)
        return
    result = asyncio.run(measure(chosen.servers))
    chosen.picture.write_text(picture(result), encoding="utf-8")
    if chosen.json:
        print(json.dumps(result, indent=1))
        return
    print(f"{len(result['servers'])} servers, {result['tools']} tools: {result['before']:,} tokens")
    shown = ", ".join(result["shown"])
    print(f"behind the gateway, {len(result['shown'])} tools ({shown}): {result['after']:,} tokens")
    print(f"{1 - result['after'] / result['before']:.2%} less; drawn to {chosen.picture}")


if __name__ == "__main__":
    main()
