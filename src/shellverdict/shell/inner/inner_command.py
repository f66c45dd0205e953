"""Define `InnerCommand`, a command that another program runs, and functions that join its words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from shellverdict.shell.runs import ProgramRun
from shellverdict.shell.words import GAP, Word

__all__ = ["UNKNOWN_WORD", "InnerCommand", "InnerCommandReader", "join_words", "to_literal"]

UNKNOWN_WORD = Word(GAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerCommand:
    """A command or a piece of code that another program runs, as `sudo` and `sh -c` do.

    Either `argv`, a program with its arguments; or `code`, text in `language` that is part of the command
    itself and may have unknown parts; or, if both are None, code from standard input or from `file`.
    """

    argv: tuple[Word, ...] | None = None
    code: Word | None = None
    language: str = "sh"
    source: Literal["typed", "stdin", "file"] = "typed"
    file: Word | None = None
    wrapper: str = ""  # program that runs it ("sudo", "ssh"); empty for `sh -c`
    has_unknown_operands: bool = False  # unknown words are appended
    arguments: tuple[Word, ...] = ()  # $0, $1 … of `sh -c code a b`, or arguments of a script


InnerCommandReader = Callable[[ProgramRun], Iterator[InnerCommand]]
"""Function that yields the commands that a program such as `sudo` runs."""


def to_literal(word: str) -> Word:
    """Return a word with its wildcards as plain characters (`*`, `?`, `[`, `]`), for use as shell code."""
    return Word(word).literal


def join_words(words: Iterable[str]) -> Word:
    """Join words to one line of shell code, as `ssh`, `eval` and `watch` do with their arguments."""
    return to_literal(" ".join(words))
