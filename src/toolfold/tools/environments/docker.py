"""Backend for docker or podman containers.

A persistent container is found again by the next client with the same specification, with everything
installed and running in it. A temporary one is removed with its client; if the client was killed, the next
client removes it, or it exits by itself. A command is never terminated by stopping its container.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping, Sequence

from toolfold.core.errors import EnvironmentFailed
from toolfold.tools.environments.backend import Backend, Channel, Readiness, TerminalSize
from toolfold.tools.environments.container import (
    KEPT_LABEL,
    OWNER_LABEL,
    PLACE_LABEL,
    ContainerSpec,
    current_owner,
    has_exited,
)
from toolfold.tools.environments.remote_commands import (
    CALL_TIMEOUT_S,
    ClientOutput,
    ResizableProcess,
    client_variables,
    run_client,
)

PROBE_TIMEOUT_S = 5.0
PULL_TIMEOUT_S = 900.0
CAPACITY_TIMEOUT_S = 15.0

# A key sequence that is never typed by accident: the default one could detach a program from its terminal.
_DETACH_KEYS = "ctrl-],ctrl-@,ctrl-],ctrl-@"
_CAPACITY_PROBE = "true | true | true | true"  # needs as many processes at once as Toolfold does at least
_CONTAINER_TMP = "/tmp"  # noqa: S108  (in the container, which has no other users)


class Docker(Backend):
    """Backend that runs commands in one docker or podman container."""

    has_own_files = True
    advice = "The next command restarts the container. Its processes have ended, its files are kept."

    def __init__(
        self,
        spec: ContainerSpec,
        *,
        environment: Mapping[str, str],
        program: str = "docker",
        key: str = "",
        persistent: bool = True,
    ) -> None:
        """Store the specification; nothing is started yet. `program` is docker or podman.

        A persistent container is shared by all clients with the same key and specification.
        """
        self.name = program.rpartition("/")[2]
        self.is_persistent = persistent
        self._spec, self._program = spec, program
        self._environment = client_variables(environment)
        self._identifier = spec.identifier(key)
        self._owner = current_owner()
        suffix = self._identifier if persistent else f"{self._identifier[:8]}-{secrets.token_hex(6)}"
        self._name = f"toolfold-{suffix}"
        if not persistent:
            self.advice = "The next command starts a new container. This one and its files are gone."

    @property
    def state_dir(self) -> str:
        return f"{_CONTAINER_TMP}/.toolfold"

    @property
    def home(self) -> str:
        return self._spec.home

    @property
    def shared_directories(self) -> Sequence[tuple[str, str]] | None:
        spec = self._spec
        if spec.options or spec.capabilities:  # which may lift any restriction
            return None
        return [(mount.source, mount.target) for mount in spec.mounts if mount.writable]

    async def check(self) -> Readiness:
        if not shutil.which(self._program, path=self._environment["PATH"]):
            return Readiness(False, f"{self.name} is not installed", f"Install {self.name}.")
        answer = await self._run_client(["ps", "--quiet", "--last", "1"], timeout_s=PROBE_TIMEOUT_S)
        if answer.code == 0:
            return Readiness(True)
        return Readiness(False, answer.error_text, self._advise(answer.error_text))

    async def open(self) -> None:
        await self._remove_orphans()
        for _ in range(2):  # another client may create it between two calls
            state = await self._container_state()
            if state is None:
                answer = await self._create_container()
            elif state == "running":
                answer = await self._restart_if_full()
            else:
                answer = await self._run_client(["unpause" if state == "paused" else "start", self._name])
            if answer.code == 0:
                return
        raise self._start_error(answer.error_text)

    async def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str], pty: TerminalSize | None
    ) -> Channel:
        terminal = ("--tty", "--detach-keys", _DETACH_KEYS, "--env", "TERM=xterm-256color") if pty else ()
        variables = (word for name, value in env.items() for word in ("--env", f"{name}={value}"))
        command = [self._program, "exec", "--interactive", *terminal, *variables, self._name, *argv]
        return ResizableProcess.start(command, env=self._environment, pty=pty, cwd="/")

    async def close(self) -> None:
        if not self.is_persistent:
            await self.remove()

    async def remove(self) -> None:
        """Remove the container with all its contents."""
        await self._run_client(["rm", "--force", self._name])

    async def _restart_if_full(self) -> ClientOutput:
        """Restart the container if it has reached its process limit.

        Nothing inside could then terminate the others.
        """
        answer = await self._run_client(
            ["exec", self._name, "sh", "-c", _CAPACITY_PROBE], timeout_s=CAPACITY_TIMEOUT_S
        )
        return await self._run_client(["restart", "--time", "0", self._name]) if answer.code else answer

    async def _create_container(self) -> ClientOutput:
        labels = {
            PLACE_LABEL: self._identifier,
            OWNER_LABEL: self._owner,
            KEPT_LABEL: "yes" if self.is_persistent else "no",
        }
        mount_owner = "" if await self._is_rootless() else self._spec.mount_owner()
        arguments = self._spec.run_arguments(
            name=self._name, labels=labels, persistent=self.is_persistent, mount_owner=mount_owner
        )
        return await self._run_client(["run", *arguments], timeout_s=PULL_TIMEOUT_S)

    async def _is_rootless(self) -> bool:
        """Return True if root in the container is an ordinary user of the host."""
        info = (await self._run_client(["info", "--format", "{{json .}}"])).text.replace(" ", "")
        return '"rootless":true' in info or "name=rootless" in info

    async def _container_state(self) -> str | None:
        """Return the state of the container; None if it does not exist."""
        answer = await self._run_client(["container", "inspect", "--format", "{{.State.Status}}", self._name])
        if answer.code and "no such" not in answer.error_text.lower():
            raise self._start_error(answer.error_text)
        return None if answer.code else answer.text.strip()

    async def _remove_orphans(self) -> None:
        """Remove temporary containers whose Toolfold process has exited without removing them."""
        names = (
            await self._run_client(["ps", "--all", "--quiet", "--filter", f"label={KEPT_LABEL}=no"])
        ).text.split()
        if not names:
            return
        template = '{{.Id}} {{index .Config.Labels "' + OWNER_LABEL + '"}}'
        answer = await self._run_client(["container", "inspect", "--format", template, *names])
        owners = (line.split(" ", 1) for line in answer.text.splitlines() if " " in line)
        orphans = [name for name, owner in owners if has_exited(owner)]
        if orphans:
            await self._run_client(["rm", "--force", *orphans])

    async def _run_client(
        self, arguments: Sequence[str], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> ClientOutput:
        return await run_client([self._program, *arguments], self._environment, timeout_s=timeout_s)

    def _start_error(self, error: str) -> EnvironmentFailed:
        return EnvironmentFailed(
            f"{self.name} cannot provide a container: {error}.", advice=self._advise(error)
        )

    def _advise(self, error: str) -> str:
        """Return advice for an error message of docker or podman."""
        text = error.lower()
        if "permission denied" in text:
            return "This user has no access: add the user to the group `docker`, or use podman."
        if "cannot connect" in text or "does not respond" in text:
            return f"Check with `{self.name} info` that its daemon is running."
        if "no such image" in text or "pull access denied" in text or "manifest unknown" in text:
            return (
                f"Check that the image {self._spec.image!r} exists: run `{self.name} pull`,"
                " or set terminal.image to another one."
            )
        return f"`{self.name} info` may show the cause."
