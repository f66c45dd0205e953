"""Options of a program, read by a line of data.

A specification is a string of option names, each with a sign that says what follows it:

    -E      nothing
    -u=     a value, attached or in the next word
    -i?     a value only where it is attached
    -l#     digits, only where they are attached; letters behind them go on
    -l!     nothing, and the program will run no command at all
    -c>sh   a value that is code in the language named behind the sign
    -f@sh   a value that is a file with such code
    -x%     a value that is the program; the operands are its words
    -x:     all words up to the end, or to `;`, are a command

Long options may be shortened as far as they stay unmistakable. What is not in the specification is taken for
an option without a value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from shellverdict.options import Flag
from shellverdict.shell.words import Word

__all__ = ["Reading", "Spec", "read", "spec"]

_ENTRY = re.compile(r"([-+][^\s=?!>@:#%]*)([=?!>@:#%]?)(\S*)")
_VALUED = ("=", ">", "@", "%")


@dataclass(frozen=True, slots=True)
class Spec:
    """The options of one program: their signs, and the language behind a sign."""

    signs: Mapping[str, str]
    languages: Mapping[str, str]
    longs: tuple[str, ...]
    single: bool = False  # long options begin with one dash, and there are no clusters

    def full(self, name: str) -> str:
        """The option that a possibly shortened long name stands for."""
        if name in self.signs or self.single:
            return name
        near = [long for long in self.longs if long.startswith(name)]
        return near[0] if len(near) == 1 or (near and len({self.signs[n] for n in near}) == 1) else name


@dataclass(frozen=True, slots=True)
class Reading:
    """Options and operands, apart; `quits` where an option says that nothing is run."""

    options: tuple[Flag, ...]
    operands: tuple[Word, ...]
    quits: bool = False
    missing: str = ""  # an option at the very end whose value is not there
    doubtful: bool = False  # the first operand may be the value of an option nobody has listed

    def has(self, *names: str) -> bool:
        return any(option.name in names for option in self.options)

    def values(self, *names: str) -> tuple[Word, ...]:
        return tuple(o.value for o in self.options if o.name in names and o.value is not None)


@lru_cache(maxsize=1024)
def spec(text: str, single: bool = False) -> Spec:
    signs: dict[str, str] = {"--help": "!", "--version": "!"}
    languages: dict[str, str] = {}
    for entry in text.split():
        if found := _ENTRY.fullmatch(entry):
            name, sign, language = found.groups()
            signs[name] = sign
            languages[name] = language
    longs = tuple(name for name in signs if name.startswith("--"))
    return Spec(MappingProxyType(signs), MappingProxyType(languages), longs, single)


def read(words: Sequence[Word], given: Spec, *, stop: bool = True) -> Reading:
    """Options before the first operand, or (`stop=False`) wherever they stand."""
    return _Reader(words, given, stop).read()


class _Reader:
    def __init__(self, words: Sequence[Word], given: Spec, stop: bool) -> None:
        self.words, self.spec, self.stop = words, given, stop
        self.at = 0
        self.options: list[Flag] = []
        self.flags: set[str] = set()
        self.operands: list[Word] = []
        self.quits = False
        self.missing = ""
        self.strange = self.doubtful = False

    def read(self) -> Reading:
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            if word == "--":
                self.operands += self.words[self.at :]
                break
            if self._is_long(word):
                self._long(word)
            elif (len(word) > 1 and word[0] == "-") or (word[:2] in self.spec.signs and word[0] == "+"):
                self._cluster(word)
            else:
                self.doubtful |= self.strange and not self.operands
                self.operands.append(word)
                if self.stop:
                    self.operands += self.words[self.at :]
                    break
        return Reading(tuple(self.options), tuple(self.operands), self.quits, self.missing, self.doubtful)

    def _is_long(self, word: Word) -> bool:
        if word.startswith("--") or len(word) < 3 or word[0] != "-":
            return word.startswith("--") or (self.spec.single and len(word) == 2 and word[0] == "-")
        return self.spec.single or word.partition("=")[0] in self.spec.signs  # zip -TT

    def _long(self, word: Word) -> None:
        name, equals, value = word.partition("=")
        name = self.spec.full(name)
        sign = self.spec.signs.get(name, "")
        self.strange = not equals and name not in self.spec.signs
        if not sign and self.spec.single and name.startswith("--"):
            sign = self.spec.signs.get(name[1:], "")
            name = name[1:] if sign else name
        if equals:
            self._add(name, Word(value))
        elif sign in _VALUED:
            self._add(name, self._next(name))
        elif sign == ":":
            self._add(name, None)
            self._rest()
        else:
            self.quits |= sign == "!"
            self._add(name, None)

    def _cluster(self, word: Word) -> None:
        self.strange = False
        signs, place = self.spec.signs, 1
        while place < len(word):
            name = word[0] + word[place]
            sign = signs.get(name, "")
            place += 1
            if not sign:
                self._add(name, None)
            elif sign == ":":
                self._add(name, None)
                self._rest()
                return
            elif sign == "#":
                self._add(name, None)
                place = _behind_digits(word, place)
            elif sign == "!":
                self.quits = True
            else:
                rest = Word(word[place:])
                self._add(name, rest or (None if sign == "?" else self._next(name)))
                return

    def _add(self, name: str, value: Word | None) -> None:
        if value is not None or name not in self.flags:  # a flag said twice says nothing more
            self.flags.add(name)
            self.options.append(Flag(name, value))

    def _next(self, name: str) -> Word | None:
        if self.at >= len(self.words):
            self.missing = name
            return None
        self.at += 1
        return self.words[self.at - 1]

    def _rest(self) -> None:
        self.operands += self.words[self.at :]
        self.at = len(self.words)


def _behind_digits(word: str, place: int) -> int:
    while place < len(word) and word[place].isdigit():
        place += 1
    return place
