"""The terminal, wherever it runs: commands, background processes and files over any backend.

Everything that is the same in every place is here and in the modules beside this one. What a command does
is for approval to judge, before it comes here.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolfold.environments.backend import Backend, Size
from toolfold.environments.ending import NOWHERE
from toolfold.environments.output import Listener, Output, readable
from toolfold.environments.place import Command, Place
from toolfold.environments.processes import Process, Processes
from toolfold.environments.running import Running, conversation
from toolfold.environments.scripts import with_arguments
from toolfold.errors import CallError

TASK = "main"
LAST_WORDS_SECONDS = 5.0
"""How long we wait for the output of a command that was ended to come to its end as well."""
FILE_SECONDS = 120.0
LONGEST_COMPLAINT = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much of everything."""

    seconds: float = 120.0
    """How long a command in the foreground may take, where nobody says otherwise."""
    shown: int = 40_000
    """How many bytes of its output are shown; all of it is kept on disk."""
    stored: int = 200_000_000
    """How many bytes of it are kept: the first; of a background process, about so many of the last."""
    file: int = 50_000_000
    """How large a file may be that is read."""
    processes: int = 64
    """How many background processes may run at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """What came of a command. Its exit code is a result like any other."""

    output: str
    code: int | None
    """None where it was ended by us."""
    folder: str
    """Where its task is now."""
    seconds: float
    timed_out: bool = False
    left: bool = False
    """Whether something of it may still run, although it was to be ended."""
    stored: Path | None = None
    """All of the output, where it is more than is shown."""
    bytes: int = 0
    lost: int = 0
    """How many bytes are neither shown nor stored."""


class Environment:
    """One place to run commands in. Use it within one event loop, from as many tasks as you like."""

    def __init__(
        self,
        backend: Backend,
        *,
        outputs: Path | None = None,
        variables: Mapping[str, str] | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        """`outputs` is where long outputs are kept on this machine; every command is given `variables`."""
        self.backend = backend
        self.bounds = bounds or Bounds()
        self._outputs = outputs
        self._place = Place(backend, dict(variables or {}), self.bounds.stored)
        self._folders: dict[str, str] = {}
        self.processes = Processes(self._place, self.bounds.processes)

    @property
    def client(self) -> str:
        """What names this client's commands, in their environment and in the limit that marks them."""
        return self._place.client

    async def open(self) -> None:
        """Reach the place now; every use does so by itself. Raises EnvironmentFailed."""
        await self._place.guard()

    def folder(self, task: str = TASK) -> str:
        """Where a task is, as far as it is known: where its last command that came to an end left it."""
        return self._folders.get(task) or self.backend.home

    async def run(
        self,
        command: str,
        *,
        task: str = TASK,
        folder: str = "",
        given: bytes = b"",
        seconds: float | None = None,
        pty: Size | None = None,
        listener: Listener | None = None,
        outputs: Path | None = None,
    ) -> Completed:
        """Run a command to its end, or to the end of its time; nothing of it is left then.

        It begins where its task's last one ended, in that folder and with what that exported, or in
        `folder`, and raises CallError where it cannot; its task goes with it. `given` is all of its input.
        `listener` is told what it writes.
        """
        began = time.monotonic()
        running = await self.start(command, task=task, folder=folder, pty=pty)
        output = Output(
            most=self.bounds.shown,
            folder=outputs or self._outputs,
            largest_file=self.bounds.stored,
            listener=listener,
        )
        in_time = await self._attend(
            running, given, output, self.bounds.seconds if seconds is None else seconds
        )
        ended = running.ended
        if ended and ended.code == NOWHERE:
            raise CallError(output.text().strip())
        if ended:
            self._folders[task] = ended.folder
        code = ended.code if ended else await self._place.exit_code(running) if in_time else None
        return Completed(
            output=output.text(),
            code=code if in_time else None,
            folder=self.folder(task),
            seconds=time.monotonic() - began,
            timed_out=not in_time,
            left=running.left,
            stored=output.stored,
            bytes=output.total,
            lost=output.lost,
        )

    async def start(
        self, command: str, *, task: str = TASK, folder: str = "", pty: Size | None = None
    ) -> Running:
        """Start a command and talk to it yourself; `finish` it afterwards."""
        return await self._place.start(Command(text=command, task=task, folder=folder, pty=pty))

    async def interrupt(self, running: Running, signal: str = "INT") -> bool:
        """Send a signal to a command and all that it started."""
        return await self._place.ask(lambda guard: guard.tell(running.run, signal))

    async def finish(self, running: Running) -> None:
        """End a command that you started, there and with all that it started."""
        await self._place.finish(running, end=True)

    async def read_file(
        self, path: str, *, task: str = TASK, first: int = 0, most: int | None = None
    ) -> bytes:
        """The bytes of a file, from the first wanted one. Raises CallError where it cannot be read.

        Without `most`, all of it: also where it is too large for that, CallError is raised.
        """
        limit = self.bounds.file + 1 if most is None else most
        data = await self._file("read_file", task, b"", path, str(first + 1), str(limit), most=limit)
        if most is None and len(data) == limit:
            raise CallError(f"{path} is larger than {self.bounds.file:,} bytes. Read a part of it.")
        return data

    async def write_file(self, path: str, data: bytes, *, task: str = TASK) -> None:
        """Create or replace a file as a whole, with the folders that it needs. Raises CallError."""
        await self._file("write_file", task, data, path, str(len(data)), secrets.token_hex(8))

    async def start_process(
        self,
        command: str,
        *,
        task: str = TASK,
        folder: str = "",
        pty: Size | None = None,
        watched: Sequence[str] = (),
    ) -> Process:
        """Start a command in the background, where its task is now. It has no time limit.

        You are told by `processes.notices` when it ends, and when a `watched` word appears in its log.
        """
        started = Command(text=command, task=task, folder=folder, pty=pty, leaves=False)
        return await self.processes.start(started, watched)

    async def close(self) -> None:
        """End every command in the foreground and let go of the place. Background processes stay."""
        await self.processes.close()
        await self._place.close()

    async def __aenter__(self) -> Environment:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _attend(self, running: Running, given: bytes, output: Output, seconds: float) -> bool:
        """Stay with a command until it has ended. False where it had to be ended."""
        talking = asyncio.create_task(conversation(running, given, output.take))
        try:
            await asyncio.wait({talking}, timeout=seconds)
        finally:
            in_time = talking.done()
            well = in_time and talking.exception() is None
            await self._place.see_to(self._leave(running, talking, end=not well))
            output.finish()
        if in_time:
            talking.result()
        return in_time

    async def _leave(self, running: Running, talking: asyncio.Task[None], *, end: bool) -> None:
        if end:
            running.left = not await self._place.stop(running)
            if not running.left:
                await asyncio.wait({talking}, timeout=LAST_WORDS_SECONDS)
        talking.cancel()
        await self._place.finish(running)

    async def _file(self, name: str, task: str, given: bytes, *arguments: str, most: int = 0) -> bytes:
        command = Command(text=with_arguments(name, *arguments), task=task, leaves=False)
        running = await self._place.start(command)
        most += LONGEST_COMPLAINT
        code, written = await self._place.collected(running, given, FILE_SECONDS, most)
        if code:
            raise CallError(readable(written[:2_000]).strip() or f"{arguments[0]} could not be used")
        return written
