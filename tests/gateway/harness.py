"""Gateway for tests: a real runtime with real servers behind it, on a real port."""

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
from toolfold.runtime.runtime import Runtime, open_runtime
from toolfold.serving.gateway.client_tokens import Tokens
from toolfold.serving.gateway.health import MetricsApp, ReplicaReadiness
from toolfold.serving.gateway.http_app import make_access_policy, make_app, make_server_config
from toolfold.serving.gateway.oauth import OAuthResource

FAULT_SERVER = str(Path(__file__).parents[1] / "mcp" / "fault_server.py")
REVISIONS = ("legacy", "2026-07-28")
TIMEOUT_S = 60.0


def fault_server(*args: str, **settings: Any) -> dict[str, Any]:
    """Return the settings of an MCP server that has the given fault."""
    return {"command": sys.executable, "args": [FAULT_SERVER, *args], **settings}


@dataclass
class RunningGateway:
    url: str
    runtime: Runtime
    tokens: Tokens

    @asynccontextmanager
    async def client(
        self, revision: str = "legacy", *, token: str = "", **options: Any
    ) -> AsyncIterator[Client]:
        """Connect a client; if its revision has a handshake, wait for its notification stream."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        is_listening = asyncio.Event()

        async def detect_stream(response: httpx2.Response) -> None:
            if response.request.method == "GET":
                is_listening.set()

        hooks: dict[str, list[Any]] = {"response": [detect_stream]}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=TIMEOUT_S, event_hooks=hooks) as http,
            Client(streamable_http_client(self.url, http_client=http), mode=revision, **options) as client,
        ):
            if revision == "legacy":
                await is_listening.wait()
            yield client


@contextmanager
def serve_gateway(home: Path, servers: dict[str, Any], **overrides: Any) -> Iterator[RunningGateway]:
    """Run a gateway with the given MCP servers, for clients with and without a token."""
    with _serve_gateway(home, servers, overrides, {"allow_anonymous": True}) as running:
        yield running


@contextmanager
def serve_protected_gateway(
    home: Path, servers: dict[str, Any], oauth: OAuthResource
) -> Iterator[RunningGateway]:
    """Run a gateway whose clients need a token or an access token."""
    with _serve_gateway(home, servers, {}, {"oauth": oauth}) as running:
        yield running


@contextmanager
def _serve_gateway(
    home: Path, servers: dict[str, Any], overrides: dict[str, Any], access: dict[str, Any]
) -> Iterator[RunningGateway]:
    settings = {"mcp.servers": servers, "mcp.wait_seconds": 60.0, **overrides}
    config = load_config(overrides=settings, env={"TOOLFOLD_HOME": str(home), "PATH": "/usr/bin:/bin"})
    tokens = Tokens(home / "tokens.json")
    with open_runtime(config, behind_gateway=True) as runtime, _bound_socket() as listening:
        policy = make_access_policy("127.0.0.1", tokens, toolsets=None, hosts=(), origins=(), **access)
        beside = (
            [MetricsApp(runtime.events, ReplicaReadiness(), tokens)] if config.telemetry.prometheus else []
        )
        app = make_app(runtime, policy, beside=beside)
        server = uvicorn.Server(make_server_config(app, log_level="error"))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        wait_until(lambda: server.started)
        try:
            yield RunningGateway(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", runtime, tokens)
        finally:
            server.should_exit = server.force_exit = True
            thread.join(20)


@contextmanager
def _bound_socket() -> Iterator[socket.socket]:
    with contextlib.closing(socket.socket()) as listening:
        listening.bind(("127.0.0.1", 0))
        yield listening


def wait_until(condition: Any) -> None:
    """Poll the condition until it is true; fail after TIMEOUT_S."""
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, "the condition was not met in time"
        time.sleep(0.02)


def result_text(result: Any) -> str:
    """Return the text blocks of a result."""
    return "\n".join(block.text for block in result.content if block.type == "text")


def free_port() -> int:
    """Return a port that is not in use now."""
    with _bound_socket() as listening:
        return int(listening.getsockname()[1])
