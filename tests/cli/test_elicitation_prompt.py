"""What an MCP server asks of a person at a terminal: whose question it is, answered by nobody else."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.cli.test_mcp import at_a_terminal

FAULTY = str(Path(__file__).parents[1] / "mcp" / "fault_server.py")


@pytest.fixture
def asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """A call of a tool whose server asks for a name meanwhile."""
    monkeypatch.setenv("TOOLFOLD_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    servers = {"nosy": {"command": sys.executable, "args": [FAULTY, "--fault", "asks-back"]}}
    settings = "--set", f"mcp.servers={json.dumps(servers)}", "--set", "mcp.wait_seconds=60"
    return *settings, "call", "mcp_nosy_echo", '{"text": "now"}'


def test_the_answer_of_a_person_reaches_the_server(asks: tuple[str, ...]) -> None:
    shown = at_a_terminal(*asks, typed=b"y\nAda\n", after=b"Answer it?")
    assert "The MCP server nosy asks you something" in shown
    assert "Your name?" in shown
    assert "Ada" in shown.rpartition("result")[2]


def test_no_is_told_to_the_server(asks: tuple[str, ...]) -> None:
    shown = at_a_terminal(*asks, typed=b"\n", after=b"Answer it?")
    assert "decline" in shown.rpartition("result")[2]


def test_without_a_terminal_nobody_is_asked(asks: tuple[str, ...]) -> None:
    import subprocess

    program = [str(Path(sys.executable).with_name("toolfold")), *asks]
    done = subprocess.run(
        program,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=os.environ,
        timeout=240,
        check=False,
    )
    assert "accept" not in done.stdout
    assert "asks you" not in done.stderr
