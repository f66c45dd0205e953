"""Analyze shell statements: lists, pipelines, groups, branches and loops.

Follows every path that the commands of a script can take, and merges the states in which the paths end. What
a simple command does is left to a subclass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from shellverdict.shell.budget import Budget
from shellverdict.shell.expansion import Expansion
from shellverdict.shell.node_queries import first_plain_word, is_endless_for
from shellverdict.shell.reading import BranchPolicy, CommandReading, ExecutionContext
from shellverdict.shell.redirections import apply_output_redirects
from shellverdict.shell.runs import ProgramRun, Redirect, TextStream
from shellverdict.shell.state import ShellState
from shellverdict.shell.streams import (
    EMPTY_STREAM,
    UNKNOWN_STREAM,
    concatenate_streams,
    merge_alternatives,
    repeat_unknown_times,
    split_known_lines,
)
from shellverdict.shell.tree import (
    AndOrList,
    CaseStatement,
    CommandGroup,
    ForLoop,
    FunctionDefinition,
    IfStatement,
    Node,
    Pipeline,
    Redirection,
    Script,
    SimpleCommand,
    Statement,
    WhileLoop,
    WordNode,
)
from shellverdict.shell.words import EMPTY, Word, unknown_word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["ControlFlowReader"]

MAX_LOOP_ITERATIONS = 32
ALWAYS_TRUE_COMMANDS = frozenset({":", "true", "1"})


class ControlFlowReader(ABC):
    """Reader that follows the control flow of a shell script and combines the states after its branches.

    Each `_analyze_…` method returns the text that its part of the script prints, updates the shell state as
    the part would, and adds runs and effects to the reading.
    """

    def __init__(
        self, reading: CommandReading, budget: Budget, span: tuple[int, int], branch_policy: BranchPolicy
    ) -> None:
        self._branch_policy, self.has_divergent_branches = branch_policy, False
        self._reading, self._budget, self._current_span = reading, budget, span

    @abstractmethod
    def _analyze_simple_command(
        self, node: SimpleCommand, state: ShellState, context: ExecutionContext
    ) -> TextStream: ...

    @abstractmethod
    def _define_function(
        self, node: FunctionDefinition, state: ShellState, context: ExecutionContext
    ) -> TextStream: ...

    @abstractmethod
    def _create_expansion(self, state: ShellState, context: ExecutionContext) -> Expansion: ...

    @abstractmethod
    def _evaluate_redirects(
        self,
        redirections: Iterable[Redirection],
        expansion: Expansion,
        state: ShellState,
        context: ExecutionContext,
    ) -> tuple[tuple[Redirect, ...], TextStream | None]: ...

    def _analyze_script(self, script: Script, state: ShellState, context: ExecutionContext) -> TextStream:
        printed = EMPTY_STREAM
        for statement in script.statements:
            printed = concatenate_streams(printed, self._analyze_statement(statement, state, context))
        return printed

    def _analyze_statement(
        self, statement: Statement, state: ShellState, context: ExecutionContext
    ) -> TextStream:
        self._budget.spend()
        if not statement.background:
            return self._analyze_node(statement.node, state, context)
        if context.in_endless_loop:
            self._add_effect(EffectKind.FORK_BOMB, detail="an endless loop starts background processes")
        background_state = state.copy()
        printed = self._analyze_node(statement.node, background_state, replace(context, background=True))
        state.written_files |= background_state.written_files
        state.add_program_copies(background_state)
        return printed

    def _analyze_node(self, node: Node, state: ShellState, context: ExecutionContext) -> TextStream:
        match node:
            case SimpleCommand():
                return self._analyze_simple_command(node, state, context)
            case Pipeline():
                return self._analyze_pipeline(node, state, context)
            case AndOrList():
                return self._analyze_and_or_list(node, state, context)
            case CommandGroup():
                return self._analyze_group(node, state, context)
            case IfStatement():
                return self._analyze_if(node, state, context)
            case WhileLoop():
                return self._analyze_while(node, state, context)
            case ForLoop():
                return self._analyze_for(node, state, context)
            case CaseStatement():
                return self._analyze_case(node, state, context)
            case FunctionDefinition():
                return self._define_function(node, state, context)

    def _analyze_pipeline(self, node: Pipeline, state: ShellState, context: ExecutionContext) -> TextStream:
        stream = context.stdin
        for place, stage in enumerate(node.stages):
            last = place == len(node.stages) - 1
            inner_state = state.copy()
            background_state = context.background or not last
            stream = self._analyze_node(
                stage, inner_state, replace(context, stdin=stream, background=background_state)
            )
            state.written_files |= inner_state.written_files
            state.add_program_copies(inner_state)
            if last:  # zsh and `lastpipe` run the last stage in the current shell
                self._join_branches(state, state.copy(), inner_state)
        return stream or UNKNOWN_STREAM

    def _analyze_and_or_list(
        self, node: AndOrList, state: ShellState, context: ExecutionContext
    ) -> TextStream:
        printed = self._analyze_node(node.first, state, context)
        for sign, link in node.links:
            before = state.copy()
            printed = concatenate_streams(printed, self._analyze_node(link, state, context))
            cwd = state.cwd
            self._join_branches(state, before, state.copy())
            if sign == "&&":
                state.cwd = cwd  # assume that the command before `&&` succeeded
        return printed

    def _join_branches(self, state: ShellState, passed: ShellState, taken: ShellState) -> None:
        """Combine the shell states after two alternative branches, according to the branch policy."""
        if passed.is_equivalent(taken):
            state.replace_with(taken)
            return
        self.has_divergent_branches = True
        match self._branch_policy:
            case BranchPolicy.TAKEN:
                state.replace_with(taken)
            case BranchPolicy.SKIPPED:
                state.replace_with(passed)
            case BranchPolicy.MARK_UNKNOWN:
                taken.merge(passed)
                state.replace_with(taken)

    def _analyze_group(self, node: CommandGroup, state: ShellState, context: ExecutionContext) -> TextStream:
        inside = state.copy() if node.in_subshell else state
        self._evaluate_arithmetic(node.words, state, context)
        redirects, stdin = self._evaluate_redirects(
            node.redirects, self._create_expansion(state, context), state, context
        )
        printed = self._analyze_script(node.body, inside, replace(context, stdin=stdin))
        state.written_files |= inside.written_files
        state.add_program_copies(inside)
        if any(redirect.is_output for redirect in redirects):
            run = ProgramRun(
                argv=(),
                redirects=redirects,
                cwd=state.cwd,
                wrappers=context.wrappers,
                span=self._current_span,
            )
            self._reading.runs.append(run)
        return apply_output_redirects(printed, redirects, state)

    def _analyze_if(self, node: IfStatement, state: ShellState, context: ExecutionContext) -> TextStream:
        printed, ends = EMPTY_STREAM, []
        for condition, body in node.arms:
            if condition is not None:
                printed = concatenate_streams(printed, self._analyze_script(condition, state, context))
            arm = state.copy()
            printed = merge_alternatives(printed, self._analyze_script(body, arm, context))
            ends.append(arm)
        if node.arms[-1][0] is not None:  # without `else`, no branch may run
            ends.append(state.copy())
        for end in ends[1:]:
            self._join_branches(ends[0], end, ends[0].copy())
        state.replace_with(ends[0])
        return printed

    def _analyze_case(self, node: CaseStatement, state: ShellState, context: ExecutionContext) -> TextStream:
        self._create_expansion(state, context).expand_text(node.subject.parts)
        printed, before = EMPTY_STREAM, state.copy()
        for patterns, body in node.arms:
            for pattern in patterns:
                self._create_expansion(state, context).expand_text(pattern.parts)
            arm = before.copy()
            printed = merge_alternatives(printed, self._analyze_script(body, arm, context))
            self._join_branches(state, state.copy(), arm)
        return printed

    def _evaluate_arithmetic(
        self, words: Iterable[WordNode], state: ShellState, context: ExecutionContext
    ) -> None:
        """Evaluate the operands of `(( … ))` and of numeric comparisons in `[[ … ]]` as a shell would."""
        expansion = self._create_expansion(state, context)
        for word in words:
            expansion.evaluate_arithmetic(expansion.expand_text(word.parts).literal)

    def _analyze_while(self, node: WhileLoop, state: ShellState, context: ExecutionContext) -> TextStream:
        self._evaluate_arithmetic(node.words, state, context)
        first = first_plain_word(node.condition)
        endless = first in ALWAYS_TRUE_COMMANDS or any(is_endless_for(word) for word in node.words)
        inside = replace(context, in_endless_loop=context.in_endless_loop or endless)
        lines = split_known_lines(context.stdin, MAX_LOOP_ITERATIONS) if first == "read" else None
        if lines is not None:
            return self._analyze_read_loop(node, lines, state, inside)
        return self._iterate_until_stable(lambda: self._analyze_iteration(node, state, inside), state)

    def _analyze_read_loop(
        self, node: WhileLoop, lines: Sequence[str], state: ShellState, context: ExecutionContext
    ) -> TextStream:
        """Analyze the body of a `while read` loop once for each line of its known input."""
        printed = EMPTY_STREAM
        for line in lines:
            self._analyze_script(node.condition, state, replace(context, stdin=TextStream(Word(line))))
            printed = concatenate_streams(
                printed, self._analyze_script(node.body, state, replace(context, stdin=UNKNOWN_STREAM))
            )
        return printed

    def _analyze_iteration(self, node: WhileLoop, state: ShellState, context: ExecutionContext) -> TextStream:
        self._evaluate_arithmetic(node.words, state, context)
        return concatenate_streams(
            self._analyze_script(node.condition, state, context),
            self._analyze_script(node.body, state, context),
        )

    def _iterate_until_stable(self, once: Callable[[], TextStream], state: ShellState) -> TextStream:
        """Analyze the body of a loop repeatedly until the shell state no longer changes."""
        before = state.copy()
        self._budget.spend(10 + len(state.variables))
        printed = once()
        if not state.is_equivalent(before):
            middle = state.copy()
            once()
            if not state.is_equivalent(middle):
                state.forget_changes_since(middle)
                once()
        self._join_branches(state, before, state.copy())
        return repeat_unknown_times(printed)

    def _analyze_for(self, node: ForLoop, state: ShellState, context: ExecutionContext) -> TextStream:
        values: list[Word]
        if node.words is None:
            values = list(state.arguments)
        else:
            values = self._create_expansion(state, context).expand_fields(node.words)
        if len(values) > MAX_LOOP_ITERATIONS:
            values = [*values[:MAX_LOOP_ITERATIONS], unknown_word()]
        printed = EMPTY_STREAM
        for value in values:
            state.set_variable(node.name, value)
            printed = concatenate_streams(printed, self._analyze_script(node.body, state, context))
        return printed

    def _add_effect(
        self, kind: EffectKind, target: Word = EMPTY, taints: Iterable[str] = (), *, detail: str = ""
    ) -> None:
        traits = frozenset(str(taint) for taint in taints)
        self._reading.effects.append(CommandEffect(kind, target, traits, self._current_span, detail))
