"""A command on the person's own terminal: every key goes to it, everything it writes is shown.

The terminal is as it was afterwards, however it ends. Knows nothing of what the command is or where it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from typing import Literal

from toolfold.environments import Running, Size

LEAVE = b"\x1d\x1d\x1d"
"""Ctrl-] three times in a row leaves from here: the other side may not answer any more."""
Why = Literal["over", "left", "told to end"]

_PIECE = 1 << 16
_ENDING = (signal.SIGTERM, signal.SIGHUP)

# Modes that a program may have left on: another screen, the mouse, pasting in brackets, focus.
_MODE = re.compile(rb"\x1b\[\?([0-9;]{1,40})([hl])")
_UNDONE = frozenset({b"1", b"47", b"1000", b"1002", b"1003", b"1004", b"1006", b"1047", b"1049", b"2004"})
_CURSOR = b"25"
_LONGEST_MODE = 48


class Attached:
    """The person's terminal, for as long as it belongs to a command."""

    def __init__(self, source: int | None = None, sink: int | None = None) -> None:
        """`source` is a terminal; `sink` usually is the same one."""
        self._source = sys.stdin.fileno() if source is None else source
        self._sink = sys.stdout.fileno() if sink is None else sink
        self._modes = _Modes()

    @property
    def size(self) -> Size:
        with contextlib.suppress(OSError):
            columns, rows = os.get_terminal_size(self._source)
            if rows and columns:
                return Size(rows, columns)
        return Size()

    async def stay(self, running: Running) -> Why:
        """Return when the command is over, the person has left it, or the system tells us to end."""
        with self._raw(), self._told_of_changes(running) as ended:
            showing = asyncio.create_task(self._show(running))
            typing = asyncio.create_task(self._pass_on(running))
            tasks: set[asyncio.Future[None]] = {showing, typing, ended}
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
        if showing in done:
            showing.result()
            return "over"
        return "told to end" if ended in done else "left"

    async def _show(self, running: Running) -> None:
        while data := await running.read():
            self._modes.see(data)
            await asyncio.to_thread(_write_all, self._sink, data)

    async def _pass_on(self, running: Running) -> None:
        last = b""
        while data := await self._typed():
            last = (last + data)[-len(LEAVE) :]
            if last == LEAVE:
                return
            await running.write(data)

    async def _typed(self) -> bytes:
        """What was typed next; empty where nobody is there any more.

        The descriptor stays as it is: it is shared with the shell that started us.
        """
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._source, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._source)
        try:
            return os.read(self._source, _PIECE)
        except OSError:
            return b""

    @contextlib.contextmanager
    def _raw(self) -> Iterator[None]:
        """Keys arrive as they are pressed, Ctrl-C among them."""
        before = termios.tcgetattr(self._source)
        try:
            tty.setraw(self._source, termios.TCSADRAIN)
            yield
        finally:
            with contextlib.suppress(OSError):
                _write_all(self._sink, self._modes.undo())
            with contextlib.suppress(termios.error):  # it is gone
                termios.tcsetattr(self._source, termios.TCSADRAIN, before)

    @contextlib.contextmanager
    def _told_of_changes(self, running: Running) -> Iterator[asyncio.Future[None]]:
        """Passes changes of size on, and gives what is done once we are to end."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        loop.add_signal_handler(signal.SIGWINCH, lambda: running.resize(self.size))
        for number in _ENDING:
            loop.add_signal_handler(number, lambda: None if ended.done() else ended.set_result(None))
        try:
            yield ended
        finally:
            for number in (signal.SIGWINCH, *_ENDING):
                loop.remove_signal_handler(number)


class _Modes:
    """Which modes of the terminal were switched on and not off again."""

    def __init__(self) -> None:
        self._on: set[bytes] = set()
        self._rest = b""

    def see(self, data: bytes) -> None:
        data = self._rest + data
        for found in _MODE.finditer(data):
            for mode in found[1].split(b";"):
                switch = (found[2] == b"h") is not (mode == _CURSOR)
                if mode in _UNDONE or mode == _CURSOR:
                    (self._on.add if switch else self._on.discard)(mode)
        self._rest = data[-_LONGEST_MODE:]

    def undo(self) -> bytes:
        """What brings the terminal back."""
        return b"".join(b"\x1b[?" + mode + (b"h" if mode == _CURSOR else b"l") for mode in sorted(self._on))


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
