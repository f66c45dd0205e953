"""Clients of a gateway process, and `toolfold` commands of its user in another process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.gateway.gateway_process import environment, gateway_process
from tests.gateway.harness import TIMEOUT_S


class ListChanges:
    """Counts the notifications that the list of tools has changed."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, message: Any) -> None:
        self.count += type(message).__name__.startswith("ToolListChanged")

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while self.count < count:  # noqa: ASYNC110 - a condition of another task
                await asyncio.sleep(0.02)


async def tool_names(client: Client) -> list[str]:
    return [tool.name for tool in (await client.list_tools()).tools]


async def wait_for_tools(client: Client, *names: str) -> None:
    """Wait until the client is shown exactly these tools."""
    async with asyncio.timeout(TIMEOUT_S):
        while (found := await tool_names(client)) != list(names):
            assert found is not None
            await asyncio.sleep(0.05)


async def run_toolfold(home: Path, *words: str) -> None:
    """Run a command as the user does in another terminal."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "toolfold", *words),
        cwd=home,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


@asynccontextmanager
async def connect_stdio(home: Path, changes: ListChanges) -> AsyncIterator[Client]:
    """Start a gateway over stdio and connect a client to it."""
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "toolfold", "mcp", "serve"], env=environment(home), cwd=str(home)
    )
    async with Client(command, mode="legacy", message_handler=changes) as client:
        yield client


@asynccontextmanager
async def connect_http(home: Path, changes: ListChanges) -> AsyncIterator[Client]:
    """Start a gateway over HTTP and connect a client to it, with an open notification stream."""
    is_listening = asyncio.Event()

    async def detect_stream(response: httpx2.Response) -> None:
        if response.request.method == "GET":
            is_listening.set()

    hooks: dict[str, list[Any]] = {"response": [detect_stream]}
    with gateway_process(home) as gateway:
        async with (
            httpx2.AsyncClient(timeout=TIMEOUT_S, event_hooks=hooks) as http,
            Client(
                streamable_http_client(gateway.url, http_client=http), mode="legacy", message_handler=changes
            ) as client,
        ):
            await is_listening.wait()
            yield client
