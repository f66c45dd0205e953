"""`toolfold mcp status`, with running gateways."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Toolfold
from tests.cli.test_mcp import SmallServer
from toolfold.config import load_config, set_value
from toolfold.serving.gateway.status import read_statuses

WAIT_S = 120.0


@pytest.fixture
def gateway(home: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A gateway over stdio in a separate process, with a small server."""
    command = SmallServer(tmp_path).command
    set_value(
        load_config().paths.user_file, "mcp.servers.small", {"command": command[0], "args": command[1:]}
    )
    program = str(Path(sys.executable).with_name("toolfold"))
    process = subprocess.Popen(
        [program, "mcp", "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def send_request(process: subprocess.Popen[str], number: int, method: str, **params: Any) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()
    while json.loads(process.stdout.readline()).get("id") != number:
        pass


def connect(process: subprocess.Popen[str]) -> None:
    about = {"name": "probe", "version": "1"}
    send_request(process, 1, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=about)
    assert process.stdin is not None
    process.stdin.write('{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
    send_request(process, 2, "tools/list")


def status_with_client(toolfold: Toolfold) -> Any:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = toolfold("mcp", "status", "--json").json
        if found and found[0].get("clients"):
            return found
        time.sleep(0.2)
    raise AssertionError("the gateway reported no client")


def test_mcp_status_shows_servers_and_clients_of_a_running_gateway(
    gateway: subprocess.Popen[str], toolfold: Toolfold
) -> None:
    connect(gateway)
    (found,) = status_with_client(toolfold)
    assert found["pid"] == gateway.pid
    (server,), (client,) = found["servers"], found["clients"]
    assert (server["name"], server["tools"]) == ("small", 2)
    assert (client["name"], client["toolsets"], client["busy"]) == ("probe", None, False)
    assert client["tools"] >= 2
    shown = toolfold("mcp", "status").out
    assert "probe" in shown
    assert "small" in shown
    (file,) = (load_config().paths.state_dir / "gateway/status").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_mcp_status_prints_the_same_number_of_usable_tools_as_the_tools_list_command(
    gateway: subprocess.Popen[str], toolfold: Toolfold
) -> None:
    toolfold("mcp", "disable", "small", "write")
    toolfold("tools", "disable", "small_read")
    connect(gateway)
    deadline = time.monotonic() + WAIT_S
    while (server := status_with_client(toolfold)[0]["servers"][0])["tools"] and time.monotonic() < deadline:
        time.sleep(0.2)
    listed = toolfold("tools", "list", "--toolset", "mcp-small", "--json").json
    assert (server["tools"], server["listed"]) == (len(listed), 2)
    assert listed == []
    shown = toolfold("mcp", "status")
    assert "usable" in shown.out
    assert "listed: tools that the server itself lists" in " ".join(shown.err.split())


@pytest.mark.thorough
def test_mcp_status_does_not_list_a_stopped_gateway(
    gateway: subprocess.Popen[str], toolfold: Toolfold
) -> None:
    connect(gateway)
    status_with_client(toolfold)
    assert gateway.stdin is not None
    gateway.stdin.close()
    gateway.wait(WAIT_S)
    assert list((load_config().paths.state_dir / "gateway/status").iterdir()) == []
    assert "no gateway is running" in toolfold("mcp", "status").out


def test_mcp_status_ignores_status_files_that_are_invalid_or_belong_to_ended_processes(
    tmp_path: Path,
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / f"{ended.pid}.json").write_text(json.dumps({"pid": ended.pid}))
    (tmp_path / "1x.json").write_text("{}")
    own = tmp_path / f"{os.getpid()}.json"
    for text in ("", "[", "[]", '{"pid": 1}'):
        own.write_text(text)
        assert read_statuses(tmp_path) == []
    own.write_text(json.dumps({"pid": os.getpid()}))
    assert read_statuses(tmp_path) == [{"pid": os.getpid()}]
    assert read_statuses(tmp_path / "missing") == []
