"""Analysis of a shell command without running it.

The reader follows every path a command can take: variables, functions, aliases, pipes, here-documents, files
that the command itself writes, and code inside code. The result has one `ProgramRun` for every program that
would be started, and the effects that only this analysis can see. Whether a run is dangerous is decided
elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from shellverdict.embedded_code import analyze_code
from shellverdict.shell import created_files
from shellverdict.shell.builtins import BUILTINS
from shellverdict.shell.config_options import add_configured_options
from shellverdict.shell.embedded import find_files_loaded_by_name, has_option_like_target
from shellverdict.shell.expansion import Expansion
from shellverdict.shell.grammar import (
    DECLARATION_COMMANDS,
    RESERVED_WORD,
    Budget,
    BudgetExceeded,
    ShellSyntaxError,
    parse_script,
)
from shellverdict.shell.inner import InnerCommand, find_inner_commands
from shellverdict.shell.node_queries import (
    array_as_command,
    expand_leading_alias,
    file_of_read_substitution,
    first_plain_word,
    is_endless_for,
)
from shellverdict.shell.outputs import predict_output
from shellverdict.shell.programs import (
    DELETING_PROGRAMS,
    IN_SHELL_COMMANDS,
    SHELLS,
    TRANSPARENT_WRAPPERS,
    UPLOAD_PROGRAMS,
    WRITING_PROGRAMS,
    expand_env_split_string,
    resolve_program,
)
from shellverdict.shell.reading import BranchPolicy, CommandReading, ExecutionContext
from shellverdict.shell.redirections import (
    allocate_descriptor,
    apply_output_redirects,
    descriptor_number,
    keep_redirects_open,
)
from shellverdict.shell.runs import STDIN_PATHS, ProgramRun, Redirect, TextStream
from shellverdict.shell.state import ShellState
from shellverdict.shell.streams import (
    EMPTY_STREAM,
    UNKNOWN_STREAM,
    concatenate_streams,
    merge_alternatives,
    repeat_unknown_times,
    split_known_lines,
    with_text_taints,
)
from shellverdict.shell.tree import (
    AndOrList,
    Assignment,
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
from shellverdict.shell.values import (
    append_value,
    assignment_to_word,
    join_value,
    replace_item,
    script_arguments,
    set_keyed_items,
)
from shellverdict.shell.words import EMPTY, GAP, MAX_TEXT_CHARS, NO_VARIABLES, Taint, Word, unknown_word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["CommandReading", "ShellReader", "read_command"]

MAX_EXPORTED_CHARS = 4_096
MAX_CODE_DEPTH = 12
MAX_LOOP_ITERATIONS = 32
# Functions that a shell calls by itself, without a command that names them.
SHELL_CALLBACKS = frozenset(
    {
        *("command_not_found_handle", "command_not_found_handler", "precmd", "preexec", "chpwd", "periodic"),
        *("zshexit", "TRAPEXIT", "TRAPZERR", "TRAPDEBUG", "TRAPINT", "TRAPTERM"),
    }
)
# Suffixes of functions that ksh calls whenever the variable is used.
KSH_DISCIPLINES = (".get", ".set", ".append", ".unset")
ALWAYS_TRUE_COMMANDS = frozenset({":", "true", "1"})
TOP_LEVEL_CONTEXT = ExecutionContext()
# Standard input of another process; `self` is the process that opens it.
OTHER_PROCESS_STDIN = re.compile(
    rf"/proc/(?!self/|thread-self/)[^/]*(?:/task/[^/]*)?/fd/(?:0|[{GAP}-\ufddf])"
)
CAT = Word("cat")
NETWORK_PATHS = ("/dev/tcp/", "/dev/udp/")
LOOPBACK_PATHS = tuple(
    f"{prefix}{host}/" for prefix in NETWORK_PATHS for host in ("127.0.0.1", "localhost", "::1")
)
PROMPT_VARIABLES = frozenset({"PS0", "PS1", "PS2", "PS4"})
STARTUP_FILE_VARIABLES = frozenset({"BASH_ENV", "ENV"})
# Builtins that take a variable name and evaluate its subscript, which may contain a command.
NAME_EVALUATING_BUILTINS = frozenset(
    {"let", "test", "[", "printf", "read", "unset", "declare", "typeset", "local", "mapfile"}
)
COMMAND_IN_SUBSCRIPT = re.compile(r"^\w+\[[^\]]*(?:\$\(|`)")
COMMAND_IN_ASSIGNED_SUBSCRIPT = re.compile(r"^\w+=\w+\[[^\]]*(?:\$\(|`)")
LOOKUP_TABLES = frozenset(
    {"BASH_CMDS", "BASH_ALIASES", "commands", "aliases", "galiases", "saliases", "functions"}
)
PATH_TABLES = frozenset({"BASH_CMDS", "commands"})
RESERVED_PREFIXES = ("__toolfold", "TOOLFOLD_")
MAX_RECURSIVE_CALLS = 3


def read_command(
    command: str,
    *,
    home: str,
    cwd: str,
    initial_cwd: str = "",
    is_confidential: Callable[[ProgramRun], bool] = lambda _: False,
    variables: Mapping[str, Word] = NO_VARIABLES,
    budget: Budget | None = None,
) -> CommandReading:
    """Analyse a command and return the programs it would run. Stops within the budget and raises nothing.

    `initial_cwd` is the absolute path that a relative `cwd` is relative to; empty if unknown.
    `is_confidential` returns True if a run prints a secret. `variables` are exported variables left by
    earlier commands. `budget` is shared by all analyses that belong to one verdict.
    """
    reading = CommandReading()
    if len(command.encode(errors="surrogatepass")) > MAX_TEXT_CHARS:
        reading.is_incomplete = True
        return reading
    budget = budget or Budget()
    try:
        for branch_policy in BranchPolicy:
            reader = ShellReader(reading, budget, is_confidential, (0, len(command)), branch_policy)
            state = ShellState(
                home=Word(home), cwd=Word(cwd), variables=dict(variables), exported=frozenset(variables)
            )
            state.initial_cwd = Word(initial_cwd)
            reader.analyze_text(command, state, is_top_level=True)
            if branch_policy is BranchPolicy.MARK_UNKNOWN:
                reading.exported_variables = _exported_values(state)
            if not reader.has_divergent_branches:
                break
    except (BudgetExceeded, RecursionError):
        reading.is_incomplete = True
    return reading


def _exported_values(state: ShellState) -> dict[str, Word]:
    """Return the exported variables after the command; unknown or long values become unknown words."""
    names = state.variables if state.exports_all else state.exported & state.variables.keys()
    values = {name: join_value(state.variables[name]) for name in names}
    unknown = unknown_word(frozenset({Taint.UNREAD}))
    return {
        name: value if value.is_known and len(value) <= MAX_EXPORTED_CHARS else unknown
        for name, value in values.items()
    }


class ShellReader:
    """Recursive analysis of a syntax tree with one branch policy.

    Each `_analyze_…` method returns the text that its part of the script prints, updates the shell state as
    the part would, and adds runs and effects to the reading.
    """

    def __init__(
        self,
        reading: CommandReading,
        budget: Budget,
        is_confidential: Callable[[ProgramRun], bool],
        span: tuple[int, int],
        branch_policy: BranchPolicy,
    ) -> None:
        self._branch_policy, self.has_divergent_branches = branch_policy, False
        self._reading, self._budget, self._is_confidential = reading, budget, is_confidential
        self._current_span, self._top_level_text = span, ""
        # By id of the stream: the stream, and how many of its characters `read` has consumed.
        self._consumed_input: dict[int, tuple[TextStream, int]] = {}
        self._substituted_processes = 0
        # Traps and start-up files, analysed after everything else.
        self._deferred_code: list[Callable[[], TextStream]] = []

    # Scripts

    def analyze_text(
        self,
        text: str,
        state: ShellState,
        context: ExecutionContext = TOP_LEVEL_CONTEXT,
        *,
        is_top_level: bool = False,
    ) -> TextStream:
        """Analyse shell code and return what it prints.

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
                state.functions[node.name] = (node.body,)
                self._check_reserved_name(node.name)
                if node.name in SHELL_CALLBACKS or node.name.endswith(KSH_DISCIPLINES):
                    self._call_function((Word(node.name), unknown_word()), state, context)
                return EMPTY_STREAM

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
        """Set the state after two branches meet again, by the branch policy."""
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
        redirects, stdin = self._evaluate_redirects(node.redirects, state, context)
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
        """Evaluate the words of `(( … ))` and `[[ … ]]`: operands may be evaluated as numbers."""
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
        """Analyse `while read` once for each known line of input."""
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
        """Analyse a loop of unknown length: repeat its body until the state no longer changes."""
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

    # Simple commands

    def _analyze_simple_command(
        self, node: SimpleCommand, state: ShellState, context: ExecutionContext
    ) -> TextStream:
        if node.source is self._top_level_text:
            self._current_span = (node.start, node.end)
        # Interactive shells expand aliases, scripts do not: analyse the command in both ways.
        if alias := expand_leading_alias(node, state):
            self._analyze_alias(*alias, state.copy(), context)
        expansion = self._create_expansion(state, context)
        typed = [word if isinstance(word, WordNode) else assignment_to_word(word) for word in node.words]
        argv = tuple(expansion.expand_fields(typed))
        redirects, stdin = self._evaluate_redirects(node.redirects, state, context)
        items = array_as_command(node, state)
        if items is not None:  # zsh expands `$name` to all items of an array
            self._analyze_argv(items, state.copy(), replace(context, stdin=stdin), redirects=redirects)
        if not argv:
            for assignment in node.assignments:
                self._assign_variable(assignment, state, expansion, context)
            if redirects:
                self._record_run(
                    ProgramRun(argv=(), redirects=redirects, cwd=state.cwd, span=self._current_span), context
                )
            return apply_output_redirects(EMPTY_STREAM, redirects, state)
        before = {each.name: state.variables.get(each.name) for each in node.assignments}
        for assignment in node.assignments:
            self._assign_variable(assignment, state, expansion, context)
        assigned = {name: join_value(state.variables.get(name, EMPTY)) for name in before}
        if isinstance(node.words[0], WordNode) and node.words[0].bare_text in DECLARATION_COMMANDS:
            self._declare_variables(node.words, argv, state, expansion, context)
        inside = replace(context, stdin=stdin)
        printed = self._analyze_argv(argv, state, inside, env_assignments=assigned, redirects=redirects)
        for name, value in before.items():  # assignments before a command end with it
            state.restore_variable(name, value)
        if argv == ("exec",):
            keep_redirects_open(redirects, stdin, state)
        return apply_output_redirects(printed, redirects, state)

    def _analyze_alias(
        self, name: str, text: str, state: ShellState, context: ExecutionContext
    ) -> TextStream:
        meaning = state.aliases.pop(name)  # an alias is not expanded inside its own text
        try:
            return self.analyze_text(text, state, replace(context, depth=context.depth + 1))
        finally:
            state.aliases.setdefault(name, meaning)

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
        """Analyse a command after expansion: a function, a builtin that changes the state, or a program."""
        self._budget.spend(10)  # includes the cost of matching rules against the run
        if functions and argv[0] in state.functions:
            printed = self._call_function(argv, state, context)
            if None not in state.functions.get(argv[0], ()):
                return printed
        if argv[0].is_pattern:
            self._budget.spend(50)
        name = resolve_program(argv[0], state)
        if name == "env":
            argv = expand_env_split_string(argv)
        argv = add_configured_options(
            name, argv, env_assignments or {}, self._create_file_lookup(state, context)
        )
        argv = (
            argv[0],
            *(state.follow_symlinks(word, itself=name not in DELETING_PROGRAMS) for word in argv[1:]),
        )
        run = ProgramRun(
            argv=(name, *argv[1:]),
            path=argv[0],
            span=self._current_span,
            env_assignments=MappingProxyType(dict(env_assignments or {})),
            redirects=redirects,
            stdin=context.stdin,
            cwd=state.cwd,
            absolute_cwd=state.absolute_cwd,
            wrappers=context.wrappers,
            has_unknown_operands=context.has_unknown_operands
            or (context.has_unknown_arguments and len(argv) == 1 and name in DELETING_PROGRAMS),
            background=context.background,
            in_endless_loop=context.in_endless_loop,
        )
        if any(word.startswith("BASH_FUNC_") for word in argv[1:]):
            self._add_effect(
                EffectKind.UNREADABLE, detail="a shell function is passed in an environment variable"
            )
        if any(COMMAND_IN_ASSIGNED_SUBSCRIPT.search(word) for word in argv[1:]):
            self._add_effect(
                EffectKind.UNREADABLE,
                detail="the value contains a command that arithmetic evaluation would run",
            )
        if name == "alias":
            self._check_alias_definitions(argv[1:], state, context)
        if name == "let":
            for word in argv[1:]:
                self._create_expansion(state, context).evaluate_arithmetic(word.literal)
        builtin = BUILTINS.get(name)
        if builtin is not None:
            builtin(self._with_remaining_input(run), state)
        if name in NAME_EVALUATING_BUILTINS and any(COMMAND_IN_SUBSCRIPT.search(word) for word in argv[1:]):
            self._add_effect(
                EffectKind.UNREADABLE, detail="a variable name contains a command that the shell would run"
            )
        return self._record_run(run, context, state)

    def _check_alias_definitions(
        self, words: Sequence[Word], state: ShellState, context: ExecutionContext
    ) -> None:
        """Report aliases of reserved words; analyse zsh aliases that are expanded anywhere in a command."""
        anywhere = any(word.startswith("-") and set(word) & {"s", "g"} for word in words)
        for word in words:
            name, equals, text = word.partition("=")
            if equals and RESERVED_WORD.match(f"{name} "):
                self._add_effect(
                    EffectKind.UNREADABLE,
                    word,
                    detail="an alias redefines a reserved word of the shell",
                )
            elif equals and anywhere:
                self.analyze_text(
                    Word(text.lstrip("; ")), state.copy(), replace(context, depth=context.depth + 1)
                )

    def _create_file_lookup(
        self, state: ShellState, context: ExecutionContext
    ) -> Callable[[Word], TextStream | None]:
        """Return a function that finds the known content of a file by name; `-` is standard input."""
        return lambda word: (
            context.stdin if word in STDIN_PATHS else state.written_files.get(state.resolve_path(word))
        )

    def _with_remaining_input(self, run: ProgramRun) -> ProgramRun:
        """Give a repeated `read` only the lines that earlier ones have not consumed."""
        stream = run.stdin
        if run.name != "read" or stream is None or stream.text is None:
            return run
        _, taken = self._consumed_input.get(id(stream), (stream, 0))
        line_end = stream.text.find("\n", taken)
        self._consumed_input[id(stream)] = (stream, len(stream.text) if line_end < 0 else line_end + 1)
        return replace(run, stdin=TextStream(Word(stream.text[taken:]), stream.taints)) if taken else run

    def _record_run(
        self, run: ProgramRun, context: ExecutionContext, state: ShellState | None = None
    ) -> TextStream:
        """Record a program that would be started, analyse what it runs in turn, and return its output."""
        self._reading.runs.append(run)
        self._check_redirect_targets(run)
        if state is None:
            return EMPTY_STREAM
        if not run.name.is_known:
            self._add_effect(
                EffectKind.UNREADABLE,
                run.path,
                run.path.taints,
                detail="the name of the program is not known",
            )
        self._check_secret_upload(run, state)
        if run.name in WRITING_PROGRAMS and run.argv[-1][:1] == GAP and not run.wrappers:
            self._add_effect(EffectKind.UNREADABLE, run.path, detail="the file it writes is not known")
        self._analyze_written_program(run, state, context)
        self._check_special_file_names(run, state)
        self._reading.written_texts.add_written_files(run, state.written_files)
        printed: TextStream | None = None
        for inner_command in find_inner_commands(run):
            seen = self._analyze_inner(inner_command, run, state, context)
            printed = seen if printed is None or inner_command.wrapper else printed
        created_files.record_created_files(run, state, self._is_confidential)
        self._reading.written_texts.record_edit(run)
        if printed is None or run.name not in TRANSPARENT_WRAPPERS:
            printed = with_text_taints(
                predict_output(run, lambda word: state.written_files.get(state.resolve_path(word)))
            )
        if self._is_confidential(run):
            printed = TextStream(printed.text, printed.taints | {Taint.CONFIDENTIAL})
        return printed

    def _analyze_written_program(self, run: ProgramRun, state: ShellState, context: ExecutionContext) -> None:
        """Analyse a program that this command has itself written or downloaded."""
        path = state.resolve_path(run.path) if "/" in run.path else _find_on_path(run.path, state)
        if not path:
            return
        stream = state.written_files.get(path)
        if stream is not None:
            inner_state = state.create_child(run.env_assignments)
            inner_state.arguments = run.argv[1:]
            self._analyze_stream_code(stream, "sh", run, inner_state, context)
        elif created_files.is_downloaded(state, path):
            self._add_effect(EffectKind.RUN_UNREAD, run.path, frozenset({Taint.NETWORK}))
        else:
            self._reading.written_texts.add_edited_texts()

    def _check_special_file_names(self, run: ProgramRun, state: ShellState) -> None:
        """Report files named like an option and files that the program loads because of their names."""
        if has_option_like_target(run):
            self._add_effect(
                EffectKind.UNREADABLE, run.path, detail="a created file is named like a command-line option"
            )
        for path, taints in find_files_loaded_by_name(run, state.written_files):
            self._add_effect(EffectKind.RUN_UNREAD, Word(path), taints or {Taint.UNREAD})

    def _check_secret_upload(self, run: ProgramRun, state: ShellState) -> None:
        """Report the upload of a file into which this command has copied a secret."""
        if run.name not in UPLOAD_PROGRAMS:
            return
        secret = {path for path, stream in state.written_files.items() if Taint.CONFIDENTIAL in stream.taints}
        if not secret:
            return
        for word in run.argv[1:]:
            if state.resolve_path(Word(word.rpartition("@")[2].rpartition("=")[2])) in secret:
                self._add_effect(EffectKind.EXFILTRATE, word, {Taint.CONFIDENTIAL})

    def _check_redirect_targets(self, run: ProgramRun) -> None:
        words = run.argv[1:] if run.name in WRITING_PROGRAMS or run.name in ("dd", "sponge", "socat") else ()
        targets = (*words, *(each.target for each in run.redirects if each.is_output))
        if any(OTHER_PROCESS_STDIN.search(target) for target in targets):
            self._add_effect(
                EffectKind.UNREADABLE,
                run.path,
                detail="it may write to the standard input of another process",
            )
        for redirect in run.redirects:
            if redirect.is_output and redirect.target[:1] == GAP:
                self._add_effect(
                    EffectKind.UNREADABLE, redirect.target, detail="the file it writes is not known"
                )
            far = redirect.target.startswith(NETWORK_PATHS) and not redirect.target.startswith(LOOPBACK_PATHS)
            if far and (run.name in SHELLS or run.name == "exec"):
                self._add_effect(EffectKind.REVERSE_SHELL, redirect.target)
            elif far and redirect.is_output and run.argv and self._is_confidential(run):
                self._add_effect(EffectKind.EXFILTRATE, redirect.target, {"network", "in:secret"})

    # Code inside code

    def _analyze_inner(
        self, inner_command: InnerCommand, run: ProgramRun, state: ShellState, context: ExecutionContext
    ) -> TextStream:
        """Analyse one command or piece of code that a program runs in turn."""
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
        """Call `follow` with the arguments of the script set.

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
        """Analyse code that is piped into an interpreter or stored in a file that this command wrote."""
        if stream.is_interactive:
            return self._await_input(language, run, state, context)
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

    def _await_input(
        self,
        language: str,  # noqa: ARG002
        run: ProgramRun,  # noqa: ARG002
        state: ShellState,  # noqa: ARG002
        context: ExecutionContext,  # noqa: ARG002
    ) -> TextStream:
        """Handle a program that reads code from interactive input; session readers override this."""
        return UNKNOWN_STREAM

    def _analyze_code_file(
        self, file: Word, language: str, run: ProgramRun, state: ShellState, context: ExecutionContext
    ) -> TextStream:
        if file in STDIN_PATHS:
            return self._analyze_stream_code(run.stdin or UNKNOWN_STREAM, language, run, state, context)
        path = state.resolve_path(file)
        stream = state.written_files.get(path)
        if stream is None and (number := descriptor_number(path)):
            stream = state.input_descriptors.get(number, UNKNOWN_STREAM)
        if stream is not None:
            return self._analyze_stream_code(stream, language, run, state, context)
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
            state.written_files |= {
                path: stream for path, stream in inside.written_files.items() if stream.taints
            }
        return UNKNOWN_STREAM

    def _call_function(
        self, argv: tuple[Word, ...], state: ShellState, context: ExecutionContext
    ) -> TextStream:
        """Analyse a function call; report a fork bomb if it starts itself in the background."""
        name = argv[0]
        again = context.call_stack.count(name)
        if again and context.background:
            self._add_effect(
                EffectKind.FORK_BOMB, name, detail="a function starts itself in the background without end"
            )
            return UNKNOWN_STREAM
        if again > MAX_RECURSIVE_CALLS:
            return UNKNOWN_STREAM
        arguments = argv[1:] if again < MAX_RECURSIVE_CALLS else tuple(unknown_word() for _ in argv[1:])
        outer, state.arguments = state.arguments, arguments
        hidden, state.shadowed_variables = state.shadowed_variables, {}
        printed = EMPTY_STREAM
        for body in state.functions[name]:
            if body is None:
                continue
            inside = replace(context, call_stack=(*context.call_stack, name), background=False)
            printed = merge_alternatives(printed, self._analyze_node(body, state, inside))
        state.arguments = outer
        state.leave_function(hidden)
        return printed

    # Words, values, redirections

    def _create_expansion(self, state: ShellState, context: ExecutionContext) -> Expansion:
        """Return an expansion whose substitutions are analysed in this state and context."""

        def capture_output(script: Script) -> TextStream:
            if (file := file_of_read_substitution(script)) is not None:
                path = self._create_expansion(state, context).expand_text(file)
                opened = self._open_input(path, state)
                if self._is_confidential(ProgramRun(argv=(CAT, path), path=CAT, cwd=state.cwd)):
                    opened = TextStream(None, opened.taints | {Taint.CONFIDENTIAL})
                return opened
            inside = state.copy()
            printed = self._analyze_script(script, inside, replace(context, background=False))
            state.written_files |= inside.written_files
            return printed

        def substitute_process(script: Script, writes: bool) -> Word:
            fed = replace(context, stdin=TextStream(None, frozenset({Taint.UNREAD}))) if writes else context
            printed = self._analyze_script(script, state.copy(), fed)
            self._substituted_processes += 1
            path = f"/dev/fd/{62 + self._substituted_processes}"
            if not writes:
                state.written_files[path] = printed
            return Word(path)

        def report_evaluated_text(text: str) -> None:
            self._add_effect(
                EffectKind.UNREADABLE, Word(text), detail="an evaluated expression contains a command"
            )

        return Expansion(
            state,
            self._budget,
            capture_output,
            substitute_process,
            report_evaluated_text,
            self._check_reserved_name,
        )

    def _assign_variable(
        self, assignment: Assignment, state: ShellState, expansion: Expansion, context: ExecutionContext
    ) -> None:
        value = expansion.expand_value(assignment.value)
        old = state.get_value(assignment.name)
        if isinstance(value, tuple):
            set_keyed_items(assignment.name, value, state)
        if assignment.index is not None:
            key = expansion.expand_text(assignment.index).literal
            set_keyed_items(assignment.name, (Word(f"[{key}]={join_value(value)}"),), state)
            value = replace_item(old, expansion.evaluate_arithmetic(key), value)
        elif assignment.appends:
            value = append_value(old, value)
        if state.attributes.get(assignment.name) == "i":
            expansion.evaluate_arithmetic(Word(join_value(value)))
        state.set_variable(assignment.name, value)
        self._check_reserved_name(assignment.name)
        if COMMAND_IN_SUBSCRIPT.search(join_value(value)):
            self._add_effect(
                EffectKind.UNREADABLE,
                join_value(value),
                detail="the value contains a command that arithmetic evaluation would run",
            )
        if assignment.name in LOOKUP_TABLES and assignment.index is not None:
            key = expansion.expand_text(assignment.index).literal
            if assignment.name in PATH_TABLES:
                state.program_copies[key] = Word(join_value(value).rpartition("/")[2])
            else:
                state.aliases[key] = join_value(value)
        self._check_hook_variable(assignment.name, join_value(value), state, context)

    def _check_reserved_name(self, name: str) -> None:
        """Report the use of variable and function names that the terminal reserves for itself."""
        if name.startswith(RESERVED_PREFIXES):
            self._add_effect(
                EffectKind.OVERWRITE, Word(name), {"in:own"}, detail="a variable reserved for the terminal"
            )

    def _check_hook_variable(
        self, name: str, value: Word, state: ShellState, context: ExecutionContext
    ) -> None:
        """Analyse or report values of variables that a shell runs by itself, such as PROMPT_COMMAND."""
        if name == "PROMPT_COMMAND":
            self.analyze_text(value, state.copy(), replace(context, depth=context.depth + 1))
        elif name in PROMPT_VARIABLES and ("$(" in value or "`" in value):
            self._add_effect(
                EffectKind.UNREADABLE, value, detail="the shell would run a command in the prompt string"
            )
        elif name in STARTUP_FILE_VARIABLES and value:
            self._deferred_code.append(
                lambda: self._analyze_code_file(value, "sh", ProgramRun(argv=(), path=value), state, context)
            )

    def _declare_variables(
        self,
        words: Sequence[WordNode | Assignment],
        argv: tuple[Word, ...],
        state: ShellState,
        expansion: Expansion,
        context: ExecutionContext,
    ) -> None:
        flags = "".join(word for word in argv[1:] if word.startswith("-"))
        for word in words[1:]:
            name = word.name if isinstance(word, Assignment) else word.bare_text
            if name and argv[0] in ("local", "declare", "typeset") and "g" not in flags:
                state.declare_local(name)
            attribute = next((flag for flag in "ilu" if flag in flags), None)
            if name and attribute and argv[0] != "alias":
                state.attributes[name] = attribute
            if not isinstance(word, Assignment):
                continue
            if argv[0] == "alias":
                state.aliases[word.name] = (
                    expansion.expand_literal(word.value) if isinstance(word.value, tuple) else ""
                )
            elif "n" in flags and argv[0] != "export" and isinstance(word.value, tuple):
                state.name_references[word.name] = expansion.expand_literal(word.value)
            else:
                self._assign_variable(word, state, expansion, context)

    def _evaluate_redirects(
        self, redirections: Iterable[Redirection], state: ShellState, context: ExecutionContext
    ) -> tuple[tuple[Redirect, ...], TextStream | None]:
        """Return the redirections with their targets expanded, and the standard input after them."""
        expansion = self._create_expansion(state, context)
        found: list[Redirect] = []
        stdin = context.stdin
        for redirection in redirections:
            sign = redirection.operator
            text = expansion.expand_text(redirection.target, tilde=sign not in ("<<", "<<-"))
            if sign in ("<<<", "<<", "<<-"):
                text = text.literal
                fed = TextStream(Word(text + "\n") if sign == "<<<" else text, text.taints)
                if redirection.descriptor in ("", "0"):
                    stdin = fed
                else:
                    state.input_descriptors[allocate_descriptor(redirection.descriptor, state)] = fed
                continue
            if sign in ("<", "<>") and redirection.descriptor in ("", "0"):
                stdin = self._open_input(text, state)
            elif sign in ("<", "<>") and redirection.descriptor.isdigit():
                state.input_descriptors[redirection.descriptor] = self._open_input(text, state)
            elif sign == "<&" and text in state.input_descriptors:
                stdin = state.input_descriptors[text]
            if redirection.descriptor.isdigit() and text.startswith(NETWORK_PATHS):
                state.input_descriptors[redirection.descriptor] = TextStream(None, frozenset({Taint.NETWORK}))
            found.append(Redirect(sign, state.follow_symlinks(text), redirection.descriptor))
        return tuple(found), stdin

    def _open_input(self, path: Word, state: ShellState) -> TextStream:
        """Return the content of a file that is opened for reading."""
        if path.startswith(NETWORK_PATHS):
            return TextStream(None, frozenset({Taint.NETWORK}))
        if path == "/dev/null":
            return EMPTY_STREAM
        if number := descriptor_number(path):
            return state.written_files.get(
                state.resolve_path(path), state.input_descriptors.get(number, UNKNOWN_STREAM)
            )
        opened = state.written_files.get(state.resolve_path(path))
        if opened is None and self._is_confidential(ProgramRun(argv=(CAT, path), path=CAT, cwd=state.cwd)):
            return TextStream(None, frozenset({Taint.UNREAD, Taint.CONFIDENTIAL}))
        return opened or TextStream(None, frozenset({Taint.UNREAD}))


def _find_on_path(name: str, state: ShellState) -> str:
    """Return the file of a bare program name, if this command has set PATH and created that file."""
    if "PATH" not in state.variables or name in BUILTINS:
        return ""
    for directory in join_value(state.variables["PATH"]).split(":"):
        path = state.resolve_path(Word(f"{directory or '.'}/{name}"))
        if path in state.written_files or created_files.is_downloaded(state, path):
            return path
    return ""
