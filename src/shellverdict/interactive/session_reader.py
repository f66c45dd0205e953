"""A walk through shell code that is typed bit by bit. It notes the programs that read from the same input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from shellverdict.interactive.programs import interactive_language
from shellverdict.shell.grammar import Budget
from shellverdict.shell.reader import ShellReader
from shellverdict.shell.runs import Run, Stream
from shellverdict.shell.state import State
from shellverdict.shell.streams import UNKNOWN
from shellverdict.shell.tree import Script
from shellverdict.shell.values import joined
from shellverdict.shell.walk import Around, Choice, Reading
from shellverdict.shell.words import Word
from shellverdict.verdict import Effect, Kind

__all__ = ["TYPED", "SessionReader", "WaitingProgram"]

TYPED = Stream(None, typed=True)
"""The input of the process."""


@dataclass(frozen=True, slots=True)
class WaitingProgram:
    """A program that takes its commands from the input of the process."""

    language: str
    state: State
    around: Around
    name: str = ""
    expands_history: bool = False


@dataclass(slots=True)
class _SeenFindings:
    runs: set[object] = field(default_factory=set)
    effects: set[Effect] = field(default_factory=set)


class SessionReader(ShellReader):
    """Reads one unit after the other with the same memory."""

    def __init__(
        self, reading: Reading, budget: Budget, confidential: Callable[[Run], bool], choice: Choice
    ) -> None:
        super().__init__(reading, budget, confidential, (0, 0), choice)
        self.reading, self.budget = reading, budget
        self.prompts: list[WaitingProgram] = []
        self._repeated: list[Callable[[], Stream]] = []
        self._seen = _SeenFindings()

    def run_unit(self, script: Script, state: State, around: Around) -> list[WaitingProgram]:
        """Walk through one complete unit; the programs that read on are returned, the first one first."""
        self.prompts = []
        self._script(script, state, around)
        self._repeat_traps(state)
        return self.prompts

    def look_at(self, script: Script, state: State, around: Around) -> None:
        """Note what a script would do, and leave no trace in the state."""
        self._script(script, state.copy(), around)
        self._traps.clear()

    def look_at_text(self, text: str, state: State, around: Around) -> list[WaitingProgram]:
        """The same for text; its prompts are returned."""
        self.prompts = []
        self.text(text, state.copy(), around)
        return self.prompts

    def see(self, kind: Kind, text: str, detail: str) -> None:
        self._see(kind, Word(text[:200]), detail=detail)

    def _repeat_traps(self, state: State) -> None:
        """Follow code that runs later or repeatedly, with the variables of now. Each finding counts once."""
        self._repeated += self._traps
        self._traps.clear()
        for follow in self._repeated:
            runs, effects, before = len(self._reading.runs), len(self._reading.effects), state.copy()
            follow()
            state.become(before)
            self._keep_new(runs, effects)
        self._traps.clear()

    def _keep_new(self, first_run: int, first_effect: int) -> None:
        reading, seen = self._reading, self._seen
        runs, effects = reading.runs[first_run:], reading.effects[first_effect:]
        reading.runs[first_run:] = [each for each in runs if (each.argv, each.cwd) not in seen.runs]
        reading.effects[first_effect:] = [each for each in effects if each not in seen.effects]
        seen.runs |= {(each.argv, each.cwd) for each in runs}
        seen.effects |= set(effects)

    def _hooked(self, name: str, value: Word, state: State, around: Around) -> None:
        if name != "PROMPT_COMMAND":
            super()._hooked(name, value, state, around)
            return
        deeper = replace(around, depth=around.depth + 1)
        self._traps.append(
            lambda: self.text(joined(state.variables.get("PROMPT_COMMAND", value)), state.copy(), deeper)
        )

    def _start(self, run: Run, around: Around, state: State | None = None) -> Stream:
        known = len(self.prompts)
        printed = super()._start(run, around, state)
        if state is None or run.stdin is None or not run.stdin.typed:
            return printed
        if _repeats_history(run):
            self.see(Kind.UNREADABLE, str(run.name), "it runs or changes earlier commands")
        if len(self.prompts) == known and (language := interactive_language(run)):
            self._prompt(language, run, state.child(run.assigned), around)
        return printed

    def _await_input(self, language: str, run: Run, state: State, around: Around) -> Stream:
        self._prompt(interactive_language(run) or language, run, state, around)
        return UNKNOWN

    def _prompt(self, language: str, run: Run, state: State, around: Around) -> None:
        inside = replace(around, stdin=TYPED, calls=(), background=False, repeated=False, depth=1)
        interactive = any(word.startswith("-") and "i" in word for word in run.argv[1:])
        self.prompts.append(WaitingProgram(language, state.copy(), inside, str(run.name), interactive))


def _repeats_history(run: Run) -> bool:
    """Whether it runs an earlier command again, or changes what the earlier commands seem to have been."""
    if run.name == "history":
        return any(word.startswith(("-s", "-p", "-r")) for word in run.argv[1:])
    return run.name == "fc" and not any(word.startswith("-l") for word in run.argv[1:])
