"""Connect a command to the user's terminal: forward key presses and output.

The terminal's modes are restored however the command ends. Does not know which command runs or where.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Iterator
from typing import Literal

from toolfold.tools.environments import RunningCommand, TerminalSize

DETACH_SEQUENCE = b"\x1d\x1d\x1d"
"""Ctrl-] three times in a row detaches, for a command that no longer responds."""
ExitReason = Literal["exited", "detached", "terminated"]

_READ_BYTES = 1 << 16
_TERMINATION_SIGNALS = (signal.SIGTERM, signal.SIGHUP)

# Modes that a program may leave enabled: alternate screen, mouse, bracketed paste, focus events.
_MODE_SEQUENCE = re.compile(rb"\x1b\[\?([0-9;]{1,40})([hl])")
_RESET_MODES = frozenset(
    {b"1", b"47", b"1000", b"1002", b"1003", b"1004", b"1006", b"1047", b"1049", b"2004"}
)
_CURSOR_MODE = b"25"
_MAX_SEQUENCE_BYTES = 48


class InteractiveTerminal:
    """Connects a running command to the user's terminal: forwards key presses and output."""

    def __init__(self, source: int | None = None, sink: int | None = None) -> None:
        """Connect to the terminal with the file descriptor `source`; `sink` receives the output."""
        self._source = sys.stdin.fileno() if source is None else source
        self._sink = sys.stdout.fileno() if sink is None else sink
        self._modes = _TerminalModes()

    @property
    def size(self) -> TerminalSize:
        with contextlib.suppress(OSError):
            columns, rows = os.get_terminal_size(self._source)
            if rows and columns:
                return TerminalSize(rows, columns)
        return TerminalSize()

    async def run_until_exit(self, running: RunningCommand) -> ExitReason:
        """Forward keys and output until the command exits, the user detaches or a stop signal arrives."""
        with self._raw_mode(), self._handle_signals(running) as ended:
            showing = asyncio.create_task(self._forward_output(running))
            typing = asyncio.create_task(self._forward_input(running))
            tasks: set[asyncio.Future[None]] = {showing, typing, ended}
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
        if showing in done:
            showing.result()
            return "exited"
        return "terminated" if ended in done else "detached"

    async def _forward_output(self, running: RunningCommand) -> None:
        while data := await running.read():
            self._modes.track(data)
            await asyncio.to_thread(_write_all, self._sink, data)

    async def _forward_input(self, running: RunningCommand) -> None:
        last = b""
        while data := await self._read_input():
            last = (last + data)[-len(DETACH_SEQUENCE) :]
            if last == DETACH_SEQUENCE:
                return
            await running.write(data)

    async def _read_input(self) -> bytes:
        """Return the next key presses, or an empty string if the terminal has closed.

        The descriptor stays in blocking mode because the parent shell shares it.
        """
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._source, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._source)
        try:
            return os.read(self._source, _READ_BYTES)
        except OSError:
            return b""

    @contextlib.contextmanager
    def _raw_mode(self) -> Iterator[None]:
        """Switch the terminal to raw mode, so that every key press, including Ctrl-C, reaches the command."""
        import termios
        import tty

        before = termios.tcgetattr(self._source)
        try:
            tty.setraw(self._source, termios.TCSADRAIN)
            yield
        finally:
            with contextlib.suppress(OSError):
                _write_all(self._sink, self._modes.reset_sequence())
            with contextlib.suppress(termios.error):  # the terminal has closed
                termios.tcsetattr(self._source, termios.TCSADRAIN, before)

    @contextlib.contextmanager
    def _handle_signals(self, running: RunningCommand) -> Iterator[asyncio.Future[None]]:
        """Forward changes of the terminal size; yield a future that completes on a termination signal."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        loop.add_signal_handler(signal.SIGWINCH, lambda: running.resize(self.size))
        for number in _TERMINATION_SIGNALS:
            loop.add_signal_handler(number, lambda: None if ended.done() else ended.set_result(None))
        try:
            yield ended
        finally:
            for number in (signal.SIGWINCH, *_TERMINATION_SIGNALS):
                loop.remove_signal_handler(number)


class _TerminalModes:
    """Tracks the terminal modes that a command has enabled and not disabled again."""

    def __init__(self) -> None:
        self._enabled_modes: set[bytes] = set()
        self._unparsed = b""

    def track(self, data: bytes) -> None:
        data = self._unparsed + data
        for found in _MODE_SEQUENCE.finditer(data):
            for mode in found[1].split(b";"):
                switch = (found[2] == b"h") is not (mode == _CURSOR_MODE)
                if mode in _RESET_MODES or mode == _CURSOR_MODE:
                    (self._enabled_modes.add if switch else self._enabled_modes.discard)(mode)
        self._unparsed = data[-_MAX_SEQUENCE_BYTES:]

    def reset_sequence(self) -> bytes:
        """Return the escape sequences that reset the terminal modes."""
        return b"".join(
            b"\x1b[?" + mode + (b"h" if mode == _CURSOR_MODE else b"l")
            for mode in sorted(self._enabled_modes)
        )


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
