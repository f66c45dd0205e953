"""How programs read their words: which options take a value, where options end, what makes a run harmless.

Turns the words of a run into options and operands, so that a rule can speak of `kubectl delete` whatever
stands between the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from shellverdict.options import Flag, Options
from shellverdict.rules.globs import Answer, OptionGlob
from shellverdict.shell.runs import Run
from shellverdict.shell.words import Word

__all__ = ["Given", "Program", "bare_names"]

MOST_OF_A_NAME: Final = 500  # uses of one option that are looked at; no person types more
MOST_IN_FRONT: Final = 40  # words in front of a subcommand
HELP: Final = frozenset({"--help", "-help", "-h", "/?"})
REHEARSAL: Final = frozenset(
    {"--dry-run", "--dryrun", "--what-if", "--whatif", "-whatif", "--no-act", "--simulate", "--just-print"}
)
VERSION: Final = frozenset({"--version", "-version"})
MEANT: Final = frozenset({"false", "none", "no", "0"})

_VERSIONED = re.compile(r"(?<=[a-z])[-_]?\d+(?:\.\d+)*$")
_SUFFIX = re.compile(r"\.(?:exe|cmd|bat|com)$")
_DASH_M = re.compile(r"-[A-LN-Za-ln-z]{0,8}m(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z][A-Za-z:_-]*")
_SLASHED = re.compile(r"/[A-Za-z?][\w?:-]{0,12}")


def bare_names(name: str) -> tuple[str, ...]:
    """The names a program may be known by: as written, without `.exe`, without its version."""
    lower = _SUFFIX.sub("", name.casefold())
    return tuple(dict.fromkeys((name, lower, _VERSIONED.sub("", lower))))


@dataclass(frozen=True, slots=True)
class Given:
    """What a program was given: its options by name, and its operands.

    The first `in_front` operands look like values of options that are not known to take one.
    """

    flags: Mapping[str, Sequence[Flag]]
    operands: tuple[Word, ...]
    abbreviated: bool = False
    unclear: bool = False
    harmless: bool = False
    in_front: int = 0

    def any(self, wanted: Iterable[OptionGlob]) -> bool:
        return any(each.meets(self.flags, abbreviated=self.abbreviated) for each in wanted)

    def asked(self, wanted: Sequence[OptionGlob]) -> Answer:
        if self.any(wanted):
            return Answer.YES
        return Answer.PERHAPS if self.unclear else Answer.NO


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """How one program, or a family of them, reads its words.

    `valued` are the options whose value may be the next word. `exact` says that `-name` is one option, not
    four letters. `leading` says that the first operand ends the options, `inner` after which subcommands it
    does, because another program's words follow. `slashes` reads options as Windows does. `harmless` are
    the options, beside the usual ones, with which the program only shows what it would do, `not_help` the
    usual ones that mean something else to it. `modules` says that `-m` names the program really meant.
    """

    valued: frozenset[str] = frozenset()
    harmless: frozenset[str] = frozenset()
    not_help: frozenset[str] = frozenset()
    inner: frozenset[tuple[str, ...]] = frozenset()
    exact: bool = False
    leading: bool = False
    abbreviated: bool = False
    slashes: bool = False
    modules: bool = False

    def merged(self, other: Program) -> Program:
        return Program(
            valued=self.valued | other.valued,
            harmless=self.harmless | other.harmless,
            not_help=self.not_help | other.not_help,
            inner=self.inner | other.inner,
            exact=self.exact or other.exact,
            leading=self.leading or other.leading,
            abbreviated=self.abbreviated or other.abbreviated,
            slashes=self.slashes or other.slashes,
            modules=self.modules or other.modules,
        )

    def behind(self, run: Run) -> Run:
        """The program that is really meant: `python -m pip` is `pip`."""
        argv = _module(run.argv) if self.modules else None
        return run if argv is None else replace(run, argv=argv)

    def read(self, run: Run) -> Given:
        options = self._options(run.argv)
        flags: dict[str, list[Flag]] = {}
        for flag in options.flags:
            flags.setdefault(flag.name, []).append(flag)
        unclear = options.unclear
        for name, given in flags.items():
            if len(given) > MOST_OF_A_NAME:
                flags[name], unclear = given[:MOST_OF_A_NAME], True
        if "--" in run.argv:
            flags["--"] = [Flag("--")]
        harmless = self._harmless(flags, run.argv)
        in_front = _values_in_front(run.argv, options.operands)
        return Given(flags, options.operands, options.abbreviated, unclear, harmless, in_front)

    def _options(self, argv: Sequence[Word]) -> Options:
        if self.slashes:
            return _slashed(argv)
        if not self.inner:
            return self._read(argv, permuted=not self.leading)
        return self._stepwise(argv)

    def _read(self, argv: Sequence[Word], *, permuted: bool) -> Options:
        return Options.read(
            argv, self.valued, clusters=not self.exact, abbreviated=self.abbreviated, permuted=permuted
        )

    def _stepwise(self, argv: Sequence[Word]) -> Options:
        """Subcommand by subcommand, up to the one behind which another program's words begin."""
        path: tuple[str, ...] = ()
        flags: list[Flag] = []
        unclear = False
        while True:
            ahead = self._read(argv, permuted=False)
            path = (*path, *ahead.operands[:1])
            within = any(path == inner[: len(path)] for inner in self.inner)
            last = ahead if within else self._read(argv, permuted=True)
            flags.extend(last.flags)
            unclear = unclear or last.unclear
            if not within or len(ahead.operands) < 2:
                return replace(last, operands=_behind(path[:-1], last), flags=tuple(flags), unclear=unclear)
            if path in self.inner:
                rest = self._read(ahead.operands, permuted=False)
                return replace(
                    rest,
                    operands=_behind(path, rest),
                    flags=(*flags, *rest.flags),
                    unclear=unclear or rest.unclear,
                )
            argv = ahead.operands

    def _harmless(self, flags: Mapping[str, Sequence[Flag]], argv: Sequence[Word]) -> bool:
        # In one word with others `h` is no evidence: `-address=http://…` has one too.
        helps = HELP - self.not_help - self.valued
        if any(word in flags and (self.slashes or word in argv) for word in helps):
            return True
        if argv[1:2] and (argv[1] in VERSION or (argv[1] == "-V" and len(argv) == 2)):
            return True
        return any(self._rehearses(name, flags) for name in flags)

    def _rehearses(self, name: str, flags: Mapping[str, Sequence[Flag]]) -> bool:
        if name not in REHEARSAL and name not in self.harmless:
            return False
        meant = all(flag.value is None or flag.value.casefold() not in MEANT for flag in flags[name])
        return meant and f"--no-{name.lstrip('-')}" not in flags


def _module(argv: Sequence[Word]) -> tuple[Word, ...] | None:
    words = iter(argv[1:])
    for word in words:
        found = _DASH_M.fullmatch(word)
        if found:
            module = Word(found[1]) if found[1] else next(words, None)
            return None if module is None else (module, *words)
        if not word.startswith("-"):
            break
        if word in ("-W", "-X"):
            next(words, None)
    return None


def _values_in_front(argv: Sequence[Word], operands: Sequence[Word]) -> int:
    """How many operands stand right behind an option and cannot be the name of a subcommand."""
    count = 0
    for before, word in pairwise(argv[:MOST_IN_FRONT]):
        if count == len(operands):
            break
        if word is operands[count]:
            if not before.startswith("-") or _NAME.fullmatch(word):
                break
            count += 1
    return count


def _behind(path: Iterable[str], options: Options) -> tuple[Word, ...]:
    return (*map(Word, path), *options.operands)


def _slashed(argv: Sequence[Word]) -> Options:
    flags: list[Flag] = []
    operands: list[Word] = []
    for word in argv[1:]:
        shown = word.shown  # `/?` is a pattern to a shell
        if _SLASHED.fullmatch(shown) or (len(word) > 1 and word.startswith("-")):
            name, colon, value = shown.partition(":")
            flags.append(Flag(name.casefold(), Word(value) if colon else None))
        else:
            operands.append(word)
    return Options(tuple(operands), tuple(flags), abbreviated=False)
