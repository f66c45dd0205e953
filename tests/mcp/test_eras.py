"""Servers of old and new revisions that omit optional fields or require a login during a call."""

from __future__ import annotations

import asyncio
import json
import queue
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RuntimeOpener
from toolfold import Runtime
from toolfold.core.types import Json
from toolfold.mcp.oauth.login_store import FileLoginStore, Login

TERSE = """
import json, sys
tools = [{"name": "say", "description": "Say it.", "inputSchema": {"type": "object"}}]
results = {
    "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}},
    "tools/list": {"tools": tools},
    "tools/call": {"content": [{"type": "text", "text": "said"}]},
}
for line in sys.stdin:
    asked = json.loads(line)
    result = results.get(asked["method"])
    if "id" in asked:
        said = {"result": {**result, "ttlMs": 0, "cacheScope": "private"}} if result else {
            "error": {"code": -32601, "message": "no"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
"""


def test_tool_result_without_a_result_type_is_treated_as_complete_in_the_newest_protocol_revision(
    open_test_runtime: RuntimeOpener, tmp_path: Path
) -> None:
    program = tmp_path / "terse.py"
    program.write_text(TERSE)
    runtime = open_with_server(open_test_runtime, {"command": sys.executable, "args": [str(program)]})
    assert call_tool(runtime, "say")["result"] == "said"
    assert runtime.mcp.states()[0].protocol == "2026-07-28"


@pytest.fixture
def token_server() -> Iterator[type[TokenServer]]:
    with ThreadingHTTPServer(("127.0.0.1", 0), TokenServer) as server:
        TokenServer.good, TokenServer.events = {"old", "new"}, queue.Queue()
        TokenServer.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield TokenServer
        TokenServer.events.put(None)
        server.shutdown()


async def test_call_of_a_tool_that_requires_a_login_fails_without_affecting_other_calls_to_the_server(
    open_test_runtime: RuntimeOpener, token_server: type[TokenServer]
) -> None:
    runtime = open_with_server(open_test_runtime, {"url": f"{token_server.url}/mcp"})
    session = runtime.session(["mcp-it"])
    slow, refused = await asyncio.gather(session.call("mcp_it_slow"), session.call("mcp_it_secret"))
    assert json.loads(slow.text)["result"] == "slow"
    assert json.loads(refused.text)["kind"] == "needs-login"
    assert (await session.call("mcp_it_quick")).ok
    assert runtime.mcp.states()[0].state == "up"


@pytest.mark.parametrize(("way", "path"), [("http", "/mcp"), ("sse", "/sse")])
def test_call_succeeds_with_a_refreshed_token_after_the_server_rejects_the_old_token(
    open_test_runtime: RuntimeOpener, token_server: type[TokenServer], way: str, path: str
) -> None:
    url = token_server.url + path
    store_login(open_test_runtime, url, f"{token_server.url}/token")
    runtime = open_with_server(open_test_runtime, {"url": url, "transport": way})
    assert call_tool(runtime, "quick")["result"] == "quick"
    token_server.good = {"new"}
    assert call_tool(runtime, "quick")["result"] == "quick"


def open_with_server(opened: RuntimeOpener, server: Json) -> Runtime:
    return opened(
        {"mcp": {"wait_seconds": 30, "servers": {"it": server}}, "approval": {"mode": "off"}},
    )


def store_login(opened: RuntimeOpener, url: str, token_endpoint: str) -> None:
    """Store a login, as if the user had logged in before."""
    folder = opened().config.paths.state_dir / "oauth"
    FileLoginStore(folder).save(
        Login(
            server="it",
            url=url,
            issuer=url,
            client={"client_id": "us", "redirect_uris": ["http://127.0.0.1/callback"]},
            tokens={"access_token": "old", "token_type": "Bearer", "refresh_token": "again"},
            obtained=time.time(),
            metadata={
                "issuer": url,
                "authorization_endpoint": token_endpoint,
                "token_endpoint": token_endpoint,
            },
        ),
        is_new=True,
    )


def call_tool(runtime: Runtime, tool: str) -> Any:
    return json.loads(runtime.session(["mcp-it"]).call_sync(f"mcp_it_{tool}").text)


class TokenServer(BaseHTTPRequestHandler):
    """A server of an older revision, over both HTTP transports, that accepts only some tokens."""

    protocol_version = "HTTP/1.1"
    url: str
    good: set[str]
    events: queue.Queue[Json | None]

    def do_GET(self) -> None:
        if self.path != "/sse":
            self._reply(405)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self._tell("endpoint", "/messages")
        while (event := self.events.get()) is not None:
            self._tell("message", json.dumps(event))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/token":
            self._reply(200, {"access_token": "new", "token_type": "Bearer", "expires_in": 3600})
            return
        asked = json.loads(body)
        tool = asked.get("params", {}).get("name")
        token = self.headers.get("Authorization", "Bearer old").removeprefix("Bearer ")
        if tool == "secret" or token not in self.good:
            self._reply(401)
        elif "id" not in asked:
            self._reply(202)
        elif self.path == "/messages":
            self.events.put(respond(asked))
            self._reply(202)
        else:
            time.sleep(0.5 if tool == "slow" else 0)
            self._reply(200, respond(asked))

    def log_message(self, *_: object) -> None:
        return None

    def _tell(self, event: str, data: str) -> None:
        self.wfile.write(f"event: {event}\ndata: {data}\n\n".encode())
        self.wfile.flush()

    def _reply(self, status: int, said: Json | None = None) -> None:
        body = json.dumps(said).encode() if said is not None else b""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def respond(asked: Json) -> Json:
    tools = [{"name": each, "inputSchema": {"type": "object"}} for each in ("quick", "slow", "secret")]
    results: dict[str, Json] = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "locked", "version": "1"},
        },
        "tools/list": {"tools": tools},
        "tools/call": {"content": [{"type": "text", "text": asked.get("params", {}).get("name")}]},
        "ping": {},
    }
    known = results.get(asked["method"])
    said = {"error": {"code": -32601, "message": "no"}} if known is None else {"result": known}
    return {"jsonrpc": "2.0", "id": asked["id"], **said}
