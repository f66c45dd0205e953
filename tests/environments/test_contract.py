"""The contract of an environment: every test here runs with every kind of backend."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable

import pytest

from tests.environments.backend_kinds import find_traces
from tests.environments.cloud_backends import SHORT_LEASE
from tests.environments.conftest import FULL_CONTRACT, BackendSite, for_every_backend, for_every_engine
from tests.thorough import runs_all_tests
from toolfold.core.errors import CallError, EnvironmentFailed
from toolfold.tools.environments import (
    BackgroundProcess,
    CommandResult,
    Environment,
    EnvironmentLimits,
    RunningCommand,
    TerminalSize,
)

WAIT_TIMEOUT_S = 60.0
FOREVER = "sleep 86400"
# A process without environment variables, in its own session, whose parent has exited.
DETACHED = (
    '(env -i PATH="$PATH" "$(command -v setsid)" sh -c "sleep 86400; :" {token} </dev/null >/dev/null 2>&1 &)'
)


async def wait_until(condition: Callable[[], Awaitable[object]]) -> None:
    """Wait until the condition is true, with a timeout."""
    end = time.monotonic() + WAIT_TIMEOUT_S
    while not await condition():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.05)


async def run_until_timeout(environment: Environment, command: str) -> CommandResult:
    """Run a command into its timeout, and repeat with more time if it printed nothing on a busy machine."""
    for seconds in (0.5, 2, 8, 32):
        done = await environment.run(command, timeout_s=seconds)
        if done.output:
            break
    return done


async def wait_for_sleep(token: str) -> None:
    async def is_running() -> bool:
        return any(": sleep" in trace for trace in find_traces(token))

    await wait_until(is_running)


async def wait_for_start(token: str) -> None:
    async def is_running() -> bool:
        return bool(find_traces(token, variables=False))

    await wait_until(is_running)


async def wait_until_gone(token: str) -> None:
    async def is_gone() -> bool:
        return not find_traces(token)

    await wait_until(is_gone)


async def wait_for_log(environment: Environment, process: BackgroundProcess, text: str) -> None:
    async def is_logged() -> bool:
        return text.encode() in await environment.processes.read_log(process.name, 0, 100_000)

    await wait_until(is_logged)


class TestForegroundCommand:
    """Commands in the foreground."""

    @for_every_engine
    async def test_exit_code_of_a_command_is_returned(
        self, environment: Environment, site: BackendSite
    ) -> None:
        codes = [0, 1, 7, 125, 126, 127, 137, 143, 255]
        if site.kind.name not in FULL_CONTRACT and not runs_all_tests():
            codes = codes[-2:]
        results = [await environment.run(f"echo out; exit {code}") for code in codes]
        assert [(done.exit_code, done.output, done.timed_out) for done in results] == [
            (code, "out\n", False) for code in codes
        ]

    async def test_command_with_an_unknown_program_returns_exit_code_127(
        self, environment: Environment
    ) -> None:
        done = await environment.run("no-such-program")
        assert done.exit_code == 127
        assert "no-such-program" in done.output

    async def test_command_that_kills_its_own_shell_returns_exit_code_137(
        self, environment: Environment
    ) -> None:
        assert (await environment.run("kill -9 $$")).exit_code == 137

    async def test_command_that_replaces_its_shell_with_exec_returns_the_result_of_the_new_program(
        self, environment: Environment
    ) -> None:
        done = await environment.run("exec sh -c 'echo other; exit 9'")
        assert (done.exit_code, done.output) == (9, "other\n")

    async def test_command_that_closes_its_output_still_runs_to_completion(
        self, environment: Environment
    ) -> None:
        done = await environment.run("exec sh -c 'sleep 0.5; echo made >file; exit 9' >/dev/null 2>&1")
        assert (done.exit_code, done.output) == (9, "")
        assert (await environment.run("cat file")).output == "made\n"

    async def test_command_with_a_shell_syntax_error_returns_exit_code_2_and_the_next_command_works(
        self, environment: Environment
    ) -> None:
        done = await environment.run("if")
        assert done.exit_code == 2
        assert (await environment.run("echo on")).output == "on\n"

    async def test_stdin_passed_with_a_command_is_read_by_the_command(self, environment: Environment) -> None:
        given = bytes(range(256)) * 2_000
        done = await environment.run("wc -c; cat; echo nothing follows", stdin=given)
        assert done.output.split() == [str(len(given)), "nothing", "follows"]

    async def test_command_without_stdin_reads_end_of_file(self, environment: Environment) -> None:
        assert (await environment.run("cat; echo over")).output == "over\n"

    async def test_command_that_does_not_read_its_large_stdin_still_returns_its_output(
        self, environment: Environment
    ) -> None:
        assert (await environment.run("echo no", stdin=b"x" * 5_000_000)).output == "no\n"

    async def test_stdout_and_stderr_of_a_command_keep_their_order(self, environment: Environment) -> None:
        done = await environment.run("for n in 1 2 3; do echo out $n; echo err $n >&2; done")
        assert done.output.split("\n")[:-1] == [f"{kind} {n}" for n in (1, 2, 3) for kind in ("out", "err")]

    async def test_output_listener_receives_output_while_the_command_runs(
        self, environment: Environment, token: str
    ) -> None:
        heard: list[str] = []
        running = asyncio.create_task(
            environment.run(f"echo first {token}; {FOREVER}", listener=heard.append)
        )

        async def has_output() -> bool:
            return "first" in "".join(heard)

        await wait_until(has_output)
        assert not running.done()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    async def test_unicode_quotes_and_newlines_in_a_command_are_preserved(
        self, environment: Environment
    ) -> None:
        text = "naïve 'quoted' \"twice\" $HOME `x` \\ 漢字 🦊\nnext line\n"
        done = await environment.run(f"cat <<'END'\n{text}END\n")
        assert done.output == text

    async def test_command_may_be_longer_than_the_argument_limit_of_the_operating_system(
        self, environment: Environment
    ) -> None:
        done = await environment.run(f": {'x' * 300_000}\necho long; exit 3")
        assert (done.exit_code, done.output) == (3, "long\n")

    async def test_invalid_utf8_and_nul_bytes_in_command_output_are_replaced_with_visible_characters(
        self, environment: Environment
    ) -> None:
        done = await environment.run(r"printf 'a\377b\0c\303'")
        assert done.output == "a\ufffdb\N{SYMBOL FOR NULL}c\ufffd"

    async def test_long_command_output_is_truncated_and_stored_on_disk(
        self, environment: Environment
    ) -> None:
        done = await environment.run("i=0; while [ $i -lt 30000 ]; do echo line $i; i=$((i+1)); done")
        whole = "".join(f"line {n}\n" for n in range(30_000))
        assert done.output_file is not None
        assert done.output_file.read_text() == whole
        assert len(done.output) < environment.limits.max_shown_bytes + 100
        assert done.output.startswith("line 0\n")
        assert done.output.endswith("line 29999\n")
        assert (done.total_bytes, done.lost_bytes) == (len(whole), 0)

    async def test_command_returns_while_its_background_process_runs_until_the_environment_is_closed(
        self, site: BackendSite, token: str
    ) -> None:
        async with Environment(site.backend()) as environment:
            done = await environment.run(f"MARK={token} {FOREVER} & echo started; exit 4")
            assert (done.exit_code, done.output) == (4, "started\n")
        assert find_traces(token) == []


class TestCommandTermination:
    """A terminated command leaves no process and affects nothing else."""

    IGNORING_SIGNALS = (
        "trap '' TERM HUP INT; export MARK={token}; (setsid sh -c '{forever}; :' &);"
        " (env -i {forever} &); {forever} & {forever}; {forever}"
    )

    @for_every_engine
    async def test_command_that_times_out_leaves_no_process(
        self, environment: Environment, token: str
    ) -> None:
        command = "echo before; " + self.IGNORING_SIGNALS.format(token=token, forever=FOREVER)
        done = await run_until_timeout(environment, command)
        assert find_traces(token) == []
        assert (done.timed_out, done.exit_code) == (True, None)
        assert done.output.startswith("before\n")
        assert (await environment.run("echo still here")).output == "still here\n"

    async def test_timeout_terminates_even_a_detached_process_with_an_empty_environment(
        self, environment: Environment, token: str
    ) -> None:
        done = await environment.run(f"{DETACHED.format(token=token)}; {FOREVER}", timeout_s=2)
        assert done.timed_out
        await wait_until_gone(token)

    async def test_timeout_applies_to_a_command_that_closed_its_output(
        self, environment: Environment, token: str
    ) -> None:
        done = await environment.run(f"export MARK={token}; exec {FOREVER} >/dev/null 2>&1", timeout_s=0.5)
        assert find_traces(token) == []
        assert (done.timed_out, done.exit_code) == (True, None)

    async def test_cancelled_command_leaves_no_process(self, environment: Environment, token: str) -> None:
        running = asyncio.create_task(
            environment.run(self.IGNORING_SIGNALS.format(token=token, forever=FOREVER))
        )
        await wait_for_sleep(token)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert find_traces(token) == []
        assert (await environment.run("echo still here")).output == "still here\n"

    async def test_output_that_a_command_writes_after_sigterm_is_returned(
        self, environment: Environment, token: str
    ) -> None:
        command = f"trap 'echo last {token}; exit 1' TERM; echo ready; {FOREVER} & wait"
        done = await run_until_timeout(environment, command)
        assert done.output == f"ready\nlast {token}\n"

    async def test_terminating_a_command_does_not_terminate_other_commands(
        self, environment: Environment, token: str
    ) -> None:
        slow = environment.run(f"export MARK={token}; {FOREVER}", timeout_s=0.5)
        neighbour = environment.run("cat; echo done", stdin=b"x" * 100)
        ended, other = await asyncio.gather(slow, neighbour)
        assert ended.timed_out
        assert other.exit_code == 0

    async def test_commands_are_terminated_when_the_toolfold_process_that_started_them_is_killed(
        self, environment: Environment, site: BackendSite, token: str
    ) -> None:
        command = f"echo up; export MARK={token}; (setsid {FOREVER} &); {FOREVER}"
        client = await _start_client(site, "foreground", command)
        assert client.stdout is not None
        assert await client.stdout.readline() == b"up\n"
        client.send_signal(signal.SIGKILL)
        await client.wait()
        await wait_until_gone(token)
        assert (await environment.run("echo on")).output == "on\n"

    async def test_closing_an_environment_terminates_its_commands_and_a_second_close_does_nothing(
        self, site: BackendSite, token: str
    ) -> None:
        environment = Environment(site.backend())
        running = asyncio.create_task(environment.run(f"export MARK={token}; {FOREVER}"))
        await wait_for_sleep(token)
        await environment.close()
        await environment.close()
        await wait_until_gone(token)
        with pytest.raises(EnvironmentFailed):
            await running
        with pytest.raises(EnvironmentFailed):
            await environment.run("true")


class TestTaskState:
    """A task keeps its directory and variables between commands."""

    async def test_first_command_of_a_terminal_task_starts_in_the_home_directory(
        self, environment: Environment
    ) -> None:
        done = await environment.run("pwd")
        assert done.output.strip() == done.directory == environment.backend.home

    @for_every_backend
    async def test_directory_and_exported_variables_persist_between_commands_of_a_terminal_task(
        self, environment: Environment
    ) -> None:
        odd = 'it\'s\n"odd" $HOME \\'
        await environment.run(f"mkdir -p 'a b/ç' && cd 'a b/ç' && export ODD={_quote_text(odd)} && hidden=1")
        done = await environment.run('pwd; printf "%s|%s" "$ODD" "$hidden"')
        assert done.output == f"{environment.backend.home}/a b/ç\n{odd}|"

    async def test_variable_that_a_command_unsets_is_unset_in_the_next_command_too(
        self, environment: Environment
    ) -> None:
        await environment.run("unset NAMED")
        assert (await environment.run("echo ${NAMED-none}")).output == "none\n"

    async def test_directory_and_exported_variables_persist_after_a_command_that_exits_with_an_error(
        self, environment: Environment
    ) -> None:
        await environment.run("cd /; export KEPT=yes; set -e; false; echo never")
        assert (await environment.run("pwd; echo $KEPT; exit 1")).output == "/\nyes\n"

    async def test_next_command_works_after_a_command_made_exported_variables_readonly(
        self, environment: Environment
    ) -> None:
        await environment.run(
            "cd /usr; export UID KEPT=1; readonly KEPT TOOLFOLD_RUN TOOLFOLD_PWD=/etc;"
            " export __toolfold_mark __toolfold_task"
        )
        await environment.run("true")
        done = await environment.run("echo $KEPT; KEPT=2; echo $KEPT; cd /; pwd")
        assert (done.exit_code, done.output.splitlines()[-3:]) == (0, ["1", "2", "/"])
        assert (await environment.run("pwd")).output == "/\n"

    async def test_terminal_tasks_have_separate_current_directories_and_exported_variables(
        self, environment: Environment
    ) -> None:
        await environment.run("cd /; export MINE=1", task="one")
        other = await environment.run("pwd; echo ${MINE-none}", task="two")
        assert other.output == f"{environment.backend.home}\nnone\n"
        assert (await environment.run("pwd", task="one")).output == "/\n"

    async def test_directory_passed_with_a_command_does_not_become_the_current_directory_of_later_commands(
        self, environment: Environment
    ) -> None:
        done = await environment.run("pwd; export SET=1; cd bin", directory="/usr")
        home = environment.backend.home
        assert (done.output, done.directory) == ("/usr\n", home)
        assert (await environment.run("pwd; echo $SET")).output == f"{home}\n1\n"

    async def test_command_in_the_current_directory_of_its_task_can_change_that_directory(
        self, environment: Environment
    ) -> None:
        await environment.run("cd /usr")
        assert (await environment.run("cd bin", directory="/usr")).directory == "/usr/bin"
        assert environment.working_directory() == "/usr/bin"

    async def test_running_a_command_in_a_missing_directory_raises_an_error(
        self, environment: Environment
    ) -> None:
        await environment.run("mkdir -p here; : >here/file")
        for folder in ("/nowhere", "here/file"):
            with pytest.raises(
                CallError, match=f"Cannot enter the directory {folder} from .*Create it"
            ) as said:
                await environment.run(": >ran", directory=folder)
            assert "shell/command" not in str(said.value)
        assert (await environment.run("pwd; ls")).output == f"{environment.backend.home}\nhere\n"

    async def test_starting_a_background_process_in_a_missing_directory_raises_an_error(
        self, environment: Environment
    ) -> None:
        with pytest.raises(CallError, match=r"Cannot enter the directory nope from .*Create it first"):
            await environment.start_process(": >ran", directory="nope")
        assert (await environment.run("ls")).output == ""
        assert [each.state for each in await environment.processes.list_all()] == ["ended"]

    async def test_command_runs_in_the_home_directory_with_a_note_if_the_current_directory_was_deleted(
        self, environment: Environment
    ) -> None:
        await environment.run("mkdir gone; cd gone; rmdir ../gone")
        done = await environment.run("pwd")
        assert "no longer exists" in done.output
        assert done.output.endswith(f"{environment.backend.home}\n")

    async def test_directory_and_variables_of_a_task_are_intact_after_concurrent_commands(
        self, environment: Environment
    ) -> None:
        await environment.run("export KEPT=yes; cd /usr")
        await asyncio.gather(*(environment.run(f"export N={n}") for n in range(10)))
        done = await environment.run("pwd; echo $KEPT; case $N in [0-9]) echo one of them;; esac")
        assert done.output == "/usr\nyes\none of them\n"

    async def test_twenty_concurrent_commands_each_return_the_correct_output_and_exit_code(
        self, environment: Environment
    ) -> None:
        commands = (environment.run(f"echo {n}; exit {n}", task=str(n)) for n in range(20))
        done = await asyncio.gather(*commands)
        assert [(each.output, each.exit_code) for each in done] == [(f"{n}\n", n) for n in range(20)]


class TestCommandVariables:
    @for_every_backend
    async def test_api_keys_in_the_environment_of_toolfold_are_not_passed_to_commands(
        self, environment: Environment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
        assert "very-secret" not in (await environment.run("env; export -p; set")).output

    async def test_environment_variables_named_in_the_settings_are_passed_to_commands(
        self, environment: Environment
    ) -> None:
        assert (await environment.run('printf %s "$NAMED"')).output == 'it\'s\n"given" $HOME'

    async def test_values_of_configured_variables_do_not_appear_in_the_process_list(
        self, environment: Environment
    ) -> None:
        await environment.run(FOREVER, timeout_s=0.1)
        await environment.start_process(FOREVER)
        assert find_traces('"given"', variables=False) == []


class TestTerminal:
    async def test_command_with_pty_has_a_terminal_of_the_given_size(self, environment: Environment) -> None:
        done = await environment.run("[ -t 0 ] && [ -t 1 ] && stty size", pty=TerminalSize(31, 97))
        assert (done.exit_code, done.output.split()) == (0, ["31", "97"])

    async def test_command_without_pty_has_no_terminal(self, environment: Environment) -> None:
        assert (await environment.run("[ -t 0 ] || [ -t 1 ] || [ -t 2 ]")).exit_code == 1

    async def test_program_on_a_terminal_sees_the_new_size_after_the_terminal_is_resized(
        self, environment: Environment
    ) -> None:
        running = await environment.start("while stty size; do read line; done", pty=TerminalSize(10, 20))
        await _read_until(running, b"10 20")
        running.resize(TerminalSize(44, 132))
        async with asyncio.timeout(WAIT_TIMEOUT_S):  # the resize may take a while to arrive
            heard = b""
            while b"44 132" not in heard:
                await running.write(b"\n")
                heard += await _read_until(running, b"2")
        await environment.finish(running)

    async def test_control_c_on_the_terminal_interrupts_the_program(
        self, environment: Environment, token: str
    ) -> None:
        command = f"trap 'echo caught; exit 3' INT; export MARK={token}; echo ready; {FOREVER}; echo never"
        running = await environment.start(command, pty=TerminalSize())
        await _read_until(running, b"ready\r\n")
        await wait_for_sleep(token)
        await running.write(b"\x03")
        assert b"never" not in await _read_until(running, b"caught")
        while await running.read():
            pass
        assert running.reported_exit is not None
        assert running.reported_exit.exit_code == 3
        await environment.finish(running)

    async def test_command_that_times_out_on_a_terminal_leaves_no_process(
        self, environment: Environment, token: str
    ) -> None:
        done = await environment.run(f"export MARK={token}; {FOREVER}", pty=TerminalSize(), timeout_s=0.5)
        assert done.timed_out
        assert find_traces(token) == []


class TestFileTransfer:
    @for_every_backend
    async def test_binary_file_written_to_the_environment_has_unchanged_content_when_read(
        self, environment: Environment
    ) -> None:
        data = bytes(range(256)) * 4_000 + b"\x1e\r\n"
        await environment.write_file("new/folder/file name", data)
        assert await environment.read_file("new/folder/file name") == data
        assert await environment.read_file("new/folder/file name", offset=250, max_bytes=10) == data[250:260]

    async def test_empty_file_written_to_the_environment_is_empty_when_read(
        self, environment: Environment
    ) -> None:
        await environment.write_file("empty", b"")
        assert await environment.read_file("empty") == b""

    async def test_writing_through_a_symlink_in_the_environment_preserves_the_symlink_and_the_file_mode(
        self, environment: Environment
    ) -> None:
        await environment.run("echo old >real; chmod 751 real; ln -s real link")
        await environment.write_file("link", b"new")
        done = await environment.run("cat real; [ -L link ] && ls -l real | cut -c1-10; ls")
        assert done.output == "new-rwxr-x--x\nlink\nreal\n"

    async def test_concurrent_writes_to_one_file_leave_the_complete_content_of_one_of_the_writes(
        self, environment: Environment
    ) -> None:
        texts = [bytes([65 + number]) * 50_000 for number in range(4)]
        await environment.run("mkdir at-once")
        await asyncio.gather(*(environment.write_file("at-once/file", text) for text in texts))
        assert await environment.read_file("at-once/file") in texts
        assert (await environment.run("ls at-once")).output == "file\n"

    async def test_relative_file_path_is_resolved_against_the_current_directory_of_the_terminal_task(
        self, environment: Environment
    ) -> None:
        await environment.run("mkdir here; cd here", task="one")
        await environment.write_file("file", b"x", task="one")
        assert (await environment.run("ls here", task="two")).output == "file\n"

    @pytest.mark.parametrize("path", ["missing", "/", "folder"])
    async def test_reading_a_missing_file_or_a_directory_in_the_environment_raises_call_error(
        self, environment: Environment, path: str
    ) -> None:
        await environment.run("mkdir folder")
        with pytest.raises(CallError, match=path):
            await environment.read_file(path)

    async def test_writing_to_a_directory_or_below_a_file_in_the_environment_raises_call_error(
        self, environment: Environment
    ) -> None:
        await environment.run("mkdir folder; : >file")
        for path in ("folder", "file/below"):
            with pytest.raises(CallError):
                await environment.write_file(path, b"x")


class TestBackgroundProcess:
    @for_every_backend
    async def test_exit_of_a_background_process_is_reported_once_with_its_exit_code(
        self, environment: Environment
    ) -> None:
        started = await environment.start_process("echo begun; read line; echo got $line; exit 5")
        assert (started.state, started.exit_code) == ("running", None)
        assert [each.name for each in await environment.processes.list_all()] == [started.name]
        await environment.processes.write(started.name, b"this\n")
        ended = await environment.processes.wait(started.name, WAIT_TIMEOUT_S)
        assert (ended.state, ended.exit_code) == ("ended", 5)
        assert await environment.processes.read_log(started.name, 0, 1_000) == b"begun\ngot this\n"
        assert await environment.processes.read_log(started.name, 6, 3) == b"got"
        (notice,) = await environment.processes.take_notices()
        assert (notice.process.name, notice.process.exit_code, notice.lines) == (started.name, 5, ())
        assert await environment.processes.take_notices() == []

    async def test_background_process_starts_in_the_current_directory_of_its_terminal_task(
        self, environment: Environment
    ) -> None:
        await environment.run("cd /usr; export FROM=task")
        process = await environment.start_process('pwd; echo $FROM; printf %s "$NAMED"')
        await environment.processes.wait(process.name, WAIT_TIMEOUT_S)
        log = await environment.processes.read_log(process.name, 0, 1_000)
        assert log.decode() == '/usr\ntask\nit\'s\n"given" $HOME'

    async def test_background_command_may_be_longer_than_the_argument_limit_of_the_operating_system(
        self, environment: Environment
    ) -> None:
        process = await environment.start_process(f": {'x' * 300_000}\nexit 3")
        assert (await environment.processes.wait(process.name, WAIT_TIMEOUT_S)).exit_code == 3

    async def test_sending_a_signal_with_an_unknown_name_to_a_background_process_raises_call_error(
        self, environment: Environment
    ) -> None:
        process = await environment.start_process("read line")
        for name in ("NONE", "INT\n9 end-process x 1"):
            with pytest.raises(CallError, match="no such signal"):
                await environment.processes.send_signal(process.name, name)

    async def test_write_to_a_background_process_based_on_an_outdated_input_log_is_rejected(
        self, environment: Environment
    ) -> None:
        process = await environment.start_process("cat", directory="/usr")
        before = await environment.processes.get_input_log(process.name)
        assert (before.command, before.directory, before.pty, before.entries) == ("cat", "/usr", False, [])
        await environment.processes.write(process.name, b"one\ntw", revision=before.revision)
        with pytest.raises(CallError, match="has changed meanwhile"):
            await environment.processes.write(process.name, b"ice\n", revision=before.revision)
        after = await environment.processes.get_input_log(process.name)
        assert (after.entries, after.incomplete_reason) == ([("write", "one\ntw")], "")
        await environment.processes.write(process.name, b"o\n", revision=after.revision, close=True)
        await environment.processes.wait(process.name, WAIT_TIMEOUT_S)
        assert await environment.processes.read_log(process.name, 0, 100) == b"one\ntwo\n"

    async def test_standard_input_of_a_background_process_can_be_closed(
        self, environment: Environment
    ) -> None:
        process = await environment.start_process("wc -c")
        await environment.processes.write(process.name, b"12345", close=True)
        assert (await environment.processes.wait(process.name, WAIT_TIMEOUT_S)).exit_code == 0
        assert (await environment.processes.read_log(process.name, 0, 100)).strip() == b"5"

    async def test_background_process_receives_a_signal_sent_to_it(self, environment: Environment) -> None:
        process = await environment.start_process(
            "trap 'echo interrupted; exit 6' INT; echo ready; while :; do sleep 0.05; done"
        )
        await wait_for_log(environment, process, "ready")
        await environment.processes.send_signal(process.name, "INT")
        assert (await environment.processes.wait(process.name, WAIT_TIMEOUT_S)).exit_code == 6

    async def test_killing_a_background_process_also_kills_detached_children_with_an_empty_environment(
        self, environment: Environment, token: str
    ) -> None:
        process = await environment.start_process(f"{DETACHED.format(token=token)}; echo begun; {FOREVER}")
        await wait_for_log(environment, process, "begun")
        await wait_for_start(token)
        await environment.processes.kill(process.name)
        await wait_until_gone(token)

    async def test_killing_a_background_process_that_ignores_sigterm_also_kills_its_detached_children(
        self, environment: Environment, token: str
    ) -> None:
        process = await environment.start_process(
            f"trap '' TERM; export MARK={token}; (setsid {FOREVER} &); echo ready; {FOREVER}; {FOREVER}"
        )
        await wait_for_log(environment, process, "ready")
        killed = await environment.processes.kill(process.name)
        assert find_traces(token) == []
        assert killed.state == "ended"
        assert killed.exit_code not in (0, None)
        assert await environment.processes.kill(process.name) == killed

    async def test_watched_word_in_the_output_of_a_background_process_is_reported(
        self, environment: Environment
    ) -> None:
        process = await environment.start_process(
            "echo one; read go; echo now READY; read go; printf 'Password: '; read go",
            watch_words=["READY", "Password:"],
        )
        await wait_for_log(environment, process, "one")
        assert await environment.processes.take_notices() == []
        await environment.processes.write(process.name, b"\n")
        await wait_for_log(environment, process, "READY")
        (notice,) = await environment.processes.take_notices()
        assert notice.lines == ("now READY",)
        await environment.processes.write(process.name, b"\n")
        await wait_for_log(environment, process, "Password")
        (notice,) = await environment.processes.take_notices()
        assert notice.lines == ("Password: ",)

    async def test_starting_more_background_processes_than_the_limit_raises_call_error(
        self, site: BackendSite
    ) -> None:
        async with Environment(site.backend(), limits=EnvironmentLimits(max_processes=2)) as environment:
            both = [await environment.start_process("read line") for _ in range(2)]
            with pytest.raises(CallError, match="2 background processes are running"):
                await environment.start_process("true")
            await environment.processes.kill(both[0].name)
            third = await environment.start_process("read line")
            for each in (both[1], third):
                await environment.processes.kill(each.name)

    async def test_oldest_output_of_a_background_process_is_dropped_when_its_log_exceeds_the_size_limit(
        self, site: BackendSite
    ) -> None:
        async with Environment(
            site.backend(), limits=EnvironmentLimits(max_stored_bytes=10_000)
        ) as environment:
            process = await environment.start_process(
                "i=0; while [ $i -lt 5000 ]; do i=$((i+1)); echo line $i; done; : >all; read go; echo after"
            )

            async def is_truncated() -> bool:
                """Return True if the process has written all lines and its log is truncated."""
                is_written = (await environment.run("[ -e all ]")).exit_code == 0
                current = await environment.processes.get(process.name)
                return (
                    is_written
                    and current.dropped_bytes > 0
                    and current.written_bytes - current.dropped_bytes <= 10_000
                )

            await wait_until(is_truncated)
            await environment.processes.write(process.name, b"\n")
            ended = await environment.processes.wait(process.name, WAIT_TIMEOUT_S)
            assert ended.written_bytes > ended.dropped_bytes
            left = await environment.processes.read_log(process.name, ended.dropped_bytes, 100_000)
            assert left.endswith(b"after\n")
            assert len(left) <= 10_000

    async def test_looking_up_an_unknown_background_process_raises_call_error(
        self, environment: Environment
    ) -> None:
        with pytest.raises(CallError, match="There is no background process 'nobody'"):
            await environment.processes.get("nobody")

    async def test_background_process_can_run_in_a_pseudo_terminal(self, environment: Environment) -> None:
        try:
            process = await environment.start_process(
                "[ -t 0 ] && stty size; read l; exit 8", pty=TerminalSize(9, 99)
            )
        except CallError as error:
            pytest.skip(str(error))
        await wait_for_log(environment, process, "9 99")
        await environment.processes.write(process.name, b"\n")
        assert (await environment.processes.wait(process.name, WAIT_TIMEOUT_S)).exit_code == 8

    async def test_background_process_survives_a_killed_toolfold_process_and_can_be_controlled_by_another(
        self, environment: Environment, site: BackendSite, token: str
    ) -> None:
        if not environment.backend.is_persistent:
            pytest.skip("nothing outlives its client in this place")
        command = f"export MARK={token}; echo begun; read line; echo got $line; {FOREVER}"
        client = await _start_client(site, "background", command)
        assert client.stdout is not None
        name = (await client.stdout.readline()).decode().strip()
        client.send_signal(signal.SIGKILL)
        await client.wait()
        found = await environment.processes.get(name)
        assert (found.state, found.command) == ("running", command)
        await environment.processes.write(name, b"this\n")
        await wait_for_log(environment, found, "got this")
        assert (await environment.processes.kill(name)).state == "ended"
        assert find_traces(token) == []


async def test_concurrent_writes_to_the_standard_input_of_a_program_arrive_once_and_are_not_interleaved(
    site: BackendSite,
) -> None:
    backend = site.backend()
    await backend.open()
    channel = await backend.spawn(["cat"], env={}, pty=None)
    lines = [b"%d %s\n" % (n, b"x" * 50) for n in range(200)]
    try:
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await asyncio.gather(*map(channel.write, lines))
            await channel.close_input()
            heard = b""
            while data := await channel.read():
                heard += data
    finally:
        await channel.close()
        await backend.close()
    assert sorted(heard.splitlines(keepends=True)) == sorted(lines)


@for_every_backend
async def test_readiness_check_of_an_available_backend_reports_the_backend_as_ready(
    site: BackendSite,
) -> None:
    readiness = await site.backend().check()
    assert (readiness.available, readiness.advice) == (True, "")


async def _start_client(site: BackendSite, how: str, command: str) -> asyncio.subprocess.Process:
    options = json.dumps({**site.options, **SHORT_LEASE})
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.environments.backend_kinds", site.kind.name, options, how, command),
        stdout=asyncio.subprocess.PIPE,
    )


async def _read_until(running: RunningCommand, wanted: bytes) -> bytes:
    heard = b""
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while wanted not in heard:
            data = await running.read()
            assert data, heard
            heard += data
    return heard


def _quote_text(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
