"""What holds for a sandbox in somebody's cloud beyond the contract: limits, being found again, being lost."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.environments.clouds import CLOUDS, MAKERS, SHORT_LEASE, TOKENS, Made, Options, sandbox
from tests.environments.test_contract import FOREVER, PATIENCE, asleep_somewhere, gone_everywhere, until
from toolfold.environments import Environment
from toolfold.errors import EnvironmentFailed


@pytest.fixture(params=MAKERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def options(name: str, tmp_path: Path) -> Iterator[Options]:
    with sandbox(name, tmp_path) as options:
        yield options


def make(name: str, options: Options, *, kept: bool = True) -> Made:
    return MAKERS[name](options, kept=kept)


async def test_it_is_made_with_limits_and_without_a_network(name: str, options: Options) -> None:
    async with Environment(make(name, options)) as environment:
        await environment.run("true")
        (made,) = CLOUDS.running(name, options)
        assert made["network"] is False
        assert (made["cpus"], made["memory"]) == (1, 2_048)
        assert made["idle_seconds"] == 3_600


async def test_a_kept_one_is_found_again(name: str, options: Options) -> None:
    async with Environment(make(name, options)) as environment:
        await environment.run("echo kept >file")
    async with Environment(make(name, options)) as environment:
        assert (await environment.run("cat file")).output == "kept\n"
        assert len(CLOUDS.running(name, options)) == 1


async def test_two_clients_at_once_share_it(name: str, options: Options) -> None:
    async def alone() -> str:
        async with Environment(make(name, options)) as environment:
            return (await environment.run("echo here")).output

    assert set(await asyncio.gather(alone(), alone())) == {"here\n"}
    assert len(CLOUDS.running(name, options)) == 1


async def test_another_one_is_not_mistaken_for_it(name: str, options: Options) -> None:
    async with (
        Environment(make(name, options)) as one,
        Environment(make(name, {**options, "home": f"{options['home']}2"})) as other,
    ):
        await one.run("true")
        assert (await other.run("pwd")).output == f"{options['home']}2\n"
        assert len(CLOUDS.running(name, options)) == 2


async def test_one_that_is_not_kept_goes_with_its_client(name: str, options: Options, token: str) -> None:
    backend = make(name, options, kept=False)
    assert not backend.lasting
    async with Environment(backend) as environment:
        await environment.start_process(f"export MARK={token}; {FOREVER}")
        await asleep_somewhere(token)
        assert len(CLOUDS.running(name, options)) == 1
    assert CLOUDS.running(name, options) == []
    await gone_everywhere(token)


async def test_a_lost_one_is_said_and_the_next_command_has_another(
    name: str, options: Options, token: str
) -> None:
    async with Environment(make(name, options)) as environment:
        running = asyncio.create_task(environment.run(f"export MARK={token}; {FOREVER}"))
        await asleep_somewhere(token)
        await make(name, options).remove()
        with pytest.raises(EnvironmentFailed, match="The next command"):
            await running
        assert (await environment.run("echo on")).output == "on\n"


async def test_a_server_that_falls_silent_is_said_and_the_next_command_works(
    name: str, options: Options, token: str
) -> None:
    async with Environment(make(name, {**options, **SHORT_LEASE})) as environment:
        running = asyncio.create_task(environment.run(f"export MARK={token}; {FOREVER}"))
        await asleep_somewhere(token)
        with CLOUDS.silent(name):
            async with asyncio.timeout(PATIENCE):
                with pytest.raises(EnvironmentFailed, match=r"nothing answers there any more\. The next"):
                    await running
        assert (await environment.run("echo on")).output == "on\n"
    await gone_everywhere(token)


async def test_a_silent_server_keeps_nobody_waiting(
    name: str, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"PROBE_SECONDS", "FIND_SECONDS", "CLOSE_SECONDS", "START_SECONDS", "USE_SECONDS"}
    module = sys.modules[type(make(name, options)).__module__]
    async with Environment(make(name, options)) as environment:
        await environment.run("true")
        for limit in limits & vars(module).keys():  # not before: whoever is there may need longer
            monkeypatch.setattr(module, limit, 0.3)
        with CLOUDS.silent(name):
            async with asyncio.timeout(PATIENCE):
                assert not (await make(name, options).check()).available
                with pytest.raises(EnvironmentFailed, match="it does not answer"):
                    await environment.run("true")
                async with Environment(make(name, options)) as other:
                    with pytest.raises(EnvironmentFailed, match=r"it does not answer\. Is the network there"):
                        await other.run("true")


async def test_a_long_command_in_the_background_is_no_trouble(name: str, options: Options) -> None:
    async with Environment(make(name, options)) as environment:
        process = await environment.start_process(f": {'x' * 50_000}\nread line; echo got $line")
        await environment.processes.write(process.name, b"it\n")
        assert (await environment.processes.wait(process.name, 30)).code == 0
        assert await environment.processes.log(process.name, 0, 100) == b"got it\n"


async def test_what_nobody_reads_waits(name: str, options: Options) -> None:
    async with Environment(make(name, options)) as environment:
        running = await environment.start("head -c 30000000 /dev/zero; echo over")
        heard = len(await running.read())
        await asyncio.sleep(1)
        while data := await running.read():
            heard += len(data)
        assert heard == 30_000_005
        await environment.finish(running)


async def test_without_its_package_it_says_what_to_install(
    name: str, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = make(name, options)
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    readiness = await backend.check()
    assert not readiness.available
    assert f"pip install 'toolfold[{name}]'" in readiness.advice
    with pytest.raises(EnvironmentFailed, match="is not installed"):
        await Environment(backend).run("true")


async def test_a_package_that_takes_its_time_and_fails_to_load_holds_up_nobody_else(
    name: str, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = make(name, options)
    served, others, waits = threading.Event(), list[bool](), ModuleType("waits")
    waits.__dict__["for_others"] = lambda: others.append(served.wait(PATIENCE))
    slow = tmp_path / "packages"
    slow.mkdir()
    (slow / f"{name}.py").write_text("import waits\nwaits.for_others()\nraise ImportError('it is broken')\n")
    monkeypatch.setitem(sys.modules, "waits", waits)
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(slow)
    asyncio.get_running_loop().call_later(0.01, served.set)
    readiness = await backend.check()
    assert others == [True]
    assert readiness.reason == f"the package `{name}` cannot be imported: it is broken"
    assert f"pip install 'toolfold[{name}]'" in readiness.advice


async def test_without_credentials_it_says_how_to_get_some(name: str, options: Options) -> None:
    """In a process of its own: an SDK keeps what it has found."""
    program = (
        "import asyncio\n"
        "from tests.environments.clouds import without_credentials\n"
        f"backend = without_credentials({name!r}, {options!r})\n"
        "print(asyncio.run(backend.check()).advice)\n"
    )
    asked = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await asked.communicate()
    assert any(variable in said.decode() for variable in TOKENS[name])


async def test_a_server_out_of_reach_is_said(name: str, options: Options) -> None:
    program = (
        "import asyncio\n"
        "from tests.environments.clouds import MAKERS\n"
        f"backend = MAKERS[{name!r}]({ {**options, 'url': 'http://127.0.0.1:1'}!r})\n"
        "print(asyncio.run(backend.check()).advice)\n"
    )
    asked = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await asked.communicate()
    assert "network" in said.decode()


async def test_what_comes_out_while_more_goes_in_does_not_wait_for_it(name: str, options: Options) -> None:
    given = bytes(range(256)) * 16_000
    async with Environment(make(name, options)) as environment:
        running = await environment.start("cat")
        feeding = asyncio.create_task(running.feed(given))
        heard = b""
        while data := await running.read():
            heard += data
        await feeding
        assert heard == given
        await environment.finish(running)


async def test_an_interrupt_reaches_the_program_and_nothing_around_it(name: str, options: Options) -> None:
    async with Environment(make(name, options)) as environment:
        running = await environment.start(
            "trap 'echo caught; exit 6' INT; echo ready; while :; do sleep 0.05; done"
        )
        assert await running.read() == b"ready\n"
        assert await environment.interrupt(running)
        assert await running.read() == b"caught\n"
        assert await running.read() == b""
        assert running.ended is not None
        assert running.ended.code == 6
        await environment.finish(running)


async def test_what_ran_leaves_no_note(name: str, options: Options) -> None:
    async with Environment(make(name, options)) as environment:
        for n in range(5):
            await environment.run(f"echo {n}", given=b"x" * 100_000)

        async def tidy() -> bool:  # but for the guard, which runs
            return len([*_found(options, "pipes.*"), *_found(options, "arguments.*")]) <= 1

        await until(tidy)


async def test_what_had_to_be_ended_by_force_leaves_no_note(name: str, options: Options, token: str) -> None:
    async with Environment(make(name, options)) as environment:
        running = await environment.start(f"trap '' TERM; export MARK={token}; while :; do sleep 86400; done")
        await asleep_somewhere(token)
        await environment.finish(running)
        assert len(_found(options, "pipes.*")) <= 1
        await gone_everywhere(token)


@pytest.mark.parametrize("name", ["daytona"])  # the other one has none for a command this short
async def test_a_killed_client_leaves_no_note(name: str, options: Options) -> None:
    wanted = {**options, **SHORT_LEASE}
    program = (
        "import asyncio\n"
        "from tests.environments.clouds import MAKERS\n"
        "from toolfold.environments import Environment\n"
        f"environment = Environment(MAKERS[{name!r}]({wanted!r}))\n"
        "said = lambda text: print(text, end='', flush=True)\n"
        f"asyncio.run(environment.run('echo up; {FOREVER}', listener=said))\n"
    )
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), stdout=asyncio.subprocess.PIPE
    )
    assert client.stdout is not None
    assert await client.stdout.readline() == b"up\n"
    client.kill()
    await client.wait()

    async def tidy() -> bool:
        return not _found(options, "pipes.*")

    await until(tidy)


@pytest.mark.parametrize("name", ["daytona"])
async def test_what_the_dead_left_is_tidied_away_and_nothing_else(name: str, options: Options) -> None:
    dead, alive = (Path(options["notes"]) / f"pipes.{number}" for number in (2**30, os.getpid()))
    for folder in (dead, alive):
        folder.mkdir(parents=True)
    async with Environment(make(name, options)) as environment:
        await environment.open()
        found = _found(options, "pipes.*")
        assert alive in found
        assert dead not in found


def _found(options: Options, pattern: str) -> list[Path]:
    return list(Path(options["notes"]).glob(pattern))
