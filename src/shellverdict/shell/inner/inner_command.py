"""What a run runs in turn: the noun, and the few ways to make one. Pure data."""

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
    """One thing a run runs in turn.

    Either `argv`, a program and its words; or `code`, text in `language` that stands in the command itself
    and may have gaps; or, where both are None, code that comes from standard input or from `file`.
    """

    argv: tuple[Word, ...] | None = None
    code: Word | None = None
    language: str = "sh"
    source: Literal["typed", "stdin", "file"] = "typed"
    file: Word | None = None
    wrapper: str = ""  # what is seen through ("sudo", "ssh", "find"); empty for a shell's own -c
    has_unknown_operands: bool = False  # words nobody knows are added
    arguments: tuple[Word, ...] = ()  # $0 $1 … of `sh -c code a b`, or a script's arguments


InnerCommandReader = Callable[[ProgramRun], Iterator[InnerCommand]]
"""Says what the runs of some programs run in turn."""


def to_literal(word: str) -> Word:
    """The word as text that is read again: what was a pattern may be one there too."""
    return Word(word).literal


def join_words(words: Iterable[str]) -> Word:
    """The words as one line of code, the way `ssh`, `eval` and `watch` put them together."""
    return to_literal(" ".join(words))
