"""What is cut off in the middle leaves nothing behind, here or there, and the next command works.

That a killed parent leaves nothing is a part of the contract, and proved there for every place.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.environments import elsewhere
from tests.environments.places import Kind, traces
from tests.environments.servers import descendants
from tests.environments.test_contract import FOREVER, asleep_somewhere, gone_everywhere, until
from toolfold.environments import Completed, Environment
from toolfold.environments.container import Container, Mount
from toolfold.environments.docker import Docker
from toolfold.environments.ssh import Address, Ssh
from toolfold.errors import EnvironmentFailed

Options = Mapping[str, str]
CONTAINERS = (
    Kind("docker", elsewhere.container, elsewhere.docker),
    Kind("podman", elsewhere.container, elsewhere.podman),
)
ELSEWHERE = (
    *CONTAINERS,
    Kind("ssh", elsewhere.machine, elsewhere.ssh),
    Kind("apptainer", elsewhere.instance, elsewhere.apptainer),
)

# One that runs on by itself, one that has nothing from us in its environment, and one in front.
COMMAND = "export MARK={token}; (setsid {forever} &); (env -i sh -c '{forever}; : {token}' &); {forever}"


@pytest.fixture(params=ELSEWHERE, ids=[kind.name for kind in ELSEWHERE])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Kind, Options]]:
    kind: Kind = request.param
    with kind.prepared(tmp_path) as options:
        yield kind, options


@pytest.fixture(params=CONTAINERS, ids=[kind.name for kind in CONTAINERS])
def containers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Options]:
    kind: Kind = request.param
    with kind.prepared(tmp_path) as options:
        yield options


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Options]:
    with elsewhere.ssh(tmp_path) as options:
        yield options


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go: a short path, as sockets need."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def inside(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@asynccontextmanager
async def under_way(environment: Environment, token: str) -> AsyncIterator[asyncio.Task[Completed]]:
    """A command that would run for ever; in the end nothing of it is left, and another one works."""
    command = asyncio.create_task(environment.run(COMMAND.format(token=token, forever=FOREVER)))
    await asleep_somewhere(token)
    yield command
    assert await goes_on(environment)
    await gone_everywhere(token)


async def goes_on(environment: Environment) -> bool:
    """Whether commands run again: the next one, or, where that says to, the one after it."""
    try:
        done = await environment.run("echo on")
    except EnvironmentFailed as error:  # a busy server may turn a connection away
        if "next command" not in str(error):
            raise
        done = await environment.run("echo on")
    return done.output == "on\n"


class TestAKilledClient:
    async def test_leaves_nothing_and_the_next_command_works(
        self, place: tuple[Kind, Options], token: str
    ) -> None:
        kind, options = place
        async with Environment(kind.make(options)) as environment:
            await environment.open()
            others = children()
            async with under_way(environment, token) as command:
                (client,) = children() - others
                os.kill(client, signal.SIGKILL)
                assert (await command).code == 137
                assert traces(token) == []

    async def test_of_the_guard_takes_the_commands_with_it(
        self, place: tuple[Kind, Options], token: str
    ) -> None:
        kind, options = place
        if kind.name == "apptainer":
            pytest.skip("here the guard hears us itself, and no client stands between")
        async with Environment(kind.make(options)) as environment:
            others = children()
            await environment.open()
            guard = by_age(children() - others)[-1]
            async with under_way(environment, token) as command:
                os.kill(guard, signal.SIGKILL)
                await gone_everywhere(token)
                with pytest.raises(EnvironmentFailed):
                    await command


class TestAContainer:
    async def test_that_is_killed_is_said_and_starts_again_with_its_files(
        self, containers: Options, token: str
    ) -> None:
        async with Environment(elsewhere.container(containers)) as environment:
            await environment.run("echo kept >file")
            async with under_way(environment, token) as command:
                called(containers, "kill", elsewhere.name_of(containers))
                with pytest.raises(EnvironmentFailed, match="starts the container again"):
                    await command
                assert traces(token) == []
            assert (await environment.run("cat file")).output == "kept\n"

    async def test_that_is_removed_is_made_again(self, containers: Options, token: str) -> None:
        environment = Environment(elsewhere.container(containers))
        async with environment, under_way(environment, token) as command:
            called(containers, "rm", "-f", elsewhere.name_of(containers))
            with pytest.raises(EnvironmentFailed):
                await command

    async def test_that_is_paused_goes_on(self, containers: Options) -> None:
        async with Environment(elsewhere.container(containers)) as environment:
            await environment.run("echo kept >/dev/shm/file")
        called(containers, "pause", elsewhere.name_of(containers))
        async with Environment(elsewhere.container(containers)) as environment:
            assert (await environment.run("cat /dev/shm/file")).output == "kept\n"

    async def test_that_is_not_kept_goes_with_its_client(self, containers: Options) -> None:
        async with Environment(passing(containers)) as environment:
            await environment.run("true")
            assert len(passing_ones(containers)) == 1
        assert passing_ones(containers) == []

    async def test_of_a_killed_client_is_taken_away_by_the_next(self, containers: Options) -> None:
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.environments.test_kills"),
            env={**os.environ, **containers},
            stdout=asyncio.subprocess.PIPE,
        )
        assert client.stdout is not None
        assert await client.stdout.readline() == b"open\n"
        (orphan,) = passing_ones(containers)
        client.kill()
        await client.wait()
        async with Environment(passing(containers)) as environment:
            await environment.open()
            (other,) = passing_ones(containers)
            assert other != orphan

    async def test_of_a_client_that_lives_stays(self, containers: Options) -> None:
        async with Environment(passing(containers)) as one, Environment(passing(containers)) as other:
            await one.open()
            await other.open()
            assert len(passing_ones(containers)) == 2

    async def test_can_do_little(self, containers: Options) -> None:
        async with Environment(elsewhere.container(containers)) as environment:
            status = (await environment.run("cat /proc/self/status; ls /sys/class/net")).output
        assert "CapBnd:\t0000000000000000\n" in status
        assert "NoNewPrivs:\t1\n" in status
        assert status.splitlines()[-1] == "lo"

    async def test_holds_so_many_processes(self, containers: Options) -> None:
        wanted = Container(image=containers["image"], processes=64)
        environment = {**os.environ, **containers}
        backend = Docker(
            wanted, environment=environment, program=containers["program"], key=containers["key"]
        )
        try:
            async with Environment(backend) as place:
                await place.run("n=0; while [ $n -lt 100 ]; do sleep 600 & n=$((n+1)); done", seconds=1)
                assert (await place.run("echo on")).output == "on\n"
        finally:
            await backend.remove()

    async def test_writes_a_project_as_its_owner(self, containers: Options, tmp_path: Path) -> None:
        os.chown(tmp_path, 4_321, 4_322)
        wanted = Container(
            image=containers["image"], mounts=(Mount(source=str(tmp_path), target="/workspace"),)
        )
        environment = {**os.environ, **containers}
        backend = Docker(wanted, environment=environment, program=containers["program"], kept=False)
        async with Environment(backend) as place:
            assert (await place.run("echo mine >file; cat file; id -u")).output == "mine\n4321\n"
        assert (tmp_path / "file").stat().st_uid == 4_321

    async def test_is_shared_by_those_who_want_the_same(self, containers: Options) -> None:
        first, second = elsewhere.container(containers), elsewhere.container(containers)
        async with Environment(first) as one, Environment(second) as other:
            await asyncio.gather(one.open(), other.open())
            await one.run("echo shared >file")
            assert (await other.run("cat file")).output == "shared\n"

    async def test_without_a_daemon_says_what_to_do(self, containers: Options) -> None:
        nowhere = {**containers, "DOCKER_HOST": "unix:///nowhere"}
        if containers["program"].endswith("podman"):
            pytest.skip("podman has no daemon")
        async with Environment(elsewhere.container(nowhere)) as environment:
            with pytest.raises(EnvironmentFailed, match="Is its daemon running"):
                await environment.run("true")
        readiness = await elsewhere.container(nowhere).check()
        assert (readiness.available, "daemon running" in readiness.advice) == (False, True)

    async def test_of_no_image_says_what_to_do(self, containers: Options) -> None:
        backend = elsewhere.container({**containers, "image": "localhost/no-such-image"})
        async with Environment(backend) as environment:
            with pytest.raises(EnvironmentFailed, match="no-such-image"):
                await environment.run("true")


class TestAConnection:
    async def test_that_is_cut_is_said_and_made_again(self, machine: Options, token: str) -> None:
        before = children()
        async with Environment(elsewhere.machine(machine)) as environment:
            await environment.open()
            connection = by_age(children() - before)[0]
            async with under_way(environment, token) as command:
                os.kill(connection, signal.SIGKILL)
                with pytest.raises(EnvironmentFailed, match="connects again"):
                    await command
                await gone_everywhere(token)

    async def test_that_the_server_ends_is_made_again(self, machine: Options, token: str) -> None:
        async with Environment(elsewhere.machine(machine)) as environment:
            await environment.open()
            sessions = [number for number in descendants(int(machine["server"])) if is_sshd(number)]
            async with under_way(environment, token) as command:
                for number in sessions:
                    os.kill(number, signal.SIGKILL)
                with pytest.raises(EnvironmentFailed, match="connects again"):
                    await command
                await gone_everywhere(token)

    async def test_that_falls_silent_is_the_end_of_the_commands_there(
        self, machine: Options, token: str
    ) -> None:
        before = children()
        backend = elsewhere.machine(machine)
        backend.lease = 4
        async with Environment(backend) as environment:
            await environment.open()
            connection = by_age(children() - before)[0]
            async with under_way(environment, token) as command:
                os.kill(connection, signal.SIGSTOP)

                async def ended_there() -> bool:
                    return all(": ssh" in trace for trace in traces(token))

                await until(ended_there)
                os.kill(connection, signal.SIGKILL)
                with pytest.raises(EnvironmentFailed):
                    await command

    async def test_is_one_for_many_commands(self, machine: Options) -> None:
        before = children()
        async with Environment(elsewhere.machine(machine)) as environment:
            await environment.run("true")
            assert len(children() - before) == 2  # the connection, and the guard over it
            await asyncio.gather(*(environment.run("true") for _ in range(30)))
            assert len(children() - before) <= 6
        assert children() == before

    async def test_to_an_unknown_host_is_refused_with_what_to_do(
        self, machine: Options, tmp_path: Path
    ) -> None:
        unknown = tmp_path / "known_hosts"
        unknown.touch()
        async with Environment(elsewhere.machine({**machine, "known_hosts": str(unknown)})) as environment:
            with pytest.raises(EnvironmentFailed, match=r"host key of 127\.0\.0\.1 is not known") as refused:
                await environment.run("true")
        assert f"ssh-keyscan -p {machine['port']} 127.0.0.1 >>{unknown}" in str(refused.value)
        assert unknown.read_text() == ""

    async def test_to_a_host_with_another_key_is_refused(self, machine: Options, tmp_path: Path) -> None:
        wrong = tmp_path / "known_hosts"
        public = Path(machine["identity"]).with_suffix(".pub").read_text().split()[:2]
        wrong.write_text(f"[127.0.0.1]:{machine['port']} {' '.join(public)}\n")
        readiness = await elsewhere.machine({**machine, "known_hosts": str(wrong)}).check()
        assert not readiness.available
        assert "another host key" in readiness.reason

    async def test_without_a_key_says_what_to_do(self, machine: Options, tmp_path: Path) -> None:
        other = Path(machine["identity"]).with_name("host_key")
        async with Environment(elsewhere.machine({**machine, "identity": str(other)})) as environment:
            with pytest.raises(EnvironmentFailed, match="does not let us in"):
                await environment.run("true")

    async def test_is_reached_through_a_folder_of_its_user_alone(
        self, machine: Options, temporary: Path
    ) -> None:
        async with Environment(elsewhere.machine(machine)) as environment:
            await environment.run("true")
            (way,) = inside(temporary)
            assert stat.S_IMODE(way.stat().st_mode) == 0o700
            assert [each.is_socket() for each in inside(way)] == [True]
        assert inside(temporary) == []

    @pytest.mark.parametrize("setting", ["host", "user", "identity", "known_hosts"])
    async def test_is_told_no_options_by_its_settings(self, setting: str, tmp_path: Path) -> None:
        made = tmp_path / "made"
        for text in (f"-oProxyCommand=touch {made}", f"none\nProxyCommand touch {made}"):
            settings = {"host": "127.0.0.1", setting: text}
            backend = Ssh(Address(port=1, **settings), environment=os.environ)
            assert not (await backend.check()).available
        assert not made.exists()

    async def test_to_nobody_says_what_to_do(self) -> None:
        async with Environment(Ssh(Address(host="127.0.0.1", port=1), environment=os.environ)) as environment:
            with pytest.raises(EnvironmentFailed, match="Try it by hand: `ssh -p 1 "):
                await environment.run("true")


def children() -> set[int]:
    """The processes that this one has started."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        found |= set(map(int, (task / "children").read_text().split()))
    return found


def by_age(numbers: set[int]) -> list[int]:
    """The oldest first; numbers do not tell, they begin again."""

    def began(number: int) -> int:
        return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[19])

    return sorted(numbers, key=began)


def is_sshd(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/comm").read_text().startswith("sshd")
    except FileNotFoundError:  # it has ended meanwhile
        return False


def called(options: Options, *words: str) -> str:
    done = subprocess.run(
        [options["program"], *words], env={**os.environ, **options}, capture_output=True, check=True
    )
    return done.stdout.decode()


def passing(options: Options) -> Docker:
    """A container that is not kept."""
    environment = {**os.environ, **options}
    wanted = Container(image=options["image"])
    return Docker(wanted, environment=environment, program=options["program"], key=options["key"], kept=False)


def passing_ones(options: Options) -> list[str]:
    return called(options, "ps", "-aq", "--filter", "label=dev.toolfold.kept=no").split()


async def client() -> None:
    """A client with a container that is not kept, to be killed."""
    environment = Environment(passing(os.environ))
    await environment.open()
    print("open", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(client())
