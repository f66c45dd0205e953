"""Analyze a shell command without running it.

The reader follows every path a command can take: variables, functions, aliases, pipes, here-documents, files
that the command itself writes, and code inside code. The result has one `ProgramRun` for every program that
would be started, and the effects that only this analysis can see. Whether a run is dangerous is decided
elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from shellverdict.shell import created_files
from shellverdict.shell.budget import Budget, BudgetExceeded
from shellverdict.shell.builtins import BUILTINS
from shellverdict.shell.config_options import add_configured_options
from shellverdict.shell.earlier_files import NO_EARLIER_FILES, EarlierFiles
from shellverdict.shell.embedded import detect_program_language, has_indirect_call
from shellverdict.shell.expansion import Expansion
from shellverdict.shell.grammar import DECLARATION_COMMANDS, RESERVED_WORD
from shellverdict.shell.inner import find_inner_commands
from shellverdict.shell.loaded_files import find_loaded_files
from shellverdict.shell.nested_code import NestedCodeReader
from shellverdict.shell.node_queries import (
    array_as_command,
    expand_leading_alias,
    file_of_read_substitution,
)
from shellverdict.shell.outputs import predict_output
from shellverdict.shell.programs import (
    DELETING_PROGRAMS,
    TRANSPARENT_WRAPPERS,
    expand_env_split_string,
    resolve_program,
)
from shellverdict.shell.reading import BranchPolicy, CommandReading, ExecutionContext
from shellverdict.shell.redirections import (
    CAT,
    apply_output_redirects,
    evaluate_redirects,
    keep_redirects_open,
    open_input,
)
from shellverdict.shell.run_checks import (
    COMMAND_IN_SUBSCRIPT,
    check_arguments,
    check_file_names,
    check_program,
    check_redirect_targets,
)
from shellverdict.shell.runs import STDIN_PATHS, ProgramRun, Redirect, TextStream
from shellverdict.shell.state import ShellState
from shellverdict.shell.streams import (
    EMPTY_STREAM,
    UNKNOWN_STREAM,
    merge_alternatives,
    with_text_taints,
)
from shellverdict.shell.tree import (
    Assignment,
    FunctionDefinition,
    Redirection,
    Script,
    SimpleCommand,
    WordNode,
)
from shellverdict.shell.values import (
    append_value,
    assignment_to_word,
    join_value,
    replace_item,
    set_keyed_items,
)
from shellverdict.shell.words import EMPTY, MAX_TEXT_CHARS, NO_VARIABLES, Taint, Word, unknown_word
from shellverdict.verdict import EffectKind

__all__ = ["CommandReading", "ShellReader", "read_command"]

MAX_EXPORTED_CHARS = 4_096
# Functions that a shell calls by itself, without a command that names them.
SHELL_CALLBACKS = frozenset(
    {
        *("command_not_found_handle", "command_not_found_handler", "precmd", "preexec", "chpwd", "periodic"),
        *("zshexit", "TRAPEXIT", "TRAPZERR", "TRAPDEBUG", "TRAPINT", "TRAPTERM"),
    }
)
# Suffixes of functions that ksh calls whenever the variable is used.
KSH_DISCIPLINES = (".get", ".set", ".append", ".unset")
PROMPT_VARIABLES = frozenset({"PS0", "PS1", "PS2", "PS4"})
STARTUP_FILE_VARIABLES = frozenset({"BASH_ENV", "ENV"})
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
    earlier_files: EarlierFiles = NO_EARLIER_FILES,
    budget: Budget | None = None,
) -> CommandReading:
    """Analyze a command and return the programs it would run. Stays within the budget and never raises.

    `initial_cwd` is the absolute path that a relative `cwd` is relative to; empty if unknown.
    `is_confidential` returns True if a run prints a secret. `variables` are exported variables left by
    earlier commands, `earlier_files` the files that they changed. `budget` is shared by all analyses that
    belong to one verdict.
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
            state.initial_cwd, state.earlier_files = Word(initial_cwd), earlier_files
            changes = earlier_files.changes.relative_to(initial_cwd)
            state.program_copies, state.symlinks = dict(changes.program_copies), dict(changes.symlinks)
            state.downloaded_directories = changes.downloaded_directories
            reader.analyze_text(command, state, is_top_level=True)
            if branch_policy is BranchPolicy.MARK_UNKNOWN:
                reading.exported_variables = _exported_values(state)
                reading.file_changes = state.file_changes()
            if not reader.has_divergent_branches:
                break
    except (BudgetExceeded, RecursionError):
        reading.is_incomplete = True
    return reading


def _exported_values(state: ShellState) -> dict[str, Word]:
    """Return the variables that are exported after the command; very long values are marked as unknown."""
    names = state.variables if state.exports_all else state.exported & state.variables.keys()
    values = {name: join_value(state.variables[name]) for name in names}
    unknown = unknown_word(frozenset({Taint.UNREAD}))
    return {
        name: value if value.is_known and len(value) <= MAX_EXPORTED_CHARS else unknown
        for name, value in values.items()
    }


class ShellReader(NestedCodeReader):
    """Reader that analyzes shell commands, including commands run by `sudo` and others, and their output."""

    def __init__(
        self,
        reading: CommandReading,
        budget: Budget,
        is_confidential: Callable[[ProgramRun], bool],
        span: tuple[int, int],
        branch_policy: BranchPolicy,
    ) -> None:
        super().__init__(reading, budget, span, branch_policy)
        self._is_confidential = is_confidential
        # By id of the stream: the stream, and how many of its characters `read` has consumed.
        self._consumed_input: dict[int, tuple[TextStream, int]] = {}
        self._substituted_processes = 0

    # Functions

    def _define_function(
        self, node: FunctionDefinition, state: ShellState, context: ExecutionContext
    ) -> TextStream:
        state.functions[node.name] = (node.body,)
        self._check_reserved_name(node.name)
        if node.name in SHELL_CALLBACKS or node.name.endswith(KSH_DISCIPLINES):
            self._call_function((Word(node.name), unknown_word()), state, context)
        return EMPTY_STREAM

    def _call_function(
        self, argv: tuple[Word, ...], state: ShellState, context: ExecutionContext
    ) -> TextStream:
        """Analyze a function call; report a fork bomb if the function starts itself in the background."""
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
        redirects, stdin = self._evaluate_redirects(node.redirects, expansion, state, context)
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
        """Analyze a command after expansion: a function, a builtin that changes the state, or a program."""
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
        self._reading.effects += check_arguments(run)
        if name == "alias":
            self._check_alias_definitions(argv[1:], state, context)
        if name == "let":
            for word in argv[1:]:
                self._create_expansion(state, context).evaluate_arithmetic(word.literal)
        builtin = BUILTINS.get(name)
        if builtin is not None:
            builtin(self._with_remaining_input(run), state)
        return self._record_run(run, context, state)

    def _check_alias_definitions(
        self, words: Sequence[Word], state: ShellState, context: ExecutionContext
    ) -> None:
        """Report aliases of reserved words; analyze zsh's global aliases, which expand at any position."""
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
        """Return a function that looks up the known content of a file by name; `-` means standard input."""
        return lambda word: (
            context.stdin if word in STDIN_PATHS else state.find_file(state.resolve_path(word))
        )

    def _with_remaining_input(self, run: ProgramRun) -> ProgramRun:
        """Return a `read` command with only the input lines that earlier `read` commands did not consume."""
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
        """Record a program that would be started, analyze the commands it runs, and return its output."""
        self._reading.runs.append(run)
        self._reading.effects += check_redirect_targets(run, self._is_confidential)
        if state is None:
            return EMPTY_STREAM
        self._reading.effects += check_program(run, state)
        self._analyze_written_program(run, state, context)
        self._reading.effects += check_file_names(run, state)
        self._reading.written_texts.add_written_files(run, state.written_files)
        self._analyze_loaded_files(run, state, context)
        printed: TextStream | None = None
        for inner_command in find_inner_commands(run):
            seen = self._analyze_inner(inner_command, run, state, context)
            printed = seen if printed is None or inner_command.wrapper else printed
        created_files.record_created_files(run, state, self._is_confidential)
        self._reading.written_texts.record_edit(run)
        if printed is None or run.name not in TRANSPARENT_WRAPPERS:
            printed = with_text_taints(
                predict_output(run, lambda word: state.find_file(state.resolve_path(word)))
            )
        if self._is_confidential(run):
            printed = TextStream(printed.text, printed.taints | {Taint.CONFIDENTIAL})
        return printed

    def _analyze_written_program(self, run: ProgramRun, state: ShellState, context: ExecutionContext) -> None:
        """Analyze a program whose file was written or downloaded by the same command."""
        path = state.resolve_path(run.path) if "/" in run.path else _find_on_path(run.path, state)
        if not path:
            return
        stream = state.find_file(path)
        if stream is not None:
            inner_state = state.create_child(run.env_assignments)
            inner_state.arguments = run.argv[1:]
            language = detect_program_language(stream.text or "")
            self._analyze_stream_code(stream, language, run, inner_state, context)
        elif created_files.is_downloaded(state, path):
            self._add_effect(EffectKind.RUN_UNREAD, run.path, frozenset({Taint.NETWORK}))
        else:
            self._reading.written_texts.add_edited_texts()

    def _analyze_loaded_files(self, run: ProgramRun, state: ShellState, context: ExecutionContext) -> None:
        """Analyze files changed before this command that a program loads, such as a makefile."""
        for file in find_loaded_files(run, state):
            text = file.stream.text
            if file.is_certain and (file.language or text is None):
                inner_state = state.create_child(run.env_assignments)
                self._analyze_stream_code(file.stream, file.language, run, inner_state, context)
            is_understood = file.is_certain and file.language
            if text is not None and (not is_understood or has_indirect_call(text, file.language)):
                self._reading.written_texts.add_text(text, file.path, run)

    # Words, values, redirections

    def _evaluate_redirects(
        self,
        redirections: Iterable[Redirection],
        expansion: Expansion,
        state: ShellState,
        context: ExecutionContext,
    ) -> tuple[tuple[Redirect, ...], TextStream | None]:
        return evaluate_redirects(redirections, context.stdin, expansion, state, self._is_confidential)

    def _create_expansion(self, state: ShellState, context: ExecutionContext) -> Expansion:
        """Return a word expander that analyzes command substitutions in this shell state and context."""

        def capture_output(script: Script) -> TextStream:
            if (file := file_of_read_substitution(script)) is not None:
                path = self._create_expansion(state, context).expand_text(file)
                opened = open_input(path, state, self._is_confidential)
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
        """Report a variable or function whose name is reserved for Toolfold's terminal tool."""
        if name.startswith(RESERVED_PREFIXES):
            self._add_effect(
                EffectKind.OVERWRITE, Word(name), {"in:own"}, detail="a variable reserved for the terminal"
            )

    def _check_hook_variable(
        self, name: str, value: Word, state: ShellState, context: ExecutionContext
    ) -> None:
        """Analyze the code in variables that a shell runs automatically, such as PROMPT_COMMAND."""
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


def _find_on_path(name: str, state: ShellState) -> str:
    """Return the file that a program name refers to, if the command has set PATH and created that file."""
    if "PATH" not in state.variables or name in BUILTINS:
        return ""
    for directory in join_value(state.variables["PATH"]).split(":"):
        path = state.resolve_path(Word(f"{directory or '.'}/{name}"))
        if state.find_file(path) is not None or created_files.is_downloaded(state, path):
            return path
    return ""
