"""Server processes leave nothing behind, whatever happens to them or to the parent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mcp.faults import SERVER
from toolfold.mcp.faults import NotStarted
from toolfold.mcp.server_process import (
    MAX_LINES_PER_SECOND,
    MAX_LOG_BYTES,
    ServerLog,
    ServerProcess,
    start_server,
)
from toolfold.safety.redaction import Redaction

TIMEOUT_S = 60.0
SH = shutil.which("sh") or "/bin/sh"


@pytest.fixture
def log(tmp_path: Path) -> ServerLog:
    return ServerLog(tmp_path / "logs" / "some.log", Redaction(["a-secret-value"]))


async def start_script(log: ServerLog, script: str, **environment: str) -> ServerProcess:
    known = {"PATH": os.environ["PATH"], **environment}
    return await start_server("some", SH, ("-c", script), environment=known, cwd=None, log=log)


async def wait_until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - processes tell nobody
            await asyncio.sleep(0.01)


async def wait_for_content(file: Path) -> str:
    """Wait until a file has content and return it."""
    await wait_until(lambda: file.exists() and file.read_text().endswith("\n"))
    return file.read_text()  # noqa: ASYNC240 - a small one


async def wait_until_gone(*pids: int) -> None:
    """Wait until none of the given processes exists."""
    await wait_until(lambda: not any(map(is_running, pids)))


def read_stat(pid: int) -> list[str]:
    """Return the fields of a process from its state on; empty if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def is_running(pid: int) -> bool:
    return read_stat(pid)[:1] not in ([], ["Z"])


linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks into /proc")


async def test_server_process_can_finish_its_work_after_its_stdin_is_closed(
    log: ServerLog, tmp_path: Path
) -> None:
    child = await start_script(log, f"cat >/dev/null; echo goodbye >{tmp_path}/said")
    await child.close(grace=TIMEOUT_S)
    assert (tmp_path / "said").read_text() == "goodbye\n"


@linux
async def test_server_process_that_ignores_signals_and_the_end_of_stdin_is_killed(
    log: ServerLog, tmp_path: Path
) -> None:
    child = await start_script(
        log, f"trap '' TERM HUP INT; echo up >{tmp_path}/up; while :; do sleep 600; done"
    )
    await wait_for_content(tmp_path / "up")
    await child.close(grace=0.05)
    await wait_until_gone(child.pid)


@linux
@pytest.mark.parametrize("prefix", ["", "setsid ", "nohup "])
async def test_child_processes_of_a_server_process_are_killed_with_the_server_process(
    log: ServerLog, tmp_path: Path, prefix: str
) -> None:
    file = tmp_path / "pids"
    child = await start_script(log, f"{prefix}sleep 600 >/dev/null 2>&1 & echo $! >{file}; cat >/dev/null")
    left = int(await wait_for_content(file))
    assert is_running(left)
    await child.close()
    await wait_until_gone(child.pid, left)


@linux
async def test_child_processes_of_a_crashed_server_process_are_killed(log: ServerLog, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    child = await start_script(log, f"setsid sleep 600 & echo $! >{file}; exit 3")
    left = int(await wait_for_content(file))
    assert "exit code 3" in await child.describe_exit(TIMEOUT_S)
    await child.close()
    await wait_until_gone(left)


@linux
async def test_server_process_is_killed_even_if_the_task_that_closes_it_is_cancelled(
    log: ServerLog, tmp_path: Path
) -> None:
    child = await start_script(log, f"echo up >{tmp_path}/up; exec sleep 600")
    await wait_for_content(tmp_path / "up")
    closing = asyncio.create_task(child.close(grace=TIMEOUT_S))
    await asyncio.sleep(0.05)
    closing.cancel()
    await wait_until_gone(child.pid)
    await child.close()


@linux
@linux
async def test_cancelling_the_start_of_a_server_process_leaves_no_open_pipe_and_no_process(
    log: ServerLog,
) -> None:
    def count_open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def list_children() -> set[str]:
        return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())

    files, children = count_open_files(), list_children()
    start = asyncio.create_task(start_script(log, "sleep 600"))
    await asyncio.sleep(0)  # runs it until the pipes are being connected
    assert list_children() > children
    start.cancel()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await start
    await wait_until(lambda: list_children() == children and count_open_files() == files)
    assert cancelled.tb is not None  # which holds the pipes, so that nothing else has closed them


async def test_closing_one_server_process_leaves_other_server_processes_running(
    log: ServerLog, tmp_path: Path
) -> None:
    one = await start_script(log, "cat >/dev/null")
    other = await start_script(log, "cat >/dev/null")
    await one.close()
    await wait_until_gone(one.pid)
    assert is_running(other.pid)
    await other.close()


PARENT = """
import sys, time
from pathlib import Path
from toolfold.config import load_config
from toolfold import open_runtime
home, project, server, python = sys.argv[1:]
servers = {
    fault: {"command": python, "args": [server, "--fault", fault], "env": {"OF_THE_TEST": home}}
    for fault in ("grandchild", "escaped-grandchild", "deaf-to-closing", "silent-at-start")
}
settings = {"mcp.servers": servers, "mcp.wait_seconds": 0}
config = load_config(project=Path(project), env={"TOOLFOLD_HOME": home, "HOME": home}, overrides=settings)
runtime = open_runtime(config)
while sum(each.state == "up" for each in runtime.mcp.states()) < 3:
    time.sleep(0.02)
print("up", flush=True)
time.sleep(600)
"""


def find_test_processes(home: Path) -> set[int]:
    """Return the servers' processes and their descendants, identified by the home directory of this test."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"OF_THE_TEST={home}\0".encode() in file.read_bytes():
                found.add(int(file.parent.name))
    return {pid for pid in found if is_running(pid)}


@linux
def test_server_processes_end_when_the_toolfold_process_that_started_them_is_killed(
    home: Path, tmp_path: Path
) -> None:
    words = [sys.executable, "-c", PARENT, str(home), str(tmp_path), str(SERVER), sys.executable]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        try:
            assert parent.stdout.readline() == "up\n"
            end = time.monotonic() + TIMEOUT_S
            while len(find_test_processes(home)) < 6 and time.monotonic() < end:
                time.sleep(0.02)
            assert len(find_test_processes(home)) >= 6
        finally:
            parent.send_signal(signal.SIGKILL)
    end = time.monotonic() + TIMEOUT_S
    while (left := find_test_processes(home)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not left


async def test_server_process_receives_only_the_environment_variables_passed_to_its_start(
    log: ServerLog, tmp_path: Path
) -> None:
    child = await start_script(
        log, f"env >{tmp_path}/seen.part; mv {tmp_path}/seen.part {tmp_path}/seen", GIVEN="1"
    )
    names = {line.partition("=")[0] for line in (await wait_for_content(tmp_path / "seen")).splitlines()}
    await child.close()
    assert {"PATH", "GIVEN", "TOOLFOLD_SERVER"} <= names
    assert names <= {
        "PATH",
        "GIVEN",
        "TOOLFOLD_SERVER",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
    }  # set by the shell itself


@pytest.mark.parametrize(
    ("command", "cwd", "says"),
    [("no-such-program", None, "Install it"), ("sh", "no-such-folder", "does not exist")],
)
async def test_start_error_states_that_the_program_or_working_directory_of_the_server_does_not_exist(
    log: ServerLog, tmp_path: Path, command: str, cwd: str | None, says: str
) -> None:
    folder = tmp_path / cwd if cwd else None
    with pytest.raises(NotStarted, match=says):
        await start_server("some", command, (), environment={"PATH": os.environ["PATH"]}, cwd=folder, log=log)


async def test_server_command_with_a_relative_path_is_started_from_the_working_directory(
    log: ServerLog, tmp_path: Path
) -> None:
    program = tmp_path / "serve"
    program.write_text(f"#!{SH}\necho here >said\n")
    program.chmod(0o700)
    known = {"PATH": os.environ["PATH"]}
    child = await start_server("some", "./serve", (), environment=known, cwd=tmp_path, log=log)
    assert await wait_for_content(tmp_path / "said") == "here\n"
    await child.close()


async def test_describe_exit_returns_the_exit_code_and_last_log_lines_of_a_server_without_secrets(
    log: ServerLog,
) -> None:
    child = await start_script(log, "echo cannot log in with a-secret-value >&2; exit 9")
    description = await child.describe_exit(TIMEOUT_S)
    await child.close()
    assert "exit code 9" in description
    assert "cannot log in with" in description
    assert "a-secret-value" not in description


async def test_server_log_is_readable_only_by_its_owner_and_contains_no_secrets(
    log: ServerLog, tmp_path: Path
) -> None:
    log.note("token a-secret-value, Authorization: Bearer abcdefghijklmnop")
    log.close()
    file = tmp_path / "logs" / "some.log"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert "a-secret-value" not in file.read_text()
    assert "abcdefghijklmnop" not in file.read_text()


async def test_server_log_is_rotated_to_at_most_two_files(log: ServerLog, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "some.log").write_bytes(b"x" * (MAX_LOG_BYTES - 10))
    (folder / "some.log.1").write_bytes(b"older")
    log.note("more than fits")
    log.close()
    assert {file.name for file in folder.iterdir()} == {"some.log", "some.log.1"}
    assert (folder / "some.log").read_text() == "more than fits\n"


async def test_server_log_lines_above_the_limit_per_second_are_dropped(
    log: ServerLog, tmp_path: Path
) -> None:
    child = await start_script(log, "seq -f 'line %.0f' 0 19999 >&2; cat")
    child.stdin.close()
    await child.describe_exit(TIMEOUT_S)
    await child.close()
    lines = (tmp_path / "logs" / "some.log").read_text().splitlines()
    assert lines[0] == "line 0"
    assert len(lines) < 20_000
    assert any("were dropped" in line for line in lines) or len(lines) <= MAX_LINES_PER_SECOND


async def test_endless_server_log_line_is_truncated(log: ServerLog, tmp_path: Path) -> None:
    child = await start_script(log, "head -c 3000000 /dev/zero | tr '\\0' x >&2; echo >&2; echo after >&2")
    await child.describe_exit(TIMEOUT_S)
    await child.close()
    lines = (tmp_path / "logs" / "some.log").read_text().splitlines()
    assert [line[:3] for line in lines] == ["xxx", "aft"]
    assert len(lines[0]) < 5_000


async def test_server_log_is_not_written_through_a_symlink(log: ServerLog, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "some.log").symlink_to(tmp_path / "elsewhere")
    log.note("words")
    log.close()
    assert not (tmp_path / "elsewhere").exists()
    assert log.tail() == "words"
