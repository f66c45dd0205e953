"""A container of apptainer, or of singularity, as clusters have them: no daemon, one user, one folder.

Commands run in an instance, which stays when we go and is found again by the next client that wants the same.
One in which nothing runs is stopped when its client leaves.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from toolfold.environments.backend import Backend, Channel, Readiness, Size
from toolfold.environments.client import Client
from toolfold.environments.remote import CALL_SECONDS, Answer, asked, for_clients, likeness
from toolfold.errors import EnvironmentFailed

PROBE_SECONDS = 5.0
BUILD_SECONDS = 900.0  # the image may have to be fetched and unpacked

# Whoever is killed here has its own child there killed at once. So that is not the program itself: what that
# has started would be hard to find without it.
_APART = ("sh", "-c", '"$@"; exit "$?"', "sh")
_COUNT = 'set -- /proc/[0-9]*; echo "$#"'
_ALONE = "2"  # the first program of an instance, and the one that counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """How an instance is to be. What is not said here is not seen in it."""

    image: str
    work: str
    """A folder of ours on this machine: its /tmp and its user's home are kept there."""
    project: str = ""
    """A folder on this machine that is seen at `home` and may be written."""
    home: str = "/workspace"
    """Where tasks begin."""
    network: bool = False
    options: tuple[str, ...] = ()
    """More words for `apptainer instance start`, as they are."""

    @property
    def name(self) -> str:
        return f"toolfold-{likeness(asdict(self))}"

    def lacks_image(self) -> bool:
        """Whether the image should be here, and is not."""
        return "://" not in self.image and not Path(self.image).exists()

    def make_room(self) -> None:
        Path(self.work).mkdir(parents=True, exist_ok=True, mode=0o700)

    def words(self) -> list[str]:
        """What follows `apptainer instance start`."""
        return [
            *("--containall", "--cleanenv", "--no-privs", "--workdir", self.work),
            *(("--bind", f"{self.project}:{self.home}") if self.project else ()),
            *(() if self.network else ("--net", "--network", "none")),
            *self.options,
            *(self.image, self.name),
        ]


class Apptainer(Backend):
    """Commands run in one instance."""

    name = "apptainer"
    apart = True
    advice = "The next command starts the instance again; what ran in it has ended, its files are there."

    def __init__(
        self, instance: Instance, *, environment: Mapping[str, str], program: str = "apptainer"
    ) -> None:
        """`program` is apptainer or singularity."""
        self.name = program.rpartition("/")[2]
        self._instance, self._program = instance, program
        self._environment = for_clients(environment)
        self._open = False

    @property
    def folder(self) -> str:
        return "/tmp/.toolfold"  # noqa: S108  (of the instance)

    @property
    def home(self) -> str:
        return self._instance.home

    @property
    def shared(self) -> Sequence[tuple[str, str]] | None:
        instance = self._instance
        if instance.options:  # which may open it in any way
            return None
        return [(instance.project, instance.home)] if instance.project else []

    async def check(self) -> Readiness:
        if not shutil.which(self._program, path=self._environment["PATH"]):
            return Readiness(False, f"{self._program} is not installed", "Install apptainer or singularity.")
        answer = await self._call(["version"], within=PROBE_SECONDS)
        if answer.code:
            return Readiness(False, answer.complaint, f"Try `{self._program} version`.")
        if self._instance.lacks_image():
            reason = f"there is no image {self._instance.image}"
            return Readiness(False, reason, "Build one, or name another.")
        return Readiness(True)

    async def open(self) -> None:
        if {",", ":"} & set(self._instance.project):  # what follows them would be shown inside as well
            raise EnvironmentFailed(
                f"{self.name} cannot show {self._instance.project!r}: commas and colons are special to it.",
                advice="Rename the folder, or use another backend.",
            )
        self._open = True
        if await self._runs():
            return
        self._instance.make_room()
        answer = await self._call(["instance", "start", *self._instance.words()], within=BUILD_SECONDS)
        if answer.code and not await self._runs():  # another client may have been faster
            raise EnvironmentFailed(
                f"{self.name} starts no instance: {answer.complaint}.",
                advice=f"Try it by hand: `{self._program} exec {self._instance.image} true`.",
            )

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], pty: Size | None) -> Channel:
        given = ("env", *(f"{name}={value}" for name, value in env.items())) if env else ()
        # A terminal is left for the program inside to control, which nobody outside may do then.
        leader = ("setsid", "-c") if pty else ("setsid",)
        words = [*self._into(), *_APART, *given, *leader, *argv]
        return Client.start(words, env=self._environment, pty=pty, controls=False, cwd="/")

    async def close(self) -> None:
        """Stop the instance, unless somebody else uses it or something runs in it."""
        if not self._open:
            return
        self._open = False
        answer = await asked([*self._into(), "sh", "-c", _COUNT], self._environment)
        if answer.text.strip() == _ALONE:
            await self.remove()

    async def remove(self) -> None:
        """Stop the instance, whatever runs in it."""
        await self._call(["instance", "stop", "--force", self._instance.name])

    def _into(self) -> list[str]:
        return [
            self._program,
            "--silent",
            "exec",
            "--cleanenv",
            "--pwd",
            "/",
            f"instance://{self._instance.name}",
        ]

    async def _runs(self) -> bool:
        answer = await self._call(["instance", "list", "--json", self._instance.name])
        try:
            found = json.loads(answer.text)["instances"]
        except (ValueError, KeyError):
            return False
        return any(each.get("instance") == self._instance.name for each in found)

    async def _call(self, words: Sequence[str], *, within: float = CALL_SECONDS) -> Answer:
        return await asked([self._program, "--silent", *words], self._environment, within=within)
