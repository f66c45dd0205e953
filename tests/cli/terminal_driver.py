"""Simulates a user at a terminal: starts a program in a pseudo-terminal, types keys and reads the screen."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyte
from pyte.screens import Char as Cell

__all__ = ["ALT_ENTER", "CTRL_C", "CTRL_D", "ENTER", "TAB", "UP", "Cell", "Terminal"]

TIMEOUT_S = 120.0
ENTER, ALT_ENTER, CTRL_C, CTRL_D, TAB, UP = "\r", "\x1b\r", "\x03", "\x04", "\t", "\x1b[A"


class Terminal:
    """A program in a terminal of a given size. Use it in a `with` statement."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        columns: int = 100,
        rows: int = 40,
    ) -> None:
        self.env = dict(env)
        self._screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self._stream = pyte.Stream(self._screen)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.raw = ""
        """Everything that the program wrote."""
        self._descriptor, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = subprocess.Popen(
            command,
            stdin=child,
            stdout=child,
            stderr=child,
            env={**env, "TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"},
            cwd=cwd,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(child)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(TIMEOUT_S)
        os.close(self._descriptor)

    @property
    def cells(self) -> list[list[Cell]]:
        """All lines as cells with their styles, including lines that have scrolled off the screen."""
        screen = self._screen
        rows = [*screen.history.top, *(screen.buffer[number] for number in range(screen.lines))]
        return [[row[column] for column in range(screen.columns)] for row in rows]

    @property
    def lines(self) -> list[str]:
        """All lines as text without trailing spaces."""
        return ["".join(cell.data for cell in row).rstrip() for row in self.cells]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def type(self, keys: str) -> None:
        """Type keys."""
        os.write(self._descriptor, keys.encode())

    def send(self, message: str) -> None:
        """Type a message and press Enter."""
        self.type(message + ENTER)

    def wait_for(self, text: str, *, count: int = 1) -> None:
        """Wait until a text is on the screen, `count` times."""
        self._wait(lambda: self.text.count(text) >= count, f"{text!r} is not on the screen")

    def wait_for_output(self, text: str) -> None:
        """Wait until the program has written a text, even if it is no longer on the screen."""
        self._wait(lambda: text in self.raw, f"{text!r} was not written")

    def wait_until_gone(self, text: str) -> None:
        """Wait until a text is no longer on the screen."""
        self._wait(lambda: text not in self.text, f"{text!r} is still on the screen")

    def wait_for_prompt(self) -> None:
        """Wait until the program waits for a message: the last line with text is an empty prompt."""
        self._wait(lambda: self._last_line() == "›", "there is no empty prompt")

    def wait_for_exit(self) -> int:
        """Wait until the program has ended and return its exit code."""
        self._wait(lambda: self.process.poll() is not None, "the program is still running")
        return self.process.returncode

    def _last_line(self) -> str:
        return next((line.strip() for line in reversed(self.lines) if line.strip()), "")

    def _wait(self, condition: object, problem: str) -> None:
        assert callable(condition)
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, f"{problem}:\n{self.text}"
            self._read(0.05)

    def _read(self, timeout_s: float) -> None:
        if not select.select([self._descriptor], [], [], timeout_s)[0]:
            return
        try:
            data = os.read(self._descriptor, 1 << 16)
        except OSError:  # the program has ended
            time.sleep(timeout_s)
            return
        text = self._decoder.decode(data)
        self.raw += text
        self._stream.feed(text)
