"""Input to real interpreters through the `process` tool: without an approver nothing dangerous runs."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RuntimeOpener
from tests.tools.test_terminal import WAIT_TIMEOUT_S, call_error, call_tool, wait_until
from toolfold import Answer, ApprovalRequest, Runtime, Session


@pytest.fixture
def session(runtime: Runtime) -> Session:
    return runtime.session(["terminal"])


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """Directory that dangerous input would delete."""
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "file").write_text("still here")
    return folder


def start(session: Session, command: str, **options: Any) -> str:
    name = call_tool(session, "terminal", command=command, background=True, **options)["process"]
    assert isinstance(name, str)
    return name


def write(session: Session, process: str, data: str, **options: Any) -> None:
    call_tool(session, "process", action="write", process=process, data=data, **options)


def write_error(session: Session, process: str, data: str, **options: Any) -> str:
    return call_error(session, "process", action="write", process=process, data=data, **options)


def wait_for_output(session: Session, process: str, text: str) -> None:
    wait_until(lambda: text in call_tool(session, "process", action="poll", process=process)["output"])


def wait_for_end(session: Session, process: str) -> str:
    call_tool(session, "process", action="write", process=process, data="", close=True)
    return str(
        call_tool(session, "process", action="wait", process=process, timeout=WAIT_TIMEOUT_S)["output"]
    )


@pytest.mark.parametrize(
    ("prepared", "fatal"),
    [
        ("f(){{ rm -rf {0}; }}\n", "f\n"),
        ("set -- rm -rf {0}\n", '"$@"\n'),
        ("alias l='rm -rf'; shopt -s expand_aliases\n", "l {0}\n"),
        ("a=rm; b=-rf\n", "$a $b {0}\n"),
        ("cd {0}/..\n", "rm -r *\n"),
        ("rm -r", "f {0}\n"),
        ("python3\nimport shutil as s\n", "s.rmtree('{0}')\n"),
        ("bash\nsh\nx={0}\n", 'rm -rf "$x"\n'),
    ],
)
def test_deletion_that_is_typed_into_a_shell_in_several_harmless_writes_is_refused(
    session: Session, marker: Path, prepared: str, fatal: str
) -> None:
    process = start(session, "bash")
    write(session, process, prepared.format(marker))
    assert "was not run" in write_error(session, process, fatal.format(marker))
    wait_for_end(session, process)
    assert (marker / "file").read_text() == "still here"


def test_deletion_that_is_typed_into_a_shell_in_several_writes_runs_after_approval(
    open_test_runtime: RuntimeOpener, marker: Path
) -> None:
    session = open_test_runtime(approver=lambda _: Answer.ONCE).session(["terminal"])
    process = start(session, "bash")
    write(session, process, f"f(){{ rm -rf {marker}; }}\n")
    write(session, process, "f\n")
    wait_for_end(session, process)
    assert not marker.exists()


def test_catastrophic_process_input_is_refused_even_if_the_approver_allows_it(
    open_test_runtime: RuntimeOpener,
) -> None:
    session = open_test_runtime(approver=lambda _: Answer.ONCE).session(["terminal"])
    process = start(session, "bash")
    write(session, process, "f(){ rm -rf --no-preserve-root /; }\n")
    assert "always blocked" in write_error(session, process, "f\n")
    wait_for_end(session, process)


def test_deletion_that_is_typed_into_python_in_several_harmless_writes_is_refused(
    session: Session, marker: Path
) -> None:
    process = start(session, "python3 -i")
    write(session, process, "import shutil as s\n")
    assert "was not run" in write_error(session, process, f"s.rmtree('{marker}')\n")
    write(session, process, "print('alive' + '!')\n")
    assert "alive!" in wait_for_end(session, process)
    assert marker.exists()


@pytest.mark.skipif(not shutil.which("script"), reason="a background process needs `script` for a terminal")
def test_dangerous_terminal_input_hidden_by_editing_or_history_keys_is_refused(
    session: Session, marker: Path
) -> None:
    process = start(session, "bash --norc", pty=True)
    assert "was not run" in write_error(session, process, f"echo {marker}\x15rm -rf {marker}\r")
    assert "was not run" in write_error(session, process, "\x1b[A\r")
    assert "was not run" in write_error(session, process, "!rm\r")
    write(session, process, "echo al\x7flive | tr a-z A-Z\r")
    wait_for_output(session, process, "ALIVE")
    call_tool(session, "process", action="kill", process=process)
    assert marker.exists()


def test_function_in_refused_process_input_is_treated_as_undefined_in_later_input(
    open_test_runtime: RuntimeOpener, marker: Path
) -> None:
    asked: list[ApprovalRequest] = []

    def refuse(request: ApprovalRequest) -> bool:
        asked.append(request)
        return False

    session = open_test_runtime(approver=refuse).session(["terminal"])
    process = start(session, "bash")
    assert "was refused" in write_error(session, process, f"rm -rf {marker}; f() {{ rm -rf {marker}; }}\n")
    write(session, process, "f\n")  # not defined
    assert len(asked) == 1
    assert f"rm -rf {marker}" in asked[0].command
    wait_for_end(session, process)
    assert marker.exists()


def test_session_approval_of_dangerous_process_input_does_not_apply_to_later_input(
    open_test_runtime: RuntimeOpener, marker: Path
) -> None:
    asked: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> Answer:
        asked.append(request)
        return Answer.ONCE if Answer.SESSION not in request.answers else Answer.SESSION

    session = open_test_runtime(approver=approve).session(["terminal"])
    process = start(session, "bash")
    write(session, process, f"f() {{ rm -rf {marker}/$1; }}\n")
    for _ in range(2):
        write(session, process, "f x\n")
    other = start(session, "bash")
    write(session, other, f"x={marker}/y\n")
    write(session, other, "rm -rf $x\n")
    assert len(asked) == 3
    for each in (process, other):
        wait_for_end(session, each)


def test_input_to_a_process_that_another_runtime_started_needs_approval(
    open_test_runtime: RuntimeOpener,
) -> None:
    with open_test_runtime() as first:
        process = start(first.session(), "bash")
    session = open_test_runtime().session()
    assert "another runtime" in write_error(session, process, "ls\n")
    call_tool(session, "process", action="kill", process=process)


def test_input_to_a_process_that_another_runtime_has_written_to_needs_approval(
    open_test_runtime: RuntimeOpener,
) -> None:
    first = open_test_runtime()
    second = open_test_runtime(approver=lambda _: Answer.ONCE)
    process = start(first.session(), "bash")
    write(second.session(), process, "f() { ls; }\n")
    assert "another client has written" in write_error(first.session(), process, "f\n")
    call_tool(first.session(), "process", action="kill", process=process)


def test_calling_a_dangerous_function_that_another_session_defined_in_a_process_is_refused(
    runtime: Runtime, marker: Path
) -> None:
    process = start(runtime.session(), "bash")
    write(runtime.session(), process, f"f() {{ rm -rf {marker}; }}\n")
    assert "was not run" in write_error(runtime.session(), process, "f\n")
    wait_for_end(runtime.session(), process)
    assert marker.exists()


async def test_concurrent_process_inputs_that_are_dangerous_only_together_delete_no_files(
    runtime: Runtime, marker: Path
) -> None:
    """Of `x=…` and `rm -rf $x`, each is judged with the other or rejected."""
    session = runtime.session()
    started = await session.call("terminal", {"command": "bash", "background": True})
    process = json.loads(started.text)["process"]

    async def send(data: str) -> Any:
        return await session.call("process", {"action": "write", "process": process, "data": data})

    await asyncio.gather(send(f"x={marker}\n"), send("rm -rf $x\n"), send("f() { :; }\n"))
    await session.call("process", {"action": "write", "process": process, "close": True})
    await session.call("process", {"action": "wait", "process": process, "timeout": WAIT_TIMEOUT_S})
    assert list(marker.iterdir())  # noqa: ASYNC240


def test_closing_the_input_of_a_shell_with_an_unfinished_command_needs_approval(
    session: Session, marker: Path
) -> None:
    process = start(session, "bash")
    write(session, process, "cat <<EOF\n")
    error = call_error(session, "process", action="write", process=process, close=True)
    assert "was not run" in error
    write(session, process, "EOF\n")
    wait_for_end(session, process)
    assert marker.exists()


def test_process_input_needs_approval_if_earlier_input_is_too_long_to_be_logged(session: Session) -> None:
    process = start(session, "cat > /dev/null")
    line = "plain text " * 1_800 + "\n"
    for _ in range(3):
        write(session, process, line)
    assert "too long" in write_error(session, process, line)
    call_tool(session, "process", action="kill", process=process)


@pytest.mark.thorough
def test_process_input_after_a_partial_write_needs_approval(
    open_test_runtime: RuntimeOpener,
) -> None:
    reasons: list[str] = []

    def approve(request: ApprovalRequest) -> Answer:
        reasons.append(f"{request.reason} {request.also}")
        return Answer.ONCE

    session = open_test_runtime(approver=approve).session(["terminal"])
    process = start(session, "sleep 600")
    error = write_error(session, process, ("x" * 99 + "\n") * 2_000)  # more than the pipe buffer
    assert "does not read its input" in error
    write_error(session, process, "ls\n")
    assert "only in part" in reasons[-1]
    call_tool(session, "process", action="kill", process=process)


def test_harmless_process_input_needs_no_approval(session: Session) -> None:
    process = start(session, "bash")
    for line in ("x=41\n", "add() { echo $(( $1 + 1 )); }\n", "add $x\n", "python3 -c 'print(6 * 7)'\n"):
        write(session, process, line)
    assert wait_for_end(session, process).split() == ["42", "42"]
