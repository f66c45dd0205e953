"""A container, by docker or by podman, which speak the same words.

One that is kept is found again by the next client that wants the same, with all that was installed in it
and all that runs in it. One that is not goes with its client; where that was killed, the next client takes
it away, and without one it goes by itself. A command is never ended by ending its container.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping, Sequence

from toolfold.environments.backend import Backend, Channel, Readiness, Size
from toolfold.environments.container import KEPT, OWNER, PLACE, Container, is_gone, owner
from toolfold.environments.remote import CALL_SECONDS, Answer, Relay, asked, for_clients
from toolfold.errors import EnvironmentFailed

PROBE_SECONDS = 5.0
PULL_SECONDS = 900.0
ROOM_SECONDS = 15.0

# Keys that nobody presses in a row: by the usual ones a program could lose its terminal.
_DETACH_KEYS = "ctrl-],ctrl-@,ctrl-],ctrl-@"
_ROOM = "true | true | true | true"  # so many processes at once, as many as the least that we need
_TEMPORARY = "/tmp"  # noqa: S108  (of the container; nobody else is in it)


class Docker(Backend):
    """Commands run in one container."""

    apart = True
    advice = "The next command starts the container again; what ran in it has ended, its files are there."

    def __init__(
        self,
        container: Container,
        *,
        environment: Mapping[str, str],
        program: str = "docker",
        key: str = "",
        kept: bool = True,
    ) -> None:
        """`program` is docker or podman.

        A kept container is shared by all who use its key and want the same.
        """
        self.name = program.rpartition("/")[2]
        self.lasting = kept
        self._container, self._program = container, program
        self._environment = for_clients(environment)
        self._place = container.place(key)
        self._owner = owner()
        suffix = self._place if kept else f"{self._place[:8]}-{secrets.token_hex(6)}"
        self._name = f"toolfold-{suffix}"
        if not kept:
            self.advice = "The next command starts another container; this one and its files are gone."

    @property
    def folder(self) -> str:
        return f"{_TEMPORARY}/.toolfold"

    @property
    def home(self) -> str:
        return self._container.home

    @property
    def shared(self) -> Sequence[tuple[str, str]] | None:
        container = self._container
        if container.options or container.capabilities:  # which may open it in any way
            return None
        return [(mount.source, mount.target) for mount in container.mounts if mount.writable]

    async def check(self) -> Readiness:
        if not shutil.which(self._program, path=self._environment["PATH"]):
            return Readiness(False, f"{self.name} is not installed", f"Install {self.name}.")
        answer = await self._call(["ps", "--quiet", "--last", "1"], within=PROBE_SECONDS)
        if answer.code == 0:
            return Readiness(True)
        return Readiness(False, answer.complaint, self._why(answer.complaint))

    async def open(self) -> None:
        await self._reap()
        for _ in range(2):  # another client may make the same one between two calls of ours
            state = await self._state()
            if state is None:
                answer = await self._run()
            elif state == "running":
                answer = await self._make_way()
            else:
                answer = await self._call(["unpause" if state == "paused" else "start", self._name])
            if answer.code == 0:
                return
        raise self._failed(answer.complaint)

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], pty: Size | None) -> Channel:
        terminal = ("--tty", "--detach-keys", _DETACH_KEYS, "--env", "TERM=xterm-256color") if pty else ()
        given = (word for name, value in env.items() for word in ("--env", f"{name}={value}"))
        words = [self._program, "exec", "--interactive", *terminal, *given, self._name, *argv]
        return Relay.start(words, env=self._environment, pty=pty, cwd="/")

    async def close(self) -> None:
        if not self.lasting:
            await self.remove()

    async def remove(self) -> None:
        """Remove the container, with all that is in it."""
        await self._call(["rm", "--force", self._name])

    async def _make_way(self) -> Answer:
        """Begin anew where nothing more can be started: nobody inside can end what fills it."""
        answer = await self._call(["exec", self._name, "sh", "-c", _ROOM], within=ROOM_SECONDS)
        return await self._call(["restart", "--time", "0", self._name]) if answer.code else answer

    async def _run(self) -> Answer:
        labels = {PLACE: self._place, OWNER: self._owner, KEPT: "yes" if self.lasting else "no"}
        writer = "" if await self._rootless() else self._container.writer()
        words = self._container.words(name=self._name, labels=labels, kept=self.lasting, writer=writer)
        return await self._call(["run", *words], within=PULL_SECONDS)

    async def _rootless(self) -> bool:
        """Whether root inside is nobody but the user outside."""
        said = (await self._call(["info", "--format", "{{json .}}"])).text.replace(" ", "")
        return '"rootless":true' in said or "name=rootless" in said

    async def _state(self) -> str | None:
        """The state of our container; None where there is none."""
        answer = await self._call(["container", "inspect", "--format", "{{.State.Status}}", self._name])
        if answer.code and "no such" not in answer.complaint.lower():
            raise self._failed(answer.complaint)
        return None if answer.code else answer.text.strip()

    async def _reap(self) -> None:
        """Remove what clients left that were killed."""
        found = (await self._call(["ps", "--all", "--quiet", "--filter", f"label={KEPT}=no"])).text.split()
        if not found:
            return
        described = '{{.Id}} {{index .Config.Labels "' + OWNER + '"}}'
        answer = await self._call(["container", "inspect", "--format", described, *found])
        owners = (line.split(" ", 1) for line in answer.text.splitlines() if " " in line)
        orphans = [name for name, owner in owners if is_gone(owner)]
        if orphans:
            await self._call(["rm", "--force", *orphans])

    async def _call(self, words: Sequence[str], *, within: float = CALL_SECONDS) -> Answer:
        return await asked([self._program, *words], self._environment, within=within)

    def _failed(self, complaint: str) -> EnvironmentFailed:
        return EnvironmentFailed(
            f"{self.name} has no container for us: {complaint}.", advice=self._why(complaint)
        )

    def _why(self, complaint: str) -> str:
        """What to do about it."""
        said = complaint.lower()
        if "permission denied" in said:
            return "This user may not use it: add them to the group `docker`, or use podman."
        if "cannot connect" in said or "does not answer" in said:
            return f"Is its daemon running? `{self.name} info` tells."
        if "no such image" in said or "pull access denied" in said or "manifest unknown" in said:
            return f"Is there an image {self._container.image!r}? `{self.name} pull` it, or name another."
        return f"`{self.name} info` may tell more."
