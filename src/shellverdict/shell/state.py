"""What a shell would remember between two commands, as far as reading can tell.

Where two ways of running leave it different, what differs becomes a gap: later words then say honestly that
they are not known.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from shellverdict.shell.runs import HERE, Stream
from shellverdict.shell.secret_names import secret_name
from shellverdict.shell.tree import Node
from shellverdict.shell.words import EMPTY, GAP, Mark, Word, gap

__all__ = ["OWN_JOB", "SOME_NUMBER", "UNSET", "State", "Value"]

Value = Word | tuple[Word, ...]

UNSET = Word("")  # a variable, or a place in an array, that this command has made to be missing
SHELL = Word("bash")
SOME_NUMBER = Word("4242")  # a number stays one, never a word
OWN_JOB = Word("%1")  # `$!` names what the shell itself has started


@dataclass(slots=True)
class State:
    """One shell's memory. Copies share nothing that changes."""

    home: Word
    cwd: Word = HERE
    variables: dict[str, Value] = field(default_factory=dict)
    references: dict[str, str] = field(default_factory=dict)
    functions: dict[str, tuple[Node | None, ...]] = field(default_factory=dict)  # None: perhaps there is none
    aliases: dict[str, str] = field(default_factory=dict)
    arguments: tuple[Word, ...] = ()
    zero: Word = SHELL
    files: dict[str, Stream] = field(default_factory=dict)  # what the command itself has written
    programs: dict[str, Word] = field(default_factory=dict)  # copies and links of programs, by their new path
    links: dict[str, Word] = field(default_factory=dict)  # symbolic links the command has made
    fetched: tuple[str, ...] = ()  # folders filled from the network
    descriptors: dict[str, Stream] = field(default_factory=dict)
    targets: dict[str, Word] = field(default_factory=dict)  # files that a descriptor writes to
    attributes: dict[str, str] = field(default_factory=dict)  # i, l, u of `declare`
    locals: dict[str, Value | None] | None = None  # inside a function: what its own variables hide
    exported: frozenset[str] = frozenset()
    exports_all: bool = False
    start: Word = EMPTY  # the absolute path of the directory that `cwd` is relative to, where it is known

    @property
    def folder(self) -> Word:
        """The working directory as an absolute path, so that it stays the same after a `cd`."""
        if not self.start or self.cwd[:1] in ("/", "~", GAP):
            return self.cwd
        return self.start if self.cwd in ("", HERE) else Word(f"{self.start.rstrip('/')}/{self.cwd}")

    def copy(self) -> State:
        return State(
            self.home,
            self.cwd,
            dict(self.variables),
            dict(self.references),
            dict(self.functions),
            dict(self.aliases),
            self.arguments,
            self.zero,
            dict(self.files),
            dict(self.programs),
            dict(self.links),
            self.fetched,
            dict(self.descriptors),
            dict(self.targets),
            dict(self.attributes),
            None if self.locals is None else dict(self.locals),
            self.exported,
            self.exports_all,
            self.start,
        )

    def child(self, given: Iterable[str]) -> State:
        """What a shell that this one starts knows of it: what was exported, and `given` in front of it."""
        seen = self.exported | set(given)
        shell = State(
            self.home, self.cwd, files=self.files, programs=dict(self.programs), fetched=self.fetched
        )
        shell.start = self.start
        shell.links = dict(self.links)
        shell.variables = {n: v for n, v in self.variables.items() if self.exports_all or n in seen}
        shell.functions = {n: (*f, None) for n, f in self.functions.items() if f"{n}()" in seen}
        shell.exported, shell.descriptors = self.exported, dict(self.descriptors)
        return shell

    def merge(self, other: State) -> None:
        """Take in that things may also have gone the other way."""
        self.merge_names(other)
        self.files |= other.files
        self.programs |= other.programs
        self.links |= other.links
        self.fetched += tuple(folder for folder in other.fetched if folder not in self.fetched)
        self.descriptors |= other.descriptors
        self.targets |= other.targets
        self.attributes |= other.attributes
        if self.arguments != other.arguments:
            self.arguments = (gap(),)
        if self.cwd != other.cwd:
            self.cwd = gap()

    def keep_programs(self, other: State) -> None:
        """Take over the copies of programs that another process has put on the disk."""
        self.programs |= {path: name for path, name in other.programs.items() if "/" in path}

    def become(self, other: State) -> None:
        """Be as the other is."""
        for each in fields(self):
            setattr(self, each.name, getattr(other, each.name))

    def merge_names(self, other: State) -> None:
        """Variables, functions and aliases may be as here, or as there."""
        for name in self.variables.keys() | other.variables.keys():
            mine, theirs = self.variables.get(name), other.variables.get(name)
            if mine != theirs or (mine is UNSET) != (theirs is UNSET):
                self.variables[name] = gap()
        for name in self.functions.keys() | other.functions.keys():
            here, there = self.functions.get(name, (None,)), other.functions.get(name, (None,))
            self.functions[name] = here + tuple(body for body in there if body not in here)
        self.aliases |= {name: text for name, text in other.aliases.items() if name not in self.aliases}
        self.exported &= other.exported

    def remembers_the_same(self, other: State) -> bool:
        return (
            self.variables == other.variables
            and self.cwd == other.cwd
            and self.arguments == other.arguments
            and self.functions == other.functions
            and self.aliases == other.aliases
            and self.files.keys() == other.files.keys()
        )

    def forget_what_changed(self, before: State) -> None:
        """After two rounds of a loop: whatever still changes may be anything in the next."""
        for name, value in self.variables.items():
            if before.variables.get(name) != value:
                self.variables[name] = gap()
        if before.cwd != self.cwd:
            self.cwd = gap()
        if before.arguments != self.arguments:
            self.arguments = (gap(),)

    def value(self, name: str) -> Value | None:
        """A variable's value; None where this command never set it and only the surroundings know."""
        name = self.references.get(name, name)
        if name in self.variables:
            return self.variables[name]
        if name.isdigit():
            place = int(name)
            return self.zero if place == 0 else (self.arguments + (EMPTY,) * place)[place - 1]
        return self._given(name)

    def _given(self, name: str) -> Value | None:
        match name:
            case "@" | "*":
                return self.arguments
            case "#":
                return Word(len(self.arguments))
            case "!":
                return OWN_JOB
            case "$" | "?" | "RANDOM" | "SECONDS" | "UID" | "EUID" | "PPID" | "BASHPID" | "LINENO":
                return SOME_NUMBER
            case "HOME":
                return self.home
            case "PWD":
                return self.folder
            case "IFS":
                return Word(" \t\n")
            case "SHELL" | "BASH":
                return Word("/bin/bash")
            case "TMPDIR":
                return Word("/tmp")  # noqa: S108 - the usual place, named and not used
        return None

    def unknown(self, name: str) -> Word:
        """What stands for a variable that only the surroundings know."""
        return gap(frozenset({Mark.CONFIDENTIAL} if secret_name(name) else ()))

    def set(self, name: str, value: Value) -> None:
        name = self.references.get(name, name)
        self.variables[name] = self._by_attribute(name, value)

    def _by_attribute(self, name: str, value: Value) -> Value:
        """What `declare -l`, `-u` and `-i` make of a value."""
        attribute = self.attributes.get(name)
        if attribute is None or isinstance(value, tuple):
            return value
        if attribute == "i":
            return value if value.isdigit() else gap(value.marks)
        return Word(value.lower() if attribute == "l" else value.upper())

    def own(self, name: str) -> None:
        """`local`: the variable is the function's from here on."""
        if self.locals is not None and name not in self.locals:
            self.locals[name] = self.variables.get(name)

    def leave(self, outer: dict[str, Value | None] | None) -> None:
        """The end of a function: what its own variables hid is there again."""
        for name, value in (self.locals or {}).items():
            self.restore(name, value)
        self.locals = outer

    def restore(self, name: str, value: Value | None) -> None:
        if value is None:
            self.variables.pop(name, None)
        else:
            self.variables[name] = value

    def path(self, word: Word) -> str:
        """A path as a key: joined to the current folder and tidied."""
        if word.startswith("/") or GAP in word[:1]:
            return posixpath.normpath(word)
        return posixpath.normpath(posixpath.join(self.cwd, word))

    def linked(self, word: Word, *, itself: bool = True) -> Word:
        """The word behind a link that this command has made; `itself`: also the link as a whole."""
        if not self.links or word.startswith("-"):
            return word
        path = self.path(word)
        for link, target in self.links.items():
            if path.startswith(f"{link}/"):
                return Word(target + path[len(link) :])
            if itself and path == link:
                return target
        return word

    def move(self, word: Word) -> None:
        """`cd`."""
        self.cwd = Word(self.path(word)) if word != "-" else gap()
