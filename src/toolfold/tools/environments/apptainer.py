"""Backend for apptainer or singularity containers, which need no daemon and run as the current user.

Commands run in an instance, which outlives this client and is found again by the next one with the same
specification. An instance in which nothing runs is stopped when its client exits.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from toolfold.core.errors import EnvironmentFailed
from toolfold.tools.environments.backend import Backend, Channel, Readiness, TerminalSize
from toolfold.tools.environments.local_process import LocalProcess
from toolfold.tools.environments.remote_commands import (
    CALL_TIMEOUT_S,
    ClientOutput,
    client_variables,
    fingerprint,
    run_client,
)

PROBE_TIMEOUT_S = 5.0
BUILD_TIMEOUT_S = 900.0  # the image may have to be downloaded and unpacked

# When the client is killed, apptainer kills its direct child in the instance at once. A shell between keeps
# the program itself alive, without which its descendants would be hard to find.
_INTERMEDIATE_SHELL = ("sh", "-c", '"$@"; exit "$?"', "sh")
_COUNT_PROCESSES = 'set -- /proc/[0-9]*; echo "$#"'
_IDLE_COUNT = "2"  # the init program of an instance, and the counting one


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSpec:
    """Specification of an apptainer instance, in which only the listed host directories are visible."""

    image: str
    work: str
    """Directory on this machine that holds the instance's /tmp and home directory."""
    project: str = ""
    """Directory on this machine that is mounted at `home`, writable."""
    home: str = "/workspace"
    """Directory in which commands start."""
    network: bool = False
    options: tuple[str, ...] = ()
    """Further options for `apptainer instance start`, passed unchanged."""

    @property
    def name(self) -> str:
        return f"toolfold-{fingerprint(asdict(self))}"

    def lacks_image(self) -> bool:
        """Return True if the container image is a local file that does not exist."""
        return "://" not in self.image and not Path(self.image).exists()

    def create_work_dir(self) -> None:
        Path(self.work).mkdir(parents=True, exist_ok=True, mode=0o700)

    def start_arguments(self) -> list[str]:
        """Return the arguments of `apptainer instance start`."""
        return [
            *("--containall", "--cleanenv", "--no-privs", "--workdir", self.work),
            *(("--bind", f"{self.project}:{self.home}") if self.project else ()),
            *(() if self.network else ("--net", "--network", "none")),
            *self.options,
            *(self.image, self.name),
        ]


class Apptainer(Backend):
    """Backend that runs commands in one apptainer instance."""

    name = "apptainer"
    has_own_files = True
    advice = "The next command restarts the instance. Its processes have ended, its files are kept."

    def __init__(
        self, spec: InstanceSpec, *, environment: Mapping[str, str], program: str = "apptainer"
    ) -> None:
        """Store the specification; nothing is started yet. `program` is apptainer or singularity."""
        self.name = program.rpartition("/")[2]
        self._spec, self._program = spec, program
        self._environment = client_variables(environment)
        self._is_open = False

    @property
    def state_dir(self) -> str:
        return "/tmp/.toolfold"  # noqa: S108  (in the instance)

    @property
    def home(self) -> str:
        return self._spec.home

    @property
    def shared_directories(self) -> Sequence[tuple[str, str]] | None:
        spec = self._spec
        if spec.options:  # which may lift any restriction
            return None
        return [(spec.project, spec.home)] if spec.project else []

    async def check(self) -> Readiness:
        if not shutil.which(self._program, path=self._environment["PATH"]):
            return Readiness(False, f"{self._program} is not installed", "Install apptainer or singularity.")
        answer = await self._run_client(["version"], timeout_s=PROBE_TIMEOUT_S)
        if answer.code:
            return Readiness(False, answer.error_text, f"Try `{self._program} version`.")
        if self._spec.lacks_image():
            reason = f"the image {self._spec.image} does not exist"
            return Readiness(False, reason, "Build it, or set terminal.image to another.")
        return Readiness(True)

    async def open(self) -> None:
        if {",", ":"} & set(self._spec.project):  # the text after them would be mounted as well
            raise EnvironmentFailed(
                f"{self.name} cannot mount {self._spec.project!r}: paths must not contain commas or colons.",
                advice="Rename the directory, or use another backend.",
            )
        self._is_open = True
        if await self._is_running():
            return
        self._spec.create_work_dir()
        answer = await self._run_client(
            ["instance", "start", *self._spec.start_arguments()], timeout_s=BUILD_TIMEOUT_S
        )
        if answer.code and not await self._is_running():  # another client may have started it
            raise EnvironmentFailed(
                f"{self.name} cannot start an instance: {answer.error_text}.",
                advice=f"Run `{self._program} exec {self._spec.image} true` to see the cause.",
            )

    async def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str], pty: TerminalSize | None
    ) -> Channel:
        variables = ("env", *(f"{name}={value}" for name, value in env.items())) if env else ()
        # The program inside controls the terminal, so nothing outside may.
        leader = ("setsid", "-c") if pty else ("setsid",)
        command = [*self._exec_argv(), *_INTERMEDIATE_SHELL, *variables, *leader, *argv]
        return LocalProcess.start(command, env=self._environment, pty=pty, controls_terminal=False, cwd="/")

    async def close(self) -> None:
        """Stop the instance unless another client uses it or a process still runs in it."""
        if not self._is_open:
            return
        self._is_open = False
        answer = await run_client([*self._exec_argv(), "sh", "-c", _COUNT_PROCESSES], self._environment)
        if answer.text.strip() == _IDLE_COUNT:
            await self.remove()

    async def remove(self) -> None:
        """Stop the instance and all processes in it."""
        await self._run_client(["instance", "stop", "--force", self._spec.name])

    def _exec_argv(self) -> list[str]:
        return [
            self._program,
            "--silent",
            "exec",
            "--cleanenv",
            "--pwd",
            "/",
            f"instance://{self._spec.name}",
        ]

    async def _is_running(self) -> bool:
        answer = await self._run_client(["instance", "list", "--json", self._spec.name])
        try:
            instances = json.loads(answer.text)["instances"]
        except (ValueError, KeyError):
            return False
        return any(each.get("instance") == self._spec.name for each in instances)

    async def _run_client(
        self, arguments: Sequence[str], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> ClientOutput:
        return await run_client(
            [self._program, "--silent", *arguments], self._environment, timeout_s=timeout_s
        )
