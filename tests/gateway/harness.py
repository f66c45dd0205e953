"""A gateway for tests: a real runtime with real servers behind it, on a real port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from toolfold import load_config
from toolfold.gateway.http_app import make_access_policy, make_app, make_server_config
from toolfold.gateway.tokens import Tokens
from toolfold.runtime import Runtime, open_runtime

FAULTY = str(Path(__file__).parents[1] / "mcp" / "fault_server.py")
ERAS = ("legacy", "2026-07-28")
PATIENCE = 60.0


def faulty(*words: str, **settings: Any) -> dict[str, Any]:
    """A server that does one thing wrong, as the configuration has it."""
    return {"command": sys.executable, "args": [FAULTY, *words], **settings}


@dataclass
class Served:
    url: str
    runtime: Runtime
    tokens: Tokens

    @asynccontextmanager
    async def client(self, era: str = "legacy", *, token: str = "", **options: Any) -> AsyncIterator[Client]:
        """One that hears whatever it is told: an older one is given when its stream of news is there."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        listens = asyncio.Event()

        async def look(response: httpx2.Response) -> None:
            if response.request.method == "GET":
                listens.set()

        hooks: dict[str, list[Any]] = {"response": [look]}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=PATIENCE, event_hooks=hooks) as http,
            Client(streamable_http_client(self.url, http_client=http), mode=era, **options) as client,
        ):
            if era == "legacy":
                await listens.wait()
            yield client


@contextmanager
def serving(home: Path, servers: dict[str, Any], **overrides: Any) -> Iterator[Served]:
    """A gateway in front of these servers, which takes clients with and without a token."""
    settings = {"mcp.servers": servers, "mcp.wait_seconds": 60.0, **overrides}
    config = load_config(overrides=settings, env={"TOOLFOLD_HOME": str(home), "PATH": "/usr/bin:/bin"})
    tokens = Tokens(home / "tokens.json")
    with open_runtime(config, behind_gateway=True) as runtime, _listening() as listening:
        guard = make_access_policy(
            "127.0.0.1", tokens, toolsets=None, hosts=(), origins=(), allow_anonymous=True
        )
        server = uvicorn.Server(make_server_config(make_app(runtime, guard), log_level="error"))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        _until(lambda: server.started)
        try:
            yield Served(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", runtime, tokens)
        finally:
            server.should_exit = server.force_exit = True
            thread.join(20)


@contextmanager
def _listening() -> Iterator[socket.socket]:
    with contextlib.closing(socket.socket()) as listening:
        listening.bind(("127.0.0.1", 0))
        yield listening


def _until(condition: Any) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


def words(result: Any) -> str:
    """The text of a result."""
    return "\n".join(block.text for block in result.content if block.type == "text")


until = _until


def free_port() -> int:
    """A port that nobody listens on just now."""
    with _listening() as listening:
        return int(listening.getsockname()[1])
