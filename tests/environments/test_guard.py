"""What holds when things go wrong on the way to a place: the guard is lost, or hears nothing any more."""

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

from tests.environments.places import folders, leased, local, traces
from tests.environments.test_contract import (
    FOREVER,
    PATIENCE,
    asleep_somewhere,
    gone_everywhere,
    out_of_time,
    until,
)
from toolfold.environments import Channel, Environment, Size
from toolfold.environments.guard import Guard
from toolfold.environments.local import Local
from toolfold.environments.place import Place
from toolfold.errors import EnvironmentFailed


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    with folders(tmp_path) as options:
        return options


async def gone_except(token: str, pid: int) -> None:
    async def gone() -> bool:
        return all(trace.startswith(f"{pid}:") for trace in traces(token))

    await until(gone)


async def test_a_silent_client_counts_as_gone(options: dict[str, str], token: str) -> None:
    command = f"export MARK={token}; {FOREVER}"
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.environments.places", "leased", json.dumps(options)),
        *("foreground", command),
        env=dict(os.environ),
    )
    try:
        await asleep_somewhere(token)
        client.send_signal(signal.SIGSTOP)
        await gone_except(token, client.pid)
    finally:
        client.kill()
        await client.wait()


def guards(options: dict[str, str]) -> list[int]:
    return [int(each.partition(":")[0]) for each in traces(options["notes"]) if "shell/guard" in each]


async def test_a_place_that_falls_silent_is_said_long_before_the_time_limit(
    options: dict[str, str], token: str
) -> None:
    async with Environment(leased(options)) as environment:
        command = asyncio.create_task(environment.run(f"export MARK={token}; {FOREVER}"))
        await asleep_somewhere(token)
        stopped = guards(options)
        for each in stopped:
            os.kill(each, signal.SIGSTOP)
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(EnvironmentFailed, match=r"nothing answers there any more\. Try again"):
                await command
        for each in stopped:
            os.kill(each, signal.SIGCONT)
        assert (await environment.run("echo on")).output == "on\n"
    await gone_everywhere(token)


class Deaf(Local):
    """A place that takes nothing any more, once it is told so."""

    deaf = False

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], pty: Size | None) -> Channel:
        channel = await super().spawn(argv, env=env, pty=pty)
        write, close_input = channel.write, channel.close_input

        async def stuck() -> None:
            if self.deaf:
                await asyncio.Event().wait()

        async def writing(data: bytes) -> None:
            await stuck()
            await write(data)

        async def closing() -> None:
            await stuck()
            await close_input()

        channel.write, channel.close_input = writing, closing  # type: ignore[method-assign]
        return channel


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as nobody is there who could answer: whoever is may need longer."""
    for name in ("ANSWER_SECONDS", "ENDING_SECONDS", "START_SECONDS", "PARTING_SECONDS"):
        monkeypatch.setattr(f"toolfold.environments.guard.{name}", 0.2)


async def test_an_order_that_nobody_takes_is_not_waited_for(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Deaf(home=Path(options["home"]), notes=Path(options["notes"]), environment=os.environ)
    environment = Environment(backend)
    await environment.open()
    backend.deaf = True
    impatient(monkeypatch)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(EnvironmentFailed):
            await environment.processes.all()
        await environment.close()


async def test_a_command_that_nobody_could_be_told_to_end_is_not_said_to_have_ended(
    options: dict[str, str], token: str
) -> None:
    backend = Deaf(home=Path(options["home"]), notes=Path(options["notes"]), environment=os.environ)
    async with Environment(backend) as environment:
        await environment.open()
        backend.deaf = True
        with pytest.MonkeyPatch.context() as monkeypatch:
            impatient(monkeypatch)
            done = await environment.run(f"export MARK={token}; {FOREVER}", seconds=0.5)
        assert (done.timed_out, done.left) == (True, True)
        backend.deaf = False
        done = await environment.run("sleep 86400", seconds=0.1)
        assert (done.timed_out, done.left) == (True, False)
    await gone_everywhere(token)


class Late(Local):
    """A place that starts a program only once its guard has looked for it, and not below its client."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(home=Path(options["home"]), notes=Path(options["notes"]), environment=os.environ)
        self.looked = Path(options["home"]) / "looked"

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], pty: Size | None) -> Channel:
        if not env:  # the guard
            return await super().spawn(argv, env=env, pty=pty)
        given = (f"{name}={value}" for name, value in env.items())
        wait = f'until [ -e {self.looked} ]; do sleep 0.05; done; setsid env "$@" & wait'
        return await super().spawn(["sh", "-c", wait, "sh", *given, *argv], env={}, pty=pty)


@pytest.mark.parametrize("how", ["time", "finish"])
async def test_a_command_that_begins_after_it_was_to_end_is_ended(
    options: dict[str, str], token: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, end = Late(options), Guard.end

    async def looked(guard: Guard, run: str) -> bool:
        ended = await end(guard, run)
        backend.looked.touch()
        return ended

    monkeypatch.setattr(Guard, "end", looked)
    command = f"export MARK={token}; {FOREVER}"
    async with Environment(backend) as environment:
        if how == "time":
            done = await environment.run(command, seconds=0.1)
            assert (done.timed_out, done.left) == (True, False)
        else:
            await environment.finish(await environment.start(command))
        assert traces(token) == []


async def test_a_killed_guard_is_replaced(options: dict[str, str], token: str) -> None:
    async with Environment(local(options)) as environment:
        await environment.run("cd /usr; export KEPT=1")
        for each in guards(options):
            with contextlib.suppress(ProcessLookupError):  # one may end with the other
                os.kill(each, signal.SIGKILL)
        done = await out_of_time(environment, f'echo "$PWD\n$KEPT"; export MARK={token}; {FOREVER}')
        assert done.timed_out
        assert done.output == "/usr\n1\n"
        assert traces(token) == []


async def test_a_place_that_cannot_be_used_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("not a folder")
    environment = Environment(local({"home": str(tmp_path), "notes": str(tmp_path / "notes")}))
    with pytest.raises(EnvironmentFailed, match=r"local cannot run commands: .*Try again"):
        await environment.run("true")
    await environment.close()


@pytest.fixture
def turned(tmp_path: Path) -> Iterator[str]:
    """The name of a client whose place in memory somebody else has taken, with a way to a folder of ours."""
    client = secrets.token_hex(8)
    (tmp_path / "trap").mkdir()
    link = Path(f"/dev/shm/toolfold.{client}")
    link.symlink_to(tmp_path / "trap")
    yield client
    link.unlink()


async def test_memory_that_somebody_else_may_turn_elsewhere_is_not_used(
    options: dict[str, str], tmp_path: Path, turned: str
) -> None:
    guard = await Guard.start(local(options), turned, 1_000_000)
    assert guard.means.tasks.startswith(options["notes"])
    assert list((tmp_path / "trap").iterdir()) == []
    await guard.dismiss()


async def test_what_others_leave_in_memory_deletes_nothing_of_ours(
    options: dict[str, str], token: str
) -> None:
    precious = Path(options["notes"]) / token
    precious.mkdir(parents=True)
    dead, words = (Path(f"/dev/shm/toolfold.{name}") for name in (f"{token}x", f"{token} {token}"))
    for each in (dead, words):
        each.mkdir()
        os.utime(each, (0, 0))
    try:
        async with Environment(local(options)) as environment:
            await environment.open()

            async def tidied() -> bool:
                return not dead.exists() and not words.exists()

            await until(tidied)
        assert precious.exists()
    finally:
        for each in (dead, words):
            shutil.rmtree(each, ignore_errors=True)


async def test_folders_that_are_no_process_s_are_neither_listed_nor_tidied_away(
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
    async with Environment(local(options)) as environment:
        assert await environment.processes.all() == []
        process = await environment.start_process("exit 3")
        await environment.processes.wait(process.name, PATIENCE)
        (processes / process.name / "code").write_text("what else\n")
        (found,) = await environment.processes.all()
        assert (found.state, found.code) == ("ended", 1)
    assert precious.exists()


async def test_what_answers_us_there_cannot_fill_our_memory(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Place.collected, "__defaults__", (1_000_000,))
    async with Environment(local(options)) as environment:
        await environment.run('mkdir bin; printf "%s\\n" "#!/bin/sh" yes >bin/head; chmod +x bin/head')
        await environment.run('export PATH="$PWD/bin:$PATH"')
        with pytest.raises(EnvironmentFailed, match="wrote more than"):
            await environment.read_file("bin/head", most=10)
        folder = Path(options["notes"]) / "processes" / "p0000abcd"
        folder.mkdir()
        (folder / "about").symlink_to("/dev/zero")
        with pytest.raises(EnvironmentFailed, match="wrote more than"):
            await environment.processes.all()
        (folder / "about").unlink()
        (folder / "about").write_text("[" * 100_000)
        (found,) = await environment.processes.all()
        assert found.command == "(its note cannot be read)"


async def test_a_command_that_speaks_as_the_guard_only_costs_us_the_guard(options: dict[str, str]) -> None:
    async with Environment(local(options)) as environment:
        await environment.open()
        for said in ("1 done nothing", "2 what ever", "3 done " + "9" * 5000, "x" * 200_000):
            for pid in guards(options):
                await environment.run(f"printf '%s\\n' {said} >/proc/{pid}/fd/1")
            assert await environment.processes.all() == []
