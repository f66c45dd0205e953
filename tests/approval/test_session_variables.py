"""Variables exported by one command are known when the next one is judged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import toolfold
from shellverdict.shell.words import Word
from toolfold.core.types import Effect, Meaning
from toolfold.safety.approval.session_variables import SessionVariables

Call = Callable[..., toolfold.ToolResult]


@pytest.fixture
def call(runtime: toolfold.Runtime) -> Call:
    """Call a tool that runs commands, without an approver."""
    text = {"type": "string"}
    runtime.registry.register(
        name="shell",
        toolset="shells",
        schema={"type": "object", "properties": {"command": text, "task": text}, "required": ["command"]},
        handler=lambda args: "ran",
        description="Run a command.",
        effects=[Effect.EXECUTE],
        judged_as={"command": Meaning.COMMAND},
    )
    session = runtime.session(["shells"])
    return lambda command, **more: session.call_sync("shell", {"command": command, **more})


def test_writing_to_a_path_in_a_variable_that_was_set_to_a_system_file_earlier_needs_approval(
    call: Call,
) -> None:
    assert call("export TARGET=/etc/passwd").ok
    refused = call("echo x > $TARGET")
    assert not refused.ok
    assert "nobody could be asked" in (refused.error or "")


def test_variable_exported_in_one_terminal_task_is_unknown_to_the_analysis_of_another_task(
    call: Call,
) -> None:
    assert call("export TARGET=notes.txt", task="a").ok
    assert call("echo x > $TARGET", task="a").ok
    assert not call("echo x > $TARGET", task="b").ok


def test_writing_to_a_path_in_a_variable_of_unknown_value_needs_approval(
    call: Call,
) -> None:
    assert call("export TARGET=$(cat name.txt)").ok
    assert not call("cp evil $TARGET").ok
    assert call("ls $TARGET").ok


def test_variable_exported_in_a_refused_command_is_unknown_to_the_analysis_of_later_commands(
    call: Call,
) -> None:
    assert not call("export TARGET=notes.txt; rm -rf drafts").ok
    assert not call("echo x > $TARGET").ok


def test_variable_set_without_export_is_unknown_to_the_analysis_of_the_next_command(call: Call) -> None:
    assert call("TARGET=notes.txt").ok
    assert not call("echo x > $TARGET").ok


def test_writing_to_a_path_in_a_variable_that_was_exported_with_two_values_needs_approval(
    call: Call,
) -> None:
    assert call("export TARGET=notes.txt").ok
    assert call("echo x > $TARGET").ok
    assert call("export TARGET=other.txt").ok
    assert not call("echo x > $TARGET").ok


def test_writing_to_a_path_in_a_variable_after_sourcing_an_unknown_file_needs_approval(call: Call) -> None:
    assert call("export TARGET=notes.txt").ok
    assert not call(". ./env.sh; echo x > $TARGET").ok


def test_oldest_recorded_exported_variables_are_dropped_above_the_limit() -> None:
    variables = SessionVariables()
    for number in range(3_000):
        variables.update(("s", "t", str(number)), {"A": Word("1")})
        variables.update(("s", "t", ""), {f"V{number}": Word("1")})
    assert not variables.get_variables(("s", "t", "0"))
    assert len(variables.get_variables(("s", "t", ""))) == 1_000
    assert "V2999" in variables.get_variables(("s", "t", ""))
