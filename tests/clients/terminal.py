"""A real terminal for programs with a text interface: tmux shows their screen and types keys."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

WAIT_S = 300.0  # a client that starts on a busy machine takes long
COLUMNS, LINES = 130, 50
_EXIT_TIMEOUT_S = 20.0
_POLL_S = 0.2
_PRESS_AGAIN_S = 4.0


@dataclass(frozen=True)
class Terminal:
    """A terminal with one program in it."""

    socket: Path

    def read_screen(self) -> str:
        """Return the text on the screen, without empty lines."""
        lines = self._tmux("capture-pane", "-p").splitlines()
        return "\n".join(line.rstrip() for line in lines if line.strip())

    def press(self, key: str) -> None:
        """Press a key by its tmux name, such as `Enter` or `Down`."""
        self._tmux("send-keys", key)

    def type(self, text: str) -> None:
        """Type text, without Enter."""
        self._tmux("send-keys", "-l", text)

    def wait_for(self, text: str) -> str:
        """Wait until the screen contains the text; return the screen."""
        self.wait_until(lambda: text in self.read_screen(), f"the screen shows {text!r}")
        return self.read_screen()

    def press_until_gone(self, is_shown: Callable[[str], bool], keys: Mapping[str, str]) -> None:
        """Press keys until something is no longer shown. `keys` maps texts on the screen to keys.

        Programs ignore keys for a short time after they have drawn a form, so a key is pressed again if
        nothing changes. Such a key may arrive when the form is gone: what is shown next must not react to it.
        """
        last_text, last_time = "", 0.0

        def has_gone() -> bool:
            nonlocal last_text, last_time
            screen = self.read_screen()
            if not is_shown(screen):
                return True
            text = next((each for each in keys if each in screen), "")
            if text and (text != last_text or time.monotonic() > last_time + _PRESS_AGAIN_S):
                self.press(keys[text])
                last_text, last_time = text, time.monotonic()
            return False

        self.wait_until(has_gone, f"the keys {', '.join(keys.values())} have an effect")

    def wait_until(self, condition: Callable[[], bool], meaning: str) -> None:
        """Wait for a condition; fail with the screen if it does not become true."""
        end = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end, f"waited in vain until {meaning}:\n{self.read_screen()}"
            time.sleep(_POLL_S)

    def _tmux(self, *arguments: str) -> str:
        command = [*_tmux_command(self.socket), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@contextmanager
def open_terminal(command: Sequence[str], environment: Mapping[str, str], cwd: Path) -> Iterator[Terminal]:
    """Run a program in a terminal of its own until the block ends."""
    # Not in tmp_path: the path of a socket may have about 100 characters.
    with tempfile.TemporaryDirectory(prefix="toolfold-tmux-") as folder:
        terminal = Terminal(Path(folder, "socket"))
        # The screen of a program that ended is kept, to be shown by a failing test.
        keep = ("set-option", "-g", "remain-on-exit", "on", ";")
        size = ("-x", str(COLUMNS), "-y", str(LINES))
        start = (*_tmux_command(terminal.socket), *keep, "new-session", "-d", *size, "--", *command)
        subprocess.run(start, env=dict(environment), cwd=cwd, check=True, timeout=60)
        pid = int(terminal._tmux("display-message", "-p", "#{pane_pid}"))
        try:
            yield terminal
        finally:
            terminal._tmux("kill-server")  # the program gets SIGHUP, as from a closed window
            _wait_for_exit(pid)


def _tmux_command(socket: Path) -> Sequence[str]:
    program = shutil.which("tmux")
    if program is None:
        pytest.skip("tmux is not installed: `make test-tools` installs it")
    return (program, "-S", str(socket), "-f", os.devnull)


def _wait_for_exit(pid: int) -> None:
    """Wait for a process that is not a child of this one; kill its group if it does not end."""
    end = time.monotonic() + _EXIT_TIMEOUT_S
    while _is_running(pid):
        if time.monotonic() > end:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            return
        time.sleep(_POLL_S)


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
