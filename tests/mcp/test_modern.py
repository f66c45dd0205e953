"""A server of the newest revision: connected without a handshake, with change notifications."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RuntimeOpener
from tests.mcp import servers

SERVER = Path(__file__).with_name("modern_server.py")
TIMEOUT_S = 60.0
NEWEST = "2026-07-28"


@pytest.fixture(params=["stdio", "http"])
def entry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    if request.param == "stdio":
        yield {"command": sys.executable, "args": [str(SERVER)], "trust": "off"}
        return
    # A shell passes the port, which is known only at start, as an argument.
    words = ("sh", "-c", 'exec "$0" "$1" "$PORT"', sys.executable, str(SERVER))
    with servers.run_http_server(words, lambda port: {"PORT": str(port)}, "/mcp", tmp_path / "log") as server:
        yield {"url": server.url, "trust": "off"}


CHANGING_SERVER = """
import json, sys

def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

names, listening = ["first"], None
for line in sys.stdin:
    asked = json.loads(line)
    id_, method = asked.get("id"), asked["method"]
    if method == "server/discover":
        result = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {"listChanged": True}}}
    elif method == "subscriptions/listen":
        listening = asked
        continue
    elif method == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
    else:
        continue
    send(id=id_, result={**result, "ttlMs": 0, "cacheScope": "private"})
    if method == "tools/list" and listening:
        names.append("arrived_late")
        about = {"io.modelcontextprotocol/subscriptionId": listening["id"]}
        told = {"notifications": listening["params"]["notifications"], "_meta": about}
        send(method="notifications/subscriptions/acknowledged", params=told)
        listening = None
"""


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.thorough(keep=1)
def test_tool_added_by_a_server_with_the_newest_protocol_revision_is_offered_to_the_session(
    open_test_runtime: RuntimeOpener, entry: dict[str, Any]
) -> None:
    runtime = open_test_runtime({"mcp.servers": {"it": entry}, "mcp.wait_seconds": TIMEOUT_S})
    session = runtime.session(["all"])
    assert [state.protocol for state in runtime.mcp.states()] == [NEWEST]
    assert json.loads(session.call_sync("mcp_it_echo", {"text": "hello"}).text) == {"result": "hello"}
    before = session.assemble()
    assert not session.call_sync("mcp_it_grow", {}).error
    wait_until(lambda: "mcp_it_arrived_late" in session.assemble().offered_names)
    assert "mcp_it_arrived_late" not in before.offered_names
    assert json.loads(session.call_sync("mcp_it_arrived_late", {}).text) == {"result": "here"}


def test_tool_added_between_the_first_tool_list_and_the_change_subscription_is_offered(
    open_test_runtime: RuntimeOpener, tmp_path: Path
) -> None:
    program = tmp_path / "changing.py"
    program.write_text(CHANGING_SERVER)
    entry = {"command": sys.executable, "args": [str(program)], "trust": "off"}
    session = open_test_runtime({"mcp.servers": {"it": entry}, "mcp.wait_seconds": TIMEOUT_S}).session(
        ["all"]
    )
    wait_until(lambda: "mcp_it_arrived_late" in session.assemble().offered_names)


@pytest.mark.thorough
def test_interrupted_subscription_to_tool_list_changes_is_reopened(
    open_test_runtime: RuntimeOpener, tmp_path: Path
) -> None:
    words = ("sh", "-c", 'exec "$0" "$1" "$PORT"', sys.executable, str(SERVER))
    port = 0

    def at(given: int) -> dict[str, str]:
        nonlocal port
        port = given
        return {"PORT": str(given)}

    with servers.run_http_server(words, at, "/mcp", tmp_path / "log") as server:
        settings = {"mcp.servers": {"it": {"url": server.url, "trust": "off"}}, "mcp.wait_seconds": TIMEOUT_S}
        session = open_test_runtime(settings).session(["all"])
        assert "mcp_it_echo" in session.assemble().offered_names
    again = (sys.executable, str(SERVER), str(port))
    with servers.run_at_port(port, again, tmp_path / "log"):
        wait_until(lambda: not session.call_sync("mcp_it_echo", {"text": "hello"}).error)
        assert not session.call_sync("mcp_it_grow", {}).error
        wait_until(lambda: "mcp_it_arrived_late" in session.assemble().offered_names)
