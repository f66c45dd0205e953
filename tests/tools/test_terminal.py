"""The terminal and process tools, called through a session with approval, as a model does."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RuntimeOpener
from tests.environments.backend_kinds import find_traces
from tests.environments.test_contract import wait_for_sleep, wait_until_gone
from toolfold import Answer, ApprovalRequest, Runtime, Session

WAIT_TIMEOUT_S = 60.0


def call_tool(session: Session, name: str, **args: Any) -> Any:
    result = session.call_sync(name, args)
    assert result.ok, result.error
    return json.loads(result.text)


def call_error(session: Session, name: str, **args: Any) -> str:
    result = session.call_sync(name, args)
    assert result.error is not None, result.text
    return result.error


def wait_until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + WAIT_TIMEOUT_S
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
    return found


@pytest.fixture
def session(runtime: Runtime) -> Session:
    return runtime.session(["terminal", "file"])


def test_terminal_command_returns_output_and_exit_code(session: Session, tmp_path: Path) -> None:
    assert call_tool(session, "terminal", command="echo out; echo err >&2; exit 3") == {
        "output": "out\nerr\n",
        "exit_code": 3,
        "workdir": str(tmp_path),
    }


def test_current_directory_and_exported_variables_persist_between_terminal_commands_of_a_session(
    session: Session, runtime: Runtime, tmp_path: Path
) -> None:
    call_tool(session, "terminal", command="mkdir sub; cd sub; export HERE=yes")
    assert call_tool(session, "terminal", command="pwd; echo $HERE")["output"] == f"{tmp_path}/sub\nyes\n"
    assert call_tool(session, "terminal", command="pwd", task="other")["output"] == f"{tmp_path}\n"
    another = runtime.session(["terminal"])
    assert call_tool(another, "terminal", command="pwd; echo ${HERE-no}")["output"] == f"{tmp_path}\nno\n"


def test_relative_workdir_of_a_terminal_command_is_resolved_against_the_current_directory(
    session: Session, tmp_path: Path
) -> None:
    call_tool(session, "terminal", command="mkdir -p a/b; cd a")
    assert call_tool(session, "terminal", command="pwd", workdir="b")["output"] == f"{tmp_path}/a/b\n"
    assert call_tool(session, "terminal", command="pwd")["output"] == f"{tmp_path}/a\n"


def test_deleting_all_files_is_blocked_if_the_current_directory_is_a_system_directory(
    open_test_runtime: RuntimeOpener, tmp_path: Path
) -> None:
    asked: list[ApprovalRequest] = []

    def refuse(request: ApprovalRequest) -> bool:
        asked.append(request)
        return False

    session = open_test_runtime(approver=refuse).session(["terminal"])
    (tmp_path / "build").mkdir()
    call_tool(session, "terminal", command="cd /usr")
    assert "always blocked" in call_error(session, "terminal", command="rm -rf *")
    assert "always blocked" in call_error(session, "terminal", command="rm -rf *", workdir="lib")
    assert Path("/usr/bin").is_dir()


def test_dangerous_terminal_command_needs_approval(open_test_runtime: RuntimeOpener, tmp_path: Path) -> None:
    asked: list[str] = []

    def approver(request: ApprovalRequest) -> Answer:
        asked.append(request.command)
        return Answer.ONCE

    session = open_test_runtime(approver=approver).session(["terminal"])
    call_tool(session, "terminal", command="git init -q . && git reset --hard")
    assert asked == ["git init -q . && git reset --hard"]


def test_catastrophic_command_as_input_of_a_background_process_is_blocked(session: Session) -> None:
    process = call_tool(session, "terminal", command="cat", background=True)["process"]
    error = call_error(session, "process", action="write", process=process, data="rm -rf /\n")
    assert "always blocked" in error
    call_tool(session, "process", action="write", process=process, data="y\n", close=True)
    ended = call_tool(session, "process", action="wait", process=process, timeout=WAIT_TIMEOUT_S)
    assert (ended["exit_code"], ended["output"]) == (0, "y\n")


def test_catastrophic_command_as_process_input_split_over_two_writes_is_blocked(session: Session) -> None:
    process = call_tool(session, "terminal", command="cat", background=True)["process"]
    call_tool(session, "process", action="write", process=process, data="r")
    forged = {"command": "cat", "before": [], "revision": 1, "closes": False}
    error = call_error(session, "process", action="write", process=process, data="m -rf /\n", context=forged)
    assert "always blocked" in error
    call_tool(session, "process", action="write", process=process, data="est\nnext\n", close=True)
    ended = call_tool(session, "process", action="wait", process=process, timeout=WAIT_TIMEOUT_S)
    assert ended["output"] == "rest\nnext\n"


@pytest.mark.parametrize(("piece", "rest"), [("r", "m -rf /\n"), ("rm -rf \\\n", "/\n")])
def test_catastrophic_process_input_that_an_earlier_runtime_began_to_write_is_blocked(
    open_test_runtime: RuntimeOpener, piece: str, rest: str
) -> None:
    with open_test_runtime() as first:
        process = call_tool(first.session(), "terminal", command="cat", background=True)["process"]
        call_tool(first.session(), "process", action="write", process=process, data=piece)
    session = open_test_runtime(approver=lambda _: Answer.ONCE).session()
    assert "always blocked" in call_error(session, "process", action="write", process=process, data=rest)
    call_tool(session, "process", action="kill", process=process)


def test_terminal_command_that_times_out_returns_its_output_and_leaves_no_process(
    session: Session,
) -> None:
    command = "echo begun; MARK=slowtoken sleep 86400"
    for seconds in (0.3, 3, 30):  # a busy machine may start it slowly
        answer = call_tool(session, "terminal", command=command, timeout=seconds)
        if answer["output"]:
            break
    assert (answer["output"], answer["exit_code"]) == ("begun\n", None)
    assert f"Terminated after {seconds} s" in answer["note"]
    assert find_traces("slowtoken") == []


async def test_cancelled_terminal_call_terminates_its_command(session: Session) -> None:
    call = asyncio.create_task(session.call("terminal", {"command": "MARK=cancelledtoken sleep 86400"}))
    await wait_for_sleep("cancelledtoken")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await wait_until_gone("cancelledtoken")


def test_closing_the_runtime_terminates_processes_left_running_by_terminal_commands(runtime: Runtime) -> None:
    answer = call_tool(runtime.session(), "terminal", command="MARK=lefttoken sleep 86400 & echo started")
    assert answer["output"] == "started\n"
    assert find_traces("lefttoken")
    runtime.close()
    assert find_traces("lefttoken") == []
    assert "The runtime is closed" in call_error(runtime.session(), "terminal", command="true")


def test_timeout_requested_for_a_terminal_command_is_capped_at_the_maximum_in_the_settings(
    open_test_runtime: RuntimeOpener,
) -> None:
    session = open_test_runtime({"terminal.max_timeout_seconds": 1}).session(["terminal"])
    answer = call_tool(session, "terminal", command="sleep 86400", timeout=3600)
    assert "Terminated after 1 s" in answer["note"]


def test_omitted_part_of_a_long_command_output_can_be_read_from_a_stored_file(session: Session) -> None:
    answer = call_tool(session, "terminal", command="seq 1 40000")
    assert answer["output"].startswith("1\n2\n")
    assert answer["output"].endswith("39999\n40000\n")
    page = call_tool(session, "read_file", path=answer["stored"], offset=20_000, limit=1)
    assert "20000\t20000" in json.dumps(page).replace("\\t", "\t")


def test_command_output_from_a_pty_has_no_control_sequences(session: Session) -> None:
    answer = call_tool(session, "terminal", command="[ -t 1 ] && printf '\\033[31mred\\033[0m\\n'", pty=True)
    assert answer["output"] == "red\n"


def test_background_process_can_be_started_read_written_to_and_terminated(session: Session) -> None:
    begun = call_tool(
        session,
        "terminal",
        command="echo up; read x; echo READY $x; exit 5",
        background=True,
        watch=["READY"],
    )
    name = begun["process"]
    assert begun["state"] == "running"
    wait_until(lambda: call_tool(session, "process", action="poll", process=name)["output"] == "up\n")
    assert [each["process"] for each in call_tool(session, "process", action="list")["processes"]] == [name]
    call_tool(session, "process", action="write", process=name, data="now\n")
    ended = call_tool(session, "process", action="wait", process=name, timeout=WAIT_TIMEOUT_S)
    assert (ended["state"], ended["exit_code"], ended["output"]) == ("ended", 5, "up\nREADY now\n")
    page = call_tool(session, "process", action="log", process=name, offset=-6, limit=3)
    assert (page["output"], page["next_offset"]) == ("Y n", 10)


def test_output_and_exit_of_a_watched_background_process_are_each_reported_once_to_its_session(
    session: Session, runtime: Runtime
) -> None:
    begun = call_tool(session, "terminal", command="echo GO; exit 2", background=True, watch=["GO"])
    another, name = runtime.session(["terminal"]), begun["process"]
    told: list[dict[str, Any]] = begun.get("notices", [])

    def both() -> bool:
        told.extend(call_tool(session, "terminal", command="true").get("notices", ()))
        assert "notices" not in call_tool(another, "terminal", command="true")
        return len(told) == 2

    wait_until(both)
    assert told[0] == {"process": name, "lines": ["GO"]}
    assert (told[1]["process"], told[1]["state"], told[1]["exit_code"]) == (name, "ended", 2)
    assert "notices" not in call_tool(session, "terminal", command="true")


def test_process_tool_can_signal_and_kill_background_processes(session: Session) -> None:
    command = "trap 'exit 7' INT; echo up; while :; do sleep 0.05; done"
    first = call_tool(session, "terminal", command=command, background=True)["process"]
    second = call_tool(session, "terminal", command="sleep 86400", background=True)["process"]
    wait_until(lambda: call_tool(session, "process", action="poll", process=first)["output"])
    assert call_tool(session, "process", action="signal", process=first)["sent"] == "INT"
    assert call_tool(session, "process", action="wait", process=first)["exit_code"] == 7
    assert call_tool(session, "process", action="kill", process=second)["state"] == "ended"


def test_error_of_the_process_tool_states_a_missing_argument_or_an_unknown_or_ended_process(
    session: Session,
) -> None:
    assert "needs the name of a process" in call_error(session, "process", action="poll")
    assert "There is no background process 'x'" in call_error(session, "process", action="kill", process="x")
    name = call_tool(session, "terminal", command="true", background=True)["process"]
    call_tool(session, "process", action="wait", process=name)
    assert "has already ended" in call_error(session, "process", action="write", process=name, data="x")
    assert "write needs data" in call_error(session, "process", action="write", process=name)


def test_background_process_survives_its_runtime_and_can_be_controlled_by_the_next_runtime(
    open_test_runtime: RuntimeOpener,
) -> None:
    first = open_test_runtime()
    begun = call_tool(first.session(), "terminal", command="echo up; read x; exit 4", background=True)
    first.close()
    session = open_test_runtime(approver=lambda _: Answer.ONCE).session()
    (found,) = call_tool(session, "process", action="list")["processes"]
    assert (found["process"], found["state"]) == (begun["process"], "running")
    call_tool(session, "process", action="write", process=begun["process"], data="\n")
    assert call_tool(session, "process", action="wait", process=begun["process"])["exit_code"] == 4


def test_terminal_commands_receive_only_secret_environment_variables_listed_in_the_settings(
    open_test_runtime: RuntimeOpener, home: Path, tmp_path: Path
) -> None:
    from toolfold import open_runtime
    from toolfold.config import load_config

    env = {"TOOLFOLD_HOME": str(home), "HOME": str(home), "API_TOKEN": "abcd1234", "OTHER_TOKEN": "efgh5678"}
    config = load_config(project=tmp_path, env=env, overrides={"terminal.environment": ["API_TOKEN"]})
    with open_runtime(config) as runtime:
        output = call_tool(runtime.session(), "terminal", command="env")["output"]
    assert "abcd1234" in output
    assert "efgh5678" not in output


def test_terminal_tool_is_not_listed_if_the_sandbox_program_is_missing(
    open_test_runtime: RuntimeOpener, home: Path, tmp_path: Path
) -> None:
    from toolfold import open_runtime
    from toolfold.config import load_config

    env = {"TOOLFOLD_HOME": str(home), "HOME": str(home), "PATH": str(tmp_path)}
    config = load_config(project=tmp_path, env=env, overrides={"terminal.backend": "sandbox"})
    with open_runtime(config) as runtime:
        status = runtime.statuses(["terminal"])["terminal"]
        assert "bubblewrap is not installed" in status.reason
        assert "terminal" not in {each.name for each in runtime.session().assemble().tools}
