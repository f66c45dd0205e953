"""Define program runs and the streams between them, as found by the shell analysis. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from shellverdict.shell.words import EMPTY, STAR, Taint, Word, unknown_word

__all__ = ["CURRENT_DIRECTORY", "STDIN_PATHS", "ProgramRun", "Redirect", "Taint", "TextStream"]

CURRENT_DIRECTORY = Word(".")
STDIN_PATHS = frozenset({"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})


@dataclass(frozen=True, slots=True)
class TextStream:
    """Input or output stream of a program: the text if it is known, and the origin of the data.

    `text` is None if nothing is known; it may contain the placeholders of `Word`. `is_interactive` marks the
    input of a running process, to which text is written over time. `listed_directories` are the directories
    of the files that an unknown text lists, such as the output of `find`.
    """

    text: Word | None = None
    taints: frozenset[Taint] = frozenset()
    is_interactive: bool = False
    listed_directories: tuple[Word, ...] = ()

    def to_unknown_word(self) -> Word:
        """Return a word that stands for one unknown item of this stream, such as a line.

        If the text lists the files of a directory, the word stands for any file in it.
        """
        if self.listed_directories and not self.taints:
            return Word(f"{self.listed_directories[0].rstrip('/')}/{STAR}{STAR}")
        return unknown_word(self.taints)


@dataclass(frozen=True, slots=True)
class Redirect:
    """One redirection with its operator (`>`, `>>`, `>|`, `>&`, `&>`, `&>>`, `<>`, `<`) and target."""

    operator: str
    target: Word
    descriptor: str = ""

    @property
    def is_output(self) -> bool:
        """Return True if the redirection opens its target for writing."""
        return ">" in self.operator


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun:
    """Run of one program that would be started, with its arguments and context.

    `argv[0]` is the bare name of the program (`/bin/rm` → `rm`), possibly with unknown parts; `path` is the
    word as written. `wrappers` are the programs that start it, outermost first (`sudo`, `ssh`, `find`).
    """

    argv: tuple[Word, ...]
    path: Word = EMPTY
    span: tuple[int, int] = (0, 0)
    env_assignments: Mapping[str, Word] = field(default_factory=lambda: MappingProxyType({}))
    redirects: tuple[Redirect, ...] = ()
    stdin: TextStream | None = None  # None: inherited from the caller, not redirected
    cwd: Word = CURRENT_DIRECTORY
    absolute_cwd: Word = EMPTY  # `cwd` as an absolute path, if known
    wrappers: tuple[str, ...] = ()
    has_unknown_operands: bool = False  # xargs, find -exec, parallel add unknown words
    background: bool = False
    in_endless_loop: bool = False  # inside a loop that does not end by itself

    @property
    def name(self) -> Word:
        return self.argv[0] if self.argv else EMPTY

    @property
    def is_remote(self) -> bool:
        """Return True if the program runs on another machine or in a container, which has other files."""
        return any(name in REMOTE_WRAPPERS for name in self.wrappers)


REMOTE_WRAPPERS = frozenset(
    {"ssh", "docker", "podman", "kubectl", "nerdctl", "oc", "lxc", "vagrant", "gcloud", "fly"}
)
