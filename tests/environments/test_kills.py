"""Interrupted clients, containers and connections leave nothing behind, and the next command works.

That a killed parent process leaves nothing is part of the contract and tested there for every backend.
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

from tests.environments import server_backends
from tests.environments.backend_kinds import Kind, find_traces
from tests.environments.servers import descendants
from tests.environments.test_contract import FOREVER, wait_for_sleep, wait_until, wait_until_gone
from toolfold.core.errors import EnvironmentFailed
from toolfold.tools.environments import CommandResult, Environment
from toolfold.tools.environments.container import ContainerSpec, Mount
from toolfold.tools.environments.docker import Docker
from toolfold.tools.environments.ssh import Ssh, SshAddress

Options = Mapping[str, str]
CONTAINERS = (
    Kind("docker", server_backends.make_container, server_backends.docker_options),
    Kind("podman", server_backends.make_container, server_backends.podman_options),
)
REMOTE = (
    *CONTAINERS,
    Kind("ssh", server_backends.make_ssh, server_backends.ssh_options),
    Kind("apptainer", server_backends.make_apptainer, server_backends.apptainer_options),
)

# A detached process, one without environment variables, and one in the foreground.
COMMAND = "export MARK={token}; (setsid {forever} &); (env -i sh -c '{forever}; : {token}' &); {forever}"


@pytest.fixture(params=REMOTE, ids=[kind.name for kind in REMOTE])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Kind, Options]]:
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
    with server_backends.ssh_options(tmp_path) as options:
        yield options


@pytest.fixture
def temp_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Temporary directory with a short path, as sockets need."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def list_files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@asynccontextmanager
async def running_command(environment: Environment, token: str) -> AsyncIterator[asyncio.Task[CommandResult]]:
    """Run an endless command; afterwards assert that none of it is left and that another command works."""
    command = asyncio.create_task(environment.run(COMMAND.format(token=token, forever=FOREVER)))
    await wait_for_sleep(token)
    yield command
    assert await commands_work_again(environment)
    await wait_until_gone(token)


async def commands_work_again(environment: Environment) -> bool:
    """Return True if the next command works, or the one after it if the next reports an error."""
    try:
        done = await environment.run("echo on")
    except EnvironmentFailed as error:  # a busy server may reject a connection
        if "next command" not in str(error):
            raise
        done = await environment.run("echo on")
    return done.output == "on\n"


class TestKilledClient:
    @pytest.mark.thorough(keep=("docker", "ssh"))
    async def test_command_exits_with_137_and_leaves_no_process_if_its_docker_or_ssh_client_is_killed(
        self, remote: tuple[Kind, Options], token: str
    ) -> None:
        kind, options = remote
        async with Environment(kind.make(options)) as environment:
            await environment.open()
            others = children()
            async with running_command(environment, token) as command:
                (client,) = children() - others
                os.kill(client, signal.SIGKILL)
                assert (await command).exit_code == 137
                assert find_traces(token) == []

    @pytest.mark.thorough(keep=("ssh",))
    async def test_commands_are_terminated_if_the_connection_to_the_guard_process_is_killed(
        self, remote: tuple[Kind, Options], token: str
    ) -> None:
        kind, options = remote
        if kind.name == "apptainer":
            pytest.skip("here the guard hears us itself, and no client stands between")
        async with Environment(kind.make(options)) as environment:
            others = children()
            await environment.open()
            guard = sort_by_age(children() - others)[-1]
            async with running_command(environment, token) as command:
                os.kill(guard, signal.SIGKILL)
                await wait_until_gone(token)
                with pytest.raises(EnvironmentFailed):
                    await command


class TestContainer:
    @pytest.mark.thorough(keep=("docker",))
    async def test_killed_container_is_restarted_for_the_next_command(
        self, containers: Options, token: str
    ) -> None:
        async with Environment(server_backends.make_container(containers)) as environment:
            await environment.run("echo kept >file")
            async with running_command(environment, token) as command:
                run_docker(containers, "kill", server_backends.container_name(containers))
                with pytest.raises(EnvironmentFailed, match="restarts the container"):
                    await command
                assert find_traces(token) == []
            assert (await environment.run("cat file")).output == "kept\n"

    @pytest.mark.thorough
    async def test_removed_container_is_recreated_for_the_next_command(
        self, containers: Options, token: str
    ) -> None:
        environment = Environment(server_backends.make_container(containers))
        async with environment, running_command(environment, token) as command:
            run_docker(containers, "rm", "-f", server_backends.container_name(containers))
            with pytest.raises(EnvironmentFailed):
                await command

    @pytest.mark.thorough
    async def test_paused_container_is_resumed_for_the_next_command(self, containers: Options) -> None:
        async with Environment(server_backends.make_container(containers)) as environment:
            await environment.run("echo kept >/dev/shm/file")
        run_docker(containers, "pause", server_backends.container_name(containers))
        async with Environment(server_backends.make_container(containers)) as environment:
            assert (await environment.run("cat /dev/shm/file")).output == "kept\n"

    @pytest.mark.thorough(keep=("docker",))
    async def test_temporary_container_is_removed_when_its_environment_is_closed(
        self, containers: Options
    ) -> None:
        async with Environment(temporary_container(containers)) as environment:
            await environment.run("true")
            assert len(list_temporary_containers(containers)) == 1
        assert list_temporary_containers(containers) == []

    @pytest.mark.thorough(keep=("docker",))
    async def test_container_left_by_a_killed_toolfold_process_is_removed_when_toolfold_starts_again(
        self, containers: Options
    ) -> None:
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.environments.test_kills"),
            env={**os.environ, **containers},
            stdout=asyncio.subprocess.PIPE,
        )
        assert client.stdout is not None
        assert await client.stdout.readline() == b"open\n"
        (orphan,) = list_temporary_containers(containers)
        client.kill()
        await client.wait()
        async with Environment(temporary_container(containers)) as environment:
            await environment.open()
            (other,) = list_temporary_containers(containers)
            assert other != orphan

    @pytest.mark.thorough(keep=("docker",))
    async def test_starting_a_temporary_container_does_not_remove_containers_of_other_open_environments(
        self, containers: Options
    ) -> None:
        async with (
            Environment(temporary_container(containers)) as one,
            Environment(temporary_container(containers)) as other,
        ):
            await one.open()
            await other.open()
            assert len(list_temporary_containers(containers)) == 2

    @pytest.mark.thorough(keep=("docker",))
    async def test_container_has_no_capabilities_and_no_network_and_cannot_gain_privileges(
        self, containers: Options
    ) -> None:
        async with Environment(server_backends.make_container(containers)) as environment:
            status = (await environment.run("cat /proc/self/status; ls /sys/class/net")).output
        assert "CapBnd:\t0000000000000000\n" in status
        assert "NoNewPrivs:\t1\n" in status
        assert status.splitlines()[-1] == "lo"

    @pytest.mark.thorough
    async def test_container_can_run_commands_after_a_command_exceeded_the_process_limit(
        self, containers: Options
    ) -> None:
        wanted = ContainerSpec(image=containers["image"], processes=64)
        environment = {**os.environ, **containers}
        backend = Docker(
            wanted, environment=environment, program=containers["program"], key=containers["key"]
        )
        try:
            async with Environment(backend) as remote:
                await remote.run("n=0; while [ $n -lt 100 ]; do sleep 600 & n=$((n+1)); done", timeout_s=1)
                assert (await remote.run("echo on")).output == "on\n"
        finally:
            await backend.remove()

    @pytest.mark.thorough(keep=("docker",))
    async def test_project_files_written_in_a_container_are_owned_by_the_project_owner(
        self, containers: Options, tmp_path: Path
    ) -> None:
        os.chown(tmp_path, 4_321, 4_322)
        wanted = ContainerSpec(
            image=containers["image"], mounts=(Mount(source=str(tmp_path), target="/workspace"),)
        )
        environment = {**os.environ, **containers}
        backend = Docker(wanted, environment=environment, program=containers["program"], persistent=False)
        async with Environment(backend) as remote:
            assert (await remote.run("echo mine >file; cat file; id -u")).output == "mine\n4321\n"
        assert (tmp_path / "file").stat().st_uid == 4_321

    @pytest.mark.thorough
    async def test_environments_with_equal_container_settings_share_one_container(
        self, containers: Options
    ) -> None:
        first, second = server_backends.make_container(containers), server_backends.make_container(containers)
        async with Environment(first) as one, Environment(second) as other:
            await asyncio.gather(one.open(), other.open())
            await one.run("echo shared >file")
            assert (await other.run("cat file")).output == "shared\n"

    async def test_command_fails_with_advice_if_the_docker_daemon_is_not_running(
        self, containers: Options
    ) -> None:
        nowhere = {**containers, "DOCKER_HOST": "unix:///nowhere"}
        if containers["program"].endswith("podman"):
            pytest.skip("podman has no daemon")
        async with Environment(server_backends.make_container(nowhere)) as environment:
            with pytest.raises(EnvironmentFailed, match="its daemon is running"):
                await environment.run("true")
        readiness = await server_backends.make_container(nowhere).check()
        assert (readiness.available, "daemon is running" in readiness.advice) == (False, True)

    @pytest.mark.thorough(keep=("docker",))
    async def test_error_for_a_missing_container_image_names_the_image(self, containers: Options) -> None:
        backend = server_backends.make_container({**containers, "image": "localhost/no-such-image"})
        async with Environment(backend) as environment:
            with pytest.raises(EnvironmentFailed, match="no-such-image"):
                await environment.run("true")


class TestSshConnection:
    async def test_command_fails_with_advice_if_the_local_ssh_connection_process_is_killed(
        self, machine: Options, token: str
    ) -> None:
        before = children()
        async with Environment(server_backends.make_ssh(machine)) as environment:
            await environment.open()
            connection = sort_by_age(children() - before)[0]
            async with running_command(environment, token) as command:
                os.kill(connection, signal.SIGKILL)
                with pytest.raises(EnvironmentFailed, match="reconnects"):
                    await command
                await wait_until_gone(token)

    async def test_command_fails_with_advice_if_the_ssh_server_closes_the_connection(
        self, machine: Options, token: str
    ) -> None:
        async with Environment(server_backends.make_ssh(machine)) as environment:
            await environment.open()
            sessions = [number for number in descendants(int(machine["server"])) if is_sshd(number)]
            async with running_command(environment, token) as command:
                for number in sessions:
                    os.kill(number, signal.SIGKILL)
                with pytest.raises(EnvironmentFailed, match="reconnects"):
                    await command
                await wait_until_gone(token)

    @pytest.mark.thorough
    async def test_remote_commands_are_terminated_if_the_ssh_connection_stops_transmitting(
        self, machine: Options, token: str
    ) -> None:
        before = children()
        backend = server_backends.make_ssh(machine)
        backend.lease_s = 4
        async with Environment(backend) as environment:
            await environment.open()
            connection = sort_by_age(children() - before)[0]
            async with running_command(environment, token) as command:
                os.kill(connection, signal.SIGSTOP)

                async def commands_ended() -> bool:
                    return all(": ssh" in trace for trace in find_traces(token))

                await wait_until(commands_ended)
                os.kill(connection, signal.SIGKILL)
                with pytest.raises(EnvironmentFailed):
                    await command

    async def test_ssh_commands_share_one_connection(self, machine: Options) -> None:
        before = children()
        async with Environment(server_backends.make_ssh(machine)) as environment:
            await environment.run("true")
            assert len(children() - before) == 2  # the connection and the guard's client
            await asyncio.gather(*(environment.run("true") for _ in range(30)))
            assert len(children() - before) <= 6
        assert children() == before

    async def test_unknown_ssh_host_key_is_rejected_with_advice(
        self, machine: Options, tmp_path: Path
    ) -> None:
        unknown = tmp_path / "known_hosts"
        unknown.touch()
        async with Environment(
            server_backends.make_ssh({**machine, "known_hosts": str(unknown)})
        ) as environment:
            with pytest.raises(EnvironmentFailed, match=r"host key of 127\.0\.0\.1 is not known") as refused:
                await environment.run("true")
        assert f"ssh-keyscan -p {machine['port']} 127.0.0.1 >>{unknown}" in str(refused.value)
        assert unknown.read_text() == ""

    async def test_changed_ssh_host_key_is_rejected(self, machine: Options, tmp_path: Path) -> None:
        wrong = tmp_path / "known_hosts"
        public = Path(machine["identity"]).with_suffix(".pub").read_text().split()[:2]
        wrong.write_text(f"[127.0.0.1]:{machine['port']} {' '.join(public)}\n")
        readiness = await server_backends.make_ssh({**machine, "known_hosts": str(wrong)}).check()
        assert not readiness.available
        assert "has changed" in readiness.reason

    async def test_error_for_a_wrong_ssh_key_says_that_the_server_rejected_the_login(
        self, machine: Options, tmp_path: Path
    ) -> None:
        other = Path(machine["identity"]).with_name("host_key")
        async with Environment(server_backends.make_ssh({**machine, "identity": str(other)})) as environment:
            with pytest.raises(EnvironmentFailed, match="rejected the login"):
                await environment.run("true")

    async def test_ssh_control_socket_is_in_a_private_directory_that_is_removed_with_the_environment(
        self, machine: Options, temp_dir: Path
    ) -> None:
        async with Environment(server_backends.make_ssh(machine)) as environment:
            await environment.run("true")
            (way,) = list_files(temp_dir)
            assert stat.S_IMODE(way.stat().st_mode) == 0o700
            assert [each.is_socket() for each in list_files(way)] == [True]
        assert list_files(temp_dir) == []

    @pytest.mark.parametrize("setting", ["host", "user", "identity", "known_hosts"])
    async def test_ssh_settings_that_contain_options_cannot_make_ssh_run_a_local_command(
        self, setting: str, tmp_path: Path
    ) -> None:
        made = tmp_path / "made"
        for text in (f"-oProxyCommand=touch {made}", f"none\nProxyCommand touch {made}"):
            settings = {"host": "127.0.0.1", setting: text}
            backend = Ssh(SshAddress(port=1, **settings), environment=os.environ)
            assert not (await backend.check()).available
        assert not made.exists()

    async def test_error_for_an_unreachable_ssh_host_contains_an_ssh_command_to_try(self) -> None:
        async with Environment(
            Ssh(SshAddress(host="127.0.0.1", port=1), environment=os.environ)
        ) as environment:
            with pytest.raises(EnvironmentFailed, match="Run `ssh -p 1 "):
                await environment.run("true")


def children() -> set[int]:
    """Return the PIDs of this process's children."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        found |= set(map(int, (task / "children").read_text().split()))
    return found


def sort_by_age(numbers: set[int]) -> list[int]:
    """Sort PIDs by start time, the oldest first. PIDs themselves wrap around."""

    def start_time(number: int) -> int:
        return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[19])

    return sorted(numbers, key=start_time)


def is_sshd(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/comm").read_text().startswith("sshd")
    except FileNotFoundError:  # the process has ended
        return False


def run_docker(options: Options, *words: str) -> str:
    done = subprocess.run(
        [options["program"], *words], env={**os.environ, **options}, capture_output=True, check=True
    )
    return done.stdout.decode()


def temporary_container(options: Options) -> Docker:
    """Return a backend with a temporary container."""
    environment = {**os.environ, **options}
    wanted = ContainerSpec(image=options["image"])
    return Docker(
        wanted, environment=environment, program=options["program"], key=options["key"], persistent=False
    )


def list_temporary_containers(options: Options) -> list[str]:
    return run_docker(options, "ps", "-aq", "--filter", "label=dev.toolfold.kept=no").split()


async def client() -> None:
    """Run as a client with a temporary container until killed."""
    environment = Environment(temporary_container(os.environ))
    await environment.open()
    print("open", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(client())
