"""Patterns that rules contain: `delete-*`, `rm|rmi`, `system prune`, `--replicas=0`.

Patterns are compiled once. Words may contain gaps (unknown text), so a match is yes, no or maybe. Letter case
is ignored in words and significant in option names.
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

__all__ = ["Glob", "MatchResult", "OptionPattern", "SubcommandPattern", "WordPattern", "is_glob"]

ANY_WORDS: Final = "**"  # matches any number of words
MAX_LEADING_WORDS: Final = 12  # more levels of subcommands than any program has


class MatchResult(IntEnum):
    """Three-valued result of matching (no, maybe, yes), ordered so that `min` is "and" and `max` is "or"."""

    NO = 0
    MAYBE = 1
    YES = 2


def is_glob(text: str) -> bool:
    return "*" in text or "?" in text or "[" in text


@dataclass(frozen=True, slots=True)
class Glob:
    """Glob pattern with `*`, split into its literal prefix, middle parts and suffix.

    Splitting is much faster than compiling a regular expression, which would dominate the time to load the
    rules; only patterns with `?` or `[` are compiled.
    """

    head: str
    middle: tuple[str, ...] = ()
    tail: str = ""
    expression: re.Pattern[str] | None = None

    @classmethod
    def parse(cls, text: str) -> Glob:
        head, *rest = text.split("*")
        if "?" in text or "[" in text:
            return cls(re.split(r"[?[]", head, maxsplit=1)[0], expression=re.compile(translate(text)))
        return cls(head, tuple(filter(None, rest[:-1])), rest[-1])

    def matches(self, text: str) -> bool:
        if self.expression is not None:
            return self.expression.match(text) is not None
        at, end = len(self.head), len(text) - len(self.tail)
        if at > end or not text.startswith(self.head) or not text.endswith(self.tail):
            return False
        for piece in self.middle:
            position = text.find(piece, at, end)
            if position < 0:
                return False
            at = position + len(piece)
        return True


@dataclass(frozen=True, slots=True)
class WordPattern:
    """Pattern for one command-line word in a rule, with alternatives: `stop|kill`, `delete-*`."""

    literals: frozenset[str]
    globs: tuple[Glob, ...] = ()

    @classmethod
    def parse(cls, alternatives: Iterable[str]) -> WordPattern:
        each = [text.casefold() for text in alternatives]
        return cls(
            frozenset(text for text in each if not is_glob(text)),
            tuple(Glob.parse(text) for text in each if is_glob(text)),
        )

    def matches(self, word: str) -> bool:
        """Return True if a word certainly matches the pattern."""
        text = word.casefold()
        return text in self.literals or any(glob.matches(text) for glob in self.globs)

    def match(self, word: Word) -> MatchResult:
        if self.matches(word):
            return MatchResult.YES
        return (
            MatchResult.MAYBE
            if not word.is_known and self._could_match(Word(word.casefold()))
            else MatchResult.NO
        )

    def _could_match(self, word: Word) -> bool:
        """Return True if a word could match the pattern for some value of its unknown parts.

        A glob is only compared with the text before the first unknown part.
        """
        known_prefix = word.split(GAP, 1)[0]
        return any(word.can_equal(text) for text in self.literals) or any(
            known_prefix.startswith(glob.head) or glob.head.startswith(known_prefix) for glob in self.globs
        )


@dataclass(frozen=True, slots=True)
class SubcommandPattern:
    """Pattern for the words of a subcommand in a rule: `volume rm`, `* delete-*`, `** delete`."""

    steps: tuple[WordPattern, ...]
    at_any_depth: bool = False  # any number of words may precede the steps

    @classmethod
    def parse(cls, text: str) -> SubcommandPattern:
        words = text.split()
        deep = words[:1] == [ANY_WORDS]
        return cls(tuple(WordPattern.parse(word.split("|")) for word in words[deep:]), deep)

    @property
    def first_words(self) -> frozenset[str]:
        """Return the words that the subcommand pattern can start with; empty if they cannot be listed."""
        is_listed = not self.at_any_depth and not self.steps[0].globs
        return self.steps[0].literals if is_listed else frozenset()

    def match_operands(self, operands: Sequence[Word], *, more: bool) -> tuple[MatchResult, int]:
        """Return how well the operands match (no, maybe, yes), and how many of them form the subcommand."""
        if not self.at_any_depth:
            return self._match_from(operands, 0, more=more), len(self.steps)
        for start in range(min(len(operands) - len(self.steps), MAX_LEADING_WORDS) + 1):
            if self._match_from(operands, start, more=False) is MatchResult.YES:
                return MatchResult.YES, start + len(self.steps)
        return MatchResult.NO, 0

    def _match_from(self, operands: Sequence[Word], start: int, *, more: bool) -> MatchResult:
        result = MatchResult.YES
        for offset, step in enumerate(self.steps, start):
            if offset >= len(operands):
                return MatchResult.MAYBE if more else MatchResult.NO
            result = min(result, step.match(operands[offset]))
            if result is MatchResult.NO:
                break
        return result


@dataclass(frozen=True, slots=True)
class OptionPattern:
    """Pattern for an option in a rule, by name and perhaps by value: `--force`, `--allow-*`, `-X=DELETE`."""

    name: str
    glob: Glob | None = None
    value: WordPattern | None = None

    @classmethod
    def parse(cls, text: str) -> OptionPattern:
        name, equals, value = text.partition("=")
        glob = Glob.parse(name) if is_glob(name) else None
        return cls(name, glob, WordPattern.parse(value.split("|")) if equals else None)

    def matches(self, options: Mapping[str, Sequence[Flag]], *, abbreviated: bool) -> bool:
        """Return True if one of the given options, indexed by name, matches this pattern."""
        return any(
            self._matches_value(flag.value)
            for name in self._matching_names(options, abbreviated)
            for flag in options[name]
        )

    def _matching_names(self, options: Collection[str], abbreviated: bool) -> Iterable[str]:
        if self.glob is not None:
            return [name for name in options if self.glob.matches(name)]
        if not abbreviated:
            return [self.name] if self.name in options else []
        return [name for name in options if name == self.name or self._is_abbreviation(name)]

    def _is_abbreviation(self, name: str) -> bool:
        return len(name) > 4 and name.startswith("--") and self.name.startswith(name)

    def _matches_value(self, value: Word | None) -> bool:
        if self.value is not None:
            return value is not None and self.value.matches(value)
        return value is None or value.casefold() not in FALSE_VALUES


FALSE_VALUES: Final = frozenset({"false", "none", "no", "off", "0"})
