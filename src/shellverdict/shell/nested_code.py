"""Analyze code that a command runs from arguments, from pipes, or from files that it has written."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace

from shellverdict.embedded_code import analyze_code
from shellverdict.shell import created_files
from shellverdict.shell.budget import Budget, BudgetExceeded
from shellverdict.shell.control_flow import ControlFlowReader
from shellverdict.shell.grammar import parse_script
from shellverdict.shell.inner import InnerCommand
from shellverdict.shell.loaded_files import find_possible_files
from shellverdict.shell.programs import IN_SHELL_COMMANDS, SHELLS
from shellverdict.shell.reading import BranchPolicy, CommandReading, ExecutionContext
from shellverdict.shell.redirections import descriptor_number
from shellverdict.shell.runs import STDIN_PATHS, ProgramRun, Redirect, TextStream
from shellverdict.shell.state import ShellState
from shellverdict.shell.streams import EMPTY_STREAM, UNKNOWN_STREAM
from shellverdict.shell.tree import Script
from shellverdict.shell.values import script_arguments
from shellverdict.shell.word_grammar import ShellSyntaxError
from shellverdict.shell.words import EMPTY, Taint, Word, unknown_word
from shellverdict.verdict import EffectKind

__all__ = ["NestedCodeReader"]

MAX_CODE_DEPTH = 12
TOP_LEVEL_CONTEXT = ExecutionContext()


class NestedCodeReader(ControlFlowReader):
    """Reader that analyzes code run by programs such as `sh -c`; a subclass analyzes the single commands."""

    def __init__(
        self, reading: CommandReading, budget: Budget, span: tuple[int, int], branch_policy: BranchPolicy
    ) -> None:
        super().__init__(reading, budget, span, branch_policy)
        self._top_level_text = ""
        # Traps and start-up files, analysed after everything else.
        self._deferred_code: list[Callable[[], TextStream]] = []

    @abstractmethod
    def _analyze_argv(
        self,
        argv: tuple[Word, ...],
        state: ShellState,
        context: ExecutionContext,
        *,
        env_assignments: dict[str, Word] | None = None,
        redirects: tuple[Redirect, ...] = (),
        functions: bool = True,
    ) -> TextStream:
        """Analyze a command after expansion, given as its argument list."""

    def analyze_text(
        self,
        text: str,
        state: ShellState,
        context: ExecutionContext = TOP_LEVEL_CONTEXT,
        *,
        is_top_level: bool = False,
    ) -> TextStream:
        """Analyze shell code and return the text that it prints.

        Findings in nested code get the span of the top-level command that contains the code.
        """
        if context.depth > MAX_CODE_DEPTH:
            raise BudgetExceeded
        if is_top_level:
            self._top_level_text = text
        try:
            script = parse_script(text, self._budget)
        except ShellSyntaxError as problem:
            self._add_effect(EffectKind.UNREADABLE, detail=str(problem))
            script = problem.script or Script()
        printed = self._analyze_script(script, state, context)
        while is_top_level and self._deferred_code:
            self._deferred_code.pop(0)()
        return printed

    def _analyze_inner(
        self, inner_command: InnerCommand, run: ProgramRun, state: ShellState, context: ExecutionContext
    ) -> TextStream:
        """Analyze one command or piece of code that a program such as `sudo` or `sh -c` runs."""
        wrappers = (*context.wrappers, inner_command.wrapper) if inner_command.wrapper else context.wrappers
        context = replace(
            context,
            wrappers=wrappers,
            has_unknown_operands=(inner_command.has_unknown_operands or context.has_unknown_operands)
            and inner_command.argv is not None,
            has_unknown_arguments=context.has_unknown_arguments
            or (
                (inner_command.has_unknown_operands or context.has_unknown_operands)
                and inner_command.code is not None
            ),
            depth=context.depth + 1,
            stdin=run.stdin,
        )
        if inner_command.argv is not None:
            return self._analyze_inner_argv(inner_command.argv, run, state, context)
        if inner_command.code is not None and run.name == "trap":
            self._deferred_code.append(lambda: self._analyze_inline_code(inner_command, run, state, context))
            return EMPTY_STREAM
        if inner_command.code is not None:
            return self._analyze_inline_code(inner_command, run, state, context)
        if inner_command.source == "stdin":
            if run.stdin is None and not inner_command.has_unknown_operands:
                return UNKNOWN_STREAM
            return self._with_script_arguments(
                inner_command,
                run,
                state,
                lambda inner_state: self._analyze_stream_code(
                    run.stdin or UNKNOWN_STREAM, inner_command.language, run, inner_state, context
                ),
            )
        if inner_command.source == "file" and inner_command.file is not None:
            file = inner_command.file
            return self._with_script_arguments(
                inner_command,
                run,
                state,
                lambda inner_state: self._analyze_code_file(
                    file, inner_command.language, run, inner_state, context
                ),
            )
        return UNKNOWN_STREAM

    def _with_script_arguments(
        self,
        inner_command: InnerCommand,
        run: ProgramRun,
        state: ShellState,
        follow: Callable[[ShellState], TextStream],
    ) -> TextStream:
        """Call `follow` to analyze a script with a shell state in which `$1`, `$2` … are its arguments.

        A sourced script without arguments sees the arguments of the shell.
        """
        inner_state = state if run.name in IN_SHELL_COMMANDS else state.create_child(run.env_assignments)
        before = inner_state.arguments
        if inner_command.arguments or inner_state is not state:
            inner_state.arguments = script_arguments(inner_command)
        printed = follow(inner_state)
        inner_state.arguments = before
        return printed

    def _analyze_inner_argv(
        self, argv: tuple[Word, ...], run: ProgramRun, state: ShellState, context: ExecutionContext
    ) -> TextStream:
        if not argv:
            return UNKNOWN_STREAM
        if context.depth > MAX_CODE_DEPTH * 2:
            raise BudgetExceeded
        inner_state = state if run.name in IN_SHELL_COMMANDS else state.copy()
        functions = run.name in ("time", "coproc", "compgen", "complete")
        printed = self._analyze_argv(argv, inner_state, context, redirects=run.redirects, functions=functions)
        state.add_program_copies(inner_state)
        return printed

    def _analyze_inline_code(
        self, inner_command: InnerCommand, run: ProgramRun, state: ShellState, context: ExecutionContext
    ) -> TextStream:
        code = (inner_command.code or EMPTY).literal
        if inner_command.has_unknown_operands and run.name not in SHELLS:
            code = Word(f"{code} {unknown_word()}")  # the caller appends unknown words to the code
        unread = code.taints & {Taint.NETWORK, Taint.DECODED}
        if unread:
            self._add_effect(EffectKind.RUN_UNREAD, code, frozenset(unread))
        if inner_command.language != "sh":
            return self._analyze_foreign_code(code, inner_command.language, state, context)
        inner_state = state if run.name in IN_SHELL_COMMANDS else state.create_child(run.env_assignments)
        if run.name not in IN_SHELL_COMMANDS:
            words = script_arguments(inner_command)
            inner_state.script_name, inner_state.arguments = (
                words[0] if words else inner_state.script_name,
                words[1:],
            )
            if inner_command.has_unknown_operands and not inner_state.arguments:
                inner_state.arguments = (unknown_word(),)
        if context.wrappers and context.wrappers[-1] in ("ssh", "docker", "podman", "kubectl"):
            return self.analyze_text(code, ShellState(home=state.home, cwd=unknown_word()), context)
        printed = self.analyze_text(code, inner_state, context)
        state.add_program_copies(inner_state)
        return printed

    def _analyze_stream_code(
        self, stream: TextStream, language: str, run: ProgramRun, state: ShellState, context: ExecutionContext
    ) -> TextStream:
        """Analyze code that is piped into an interpreter or stored in a file that this command wrote."""
        text = stream.text
        if text is None:
            taints = stream.taints - {Taint.CONFIDENTIAL} or {Taint.UNREAD}
            self._add_effect(EffectKind.RUN_UNREAD, run.path, frozenset(taints))
            return UNKNOWN_STREAM
        if Taint.DECODED in stream.taints:
            self._add_effect(
                EffectKind.RUN_UNREAD, run.path, frozenset({Taint.DECODED}), detail=text.display_text[:200]
            )
        if text.taints & {Taint.NETWORK, Taint.DECODED, Taint.UNREAD}:
            self._add_effect(EffectKind.RUN_UNREAD, run.path, text.taints)
        text = text.literal
        if language != "sh":
            return self._analyze_foreign_code(text, language, state, context)
        return self.analyze_text(text, state, replace(context, depth=context.depth + 1))

    def _analyze_code_file(
        self, file: Word, language: str, run: ProgramRun, state: ShellState, context: ExecutionContext
    ) -> TextStream:
        if file in STDIN_PATHS:
            return self._analyze_stream_code(run.stdin or UNKNOWN_STREAM, language, run, state, context)
        path = state.resolve_path(file)
        stream = state.find_file(path)
        if stream is None and (number := descriptor_number(path)):
            stream = state.input_descriptors.get(number, UNKNOWN_STREAM)
        if stream is not None:
            return self._analyze_stream_code(stream, language, run, state, context)
        for each in find_possible_files(Word(path), language, state):
            self._analyze_stream_code(each, language, run, state.copy(), context)
        if language == "binary" or created_files.is_downloaded(state, path):
            taints = {Taint.NETWORK} if created_files.is_downloaded(state, path) else {Taint.UNREAD}
            self._add_effect(EffectKind.RUN_UNREAD, file, frozenset(taints))
        self._reading.written_texts.add_edited_texts()
        if run.name in IN_SHELL_COMMANDS:  # the unknown file may have set any variable
            state.variables = {name: unknown_word(frozenset({Taint.UNREAD})) for name in state.variables}
        return UNKNOWN_STREAM

    def _analyze_foreign_code(
        self, code: Word, language: str, state: ShellState, context: ExecutionContext
    ) -> TextStream:
        found = analyze_code(code, language)
        for effect in found.effects:
            self._reading.effects.append(replace(effect, span=self._current_span))
        for script in found.scripts:
            inside = state.copy()
            self.analyze_text(script.literal, inside, replace(context, depth=context.depth + 1))
            known = {path: stream for path, stream in inside.written_files.items() if stream.taints}
            state.written_files |= known
            # Only that the code writes the other files is known, not with what.
            state.edited_files |= inside.written_files.keys() - state.written_files.keys()
        return UNKNOWN_STREAM
