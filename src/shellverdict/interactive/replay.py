"""Replays the input of a process line by line, and tells what its latest part would do.

Lines go to the innermost program that reads. Where it is not certain which one that is, they go to every one
that it may be, and the worst counts. What earlier lines did is not told again; what they set up is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from shellverdict.interactive.code import CodeReader
from shellverdict.interactive.keys import Event, Transcript, new_events, transcribe
from shellverdict.interactive.process_input import WRITE, ProcessInput
from shellverdict.interactive.programs import UNREAD, leaves, may_take_lines, opens_shell
from shellverdict.interactive.session_reader import TYPED, SessionReader, WaitingProgram
from shellverdict.interactive.terminal_keys import (
    KEY_VARIABLES,
    code_redefines_keys,
    redefines_keys,
    repeats_commands,
    takes_part_of_line,
)
from shellverdict.interactive.worlds import MAX_WORLDS, Frame, World, merge_worlds
from shellverdict.shell.grammar import Budget, BudgetExceeded, ShellSyntaxError, parse_partial_input
from shellverdict.shell.reading import BranchPolicy, CommandReading, ExecutionContext
from shellverdict.shell.runs import ProgramRun, TextStream
from shellverdict.shell.state import ShellState
from shellverdict.shell.tree import Script
from shellverdict.shell.words import MAX_TEXT_CHARS, Word, unknown_word
from shellverdict.verdict import EffectKind

__all__ = ["InputReading", "read_input"]

MAX_STEPS = 60_000
MAX_PENDING_LINES = 64
"""How many lines of an unfinished command are looked at from each of its lines on."""

# Text for a program that is not known to be an interpreter counts if it is dangerous in any of these.
GUESSES = ("sh", "python", "sql:postgres", "node", "ruby")
_BY_KEY = frozenset({"vim", "pager", UNREAD})
"""Programs that do not wait for the end of a line."""

_QUOTED = re.compile(r"'[^']*'")
_HISTORY = re.compile(r"(?<!\\)(?<!\$)(?<!\$\{)(?<!\[)!(?![\s=(\"';&|)]|$)")
_HISTORY_ON = re.compile(r"\bset\s+(?:-\w*H|-o\s+hist)|\bshopt\b.*\bhist")
_LEAVES_SHELL = re.compile(r"(?:exit|logout|bye)(?:\s+\d+)?\s*;?")
_ZSH_BRACE = re.compile(r"(?<=[^\s;&|{])\s+\}(?=\s|;|$)")  # zsh closes a block without a line end before
_READS_INPUT = re.compile(r"<|\bselect\b")
"""The shell itself may read a line there: `select`, `x=$(</dev/stdin)`."""
_NAME = re.compile(r"[A-Za-z_][\w.-]*")


@dataclass(slots=True)
class InputReading:
    """What the latest write would do, and why that may not be all."""

    reading: CommandReading = field(default_factory=CommandReading)
    possible: CommandReading = field(default_factory=CommandReading)
    """What it would do only if a part of it were read in another way than it seems."""
    unknown: list[str] = field(default_factory=list)
    """Reasons why nobody can tell what it would do."""
    guessed: bool = False
    """Whether no program is known that takes commands from the input."""
    shown: str = ""
    """The new text as the terminal would make it."""


def read_input(
    given: ProcessInput,
    *,
    home: str,
    cwd: str,
    initial_cwd: str = "",
    is_confidential: Callable[[ProgramRun], bool] = lambda _: False,
) -> InputReading:
    """Tell what a write would do. Whatever it is, this ends soon and raises nothing."""
    found = InputReading()
    if given.unknown:
        found.unknown.append(given.unknown)
    if len(given.command) + len(given.written_before) + len(given.text) > MAX_TEXT_CHARS:
        found.unknown.append("the process has been given more than can be judged together")
        return found
    budget, code = Budget(MAX_STEPS), CodeReader()
    try:
        for before, after in _transcripts(given, found):
            for choice in BranchPolicy:
                replay = _Replay(
                    given, found, SessionReader(found.reading, budget, is_confidential, choice), code
                )
                replay.run(
                    before, after, ShellState(home=Word(home), cwd=Word(cwd), initial_cwd=Word(initial_cwd))
                )
                if not replay.reader.has_divergent_branches:
                    break
        if found.guessed:
            reader = SessionReader(found.reading, budget, is_confidential, BranchPolicy.MARK_UNKNOWN)
            _read_as_data(
                given,
                found,
                reader,
                ShellState(home=Word(home), cwd=Word(cwd), initial_cwd=Word(initial_cwd)),
            )
    except (BudgetExceeded, RecursionError):
        found.reading.is_incomplete = True
    return found


def _read_as_data(given: ProcessInput, found: InputReading, reader: SessionReader, state: ShellState) -> None:
    """Note what the command itself makes of its input: `xargs rm`, `awk '{system($0)}'`."""
    reading = found.reading
    runs, effects = len(reading.runs), len(reading.effects)
    earlier = _runs_with(given.written_before, given, reader, state)
    del reading.runs[runs:]
    now = _runs_with(given.written_before + given.text, given, reader, state)
    known = {(run.argv, run.cwd) for run in earlier}
    reading.runs[runs:] = [run for run in now if (run.argv, run.cwd) not in known]
    del reading.effects[effects:]


def _runs_with(text: str, given: ProcessInput, reader: SessionReader, state: ShellState) -> list[ProgramRun]:
    first = len(reader.reading.runs)
    reader.look_at_text(given.command, state, ExecutionContext(stdin=TextStream(Word(text))))
    return reader.reading.runs[first:]


def _transcripts(given: ProcessInput, found: InputReading) -> list[tuple[Transcript, Transcript]]:
    """The input before and after the write; twice where keys edit a line and a program may not let them."""
    entries = (*given.before, (WRITE, given.text))
    before, after = transcribe(given.before, pty=given.pty), transcribe(entries, pty=given.pty)
    found.shown = "\n".join([*(each.text for each in new_events(before, after)), after.partial])
    if after.unclear:
        found.unknown.append(f"what {after.unclear} does depends on the program that reads it")
    pairs = [(before, after)]
    if after.edited:
        pairs.append(
            (
                transcribe(given.before, pty=given.pty, editing=False),
                transcribe(entries, pty=given.pty, editing=False),
            )
        )
    return pairs


class _Replay:
    """One replay: all worlds, from the command that started the process to the end of the new write."""

    def __init__(
        self, given: ProcessInput, found: InputReading, reader: SessionReader, code: CodeReader
    ) -> None:
        self._given, self._found, self.reader, self._code = given, found, reader, code
        self._new = False
        self._unclear = ""  # why text may not arrive as it is written
        self._reported: set[object] = set()

    def run(self, before: Transcript, after: Transcript, state: ShellState) -> None:
        reading = self.reader.reading
        told = (len(reading.runs), len(reading.effects))
        worlds = self._begin(state)
        for event in before.events:
            worlds = self._step_all(worlds, event)
        self._start_reporting(reading, worlds, *told)
        for event in new_events(before, after):
            worlds = self._step_all(worlds, event)
        worlds = self._step_partial(worlds, after.partial)
        if self._given.closes:
            self._step_all(worlds, Event("end"))
        elif not worlds and self._given.text:
            self._found.unknown.append("the program that read the input seems to have ended")
        for world in worlds:
            with self._only_what_counts(world):
                for frame in world.stack:
                    self._report_code(frame, world.certain)

    def _step_partial(self, worlds: list[World], partial: str) -> list[World]:
        """A line that has not ended. Most programs wait for its end, and it is judged with that."""
        if not partial:
            return worlds
        self._look_at_tabs(worlds, partial)
        self._tell_unclear()
        at_once = self._given.closes or not any(world.certain for world in worlds)
        now: list[World] = []
        later: list[World] = []
        for world in worlds:
            (now if at_once or world.innermost.language in _BY_KEY else later).append(world)
        return [*self._step_all(now, Event("line", partial)), *later]

    def _start_reporting(self, reading: CommandReading, worlds: list[World], runs: int, effects: int) -> None:
        """Forget what was found in earlier input: it has been judged when it was written."""
        del reading.runs[runs:], reading.effects[effects:]
        self._new = True
        for world in worlds:
            for frame in world.stack:
                frame.waiting = bool(frame.pending)

    def _begin(self, state: ShellState) -> list[World]:
        first = len(self.reader.reading.runs)
        prompts = self.reader.look_at_text(self._given.command, state, ExecutionContext(stdin=TYPED))
        names = {prompt.name for prompt in prompts}
        runs = self.reader.reading.runs[first:]
        others = [run for run in runs if run.name not in names]
        frames = self._frames(prompts)
        if not frames:
            self._found.guessed = True
            return [self._guess(language, state) for language in GUESSES]
        known = World(frames, certain=True)
        self._look_at_keys(known, runs)
        if all(frame.language == "sh" for frame in frames):
            return [known, *([_doubtful(known)] if self._may_take_lines(others, state) else [])]
        return [known, self._guess("sh", state)]  # any program may start a shell in a way nobody sees

    def _guess(self, language: str, state: ShellState) -> World:
        frame = Frame(language, state.copy(), ExecutionContext(stdin=TYPED, depth=1), doubtful=True)
        return World([frame], guess=True)

    def _frames(self, prompts: Iterable[WaitingProgram]) -> list[Frame]:
        return [Frame.of(prompt, pty=self._given.pty) for prompt in reversed(list(prompts))]

    # Events

    def _step_all(self, worlds: list[World], event: Event) -> list[World]:
        self._look_at_tabs(worlds, event.text)
        self._tell_unclear()
        found: list[World] = []
        for world in worlds:
            with self._only_what_counts(world):
                found += self._step(world, event)
        after = merge_worlds(found)
        if len(after) > MAX_WORLDS:
            raise BudgetExceeded
        return after

    def _look_at_tabs(self, worlds: Iterable[World], text: str) -> None:
        """Note a tab at a terminal: it completes words everywhere but at the start of a line of Python."""
        python = any(world.certain and world.innermost.language == "python" for world in worlds)
        if self._given.pty and "\t" in text and not python:
            self._unclear = self._unclear or "what the tab key does depends on the program that reads it"

    def _tell_unclear(self) -> None:
        if self._new and self._unclear and self._unclear not in self._found.unknown:
            self._found.unknown.append(self._unclear)

    def _look_at_keys(self, world: World, runs: Sequence[ProgramRun]) -> None:
        """Note commands after which text does not arrive as it is written."""
        frame = world.innermost
        if world.guess or self._unclear:
            return
        by_variable = not KEY_VARIABLES.isdisjoint(frame.state.variables)
        if (self._given.pty or frame.expands_history) and (by_variable or any(map(redefines_keys, runs))):
            self._unclear = "keys may have been given another meaning"
        elif any(map(takes_part_of_line, runs)):
            self._unclear = "an earlier program may take a part of a line"

    @contextmanager
    def _only_what_counts(self, world: World) -> Iterator[None]:
        """Drop what means nothing where the language is a guess: that text cannot be read in it."""
        effects, guess = self.reader.reading.effects, world.guess
        first = len(effects)
        yield
        if guess:
            effects[first:] = [each for each in effects[first:] if each.kind is not EffectKind.UNREADABLE]

    def _step(self, world: World, event: Event) -> list[World]:
        match event.kind:
            case "break":
                return self._interrupt(world)
            case "end":
                return self._end(world)
            case "line" if world.innermost.language == "sh":
                return self._shell_line(world, event.text)
        return self._code_line(world, event.text)

    def _interrupt(self, world: World) -> list[World]:
        """Ctrl-C: the unfinished command is dropped, or nobody listens, or the program ends."""
        unheard = world.copy()
        ended = world.without_innermost()
        frame = world.innermost
        frame.pending = ""
        if frame.language == "python" and frame.given:
            frame.given.append("0")  # ends a statement that was not finished
        return [world, unheard, *([ended] if ended.stack else [])]

    def _end(self, world: World) -> list[World]:
        frame = world.innermost
        if frame.pending and self._new:
            self._look_at_unfinished(world, frame.pending)
        self._report_code(frame, world.certain)
        left = world.without_innermost(certain=world.certain)
        return [left, world.copy()]

    # Shells

    def _shell_line(self, world: World, line: str) -> list[World]:
        frame = world.innermost
        if frame.name == "zsh":
            line = _ZSH_BRACE.sub("; }", line)
        had = frame.pending
        text = f"{had}{line}\n"
        if self._new:
            self._look_at_line(frame, had, line)
        frame.expands_history = frame.expands_history or _HISTORY_ON.search(line) is not None
        try:
            script = parse_partial_input(text, self.reader.budget)
        except ShellSyntaxError as problem:
            self._not_a_unit(world, text, problem)
            return [world]
        frame.pending, frame.waiting = "", False
        return self._run_unit(world, script, text)

    def _not_a_unit(self, world: World, text: str, problem: ShellSyntaxError) -> None:
        frame = world.innermost
        if problem.is_unfinished:
            frame.pending = text
        else:
            frame.pending, frame.waiting = "", False
            frame.unclear |= set(_NAME.findall(text))
            for name in frame.unclear & frame.state.variables.keys():
                frame.state.variables[name] = unknown_word()
            if self._new and world.certain:
                self.reader.see(EffectKind.UNREADABLE, text, str(problem))
        if self._new and problem.script:
            self.reader.look_at(problem.script, frame.state, frame.context)

    def _look_at_line(self, frame: Frame, had: str, line: str) -> None:
        """What can be seen in a new line by itself, whatever it is a part of."""
        if frame.expands_history and _is_history(line):
            self.reader.see(EffectKind.UNREADABLE, line, "the shell puts an earlier command in its place")
        if not had or not (frame.waiting or frame.doubtful):
            return
        lines = [*had.split("\n")[:-1], line]
        if len(lines) > MAX_PENDING_LINES:
            self.reader.see(
                EffectKind.UNREADABLE, line, "it belongs to a command that is too long to be read"
            )
            return
        reading, possible = self.reader.reading, self._found.possible
        runs, effects = len(reading.runs), len(reading.effects)
        for start in range(1, len(lines)):
            self._look_at_text("\n".join(lines[start:]) + "\n", frame)
        possible.runs += reading.runs[runs:]
        possible.effects += [
            each for each in reading.effects[effects:] if each.kind is not EffectKind.UNREADABLE
        ]
        del reading.runs[runs:], reading.effects[effects:]

    def _look_at_text(self, text: str, frame: Frame) -> None:
        """In case the shell does not wait for more where we think so."""
        try:
            script: Script | None = parse_partial_input(text, self.reader.budget)
        except ShellSyntaxError as problem:
            script = problem.script
        if script:
            self.reader.look_at(script, frame.state, frame.context)

    def _look_at_unfinished(self, world: World, text: str) -> None:
        """The input ends within a command: a shell may run it as it is."""
        self._look_at_text(text, world.innermost)
        if world.certain:
            self.reader.see(EffectKind.UNREADABLE, text, "the input ends within a command")

    def _run_unit(self, world: World, script: Script, text: str) -> list[World]:
        frame = world.innermost
        before = frame.state.copy()
        first = len(self.reader.reading.runs)
        prompts = self.reader.run_unit(script, frame.state, frame.context)
        runs = self.reader.reading.runs[first:]
        self._look_at_names(frame, runs)
        self._look_at_keys(world, runs)
        if frame.doubtful:
            frame.state.merge(before)
        found = [world]
        if not frame.doubtful and (_READS_INPUT.search(text) or self._may_take_lines(runs, frame.state)):
            found.append(_doubtful(world))
        if prompts:
            found.append(world.copy())  # it may have failed to start
            world.stack += self._frames(prompts)
        elif any(run.name in ("exit", "logout") for run in runs):
            found += self._leave_shell(world, text)
        return found

    def _may_take_lines(self, runs: Iterable[ProgramRun], state: ShellState) -> bool:
        own_path = "PATH" in state.variables
        return any(may_take_lines(run, pty=self._given.pty, own_path=own_path) for run in runs)

    def _leave_shell(self, world: World, text: str) -> list[World]:
        plain = _LEAVES_SHELL.fullmatch(text.strip()) is not None
        left = world.without_innermost(certain=world.certain and plain)
        world.certain = world.certain and not plain
        return [left]

    def _look_at_names(self, frame: Frame, runs: Sequence[ProgramRun]) -> None:
        if self._new and any(run.path in frame.unclear for run in runs):
            self.reader.see(
                EffectKind.UNREADABLE, "", "an earlier line that could not be read may have defined it"
            )
        if self._new and any(repeats_commands(run, frame.name) for run in runs):
            self.reader.see(EffectKind.UNREADABLE, "", "it runs an earlier command again")

    # Other languages

    def _code_line(self, world: World, line: str) -> list[World]:
        frame = world.innermost
        (frame.new if self._new else frame.given).append(line)
        if self._given.pty and not world.guess and code_redefines_keys(line):
            self._unclear = self._unclear or "keys may have been given another meaning"
        if leaves(frame.language, line):
            self._report_code(frame, world.certain)
            stays = world.copy()
            left = world.without_innermost(certain=world.certain)
            return [left, stays] if left.stack else [world]
        if opens_shell(frame.language, line):
            return self._open(world, [WaitingProgram("sh", frame.state.create_child(()), frame.context)])
        if self._code.may_start_something(line):
            return self._open(world, self._started(frame))
        return [world]

    def _open(self, world: World, prompts: list[WaitingProgram]) -> list[World]:
        if not prompts:
            return [world]
        inside = world.copy(certain=world.certain)
        inside.stack += self._frames(prompts)
        world.certain = False
        return [inside, world]

    def _started(self, frame: Frame) -> list[WaitingProgram]:
        """Programs that the latest line starts, and that read on."""
        lines = [*frame.given, *frame.new]
        found = self._code.read_new(frame.language, lines[:-1], lines[-1:])
        return [
            prompt
            for script in found.scripts
            for prompt in self.reader.look_at_text(script.literal, frame.state, frame.context)
        ]

    def _report_code(self, frame: Frame, certain: bool) -> None:
        """Note what the new lines of another language do."""
        if not frame.new or frame.language == "sh":
            return
        key = (frame.language, tuple(frame.given), tuple(frame.new), certain)
        if key in self._reported:
            return
        self._reported.add(key)
        found = self._code.read_new(frame.language, frame.given, frame.new)
        effects = self.reader.reading.effects
        effects += [each for each in found.effects if certain or each.kind is not EffectKind.UNREADABLE]
        for script in found.scripts:
            self.reader.look_at_text(script.literal, frame.state, frame.context)


def _doubtful(world: World) -> World:
    """The same world, where each line for the innermost program may be taken by another one."""
    taken = world.copy()
    taken.innermost.doubtful = True
    return taken


def _is_history(line: str) -> bool:
    """Whether an interactive shell would put an earlier command in the place of a part of the line."""
    return line.startswith("^") or _HISTORY.search(_QUOTED.sub("", line)) is not None
