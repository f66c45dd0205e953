"""Possible states of a process: which programs wait for its input, and their variables and definitions.

A program may have failed to start, a word that exits one may have been redefined, a line may have been read
by another program. Each possibility is a `Scenario`; text is judged in all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from shellverdict.interactive.session_reader import WaitingProgram
from shellverdict.shell.reading import ExecutionContext
from shellverdict.shell.state import ShellState

__all__ = ["MAX_SCENARIOS", "InterpreterFrame", "Scenario", "merge_scenarios"]

MAX_SCENARIOS = 24


@dataclass(slots=True)
class InterpreterFrame:
    """Stack frame for one interpreter or shell that reads input lines: the program and its state."""

    language: str
    state: ShellState
    context: ExecutionContext
    name: str = ""
    expands_history: bool = False
    may_miss_lines: bool = False
    """True if another program may consume lines meant for this one, so that its state may be older."""
    unfinished_lines: str = ""
    """Shell lines that do not form a complete command yet."""
    has_earlier_lines: bool = False
    """True if some of the unfinished lines were written before the write that is being judged."""
    earlier_code: list[str] = field(default_factory=list)
    """Lines of a language other than shell that were written earlier."""
    new_code: list[str] = field(default_factory=list)
    uncertain_names: set[str] = field(default_factory=set)
    """Names that may have been redefined, because they occur in text that could not be parsed."""

    @classmethod
    def from_waiting_program(cls, prompt: WaitingProgram, *, pty: bool) -> InterpreterFrame:
        shell = prompt.language == "sh"
        return cls(
            prompt.language,
            prompt.state,
            prompt.context,
            prompt.name,
            expands_history=shell and (pty or prompt.expands_history),
        )

    def copy(self) -> InterpreterFrame:
        return replace(
            self,
            state=self.state.copy(),
            earlier_code=list(self.earlier_code),
            new_code=list(self.new_code),
            uncertain_names=set(self.uncertain_names),
        )

    @property
    def signature(self) -> object:
        """Return a value that is equal for two frames (programs with their state) that can be merged."""
        return (
            self.language,
            self.may_miss_lines,
            self.unfinished_lines,
            tuple(self.earlier_code),
            tuple(self.new_code),
        )


@dataclass(slots=True)
class Scenario:
    """Scenario: a possible stack of programs that wait for the input of a process, the innermost last."""

    stack: list[InterpreterFrame]
    is_most_likely: bool = False
    """True for the most likely scenario, the only one in which unparsable text is reported."""

    is_guess: bool = False
    """True if the scenario is only a guess; unparsable text is not reported in it."""

    @property
    def innermost(self) -> InterpreterFrame:
        return self.stack[-1]

    def copy(self, *, is_most_likely: bool = False) -> Scenario:
        return Scenario([frame.copy() for frame in self.stack], is_most_likely, self.is_guess)

    def without_innermost(self, *, is_most_likely: bool = False) -> Scenario:
        return Scenario([frame.copy() for frame in self.stack[:-1]], is_most_likely, self.is_guess)


def merge_scenarios(scenarios: Iterable[Scenario]) -> list[Scenario]:
    """Merge scenarios (possible states of a process) in which the same programs wait for input.

    Variables and definitions in which the scenarios differ become unknown.
    """
    merged: dict[object, Scenario] = {}
    for scenario in scenarios:
        if not scenario.stack:
            continue
        key = (scenario.is_most_likely, scenario.is_guess, *(frame.signature for frame in scenario.stack))
        if key in merged:
            for frame, other in zip(merged[key].stack, scenario.stack, strict=True):
                frame.state.merge(other.state)
                frame.uncertain_names |= other.uncertain_names
                frame.expands_history |= other.expands_history
        else:
            merged[key] = scenario
    return list(merged.values())
