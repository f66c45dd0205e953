"""The gateway in real MCP clients, each driven by a scripted model: listing, calls, approval, crashes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.clients.model_server import Call, ModelServer, Say, Step, serve_model
from tests.clients.programs import PROGRAMS, ClientProgram, Home
from toolfold.model import BRIDGE_CALL, BRIDGE_DESCRIBE, BRIDGE_SEARCH

TASK = "MARKED-TASK: use the notes"
BRIDGE = {BRIDGE_CALL, BRIDGE_DESCRIBE, BRIDGE_SEARCH}

pytestmark = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)


RunClient = Callable[..., "Run"]


@dataclass
class Run:
    """One finished run of a client."""

    model: ModelServer
    process: subprocess.CompletedProcess[str]
    record: Path

    def results(self) -> list[str]:
        """Return the tool results that the model received."""
        results = self.model.tool_results()
        assert results, (
            f"no tool result; the client printed {self.process.stdout[-2000:]}{self.process.stderr[-2000:]}"
        )
        return results

    def calls(self) -> list[str]:
        """Return the calls that reached the MCP server."""
        return self.record.read_text().splitlines() if self.record.exists() else []


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "project").mkdir()
    return Home(tmp_path / "home", tmp_path / "project")


@pytest.fixture
def run_client(home: Home, tmp_path: Path) -> RunClient:
    """Return a function that runs a script in a client connected with `toolfold connect`.

    `commands` are toolfold commands to run first.
    """

    def run(program: ClientProgram, script: Sequence[Step], *commands: Sequence[str]) -> Run:
        command = program.command(TASK)
        record = tmp_path / "record"
        with serve_model(TASK, script) as model:
            user = connect(program, home, model.url, record)
            for each in commands:
                done = user.run("toolfold", *each)
                assert done.returncode == 0, done.stdout + done.stderr
            return Run(model, user.run(*command), record)

    return run


def connect(program: ClientProgram, home: Home, model_url: str, record: Path) -> Home:
    """Set up Toolfold and the client as a user would."""
    server = {
        "command": sys.executable,
        "args": [str(Path(__file__).with_name("notes_server.py")), str(record)],
    }
    settings = {"mcp": {"servers": {"notes": server}}, "tools": {"tool_search": {"enabled": "on"}}}
    home.write(".toolfold/config.yaml", json.dumps(settings))
    user = replace(home, variables=program.configure_model(home, model_url))
    for arguments in (("mcp", "test"), ("connect", program.name, "--yes")):
        done = user.run("toolfold", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
    program.allow_tools(user)
    return user


def test_tools_are_listed_found_and_called(program: ClientProgram, run_client: RunClient) -> None:
    search = Call(BRIDGE_SEARCH, {"query": "echo a message"})
    call = Call(BRIDGE_CALL, {"name": "notes_echo", "arguments": {"text": "hello from the client"}})
    run = run_client(program, [search, call, Say("done")])
    found, called = run.results()
    assert "notes_echo" in found
    assert "echo: hello from the client" in called
    assert run.calls() == ["echo hello from the client"]
    listed = [tool.name for tool in run.model.listed_tools() if "toolfold" in tool.name + tool.namespace]
    assert len(listed) == len(BRIDGE)
    assert all(any(name.endswith(each) for each in BRIDGE) for name in listed)


DELETE = Call(BRIDGE_CALL, {"name": "notes_delete_note", "arguments": {"text": "draft"}})


def test_destructive_call_is_refused_with_the_command_that_allows_it(
    program: ClientProgram, run_client: RunClient
) -> None:
    run = run_client(program, [DELETE, Say("done")])
    (refusal,) = run.results()
    assert "notes_delete_note' was not run: " in refusal
    assert "declares that it can destroy data" in refusal
    assert "toolfold approvals allow notes_delete_note" in refusal
    assert "person" not in refusal  # no user saw a question
    assert run.calls() == []


def test_allowed_destructive_call_runs(program: ClientProgram, run_client: RunClient) -> None:
    run = run_client(program, [DELETE, Say("done")], ("approvals", "allow", "notes_delete_note"))
    assert "delete_note: draft" in run.results()[0]
    assert run.calls() == ["delete_note draft"]


def test_calls_work_again_after_a_server_crash(program: ClientProgram, run_client: RunClient) -> None:
    crash = Call(BRIDGE_CALL, {"name": "notes_crash", "arguments": {}})
    echo = Call(BRIDGE_CALL, {"name": "notes_echo", "arguments": {"text": "again"}})
    run = run_client(program, [crash, echo, Say("done")])
    _crashed, called = run.results()
    assert "echo: again" in called
    assert run.calls()[-1] == "echo again"
