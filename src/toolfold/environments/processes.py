"""Background processes: they run on the far side by themselves, and all there is to know of them lies there.

Each has a folder with what was asked for, its log, its input and, in the end, its exit code. So any client
of the same place finds them, also one that was started after the client that began them was gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import re
import secrets
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from toolfold.environments.guard import Guard, GuardLost
from toolfold.environments.input_log import IN_PART, OTHERS, InputLog, InputLogs
from toolfold.environments.output import readable
from toolfold.environments.place import Command, Place
from toolfold.environments.scripts import script
from toolfold.errors import CallError, EnvironmentFailed, did_you_mean, nearest, shorten

LOOK_SECONDS = 0.25
WRITE_SECONDS = 10.0
CLOSE_SECONDS = 10.0
MOST_WATCHED = 1 << 20
"""How many new bytes of a log are looked through at once; of more, the last."""
MOST_LINES = 5
MOST_NOTICES = 500
LONGEST_NOTED = 2_000
LONGEST_LINE = 500
MAX_READ_BACK_BYTES = 16_000
"""How much of the input of another runtime's process is read back, for a person to see."""

State = Literal["running", "ended", "lost"]

_LOOK = re.compile(r"(\w+) (-|[0-9]{1,3}) ([0-9]{1,18}) ([0-9]{1,18})")
_ABOUT = """cd "$1/processes" || exit
for each in */about; do
  [ ! -e "$each" ] || { printf '%s ' "${each%/about}"; cat "$each"; }
done"""
_WRITE = 'tee -a "$1/processes/$2/given" >"$1/processes/$2/in"'
_GIVEN = 'cd "$1/processes/$2" && [ ! -e given ] || { wc -c <given && tail -c "$3" given; }'
_CLOSE_INPUT = 'read -r holder <"$1/processes/$2/holder" && kill "$holder"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A background process, as it was when last looked at."""

    name: str
    command: str
    task: str = ""
    started: float = 0.0
    """Seconds since 1970, by the clock of the client that started it."""
    watched: tuple[str, ...] = ()
    """Words that somebody wants to be told of when they appear in its log."""
    state: State = "running"
    """`lost` is one that is gone and nobody noted how: its place was restarted, or it was killed."""
    code: int | None = None
    bytes: int = 0
    """How much it wrote."""
    dropped: int = 0
    """How many bytes of that, the first, are no longer in its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something happened to a background process."""

    process: Process
    lines: tuple[str, ...] = ()
    """The lines with a watched word; none where the process is over."""


class Processes:
    """The background processes of one place."""

    def __init__(self, place: Place, most: int) -> None:
        self._place, self._most = place, most
        self._abouts: dict[str, Process] = {}
        self._seen: dict[str, Process] = {}
        self._read: dict[str, int] = {}
        self._notices: list[Notice] = []
        self._inputs = InputLogs()
        self._starting, self._looking, self._writing = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None

    async def start(self, command: Command, watched: Sequence[str] = ()) -> Process:
        """Start one. Raises CallError where too many run, or it cannot begin where it should."""
        async with self._starting:
            running = [each for each in await self.all() if each.state == "running"]
            if len(running) >= self._most:
                raise CallError(
                    f"{len(running)} background processes run already, the most there may be."
                    " End one of them first."
                )
            process = Process(
                name=f"p{secrets.token_hex(4)}",
                command=shorten(command.text, LONGEST_NOTED),
                task=command.task,
                started=time.time(),
                watched=tuple(watched),
            )
            log = InputLog(command.text, command.folder, pty=command.pty is not None)
            self._inputs.start(process.name, log)
            begun = await self._launch(process, command)
        started = await self.get(process.name)
        if not begun and started.state != "running":
            raise CallError(await self._last_words(started))
        self._watch()
        return started

    async def all(self) -> list[Process]:
        """All of them, the oldest first."""
        found = [self._looked_at(line) for line in await self._lines()]
        if any(each is None for each in found):
            await self._learn()
            found = [self._looked_at(line) for line in await self._lines()]
        known = [each for each in found if each]
        self._seen.update({each.name: each for each in known if each.name not in self._seen})
        if any(each.state == "running" for each in known):
            self._watch()
        return sorted(known, key=lambda each: each.started)

    async def get(self, name: str) -> Process:
        """One of them. Raises CallError where there is none."""
        found = {each.name: each for each in await self.all()}
        if name not in found:
            raise CallError(f"there is no background process {name!r}.{did_you_mean(nearest(name, found))}")
        return found[name]

    async def wait(self, name: str, seconds: float) -> Process:
        """Wait until it has ended, or for so long."""
        until = time.monotonic() + seconds
        process = await self.get(name)
        while process.state == "running" and (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(LOOK_SECONDS, left))
            process = await self.get(name)
        return process

    async def log(self, name: str, first: int, most: int) -> bytes:
        """A part of what it wrote, from the first byte that is wanted and still there."""
        process = await self.get(name)
        path = f"{self._place.backend.folder}/processes/{process.name}/log"
        first = max(0, first - process.dropped)
        code, data = await self._place.own(script("read_file"), path, str(first + 1), str(most))
        if code:
            raise CallError(readable(data).strip())
        return data

    async def write(
        self, name: str, data: bytes, *, close: bool = False, revision: int | None = None
    ) -> None:
        """Give it something to read; with `close`, nothing will follow.

        Raises CallError where its input is no longer the one of this revision (see `input_log`).
        """
        await self._running(name)
        folder = self._place.backend.folder
        async with self._writing:
            log = await self._input_log(name)
            if revision is not None and log.revision != revision:
                raise CallError(f"{name} has been given something else meanwhile. Look, and write it again.")
            if data:
                await self._deliver(name, data, log)
        if close:
            await self._place.own(_CLOSE_INPUT, folder, name)

    async def input_log(self, name: str) -> InputLog:
        """What it has been given, as far as it is known. Raises CallError where there is no such process."""
        async with self._writing:
            return copy.deepcopy(await self._input_log(name))

    async def _deliver(self, name: str, data: bytes, log: InputLog) -> None:
        """Write to its input, and log it. The log is incomplete where it may have arrived only in part."""
        delivered = False
        try:
            delivered = await self._within(
                WRITE_SECONDS, _WRITE, self._place.backend.folder, name, given=data
            )
        finally:
            if delivered:
                log.add_write(data)
            else:
                log.mark_unknown(IN_PART)
        if not delivered:
            raise CallError(f"{name} does not read its input. It has been given a part of this at most.")

    async def _input_log(self, name: str) -> InputLog:
        """Its log, compared with what lies in its place: another client may have written too."""
        process = await self.get(name)
        log = self._inputs.of(name, process.command)
        size, text = await self._written(name)
        if log.unknown:
            log.revision += int(size != log.size)
            log.entries, log.size = [("write", text)], size
        elif size != log.size:
            log.mark_unknown(OTHERS)
        return log

    async def _written(self, name: str) -> tuple[int, str]:
        """How many bytes it has been given by whichever client, and the last of them."""
        folder, most = self._place.backend.folder, str(MAX_READ_BACK_BYTES)
        code, data = await self._place.own(_GIVEN, folder, name, most)
        if code:
            raise CallError(readable(data).strip())
        count, _, rest = data.partition(b"\n")
        return int(count) if count.strip().isdigit() else 0, rest.decode("utf-8", "replace")

    async def signal(self, name: str, signal: str) -> None:
        """Send it a signal, by its name without SIG, and to all that it started."""
        process = await self._running(name)
        self._inputs.of(name, process.command).add_signal(signal)  # before: nobody may write in between
        known = signal.isascii() and signal.isalnum()  # it goes into an order of words
        if not known or not await self._place.ask(lambda guard: guard.tell_process(name, signal)):
            raise CallError(
                f"{name} could not be sent {signal}: there is no such signal, or it has just ended."
            )

    async def kill(self, name: str) -> Process:
        """End it and all that it started. Nothing happens where it has ended."""
        process = await self.get(name)
        if process.state == "ended":
            return process
        if not await self._place.ask(lambda guard: guard.end_process(name)):
            raise CallError(f"{name} could not be ended: something of it does not react.")
        return await self.get(name)

    async def notices(self, tasks: str = "") -> list[Notice]:
        """What happened since this was last asked, to processes of tasks whose names begin so."""
        if self._watching and not self._watching.done():
            with contextlib.suppress(EnvironmentFailed):
                await self._look()
        told = [each for each in self._notices if each.process.task.startswith(tasks)]
        self._notices = [each for each in self._notices if each not in told][-MOST_NOTICES:]
        return told

    async def close(self) -> None:
        """Stop watching them. They run on."""
        if self._watching:
            self._watching.cancel()
            await asyncio.wait({self._watching}, timeout=CLOSE_SECONDS)

    async def _last_words(self, process: Process) -> str:
        said = readable(await self.log(process.name, 0, LONGEST_NOTED)).strip()
        return said or f"It could not be started: exit code {process.code}."

    async def _launch(self, process: Process, command: Command) -> bool:
        """Whether its command has begun, as far as that can be told."""
        guard = await self._place.guard()
        about = json.dumps(
            {
                "command": process.command,
                "task": process.task,
                "started": process.started,
                "watched": process.watched,
            }
        )
        program = await self._place.program(guard, command, f"@{guard.means.tasks}/begun.{process.name}")
        if command.pty:
            program = _on_terminal(guard, program)
        entry = self._place.backend.entry(guard.means.tasks, lasting=True, terminal=False)
        launch = ["sh", "-c", script("launch"), "sh", self._place.backend.folder, process.name, about]
        await self._place.launch([*launch, guard.means.setsid, *entry, *program], process.name)
        self._abouts[process.name] = self._seen[process.name] = process
        with contextlib.suppress(GuardLost):
            return await guard.begun(process.name)
        return True

    async def _running(self, name: str) -> Process:
        process = await self.get(name)
        if process.state != "running":
            raise CallError(f"{name} has ended already.")
        return process

    async def _within(self, seconds: float, text: str, *arguments: str, given: bytes) -> bool:
        try:
            code, _ = await self._place.own(text, *arguments, given=given, within=seconds)
        except EnvironmentFailed:
            if not await self._place.ask(lambda guard: guard.answers()):
                raise
            return False
        return code == 0

    async def _lines(self) -> list[str]:
        return await self._place.ask(lambda guard: guard.processes())

    def _looked_at(self, line: str) -> Process | None:
        name, _, rest = line.partition(" ")
        about, found = self._abouts.get(name), _LOOK.fullmatch(rest)
        if about is None or found is None:
            return None
        state, code, size, dropped = found.groups()
        ended = None if code == "-" else int(code)
        return replace(about, state=_state(state), code=ended, bytes=int(size), dropped=int(dropped))

    async def _learn(self) -> None:
        """Of those that another client started."""
        _, data = await self._place.own(_ABOUT, self._place.backend.folder)
        for line in data.decode("utf-8", "replace").splitlines():
            name, _, about = line.partition(" ")
            self._abouts.setdefault(name, _remembered(name, about))

    def _watch(self) -> None:
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._keep_watching())

    async def _keep_watching(self) -> None:
        """For as long as one of them runs and the place is there."""
        with contextlib.suppress(EnvironmentFailed):
            while await self._look():  # noqa: ASYNC110  (what happens there sets no event here)
                await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> bool:
        """Note what is new. False where nothing runs any more."""
        async with self._looking:
            found = [each for line in await self._lines() if (each := self._looked_at(line))]
            for process in found:
                before, self._seen[process.name] = self._seen.get(process.name, process), process
                await self._look_for_words(process)
                if before.state == "running" and process.state != "running":
                    self._notices.append(Notice(process=process))
        return any(process.state == "running" for process in found)

    async def _look_for_words(self, process: Process) -> None:
        read = max(self._read.get(process.name, 0), process.bytes - MOST_WATCHED, process.dropped)
        if not process.watched or process.bytes <= read:
            return
        data = await self.log(process.name, read, process.bytes - read)
        lines = [line for line in data.split(b"\n") if _has_any(line, process.watched)]
        if lines:
            told = tuple(readable(line[:LONGEST_LINE]) for line in lines[:MOST_LINES])
            self._notices.append(Notice(process=process, lines=told))
        # A line that has not come to its end may still get a word that is watched for.
        unfinished = data[data.rfind(b"\n") + 1 :]
        again = 0 if unfinished in lines else min(len(unfinished), LONGEST_LINE)
        self._read[process.name] = read + len(data) - again


def _has_any(line: bytes, words: Sequence[str]) -> bool:
    return any(word.encode() in line for word in words)


def _state(word: str) -> State:
    return "ended" if word == "ended" else "running" if word == "running" else "lost"


def _on_terminal(guard: Guard, program: list[str]) -> list[str]:
    if not guard.means.script:
        raise CallError(
            "A background process needs the program `script` of util-linux for a terminal, and the place"
            " has none. Install it there, or start the process without pty."
        )
    return [guard.means.script, "-qefc", shlex.join(program), "/dev/null"]


def _remembered(name: str, about: str) -> Process:
    """From a note that lies in reach of commands: nothing in it is taken for granted."""
    try:
        found = json.loads(about)
        return Process(
            name=name,
            command=readable(str(found["command"])[: LONGEST_NOTED + 1].encode(errors="replace")),
            task=str(found["task"]),
            started=float(found["started"]),
            watched=tuple(map(str, found["watched"])),
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return Process(name=name, command="(its note cannot be read)")
