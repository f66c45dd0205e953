"""`toolfold mcp logs`, with a running gateway."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Toolfold
from toolfold.config import set_value

NOTES = str(Path(__file__).parents[1] / "clients" / "notes_server.py")
PROGRAM = str(Path(sys.executable).with_name("toolfold"))
WAIT_S = 120.0
HANDSHAKE: list[dict[str, Any]] = [
    {
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "probe", "version": "1"},
        },
    },
    {"method": "notifications/initialized"},
]


@pytest.fixture
def home_with_notes(home: Path, tmp_path: Path) -> Path:
    server = {"command": sys.executable, "args": [NOTES, str(tmp_path / "record")]}
    set_value(home / "config.yaml", "mcp.servers.notes", server)
    set_value(home / "config.yaml", "mcp.wait_seconds", 60.0)
    return home


def run_gateway(*calls: tuple[str, dict[str, str]]) -> None:
    """Start a gateway over stdio, call tools, and end it."""
    requests: list[dict[str, Any]] = [
        {"id": number, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls, 2)
    ]
    process = subprocess.Popen(
        [PROGRAM, "mcp", "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        for message in [*HANDSHAKE, *requests]:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        process.stdin.flush()
        missing = {request["id"] for request in requests}
        while missing:
            missing.discard(json.loads(process.stdout.readline()).get("id"))
    finally:
        process.communicate(timeout=WAIT_S)


@pytest.fixture
def follower(home_with_notes: Path) -> Iterator[queue.Queue[str]]:
    """Lines that `toolfold mcp logs --follow` prints; it has started to follow when the test begins."""
    process = subprocess.Popen(
        [PROGRAM, "mcp", "logs", "--follow"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert "has any log output yet" in process.stderr.readline()
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    yield lines
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_S) == 0
    reader.join(WAIT_S)
    process.stdout.close()
    process.stderr.close()


def test_mcp_logs_with_option_gateway_prints_log_lines_about_clients_and_calls_and_server_starts(
    home_with_notes: Path, toolfold: Toolfold
) -> None:
    run_gateway(("notes_echo", {"text": "hello"}), ("notes_delete_note", {"text": "draft"}))
    shown = toolfold("mcp", "logs", "--gateway").out
    for text in (
        "started at standard input and output; servers: notes",
        "MCP server 'notes' started in",
        "client probe: connected, may use ",
        "client probe: the call of notes_echo succeeded after ",
        "client probe: the call of notes_delete_note failed after ",
        "toolfold approvals allow notes_delete_note",
        "gateway ended after",
    ):
        assert text in shown
    assert "hello" not in shown  # neither arguments nor results are logged
    path = Path(toolfold("mcp", "logs", "--gateway", "--path").out.strip())
    assert path.stat().st_mode & 0o777 == 0o600
    assert "gateway ended after" in toolfold("mcp", "logs").out
    assert toolfold("mcp", "logs", "--gateway", "-n", "1").out.count("\n") == 1
    assert toolfold("mcp", "logs", "notes", "--gateway").code == 2


@pytest.mark.thorough
def test_mcp_logs_with_option_follow_prints_log_lines_of_gateways_started_later(
    follower: queue.Queue[str],
) -> None:
    for _ in range(2):
        run_gateway(("notes_echo", {"text": "hello"}))
        for text in ("started at standard input and output", "client probe: notes_echo", "gateway ended"):
            while text not in (line := follower.get(timeout=WAIT_S)):
                pass
            assert line.startswith("gateway: ")


def test_mcp_logs_with_option_gateway_reports_that_the_gateway_has_no_log_output_yet(
    home: Path, toolfold: Toolfold
) -> None:
    done = toolfold("mcp", "logs", "--gateway")
    assert (done.code, done.out) == (0, "")
    assert "gateway has no log output yet" in done.err
