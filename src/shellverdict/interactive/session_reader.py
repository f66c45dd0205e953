"""A walk through shell code that is typed bit by bit. It notes the programs that read from the same input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from shellverdict.interactive.programs import interactive_language
from shellverdict.shell.grammar import Budget
from shellverdict.shell.reader import ShellReader
from shellverdict.shell.reading import BranchPolicy, CommandReading, ExecutionContext
from shellverdict.shell.runs import ProgramRun, TextStream
from shellverdict.shell.state import ShellState
from shellverdict.shell.streams import UNKNOWN_STREAM
from shellverdict.shell.tree import Script
from shellverdict.shell.values import join_value
from shellverdict.shell.words import Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["TYPED", "SessionReader", "WaitingProgram"]

TYPED = TextStream(None, is_interactive=True)
"""The input of the process."""


@dataclass(frozen=True, slots=True)
class WaitingProgram:
    """A program that takes its commands from the input of the process."""

    language: str
    state: ShellState
    context: ExecutionContext
    name: str = ""
    expands_history: bool = False


@dataclass(slots=True)
class _SeenFindings:
    runs: set[object] = field(default_factory=set)
    effects: set[CommandEffect] = field(default_factory=set)


class SessionReader(ShellReader):
    """Reads one unit after the other with the same memory."""

    def __init__(
        self,
        reading: CommandReading,
        budget: Budget,
        is_confidential: Callable[[ProgramRun], bool],
        branch_policy: BranchPolicy,
    ) -> None:
        super().__init__(reading, budget, is_confidential, (0, 0), branch_policy)
        self.reading, self.budget = reading, budget
        self.prompts: list[WaitingProgram] = []
        self._repeated: list[Callable[[], TextStream]] = []
        self._seen = _SeenFindings()

    def run_unit(self, script: Script, state: ShellState, context: ExecutionContext) -> list[WaitingProgram]:
        """Walk through one complete unit; the programs that read on are returned, the first one first."""
        self.prompts = []
        self._analyze_script(script, state, context)
        self._repeat_traps(state)
        return self.prompts

    def look_at(self, script: Script, state: ShellState, context: ExecutionContext) -> None:
        """Note what a script would do, and leave no trace in the state."""
        self._analyze_script(script, state.copy(), context)
        self._deferred_code.clear()

    def look_at_text(self, text: str, state: ShellState, context: ExecutionContext) -> list[WaitingProgram]:
        """The same for text; its prompts are returned."""
        self.prompts = []
        self.analyze_text(text, state.copy(), context)
        return self.prompts

    def see(self, kind: EffectKind, text: str, detail: str) -> None:
        self._add_effect(kind, Word(text[:200]), detail=detail)

    def _repeat_traps(self, state: ShellState) -> None:
        """Follow code that runs later or repeatedly, with the variables of now. Each finding counts once."""
        self._repeated += self._deferred_code
        self._deferred_code.clear()
        for follow in self._repeated:
            runs, effects, before = len(self._reading.runs), len(self._reading.effects), state.copy()
            follow()
            state.replace_with(before)
            self._keep_new(runs, effects)
        self._deferred_code.clear()

    def _keep_new(self, first_run: int, first_effect: int) -> None:
        reading, seen = self._reading, self._seen
        runs, effects = reading.runs[first_run:], reading.effects[first_effect:]
        reading.runs[first_run:] = [each for each in runs if (each.argv, each.cwd) not in seen.runs]
        reading.effects[first_effect:] = [each for each in effects if each not in seen.effects]
        seen.runs |= {(each.argv, each.cwd) for each in runs}
        seen.effects |= set(effects)

    def _check_hook_variable(
        self, name: str, value: Word, state: ShellState, context: ExecutionContext
    ) -> None:
        if name != "PROMPT_COMMAND":
            super()._check_hook_variable(name, value, state, context)
            return
        deeper = replace(context, depth=context.depth + 1)
        self._deferred_code.append(
            lambda: self.analyze_text(
                join_value(state.variables.get("PROMPT_COMMAND", value)), state.copy(), deeper
            )
        )

    def _record_run(
        self, run: ProgramRun, context: ExecutionContext, state: ShellState | None = None
    ) -> TextStream:
        known = len(self.prompts)
        printed = super()._record_run(run, context, state)
        if state is None or run.stdin is None or not run.stdin.is_interactive:
            return printed
        if _repeats_history(run):
            self.see(EffectKind.UNREADABLE, str(run.name), "it runs or changes earlier commands")
        if len(self.prompts) == known and (language := interactive_language(run)):
            self._prompt(language, run, state.create_child(run.env_assignments), context)
        return printed

    def _await_input(
        self, language: str, run: ProgramRun, state: ShellState, context: ExecutionContext
    ) -> TextStream:
        self._prompt(interactive_language(run) or language, run, state, context)
        return UNKNOWN_STREAM

    def _prompt(self, language: str, run: ProgramRun, state: ShellState, context: ExecutionContext) -> None:
        inside = replace(
            context, stdin=TYPED, call_stack=(), background=False, in_endless_loop=False, depth=1
        )
        interactive = any(word.startswith("-") and "i" in word for word in run.argv[1:])
        self.prompts.append(WaitingProgram(language, state.copy(), inside, str(run.name), interactive))


def _repeats_history(run: ProgramRun) -> bool:
    """Whether it runs an earlier command again, or changes what the earlier commands seem to have been."""
    if run.name == "history":
        return any(word.startswith(("-s", "-p", "-r")) for word in run.argv[1:])
    return run.name == "fc" and not any(word.startswith("-l") for word in run.argv[1:])
