"""Rules that describe dangerous commands, and the engine that matches commands against them.

A rule is data: it matches an effect (recursive deletion in a system directory) or the arguments of a program
(`git push --force`). The built-in rules are the TOML files beside this module. The effects of a command are
determined elsewhere; rules add a name, a severity and a reason.
"""

from __future__ import annotations

import functools
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shellverdict.errors import RuleError
from shellverdict.rules.loading import load_builtin_tables, read_program, read_rule, read_rule_file
from shellverdict.rules.program_syntax import ParsedArguments, ProgramSyntax, known_names
from shellverdict.rules.rule import EffectCondition, Rule, RunCondition
from shellverdict.rules.rule_patterns import Glob, MatchResult, is_glob
from shellverdict.shell.runs import ProgramRun
from shellverdict.shell.words import Word
from shellverdict.verdict import CommandEffect, EffectKind, Finding, Severity

__all__ = ["Rule", "Rules", "builtin_rules", "load_rules"]

UNKNOWN_SUBCOMMAND: Final = Rule(
    name="unknown-subcommand",
    category="unreadable",
    severity=Severity.LOW,
    description="the subcommand of {program} is not known, and {program} has destructive subcommands",
    condition=RunCondition(programs=("*",)),
)


class Rules:
    """A set of danger rules, indexed by program and by kind of effect."""

    def __init__(self, rules: Iterable[Rule], programs: Mapping[str, ProgramSyntax] | None = None) -> None:
        self.rules = tuple(rules)
        _check_unique_names(self.rules)
        self._programs = _add_option_values(programs or {}, self.rules)
        self._by_kind = _group_by_kind(self.rules)
        self._always = [
            (r, r.condition)
            for r in self.rules
            if isinstance(r.condition, RunCondition) and r.condition.always
        ]
        self._by_program = _group_by_program(self.rules)
        self._globs = [(Glob.parse(name), name) for name in self._by_program if is_glob(name)]
        self._indexes: dict[str, _RuleIndex] = {}

    @classmethod
    def shipped(cls) -> Rules:
        """Load the built-in rules from their files, without the cache of `builtin_rules`."""
        programs, rules = load_builtin_tables()
        return cls((read_rule(table) for table in rules), _read_programs(programs))

    @classmethod
    def from_tables(cls, tables: Sequence[Mapping[str, Any]]) -> Rules:
        """Read danger rules from parsed TOML tables of the configuration or of a plugin.

        Raises RuleError, naming the invalid rule and key.
        """
        return cls(read_rule(table, number) for number, table in enumerate(tables))

    def merge(self, more: Rules) -> Rules:
        """Return a rule set with the rules of both sets; rule names must be unique."""
        if not more.rules and not more._programs:
            return self
        if not self.rules and not self._programs:
            return more
        programs = dict(self._programs)
        for name, program in more._programs.items():
            programs[name] = programs[name].merge(program) if name in programs else program
        return Rules((*self.rules, *more.rules), programs)

    def match_effect(self, effect: CommandEffect) -> Iterator[Finding]:
        """Yield a finding for every rule that matches an effect."""
        for rule, condition in self._by_kind.get(effect.kind, ()):
            if condition.matches(effect):
                yield rule.make_finding(effect.span, target=effect.target, words=effect.detail)

    def match_run(self, run: ProgramRun) -> Iterator[Finding]:
        """Yield a finding for every rule that matches a program and its arguments."""
        for rule, condition in self._always:
            if condition.match(run, NO_ARGUMENTS) is MatchResult.YES:
                yield _make_finding(rule, run, NO_ARGUMENTS)
        if not run.name.is_known:
            return
        resolved = self._programs.get(self._known_name(run.name), DEFAULT_SYNTAX).resolve_module(run)
        name = self._known_name(resolved.name)
        indexes = list(self._indexes_for(name, resolved))
        if not indexes:
            return
        arguments = self._programs.get(name, DEFAULT_SYNTAX).parse(resolved)
        if arguments.is_harmless:
            return
        results = [
            (condition.match(resolved, arguments), condition.fallback, rule)
            for rule, condition in _candidate_rules(indexes, arguments)
            if condition.no_programs.isdisjoint(known_names(resolved.name))
        ]
        for rule in _select_rules(results):
            yield _make_finding(rule, resolved, arguments)

    def _known_name(self, name: Word) -> str:
        names = known_names(name)
        return next((each for each in names if each in self._by_program or each in self._programs), names[-1])

    def _indexes_for(self, name: str, run: ProgramRun) -> Iterator[_RuleIndex]:
        """Yield the rule indexes for a program: by its name, and by glob patterns that match the name."""
        if name in self._by_program:
            yield self._index_for(name)
        if len(run.argv) > 1 or run.env_assignments:
            yield from (self._index_for(each) for glob, each in self._globs if glob.matches(name))

    def _index_for(self, name: str) -> _RuleIndex:
        """Return the index of the rules for a program name; it is built on first use."""
        if name not in self._indexes:
            self._indexes[name] = _build_index(self._by_program[name])
        return self._indexes[name]


@functools.cache  # the files belong to the package and do not change while it is in use
def builtin_rules() -> Rules:
    """Return the built-in danger rules, which are read on the first call."""
    return Rules.shipped()


def load_rules(path: str | os.PathLike[str]) -> Rules:
    """Load additional danger rules from a TOML file in the same format as the built-in rule files.

    Raises RuleError, which names the file, the rule and the key, if it cannot be read or a rule is invalid.
    """
    try:
        programs, rules = read_rule_file(Path(path))
        added = Rules(
            (read_rule(table, number) for number, table in enumerate(rules)), _read_programs(programs)
        )
        _check_unique_names((*builtin_rules().rules, *added.rules))
    except RuleError as error:
        raise error.with_file(os.fspath(path)) from None
    return added


DEFAULT_SYNTAX: Final = ProgramSyntax()
NO_ARGUMENTS: Final = ParsedArguments(flags={}, operands=())


@dataclass(frozen=True, slots=True)
class _RuleIndex:
    """Index of the danger rules for one program, by the first word of the subcommand that a rule matches."""

    by_word: Mapping[str, Sequence[tuple[Rule, RunCondition]]]
    others: Sequence[tuple[Rule, RunCondition]]

    def rules_starting_with(self, word: Word | None) -> Iterable[tuple[Rule, RunCondition]]:
        if word is None or not word.is_known:
            return {
                rule.name: (rule, condition) for pairs in self.by_word.values() for rule, condition in pairs
            }.values()
        return self.by_word.get(word.casefold(), ())


def _candidate_rules(
    indexes: Iterable[_RuleIndex], arguments: ParsedArguments
) -> Iterator[tuple[Rule, RunCondition]]:
    first = (
        arguments.operands[arguments.leading_values]
        if len(arguments.operands) > arguments.leading_values
        else None
    )
    for index in indexes:
        yield from index.rules_starting_with(first)
        if arguments.leading_values:
            yield from index.rules_starting_with(arguments.operands[0])
        yield from index.others


def _select_rules(results: Sequence[tuple[MatchResult, bool, Rule]]) -> list[Rule]:
    """Return the rules that certainly match; fallback rules are included only if no other rule matches.

    If none certainly matches but one may, return the rule for unknown subcommands.
    """
    certain = [(fallback, rule) for result, fallback, rule in results if result is MatchResult.YES]
    if certain:
        return [rule for fallback, rule in certain if not fallback] or [rule for _, rule in certain]
    is_possible = any(result is MatchResult.MAYBE for result, fallback, _ in results if not fallback)
    return [UNKNOWN_SUBCOMMAND] if is_possible else []


def _make_finding(rule: Rule, run: ProgramRun, arguments: ParsedArguments) -> Finding:
    words = " ".join(word.display_text for word in arguments.operands[:3])
    target = arguments.operands[-1] if arguments.operands else Word("")
    return rule.make_finding(run.span, program=run.name, target=target, words=words)


def _check_unique_names(rules: Sequence[Rule]) -> None:
    seen: set[str] = set()
    for rule in rules:
        if rule.name in seen:
            problem = f"two rules have the name {rule.name!r}"
            raise RuleError(problem, key="name", rule=rule.name, hint="rename one of them")
        seen.add(rule.name)


def _read_programs(tables: Iterable[Mapping[str, Any]]) -> dict[str, ProgramSyntax]:
    programs: dict[str, ProgramSyntax] = {}
    for names, program in map(read_program, tables):
        for name in names:
            programs[name] = programs[name].merge(program) if name in programs else program
    return programs


def _add_option_values(
    programs: Mapping[str, ProgramSyntax], rules: Iterable[Rule]
) -> dict[str, ProgramSyntax]:
    """Return each program's command-line syntax, with the options added that rules expect to have values."""
    valued: defaultdict[str, set[str]] = defaultdict(set)
    for rule in rules:
        if isinstance(rule.condition, RunCondition):
            for name in rule.condition.programs:
                valued[name].update(rule.condition.valued_options)
    known = {name: ProgramSyntax(valued=frozenset(options)) for name, options in valued.items() if options}
    return {**programs, **{name: each.merge(programs.get(name, each)) for name, each in known.items()}}


def _group_by_kind(rules: Iterable[Rule]) -> dict[EffectKind, list[tuple[Rule, EffectCondition]]]:
    grouped: defaultdict[EffectKind, list[tuple[Rule, EffectCondition]]] = defaultdict(list)
    for rule in rules:
        if isinstance(rule.condition, EffectCondition):
            grouped[rule.condition.kind].append((rule, rule.condition))
    return dict(grouped)


def _group_by_program(rules: Iterable[Rule]) -> dict[str, list[tuple[Rule, RunCondition]]]:
    grouped: defaultdict[str, list[tuple[Rule, RunCondition]]] = defaultdict(list)
    for rule in rules:
        if isinstance(rule.condition, RunCondition):
            for name in rule.condition.programs:
                grouped[name].append((rule, rule.condition))
    return dict(grouped)


def _build_index(pairs: Iterable[tuple[Rule, RunCondition]]) -> _RuleIndex:
    by_word: defaultdict[str, list[tuple[Rule, RunCondition]]] = defaultdict(list)
    others: list[tuple[Rule, RunCondition]] = []
    for rule, condition in pairs:
        first_words = [path.first_words for path in condition.words]
        if first_words and all(first_words):
            for word in frozenset().union(*first_words):
                by_word[word].append((rule, condition))
        else:
            others.append((rule, condition))
    return _RuleIndex(dict(by_word), others)
