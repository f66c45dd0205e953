"""State of an analyzed shell between two commands: variables, functions, directory, written files.

Where two branches leave different values, the value becomes unknown.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from shellverdict.shell.earlier_files import NO_EARLIER_FILES, EarlierFiles, FileChanges
from shellverdict.shell.runs import CURRENT_DIRECTORY, TextStream
from shellverdict.shell.secret_names import is_secret_name
from shellverdict.shell.tree import Node
from shellverdict.shell.words import EMPTY, GAP, Taint, Word, unknown_word

__all__ = ["OWN_JOB_SPEC", "PLACEHOLDER_NUMBER", "UNSET", "ShellState", "Value"]

Value = Word | tuple[Word, ...]

UNSET = Word("")  # a variable or array item that this command has unset
DEFAULT_SHELL_NAME = Word("bash")
PLACEHOLDER_NUMBER = Word("4242")  # stands for an unknown number, which cannot be any other text
OWN_JOB_SPEC = Word("%1")  # `$!`, a job that the shell itself has started


@dataclass(slots=True)
class ShellState:
    """State of one analyzed shell process: variables, functions, working directory, written files."""

    home: Word
    cwd: Word = CURRENT_DIRECTORY
    variables: dict[str, Value] = field(default_factory=dict)
    name_references: dict[str, str] = field(default_factory=dict)
    functions: dict[str, tuple[Node | None, ...]] = field(default_factory=dict)  # None: may be undefined
    aliases: dict[str, str] = field(default_factory=dict)
    arguments: tuple[Word, ...] = ()
    script_name: Word = DEFAULT_SHELL_NAME
    written_files: dict[str, TextStream] = field(default_factory=dict)  # written by this command
    # Programs that were copied or linked, by new path.
    program_copies: dict[str, Word] = field(default_factory=dict)
    symlinks: dict[str, Word] = field(default_factory=dict)  # created by this command
    downloaded_directories: tuple[str, ...] = ()  # filled from the network
    input_descriptors: dict[str, TextStream] = field(default_factory=dict)
    output_descriptors: dict[str, Word] = field(default_factory=dict)  # file that a descriptor writes to
    attributes: dict[str, str] = field(default_factory=dict)  # i, l, u of `declare`
    shadowed_variables: dict[str, Value | None] | None = None  # outer values of local variables
    exported: frozenset[str] = frozenset()
    exports_all: bool = False
    initial_cwd: Word = EMPTY  # absolute path that `cwd` is relative to, if known
    earlier_files: EarlierFiles = NO_EARLIER_FILES
    edited_files: set[str] = field(default_factory=set)  # with new content that is unknown

    @property
    def absolute_cwd(self) -> Word:
        """Return the working directory; a relative path is made absolute if `initial_cwd` is known."""
        if not self.initial_cwd or self.cwd[:1] in ("/", "~", GAP):
            return self.cwd
        return (
            self.initial_cwd
            if self.cwd in ("", CURRENT_DIRECTORY)
            else Word(f"{self.initial_cwd.rstrip('/')}/{self.cwd}")
        )

    def copy(self) -> ShellState:
        return ShellState(
            self.home,
            self.cwd,
            dict(self.variables),
            dict(self.name_references),
            dict(self.functions),
            dict(self.aliases),
            self.arguments,
            self.script_name,
            dict(self.written_files),
            dict(self.program_copies),
            dict(self.symlinks),
            self.downloaded_directories,
            dict(self.input_descriptors),
            dict(self.output_descriptors),
            dict(self.attributes),
            None if self.shadowed_variables is None else dict(self.shadowed_variables),
            self.exported,
            self.exports_all,
            self.initial_cwd,
            self.earlier_files,
            self.edited_files,
        )

    def create_child(self, passed_variables: Iterable[str]) -> ShellState:
        """Return the state of a child shell, which inherits exported variables and `passed_variables`."""
        seen = self.exported | set(passed_variables)
        shell = ShellState(
            self.home,
            self.cwd,
            written_files=self.written_files,
            program_copies=dict(self.program_copies),
            downloaded_directories=self.downloaded_directories,
        )
        shell.initial_cwd, shell.earlier_files = self.initial_cwd, self.earlier_files
        shell.edited_files = self.edited_files
        shell.symlinks = dict(self.symlinks)
        shell.variables = {n: v for n, v in self.variables.items() if self.exports_all or n in seen}
        shell.functions = {n: (*f, None) for n, f in self.functions.items() if f"{n}()" in seen}
        shell.exported, shell.input_descriptors = self.exported, dict(self.input_descriptors)
        return shell

    def merge(self, other: ShellState) -> None:
        """Merge the shell state of an alternative branch into this one; values that differ become unknown."""
        self._merge_names(other)
        self.written_files |= other.written_files
        self.program_copies |= other.program_copies
        self.symlinks |= other.symlinks
        self.downloaded_directories += tuple(
            path for path in other.downloaded_directories if path not in self.downloaded_directories
        )
        self.input_descriptors |= other.input_descriptors
        self.output_descriptors |= other.output_descriptors
        self.attributes |= other.attributes
        if self.arguments != other.arguments:
            self.arguments = (unknown_word(),)
        if self.cwd != other.cwd:
            self.cwd = unknown_word()

    def add_program_copies(self, other: ShellState) -> None:
        """Add the copies of programs (`cp /bin/rm x`) that another analyzed shell has created on disk."""
        self.program_copies |= {path: name for path, name in other.program_copies.items() if "/" in path}

    def replace_with(self, other: ShellState) -> None:
        """Replace every field of this state with the value in the other state."""
        for each in fields(self):
            setattr(self, each.name, getattr(other, each.name))

    def _merge_names(self, other: ShellState) -> None:
        """Merge variables, functions, aliases and exports of an alternative branch."""
        for name in self.variables.keys() | other.variables.keys():
            mine, theirs = self.variables.get(name), other.variables.get(name)
            if mine != theirs or (mine is UNSET) != (theirs is UNSET):
                self.variables[name] = unknown_word()
        for name in self.functions.keys() | other.functions.keys():
            here, there = self.functions.get(name, (None,)), other.functions.get(name, (None,))
            self.functions[name] = here + tuple(body for body in there if body not in here)
        self.aliases |= {name: text for name, text in other.aliases.items() if name not in self.aliases}
        self.exported &= other.exported

    def is_equivalent(self, other: ShellState) -> bool:
        """Return True if all later commands would behave the same in both shell states."""
        return (
            self.variables == other.variables
            and self.cwd == other.cwd
            and self.arguments == other.arguments
            and self.functions == other.functions
            and self.aliases == other.aliases
            and self.written_files.keys() == other.written_files.keys()
        )

    def forget_changes_since(self, before: ShellState) -> None:
        """Mark as unknown all values that changed since `before`, the state before a loop iteration."""
        for name, value in self.variables.items():
            if before.variables.get(name) != value:
                self.variables[name] = unknown_word()
        if before.cwd != self.cwd:
            self.cwd = unknown_word()
        if before.arguments != self.arguments:
            self.arguments = (unknown_word(),)

    def get_value(self, name: str) -> Value | None:
        """Return the value of a shell variable; None if the command has not set it."""
        name = self.name_references.get(name, name)
        if name in self.variables:
            return self.variables[name]
        if name.isdigit():
            place = int(name)
            return self.script_name if place == 0 else (self.arguments + (EMPTY,) * place)[place - 1]
        return self._special_parameter(name)

    def _special_parameter(self, name: str) -> Value | None:
        match name:
            case "@" | "*":
                return self.arguments
            case "#":
                return Word(len(self.arguments))
            case "!":
                return OWN_JOB_SPEC
            case "$" | "?" | "RANDOM" | "SECONDS" | "UID" | "EUID" | "PPID" | "BASHPID" | "LINENO":
                return PLACEHOLDER_NUMBER
            case "HOME":
                return self.home
            case "PWD":
                return self.absolute_cwd
            case "IFS":
                return Word(" \t\n")
            case "SHELL" | "BASH":
                return Word("/bin/bash")
            case "TMPDIR":
                return Word("/tmp")  # noqa: S108 - the default value, not a path that is used
        return None

    def unknown_value(self, name: str) -> Word:
        """Return a placeholder for a variable's unknown value; confidential if its name suggests a secret."""
        return unknown_word(frozenset({Taint.CONFIDENTIAL} if is_secret_name(name) else ()))

    def set_variable(self, name: str, value: Value) -> None:
        name = self.name_references.get(name, name)
        self.variables[name] = self._apply_attribute(name, value)

    def _apply_attribute(self, name: str, value: Value) -> Value:
        """Convert a value as the variable's attributes (`declare -l`, `-u`, `-i`) require."""
        attribute = self.attributes.get(name)
        if attribute is None or isinstance(value, tuple):
            return value
        if attribute == "i":
            return value if value.isdigit() else unknown_word(value.taints)
        return Word(value.lower() if attribute == "l" else value.upper())

    def declare_local(self, name: str) -> None:
        """Apply `local` in a shell function: remember the outer value until the function ends."""
        if self.shadowed_variables is not None and name not in self.shadowed_variables:
            self.shadowed_variables[name] = self.variables.get(name)

    def leave_function(self, outer: dict[str, Value | None] | None) -> None:
        """Restore the variables that `local` variables of a shell function have shadowed."""
        for name, value in (self.shadowed_variables or {}).items():
            self.restore_variable(name, value)
        self.shadowed_variables = outer

    def restore_variable(self, name: str, value: Value | None) -> None:
        if value is None:
            self.variables.pop(name, None)
        else:
            self.variables[name] = value

    def resolve_path(self, word: Word) -> str:
        """Return the absolute, normalized path, for use as a dictionary key."""
        if word.startswith("/") or GAP in word[:1]:
            return posixpath.normpath(word)
        return posixpath.normpath(posixpath.join(self.cwd, word))

    def find_file(self, path: str) -> TextStream | None:
        """Return the content of a file that this command or an earlier one changed; None if unchanged.

        `path` is a result of `resolve_path`.
        """
        stream = self.written_files.get(path)
        return self.earlier_files.find(self._make_absolute(path)) if stream is None else stream

    def list_changed_below(self, directory: Word) -> list[str]:
        """Return the files below a directory that earlier commands changed."""
        return list(self.earlier_files.list_below(self._make_absolute(self.resolve_path(directory))))

    def list_matching(self, path: Word) -> list[str]:
        """Return the changed files that a path with wildcards or unknown parts may stand for."""
        pattern = Word(self._make_absolute(path))
        if pattern.is_known:
            return []
        start, _ = next(pattern.split_wildcards())
        below = self.list_changed_below(Word(posixpath.dirname(start) or "."))
        return [
            each for each in (*self.written_files, *below) if pattern.can_equal(self._make_absolute(each))
        ]

    def file_changes(self) -> FileChanges:
        """Return the changes to files that this command makes, for the analysis of later commands."""
        absolute = self._make_absolute
        return FileChanges(
            {absolute(path): TextStream() for path in self.edited_files if _is_file(path)}
            | {absolute(path): stream for path, stream in self.written_files.items() if _is_file(path)},
            {absolute(path): name for path, name in self.program_copies.items()},
            {absolute(path): target for path, target in self.symlinks.items()},
            tuple(map(absolute, self.downloaded_directories)),
        )

    def _make_absolute(self, path: str) -> str:
        if not self.initial_cwd or path[:1] in ("/", "~", GAP):
            return path
        return posixpath.normpath(posixpath.join(self.initial_cwd, path))

    def follow_symlinks(self, word: Word, *, itself: bool = True) -> Word:
        """Resolve a path through symbolic links that this command created.

        With `itself`, a path that is the link as a whole is resolved too.
        """
        if not self.symlinks or word.startswith("-"):
            return word
        path = self.resolve_path(word)
        for link, target in self.symlinks.items():
            if path.startswith(f"{link}/"):
                return Word(target + path[len(link) :])
            if itself and path == link:
                return target
        return word

    def change_directory(self, word: Word) -> None:
        """Apply the effect of `cd` on the working directory, which becomes unknown after `cd -`."""
        self.cwd = Word(self.resolve_path(word)) if word != "-" else unknown_word()


def _is_file(path: str) -> bool:
    return GAP not in path and not path.startswith(("/dev/", "/proc/"))
