"""A rule: what it looks for, and what a person is told when it is found. Pure data and pure questions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from shellverdict.rules.globs import Answer, Choice, Glob, OptionGlob, Path, is_glob
from shellverdict.rules.programs import Given
from shellverdict.shell.runs import Mark, Run
from shellverdict.shell.words import EMPTY, GAP, Word
from shellverdict.verdict import Effect, Finding, Kind, Severity

__all__ = ["PLACEHOLDER", "AboutEffect", "AboutRun", "Rule"]

PLACEHOLDER: Final = re.compile(r"\{([a-z]+)\}")
MOST_SHOWN: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class AboutEffect:
    """Asks for one kind of effect, for its traits, and for what it happens to.

    `known` asks that the whole name of the target can be read from the command; `detail` and `no_detail`
    are about the words that a person is shown.
    """

    kind: Kind
    traits: frozenset[str] = frozenset()
    any_trait: frozenset[str] = frozenset()
    no_trait: frozenset[str] = frozenset()
    target: Choice | None = None
    known: bool | None = None
    detail: Choice | None = None
    no_detail: Choice | None = None

    def meets(self, effect: Effect) -> bool:
        return (
            effect.kind is self.kind
            and self.traits <= effect.traits
            and (not self.any_trait or not self.any_trait.isdisjoint(effect.traits))
            and self.no_trait.isdisjoint(effect.traits)
            and (self.target is None or self.target.meets(effect.target))
            and (self.known is None or self.known is (GAP not in effect.target))
            and (self.detail is None or self.detail.meets(effect.detail))
            and (self.no_detail is None or not self.no_detail.meets(effect.detail))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AboutRun:
    """Asks for a program, for the words that choose what it does, for its options and surroundings.

    All that is given must hold. `words` are paths of subcommands, one of which the operands must begin with;
    `operand` and `no_operand` are about what follows them, and `bare` about whether anything does.
    `through` names programs it is run by, `fed` where what flows into it comes from, `input` what its text
    is, where that is known, `assigned` variables of its environment, one of which must fit. A `fallback`
    speaks only where no other rule does. One that is asked `always` is so of every run, also of one that
    only shows help or has no words.
    """

    programs: tuple[str, ...]
    no_programs: frozenset[str] = frozenset()
    always: bool = False
    words: tuple[Path, ...] = ()
    no_words: tuple[Path, ...] = ()
    any_option: tuple[OptionGlob, ...] = ()
    all_options: tuple[OptionGlob, ...] = ()
    no_option: tuple[OptionGlob, ...] = ()
    operand: Choice | None = None
    no_operand: Choice | None = None
    bare: bool | None = None
    through: frozenset[str] = frozenset()
    elsewhere: bool | None = None
    fed: frozenset[Mark] = frozenset()
    input: Choice | None = None
    fallback: bool = False
    assigned: Mapping[str, Choice] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def valued(self) -> frozenset[str]:
        """The options whose value it asks for."""
        options = (*self.any_option, *self.all_options, *self.no_option)
        return frozenset(each.name for each in options if each.value is not None)

    def asked(self, run: Run, given: Given) -> Answer:
        if not self._surrounded(run) or given.any(self.no_option):
            return Answer.NO
        if not all(given.any((each,)) for each in self.all_options):
            return Answer.NO
        optional = Answer.YES if not self.any_option else given.asked(self.any_option)
        return min(optional, self._worded(run, given)) if optional else Answer.NO

    def _surrounded(self, run: Run) -> bool:
        return (
            (self.elsewhere is None or self.elsewhere is run.elsewhere)
            and (not self.through or not self.through.isdisjoint(run.through))
            and (not self.fed or (run.stdin is not None and not self.fed.isdisjoint(run.stdin.marks)))
            and (self.input is None or self._told(run))
            and (not self.assigned or any(self._assigns(run, name) for name in self.assigned))
        )

    def _told(self, run: Run) -> bool:
        text = run.stdin.text if run.stdin is not None else None
        return text is not None and self.input is not None and self.input.meets(text.strip())

    def _assigns(self, run: Run, name: str) -> bool:
        if not is_glob(name):
            return name in run.assigned and self.assigned[name].meets(run.assigned[name])
        glob, choice = Glob.of(name), self.assigned[name]
        return any(glob.meets(each) and choice.meets(value) for each, value in run.assigned.items())

    def _worded(self, run: Run, given: Given) -> Answer:
        if any(path.asked(given.operands, more=False)[0] is Answer.YES for path in self.no_words):
            return Answer.NO
        if not self.words:
            return Answer.YES if self._followed(given.operands, run.more_operands) else Answer.NO
        if "help" in given.operands[:1]:
            return Answer.NO
        answer = max(self._along(path, given.operands, run) for path in self.words)
        if answer is Answer.NO and given.in_front:
            behind = given.operands[given.in_front :]
            answer = max(self._along(path, behind, run) for path in self.words)
        return answer

    def _along(self, path: Path, operands: Sequence[Word], run: Run) -> Answer:
        answer, length = path.asked(operands, more=run.more_operands)
        if answer is Answer.NO or not self._followed(operands[length:], run.more_operands):
            return Answer.NO
        return answer

    def _followed(self, rest: Sequence[Word], more: bool) -> bool:
        return (
            (self.bare is None or self.bare is not (bool(rest) or more))
            and (self.operand is None or any(map(self.operand.meets, rest)))
            and (self.no_operand is None or not any(map(self.no_operand.meets, rest)))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that somebody must see before it happens."""

    name: str
    category: str
    severity: Severity
    description: str
    about: AboutEffect | AboutRun
    blocked: bool = False
    matches: tuple[str, ...] = ()
    must_not_match: tuple[str, ...] = ()

    @property
    def of_run(self) -> bool:
        """Whether it is about a program's words, not about an effect."""
        return isinstance(self.about, AboutRun)

    def found(
        self, span: tuple[int, int], *, program: Word = EMPTY, target: Word = EMPTY, words: str = ""
    ) -> Finding:
        filled = {"program": _safe(program.shown), "target": _safe(target.shown), "words": _safe(words)}
        reason = PLACEHOLDER.sub(lambda m: filled.get(m[1], m[0]) or UNNAMED[m[1]], self.description)
        return Finding(self.name, self.category, self.severity, reason, span, self.blocked)


UNNAMED: Final = {"program": "the program", "target": "something that is not named", "words": "this"}


def _safe(text: str) -> str:
    """Short enough to be read, and without characters that could draw something else."""
    cut = text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 1] + "…"
    return "".join(c if c.isprintable() else "\ufffd" for c in cut)
