"""Parse options of programs that are described by a short specification string.

A specification is a string of option names, each with a sign for what follows the option:

    -E      nothing
    -u=     a value, attached or in the next word
    -i?     a value only if it is attached
    -l#     attached digits only; further letters after them continue the cluster
    -l!     nothing, and the program will run no command at all
    -c>sh   a value that is code in the language named after the sign
    -f@sh   a value that is a file with such code
    -x%     a value that is the program to run; the operands are its arguments
    -x:     all words up to the end, or to `;`, are a command

Long options may be abbreviated as long as they are unambiguous. Unlisted options are assumed to take no
value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from shellverdict.options import Flag
from shellverdict.shell.words import Word

__all__ = ["OptionSpec", "ParsedOptions", "parse_options", "parse_spec"]

_SPEC_ENTRY = re.compile(r"([-+][^\s=?!>@:#%]*)([=?!>@:#%]?)(\S*)")
_VALUE_SIGNS = ("=", ">", "@", "%")


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """Specification of a program's options: which take a value, and the language of values that are code."""

    signs: Mapping[str, str]
    languages: Mapping[str, str]
    longs: tuple[str, ...]
    single_dash: bool = False  # long options start with one dash; there are no clusters

    def resolve_abbreviation(self, name: str) -> str:
        """Return the full name of a long option that may have been given in abbreviated form."""
        if name in self.signs or self.single_dash:
            return name
        near = [long for long in self.longs if long.startswith(name)]
        return near[0] if len(near) == 1 or (near and len({self.signs[n] for n in near}) == 1) else name


@dataclass(frozen=True, slots=True)
class ParsedOptions:
    """Options and operands of a program.

    `runs_nothing` is True if an option such as `--help` keeps the program from doing its work.
    """

    options: tuple[Flag, ...]
    operands: tuple[Word, ...]
    runs_nothing: bool = False
    missing_value_option: str = ""  # the last option, if its value is missing
    has_doubtful_operand: bool = False  # the first operand may be the value of an unlisted option

    def has(self, *names: str) -> bool:
        return any(option.name in names for option in self.options)

    def values(self, *names: str) -> tuple[Word, ...]:
        return tuple(o.value for o in self.options if o.name in names and o.value is not None)


@lru_cache(maxsize=1024)
def parse_spec(text: str, single_dash: bool = False) -> OptionSpec:
    """Parse a specification of program options; `--help` and `--version` are always included."""
    signs: dict[str, str] = {"--help": "!", "--version": "!"}
    languages: dict[str, str] = {}
    for entry in text.split():
        if found := _SPEC_ENTRY.fullmatch(entry):
            name, sign, language = found.groups()
            signs[name] = sign
            languages[name] = language
    longs = tuple(name for name in signs if name.startswith("--"))
    return OptionSpec(MappingProxyType(signs), MappingProxyType(languages), longs, single_dash)


def parse_options(words: Sequence[Word], spec: OptionSpec, *, stop_at_operand: bool = True) -> ParsedOptions:
    """Parse options up to the first operand, or everywhere with `stop_at_operand=False`."""
    return _SpecOptionReader(words, spec, stop_at_operand).read()


class _SpecOptionReader:
    def __init__(self, words: Sequence[Word], spec: OptionSpec, stop_at_operand: bool) -> None:
        self.words, self.spec, self.stop_at_operand = words, spec, stop_at_operand
        self.position = 0
        self.options: list[Flag] = []
        self.flags: set[str] = set()
        self.operands: list[Word] = []
        self.runs_nothing = False
        self.missing_value_option = ""
        self.follows_unlisted_option = self.has_doubtful_operand = False

    def read(self) -> ParsedOptions:
        while self.position < len(self.words):
            word = self.words[self.position]
            self.position += 1
            if word == "--":
                self.operands += self.words[self.position :]
                break
            if self._is_long_option(word):
                self._read_long_option(word)
            elif (len(word) > 1 and word[0] == "-") or (word[:2] in self.spec.signs and word[0] == "+"):
                self._read_cluster(word)
            else:
                self.has_doubtful_operand |= self.follows_unlisted_option and not self.operands
                self.operands.append(word)
                if self.stop_at_operand:
                    self.operands += self.words[self.position :]
                    break
        return ParsedOptions(
            tuple(self.options),
            tuple(self.operands),
            self.runs_nothing,
            self.missing_value_option,
            self.has_doubtful_operand,
        )

    def _is_long_option(self, word: Word) -> bool:
        if word.startswith("--") or len(word) < 3 or word[0] != "-":
            return word.startswith("--") or (self.spec.single_dash and len(word) == 2 and word[0] == "-")
        return self.spec.single_dash or word.partition("=")[0] in self.spec.signs  # such as `zip -TT`

    def _read_long_option(self, word: Word) -> None:
        name, equals, value = word.partition("=")
        name = self.spec.resolve_abbreviation(name)
        sign = self.spec.signs.get(name, "")
        self.follows_unlisted_option = not equals and name not in self.spec.signs
        if not sign and self.spec.single_dash and name.startswith("--"):
            sign = self.spec.signs.get(name[1:], "")
            name = name[1:] if sign else name
        if equals:
            self._add_option(name, Word(value))
        elif sign in _VALUE_SIGNS:
            self._add_option(name, self._take_value(name))
        elif sign == ":":
            self._add_option(name, None)
            self._take_rest()
        else:
            self.runs_nothing |= sign == "!"
            self._add_option(name, None)

    def _read_cluster(self, word: Word) -> None:
        self.follows_unlisted_option = False
        signs, place = self.spec.signs, 1
        while place < len(word):
            name = word[0] + word[place]
            sign = signs.get(name, "")
            place += 1
            if not sign:
                self._add_option(name, None)
            elif sign == ":":
                self._add_option(name, None)
                self._take_rest()
                return
            elif sign == "#":
                self._add_option(name, None)
                place = _skip_digits(word, place)
            elif sign == "!":
                self.runs_nothing = True
            else:
                rest = Word(word[place:])
                self._add_option(name, rest or (None if sign == "?" else self._take_value(name)))
                return

    def _add_option(self, name: str, value: Word | None) -> None:
        if value is not None or name not in self.flags:  # repeated flags add nothing
            self.flags.add(name)
            self.options.append(Flag(name, value))

    def _take_value(self, name: str) -> Word | None:
        if self.position >= len(self.words):
            self.missing_value_option = name
            return None
        self.position += 1
        return self.words[self.position - 1]

    def _take_rest(self) -> None:
        self.operands += self.words[self.position :]
        self.position = len(self.words)


def _skip_digits(word: str, place: int) -> int:
    while place < len(word) and word[place].isdigit():
        place += 1
    return place
