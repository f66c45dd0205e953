"""A program that is reached by typing into a terminal far away, where there is nothing but terminals.

Types one line, by which the shell there becomes a program of ours that lets any bytes pass: `shell/pipe.sh`
makes three streams out of the terminal, `shell/terminal.sh` leaves it one. What they say of themselves comes
within the output, each word between signs that nobody can guess. Knows nothing of who has the terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from toolfold.environments.backend import Size
from toolfold.environments.scripts import with_arguments
from toolfold.environments.within import heard, within
from toolfold.errors import EnvironmentFailed

READY_SECONDS = 30.0
PARTING_SECONDS = 5.0
PIECE = 1 << 15
MOST_PIECES = 8
"""How many pieces of input may be on their way."""
_SIGN, _BETWEEN = b"\x1e", b"\x1d"
_EARLY = 500
_CODE = re.compile(r"[0-9]{1,3}")
_LONGEST = 8_000  # bytes of a word; it ends with what a program complained of


class Line(Protocol):
    """A terminal far away."""

    async def send(self, data: bytes) -> None:
        """Type this. Raises where nobody is there any more."""

    async def closed(self) -> tuple[int | None, str]:
        """Wait for its end: the exit code of its shell, where it is known, and what there is to say."""

    async def resize(self, size: Size) -> None:
        """Change its size."""

    async def hang_up(self) -> None:
        """Let go of it."""


class Words:
    """Separates what a program wrote from the words between it.

    Those between the parts of the output may fall within the one that is said in it, and have another sign.
    """

    def __init__(self, mark: str) -> None:
        self._start = _SIGN + mark.encode() + b" "
        self._between = tuple(
            _BETWEEN + mark.encode() + b" " + each + _BETWEEN for each in (b"g", b"r", b"o")
        )
        self._any_between = re.compile(b"|".join(map(re.escape, self._between)))
        self._unsure = self._held = b""

    def split(self, data: bytes) -> list[bytes | str]:
        """Bytes of the program and words of ours, in their order; what may be a part of a word waits."""
        found, at, data = list[bytes | str](), 0, self._unsure + data
        for match in self._any_between.finditer(data):
            found += [*self._within(data[at : match.start()]), match[0][-2:-1].decode()]
            at = match.end()
        sure = len(data) - _begun(data[at:], _BETWEEN, *self._between)
        self._unsure = data[sure:]
        return found + self._within(data[at:sure])

    def _within(self, data: bytes) -> list[bytes | str]:
        data, found = self._held + data, list[bytes | str]()
        while (at := data.find(self._start)) >= 0:
            begin = at + len(self._start)
            end = data.find(_SIGN, begin)
            if at:
                found.append(data[:at])
            if end < 0 and len(data) - begin <= _LONGEST:
                self._held = data[at:]
                return found
            if end < 0:  # none of ours goes on for so long
                found.append(data[at:begin])
                data = data[begin:]
                continue
            found.append(data[begin:end].decode(errors="replace"))
            data = data[end + 1 :]
        sure = len(data) - _begun(data, _SIGN, self._start)
        self._held = data[sure:]
        if sure:
            found.append(data[:sure])
        return found


def _begun(data: bytes, sign: bytes, *words: bytes) -> int:
    """How many bytes at the end may be the beginning of one of the words."""
    at = data.rfind(sign)
    return len(data) - at if at >= 0 and any(each.startswith(data[at:]) for each in words) else 0


class Typed:
    """A program at the other end, as a Channel. Give what the terminal shows to `arrived`."""

    def __init__(self, *, terminal: bool, lease: int) -> None:
        """What makes it a pipe goes so many seconds after the program, where nobody lets it go before."""
        self._terminal, self._lease = terminal, lease
        self._mark = secrets.token_hex(12)
        self._words = Words(self._mark)
        self._line: Line | None = None
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[bool] = loop.create_future()
        self._exit: asyncio.Future[int] = loop.create_future()
        self._shown: deque[bytes | None] = deque()  # None is the end of a part
        self._news = asyncio.Event()
        self._room = asyncio.Semaphore(MOST_PIECES)
        self._over = False
        self._early = b""
        self._complaint = ""
        self._work: set[asyncio.Future[Any]] = set()

    async def begin(self, line: Line, folder: str, argv: Sequence[str]) -> None:
        """Start the program. Raises EnvironmentFailed."""
        self._line = line
        self._working(self._attend(line))
        arguments = (self._mark, *argv) if self._terminal else (self._mark, folder, str(self._lease), *argv)
        text = with_arguments("terminal" if self._terminal else "pipe", *arguments).encode()
        try:
            async with asyncio.timeout(READY_SECONDS):
                # One line of what every shell understands, short enough for a terminal that is not raw yet.
                await line.send(_TYPED.format(mark=self._mark, size=len(text)).encode())
                if not await self._ready:
                    raise ConnectionError(f"{self._complaint}: {self._before!r}")
                for first in range(0, len(text), PIECE):
                    await line.send(text[first : first + PIECE])
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError):
                raise EnvironmentFailed(
                    f"The shell there does not answer: {self._before!r}.", advice=""
                ) from None
            raise

    async def arrived(self, data: bytes) -> None:
        """Take what the terminal shows."""
        for each in self._words.split(data):
            if isinstance(each, str):
                await self._hear(each)
            elif self._ready.done():
                self._shown.append(each)
            else:
                self._early = (self._early + each)[-_EARLY:]
        self._news.set()

    async def read(self) -> bytes:
        while True:
            while self._shown:
                data = self._shown.popleft()
                if data is not None:
                    return data
                self._working(self._say(b"a\n"))  # what has arrived need not wait for what goes out
            if self._over:
                return b""
            self._news.clear()
            await self._news.wait()

    async def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left and not self._over:
            piece, left = bytes(left[:PIECE]), left[PIECE:]
            if self._terminal:
                await self._say(piece)
                continue
            await self._room.acquire()
            if self._exit.done():
                return
            await self._say(b"d %d\n" % len(piece) + piece)

    async def close_input(self) -> None:
        if not self._terminal:
            await self._say(b"e\n")

    async def wait(self) -> int:
        return await asyncio.shield(self._exit)

    def resize(self, size: Size) -> None:
        if self._terminal and self._line:
            self._working(_quietly(self._line.resize(size)))

    def complaint(self) -> str:
        return self._complaint

    async def close(self) -> None:
        if self._line:
            with contextlib.suppress(TimeoutError):
                await within(PARTING_SECONDS, self._part(self._line))
        for work in self._work:
            work.cancel()
        if self._work:
            await asyncio.wait(self._work, timeout=PARTING_SECONDS)
        self._end(255, "")

    async def _part(self, line: Line) -> None:
        await self._leave()
        await _quietly(line.hang_up())

    @property
    def _before(self) -> str:
        """What the terminal showed before our program began."""
        return self._early.decode(errors="replace").strip()

    async def _hear(self, word: str) -> None:
        what, _, rest = word.partition(" ")
        if what == "g":
            self._room.release()
        elif what == "r":
            self._shown.append(None)
        elif what == "o":
            self._over = True
        elif what == "x":
            code, _, complaint = rest.partition(" ")
            self._exited(int(code) if _CODE.fullmatch(code) else 255, complaint.strip())
        elif not self._ready.done():
            self._ready.set_result(True)
        if self._over and self._exit.done():
            await self._leave()

    async def _attend(self, line: Line) -> None:
        code, error = await line.closed()
        self._end(255 if code is None else code, error or "the connection was closed")

    def _end(self, code: int, complaint: str) -> None:
        self._over = True
        self._exited(code, complaint)
        if not self._ready.done():
            self._ready.set_result(False)
        self._news.set()

    def _exited(self, code: int, complaint: str) -> None:
        if self._exit.done():  # it may be heard after we have let go of it
            return
        self._exit.set_result(code)
        self._complaint = complaint
        for _ in range(MOST_PIECES):  # whoever waits to write need not wait any longer
            self._room.release()

    async def _leave(self) -> None:
        """Let our program there go."""
        await self._say(f"\nq {self._mark}\n".encode() if self._terminal else b"q\n")

    async def _say(self, data: bytes) -> None:
        if self._line:
            await _quietly(self._line.send(data))

    def _working(self, work: Awaitable[Any]) -> None:
        task: asyncio.Future[Any] = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        task.add_done_callback(heard)


_TYPED = (
    ' exec sh -c \'stty raw -echo && printf "\\036%s \\036" {mark} &&'
    ' eval "$(dd bs={size} count=1 iflag=fullblock 2>/dev/null)"\'\n'
)


async def _quietly(work: Awaitable[object]) -> None:
    """Whoever is gone will be noticed elsewhere."""
    with contextlib.suppress(Exception):
        await work
