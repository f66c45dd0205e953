"""Questions of MCP servers to the user at a terminal."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.cli.test_mcp import run_at_terminal

FAULTY = str(Path(__file__).parents[1] / "mcp" / "fault_server.py")


@pytest.fixture
def call_with_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Arguments of a call during which the server asks for a name."""
    monkeypatch.setenv("TOOLFOLD_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    servers = {"nosy": {"command": sys.executable, "args": [FAULTY, "--fault", "asks-back"]}}
    settings = "--set", f"mcp.servers={json.dumps(servers)}", "--set", "mcp.wait_seconds=60"
    return *settings, "call", "mcp_nosy_echo", '{"text": "now"}'


def test_answer_typed_by_the_user_to_an_elicitation_is_sent_to_the_mcp_server(
    call_with_question: tuple[str, ...],
) -> None:
    shown = run_at_terminal(*call_with_question, typed=b"y\nAda\n", after=b"Answer it?")
    assert "The MCP server nosy asks for information" in shown
    assert "Your name?" in shown
    assert "Ada" in shown.rpartition("result")[2]


@pytest.mark.thorough
def test_declining_an_elicitation_at_the_terminal_sends_a_decline_response_to_the_mcp_server(
    call_with_question: tuple[str, ...],
) -> None:
    shown = run_at_terminal(*call_with_question, typed=b"\n", after=b"Answer it?")
    assert "decline" in shown.rpartition("result")[2]


@pytest.mark.thorough
def test_elicitation_request_of_an_mcp_server_is_not_shown_to_the_user_without_a_terminal(
    call_with_question: tuple[str, ...],
) -> None:
    import subprocess

    program = [str(Path(sys.executable).with_name("toolfold")), *call_with_question]
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
    assert "asks for" not in done.stderr
