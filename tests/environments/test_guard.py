"""Faults of the guard process, which watches commands on the target: it is lost or does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.environments.backend_kinds import find_traces, local_options, make_leased, make_local
from tests.environments.test_contract import (
    FOREVER,
    WAIT_TIMEOUT_S,
    run_until_timeout,
    wait_for_sleep,
    wait_until,
    wait_until_gone,
)
from toolfold.core.errors import EnvironmentFailed
from toolfold.tools.environments import Channel, Environment, TerminalSize
from toolfold.tools.environments.guard import Guard
from toolfold.tools.environments.local import Local
from toolfold.tools.environments.runner import CommandRunner


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    with local_options(tmp_path) as options:
        return options


async def wait_until_gone_except(token: str, pid: int) -> None:
    async def is_gone() -> bool:
        return all(trace.startswith(f"{pid}:") for trace in find_traces(token))

    await wait_until(is_gone)


async def test_commands_are_terminated_if_the_toolfold_process_that_started_them_stops_sending_heartbeats(
    options: dict[str, str], token: str
) -> None:
    command = f"export MARK={token}; {FOREVER}"
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.environments.backend_kinds", "leased", json.dumps(options)),
        *("foreground", command),
        env=dict(os.environ),
    )
    try:
        await wait_for_sleep(token)
        client.send_signal(signal.SIGSTOP)
        await wait_until_gone_except(token, client.pid)
    finally:
        client.kill()
        await client.wait()


def guards(options: dict[str, str]) -> list[int]:
    return [int(each.partition(":")[0]) for each in find_traces(options["notes"]) if "shell/guard" in each]


@pytest.mark.thorough
async def test_command_fails_before_its_timeout_if_the_target_machine_stops_responding(
    options: dict[str, str], token: str
) -> None:
    async with Environment(make_leased(options)) as environment:
        command = asyncio.create_task(environment.run(f"export MARK={token}; {FOREVER}"))
        await wait_for_sleep(token)
        stopped = guards(options)
        for each in stopped:
            os.kill(each, signal.SIGSTOP)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            with pytest.raises(EnvironmentFailed, match=r"the target no longer responds\. Try again"):
                await command
        for each in stopped:
            os.kill(each, signal.SIGCONT)
        assert (await environment.run("echo on")).output == "on\n"
    await wait_until_gone(token)


class UnresponsiveBackend(Local):
    """Backend that stops accepting input when `unresponsive` is set."""

    unresponsive = False

    async def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str], pty: TerminalSize | None
    ) -> Channel:
        channel = await super().spawn(argv, env=env, pty=pty)
        write, close_input = channel.write, channel.close_input

        async def never_return() -> None:
            if self.unresponsive:
                await asyncio.Event().wait()

        async def blocked_write(data: bytes) -> None:
            await never_return()
            await write(data)

        async def blocked_close() -> None:
            await never_return()
            await close_input()

        channel.write, channel.close_input = blocked_write, blocked_close  # type: ignore[method-assign]
        return channel


def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeouts for tests in which the target never answers."""
    for name in ("ANSWER_TIMEOUT_S", "TERMINATE_TIMEOUT_S", "START_TIMEOUT_S", "CLOSE_INPUT_TIMEOUT_S"):
        monkeypatch.setattr(f"toolfold.tools.environments.guard.{name}", 0.2)


@pytest.mark.thorough
async def test_request_to_an_unresponsive_guard_process_fails_after_a_timeout(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = UnresponsiveBackend(
        home=Path(options["home"]), state_dir=Path(options["notes"]), environment=os.environ
    )
    environment = Environment(backend)
    await environment.open()
    backend.unresponsive = True
    short_timeouts(monkeypatch)
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        with pytest.raises(EnvironmentFailed):
            await environment.processes.list_all()
        await environment.close()


@pytest.mark.thorough
async def test_command_that_could_not_be_terminated_is_reported_as_possibly_still_running(
    options: dict[str, str], token: str
) -> None:
    backend = UnresponsiveBackend(
        home=Path(options["home"]), state_dir=Path(options["notes"]), environment=os.environ
    )
    async with Environment(backend) as environment:
        await environment.open()
        backend.unresponsive = True
        with pytest.MonkeyPatch.context() as monkeypatch:
            short_timeouts(monkeypatch)
            done = await environment.run(f"export MARK={token}; {FOREVER}", timeout_s=0.5)
        assert (done.timed_out, done.may_still_run) == (True, True)
        backend.unresponsive = False
        done = await environment.run("sleep 86400", timeout_s=0.1)
        assert (done.timed_out, done.may_still_run) == (True, False)
    await wait_until_gone(token)


class LateStartingBackend(Local):
    """Backend that starts a program only after its guard has looked for it.

    The program is no child of its client.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(home=Path(options["home"]), state_dir=Path(options["notes"]), environment=os.environ)
        self.looked_marker = Path(options["home"]) / "looked"

    async def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str], pty: TerminalSize | None
    ) -> Channel:
        if not env:  # the guard
            return await super().spawn(argv, env=env, pty=pty)
        given = (f"{name}={value}" for name, value in env.items())
        wait = f'until [ -e {self.looked_marker} ]; do sleep 0.05; done; setsid env "$@" & wait'
        return await super().spawn(["sh", "-c", wait, "sh", *given, *argv], env={}, pty=pty)


@pytest.mark.parametrize("how", ["time", "finish"])
async def test_command_that_starts_only_after_its_timeout_is_still_terminated(
    options: dict[str, str], token: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, end = LateStartingBackend(options), Guard.terminate

    async def terminate_recorded(guard: Guard, run: str) -> bool:
        ended = await end(guard, run)
        backend.looked_marker.touch()
        return ended

    monkeypatch.setattr(Guard, "terminate", terminate_recorded)
    command = f"export MARK={token}; {FOREVER}"
    async with Environment(backend) as environment:
        if how == "time":
            done = await environment.run(command, timeout_s=0.1)
            assert (done.timed_out, done.may_still_run) == (True, False)
        else:
            await environment.finish(await environment.start(command))
        assert find_traces(token) == []


async def test_killed_guard_process_is_replaced_for_the_next_command(
    options: dict[str, str], token: str
) -> None:
    async with Environment(make_local(options)) as environment:
        await environment.run("cd /usr; export KEPT=1")
        for each in guards(options):
            with contextlib.suppress(ProcessLookupError):  # one may already have ended with the other
                os.kill(each, signal.SIGKILL)
        done = await run_until_timeout(environment, f'echo "$PWD\n$KEPT"; export MARK={token}; {FOREVER}')
        assert done.timed_out
        assert done.output == "/usr\n1\n"
        assert find_traces(token) == []


async def test_command_fails_with_advice_if_the_state_directory_of_its_environment_cannot_be_created(
    tmp_path: Path,
) -> None:
    (tmp_path / "notes").write_text("not a folder")
    environment = Environment(make_local({"home": str(tmp_path), "notes": str(tmp_path / "notes")}))
    with pytest.raises(EnvironmentFailed, match=r"local cannot run commands: .*Try again"):
        await environment.run("true")
    await environment.close()


@pytest.fixture
def redirected_client(tmp_path: Path) -> Iterator[str]:
    """Client ID whose state directory in /dev/shm is a symbolic link created by another user."""
    client = secrets.token_hex(8)
    (tmp_path / "trap").mkdir()
    link = Path(f"/dev/shm/toolfold.{client}")
    link.symlink_to(tmp_path / "trap")
    yield client
    link.unlink()


async def test_state_of_commands_is_not_stored_in_a_dev_shm_directory_owned_by_another_user(
    options: dict[str, str], tmp_path: Path, redirected_client: str
) -> None:
    guard = await Guard.start(make_local(options), redirected_client, 1_000_000)
    assert guard.tools.tasks_dir.startswith(options["notes"])
    assert list((tmp_path / "trap").iterdir()) == []
    await guard.shut_down()


async def test_removing_an_old_state_directory_with_a_space_in_its_name_deletes_no_other_directory(
    options: dict[str, str], token: str
) -> None:
    precious = Path(options["notes"]) / token
    precious.mkdir(parents=True)
    dead, words = (Path(f"/dev/shm/toolfold.{name}") for name in (f"{token}x", f"{token} {token}"))
    for each in (dead, words):
        each.mkdir()
        os.utime(each, (0, 0))
    try:
        async with Environment(make_local(options)) as environment:
            await environment.open()

            async def is_cleaned_up() -> bool:
                return not dead.exists() and not words.exists()

            await wait_until(is_cleaned_up)
        assert precious.exists()
    finally:
        for each in (dead, words):
            shutil.rmtree(each, ignore_errors=True)


async def test_state_directory_with_an_unexpected_name_is_not_listed_as_a_background_process(
    options: dict[str, str], tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    processes = Path(options["notes"]) / "processes"
    odd = processes / f"p {precious}"
    odd.mkdir(parents=True)
    for path in (odd / "code", processes / "p " / "about"):
        path.write_text("0 0\n")
        os.utime(path, (0, 0))
    async with Environment(make_local(options)) as environment:
        assert await environment.processes.list_all() == []
        process = await environment.start_process("exit 3")
        await environment.processes.wait(process.name, WAIT_TIMEOUT_S)
        (processes / process.name / "code").write_text("what else\n")
        (found,) = await environment.processes.list_all()
        assert (found.state, found.exit_code) == ("ended", 1)
    assert precious.exists()


async def test_endless_output_while_reading_a_file_or_listing_processes_raises_an_error(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CommandRunner.collect_output, "__defaults__", (1_000_000,))
    async with Environment(make_local(options)) as environment:
        await environment.run('mkdir bin; printf "%s\\n" "#!/bin/sh" yes >bin/head; chmod +x bin/head')
        await environment.run('export PATH="$PWD/bin:$PATH"')
        with pytest.raises(EnvironmentFailed, match="wrote more than"):
            await environment.read_file("bin/head", max_bytes=10)
        folder = Path(options["notes"]) / "processes" / "p0000abcd"
        folder.mkdir()
        (folder / "about").symlink_to("/dev/zero")
        with pytest.raises(EnvironmentFailed, match="wrote more than"):
            await environment.processes.list_all()
        (folder / "about").unlink()
        (folder / "about").write_text("[" * 100_000)
        (found,) = await environment.processes.list_all()
        assert found.command == "(unreadable description)"


async def test_replies_of_the_guard_process_that_a_command_forges_are_ignored(
    options: dict[str, str],
) -> None:
    async with Environment(make_local(options)) as environment:
        await environment.open()
        for line in ("1 done nothing", "2 what ever", "3 done " + "9" * 5000, "x" * 200_000):
            for pid in guards(options):
                await environment.run(f"printf '%s\\n' {line} >/proc/{pid}/fd/1")
            assert await environment.processes.list_all() == []
