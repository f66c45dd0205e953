"""Command-line syntax of programs: options that take values, end of options, dry-run options.

Splits the arguments of a run into options and operands, so that a rule for `kubectl delete` matches whatever
options are between the two words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from shellverdict.options import Flag, Options
from shellverdict.rules.rule_patterns import MatchResult, OptionPattern
from shellverdict.shell.runs import ProgramRun
from shellverdict.shell.words import Word

__all__ = ["ParsedArguments", "ProgramSyntax", "known_names"]

MAX_USES_PER_OPTION: Final = 500  # the rest is ignored
MAX_WORDS_BEFORE_SUBCOMMAND: Final = 40
HELP_OPTIONS: Final = frozenset({"--help", "-help", "-h", "/?"})
DRY_RUN_OPTIONS: Final = frozenset(
    {"--dry-run", "--dryrun", "--what-if", "--whatif", "-whatif", "--no-act", "--simulate", "--just-print"}
)
VERSION_OPTIONS: Final = frozenset({"--version", "-version"})
DISABLING_VALUES: Final = frozenset({"false", "none", "no", "0"})

_VERSION_SUFFIX = re.compile(r"(?<=[a-z])[-_]?\d+(?:\.\d+)*$")
_SUFFIX = re.compile(r"\.(?:exe|cmd|bat|com)$")
_DASH_M = re.compile(r"-[A-LN-Za-ln-z]{0,8}m(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z][A-Za-z:_-]*")
_WINDOWS_OPTION = re.compile(r"/[A-Za-z?][\w?:-]{0,12}")


def known_names(name: str) -> tuple[str, ...]:
    """Return the spellings of a program name that rules may use: as is, without `.exe`, without version."""
    lower = _SUFFIX.sub("", name.casefold())
    return tuple(dict.fromkeys((name, lower, _VERSION_SUFFIX.sub("", lower))))


@dataclass(frozen=True, slots=True)
class ParsedArguments:
    """Arguments of a program: its options by name, and its operands.

    The first `leading_values` operands look like values of options that are not known to take one.
    """

    flags: Mapping[str, Sequence[Flag]]
    operands: tuple[Word, ...]
    abbreviated: bool = False
    is_uncertain: bool = False
    is_harmless: bool = False
    leading_values: int = 0

    def has_any_option(self, wanted: Iterable[OptionPattern]) -> bool:
        return any(each.matches(self.flags, abbreviated=self.abbreviated) for each in wanted)

    def match_options(self, wanted: Sequence[OptionPattern]) -> MatchResult:
        if self.has_any_option(wanted):
            return MatchResult.YES
        return MatchResult.MAYBE if self.is_uncertain else MatchResult.NO


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSyntax:
    """Command-line syntax of one program or of several related programs.

    `valued`: options whose value may be the next word. `exact`: `-name` is one option, not four letters.
    `leading`: the first operand ends the options. `inner`: subcommands after which the arguments of another
    program follow. `slashes`: options are written as on Windows. `harmless`: additional dry-run options.
    `not_help`: usual help options that mean something else here. `modules`: `-m` names the program to run.
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

    def merge(self, other: ProgramSyntax) -> ProgramSyntax:
        return ProgramSyntax(
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

    def resolve_module(self, run: ProgramRun) -> ProgramRun:
        """Return the program that `python -m` stands for: `python -m pip` is `pip`."""
        argv = _module_arguments(run.argv) if self.modules else None
        return run if argv is None else replace(run, argv=argv)

    def parse(self, run: ProgramRun) -> ParsedArguments:
        options = self._parse_options(run.argv)
        flags: dict[str, list[Flag]] = {}
        for flag in options.flags:
            flags.setdefault(flag.name, []).append(flag)
        is_uncertain = options.has_unknown_option
        for name, uses in flags.items():
            if len(uses) > MAX_USES_PER_OPTION:
                flags[name], is_uncertain = uses[:MAX_USES_PER_OPTION], True
        if "--" in run.argv:
            flags["--"] = [Flag("--")]
        is_harmless = self._is_harmless(flags, run.argv)
        leading_values = _count_leading_values(run.argv, options.operands)
        return ParsedArguments(
            flags, options.operands, options.abbreviated, is_uncertain, is_harmless, leading_values
        )

    def _parse_options(self, argv: Sequence[Word]) -> Options:
        if self.slashes:
            return _parse_windows_options(argv)
        if not self.inner:
            return self._parse_words(argv, permuted=not self.leading)
        return self._parse_subcommands(argv)

    def _parse_words(self, argv: Sequence[Word], *, permuted: bool) -> Options:
        return Options.parse(
            argv, self.valued, clusters=not self.exact, abbreviated=self.abbreviated, permuted=permuted
        )

    def _parse_subcommands(self, argv: Sequence[Word]) -> Options:
        """Parse nested subcommands and their options.

        Stops at a subcommand such as `docker exec`, after which the arguments of another program follow.
        """
        path: tuple[str, ...] = ()
        flags: list[Flag] = []
        is_uncertain = False
        while True:
            parsed = self._parse_words(argv, permuted=False)
            path = (*path, *parsed.operands[:1])
            expects_inner = any(path == inner[: len(path)] for inner in self.inner)
            last = parsed if expects_inner else self._parse_words(argv, permuted=True)
            flags.extend(last.flags)
            is_uncertain = is_uncertain or last.has_unknown_option
            if not expects_inner or len(parsed.operands) < 2:
                return replace(
                    last,
                    operands=_prepend_path(path[:-1], last),
                    flags=tuple(flags),
                    has_unknown_option=is_uncertain,
                )
            if path in self.inner:
                rest = self._parse_words(parsed.operands, permuted=False)
                return replace(
                    rest,
                    operands=_prepend_path(path, rest),
                    flags=(*flags, *rest.flags),
                    has_unknown_option=is_uncertain or rest.has_unknown_option,
                )
            argv = parsed.operands

    def _is_harmless(self, flags: Mapping[str, Sequence[Flag]], argv: Sequence[Word]) -> bool:
        # A clustered `h` does not mean help: `-address=http://…` contains one too.
        help_options = HELP_OPTIONS - self.not_help - self.valued
        if any(word in flags and (self.slashes or word in argv) for word in help_options):
            return True
        if argv[1:2] and (argv[1] in VERSION_OPTIONS or (argv[1] == "-V" and len(argv) == 2)):
            return True
        return any(self._is_dry_run(name, flags) for name in flags)

    def _is_dry_run(self, name: str, flags: Mapping[str, Sequence[Flag]]) -> bool:
        if name not in DRY_RUN_OPTIONS and name not in self.harmless:
            return False
        is_enabled = all(
            flag.value is None or flag.value.casefold() not in DISABLING_VALUES for flag in flags[name]
        )
        return is_enabled and f"--no-{name.lstrip('-')}" not in flags


def _module_arguments(argv: Sequence[Word]) -> tuple[Word, ...] | None:
    words = iter(argv[1:])
    for word in words:
        matched = _DASH_M.fullmatch(word)
        if matched:
            module = Word(matched[1]) if matched[1] else next(words, None)
            return None if module is None else (module, *words)
        if not word.startswith("-"):
            break
        if word in ("-W", "-X"):
            next(words, None)
    return None


def _count_leading_values(argv: Sequence[Word], operands: Sequence[Word]) -> int:
    """Count the leading operands that are probably values of options, because each follows an option."""
    count = 0
    for before, word in pairwise(argv[:MAX_WORDS_BEFORE_SUBCOMMAND]):
        if count == len(operands):
            break
        if word is operands[count]:
            if not before.startswith("-") or _NAME.fullmatch(word):
                break
            count += 1
    return count


def _prepend_path(path: Iterable[str], options: Options) -> tuple[Word, ...]:
    return (*map(Word, path), *options.operands)


def _parse_windows_options(argv: Sequence[Word]) -> Options:
    flags: list[Flag] = []
    operands: list[Word] = []
    for word in argv[1:]:
        shown = word.display_text  # the shell treats `/?` as a wildcard
        if _WINDOWS_OPTION.fullmatch(shown) or (len(word) > 1 and word.startswith("-")):
            name, colon, value = shown.partition(":")
            flags.append(Flag(name.casefold(), Word(value) if colon else None))
        else:
            operands.append(word)
    return Options(tuple(operands), tuple(flags), abbreviated=False)
