"""What one command leaves to the next is known when that one is judged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import toolfold
from shellverdict.shell.words import Word
from toolfold.approval.session_variables import SessionVariables
from toolfold.model import Effect, Meaning

Call = Callable[..., toolfold.ToolResult]


@pytest.fixture
def call(runtime: toolfold.Runtime) -> Call:
    """Call a tool that runs commands, with nobody to ask."""
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


def test_a_file_named_in_an_earlier_command_is_known(call: Call) -> None:
    assert call("export TARGET=/etc/passwd").ok
    refused = call("echo x > $TARGET")
    assert not refused.ok
    assert "nobody could be asked" in (refused.error or "")


def test_another_task_has_variables_of_its_own(call: Call) -> None:
    assert call("export TARGET=notes.txt", task="a").ok
    assert call("echo x > $TARGET", task="a").ok
    assert not call("echo x > $TARGET", task="b").ok


def test_a_name_worked_out_where_nobody_looked_is_asked_about(
    call: Call,
) -> None:
    assert call("export TARGET=$(cat name.txt)").ok
    assert not call("cp evil $TARGET").ok
    assert call("ls $TARGET").ok


def test_what_was_refused_leaves_nothing(call: Call) -> None:
    assert not call("export TARGET=notes.txt; rm -rf build").ok
    assert not call("echo x > $TARGET").ok


def test_what_is_not_exported_does_not_last(call: Call) -> None:
    assert call("TARGET=notes.txt").ok
    assert not call("echo x > $TARGET").ok


def test_a_value_that_may_not_have_been_set_is_not_believed(call: Call) -> None:
    assert call("export TARGET=notes.txt").ok
    assert call("echo x > $TARGET").ok
    assert call("export TARGET=other.txt").ok
    assert not call("echo x > $TARGET").ok


def test_sourcing_what_nobody_has_read_may_set_anything(call: Call) -> None:
    assert call("export TARGET=notes.txt").ok
    assert not call(". ./env.sh; echo x > $TARGET").ok


def test_memory_is_bounded() -> None:
    memory = SessionVariables()
    for number in range(3_000):
        memory.update(("s", "t", str(number)), {"A": Word("1")})
        memory.update(("s", "t", ""), {f"V{number}": Word("1")})
    assert not memory.get_variables(("s", "t", "0"))
    assert len(memory.get_variables(("s", "t", ""))) == 1_000
    assert "V2999" in memory.get_variables(("s", "t", ""))
