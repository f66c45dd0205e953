"""Define danger rules: their conditions, and the finding that a match produces."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from shellverdict.rules.program_syntax import ParsedArguments
from shellverdict.rules.rule_patterns import (
    Glob,
    MatchResult,
    OptionPattern,
    SubcommandPattern,
    WordPattern,
    is_glob,
)
from shellverdict.shell.runs import ProgramRun, Taint
from shellverdict.shell.words import EMPTY, GAP, Word
from shellverdict.verdict import CommandEffect, EffectKind, Finding, Severity

__all__ = ["PLACEHOLDER", "EffectCondition", "Rule", "RunCondition"]

PLACEHOLDER: Final = re.compile(r"\{([a-z]+)\}")
MAX_SHOWN_CHARS: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectCondition:
    """Condition of a rule on an effect: its kind, its traits and its target.

    `known` requires that the whole target is (or is not) known text; `detail` and `no_detail` match the
    description of the effect that is shown to people.
    """

    kind: EffectKind
    traits: frozenset[str] = frozenset()
    any_trait: frozenset[str] = frozenset()
    no_trait: frozenset[str] = frozenset()
    target: WordPattern | None = None
    known: bool | None = None
    detail: WordPattern | None = None
    no_detail: WordPattern | None = None

    def matches(self, effect: CommandEffect) -> bool:
        return (
            effect.kind is self.kind
            and self.traits <= effect.traits
            and (not self.any_trait or not self.any_trait.isdisjoint(effect.traits))
            and self.no_trait.isdisjoint(effect.traits)
            and (self.target is None or self.target.matches(effect.target))
            and (self.known is None or self.known is (GAP not in effect.target))
            and (self.detail is None or self.detail.matches(effect.detail))
            and (self.no_detail is None or not self.no_detail.matches(effect.detail))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCondition:
    """Condition of a rule on a program that is run: its name, subcommand, options and context.

    All conditions that are set must hold. `words`: subcommands, one of which the operands must start with.
    `operand`, `no_operand`: the operands after the subcommand. `bare`: whether there are any. `through`:
    wrappers that run the program. `fed`: origin of its standard input. `input`: the text of its standard
    input. `assigned`: environment variables, one of which must match. `fallback`: applies only if no other
    rule matches. `always`: applies to every run, even if it only shows help or has no arguments.
    """

    programs: tuple[str, ...]
    no_programs: frozenset[str] = frozenset()
    always: bool = False
    words: tuple[SubcommandPattern, ...] = ()
    no_words: tuple[SubcommandPattern, ...] = ()
    any_option: tuple[OptionPattern, ...] = ()
    all_options: tuple[OptionPattern, ...] = ()
    no_option: tuple[OptionPattern, ...] = ()
    operand: WordPattern | None = None
    no_operand: WordPattern | None = None
    bare: bool | None = None
    through: frozenset[str] = frozenset()
    elsewhere: bool | None = None
    fed: frozenset[Taint] = frozenset()
    input: WordPattern | None = None
    fallback: bool = False
    assigned: Mapping[str, WordPattern] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def valued_options(self) -> frozenset[str]:
        """Return the options whose values the rule's condition checks."""
        options = (*self.any_option, *self.all_options, *self.no_option)
        return frozenset(each.name for each in options if each.value is not None)

    def match(self, run: ProgramRun, arguments: ParsedArguments) -> MatchResult:
        if not self._matches_context(run) or arguments.has_any_option(self.no_option):
            return MatchResult.NO
        if not all(arguments.has_any_option((each,)) for each in self.all_options):
            return MatchResult.NO
        option_result = MatchResult.YES if not self.any_option else arguments.match_options(self.any_option)
        return min(option_result, self._match_words(run, arguments)) if option_result else MatchResult.NO

    def _matches_context(self, run: ProgramRun) -> bool:
        return (
            (self.elsewhere is None or self.elsewhere is run.is_remote)
            and (not self.through or not self.through.isdisjoint(run.wrappers))
            and (not self.fed or (run.stdin is not None and not self.fed.isdisjoint(run.stdin.taints)))
            and (self.input is None or self._matches_input(run))
            and (not self.assigned or any(self._matches_assignment(run, name) for name in self.assigned))
        )

    def _matches_input(self, run: ProgramRun) -> bool:
        text = run.stdin.text if run.stdin is not None else None
        return text is not None and self.input is not None and self.input.matches(text.strip())

    def _matches_assignment(self, run: ProgramRun, name: str) -> bool:
        if not is_glob(name):
            return name in run.env_assignments and self.assigned[name].matches(run.env_assignments[name])
        glob, choice = Glob.parse(name), self.assigned[name]
        return any(
            glob.matches(each) and choice.matches(value) for each, value in run.env_assignments.items()
        )

    def _match_words(self, run: ProgramRun, arguments: ParsedArguments) -> MatchResult:
        if any(
            path.match_operands(arguments.operands, more=False)[0] is MatchResult.YES
            for path in self.no_words
        ):
            return MatchResult.NO
        if not self.words:
            return (
                MatchResult.YES
                if self._matches_operands(arguments.operands, run.has_unknown_operands)
                else MatchResult.NO
            )
        if "help" in arguments.operands[:1]:
            return MatchResult.NO
        result = max(self._match_subcommand(path, arguments.operands, run) for path in self.words)
        if result is MatchResult.NO and arguments.leading_values:
            after_values = arguments.operands[arguments.leading_values :]
            result = max(self._match_subcommand(path, after_values, run) for path in self.words)
        return result

    def _match_subcommand(
        self, path: SubcommandPattern, operands: Sequence[Word], run: ProgramRun
    ) -> MatchResult:
        result, length = path.match_operands(operands, more=run.has_unknown_operands)
        if result is MatchResult.NO or not self._matches_operands(
            operands[length:], run.has_unknown_operands
        ):
            return MatchResult.NO
        return result

    def _matches_operands(self, rest: Sequence[Word], more: bool) -> bool:
        return (
            (self.bare is None or self.bare is not (bool(rest) or more))
            and (self.operand is None or any(map(self.operand.matches, rest)))
            and (self.no_operand is None or not any(map(self.no_operand.matches, rest)))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A danger rule: a condition on commands, and the severity and description of its findings."""

    name: str
    category: str
    severity: Severity
    description: str
    condition: EffectCondition | RunCondition
    blocked: bool = False
    matches: tuple[str, ...] = ()
    must_not_match: tuple[str, ...] = ()

    @property
    def matches_runs(self) -> bool:
        """Return True if the rule applies to programs and their arguments, not to effects."""
        return isinstance(self.condition, RunCondition)

    def make_finding(
        self, span: tuple[int, int], *, program: Word = EMPTY, target: Word = EMPTY, words: str = ""
    ) -> Finding:
        values = {
            "program": _printable(program.display_text),
            "target": _printable(target.display_text),
            "words": _printable(words),
        }
        reason = PLACEHOLDER.sub(
            lambda m: values.get(m[1], m[0]) or PLACEHOLDER_DEFAULTS[m[1]], self.description
        )
        return Finding(self.name, self.category, self.severity, reason, span, self.blocked)


PLACEHOLDER_DEFAULTS: Final = {
    "program": "the program",
    "target": "an unnamed target",
    "words": "this",
}


def _printable(text: str) -> str:
    """Shorten text for display, and replace non-printable characters, which could disguise it."""
    shortened = text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 1] + "…"
    return "".join(c if c.isprintable() else "\ufffd" for c in shortened)
