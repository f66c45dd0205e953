"""What a place must offer so that commands can run in it: the whole contract of a backend.

A backend knows how to reach its place and how to start one program there. Time limits, kept folders,
background processes, files and the end of what was started are the same everywhere and none of its
business: `environment.py` makes them out of `spawn` alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Size:
    """How large a terminal is."""

    rows: int = 24
    columns: int = 80


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a backend can be used here and now; where not, why and what to do."""

    available: bool
    reason: str = ""
    advice: str = ""


class Channel(Protocol):
    """A program that runs in the place, seen from here. Whoever waits for one of these may be cancelled."""

    async def read(self) -> bytes:
        """What it wrote next to its standard output; empty at the end. Nothing is read ahead."""

    async def write(self, data: bytes) -> None:
        """Give all of this to its standard input. What nobody reads any more is dropped.

        May be called again before it is through, by somebody else: neither disturbs the other.
        """

    async def close_input(self) -> None:
        """Let it read the end of its input. A terminal stays open."""

    async def wait(self) -> int:
        """Its exit code; 128 + n after signal n."""

    def resize(self, size: Size) -> None:
        """Change the size of its terminal."""

    def complaint(self) -> str:
        """What the way to the place had to say: the last of the client's own error output."""

    async def close(self) -> None:
        """Let go of it, now. May leave it running in the place: ending it there is the guard's work."""


class Backend(ABC):
    """One kind of place. `open`, `spawn` and `close` are called from one event loop only."""

    name: str
    """As it stands in the configuration."""
    advice = "Try again."
    """What to do when the place was lost."""
    lasting = True
    """Whether background processes outlive this client, and the next one finds them."""

    lease = 0
    """After how many seconds without a word from us everything of ours ends there. 0 where the end of a
    client, however it comes, always closes the input of what it started."""
    apart = False
    """Whether its files are not this machine's, so that a path means another file there."""
    gate = ""
    """The name of the program in `entry`, as the list of processes has it: no signal is meant for it."""

    @property
    @abstractmethod
    def folder(self) -> str:
        """An absolute path in the place where our notes are kept, of this user alone. Known once open."""

    @property
    @abstractmethod
    def home(self) -> str:
        """The absolute path in the place where a new task begins. Known once open."""

    @property
    def shared(self) -> Sequence[tuple[str, str]] | None:
        """Folders of this machine that commands can change, each with its path there.

        Whatever else a command does to files and processes must stay in the place. None where it need not,
        as on this machine itself.
        """
        return None

    @abstractmethod
    async def check(self) -> Readiness:
        """Look, quickly and from any event loop, whether `open` could work."""

    async def open(self) -> None:  # noqa: B027  (nothing to do is the common case)
        """Make the place usable, once more if it was lost. Raises EnvironmentFailed."""

    @abstractmethod
    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], pty: Size | None) -> Channel:
        """Start a program in the place, as the leader of a session of its own.

        `env` must be in the environment that the program itself begins with: what it starts is found by
        it. No secret is in it. Standard error is the client's own. Raises EnvironmentFailed.
        """

    def entry(self, tasks: str, *, lasting: bool, terminal: bool) -> Sequence[str]:  # noqa: ARG002
        """What stands before a user's program in `argv`, where the place has an inner room for those.

        In there the folder `tasks` may be written, and the one that it is in and `folder` be read. Our own
        programs, which look after them, run outside. A `lasting` program outlives us; one with a
        `terminal` has it from `spawn`.
        """
        return ()

    async def close(self) -> None:  # noqa: B027
        """Let go of the place; may be called more than once."""
