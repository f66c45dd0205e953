"""Writes to real interpreters through the `process` tool: nothing dangerous runs where nobody can approve."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Opened
from tests.tools.test_terminal import PATIENCE, answered, failed, until
from toolfold import Answer, ApprovalRequest, Runtime, Session


@pytest.fixture
def session(runtime: Runtime) -> Session:
    return runtime.session(["terminal"])


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A folder that dangerous text would delete."""
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "file").write_text("still here")
    return folder


def start(session: Session, command: str, **options: Any) -> str:
    name = answered(session, "terminal", command=command, background=True, **options)["process"]
    assert isinstance(name, str)
    return name


def write(session: Session, process: str, data: str, **options: Any) -> None:
    answered(session, "process", action="write", process=process, data=data, **options)


def refused(session: Session, process: str, data: str, **options: Any) -> str:
    return failed(session, "process", action="write", process=process, data=data, **options)


def output_has(session: Session, process: str, text: str) -> None:
    until(lambda: text in answered(session, "process", action="poll", process=process)["output"])


def ended(session: Session, process: str) -> str:
    answered(session, "process", action="write", process=process, data="", close=True)
    return str(answered(session, "process", action="wait", process=process, timeout=PATIENCE)["output"])


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
def test_shell_input_split_over_writes_is_judged(
    session: Session, marker: Path, prepared: str, fatal: str
) -> None:
    process = start(session, "bash")
    write(session, process, prepared.format(marker))
    assert "was not run" in refused(session, process, fatal.format(marker))
    ended(session, process)
    assert (marker / "file").read_text() == "still here"


def test_the_same_input_runs_without_approval_checks(opened: Opened, marker: Path) -> None:
    session = opened(approver=lambda _: Answer.ONCE).session(["terminal"])
    process = start(session, "bash")
    write(session, process, f"f(){{ rm -rf {marker}; }}\n")
    write(session, process, "f\n")
    ended(session, process)
    assert not marker.exists()


def test_always_blocked_input_is_refused_despite_approval(opened: Opened) -> None:
    session = opened(approver=lambda _: Answer.ONCE).session(["terminal"])
    process = start(session, "bash")
    write(session, process, "f(){ rm -rf --no-preserve-root /; }\n")
    assert "always blocked" in refused(session, process, "f\n")
    ended(session, process)


def test_python_input_split_over_writes_is_judged(session: Session, marker: Path) -> None:
    process = start(session, "python3 -i")
    write(session, process, "import shutil as s\n")
    assert "was not run" in refused(session, process, f"s.rmtree('{marker}')\n")
    write(session, process, "print('alive' + '!')\n")
    assert "alive!" in ended(session, process)
    assert marker.exists()


@pytest.mark.skipif(not shutil.which("script"), reason="a background process needs `script` for a terminal")
def test_terminal_editing_keys_cannot_hide_input(session: Session, marker: Path) -> None:
    process = start(session, "bash --norc", pty=True)
    assert "was not run" in refused(session, process, f"echo {marker}\x15rm -rf {marker}\r")
    assert "was not run" in refused(session, process, "\x1b[A\r")
    assert "was not run" in refused(session, process, "!rm\r")
    write(session, process, "echo al\x7flive | tr a-z A-Z\r")
    output_has(session, process, "ALIVE")
    answered(session, "process", action="kill", process=process)
    assert marker.exists()


def test_refused_write_is_not_logged_as_input(opened: Opened, marker: Path) -> None:
    asked: list[ApprovalRequest] = []

    def refuse(request: ApprovalRequest) -> bool:
        asked.append(request)
        return False

    session = opened(approver=refuse).session(["terminal"])
    process = start(session, "bash")
    assert "was refused" in refused(session, process, f"rm -rf {marker}; f() {{ rm -rf {marker}; }}\n")
    write(session, process, "f\n")  # nobody has defined it
    assert len(asked) == 1
    assert f"rm -rf {marker}" in asked[0].command
    ended(session, process)
    assert marker.exists()


def test_approved_write_does_not_cover_another(opened: Opened, marker: Path) -> None:
    asked: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> Answer:
        asked.append(request)
        return Answer.ONCE if Answer.SESSION not in request.answers else Answer.SESSION

    session = opened(approver=approve).session(["terminal"])
    process = start(session, "bash")
    write(session, process, f"f() {{ rm -rf {marker}/$1; }}\n")
    for _ in range(2):
        write(session, process, "f x\n")
    other = start(session, "bash")
    write(session, other, f"x={marker}/y\n")
    write(session, other, "rm -rf $x\n")
    assert len(asked) == 3
    for each in (process, other):
        ended(session, each)


def test_input_to_a_process_of_another_runtime_needs_approval(opened: Opened) -> None:
    with opened() as first:
        process = start(first.session(), "bash")
    session = opened().session()
    assert "another runtime" in refused(session, process, "ls\n")
    answered(session, "process", action="kill", process=process)


def test_input_by_two_runtimes_needs_approval(opened: Opened) -> None:
    first = opened()
    second = opened(approver=lambda _: Answer.ONCE)
    process = start(first.session(), "bash")
    write(second.session(), process, "f() { ls; }\n")
    assert "somebody else has written" in refused(first.session(), process, "f\n")
    answered(first.session(), "process", action="kill", process=process)


def test_sessions_of_one_runtime_share_the_input_log(runtime: Runtime, marker: Path) -> None:
    process = start(runtime.session(), "bash")
    write(runtime.session(), process, f"f() {{ rm -rf {marker}; }}\n")
    assert "was not run" in refused(runtime.session(), process, "f\n")
    ended(runtime.session(), process)
    assert marker.exists()


async def test_concurrent_writes_are_judged_together(runtime: Runtime, marker: Path) -> None:
    """Each is judged with the other, or refused: of `x=…` and `rm -rf $x` the second never runs unseen."""
    session = runtime.session()
    started = await session.call("terminal", {"command": "bash", "background": True})
    process = json.loads(started.text)["process"]

    async def send(data: str) -> Any:
        return await session.call("process", {"action": "write", "process": process, "data": data})

    await asyncio.gather(send(f"x={marker}\n"), send("rm -rf $x\n"), send("f() { :; }\n"))
    await session.call("process", {"action": "write", "process": process, "close": True})
    await session.call("process", {"action": "wait", "process": process, "timeout": PATIENCE})
    assert list(marker.iterdir())  # noqa: ASYNC240


def test_closing_the_input_is_judged(session: Session, marker: Path) -> None:
    process = start(session, "bash")
    write(session, process, "cat <<EOF\n")
    error = failed(session, "process", action="write", process=process, close=True)
    assert "was not run" in error
    write(session, process, "EOF\n")
    ended(session, process)
    assert marker.exists()


def test_input_beyond_the_log_limit_needs_approval(session: Session) -> None:
    process = start(session, "cat > /dev/null")
    line = "plain text " * 1_800 + "\n"
    for _ in range(3):
        write(session, process, line)
    assert "more than" in refused(session, process, line)
    answered(session, "process", action="kill", process=process)


def test_partially_delivered_write_makes_the_log_incomplete(opened: Opened) -> None:
    reasons: list[str] = []

    def approve(request: ApprovalRequest) -> Answer:
        reasons.append(f"{request.reason} {request.also}")
        return Answer.ONCE

    session = opened(approver=approve).session(["terminal"])
    process = start(session, "sleep 600")
    error = refused(session, process, ("x" * 99 + "\n") * 2_000)  # more than a pipe holds
    assert "does not read its input" in error
    refused(session, process, "ls\n")
    assert "only in part" in reasons[-1]
    answered(session, "process", action="kill", process=process)


def test_harmless_input_needs_no_approval(session: Session) -> None:
    process = start(session, "bash")
    for line in ("x=41\n", "add() { echo $(( $1 + 1 )); }\n", "add $x\n", "python3 -c 'print(6 * 7)'\n"):
        write(session, process, line)
    assert ended(session, process).split() == ["42", "42"]
