"""What a terminal promises, wherever it runs: every test here runs in every kind of place."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable

import pytest

from tests.environments.clouds import SHORT_LEASE
from tests.environments.conftest import Site
from tests.environments.places import traces
from toolfold.environments import Bounds, Completed, Environment, Process, Running, Size
from toolfold.errors import CallError, EnvironmentFailed

PATIENCE = 60.0
FOREVER = "sleep 86400"
# Without its environment, in a session of its own, and its parent is gone.
SHAKEN_OFF = (
    '(env -i PATH="$PATH" "$(command -v setsid)" sh -c "sleep 86400; :" {token} </dev/null >/dev/null 2>&1 &)'
)


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    """Wait for something to become true, but not for ever."""
    end = time.monotonic() + PATIENCE
    while not await condition():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.02)


async def out_of_time(environment: Environment, command: str) -> Completed:
    """What came of a command that has begun to speak when its time is over: a busy machine may be slow to."""
    for seconds in (0.5, 2, 8, 32):
        done = await environment.run(command, seconds=seconds)
        if done.output:
            break
    return done


async def asleep_somewhere(token: str) -> None:
    async def seen() -> bool:
        return any(": sleep" in trace for trace in traces(token))

    await until(seen)


async def begun_somewhere(token: str) -> None:
    async def seen() -> bool:
        return bool(traces(token, variables=False))

    await until(seen)


async def gone_everywhere(token: str) -> None:
    async def gone() -> bool:
        return not traces(token)

    await until(gone)


async def written(environment: Environment, process: Process, text: str) -> None:
    async def there() -> bool:
        return text.encode() in await environment.processes.log(process.name, 0, 100_000)

    await until(there)


class TestACommand:
    """In the foreground."""

    @pytest.mark.parametrize("code", [0, 1, 7, 125, 126, 127, 137, 143, 255])
    async def test_an_exit_code_is_a_result(self, environment: Environment, code: int) -> None:
        done = await environment.run(f"echo out; exit {code}")
        assert (done.code, done.output, done.timed_out) == (code, "out\n", False)

    async def test_what_is_not_there_is_127(self, environment: Environment) -> None:
        done = await environment.run("no-such-program")
        assert done.code == 127
        assert "no-such-program" in done.output

    async def test_a_shell_that_kills_itself_is_a_result_too(self, environment: Environment) -> None:
        assert (await environment.run("kill -9 $$")).code == 137

    async def test_a_command_that_becomes_another_program_is_one(self, environment: Environment) -> None:
        done = await environment.run("exec sh -c 'echo other; exit 9'")
        assert (done.code, done.output) == (9, "other\n")

    async def test_a_command_that_closes_its_output_runs_to_its_end(self, environment: Environment) -> None:
        done = await environment.run("exec sh -c 'sleep 0.5; echo made >file; exit 9' >/dev/null 2>&1")
        assert (done.code, done.output) == (9, "")
        assert (await environment.run("cat file")).output == "made\n"

    async def test_what_is_no_shell_text_is_an_exit_code(self, environment: Environment) -> None:
        done = await environment.run("if")
        assert done.code == 2
        assert (await environment.run("echo on")).output == "on\n"

    async def test_it_reads_what_it_is_given(self, environment: Environment) -> None:
        given = bytes(range(256)) * 2_000
        done = await environment.run("wc -c; cat; echo nothing follows", given=given)
        assert done.output.split() == [str(len(given)), "nothing", "follows"]

    async def test_without_anything_given_it_reads_the_end(self, environment: Environment) -> None:
        assert (await environment.run("cat; echo over")).output == "over\n"

    async def test_it_need_not_read_what_it_is_given(self, environment: Environment) -> None:
        assert (await environment.run("echo no", given=b"x" * 5_000_000)).output == "no\n"

    async def test_output_and_errors_come_in_the_order_they_were_written(
        self, environment: Environment
    ) -> None:
        done = await environment.run("for n in 1 2 3; do echo out $n; echo err $n >&2; done")
        assert done.output.split("\n")[:-1] == [f"{kind} {n}" for n in (1, 2, 3) for kind in ("out", "err")]

    async def test_output_is_told_while_it_runs(self, environment: Environment, token: str) -> None:
        heard: list[str] = []
        running = asyncio.create_task(
            environment.run(f"echo first {token}; {FOREVER}", listener=heard.append)
        )

        async def told() -> bool:
            return "first" in "".join(heard)

        await until(told)
        assert not running.done()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    async def test_unicode_quotes_and_newlines_arrive(self, environment: Environment) -> None:
        text = "naïve 'quoted' \"twice\" $HOME `x` \\ 漢字 🦊\nnext line\n"
        done = await environment.run(f"cat <<'END'\n{text}END\n")
        assert done.output == text

    async def test_a_command_may_be_longer_than_an_argument(self, environment: Environment) -> None:
        done = await environment.run(f": {'x' * 300_000}\necho long; exit 3")
        assert (done.code, done.output) == (3, "long\n")

    async def test_bytes_that_are_no_text_are_made_visible(self, environment: Environment) -> None:
        done = await environment.run(r"printf 'a\377b\0c\303'")
        assert done.output == "a\ufffdb\N{SYMBOL FOR NULL}c\ufffd"

    async def test_much_output_is_bounded_and_all_of_it_is_on_disk(self, environment: Environment) -> None:
        done = await environment.run("i=0; while [ $i -lt 30000 ]; do echo line $i; i=$((i+1)); done")
        whole = "".join(f"line {n}\n" for n in range(30_000))
        assert done.stored is not None
        assert done.stored.read_text() == whole
        assert len(done.output) < environment.bounds.shown + 100
        assert done.output.startswith("line 0\n")
        assert done.output.endswith("line 29999\n")
        assert (done.bytes, done.lost) == (len(whole), 0)

    async def test_what_it_left_running_keeps_nobody_waiting_and_ends_with_us(
        self, site: Site, token: str
    ) -> None:
        async with Environment(site.backend()) as environment:
            done = await environment.run(f"MARK={token} {FOREVER} & echo started; exit 4")
            assert (done.code, done.output) == (4, "started\n")
        assert traces(token) == []


class TestItsEnd:
    """A command that must end leaves nothing behind and costs nothing else."""

    STUBBORN = (
        "trap '' TERM HUP INT; export MARK={token}; (setsid sh -c '{forever}; :' &);"
        " (env -i {forever} &); {forever} & {forever}; {forever}"
    )

    async def test_a_time_limit_leaves_no_process(self, environment: Environment, token: str) -> None:
        command = "echo before; " + self.STUBBORN.format(token=token, forever=FOREVER)
        done = await out_of_time(environment, command)
        assert traces(token) == []
        assert (done.timed_out, done.code) == (True, None)
        assert done.output.startswith("before\n")
        assert (await environment.run("echo still here")).output == "still here\n"

    async def test_a_time_limit_ends_what_has_shaken_off_all_that_it_was_given(
        self, environment: Environment, token: str
    ) -> None:
        done = await environment.run(f"{SHAKEN_OFF.format(token=token)}; {FOREVER}", seconds=2)
        assert done.timed_out
        await gone_everywhere(token)

    async def test_a_time_limit_holds_for_a_command_that_has_closed_its_output(
        self, environment: Environment, token: str
    ) -> None:
        done = await environment.run(f"export MARK={token}; exec {FOREVER} >/dev/null 2>&1", seconds=0.5)
        assert traces(token) == []
        assert (done.timed_out, done.code) == (True, None)

    async def test_a_cancelled_command_leaves_no_process(self, environment: Environment, token: str) -> None:
        running = asyncio.create_task(environment.run(self.STUBBORN.format(token=token, forever=FOREVER)))
        await asleep_somewhere(token)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert traces(token) == []
        assert (await environment.run("echo still here")).output == "still here\n"

    async def test_what_ends_by_itself_may_say_a_last_word(
        self, environment: Environment, token: str
    ) -> None:
        command = f"trap 'echo last {token}; exit 1' TERM; echo ready; {FOREVER} & wait"
        done = await out_of_time(environment, command)
        assert done.output == f"ready\nlast {token}\n"

    async def test_an_ended_command_leaves_its_neighbours_alone(
        self, environment: Environment, token: str
    ) -> None:
        slow = environment.run(f"export MARK={token}; {FOREVER}", seconds=0.5)
        neighbour = environment.run("cat; echo done", given=b"x" * 100)
        ended, other = await asyncio.gather(slow, neighbour)
        assert ended.timed_out
        assert other.code == 0

    async def test_nothing_is_left_when_the_client_is_killed(
        self, environment: Environment, site: Site, token: str
    ) -> None:
        command = f"echo up; export MARK={token}; (setsid {FOREVER} &); {FOREVER}"
        client = await _client(site, "foreground", command)
        assert client.stdout is not None
        assert await client.stdout.readline() == b"up\n"
        client.send_signal(signal.SIGKILL)
        await client.wait()
        await gone_everywhere(token)
        assert (await environment.run("echo on")).output == "on\n"

    async def test_closing_ends_it_and_closing_twice_is_nothing(self, site: Site, token: str) -> None:
        environment = Environment(site.backend())
        running = asyncio.create_task(environment.run(f"export MARK={token}; {FOREVER}"))
        await asleep_somewhere(token)
        await environment.close()
        await environment.close()
        await gone_everywhere(token)
        with pytest.raises(EnvironmentFailed):
            await running
        with pytest.raises(EnvironmentFailed):
            await environment.run("true")


class TestATask:
    """Goes on where it left off."""

    async def test_begins_at_home(self, environment: Environment) -> None:
        done = await environment.run("pwd")
        assert done.output.strip() == done.folder == environment.backend.home

    async def test_the_folder_and_what_is_exported_stay(self, environment: Environment) -> None:
        odd = 'it\'s\n"odd" $HOME \\'
        await environment.run(f"mkdir -p 'a b/ç' && cd 'a b/ç' && export ODD={_quoted(odd)} && hidden=1")
        done = await environment.run('pwd; printf "%s|%s" "$ODD" "$hidden"')
        assert done.output == f"{environment.backend.home}/a b/ç\n{odd}|"

    async def test_what_is_unset_stays_unset(self, environment: Environment) -> None:
        await environment.run("unset NAMED")
        assert (await environment.run("echo ${NAMED-none}")).output == "none\n"

    async def test_they_stay_also_after_exit_and_failure(self, environment: Environment) -> None:
        await environment.run("cd /; export KEPT=yes; set -e; false; echo never")
        assert (await environment.run("pwd; echo $KEPT; exit 1")).output == "/\nyes\n"

    async def test_what_cannot_be_changed_is_no_trouble_to_the_next_one(
        self, environment: Environment
    ) -> None:
        await environment.run(
            "cd /usr; export UID KEPT=1; readonly KEPT TOOLFOLD_RUN TOOLFOLD_PWD=/etc;"
            " export __toolfold_mark __toolfold_task"
        )
        await environment.run("true")
        done = await environment.run("echo $KEPT; KEPT=2; echo $KEPT; cd /; pwd")
        assert (done.code, done.output.splitlines()[-3:]) == (0, ["1", "2", "/"])
        assert (await environment.run("pwd")).output == "/\n"

    async def test_another_task_is_elsewhere(self, environment: Environment) -> None:
        await environment.run("cd /; export MINE=1", task="one")
        other = await environment.run("pwd; echo ${MINE-none}", task="two")
        assert other.output == f"{environment.backend.home}\nnone\n"
        assert (await environment.run("pwd", task="one")).output == "/\n"

    async def test_a_command_may_begin_elsewhere_and_takes_its_task_along(
        self, environment: Environment
    ) -> None:
        done = await environment.run("pwd; export SET=1; cd bin", folder="/usr")
        assert (done.output, done.folder) == ("/usr\n", "/usr/bin")
        assert environment.folder() == "/usr/bin"
        assert (await environment.run("pwd; echo $SET")).output == "/usr/bin\n1\n"

    async def test_a_command_does_not_begin_where_there_is_nothing(self, environment: Environment) -> None:
        await environment.run("mkdir -p here; : >here/file")
        for folder in ("/nowhere", "here/file"):
            with pytest.raises(
                CallError, match=f"no directory {folder} to be entered from .*Make it"
            ) as said:
                await environment.run(": >ran", folder=folder)
            assert "shell/command" not in str(said.value)
        assert (await environment.run("pwd; ls")).output == f"{environment.backend.home}\nhere\n"

    async def test_nor_does_one_in_the_background(self, environment: Environment) -> None:
        with pytest.raises(CallError, match=r"no directory nope to be entered from .*Make it first"):
            await environment.start_process(": >ran", folder="nope")
        assert (await environment.run("ls")).output == ""
        assert [each.state for each in await environment.processes.all()] == ["ended"]

    async def test_a_folder_that_is_gone_is_said(self, environment: Environment) -> None:
        await environment.run("mkdir gone; cd gone; rmdir ../gone")
        done = await environment.run("pwd")
        assert "is gone" in done.output
        assert done.output.endswith(f"{environment.backend.home}\n")

    async def test_commands_at_once_do_not_spoil_it(self, environment: Environment) -> None:
        await environment.run("export KEPT=yes; cd /usr")
        await asyncio.gather(*(environment.run(f"export N={n}") for n in range(10)))
        done = await environment.run("pwd; echo $KEPT; case $N in [0-9]) echo one of them;; esac")
        assert done.output == "/usr\nyes\none of them\n"

    async def test_twenty_run_side_by_side(self, environment: Environment) -> None:
        commands = (environment.run(f"echo {n}; exit {n}", task=str(n)) for n in range(20))
        done = await asyncio.gather(*commands)
        assert [(each.output, each.code) for each in done] == [(f"{n}\n", n) for n in range(20)]


class TestItsEnvironment:
    async def test_secrets_of_the_runtime_do_not_reach_it(
        self, environment: Environment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
        assert "very-secret" not in (await environment.run("env; export -p; set")).output

    async def test_what_is_named_does(self, environment: Environment) -> None:
        assert (await environment.run('printf %s "$NAMED"')).output == 'it\'s\n"given" $HOME'

    async def test_a_named_value_stands_in_no_list_of_processes(self, environment: Environment) -> None:
        await environment.run(FOREVER, seconds=0.1)
        await environment.start_process(FOREVER)
        assert traces('"given"', variables=False) == []


class TestATerminal:
    async def test_it_is_one_and_has_a_size(self, environment: Environment) -> None:
        done = await environment.run("[ -t 0 ] && [ -t 1 ] && stty size", pty=Size(31, 97))
        assert (done.code, done.output.split()) == (0, ["31", "97"])

    async def test_without_one_there_is_none(self, environment: Environment) -> None:
        assert (await environment.run("[ -t 0 ] || [ -t 1 ] || [ -t 2 ]")).code == 1

    async def test_a_new_size_is_seen(self, environment: Environment) -> None:
        running = await environment.start("while stty size; do read line; done", pty=Size(10, 20))
        await _heard(running, b"10 20")
        running.resize(Size(44, 132))
        async with asyncio.timeout(PATIENCE):  # it may have a way to go
            heard = b""
            while b"44 132" not in heard:
                await running.write(b"\n")
                heard += await _heard(running, b"2")
        await environment.finish(running)

    async def test_control_c_interrupts(self, environment: Environment, token: str) -> None:
        command = f"trap 'echo caught; exit 3' INT; export MARK={token}; echo ready; {FOREVER}; echo never"
        running = await environment.start(command, pty=Size())
        await _heard(running, b"ready\r\n")
        await asleep_somewhere(token)
        await running.write(b"\x03")
        assert b"never" not in await _heard(running, b"caught")
        while await running.read():
            pass
        assert running.ended is not None
        assert running.ended.code == 3
        await environment.finish(running)

    async def test_its_time_limit_leaves_no_process(self, environment: Environment, token: str) -> None:
        done = await environment.run(f"export MARK={token}; {FOREVER}", pty=Size(), seconds=0.5)
        assert done.timed_out
        assert traces(token) == []


class TestAFile:
    async def test_any_bytes_come_back(self, environment: Environment) -> None:
        data = bytes(range(256)) * 4_000 + b"\x1e\r\n"
        await environment.write_file("new/folder/file name", data)
        assert await environment.read_file("new/folder/file name") == data
        assert await environment.read_file("new/folder/file name", first=250, most=10) == data[250:260]

    async def test_an_empty_one_is_one(self, environment: Environment) -> None:
        await environment.write_file("empty", b"")
        assert await environment.read_file("empty") == b""

    async def test_a_replaced_file_keeps_its_mode_and_its_link(self, environment: Environment) -> None:
        await environment.run("echo old >real; chmod 751 real; ln -s real link")
        await environment.write_file("link", b"new")
        done = await environment.run("cat real; [ -L link ] && ls -l real | cut -c1-10; ls")
        assert done.output == "new-rwxr-x--x\nlink\nreal\n"

    async def test_written_at_once_by_several_it_is_one_of_theirs(self, environment: Environment) -> None:
        texts = [bytes([65 + number]) * 50_000 for number in range(4)]
        await environment.run("mkdir at-once")
        await asyncio.gather(*(environment.write_file("at-once/file", text) for text in texts))
        assert await environment.read_file("at-once/file") in texts
        assert (await environment.run("ls at-once")).output == "file\n"

    async def test_it_lies_where_its_task_is(self, environment: Environment) -> None:
        await environment.run("mkdir here; cd here", task="one")
        await environment.write_file("file", b"x", task="one")
        assert (await environment.run("ls here", task="two")).output == "file\n"

    @pytest.mark.parametrize("path", ["missing", "/", "folder"])
    async def test_what_cannot_be_read_is_said(self, environment: Environment, path: str) -> None:
        await environment.run("mkdir folder")
        with pytest.raises(CallError, match=path):
            await environment.read_file(path)

    async def test_what_cannot_be_written_is_said(self, environment: Environment) -> None:
        await environment.run("mkdir folder; : >file")
        for path in ("folder", "file/below"):
            with pytest.raises(CallError):
                await environment.write_file(path, b"x")


class TestABackgroundProcess:
    async def test_it_lives_and_is_told_of_when_it_ends(self, environment: Environment) -> None:
        started = await environment.start_process("echo begun; read line; echo got $line; exit 5")
        assert (started.state, started.code) == ("running", None)
        assert [each.name for each in await environment.processes.all()] == [started.name]
        await environment.processes.write(started.name, b"this\n")
        ended = await environment.processes.wait(started.name, PATIENCE)
        assert (ended.state, ended.code) == ("ended", 5)
        assert await environment.processes.log(started.name, 0, 1_000) == b"begun\ngot this\n"
        assert await environment.processes.log(started.name, 6, 3) == b"got"
        (notice,) = await environment.processes.notices()
        assert (notice.process.name, notice.process.code, notice.lines) == (started.name, 5, ())
        assert await environment.processes.notices() == []

    async def test_it_begins_where_its_task_is(self, environment: Environment) -> None:
        await environment.run("cd /usr; export FROM=task")
        process = await environment.start_process('pwd; echo $FROM; printf %s "$NAMED"')
        await environment.processes.wait(process.name, PATIENCE)
        log = await environment.processes.log(process.name, 0, 1_000)
        assert log.decode() == '/usr\ntask\nit\'s\n"given" $HOME'

    async def test_its_command_may_be_longer_than_an_argument(self, environment: Environment) -> None:
        process = await environment.start_process(f": {'x' * 300_000}\nexit 3")
        assert (await environment.processes.wait(process.name, PATIENCE)).code == 3

    async def test_what_is_no_signal_is_said(self, environment: Environment) -> None:
        process = await environment.start_process("read line")
        for name in ("NONE", "INT\n9 end-process x 1"):
            with pytest.raises(CallError, match="no such signal"):
                await environment.processes.signal(process.name, name)

    async def test_its_input_is_logged_and_a_write_for_an_older_state_is_refused(
        self, environment: Environment
    ) -> None:
        process = await environment.start_process("cat", folder="/usr")
        before = await environment.processes.input_log(process.name)
        assert (before.command, before.folder, before.pty, before.entries) == ("cat", "/usr", False, [])
        await environment.processes.write(process.name, b"one\ntw", revision=before.revision)
        with pytest.raises(CallError, match="something else meanwhile"):
            await environment.processes.write(process.name, b"ice\n", revision=before.revision)
        after = await environment.processes.input_log(process.name)
        assert (after.entries, after.unknown) == ([("write", "one\ntw")], "")
        await environment.processes.write(process.name, b"o\n", revision=after.revision, close=True)
        await environment.processes.wait(process.name, PATIENCE)
        assert await environment.processes.log(process.name, 0, 100) == b"one\ntwo\n"

    async def test_its_input_can_be_closed(self, environment: Environment) -> None:
        process = await environment.start_process("wc -c")
        await environment.processes.write(process.name, b"12345", close=True)
        assert (await environment.processes.wait(process.name, PATIENCE)).code == 0
        assert (await environment.processes.log(process.name, 0, 100)).strip() == b"5"

    async def test_a_signal_reaches_it(self, environment: Environment) -> None:
        process = await environment.start_process(
            "trap 'echo interrupted; exit 6' INT; echo ready; while :; do sleep 0.05; done"
        )
        await written(environment, process, "ready")
        await environment.processes.signal(process.name, "INT")
        assert (await environment.processes.wait(process.name, PATIENCE)).code == 6

    async def test_killed_it_takes_along_what_has_shaken_off_all_that_it_was_given(
        self, environment: Environment, token: str
    ) -> None:
        process = await environment.start_process(f"{SHAKEN_OFF.format(token=token)}; echo begun; {FOREVER}")
        await written(environment, process, "begun")
        await begun_somewhere(token)
        await environment.processes.kill(process.name)
        await gone_everywhere(token)

    async def test_killed_it_leaves_nothing(self, environment: Environment, token: str) -> None:
        process = await environment.start_process(
            f"trap '' TERM; export MARK={token}; (setsid {FOREVER} &); echo ready; {FOREVER}; {FOREVER}"
        )
        await written(environment, process, "ready")
        killed = await environment.processes.kill(process.name)
        assert traces(token) == []
        assert killed.state == "ended"
        assert killed.code not in (0, None)
        assert await environment.processes.kill(process.name) == killed

    async def test_watched_words_are_told_of(self, environment: Environment) -> None:
        process = await environment.start_process(
            "echo one; read go; echo now READY; read go; printf 'Password: '; read go",
            watched=["READY", "Password:"],
        )
        await written(environment, process, "one")
        assert await environment.processes.notices() == []
        await environment.processes.write(process.name, b"\n")
        await written(environment, process, "READY")
        (notice,) = await environment.processes.notices()
        assert notice.lines == ("now READY",)
        await environment.processes.write(process.name, b"\n")
        await written(environment, process, "Password")
        (notice,) = await environment.processes.notices()
        assert notice.lines == ("Password: ",)

    async def test_there_are_not_too_many(self, site: Site) -> None:
        async with Environment(site.backend(), bounds=Bounds(processes=2)) as environment:
            both = [await environment.start_process("read line") for _ in range(2)]
            with pytest.raises(CallError, match="2 background processes run already"):
                await environment.start_process("true")
            await environment.processes.kill(both[0].name)
            third = await environment.start_process("read line")
            for each in (both[1], third):
                await environment.processes.kill(each.name)

    async def test_its_log_does_not_grow_for_ever(self, site: Site) -> None:
        async with Environment(site.backend(), bounds=Bounds(stored=10_000)) as environment:
            process = await environment.start_process(
                "i=0; while [ $i -lt 5000 ]; do i=$((i+1)); echo line $i; done; : >all; read go; echo after"
            )

            async def shortened() -> bool:
                """Not while it writes: what comes then may be lost."""
                written = (await environment.run("[ -e all ]")).code == 0
                seen = await environment.processes.get(process.name)
                return written and seen.dropped > 0 and seen.bytes - seen.dropped <= 10_000

            await until(shortened)
            await environment.processes.write(process.name, b"\n")
            ended = await environment.processes.wait(process.name, PATIENCE)
            assert ended.bytes > ended.dropped
            left = await environment.processes.log(process.name, ended.dropped, 100_000)
            assert left.endswith(b"after\n")
            assert len(left) <= 10_000

    async def test_what_does_not_exist_is_said(self, environment: Environment) -> None:
        with pytest.raises(CallError, match="there is no background process 'nobody'"):
            await environment.processes.get("nobody")

    async def test_it_has_a_terminal_where_it_is_asked_for(self, environment: Environment) -> None:
        try:
            process = await environment.start_process(
                "[ -t 0 ] && stty size; read l; exit 8", pty=Size(9, 99)
            )
        except CallError as error:
            pytest.skip(str(error))
        await written(environment, process, "9 99")
        await environment.processes.write(process.name, b"\n")
        assert (await environment.processes.wait(process.name, PATIENCE)).code == 8

    async def test_it_outlives_a_killed_client_and_the_next_one_finds_it(
        self, environment: Environment, site: Site, token: str
    ) -> None:
        if not environment.backend.lasting:
            pytest.skip("nothing outlives its client in this place")
        command = f"export MARK={token}; echo begun; read line; echo got $line; {FOREVER}"
        client = await _client(site, "background", command)
        assert client.stdout is not None
        name = (await client.stdout.readline()).decode().strip()
        client.send_signal(signal.SIGKILL)
        await client.wait()
        found = await environment.processes.get(name)
        assert (found.state, found.command) == ("running", command)
        await environment.processes.write(name, b"this\n")
        await written(environment, found, "got this")
        assert (await environment.processes.kill(name)).state == "ended"
        assert traces(token) == []


async def test_what_is_written_at_once_arrives_once_and_whole(site: Site) -> None:
    backend = site.backend()
    await backend.open()
    channel = await backend.spawn(["cat"], env={}, pty=None)
    lines = [b"%d %s\n" % (n, b"x" * 50) for n in range(200)]
    try:
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*map(channel.write, lines))
            await channel.close_input()
            heard = b""
            while data := await channel.read():
                heard += data
    finally:
        await channel.close()
        await backend.close()
    assert sorted(heard.splitlines(keepends=True)) == sorted(lines)


async def test_a_place_says_whether_it_can_be_used(site: Site) -> None:
    readiness = await site.backend().check()
    assert (readiness.available, readiness.advice) == (True, "")


async def _client(site: Site, how: str, command: str) -> asyncio.subprocess.Process:
    options = json.dumps({**site.options, **SHORT_LEASE})
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.environments.places", site.kind.name, options, how, command),
        stdout=asyncio.subprocess.PIPE,
    )


async def _heard(running: Running, wanted: bytes) -> bytes:
    heard = b""
    async with asyncio.timeout(PATIENCE):
        while wanted not in heard:
            data = await running.read()
            assert data, heard
            heard += data
    return heard


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
