"""How programs read their words: which options take a value, where options end, what makes a run harmless.

Turns the words of a run into options and operands, so that a rule can speak of `kubectl delete` whatever
stands between the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from toolfold.approval.options import Flag, Options
from toolfold.approval.rules.globs import Answer, OptionGlob
from toolfold.approval.shell.runs import Run
from toolfold.approval.shell.words import Word

__all__ = ["Given", "Program", "bare_names"]

HELP: Final = frozenset({"--help", "-help", "-h", "/?"})
REHEARSAL: Final = frozenset(
    {"--dry-run", "--dryrun", "--what-if", "--whatif", "-whatif", "--no-act", "--simulate", "--just-print"}
)
VERSION: Final = frozenset({"--version", "-V", "-version"})
MEANT: Final = frozenset({"false", "none", "no", "0"})

_VERSIONED = re.compile(r"(?<=[a-z])-?\d+(?:\.\d+)*$")
_SUFFIX = re.compile(r"\.(?:exe|cmd|bat|com)$")
_SLASHED = re.compile(r"/[A-Za-z?][\w?:-]{0,12}")


def bare_names(name: str) -> tuple[str, ...]:
    """The names a program may be known by: as written, without `.exe`, without its version."""
    lower = _SUFFIX.sub("", name.casefold())
    return tuple(dict.fromkeys((name, lower, _VERSIONED.sub("", lower))))


@dataclass(frozen=True, slots=True)
class Given:
    """What a program was given."""

    options: Options
    operands: tuple[Word, ...]
    harmless: bool = False

    def any(self, wanted: Iterable[OptionGlob]) -> bool:
        abbreviated = self.options.abbreviated
        return any(
            each.meets(flag, abbreviated=abbreviated) for each in wanted for flag in self.options.flags
        )

    def asked(self, wanted: Sequence[OptionGlob]) -> Answer:
        if self.any(wanted):
            return Answer.YES
        return Answer.PERHAPS if self.options.unclear else Answer.NO


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """How one program, or a family of them, reads its words.

    `valued` are the options whose value may be the next word. `exact` says that `-name` is one option, not
    four letters. `leading` says that the first operand ends the options, `inner` after which subcommands it
    does, because another program's words follow. `slashes` reads options as Windows does. `harmless` are
    the options, beside the usual ones, with which the program only shows what it would do, `not_help` the
    usual ones that mean something else to it.
    """

    valued: frozenset[str] = frozenset()
    harmless: frozenset[str] = frozenset()
    not_help: frozenset[str] = frozenset()
    inner: frozenset[tuple[str, ...]] = frozenset()
    exact: bool = False
    leading: bool = False
    abbreviated: bool = False
    slashes: bool = False

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
        )

    def read(self, run: Run) -> Given:
        options = self._options(run.argv)
        if "--" in run.argv:
            options = replace(options, flags=(*options.flags, Flag("--")))
        return Given(options, options.operands, self._harmless(options, run.argv))

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

    def _harmless(self, options: Options, argv: Sequence[Word]) -> bool:
        names = {flag.name for flag in options.flags}
        if not names.isdisjoint(HELP - self.not_help - self.valued):
            return True
        if len(argv) > 1 and argv[1] in VERSION:
            return True
        if "help" in options.operands[:1]:
            return True
        return any(self._rehearses(flag, names) for flag in options.flags)

    def _rehearses(self, flag: Flag, names: set[str]) -> bool:
        if flag.name not in REHEARSAL and flag.name not in self.harmless:
            return False
        meant = flag.value is None or flag.value.casefold() not in MEANT
        return meant and f"--no-{flag.name.lstrip('-')}" not in names


def _behind(path: Iterable[str], options: Options) -> tuple[Word, ...]:
    return (*map(Word, path), *options.operands)


def _slashed(argv: Sequence[Word]) -> Options:
    flags: list[Flag] = []
    operands: list[Word] = []
    for word in argv[1:]:
        if _SLASHED.fullmatch(word) or (len(word) > 1 and word.startswith("-")):
            name, colon, value = word.partition(":")
            flags.append(Flag(name.casefold(), Word(value) if colon else None))
        else:
            operands.append(word)
    return Options(tuple(operands), tuple(flags), abbreviated=False)
