"""The gateway in real client programs, each driven by a scripted model, without a terminal and in one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from tests.clients.model_server import Call, ModelServer, Say, Step, serve_model
from tests.clients.programs import CLAUDE_CODE, CODEX, GEMINI, OPENCODE, ClientProgram, Home
from tests.clients.scenario import (
    CHECKS,
    DELETE,
    QUESTION,
    STEPS,
    Outcome,
    Request,
    call_through_bridge,
    read_calls,
    run_checks,
    write_settings,
)
from tests.clients.terminal import Terminal, open_terminal

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(900),  # more than the limits of all waits that a busy machine can use up
]
TASK = "MARKED-TASK: use the notes"
END = "the task is finished"
FIRST_END = "the first half is finished"


@dataclass(frozen=True)
class ConnectedClient:
    """A client that `toolfold connect` has connected, with its user and its model."""

    program: ClientProgram
    user: Home
    model: ModelServer
    record: Path

    def run_task(self) -> Outcome:
        """Run the task without a terminal."""
        done = self.user.run(*self.program.command(self.program.arguments(TASK)))
        tools = [each for each in self.model.listed_tools() if "toolfold" in each.name + each.namespace]
        output = done.stdout[-2000:] + done.stderr[-2000:]
        names = [each.name for each in tools]
        return Outcome(names, self.model.tool_results(), self.calls(), output=output)

    @contextmanager
    def open_terminal(self) -> Iterator[Terminal]:
        """Open the client's text interface with the task."""
        command = self.program.command(self.program.terminal_arguments(TASK))
        with open_terminal(command, self.user.environment, self.user.project) as terminal:
            yield terminal

    def has_gateway(self) -> bool:
        """Return True if a gateway runs that reports a client."""
        files = (self.user.path / ".toolfold/state/gateway/status").glob("*.json")
        return any(json.loads(each.read_text()).get("clients") for each in files)

    def calls(self) -> list[str]:
        """Return the calls that reached the MCP server."""
        return read_calls(self.record)


@contextmanager
def connect(program: ClientProgram, tmp_path: Path, script: Sequence[Step]) -> Iterator[ConnectedClient]:
    """Set up Toolfold and a client program as a user would, with a model that follows the script."""
    program.command(())  # skips the test if the program is not installed
    home = Home(tmp_path / "home", tmp_path / "project")
    home.project.mkdir()
    write_settings(home.path / ".toolfold", tmp_path / "record")
    with serve_model(TASK, script) as model:
        user = replace(home, variables=program.configure_model(home, model.url))
        done = user.run("toolfold", "connect", program.name, "--yes")
        assert done.returncode == 0, done.stdout + done.stderr
        program.allow_tools(user)
        yield ConnectedClient(program, user, model, tmp_path / "record")


def to_call(request: Request) -> Call:
    """Convert a request of the scenario to the model's tool call."""
    return Call(request.tool, request.arguments)


def delete_note(text: str) -> Call:
    """Return the model's call that deletes a note."""
    return to_call(call_through_bridge(DELETE, text=text))


def answer_form(terminal: Terminal, text: str, keys: Mapping[str, str]) -> None:
    """Press the keys that answer the form about the deletion of the note."""
    terminal.press_until_gone(lambda screen: is_asked(screen, text), keys)


class ProgramTests:
    """Base class for the tests of one client program."""

    program: ClassVar[ClientProgram]

    def test_real_client_program_without_a_terminal_lists_and_calls_tools_of_the_gateway(
        self, tmp_path: Path, subtests: pytest.Subtests
    ) -> None:
        with connect(self.program, tmp_path, [*map(to_call, STEPS), Say(END)]) as client:
            outcome = client.run_task()
        run_checks(outcome, CHECKS, subtests)


class AskingProgramTests(ProgramTests):
    """The tests of a program that shows approval forms in its text interface."""

    def test_approval_form_in_a_real_client_allows_one_call_if_accepted_and_no_call_if_declined(
        self, tmp_path: Path
    ) -> None:
        script = (delete_note("draft"), Say(FIRST_END), delete_note("letter"), Say(END))
        with connect(self.program, tmp_path, script) as client, client.open_terminal() as terminal:
            wait_for_question(client, terminal, "draft")
            assert client.calls() == []
            answer_form(terminal, "draft", self.program.accept)
            terminal.wait_for(FIRST_END)
            assert client.calls() == ["delete_note draft"]
            enter_line(terminal, f"{TASK} again")
            wait_for_question(client, terminal, "letter")  # accepting allowed one call, not the next
            answer_form(terminal, "letter", self.program.decline)
            terminal.wait_for(END)
            allowed, refused = client.model.tool_results()
        assert "delete_note: draft" in allowed
        assert f"{DELETE}' was not run: " in refused
        assert client.calls() == ["delete_note draft"]


class SilentProgramTests(ProgramTests):
    """The tests of a program that cannot show approval forms, not even in its text interface."""

    def test_risky_call_is_refused_if_the_client_cannot_show_approval_forms(self, tmp_path: Path) -> None:
        script = (delete_note("draft"), Say(END))
        with connect(self.program, tmp_path, script) as client, client.open_terminal() as terminal:
            wait_for_tool_result(client, terminal)
            screen = terminal.wait_for(END)
            (refused,) = client.model.tool_results()
        assert QUESTION not in screen
        assert "nobody could be asked for approval" in refused
        assert f"toolfold approvals allow {DELETE}" in refused
        assert client.calls() == []


def wait_for(
    condition: Callable[[], bool], meaning: str, client: ConnectedClient, terminal: Terminal
) -> None:
    """Wait for a condition. Enter the task again if the client started it without the gateway's tools."""
    repeated = 0

    def is_met() -> bool:
        nonlocal repeated
        if client.model.missing_tools > repeated and not client.model.tool_results():
            repeated = client.model.missing_tools
            terminal.wait_until(client.has_gateway, "the gateway has a client")
            enter_line(terminal, f"{TASK} (attempt {repeated + 1})")
        return condition()

    terminal.wait_until(is_met, meaning)


def enter_line(terminal: Terminal, text: str) -> None:
    """Type a line into the text interface, and press Enter when it is there."""
    terminal.type(text)
    terminal.wait_for(text)
    terminal.press("Enter")


def wait_for_question(client: ConnectedClient, terminal: Terminal, text: str) -> None:
    """Wait until the screen shows the form about the deletion of this note."""
    wait_for(
        lambda: is_asked(terminal.read_screen(), text), f"the form about {text} is shown", client, terminal
    )


def wait_for_tool_result(client: ConnectedClient, terminal: Terminal) -> None:
    """Wait until the model has received a tool result."""
    wait_for(lambda: bool(client.model.tool_results()), "the model has a tool result", client, terminal)


def is_asked(screen: str, text: str) -> bool:
    return QUESTION in screen and f'{{"text": "{text}"}}' in screen


class TestClaudeCode(AskingProgramTests):
    program = CLAUDE_CODE


class TestCodex(AskingProgramTests):
    program = CODEX


class TestGeminiCli(SilentProgramTests):
    program = GEMINI


class TestOpencode(SilentProgramTests):
    program = OPENCODE
