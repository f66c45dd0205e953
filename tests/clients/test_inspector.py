"""The gateway with the MCP Inspector: one-shot requests over HTTP and stdio, and connections of `mcpdo`.

The one-shot command line connects for each request and supports no forms. `mcpdo` keeps a connection in a
background process, and reports a form as pending until another command answers it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.clients.programs import Home, node_program
from tests.clients.scenario import (
    ANSWERS,
    BRIDGE,
    CHECKS,
    CHECKS_WITH_FORMS,
    DELETE,
    STEPS,
    STEPS_WITH_FORMS,
    Json,
    Outcome,
    Request,
    call_through_bridge,
    read_calls,
    run_checks,
    write_settings,
)
from tests.gateway.gateway_process import gateway_process

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]
GATEWAY = ("toolfold", "mcp", "serve")
CONNECT_TIMEOUT_MS = "300000"


def inspector_program(path: str) -> Sequence[str]:
    """Return the command of a program of the Inspector. Skips the test if it is not installed."""
    command = node_program(f"@modelcontextprotocol/inspector/clients/{path}")
    if not all(Path(each).exists() for each in command):
        pytest.skip("the MCP Inspector is not installed: `make test-tools` installs it")
    return command


@dataclass(frozen=True)
class OneShot:
    """The Inspector's command line, which connects to a target, makes one request and disconnects."""

    home: Home
    target: Sequence[str]

    def send(self, method: str, *arguments: str) -> Json:
        """Make a request and return its result."""
        options = ("--cli", "--format", "json", "--connect-timeout", CONNECT_TIMEOUT_MS)
        program = inspector_program("launcher/build/index.js")
        done = self.home.run(*program, *options, *self.target, "--method", method, *arguments)
        assert done.stdout, done.stderr
        result: Json = json.loads(done.stdout)["result"]
        return result

    def list_names(self) -> list[str]:
        return [each["name"] for each in self.send("tools/list")["tools"]]

    def call(self, request: Request) -> str:
        """Call a tool and return the text of its result."""
        arguments = ("--tool-name", request.tool, "--tool-args-json", json.dumps(request.arguments))
        return result_text(self.send("tools/call", *arguments))


@dataclass
class Connection:
    """A connection that `mcpdo` keeps open, and the answers to the forms that arrive on it."""

    run: Callable[..., Json]
    answers: Iterator[str] = field(default_factory=lambda: iter(ANSWERS))
    questions: list[str] = field(default_factory=list)

    def list_names(self) -> list[str]:
        return [each["name"] for each in self.run("tools/list")["tools"]]

    def call(self, request: Request) -> str:
        """Call a tool, answer the form if there is one, and return the text of the result."""
        arguments = ("--tool-name", request.tool, "--tool-args-json", json.dumps(request.arguments))
        result = self.run("tools/call", *arguments)
        if (form := result.get("elicitationPending")) is not None:
            self.questions.append(form["message"])
            answer = {"decline": "--decline", "accept": '{"answer": "once"}'}[next(self.answers)]
            result = self.run("elicitation/respond", form["elicitationId"], answer)
        return result_text(result)


@contextmanager
def open_connection(home: Home) -> Iterator[Connection]:
    """Connect `mcpdo` to a gateway over stdio, and stop its background process at the end."""
    program = inspector_program("mcpdo/build/mcp-bin.js")
    file = home.project / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"toolfold": gateway_entry(home)}}))

    def run(*arguments: str) -> Any:
        done = home.run(*program, "--format", "json", "--connection", "toolfold", *arguments)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    try:
        run("connect", "toolfold", "--config", str(file))
        yield Connection(run)
    finally:
        run("daemon", "stop")


def gateway_entry(home: Home) -> Json:
    command, *arguments = GATEWAY
    environment = {"TOOLFOLD_HOME": home.environment["TOOLFOLD_HOME"]}
    return {"command": command, "args": arguments, "env": environment, "connectionTimeout": 300_000}


def result_text(result: Json) -> str:
    return "".join(each["text"] for each in result["content"])


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "record"


@pytest.fixture
def home(tmp_path: Path, record: Path) -> Home:
    inspector_program("launcher/build/index.js")
    home = Home(tmp_path / "home", tmp_path)
    write_settings(home.path / ".toolfold", record)
    return home


class TestMcpInspector:
    def test_mcp_inspector_cli_lists_and_calls_gateway_tools_over_http(
        self, home: Home, record: Path, subtests: pytest.Subtests
    ) -> None:
        with gateway_process(home.path / ".toolfold") as gateway:
            client = OneShot(home, (gateway.url,))
            results = [client.call(each) for each in STEPS]
            outcome = Outcome(client.list_names(), results, read_calls(record))
        run_checks(outcome, CHECKS, subtests)

    def test_mcp_inspector_cli_lists_and_calls_gateway_tools_over_stdio(
        self, home: Home, record: Path
    ) -> None:
        client = OneShot(home, ("-e", f"TOOLFOLD_HOME={home.environment['TOOLFOLD_HOME']}", *GATEWAY))
        assert set(client.list_names()) == BRIDGE
        assert client.call(call_through_bridge("notes_echo", text="hello")) == "echo: hello"
        refused = client.call(call_through_bridge(DELETE, text="draft"))
        assert f"toolfold approvals allow {DELETE}" in refused
        assert read_calls(record) == ["echo hello"]

    def test_mcp_inspector_answers_approval_forms_of_the_gateway_over_stdio(
        self, home: Home, record: Path, subtests: pytest.Subtests
    ) -> None:
        with open_connection(home) as client:
            listed = client.list_names()
            results = [client.call(each) for each in STEPS_WITH_FORMS]
        run_checks(
            Outcome(listed, results, read_calls(record), client.questions), CHECKS_WITH_FORMS, subtests
        )
