"""Replay the input of a process line by line, to find the effects of the text written last.

Lines go to the innermost program that reads. If it is uncertain which one that is, all candidates are tried
and the worst result counts. Effects of earlier lines are not reported again; their definitions are known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from shellverdict.interactive.code_reader import CodeReader
from shellverdict.interactive.interactive_programs import (
    UNSUPPORTED,
    exits_program,
    may_read_lines,
    opens_shell,
)
from shellverdict.interactive.process_input import WRITE, ProcessInput
from shellverdict.interactive.scenarios import MAX_SCENARIOS, InterpreterFrame, Scenario, merge_scenarios
from shellverdict.interactive.session_reader import PROCESS_INPUT, SessionReader, WaitingProgram
from shellverdict.interactive.terminal_input import InputEvent, Transcript, new_events, transcribe
from shellverdict.interactive.terminal_keys import (
    KEY_VARIABLES,
    code_redefines_keys,
    may_read_partial_line,
    redefines_keys,
    repeats_commands,
)
from shellverdict.shell.budget import Budget, BudgetExceeded
from shellverdict.shell.earlier_files import NO_EARLIER_FILES, EarlierFiles
from shellverdict.shell.grammar import parse_partial_input
from shellverdict.shell.reading import BranchPolicy, CommandReading, ExecutionContext
from shellverdict.shell.runs import ProgramRun, TextStream
from shellverdict.shell.state import ShellState
from shellverdict.shell.tree import Script
from shellverdict.shell.word_grammar import ShellSyntaxError
from shellverdict.shell.words import MAX_TEXT_CHARS, Word, unknown_word
from shellverdict.verdict import EffectKind

__all__ = ["InputAnalysis", "analyze_input"]

MAX_STEPS = 60_000
MAX_PENDING_LINES = 64
"""Maximum number of lines of an unfinished command that is analyzed."""

# Input of a program that is not a known interpreter is dangerous if it is so in any of these languages.
GUESSED_LANGUAGES = ("sh", "python", "sql:postgres", "node", "ruby")
_READS_SINGLE_KEYS = frozenset({"vim", "pager", UNSUPPORTED})
"""Languages of programs that react to single keys and do not wait for the end of a line."""

_SINGLE_QUOTED = re.compile(r"'[^']*'")
_HISTORY_REFERENCE = re.compile(r"(?<!\\)(?<!\$)(?<!\$\{)(?<!\[)!(?![\s=(\"';&|)]|$)")
_HISTORY_ENABLED = re.compile(r"\bset\s+(?:-\w*H|-o\s+hist)|\bshopt\b.*\bhist")
_EXIT_COMMAND = re.compile(r"(?:exit|logout|bye)(?:\s+\d+)?\s*;?")
_ZSH_BRACE = re.compile(r"(?<=[^\s;&|{])\s+\}(?=\s|;|$)")  # zsh needs no separator before a closing brace
_READS_INPUT = re.compile(r"<|\bselect\b")
"""Syntax with which the shell itself may read a line: `select`, `x=$(</dev/stdin)`."""
_NAME = re.compile(r"[A-Za-z_][\w.-]*")


@dataclass(slots=True)
class InputAnalysis:
    """Effects of the text written last to a process, and the reasons why the analysis may be incomplete."""

    reading: CommandReading = field(default_factory=CommandReading)
    possible_reading: CommandReading = field(default_factory=CommandReading)
    """Effects that the text has only if a program reads part of it as a separate command."""
    unknown_reasons: list[str] = field(default_factory=list)
    """Reasons why effects of the text are unknown."""
    is_language_guessed: bool = False
    """True if it is not known in which language the process reads commands, so that several are tried."""
    displayed_text: str = ""
    """The new text after editing keys, such as backspace, were applied."""


def analyze_input(
    process_input: ProcessInput,
    *,
    home: str,
    cwd: str,
    initial_cwd: str = "",
    is_confidential: Callable[[ProgramRun], bool] = lambda _: False,
    earlier_files: EarlierFiles = NO_EARLIER_FILES,
) -> InputAnalysis:
    """Return the effects of writing text to a process. Takes bounded time and never raises."""
    analysis = InputAnalysis()
    if process_input.unknown_reason:
        analysis.unknown_reasons.append(process_input.unknown_reason)
    if (
        len(process_input.command) + len(process_input.earlier_text) + len(process_input.text)
        > MAX_TEXT_CHARS
    ):
        analysis.unknown_reasons.append("the input of the process is too long to be analyzed")
        return analysis
    budget, code = Budget(MAX_STEPS), CodeReader()

    def create_state() -> ShellState:
        return ShellState(
            home=Word(home), cwd=Word(cwd), initial_cwd=Word(initial_cwd), earlier_files=earlier_files
        )

    try:
        for before, after in _build_transcripts(process_input, analysis):
            for branch_policy in BranchPolicy:
                replay = _Replay(
                    process_input,
                    analysis,
                    SessionReader(analysis.reading, budget, is_confidential, branch_policy),
                    code,
                )
                replay.run(before, after, create_state())
                if not replay.reader.has_divergent_branches:
                    break
        if analysis.is_language_guessed:
            reader = SessionReader(analysis.reading, budget, is_confidential, BranchPolicy.MARK_UNKNOWN)
            _analyze_as_data(process_input, analysis, reader, create_state())
    except (BudgetExceeded, RecursionError):
        analysis.reading.is_incomplete = True
    return analysis


def _analyze_as_data(
    process_input: ProcessInput, analysis: InputAnalysis, reader: SessionReader, state: ShellState
) -> None:
    """Analyze new input as data that the running command (such as `xargs rm`) reads, not as code.

    Only the programs that the earlier input had not already started are recorded.
    """
    reading = analysis.reading
    runs, effects = len(reading.runs), len(reading.effects)
    earlier = _runs_with_input(process_input.earlier_text, process_input, reader, state)
    del reading.runs[runs:]
    now = _runs_with_input(process_input.earlier_text + process_input.text, process_input, reader, state)
    known = {(run.argv, run.cwd) for run in earlier}
    reading.runs[runs:] = [run for run in now if (run.argv, run.cwd) not in known]
    del reading.effects[effects:]


def _runs_with_input(
    text: str, process_input: ProcessInput, reader: SessionReader, state: ShellState
) -> list[ProgramRun]:
    first = len(reader.reading.runs)
    reader.preview_text(process_input.command, state, ExecutionContext(stdin=TextStream(Word(text))))
    return reader.reading.runs[first:]


def _build_transcripts(
    process_input: ProcessInput, analysis: InputAnalysis
) -> list[tuple[Transcript, Transcript]]:
    """Return pairs of transcripts of the process input, without and with the new text.

    If editing keys were typed, a second pair takes them as ordinary text.
    """
    entries = (*process_input.history, (WRITE, process_input.text))
    before, after = (
        transcribe(process_input.history, pty=process_input.pty),
        transcribe(entries, pty=process_input.pty),
    )
    analysis.displayed_text = "\n".join([*(each.text for each in new_events(before, after)), after.partial])
    if after.unclear_key:
        analysis.unknown_reasons.append(
            f"the effect of {after.unclear_key} depends on the program that reads it"
        )
    pairs = [(before, after)]
    if after.has_editing:
        pairs.append(
            (
                transcribe(process_input.history, pty=process_input.pty, editing=False),
                transcribe(entries, pty=process_input.pty, editing=False),
            )
        )
    return pairs


class _Replay:
    """Replay of all input of a process, which tracks every state in which the process may be."""

    def __init__(
        self, process_input: ProcessInput, analysis: InputAnalysis, reader: SessionReader, code: CodeReader
    ) -> None:
        self._input, self._analysis, self.reader, self._code = process_input, analysis, reader, code
        self._is_reporting = False
        self._unclear_reason = ""  # why the program may receive other text than was written
        self._reported_code: set[object] = set()

    def run(self, before: Transcript, after: Transcript, state: ShellState) -> None:
        reading = self.reader.reading
        counts = (len(reading.runs), len(reading.effects))
        scenarios = self._start_scenarios(state)
        for event in before.events:
            scenarios = self._step_all(scenarios, event)
        self._start_reporting(reading, scenarios, *counts)
        for event in new_events(before, after):
            scenarios = self._step_all(scenarios, event)
        scenarios = self._step_partial(scenarios, after.partial)
        if self._input.closes_input:
            self._step_all(scenarios, InputEvent("end"))
        elif not scenarios and self._input.text:
            self._analysis.unknown_reasons.append("the program that read the input seems to have exited")
        for scenario in scenarios:
            with self._drop_syntax_errors_of_guesses(scenario):
                for frame in scenario.stack:
                    self._report_code(frame, scenario.is_most_likely)

    def _step_partial(self, scenarios: list[Scenario], partial: str) -> list[Scenario]:
        """Process the unfinished last input line, which only some programs read before it is complete."""
        if not partial:
            return scenarios
        self._check_tabs(scenarios, partial)
        self._report_unclear_reason()
        at_once = self._input.closes_input or not any(scenario.is_most_likely for scenario in scenarios)
        now: list[Scenario] = []
        later: list[Scenario] = []
        for scenario in scenarios:
            (now if at_once or scenario.innermost.language in _READS_SINGLE_KEYS else later).append(scenario)
        return [*self._step_all(now, InputEvent("line", partial)), *later]

    def _start_reporting(
        self, reading: CommandReading, scenarios: list[Scenario], runs: int, effects: int
    ) -> None:
        """Discard findings about earlier input, which was already judged; report all later findings."""
        del reading.runs[runs:], reading.effects[effects:]
        self._is_reporting = True
        for scenario in scenarios:
            for frame in scenario.stack:
                frame.has_earlier_lines = bool(frame.unfinished_lines)

    def _start_scenarios(self, state: ShellState) -> list[Scenario]:
        first = len(self.reader.reading.runs)
        programs = self.reader.preview_text(self._input.command, state, ExecutionContext(stdin=PROCESS_INPUT))
        names = {program.name for program in programs}
        runs = self.reader.reading.runs[first:]
        others = [run for run in runs if run.name not in names]
        frames = self._build_frames(programs)
        if not frames:
            self._analysis.is_language_guessed = True
            return [self._guess_scenario(language, state) for language in GUESSED_LANGUAGES]
        known = Scenario(frames, is_most_likely=True)
        self._check_key_changes(known, runs)
        if all(frame.language == "sh" for frame in frames):
            return [
                known,
                *([_with_possible_line_loss(known)] if self._may_lose_lines(others, state) else []),
            ]
        return [
            known,
            self._guess_scenario("sh", state),
        ]  # any program may start a shell unnoticed

    def _guess_scenario(self, language: str, state: ShellState) -> Scenario:
        frame = InterpreterFrame(
            language, state.copy(), ExecutionContext(stdin=PROCESS_INPUT, depth=1), may_miss_lines=True
        )
        return Scenario([frame], is_guess=True)

    def _build_frames(self, programs: Iterable[WaitingProgram]) -> list[InterpreterFrame]:
        return [
            InterpreterFrame.from_waiting_program(program, pty=self._input.pty)
            for program in reversed(list(programs))
        ]

    # --- Events ---

    def _step_all(self, scenarios: list[Scenario], event: InputEvent) -> list[Scenario]:
        self._check_tabs(scenarios, event.text)
        self._report_unclear_reason()
        stepped: list[Scenario] = []
        for scenario in scenarios:
            with self._drop_syntax_errors_of_guesses(scenario):
                stepped += self._step_scenario(scenario, event)
        after = merge_scenarios(stepped)
        if len(after) > MAX_SCENARIOS:
            raise BudgetExceeded
        return after

    def _check_tabs(self, scenarios: Iterable[Scenario], text: str) -> None:
        """Record that input with a tab is uncertain, because the tab key completes words in a terminal."""
        python = any(
            scenario.is_most_likely and scenario.innermost.language == "python" for scenario in scenarios
        )
        if self._input.pty and "\t" in text and not python:
            self._unclear_reason = (
                self._unclear_reason or "the effect of the tab key depends on the program that reads it"
            )

    def _report_unclear_reason(self) -> None:
        if (
            self._is_reporting
            and self._unclear_reason
            and self._unclear_reason not in self._analysis.unknown_reasons
        ):
            self._analysis.unknown_reasons.append(self._unclear_reason)

    def _check_key_changes(self, scenario: Scenario, runs: Sequence[ProgramRun]) -> None:
        """Record that input after a command such as `stty` is uncertain, because keys may be redefined."""
        frame = scenario.innermost
        if scenario.is_guess or self._unclear_reason:
            return
        by_variable = not KEY_VARIABLES.isdisjoint(frame.state.variables)
        if (self._input.pty or frame.expands_history) and (by_variable or any(map(redefines_keys, runs))):
            self._unclear_reason = "an earlier command may have redefined keys"
        elif any(map(may_read_partial_line, runs)):
            self._unclear_reason = "an earlier program may read part of a line"

    @contextmanager
    def _drop_syntax_errors_of_guesses(self, scenario: Scenario) -> Iterator[None]:
        """Within a `with` block, discard syntax errors in input whose language is only a guess."""
        effects, guess = self.reader.reading.effects, scenario.is_guess
        first = len(effects)
        yield
        if guess:
            effects[first:] = [each for each in effects[first:] if each.kind is not EffectKind.UNREADABLE]

    def _step_scenario(self, scenario: Scenario, event: InputEvent) -> list[Scenario]:
        match event.kind:
            case "break":
                return self._handle_interrupt(scenario)
            case "end":
                return self._handle_end(scenario)
            case "line" if scenario.innermost.language == "sh":
                return self._run_shell_line(scenario, event.text)
        return self._run_code_line(scenario, event.text)

    def _handle_interrupt(self, scenario: Scenario) -> list[Scenario]:
        """Return the possible states after Ctrl-C: command discarded, nothing changed, program ended."""
        ignored = scenario.copy()
        ended = scenario.without_innermost()
        frame = scenario.innermost
        frame.unfinished_lines = ""
        if frame.language == "python" and frame.earlier_code:
            frame.earlier_code.append("0")  # terminates an unfinished statement
        return [scenario, ignored, *([ended] if ended.stack else [])]

    def _handle_end(self, scenario: Scenario) -> list[Scenario]:
        frame = scenario.innermost
        if frame.unfinished_lines and self._is_reporting:
            self._check_unfinished(scenario, frame.unfinished_lines)
        self._report_code(frame, scenario.is_most_likely)
        after_exit = scenario.without_innermost(is_most_likely=scenario.is_most_likely)
        return [after_exit, scenario.copy()]

    # --- Shells ---

    def _run_shell_line(self, scenario: Scenario, line: str) -> list[Scenario]:
        frame = scenario.innermost
        if frame.name == "zsh":
            line = _ZSH_BRACE.sub("; }", line)
        earlier_lines = frame.unfinished_lines
        text = f"{earlier_lines}{line}\n"
        if self._is_reporting:
            self._check_new_line(frame, earlier_lines, line)
        frame.expands_history = frame.expands_history or _HISTORY_ENABLED.search(line) is not None
        try:
            script = parse_partial_input(text, self.reader.budget)
        except ShellSyntaxError as problem:
            self._handle_syntax_error(scenario, text, problem)
            return [scenario]
        frame.unfinished_lines, frame.has_earlier_lines = "", False
        return self._run_commands(scenario, script, text)

    def _handle_syntax_error(self, scenario: Scenario, text: str, problem: ShellSyntaxError) -> None:
        frame = scenario.innermost
        if problem.is_unfinished:
            frame.unfinished_lines = text
        else:
            frame.unfinished_lines, frame.has_earlier_lines = "", False
            frame.uncertain_names |= set(_NAME.findall(text))
            for name in frame.uncertain_names & frame.state.variables.keys():
                frame.state.variables[name] = unknown_word()
            if self._is_reporting and scenario.is_most_likely:
                self.reader.add_effect(EffectKind.UNREADABLE, text, str(problem))
        if self._is_reporting and problem.script:
            self.reader.preview_script(problem.script, frame.state, frame.context)

    def _check_new_line(self, frame: InterpreterFrame, earlier_lines: str, line: str) -> None:
        """Also judge the last lines of an unfinished command as if the lines before them were missing."""
        if frame.expands_history and _has_history_reference(line):
            self.reader.add_effect(EffectKind.UNREADABLE, line, "the shell replaces it by an earlier command")
        if not earlier_lines or not (frame.has_earlier_lines or frame.may_miss_lines):
            return
        lines = [*earlier_lines.split("\n")[:-1], line]
        if len(lines) > MAX_PENDING_LINES:
            self.reader.add_effect(
                EffectKind.UNREADABLE, line, "it is part of a command that is too long to be analyzed"
            )
            return
        reading, possible = self.reader.reading, self._analysis.possible_reading
        runs, effects = len(reading.runs), len(reading.effects)
        for start in range(1, len(lines)):
            self._preview_text("\n".join(lines[start:]) + "\n", frame)
        possible.runs += reading.runs[runs:]
        possible.effects += [
            each for each in reading.effects[effects:] if each.kind is not EffectKind.UNREADABLE
        ]
        del reading.runs[runs:], reading.effects[effects:]

    def _preview_text(self, text: str, frame: InterpreterFrame) -> None:
        """Record the effects that an unfinished command would have if the shell ran it as it is now."""
        try:
            script: Script | None = parse_partial_input(text, self.reader.budget)
        except ShellSyntaxError as problem:
            script = problem.script
        if script:
            self.reader.preview_script(script, frame.state, frame.context)

    def _check_unfinished(self, scenario: Scenario, text: str) -> None:
        """Judge a command that is incomplete when the input ends, because a shell may still run it."""
        self._preview_text(text, scenario.innermost)
        if scenario.is_most_likely:
            self.reader.add_effect(EffectKind.UNREADABLE, text, "the input ends in the middle of a command")

    def _run_commands(self, scenario: Scenario, script: Script, text: str) -> list[Scenario]:
        frame = scenario.innermost
        before = frame.state.copy()
        first = len(self.reader.reading.runs)
        programs = self.reader.run_commands(script, frame.state, frame.context)
        runs = self.reader.reading.runs[first:]
        self._check_names(frame, runs)
        self._check_key_changes(scenario, runs)
        if frame.may_miss_lines:
            frame.state.merge(before)
        scenarios = [scenario]
        if not frame.may_miss_lines and (
            _READS_INPUT.search(text) or self._may_lose_lines(runs, frame.state)
        ):
            scenarios.append(_with_possible_line_loss(scenario))
        if programs:
            scenarios.append(scenario.copy())  # it may have failed to start
            scenario.stack += self._build_frames(programs)
        elif any(run.name in ("exit", "logout") for run in runs):
            scenarios += self._exit_shell(scenario, text)
        return scenarios

    def _may_lose_lines(self, runs: Iterable[ProgramRun], state: ShellState) -> bool:
        own_path = "PATH" in state.variables
        return any(may_read_lines(run, pty=self._input.pty, custom_path=own_path) for run in runs)

    def _exit_shell(self, scenario: Scenario, text: str) -> list[Scenario]:
        plain = _EXIT_COMMAND.fullmatch(text.strip()) is not None
        after_exit = scenario.without_innermost(is_most_likely=scenario.is_most_likely and plain)
        scenario.is_most_likely = scenario.is_most_likely and not plain
        return [after_exit]

    def _check_names(self, frame: InterpreterFrame, runs: Sequence[ProgramRun]) -> None:
        if self._is_reporting and any(run.path in frame.uncertain_names for run in runs):
            self.reader.add_effect(
                EffectKind.UNREADABLE, "", "an earlier line that could not be parsed may have defined it"
            )
        if self._is_reporting and any(repeats_commands(run, frame.name) for run in runs):
            self.reader.add_effect(EffectKind.UNREADABLE, "", "it repeats an earlier command")

    # --- Other languages ---

    def _run_code_line(self, scenario: Scenario, line: str) -> list[Scenario]:
        frame = scenario.innermost
        (frame.new_code if self._is_reporting else frame.earlier_code).append(line)
        if self._input.pty and not scenario.is_guess and code_redefines_keys(line):
            self._unclear_reason = self._unclear_reason or "an earlier command may have redefined keys"
        if exits_program(frame.language, line):
            self._report_code(frame, scenario.is_most_likely)
            unchanged = scenario.copy()
            after_exit = scenario.without_innermost(is_most_likely=scenario.is_most_likely)
            return [after_exit, unchanged] if after_exit.stack else [scenario]
        if opens_shell(frame.language, line):
            return self._enter_program(
                scenario, [WaitingProgram("sh", frame.state.create_child(()), frame.context)]
            )
        if self._code.may_start_program(line):
            return self._enter_program(scenario, self._started_programs(frame))
        return [scenario]

    def _enter_program(self, scenario: Scenario, programs: list[WaitingProgram]) -> list[Scenario]:
        if not programs:
            return [scenario]
        entered = scenario.copy(is_most_likely=scenario.is_most_likely)
        entered.stack += self._build_frames(programs)
        scenario.is_most_likely = False
        return [entered, scenario]

    def _started_programs(self, frame: InterpreterFrame) -> list[WaitingProgram]:
        """Return the programs that the last input line starts and that read the following lines."""
        lines = [*frame.earlier_code, *frame.new_code]
        analysis = self._code.analyze_new(frame.language, lines[:-1], lines[-1:])
        return [
            program
            for script in analysis.scripts
            for program in self.reader.preview_text(script.literal, frame.state, frame.context)
        ]

    def _report_code(self, frame: InterpreterFrame, is_most_likely: bool) -> None:
        """Record the effects of new input lines in a language other than shell."""
        if not frame.new_code or frame.language == "sh":
            return
        key = (frame.language, tuple(frame.earlier_code), tuple(frame.new_code), is_most_likely)
        if key in self._reported_code:
            return
        self._reported_code.add(key)
        analysis = self._code.analyze_new(frame.language, frame.earlier_code, frame.new_code)
        effects = self.reader.reading.effects
        effects += [
            each for each in analysis.effects if is_most_likely or each.kind is not EffectKind.UNREADABLE
        ]
        for script in analysis.scripts:
            self.reader.preview_text(script.literal, frame.state, frame.context)


def _with_possible_line_loss(scenario: Scenario) -> Scenario:
    """Return a copy of a process state in which the innermost program may not receive every input line."""
    copy = scenario.copy()
    copy.innermost.may_miss_lines = True
    return copy


def _has_history_reference(line: str) -> bool:
    """Return True if an interactive shell would replace part of the line by an earlier command."""
    return line.startswith("^") or _HISTORY_REFERENCE.search(_SINGLE_QUOTED.sub("", line)) is not None
