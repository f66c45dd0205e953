"""Our one program on the far side that stays: it ends what must end, also when we are gone.

It waits for orders on its input. When that is closed, because we closed it or because we were killed, it
ends every command of ours that still runs in the foreground. Knows processes only by their names.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toolfold.environments.backend import Backend, Channel
from toolfold.environments.scripts import luggage, script
from toolfold.errors import EnvironmentFailed

SPAWN_SECONDS = 60.0
START_SECONDS = 30.0
ANSWER_SECONDS = 10.0
ENDING_SECONDS = 60.0
PARTING_SECONDS = 2.0
BEATS = 4
"""How often we are heard within the time after which silence counts. So many are without an answer then."""
LONGEST_LINE = 1 << 16
MOST_LINES = 10_000
"""What is said there may come from a command that has found the way to the guard's output."""
GRACE_NAPS = 30  # of 30 ms and more: how long a program may take to end by itself

_NOTHING: Mapping[str, str] = {}


class GuardLost(Exception):
    """The guard does not answer: it was killed, or its place is gone."""


@dataclass(frozen=True, slots=True)
class Means:
    """What there is on the far side; empty where a program is missing."""

    tasks: str
    """The folder where this client's tasks keep where they are. Beside it lies what they are given."""
    shell: str
    setsid: str
    script: str

    def given(self, name: str) -> str:
        """The path of something that commands may read and not change."""
        return f"{self.tasks.rpartition('/')[0]}/{name}"


class Guard:
    """One guard, from its first word to its last."""

    def __init__(self, channel: Channel, means: Means, rest: bytes, backend: Backend) -> None:
        self.means = means
        self._gate = backend.gate or "-"
        self._channel = channel
        self._numbers = itertools.count(1)
        self._waiting: dict[str, tuple[asyncio.Future[int], list[str]]] = {}
        self._lost = False
        self._unheard = 0
        self.silence: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done where nothing has been heard for so long that what we started there is ended."""
        self._listening = asyncio.create_task(self._listen(rest))
        self._beating = asyncio.create_task(self._beat(backend.lease / BEATS)) if backend.lease else None

    @classmethod
    async def start(cls, backend: Backend, client: str, largest_log: int) -> Guard:
        """Post a guard. Raises EnvironmentFailed."""
        lease = str(backend.lease) if backend.lease else ""
        argv = ["sh", "-c", script("arrive"), "sh", backend.folder, client, lease, str(largest_log)]
        channel = await _spawned(backend, argv)
        try:
            async with asyncio.timeout(START_SECONDS):
                await channel.write(luggage())
                means, rest = await _first_words(channel)
        except (TimeoutError, ValueError):
            raise await _unready(backend, channel) from None
        except BaseException:
            await channel.close()
            raise
        return cls(channel, means, rest, backend)

    @property
    def lost(self) -> bool:
        return self._lost

    async def end(self, run: str) -> bool:
        """End a command and all that it started. False where something would not go."""
        return await self._ask(f"end {run} {GRACE_NAPS} {self._gate}", ENDING_SECONDS) == 0

    async def tell(self, run: str, signal: str) -> bool:
        """Send a signal to a command and all that it started. False where there is nothing."""
        return await self._ask(f"tell {run} {signal} {self._gate}", ANSWER_SECONDS) == 0

    async def begun(self, name: str) -> bool:
        """Wait until a background process is on its own. False where its command did not begin."""
        return await self._ask(f"begun {name}", START_SECONDS) == 0

    async def end_process(self, name: str) -> bool:
        """End a background process."""
        return await self._ask(f"end-process {name} {GRACE_NAPS} {self._gate}", ENDING_SECONDS) == 0

    async def tell_process(self, name: str, signal: str) -> bool:
        """Send a signal to a background process."""
        return await self._ask(f"tell-process {name} {signal} {self._gate}", ANSWER_SECONDS) == 0

    async def processes(self) -> list[str]:
        """One line for each background process, as `list` in `shell/guard.sh` writes it."""
        lines: list[str] = []
        await self._ask("list", ANSWER_SECONDS, lines)
        return lines

    async def answers(self) -> bool:
        """Whether the place is still there."""
        try:
            await self._ask("hello", ANSWER_SECONDS)
        except GuardLost:
            return False
        return True

    async def dismiss(self) -> None:
        """Let it end what is left, and go."""
        if self._beating:
            self._beating.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PARTING_SECONDS):
                await self._channel.close_input()
        await asyncio.wait({self._listening}, timeout=self._parting())
        self._listening.cancel()
        await self._channel.close()

    def _parting(self) -> float:
        """One that was only slow ends what carries our name, so that nothing new may carry it before."""
        if self.silence.done():
            return 0
        return ANSWER_SECONDS if self._lost else ENDING_SECONDS

    async def _ask(self, order: str, within: float, lines: list[str] | None = None) -> int:
        if self._lost:
            raise GuardLost
        number = str(next(self._numbers))
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer, [] if lines is None else lines
        try:
            async with asyncio.timeout(within):
                await self._channel.write(f"{number} {order}\n".encode())
                return await answer
        except TimeoutError:
            self._lost = True  # the way there may be cut without a sign of it
            raise GuardLost from None
        finally:
            del self._waiting[number]

    async def _beat(self, seconds: float) -> None:
        """Say that we are there, so that silence means that we are not. It means the same from there."""
        while not self._listening.done():
            await asyncio.sleep(seconds)
            self._unheard += 1
            if self._unheard > BEATS:
                self._lose()
                self.silence.set_result(None)
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._channel.write(b"0 beat\n")

    async def _listen(self, rest: bytes) -> None:
        while data := await self._channel.read():
            self._unheard = 0
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._hear(line.decode("utf-8", "replace"))
            if len(rest) > LONGEST_LINE:
                break
        self._lose()

    def _lose(self) -> None:
        self._lost = True
        for answer, _ in self._waiting.values():
            if not answer.done():
                answer.set_exception(GuardLost())

    def _hear(self, line: str) -> None:
        number, _, words = line.partition(" ")
        answer, lines = self._waiting.get(number, (None, []))
        done, _, code = words.partition(" ")
        if done != "done":
            lines += [words] if len(lines) < MOST_LINES else []
        elif answer and not answer.done() and code.isdecimal() and len(code) < 4:
            answer.set_result(int(code))


async def _spawned(backend: Backend, argv: Sequence[str]) -> Channel:
    try:
        async with asyncio.timeout(SPAWN_SECONDS):
            return await backend.spawn(argv, env=_NOTHING, pty=None)
    except TimeoutError:
        problem = f"{backend.name} cannot run commands: nothing answers there."
        raise EnvironmentFailed(problem, advice=backend.advice) from None


async def _unready(backend: Backend, channel: Channel) -> EnvironmentFailed:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1):
            await channel.wait()  # its last words may come after the end of its output
    problem = channel.complaint() or "nothing answers there"
    await channel.close()
    return EnvironmentFailed(f"{backend.name} cannot run commands: {problem}.", advice=backend.advice)


async def _first_words(channel: Channel) -> tuple[Means, bytes]:
    heard = b""
    while b"\n" not in heard:
        data = await channel.read()
        if not data or len(heard) > LONGEST_LINE:
            raise ValueError("it ended before it was ready, or does not come to the point")
        heard += data
    line, _, rest = heard.partition(b"\n")
    ready, *means = line.decode("utf-8", "replace").split(" ")
    if ready != "ready" or len(means) != 4:
        raise ValueError("it said something else")
    return Means(*("" if each == "-" else each for each in means)), rest
