"""What a command line would do, one program at a time: the nouns the reader hands to the judges.

A `Run` is one program with the words it would be given, everything around it already seen through; a
`Stream` is what flows into or out of it, as far as reading can tell. Pure data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from shellverdict.shell.words import EMPTY, STAR, Mark, Word, gap

__all__ = ["HERE", "STANDARD_INPUT", "Mark", "Redirect", "Run", "Stream"]

HERE = Word(".")
STANDARD_INPUT = frozenset({"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})


@dataclass(frozen=True, slots=True)
class Stream:
    """Bytes between programs: their text where reading can tell it, and where they come from.

    `text` is None where nothing is known; it may contain the gaps of `Word`. `typed` marks the input of a
    running process, which is written to it bit by bit. `folders` are where the files lie that the lines of an
    unknown text name, such as those that `find` prints.
    """

    text: Word | None = None
    marks: frozenset[Mark] = frozenset()
    typed: bool = False
    folders: tuple[Word, ...] = ()

    def as_unknown(self) -> Word:
        """Return a word for a text that is not known: any file of the folder, where one is listed."""
        if self.folders and not self.marks:
            return Word(f"{self.folders[0].rstrip('/')}/{STAR}{STAR}")
        return gap(self.marks)


@dataclass(frozen=True, slots=True)
class Redirect:
    """One redirection: `>`, `>>`, `>|`, `>&`, `&>`, `&>>`, `<>`, `<` and the word behind it."""

    operator: str
    target: Word
    descriptor: str = ""

    @property
    def writes(self) -> bool:
        return ">" in self.operator


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One program, its words, and what surrounds it.

    `argv[0]` is the program's bare name (`/bin/rm` → `rm`), or a word with gaps; `path` keeps it as
    written. `through` names what it was seen through, outermost first (`sudo`, `ssh`, `find`).
    """

    argv: tuple[Word, ...]
    path: Word = EMPTY
    span: tuple[int, int] = (0, 0)
    assigned: Mapping[str, Word] = field(default_factory=lambda: MappingProxyType({}))
    redirects: tuple[Redirect, ...] = ()
    stdin: Stream | None = None  # None: not redirected, whatever the caller's standard input is
    cwd: Word = HERE
    folder: Word = EMPTY  # `cwd` as an absolute path, where that is known
    through: tuple[str, ...] = ()
    more_operands: bool = False  # xargs, find -exec, parallel: words nobody knows are added
    background: bool = False
    repeated: bool = False  # inside a loop without a stated end

    @property
    def name(self) -> Word:
        return self.argv[0] if self.argv else EMPTY

    @property
    def elsewhere(self) -> bool:
        """Whether it runs on another machine or in a container, whose files are not these."""
        return any(name in AWAY for name in self.through)


AWAY = frozenset({"ssh", "docker", "podman", "kubectl", "nerdctl", "oc", "lxc", "vagrant", "gcloud", "fly"})
