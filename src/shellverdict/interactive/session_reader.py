"""Analyze shell code that is typed piece by piece, and find programs that read the same input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from shellverdict.interactive.interactive_programs import interactive_language
from shellverdict.shell.budget import Budget
from shellverdict.shell.reader import ShellReader
from shellverdict.shell.reading import BranchPolicy, CommandReading, ExecutionContext
from shellverdict.shell.runs import ProgramRun, TextStream
from shellverdict.shell.state import ShellState
from shellverdict.shell.streams import UNKNOWN_STREAM
from shellverdict.shell.tree import Script
from shellverdict.shell.values import join_value
from shellverdict.shell.words import Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["PROCESS_INPUT", "SessionReader", "WaitingProgram"]

PROCESS_INPUT = TextStream(None, is_interactive=True)
"""Stands for the standard input of the running process, which programs started by it share."""


@dataclass(frozen=True, slots=True)
class WaitingProgram:
    """A program, started by typed shell code, that reads its commands from the input of the process."""

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
    """Reader that analyzes typed shell commands one by one and keeps the shell's state between them."""

    def __init__(
        self,
        reading: CommandReading,
        budget: Budget,
        is_confidential: Callable[[ProgramRun], bool],
        branch_policy: BranchPolicy,
    ) -> None:
        super().__init__(reading, budget, is_confidential, (0, 0), branch_policy)
        self.reading, self.budget = reading, budget
        self.waiting_programs: list[WaitingProgram] = []
        self._recurring_code: list[Callable[[], TextStream]] = []
        self._seen_findings = _SeenFindings()

    def run_commands(
        self, script: Script, state: ShellState, context: ExecutionContext
    ) -> list[WaitingProgram]:
        """Analyze complete shell commands; return the programs they start that read the same input."""
        self.waiting_programs = []
        self._analyze_script(script, state, context)
        self._analyze_recurring_code(state)
        return self.waiting_programs

    def preview_script(self, script: Script, state: ShellState, context: ExecutionContext) -> None:
        """Record the effects of a shell script without changing the shell state."""
        self._analyze_script(script, state.copy(), context)
        self._deferred_code.clear()

    def preview_text(self, text: str, state: ShellState, context: ExecutionContext) -> list[WaitingProgram]:
        """Record the effects of shell code without changing `state`.

        Returns the programs that the code starts and that read the next input lines.
        """
        self.waiting_programs = []
        self.analyze_text(text, state.copy(), context)
        return self.waiting_programs

    def add_effect(self, kind: EffectKind, text: str, detail: str) -> None:
        self._add_effect(kind, Word(text[:200]), detail=detail)

    def _analyze_recurring_code(self, state: ShellState) -> None:
        """Analyze code that the shell runs later or repeatedly, such as traps; record each effect once."""
        self._recurring_code += self._deferred_code
        self._deferred_code.clear()
        for analyze in self._recurring_code:
            runs, effects, before = len(self._reading.runs), len(self._reading.effects), state.copy()
            analyze()
            state.replace_with(before)
            self._drop_seen_findings(runs, effects)
        self._deferred_code.clear()

    def _drop_seen_findings(self, first_run: int, first_effect: int) -> None:
        reading, seen = self._reading, self._seen_findings
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
        known = len(self.waiting_programs)
        printed = super()._record_run(run, context, state)
        if state is None or run.stdin is None or not run.stdin.is_interactive:
            return printed
        if _repeats_history(run):
            self.add_effect(EffectKind.UNREADABLE, str(run.name), "it repeats or changes earlier commands")
        if len(self.waiting_programs) == known and (language := interactive_language(run)):
            self._add_waiting_program(language, run, state.create_child(run.env_assignments), context)
        return printed

    def _analyze_stream_code(
        self, stream: TextStream, language: str, run: ProgramRun, state: ShellState, context: ExecutionContext
    ) -> TextStream:
        if not stream.is_interactive:
            return super()._analyze_stream_code(stream, language, run, state, context)
        self._add_waiting_program(interactive_language(run) or language, run, state, context)
        return UNKNOWN_STREAM

    def _add_waiting_program(
        self, language: str, run: ProgramRun, state: ShellState, context: ExecutionContext
    ) -> None:
        inside = replace(
            context, stdin=PROCESS_INPUT, call_stack=(), background=False, in_endless_loop=False, depth=1
        )
        interactive = any(word.startswith("-") and "i" in word for word in run.argv[1:])
        self.waiting_programs.append(
            WaitingProgram(language, state.copy(), inside, str(run.name), interactive)
        )


def _repeats_history(run: ProgramRun) -> bool:
    """Return True if a command repeats an earlier command or changes the shell history."""
    if run.name == "history":
        return any(word.startswith(("-s", "-p", "-r")) for word in run.argv[1:])
    return run.name == "fc" and not any(word.startswith("-l") for word in run.argv[1:])
