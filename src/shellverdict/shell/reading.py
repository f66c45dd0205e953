"""Define the input and the result of analyzing a command, and the policy for alternative branches."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from shellverdict.shell.earlier_files import FileChanges
from shellverdict.shell.embedded import WrittenTexts
from shellverdict.shell.runs import ProgramRun, TextStream
from shellverdict.shell.words import Word
from shellverdict.verdict import CommandEffect

__all__ = ["BranchPolicy", "CommandReading", "ExecutionContext"]


@dataclass(slots=True)
class CommandReading:
    """Result of the analysis of one shell command: the programs it starts and its effects."""

    runs: list[ProgramRun] = field(default_factory=list)
    effects: list[CommandEffect] = field(default_factory=list)
    is_incomplete: bool = False
    exported_variables: dict[str, Word] = field(default_factory=dict)
    """Exported variables that a later command in the same terminal would inherit."""
    written_texts: WrittenTexts = field(default_factory=WrittenTexts)
    file_changes: FileChanges = field(default_factory=FileChanges)
    """Changes to files that a later command would find."""


@dataclass(frozen=True, slots=True)
class ExecutionContext:
    """Context that a command inherits from the surrounding shell code: input, wrapper programs, loop …"""

    stdin: TextStream | None = None
    wrappers: tuple[str, ...] = ()
    has_unknown_operands: bool = False
    has_unknown_arguments: bool = False  # inside code that receives unknown words
    background: bool = False
    in_endless_loop: bool = False
    call_stack: tuple[str, ...] = ()  # names of the functions being called
    depth: int = 0


class BranchPolicy(Enum):
    """Policy for the shell state after two branches (`if`, `||` …) that end in different shell states."""

    MARK_UNKNOWN = "differing values become unknown"
    TAKEN = "continue as if the optional branch was taken"
    SKIPPED = "continue as if the optional branch was skipped"
