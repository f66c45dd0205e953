"""Rules that name what somebody must see before it happens, and the engine that holds them against a command.

A rule is data: about an effect (`recursive deletion in a system directory`) or about a program's words
(`git push --force`). The shipped ones are the TOML files beside this module. What a command does is worked
out elsewhere; here it is only given a name, a severity and a reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shellverdict.errors import RuleError
from shellverdict.rules.globs import Answer, Glob, is_glob
from shellverdict.rules.loading import read_program, read_rule, shipped_tables
from shellverdict.rules.programs import Given, Program, bare_names
from shellverdict.rules.rule import AboutEffect, AboutRun, Rule
from shellverdict.shell.runs import Run
from shellverdict.shell.words import Word
from shellverdict.verdict import Effect, Finding, Kind, Severity

__all__ = ["Rule", "Rules"]

UNTOLD: Final = Rule(
    name="unknown-subcommand",
    category="unreadable",
    severity=Severity.LOW,
    description="what {program} is told to do cannot be read here, and it can destroy things",
    about=AboutRun(programs=("*",)),
)


class Rules:
    """A set of rules, found by program and by kind of effect, never by trying them all."""

    def __init__(self, rules: Iterable[Rule], programs: Mapping[str, Program] | None = None) -> None:
        self.rules = tuple(rules)
        _each_name_once(self.rules)
        self._programs = _with_values(programs or {}, self.rules)
        self._by_kind = _by_kind(self.rules)
        self._always = [(r, r.about) for r in self.rules if isinstance(r.about, AboutRun) and r.about.always]
        self._by_program = _by_program(self.rules)
        self._globs = [(Glob.of(name), name) for name in self._by_program if is_glob(name)]
        self._shelves: dict[str, _Shelf] = {}

    @classmethod
    def shipped(cls) -> Rules:
        """The rules that come with the package. Reads its files each time: keep what it gives."""
        programs, rules = shipped_tables()
        return cls((read_rule(table) for table in rules), _programs(programs))

    @classmethod
    def read(cls, tables: Sequence[Mapping[str, Any]]) -> Rules:
        """Rules out of a configuration or a plugin; a RuleError says what cannot be used, and where."""
        return cls(read_rule(table, number) for number, table in enumerate(tables))

    def plus(self, more: Rules) -> Rules:
        """These and others; a name can be taken only once."""
        programs = dict(self._programs)
        for name, program in more._programs.items():
            programs[name] = programs[name].merged(program) if name in programs else program
        return Rules((*self.rules, *more.rules), programs)

    def about_effect(self, effect: Effect) -> Iterator[Finding]:
        """What the rules say about one effect."""
        for rule, about in self._by_kind.get(effect.kind, ()):
            if about.meets(effect):
                yield rule.found(effect.span, target=effect.target, words=effect.detail)

    def about_run(self, run: Run) -> Iterator[Finding]:
        """What the rules say about one program and its words."""
        for rule, about in self._always:
            if about.asked(run, NOTHING_GIVEN) is Answer.YES:
                yield _found(rule, run, NOTHING_GIVEN)
        if not run.name.known:
            return
        meant = self._programs.get(self._known_as(run.name), PLAIN_PROGRAM).behind(run)
        name = self._known_as(meant.name)
        shelves = list(self._about(name, meant))
        if not shelves:
            return
        given = self._programs.get(name, PLAIN_PROGRAM).read(meant)
        if given.harmless:
            return
        answers = [
            (about.asked(meant, given), about.fallback, rule)
            for rule, about in _candidates(shelves, given)
            if about.no_programs.isdisjoint(bare_names(meant.name))
        ]
        for rule in _spoken(answers):
            yield _found(rule, meant, given)

    def _known_as(self, name: Word) -> str:
        names = bare_names(name)
        return next((each for each in names if each in self._by_program or each in self._programs), names[-1])

    def _about(self, name: str, run: Run) -> Iterator[_Shelf]:
        """The rules about this program; those about every program, where there is something to ask about."""
        if name in self._by_program:
            yield self._shelf(name)
        if len(run.argv) > 1 or run.assigned:
            yield from (self._shelf(each) for glob, each in self._globs if glob.meets(name))

    def _shelf(self, name: str) -> _Shelf:
        """Sorted when it is first asked for: most programs never are."""
        if name not in self._shelves:
            self._shelves[name] = _shelf(self._by_program[name])
        return self._shelves[name]


PLAIN_PROGRAM: Final = Program()
NOTHING_GIVEN: Final = Given(flags={}, operands=())


@dataclass(frozen=True, slots=True)
class _Shelf:
    """The rules about one program: those that begin with a certain word, and the others."""

    by_word: Mapping[str, Sequence[tuple[Rule, AboutRun]]]
    others: Sequence[tuple[Rule, AboutRun]]

    def beginning(self, word: Word | None) -> Iterable[tuple[Rule, AboutRun]]:
        if word is None or not word.known:
            return {
                rule.name: (rule, about) for pairs in self.by_word.values() for rule, about in pairs
            }.values()
        return self.by_word.get(word.casefold(), ())


def _candidates(shelves: Iterable[_Shelf], given: Given) -> Iterator[tuple[Rule, AboutRun]]:
    first = given.operands[given.in_front] if len(given.operands) > given.in_front else None
    for shelf in shelves:
        yield from shelf.beginning(first)
        if given.in_front:
            yield from shelf.beginning(given.operands[0])
        yield from shelf.others


def _spoken(answers: Sequence[tuple[Answer, bool, Rule]]) -> list[Rule]:
    """Those that are sure; else those that stand in for them; else one that says what is not known."""
    sure = [(fallback, rule) for answer, fallback, rule in answers if answer is Answer.YES]
    if sure:
        return [rule for fallback, rule in sure if not fallback] or [rule for _, rule in sure]
    perhaps = any(answer is Answer.PERHAPS for answer, fallback, _ in answers if not fallback)
    return [UNTOLD] if perhaps else []


def _found(rule: Rule, run: Run, given: Given) -> Finding:
    words = " ".join(word.shown for word in given.operands[:3])
    target = given.operands[-1] if given.operands else Word("")
    return rule.found(run.span, program=run.name, target=target, words=words)


def _each_name_once(rules: Sequence[Rule]) -> None:
    seen: set[str] = set()
    for rule in rules:
        if rule.name in seen:
            raise RuleError(f"two rules have the name {rule.name!r}", key="name", hint="rename one of them")
        seen.add(rule.name)


def _programs(tables: Iterable[Mapping[str, Any]]) -> dict[str, Program]:
    programs: dict[str, Program] = {}
    for names, program in map(read_program, tables):
        for name in names:
            programs[name] = programs[name].merged(program) if name in programs else program
    return programs


def _with_values(programs: Mapping[str, Program], rules: Iterable[Rule]) -> dict[str, Program]:
    """The programs, knowing that an option whose value some rule asks for has one."""
    valued: defaultdict[str, set[str]] = defaultdict(set)
    for rule in rules:
        if isinstance(rule.about, AboutRun):
            for name in rule.about.programs:
                valued[name].update(rule.about.valued)
    known = {name: Program(valued=frozenset(options)) for name, options in valued.items() if options}
    return {**programs, **{name: each.merged(programs.get(name, each)) for name, each in known.items()}}


def _by_kind(rules: Iterable[Rule]) -> dict[Kind, list[tuple[Rule, AboutEffect]]]:
    found: defaultdict[Kind, list[tuple[Rule, AboutEffect]]] = defaultdict(list)
    for rule in rules:
        if isinstance(rule.about, AboutEffect):
            found[rule.about.kind].append((rule, rule.about))
    return dict(found)


def _by_program(rules: Iterable[Rule]) -> dict[str, list[tuple[Rule, AboutRun]]]:
    found: defaultdict[str, list[tuple[Rule, AboutRun]]] = defaultdict(list)
    for rule in rules:
        if isinstance(rule.about, AboutRun):
            for name in rule.about.programs:
                found[name].append((rule, rule.about))
    return dict(found)


def _shelf(pairs: Iterable[tuple[Rule, AboutRun]]) -> _Shelf:
    by_word: defaultdict[str, list[tuple[Rule, AboutRun]]] = defaultdict(list)
    others: list[tuple[Rule, AboutRun]] = []
    for rule, about in pairs:
        firsts = [path.first for path in about.words]
        if firsts and all(firsts):
            for word in frozenset().union(*firsts):
                by_word[word].append((rule, about))
        else:
            others.append((rule, about))
    return _Shelf(dict(by_word), others)
