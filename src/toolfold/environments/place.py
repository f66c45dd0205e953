"""A place where commands run, reached through a backend and watched by a guard.

Starts programs there, users' and our own, each under a name by which the guard finds all that belongs to
it. A place that was lost is opened again with the next program.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import secrets
import shlex
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from toolfold.environments.backend import Backend, Channel, Size
from toolfold.environments.ending import Ending
from toolfold.environments.guard import Guard, GuardLost
from toolfold.environments.running import Running, conversation
from toolfold.errors import EnvironmentFailed

T = TypeVar("T")

SPAWN_SECONDS = 60.0
LOOKS, LOOK_SECONDS = 8, 1.0
"""How often a command is ended whose client stays, and how long it may take to go."""
OWN_SECONDS = 30.0
MOST_COLLECTED = 64_000_000
"""How many bytes a program of ours may write: its tools may have been replaced by those of a command."""
LONGEST_ARGUMENT = 60_000  # Linux takes 128 KiB in one argument, and quoting makes text longer

# The command is evaluated here, so that a shell's complaints about it name no file of ours.
_COMMAND = '__toolfold=$1; shift; . "$__toolfold"; eval "$__toolfold_text" 9>&-'
_KEEP = 'umask 077; cat >"$1"'
_KEEP_TEXT = f'find "${{1%/*}}" -name "text.*" -mmin +60 -exec rm -f {{}} +; {_KEEP}'
_OWN = """exec 2>&1
mark=$1
shift
trap 'code=$?; printf "\\036%s %s \\036%s" "$mark" "$code" "$mark"' EXIT
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What is to run, and how."""

    text: str
    task: str
    folder: str = ""
    """Where it begins; empty for where its task is."""
    pty: Size | None = None
    leaves: bool = True
    """Whether its task stays where this command goes."""


class Place:
    """Everything that needs to be known of the far side."""

    def __init__(self, backend: Backend, variables: Mapping[str, str], largest_log: int) -> None:
        self.backend = backend
        self._variables, self._largest_log = variables, largest_log
        self.client = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._guard: Guard | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self._finishing: set[asyncio.Task[object]] = set()

    async def guard(self) -> Guard:
        """The guard, posted anew where there is none."""
        async with self._opening:
            if self._closed:
                raise EnvironmentFailed(f"{self.backend.name} is closed.", advice="Open it again.")
            if self._guard is None or self._guard.lost:
                self._guard = await self._open()
            return self._guard

    async def start(self, command: Command) -> Running:
        """Start a user's command in the foreground."""
        guard, ending = await self.guard(), Ending()
        argv = await self.program(guard, command, ending.mark)
        terminal = command.pty is not None
        entry = self.backend.entry(guard.means.tasks, lasting=False, terminal=terminal)
        return await self._running(guard, [*entry, *argv], ending, command.pty)

    async def program(self, guard: Guard, command: Command, mark: str) -> list[str]:
        """The program that runs a command where its task is.

        It writes the mark at its end or, where that is `@` and a path, makes this file at its beginning.
        """
        size = command.pty
        shell = guard.means.shell
        return [
            *(shell, "-c", _COMMAND, shell.rpartition("/")[2], f"{self.backend.folder}/shell/command"),
            await self._text(guard, command.text),
            f"{guard.means.tasks}/{_file_name(command.task)}",
            guard.means.given("variables"),
            self.backend.home,
            command.folder,
            mark,
            *((str(size.rows), str(size.columns)) if size else ("", "")),
            "yes" if command.leaves else "",
        ]

    async def launch(self, argv: Sequence[str], name: str) -> None:
        """Run a program of ours that leaves a background process behind."""
        channel = await self._spawn(argv, f"process.{name}.", None)
        try:
            async with asyncio.timeout(OWN_SECONDS):
                code = await channel.wait()
            if code:
                raise self._lost(channel.complaint() or f"exit code {code}")
        except TimeoutError:
            raise self._lost("it did not start in time") from None
        finally:
            await channel.close()

    async def own(
        self, text: str, *arguments: str, given: bytes = b"", within: float = OWN_SECONDS
    ) -> tuple[int, bytes]:
        """Run a program of ours, outside of any inner room. Its exit code and all that it wrote."""
        guard, ending = await self.guard(), Ending()
        argv = [guard.means.shell, "-c", _OWN + text, "sh", ending.mark, *arguments]
        return await self.collected(await self._running(guard, argv, ending), given, within)

    async def collected(
        self, running: Running, given: bytes, within: float, most: int = MOST_COLLECTED
    ) -> tuple[int, bytes]:
        """Feed a program, and all that it wrote once it has ended by itself. Raises EnvironmentFailed."""
        written = bytearray()

        def take(data: bytes) -> None:
            if len(written) + len(data) > most:
                raise self._lost(f"it wrote more than {most:,} bytes")
            written.extend(data)

        try:
            async with asyncio.timeout(within):
                await conversation(running, given, take)
        except BaseException as error:
            await self.finish(running, end=True)
            if isinstance(error, TimeoutError):
                raise self._lost("no answer in time") from None
            raise
        await self.finish(running)
        if running.ended is None:
            raise self._lost(running.complaint())
        return running.ended.code, bytes(written)

    async def exit_code(self, running: Running) -> int:
        """How a command ended that has not said so itself: it was killed, or became another program."""
        code = await running.exit_code()
        if running.silent or self._guard is None or not await self._guard.answers():
            raise self._lost(running.complaint())
        await self.end(running.run)  # perhaps it was only its client that was killed
        return code

    async def finish(self, running: Running, *, end: bool = False) -> None:
        """Let go of a command; with `end`, end it first, there and with all that it started."""

        async def finish() -> None:
            if end:
                await self.stop(running)
            await running.close()

        await self.see_to(finish())

    async def see_to(self, work: Coroutine[Any, Any, object]) -> None:
        """Do this to the end, although whoever waits for it may be cancelled meanwhile."""
        task = asyncio.create_task(work)
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        await asyncio.shield(task)

    async def end(self, run: str) -> bool:
        """End a command of ours. False where that cannot be told, or it would not go."""
        if self._silent:  # all of ours ends there by itself
            return False
        try:
            return await self.ask(lambda guard: guard.end(run))
        except EnvironmentFailed:
            return False

    async def stop(self, running: Running) -> bool:
        """The same for one that may begin only after the guard has looked for it."""
        for _ in range(LOOKS):
            if not await self.end(running.run):
                return False
            if await running.gone(LOOK_SECONDS):
                return True
        return False

    async def ask(self, question: Callable[[Guard], Awaitable[T]]) -> T:
        """The guard's answer, or that of another one, which knows as much. Raises EnvironmentFailed."""
        for _ in range(2):
            with contextlib.suppress(GuardLost):
                return await question(await self.guard())
            if self._silent:
                break
        raise self._lost("its guard does not answer")

    @property
    def _silent(self) -> bool:
        return self._guard is not None and self._guard.silence.done()

    async def close(self) -> None:
        """End what runs in the foreground, and let go of the place."""
        async with self._opening:
            self._closed = True
            guard, self._guard = self._guard, None
        if guard:
            await guard.dismiss()
        if self._finishing:
            await asyncio.wait(self._finishing, timeout=OWN_SECONDS)
        await self.backend.close()

    async def _open(self) -> Guard:
        if self._guard:
            await self._guard.dismiss()
        await self.backend.open()
        guard = await Guard.start(self.backend, self.client, self._largest_log)
        if self._variables:
            await self._give(guard)
        return guard

    async def _give(self, guard: Guard) -> None:
        """Through its input: arguments can be read by others in the place."""
        text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in self._variables.items())
        ending = Ending()
        argv = [guard.means.shell, "-c", _OWN + _KEEP, "sh", ending.mark, guard.means.given("variables")]
        await self.collected(await self._running(guard, argv, ending), text.encode(), OWN_SECONDS)

    async def _text(self, guard: Guard, text: str) -> str:
        data = text.encode(errors="surrogateescape")
        if len(data) <= LONGEST_ARGUMENT:
            return f"={text}"
        note = guard.means.given(f"text.{next(self._numbers)}")
        await self.own(_KEEP_TEXT, note, given=data)
        return f"@{note}"

    async def _running(
        self, guard: Guard, argv: Sequence[str], ending: Ending, pty: Size | None = None
    ) -> Running:
        run = str(next(self._numbers))
        try:
            channel = await self._spawn(argv, f"{self.client}.{run}.", pty)
        except asyncio.CancelledError:  # it may have been started nevertheless
            await self.see_to(self.end(run))
            raise
        return Running(run, channel, ending, guard.silence)

    async def _spawn(self, argv: Sequence[str], run: str, pty: Size | None) -> Channel:
        try:
            async with asyncio.timeout(SPAWN_SECONDS):
                return await self.backend.spawn(argv, env={"TOOLFOLD_RUN": run}, pty=pty)
        except TimeoutError:
            raise self._lost("no answer in time") from None

    def _lost(self, detail: str) -> EnvironmentFailed:
        problem = f"{self.backend.name} was lost while the command ran"
        return EnvironmentFailed(
            f"{problem}: {detail}." if detail else f"{problem}.", advice=self.backend.advice
        )


def _file_name(task: str) -> str:
    return hashlib.sha256(task.encode(errors="replace")).hexdigest()[:24]
