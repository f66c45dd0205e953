"""Patterns as rules spell them: `delete-*`, `rm|rmi`, `system prune`, `--replicas=0`.

They are compiled once and meet words that may have gaps, so the answer is one of three: yes, no, or
perhaps. Letters' case is never told apart in a word, always in the name of an option.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fnmatch import translate
from typing import Final

from shellverdict.options import Flag
from shellverdict.shell.words import GAP, Word

__all__ = ["Answer", "Choice", "Glob", "OptionGlob", "Path", "is_glob"]

ANYTHING: Final = "**"  # any number of words
DEEPEST: Final = 12  # words before a subcommand; no program has so many levels


class Answer(IntEnum):
    """Ordered, so that `min` is "and" and `max` is "or"."""

    NO = 0
    PERHAPS = 1
    YES = 2


def is_glob(text: str) -> bool:
    return "*" in text or "?" in text or "[" in text


@dataclass(frozen=True, slots=True)
class Glob:
    """A pattern with `*`, in pieces: what it begins and ends with, and what comes between, in order.

    The pieces need no compiling, which would make up most of the time it takes to load the rules; only a
    pattern with `?` or `[` is an expression.
    """

    head: str
    middle: tuple[str, ...] = ()
    tail: str = ""
    expression: re.Pattern[str] | None = None

    @classmethod
    def of(cls, text: str) -> Glob:
        head, *rest = text.split("*")
        if "?" in text or "[" in text:
            return cls(re.split(r"[?[]", head, maxsplit=1)[0], expression=re.compile(translate(text)))
        return cls(head, tuple(filter(None, rest[:-1])), rest[-1])

    def meets(self, text: str) -> bool:
        if self.expression is not None:
            return self.expression.match(text) is not None
        at, end = len(self.head), len(text) - len(self.tail)
        if at > end or not text.startswith(self.head) or not text.endswith(self.tail):
            return False
        for piece in self.middle:
            found = text.find(piece, at, end)
            if found < 0:
                return False
            at = found + len(piece)
        return True


@dataclass(frozen=True, slots=True)
class Choice:
    """A word that may be one of several: `stop|kill`, `delete-*`."""

    literals: frozenset[str]
    globs: tuple[Glob, ...] = ()

    @classmethod
    def of(cls, alternatives: Iterable[str]) -> Choice:
        each = [text.casefold() for text in alternatives]
        return cls(
            frozenset(text for text in each if not is_glob(text)),
            tuple(Glob.of(text) for text in each if is_glob(text)),
        )

    def meets(self, word: str) -> bool:
        """Whether the word is one of these, whatever its gaps stand for."""
        text = word.casefold()
        return text in self.literals or any(glob.meets(text) for glob in self.globs)

    def asked(self, word: Word) -> Answer:
        if self.meets(word):
            return Answer.YES
        return Answer.PERHAPS if not word.known and self._could_be(Word(word.casefold())) else Answer.NO

    def _could_be(self, word: Word) -> bool:
        """Of a pattern only the beginning is compared, with what the word is known to begin with."""
        known = word.split(GAP, 1)[0]
        return any(word.could_be(text) for text in self.literals) or any(
            known.startswith(glob.head) or glob.head.startswith(known) for glob in self.globs
        )


@dataclass(frozen=True, slots=True)
class Path:
    """The words that choose a subcommand, in order: `volume rm`, `* delete-*`, `** delete`."""

    steps: tuple[Choice, ...]
    deep: bool = False  # any number of words may stand before the steps

    @classmethod
    def of(cls, text: str) -> Path:
        words = text.split()
        deep = words[:1] == [ANYTHING]
        return cls(tuple(Choice.of(word.split("|")) for word in words[deep:]), deep)

    @property
    def first(self) -> frozenset[str]:
        """The words it can begin with; empty where they cannot be listed."""
        listed = not self.deep and not self.steps[0].globs
        return self.steps[0].literals if listed else frozenset()

    def asked(self, operands: Sequence[Word], *, more: bool) -> tuple[Answer, int]:
        """Whether the operands begin with this path, and how many of them belong to it."""
        if not self.deep:
            return self._at(operands, 0, more=more), len(self.steps)
        for start in range(min(len(operands) - len(self.steps), DEEPEST) + 1):
            if self._at(operands, start, more=False) is Answer.YES:
                return Answer.YES, start + len(self.steps)
        return Answer.NO, 0

    def _at(self, operands: Sequence[Word], start: int, *, more: bool) -> Answer:
        answer = Answer.YES
        for offset, step in enumerate(self.steps, start):
            if offset >= len(operands):
                return Answer.PERHAPS if more else Answer.NO
            answer = min(answer, step.asked(operands[offset]))
            if answer is Answer.NO:
                break
        return answer


@dataclass(frozen=True, slots=True)
class OptionGlob:
    """An option by name, and by its value where one is given: `--force`, `--allow-*`, `-X=DELETE`."""

    name: str
    glob: Glob | None = None
    value: Choice | None = None

    @classmethod
    def of(cls, text: str) -> OptionGlob:
        name, equals, value = text.partition("=")
        glob = Glob.of(name) if is_glob(name) else None
        return cls(name, glob, Choice.of(value.split("|")) if equals else None)

    def meets(self, given: Mapping[str, Sequence[Flag]], *, abbreviated: bool) -> bool:
        """Whether it is among the given options, which are sorted by their names."""
        return any(
            self._valued(flag.value) for name in self._names(given, abbreviated) for flag in given[name]
        )

    def _names(self, given: Collection[str], abbreviated: bool) -> Iterable[str]:
        if self.glob is not None:
            return [name for name in given if self.glob.meets(name)]
        if not abbreviated:
            return [self.name] if self.name in given else []
        return [name for name in given if name == self.name or self._cut(name)]

    def _cut(self, given: str) -> bool:
        return len(given) > 4 and given.startswith("--") and self.name.startswith(given)

    def _valued(self, given: Word | None) -> bool:
        if self.value is not None:
            return given is not None and self.value.meets(given)
        return given is None or given.casefold() not in SAYS_NO


SAYS_NO: Final = frozenset({"false", "none", "no", "off", "0"})
