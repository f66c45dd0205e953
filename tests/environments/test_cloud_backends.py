"""Cloud sandboxes beyond the contract: limits, reuse, loss and cleanup."""

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

from tests.environments.cloud_backends import (
    CLOUD_SERVERS,
    MAKERS,
    SHORT_LEASE,
    TOKENS,
    CloudBackend,
    Options,
    sandbox_options,
)
from tests.environments.test_contract import (
    FOREVER,
    WAIT_TIMEOUT_S,
    wait_for_sleep,
    wait_until,
    wait_until_gone,
)
from toolfold.core.errors import EnvironmentFailed
from toolfold.tools.environments import Environment


@pytest.fixture(params=MAKERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def options(name: str, tmp_path: Path) -> Iterator[Options]:
    with sandbox_options(name, tmp_path) as options:
        yield options


def make(name: str, options: Options, *, kept: bool = True) -> CloudBackend:
    return MAKERS[name](options, kept=kept)


async def test_cloud_sandbox_is_created_with_cpu_memory_and_idle_limits_and_without_network(
    name: str, options: Options
) -> None:
    async with Environment(make(name, options)) as environment:
        await environment.run("true")
        (made,) = CLOUD_SERVERS.list_running(name, options)
        assert made["network"] is False
        assert (made["cpus"], made["memory"]) == (1, 2_048)
        assert made["idle_seconds"] == 3_600


async def test_persistent_cloud_sandbox_and_its_files_are_reused_when_an_environment_is_opened_again(
    name: str, options: Options
) -> None:
    async with Environment(make(name, options)) as environment:
        await environment.run("echo kept >file")
    async with Environment(make(name, options)) as environment:
        assert (await environment.run("cat file")).output == "kept\n"
        assert len(CLOUD_SERVERS.list_running(name, options)) == 1


async def test_two_environments_opened_concurrently_with_equal_settings_share_one_cloud_sandbox(
    name: str, options: Options
) -> None:
    async def run_client() -> str:
        async with Environment(make(name, options)) as environment:
            return (await environment.run("echo here")).output

    assert set(await asyncio.gather(run_client(), run_client())) == {"here\n"}
    assert len(CLOUD_SERVERS.list_running(name, options)) == 1


@pytest.mark.thorough(keep=("daytona",))
async def test_environments_with_different_settings_use_separate_cloud_sandboxes(
    name: str, options: Options
) -> None:
    async with (
        Environment(make(name, options)) as one,
        Environment(make(name, {**options, "home": f"{options['home']}2"})) as other,
    ):
        await one.run("true")
        assert (await other.run("pwd")).output == f"{options['home']}2\n"
        assert len(CLOUD_SERVERS.list_running(name, options)) == 2


async def test_closing_the_environment_of_a_temporary_cloud_sandbox_removes_the_sandbox_and_its_processes(
    name: str, options: Options, token: str
) -> None:
    backend = make(name, options, kept=False)
    assert not backend.is_persistent
    async with Environment(backend) as environment:
        await environment.start_process(f"export MARK={token}; {FOREVER}")
        await wait_for_sleep(token)
        assert len(CLOUD_SERVERS.list_running(name, options)) == 1
    assert CLOUD_SERVERS.list_running(name, options) == []
    await wait_until_gone(token)


async def test_command_runs_in_a_new_cloud_sandbox_after_the_previous_sandbox_was_removed(
    name: str, options: Options, token: str
) -> None:
    async with Environment(make(name, options)) as environment:
        running = asyncio.create_task(environment.run(f"export MARK={token}; {FOREVER}"))
        await wait_for_sleep(token)
        await make(name, options).remove()
        with pytest.raises(EnvironmentFailed, match="The next command"):
            await running
        assert (await environment.run("echo on")).output == "on\n"


@pytest.mark.thorough(keep=("daytona",))
async def test_command_fails_while_the_cloud_server_does_not_respond_and_later_commands_succeed(
    name: str, options: Options, token: str
) -> None:
    async with Environment(make(name, {**options, **SHORT_LEASE})) as environment:
        running = asyncio.create_task(environment.run(f"export MARK={token}; {FOREVER}"))
        await wait_for_sleep(token)
        with CLOUD_SERVERS.silenced(name):
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                with pytest.raises(EnvironmentFailed, match=r"the target no longer responds\. The next"):
                    await running
        assert (await environment.run("echo on")).output == "on\n"
    await wait_until_gone(token)


@pytest.mark.thorough
async def test_calls_to_a_cloud_backend_time_out_if_the_server_stops_responding(
    name: str, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"PROBE_TIMEOUT_S", "FIND_TIMEOUT_S", "CLOSE_TIMEOUT_S", "START_TIMEOUT_S", "CALL_TIMEOUT_S"}
    module = sys.modules[type(make(name, options)).__module__]
    async with Environment(make(name, options)) as environment:
        await environment.run("true")
        for limit in limits & vars(module).keys():  # not earlier: a working server may need longer
            monkeypatch.setattr(module, limit, 0.3)
        with CLOUD_SERVERS.silenced(name):
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                assert not (await make(name, options).check()).available
                with pytest.raises(EnvironmentFailed, match="no response in time"):
                    await environment.run("true")
                async with Environment(make(name, options)) as other:
                    with pytest.raises(EnvironmentFailed, match=r"no response in time\. Check the network"):
                        await other.run("true")


@pytest.mark.thorough
async def test_command_of_50000_characters_can_run_in_background_in_a_cloud_sandbox(
    name: str, options: Options
) -> None:
    async with Environment(make(name, options)) as environment:
        process = await environment.start_process(f": {'x' * 50_000}\nread line; echo got $line")
        await environment.processes.write(process.name, b"it\n")
        assert (await environment.processes.wait(process.name, 30)).exit_code == 0
        assert await environment.processes.read_log(process.name, 0, 100) == b"got it\n"


@pytest.mark.thorough
async def test_large_output_of_a_program_in_a_cloud_sandbox_is_complete_even_if_read_slowly(
    name: str, options: Options
) -> None:
    async with Environment(make(name, options)) as environment:
        running = await environment.start("head -c 30000000 /dev/zero; echo over")
        heard = len(await running.read())
        await asyncio.sleep(1)
        while data := await running.read():
            heard += len(data)
        assert heard == 30_000_005
        await environment.finish(running)


async def test_readiness_check_of_a_cloud_backend_says_how_to_install_a_missing_sdk(
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


async def test_slow_import_of_a_broken_cloud_sdk_does_not_block_the_event_loop(
    name: str, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = make(name, options)
    served, others, waits = threading.Event(), list[bool](), ModuleType("waits")
    waits.__dict__["for_others"] = lambda: others.append(served.wait(WAIT_TIMEOUT_S))
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


@pytest.mark.thorough(keep=1)
async def test_readiness_check_of_a_cloud_backend_names_the_environment_variable_of_missing_credentials(
    name: str, options: Options
) -> None:
    """Runs in a separate process, because an SDK caches credentials."""
    program = (
        "import asyncio\n"
        "from tests.environments.cloud_backends import make_without_credentials\n"
        f"backend = make_without_credentials({name!r}, {options!r})\n"
        "print(asyncio.run(backend.check()).advice)\n"
    )
    asked = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await asked.communicate()
    assert any(variable in said.decode() for variable in TOKENS[name])


@pytest.mark.thorough
async def test_readiness_check_of_a_cloud_backend_with_an_unreachable_server_advises_to_check_the_network(
    name: str, options: Options
) -> None:
    program = (
        "import asyncio\n"
        "from tests.environments.cloud_backends import MAKERS\n"
        f"backend = MAKERS[{name!r}]({ {**options, 'url': 'http://127.0.0.1:1'}!r})\n"
        "print(asyncio.run(backend.check()).advice)\n"
    )
    asked = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await asked.communicate()
    assert "network" in said.decode()


@pytest.mark.thorough
async def test_output_of_a_program_in_a_cloud_sandbox_can_be_read_while_its_input_is_written(
    name: str, options: Options
) -> None:
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


async def test_program_in_a_cloud_sandbox_can_handle_an_interrupt_signal_and_choose_its_exit_code(
    name: str, options: Options
) -> None:
    async with Environment(make(name, options)) as environment:
        running = await environment.start(
            "trap 'echo caught; exit 6' INT; echo ready; while :; do sleep 0.05; done"
        )
        assert await running.read() == b"ready\n"
        assert await environment.interrupt(running)
        assert await running.read() == b"caught\n"
        assert await running.read() == b""
        assert running.reported_exit is not None
        assert running.reported_exit.exit_code == 6
        await environment.finish(running)


@pytest.mark.thorough
async def test_helper_files_of_a_program_are_removed_from_a_cloud_sandbox_when_the_program_exits(
    name: str, options: Options
) -> None:
    async with Environment(make(name, options)) as environment:
        for n in range(5):
            await environment.run(f"echo {n}", stdin=b"x" * 100_000)

        async def tidy() -> bool:  # except for the running guard
            return len([*_find_files(options, "pipes.*"), *_find_files(options, "arguments.*")]) <= 1

        await wait_until(tidy)


@pytest.mark.thorough
async def test_helper_files_of_a_program_are_removed_from_a_cloud_sandbox_when_the_program_is_killed(
    name: str, options: Options, token: str
) -> None:
    async with Environment(make(name, options)) as environment:
        running = await environment.start(f"trap '' TERM; export MARK={token}; while :; do sleep 86400; done")
        await wait_for_sleep(token)
        await environment.finish(running)
        assert len(_find_files(options, "pipes.*")) <= 1
        await wait_until_gone(token)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["daytona"])  # the other one has none for a command this short
async def test_helper_files_in_a_cloud_sandbox_are_removed_after_the_toolfold_process_is_killed(
    name: str, options: Options
) -> None:
    wanted = {**options, **SHORT_LEASE}
    program = (
        "import asyncio\n"
        "from tests.environments.cloud_backends import MAKERS\n"
        "from toolfold.tools.environments import Environment\n"
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
        return not _find_files(options, "pipes.*")

    await wait_until(tidy)


@pytest.mark.parametrize("name", ["daytona"])
async def test_opening_a_cloud_sandbox_removes_helper_files_of_dead_processes_only(
    name: str, options: Options
) -> None:
    dead, alive = (Path(options["notes"]) / f"pipes.{number}" for number in (2**30, os.getpid()))
    for folder in (dead, alive):
        folder.mkdir(parents=True)
    async with Environment(make(name, options)) as environment:
        await environment.open()
        found = _find_files(options, "pipes.*")
        assert alive in found
        assert dead not in found


def _find_files(options: Options, pattern: str) -> list[Path]:
    return list(Path(options["notes"]).glob(pattern))
