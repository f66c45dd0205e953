"""The interface that each terminal backend (local, docker, ssh …) implements.

A backend knows how to reach its target and how to start one program there. `environment.py` builds
everything else on `spawn`: time limits, working directories, background processes, files and the termination
of programs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """Size of a terminal in characters."""

    rows: int = 24
    columns: int = 80


@dataclass(frozen=True, slots=True)
class Readiness:
    """Result of a backend's self-check: usable, or not usable with a reason and advice."""

    available: bool
    reason: str = ""
    advice: str = ""


class Channel(Protocol):
    """Channel to a program on the target machine: its streams and exit code. Every wait can be cancelled."""

    async def read(self) -> bytes:
        """Return the next bytes of the program's output; empty at the end of the output.

        Nothing is read from the program before this is called.
        """

    async def write(self, data: bytes) -> None:
        """Write all of the data to the program's standard input; drop the data if that input is closed.

        May be called again, by another task, before the first call has returned.
        """

    async def close_input(self) -> None:
        """Close the program's standard input. Has no effect on a terminal."""

    async def wait(self) -> int:
        """Wait for the program to exit and return its exit code; 128 + n if signal n ended it."""

    def resize(self, size: TerminalSize) -> None:
        """Change the size of the program's terminal."""

    def error_text(self) -> str:
        """Return the last error output of the client program (`docker`, `ssh` …) that runs the commands."""

    async def close(self) -> None:
        """Release the channel immediately, even if the program still runs.

        The program may keep running on the target: the guard terminates it.
        """


class Backend(ABC):
    """Backend for one machine or container. `open`, `spawn` and `close` must run in the same event loop."""

    name: str
    """Name of the backend in the configuration."""
    advice = "Try again."
    """Advice to the user after the connection to the target machine or container was lost."""
    is_persistent = True
    """True if background processes outlive this client and the next client finds them."""

    lease_s = 0
    """Seconds without a heartbeat until the guard terminates commands; 0 if no heartbeats are needed."""
    has_own_files = False
    """True if the target has its own file system, in which a path names a different file than here."""
    gate_name = ""
    """Process name of the wrapper program in `entry_argv`. Signals for a command are not sent to it."""

    @property
    @abstractmethod
    def state_dir(self) -> str:
        """Return the absolute path of Toolfold's private state directory on the machine that runs commands.

        Known once open.
        """

    @property
    @abstractmethod
    def home(self) -> str:
        """Return the absolute path of the directory in which shell sessions start. Available after `open`."""

    @property
    def shared_directories(self) -> Sequence[tuple[str, str]] | None:
        """Return (local path, target path) for each directory of this machine that commands can change.

        All other effects of commands on files and processes stay on the target. None if nothing confines
        them, as on this machine itself.
        """
        return None

    @abstractmethod
    async def check(self) -> Readiness:
        """Check quickly whether the machine or container can be opened. Works in any event loop."""

    async def open(self) -> None:  # noqa: B027  (most backends need no preparation)
        """Connect to the machine, container or sandbox that runs the commands; start it if necessary.

        May be called again after the connection was lost. Raises EnvironmentFailed.
        """

    @abstractmethod
    async def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str], pty: TerminalSize | None
    ) -> Channel:
        """Start a program on the machine or in the container, as the leader of a new session.

        `env` must be in the program's own initial environment, because the guard finds its descendants by
        these variables. It contains no secret. Standard error belongs to the client program. Raises
        EnvironmentFailed.
        """

    def entry_argv(self, tasks_dir: str, *, persistent: bool, terminal: bool) -> Sequence[str]:  # noqa: ARG002
        """Return the command prefix that runs a user's program in the backend's own sandbox, if it has one.

        Inside, `tasks_dir` is writable, and its parent and `state_dir` are readable. Toolfold's own helper
        programs run outside. A `persistent` program outlives this client; with `terminal`, `spawn` provides
        the terminal.
        """
        return ()

    async def close(self) -> None:  # noqa: B027
        """Release the machine, container or sandbox that runs the commands. May be called more than once."""
