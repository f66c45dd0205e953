"""Parse the arguments of a program into options, their values, and operands.

Parses as `getopt_long` does: clusters of short options, long options with `=`, `--`, and abbreviated long
options. The caller knows what an option means. It never fails: arguments that no program would accept are
parsed as well as possible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from shellverdict.shell.words import GAP, Word

__all__ = ["Flag", "Options"]

MAX_CLUSTER_LETTERS = 64  # different letters in one word; no program has more options

_NONE: frozenset[str] = frozenset()


class Flag(NamedTuple):
    """Flag (command-line option) as given, such as `-r` or `--output`, and its value if it has one."""

    name: str
    value: Word | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of a program, parsed into options and operands.

    `has_unknown_option` is True if an option has unknown parts, so that any option may be among them.
    """

    operands: tuple[Word, ...] = ()
    flags: tuple[Flag, ...] = ()
    has_unknown_option: bool = False
    abbreviated: bool = True

    @classmethod
    def parse(
        cls,
        argv: Sequence[Word],
        takes_value: frozenset[str] = _NONE,
        *,
        attached: frozenset[str] = _NONE,
        clusters: bool = True,
        abbreviated: bool = True,
        permuted: bool = True,
    ) -> Options:
        """Parse the arguments after `argv[0]`, which is a program or subcommand, into options and operands.

        `takes_value` are the options whose value may be the next word, `attached` those whose value can only
        be part of the same word (`sed -i.bak`). Without `clusters`, `-name` is one option, as in `find` and
        in Go programs. `abbreviated` lets `--recurs` mean `--recursive`. Without `permuted`, the first
        operand ends the options, as in wrappers.
        """
        return _OptionParser(argv, takes_value, attached, clusters, abbreviated, permuted).parse()

    def has(self, *names: str) -> bool:
        """Return True if any of the options `names` is given, in full or abbreviated."""
        return any(self._is_any_of(flag.name, names) for flag in self.flags)

    def value(self, *names: str) -> Word | None:
        """Return the value of the last given option among `names`; None if none of them has a value."""
        return next((v for v in reversed(self.values(*names))), None)

    def values(self, *names: str) -> tuple[Word, ...]:
        return tuple(f.value for f in self.flags if f.value is not None and self._is_any_of(f.name, names))

    def has_prefix(self, prefix: str) -> bool:
        """Return True if an option starts with the prefix, such as `--delete-after` with `--delete`."""
        return any(flag.name.startswith(prefix) for flag in self.flags)

    def _is_any_of(self, option: str, names: tuple[str, ...]) -> bool:
        return option in names or (self.abbreviated and any(_is_abbreviation(option, name) for name in names))


def _is_abbreviation(option: str, name: str) -> bool:
    return len(option) > 2 and option.startswith("--") and name.startswith(option)


class _OptionParser:
    """Parser that splits the arguments of one command into options and operands."""

    def __init__(
        self,
        argv: Sequence[Word],
        takes_value: frozenset[str],
        attached: frozenset[str],
        clusters: bool,
        abbreviated: bool,
        permuted: bool,
    ) -> None:
        self._words: Iterator[Word] = islice(iter(argv), 1, None)
        self._takes_value, self._attached = takes_value, attached
        self._clusters, self._abbreviated, self._permuted = clusters, abbreviated, permuted
        self._operands: list[Word] = []
        self._flags: list[Flag] = []
        self._has_unknown_option = False

    def parse(self) -> Options:
        for word in self._words:
            if word == "--":
                break
            if len(word) < 2 or word[0] != "-":
                self._operands.append(word)
                if not self._permuted:
                    break
            else:
                self._parse_option(word)
        self._operands.extend(self._words)
        return Options(tuple(self._operands), tuple(self._flags), self._has_unknown_option, self._abbreviated)

    def _parse_option(self, word: Word) -> None:
        if word.startswith("--") or not self._clusters:
            self._parse_long_option(word)
        else:
            self._parse_cluster(word)

    def _parse_long_option(self, word: Word) -> None:
        name, equals, value = word.partition("=")
        self._has_unknown_option |= GAP in name
        if equals:
            self._flags.append(Flag(name, Word(value)))
        elif self._takes_argument(name):
            self._flags.append(Flag(name, next(self._words, None)))
        else:
            self._flags.append(Flag(name))

    def _takes_argument(self, name: str) -> bool:
        if name in self._takes_value:
            return True
        return self._abbreviated and any(_is_abbreviation(name, other) for other in self._takes_value)

    def _parse_cluster(self, word: Word) -> None:
        seen: set[str] = set()
        for at, letter in enumerate(word[1:], start=2):
            name = "-" + letter
            if name in self._takes_value:
                self._flags.append(Flag(name, Word(word[at:]) if word[at:] else next(self._words, None)))
                return
            if name in self._attached:
                self._flags.append(Flag(name, Word(word[at:])))
                return
            self._has_unknown_option |= letter == GAP
            if letter not in seen and len(seen) < MAX_CLUSTER_LETTERS:
                seen.add(letter)
                self._flags.append(Flag(name))
