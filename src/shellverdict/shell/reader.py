"""Walking through a command as a shell would, without running it.

The reader follows every way a command can take: variables, functions, aliases, pipes, here-documents, files
the command itself writes, and code inside code. It yields one `Run` for every program that would be started,
and the few effects that only the walk can see. It judges nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from shellverdict.foreign import read_foreign
from shellverdict.shell import fetched
from shellverdict.shell.builtins import BUILTINS
from shellverdict.shell.configs import with_configured_options
from shellverdict.shell.embedded import files_loaded_by_name, makes_option_file
from shellverdict.shell.expansion import Expansion
from shellverdict.shell.grammar import DECLARES, RESERVED, Budget, TooMuch
from shellverdict.shell.inner import Inner, inner
from shellverdict.shell.outputs import output
from shellverdict.shell.programs import (
    DELETING,
    SAME_SHELL,
    SEEN_THROUGH,
    SENDERS,
    SHELLS,
    WRITING,
    env_words,
    program,
)
from shellverdict.shell.runs import STANDARD_INPUT, Redirect, Run, Stream
from shellverdict.shell.state import State
from shellverdict.shell.streams import SILENT, UNKNOWN, after, either, with_marks
from shellverdict.shell.tree import (
    Assignment,
    Part,
    Redirection,
    Script,
    Simple,
    Variable,
    WordNode,
)
from shellverdict.shell.values import added, declared, handed, joined, keep_by_key, with_item
from shellverdict.shell.walk import DEEPEST_CODE, Around, Choice, Reading, Walk
from shellverdict.shell.words import EMPTY, GAP, LONGEST, NOTHING_KEPT, Mark, Word, gap
from shellverdict.verdict import Kind

__all__ = ["Reading", "ShellReader", "read_command"]

LONGEST_LEFT = 4_096
DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d+)")
# The input of another process; `self` is one's own.
OTHERS_INPUT = re.compile(rf"/proc/(?!self/|thread-self/)[^/]*(?:/task/[^/]*)?/fd/(?:0|[{GAP}-\ufddf])")
CAT = Word("cat")
NETWORK_FILES = ("/dev/tcp/", "/dev/udp/")
LOOPBACK = tuple(f"{folder}{host}/" for folder in NETWORK_FILES for host in ("127.0.0.1", "localhost", "::1"))
PROMPTS = frozenset({"PS0", "PS1", "PS2", "PS4"})
STARTED_WITH = frozenset({"BASH_ENV", "ENV"})
# Builtins that take the name of a variable, and evaluate its subscript.
NAMING = frozenset({"let", "test", "[", "printf", "read", "unset", "declare", "typeset", "local", "mapfile"})
SUBSCRIPT = re.compile(r"^\w+\[[^\]]*(?:\$\(|`)")
GIVEN_SUBSCRIPT = re.compile(r"^\w+=\w+\[[^\]]*(?:\$\(|`)")
TABLES = frozenset({"BASH_CMDS", "BASH_ALIASES", "commands", "aliases", "galiases", "saliases", "functions"})
PATH_TABLES = frozenset({"BASH_CMDS", "commands"})
OUR_NAMES = ("__toolfold", "TOOLFOLD_")
MOST_CALLS = 3


def read_command(
    command: str,
    *,
    home: str,
    cwd: str,
    start: str = "",
    confidential: Callable[[Run], bool] = lambda _: False,
    kept: Mapping[str, Word] = NOTHING_KEPT,
    budget: Budget | None = None,
) -> Reading:
    """Follow the command. Whatever it is, this ends soon and raises nothing.

    `start` is the absolute path that a relative `cwd` starts from, where it is known. `kept` are the
    variables that earlier commands have left to this one. `budget` is shared with the other readings of the
    same verdict.
    """
    reading = Reading()
    if len(command.encode(errors="surrogatepass")) > LONGEST:
        reading.unread = True
        return reading
    budget = budget or Budget()
    try:
        for choice in Choice:
            walk = ShellReader(reading, budget, confidential, (0, len(command)), choice)
            state = State(home=Word(home), cwd=Word(cwd), variables=dict(kept), exported=frozenset(kept))
            state.start = Word(start)
            walk.text(command, state, top=True)
            if choice is Choice.DOUBT:
                reading.leaves = _left(state)
            if not walk.doubted:
                break
    except (TooMuch, RecursionError):
        reading.unread = True
    return reading


def _left(state: State) -> dict[str, Word]:
    """What the next command will find; what nobody knows is marked as such."""
    names = state.variables if state.exports_all else state.exported & state.variables.keys()
    values = {name: joined(state.variables[name]) for name in names}
    unknown = gap(frozenset({Mark.UNREAD}))
    return {
        name: value if value.known and len(value) <= LONGEST_LEFT else unknown
        for name, value in values.items()
    }


class ShellReader(Walk):
    """A walk that notes every program it comes to, and follows code inside code."""

    # Simple commands

    def _simple(self, node: Simple, state: State, around: Around) -> Stream:
        if node.source is self._whole:
            self._span = (node.start, node.end)
        if alias := self._dealiased(node, state):  # scripts ignore aliases, people's shells do not
            self._alias(*alias, state.copy(), around)
        expansion = self._expansion(state, around)
        typed = [word if isinstance(word, WordNode) else declared(word) for word in node.words]
        argv = tuple(expansion.fields(typed))
        redirects, stdin = self._redirects(node.redirects, state, around)
        if (items := _whole_array(node, state)) is not None:  # zsh makes all of its items of `$name`
            self._invoke(items, state.copy(), replace(around, stdin=stdin), redirects=redirects)
        if not argv:
            for assignment in node.assignments:
                self._assign(assignment, state, expansion, around)
            if redirects:
                self._start(Run(argv=(), redirects=redirects, cwd=state.cwd, span=self._span), around)
            return self._sent(SILENT, redirects, state)
        before = {each.name: state.variables.get(each.name) for each in node.assignments}
        for assignment in node.assignments:
            self._assign(assignment, state, expansion, around)
        given = {name: joined(state.variables.get(name, EMPTY)) for name in before}
        if isinstance(node.words[0], WordNode) and node.words[0].plain in DECLARES:
            self._declare(node.words, argv, state, expansion, around)
        inside = replace(around, stdin=stdin)
        printed = self._invoke(argv, state, inside, assigned=given, redirects=redirects)
        for name, value in before.items():  # in front of a command they last as long as it runs
            state.restore(name, value)
        if argv == ("exec",):
            _keep_open(redirects, stdin, state)
        return self._sent(printed, redirects, state)

    def _dealiased(self, node: Simple, state: State) -> tuple[str, str] | None:
        """The name of an alias in front, and the command with its text in the place of the name."""
        first = node.words[0] if node.words else None
        name = first.plain if isinstance(first, WordNode) else None
        if name is None or not isinstance(first, WordNode):
            return None
        suffix = f"*.{name.rpartition('.')[2]}"
        if suffix in state.aliases:  # zsh: `alias -s txt=less` makes a command of `notes.txt`
            return suffix, f"{state.aliases[suffix]} {node.source[first.start : node.end]}"
        if name not in state.aliases:
            return None
        text = node.source[node.start : first.start]
        at, words = first.start, list(node.words)
        while words:  # an alias that ends in a blank lets the next word be one too
            word = words.pop(0)
            plain = word.plain if isinstance(word, WordNode) else None
            if plain is None or plain not in state.aliases or not isinstance(word, WordNode):
                break
            text += node.source[at : word.start] + state.aliases[plain]
            at = word.end
            if not state.aliases[plain].endswith((" ", "\t")):
                break
        return name, text + node.source[at : node.end]

    def _alias(self, name: str, text: str, state: State, around: Around) -> Stream:
        meaning = state.aliases.pop(name)  # inside its own text it is no alias
        try:
            return self.text(text, state, replace(around, depth=around.depth + 1))
        finally:
            state.aliases.setdefault(name, meaning)

    def _invoke(
        self,
        argv: tuple[Word, ...],
        state: State,
        around: Around,
        *,
        assigned: dict[str, Word] | None = None,
        redirects: tuple[Redirect, ...] = (),
        functions: bool = True,
    ) -> Stream:
        """One command with its words known: a function, a builtin that changes the shell, or a program."""
        self._budget.spend(10)  # the rules will look at it too
        if functions and argv[0] in state.functions:
            printed = self._call(argv, state, around)
            if None not in state.functions.get(argv[0], ()):
                return printed
        if argv[0].pattern:
            self._budget.spend(50)
        name = program(argv[0], state)
        if name == "env":
            argv = env_words(argv)
        argv = with_configured_options(name, argv, assigned or {}, self._known_file(state, around))
        argv = (argv[0], *(state.linked(word, itself=name not in DELETING) for word in argv[1:]))
        run = Run(
            argv=(name, *argv[1:]),
            path=argv[0],
            span=self._span,
            assigned=MappingProxyType(dict(assigned or {})),
            redirects=redirects,
            stdin=around.stdin,
            cwd=state.cwd,
            folder=state.folder,
            through=around.through,
            more_operands=around.more_operands or (around.filled and len(argv) == 1 and name in DELETING),
            background=around.background,
            repeated=around.repeated,
        )
        if any(word.startswith("BASH_FUNC_") for word in argv[1:]):
            self._see(Kind.UNREADABLE, detail="a function is handed over by the environment")
        if any(GIVEN_SUBSCRIPT.search(word) for word in argv[1:]):
            self._see(Kind.UNREADABLE, detail="whatever evaluates it as a number runs it")
        if name == "alias":
            self._look_at_aliases(argv[1:], state, around)
        if name == "let":
            for word in argv[1:]:
                self._expansion(state, around).number(word.typed)
        builtin = BUILTINS.get(name)
        if builtin is not None:
            builtin(self._fed(run), state)
        if name in NAMING and any(SUBSCRIPT.search(word) for word in argv[1:]):
            self._see(Kind.UNREADABLE, detail="text is evaluated as a name, and would be run")
        return self._start(run, around, state)

    def _look_at_aliases(self, words: Sequence[Word], state: State, around: Around) -> None:
        """Aliases that change the grammar itself, or (in zsh) stand for words anywhere in a command."""
        anywhere = any(word.startswith("-") and set(word) & {"s", "g"} for word in words)
        for word in words:
            name, equals, text = word.partition("=")
            if equals and RESERVED.match(f"{name} "):
                self._see(
                    Kind.UNREADABLE, word, detail="an alias takes the place of a word of the shell's grammar"
                )
            elif equals and anywhere:
                self.text(Word(text.lstrip("; ")), state.copy(), replace(around, depth=around.depth + 1))

    def _known_file(self, state: State, around: Around) -> Callable[[Word], Stream | None]:
        """What is known of a file by its name, where `-` is the input."""
        return lambda word: around.stdin if word in STANDARD_INPUT else state.files.get(state.path(word))

    def _fed(self, run: Run) -> Run:
        """A `read` after another one is given the lines that are left."""
        stream = run.stdin
        if run.name != "read" or stream is None or stream.text is None:
            return run
        _, taken = self._eaten.get(id(stream), (stream, 0))
        line_end = stream.text.find("\n", taken)
        self._eaten[id(stream)] = (stream, len(stream.text) if line_end < 0 else line_end + 1)
        return replace(run, stdin=Stream(Word(stream.text[taken:]), stream.marks)) if taken else run

    def _start(self, run: Run, around: Around, state: State | None = None) -> Stream:
        """Note a program that would be started, and follow what it starts in turn."""
        self._reading.runs.append(run)
        self._look_at_connections(run)
        if state is None:
            return SILENT
        if not run.name.known:
            self._see(Kind.UNREADABLE, run.path, run.path.marks, detail="what would be run is not known")
        self._look_at_secrets(run, state)
        if run.name in WRITING and run.argv[-1][:1] == GAP and not run.through:
            self._see(Kind.UNREADABLE, run.path, detail="nobody knows which file it writes")
        self._own_program(run, state, around)
        self._look_at_files(run, state)
        self._reading.planted.run_written(run, state.files)
        printed: Stream | None = None
        for one in inner(run):
            seen = self._inside(one, run, state, around)
            printed = seen if printed is None or one.through else printed
        fetched.remember(run, state, self._confidential)
        self._reading.planted.note_edit(run)
        if printed is None or run.name not in SEEN_THROUGH:
            printed = with_marks(output(run, lambda word: state.files.get(state.path(word))))
        if self._confidential(run):
            printed = Stream(printed.text, printed.marks | {Mark.CONFIDENTIAL})
        return printed

    def _own_program(self, run: Run, state: State, around: Around) -> None:
        """A program that this very command has written or fetched."""
        path = state.path(run.path) if "/" in run.path else _found_on_path(run.path, state)
        if not path:
            return
        stream = state.files.get(path)
        if stream is not None:
            own = state.child(run.assigned)
            own.arguments = run.argv[1:]
            self._code(stream, "sh", run, own, around)
        elif fetched.holds(state, path):
            self._see(Kind.RUN_UNREAD, run.path, frozenset({Mark.NETWORK}))
        else:
            self._reading.planted.run_edited()

    def _look_at_files(self, run: Run, state: State) -> None:
        """Files that count by their names: as options of a later program, or as what a program loads."""
        if makes_option_file(run):
            self._see(Kind.UNREADABLE, run.path, detail="a file gets the name of an option")
        for path, marks in files_loaded_by_name(run, state.files):
            self._see(Kind.RUN_UNREAD, Word(path), marks or {Mark.UNREAD})

    def _look_at_secrets(self, run: Run, state: State) -> None:
        """A secret that this command has put into another file, and now sends."""
        if run.name not in SENDERS:
            return
        secret = {path for path, stream in state.files.items() if Mark.CONFIDENTIAL in stream.marks}
        if not secret:
            return
        for word in run.argv[1:]:
            if state.path(Word(word.rpartition("@")[2].rpartition("=")[2])) in secret:
                self._see(Kind.EXFILTRATE, word, {Mark.CONFIDENTIAL})

    def _look_at_connections(self, run: Run) -> None:
        words = run.argv[1:] if run.name in WRITING or run.name in ("dd", "sponge", "socat") else ()
        targets = (*words, *(each.target for each in run.redirects if each.writes))
        if any(OTHERS_INPUT.search(target) for target in targets):
            self._see(Kind.UNREADABLE, run.path, detail="it may write to the input of another process")
        for redirect in run.redirects:
            if redirect.writes and redirect.target[:1] == GAP:
                self._see(Kind.UNREADABLE, redirect.target, detail="nobody knows which file it writes")
            far = redirect.target.startswith(NETWORK_FILES) and not redirect.target.startswith(LOOPBACK)
            if far and (run.name in SHELLS or run.name == "exec"):
                self._see(Kind.REVERSE_SHELL, redirect.target)
            elif far and redirect.writes and run.argv and self._confidential(run):
                self._see(Kind.EXFILTRATE, redirect.target, {"network", "in:secret"})

    # Code inside code

    def _inside(self, one: Inner, run: Run, state: State, around: Around) -> Stream:
        through = (*around.through, one.through) if one.through else around.through
        around = replace(
            around,
            through=through,
            more_operands=(one.more_operands or around.more_operands) and one.argv is not None,
            filled=around.filled or ((one.more_operands or around.more_operands) and one.code is not None),
            depth=around.depth + 1,
            stdin=run.stdin,
        )
        if one.argv is not None:
            return self._inner_argv(one.argv, run, state, around)
        if one.code is not None and run.name == "trap":
            self._traps.append(lambda: self._typed_code(one, run, state, around))
            return SILENT
        if one.code is not None:
            return self._typed_code(one, run, state, around)
        if one.source == "stdin":
            if run.stdin is None and not one.more_operands:
                return UNKNOWN
            return self._with_arguments(
                one, run, state, lambda own: self._code(run.stdin or UNKNOWN, one.language, run, own, around)
            )
        if one.source == "file" and one.file is not None:
            file = one.file
            return self._with_arguments(
                one, run, state, lambda own: self._file(file, one.language, run, own, around)
            )
        return UNKNOWN

    def _with_arguments(
        self, one: Inner, run: Run, state: State, follow: Callable[[State], Stream]
    ) -> Stream:
        """A script sees its own arguments; one that is sourced without any sees those of the shell."""
        own = state if run.name in SAME_SHELL else state.child(run.assigned)
        before = own.arguments
        if one.arguments or own is not state:
            own.arguments = handed(one)
        printed = follow(own)
        own.arguments = before
        return printed

    def _inner_argv(self, argv: tuple[Word, ...], run: Run, state: State, around: Around) -> Stream:
        if not argv:
            return UNKNOWN
        if around.depth > DEEPEST_CODE * 2:
            raise TooMuch
        own = state if run.name in SAME_SHELL else state.copy()
        functions = run.name in ("time", "coproc", "compgen", "complete")
        printed = self._invoke(argv, own, around, redirects=run.redirects, functions=functions)
        state.keep_programs(own)
        return printed

    def _typed_code(self, one: Inner, run: Run, state: State, around: Around) -> Stream:
        code = (one.code or EMPTY).typed
        if one.more_operands and run.name not in SHELLS:
            code = Word(f"{code} {gap()}")  # to what is no shell's own code, the words are added
        unread = code.marks & {Mark.NETWORK, Mark.DECODED}
        if unread:
            self._see(Kind.RUN_UNREAD, code, frozenset(unread))
        if one.language != "sh":
            return self._foreign(code, one.language, state, around)
        own = state if run.name in SAME_SHELL else state.child(run.assigned)
        if run.name not in SAME_SHELL:
            words = handed(one)
            own.zero, own.arguments = words[0] if words else own.zero, words[1:]
            if one.more_operands and not own.arguments:
                own.arguments = (gap(),)
        if around.through and around.through[-1] in ("ssh", "docker", "podman", "kubectl"):
            return self.text(code, State(home=state.home, cwd=gap()), around)
        printed = self.text(code, own, around)
        state.keep_programs(own)
        return printed

    def _code(self, stream: Stream, language: str, run: Run, state: State, around: Around) -> Stream:
        """Code that flows into an interpreter, or stands in a file this command wrote."""
        if stream.typed:
            return self._await_input(language, run, state, around)
        text = stream.text
        if text is None:
            marks = stream.marks - {Mark.CONFIDENTIAL} or {Mark.UNREAD}
            self._see(Kind.RUN_UNREAD, run.path, frozenset(marks))
            return UNKNOWN
        if Mark.DECODED in stream.marks:
            self._see(Kind.RUN_UNREAD, run.path, frozenset({Mark.DECODED}), detail=text.shown[:200])
        if text.marks & {Mark.NETWORK, Mark.DECODED, Mark.UNREAD}:
            self._see(Kind.RUN_UNREAD, run.path, text.marks)
        text = text.typed
        if language != "sh":
            return self._foreign(text, language, state, around)
        return self.text(text, state, replace(around, depth=around.depth + 1))

    def _await_input(self, language: str, run: Run, state: State, around: Around) -> Stream:  # noqa: ARG002
        """Note a program that reads code from the input of the process."""
        return UNKNOWN

    def _file(self, file: Word, language: str, run: Run, state: State, around: Around) -> Stream:
        if file in STANDARD_INPUT:
            return self._code(run.stdin or UNKNOWN, language, run, state, around)
        path = state.path(file)
        stream = state.files.get(path)
        if stream is None and (number := _descriptor(path)):
            stream = state.descriptors.get(number, UNKNOWN)
        if stream is not None:
            return self._code(stream, language, run, state, around)
        if language == "binary" or fetched.holds(state, path):
            marks = {Mark.NETWORK} if fetched.holds(state, path) else {Mark.UNREAD}
            self._see(Kind.RUN_UNREAD, file, frozenset(marks))
        self._reading.planted.run_edited()
        if run.name in SAME_SHELL:  # it may have set anything
            state.variables = {name: gap(frozenset({Mark.UNREAD})) for name in state.variables}
        return UNKNOWN

    def _foreign(self, code: Word, language: str, state: State, around: Around) -> Stream:
        found = read_foreign(code, language)
        for effect in found.effects:
            self._reading.effects.append(replace(effect, span=self._span))
        for script in found.scripts:
            inside = state.copy()
            self.text(script.typed, inside, replace(around, depth=around.depth + 1))
            state.files |= {path: stream for path, stream in inside.files.items() if stream.marks}
        return UNKNOWN

    def _call(self, argv: tuple[Word, ...], state: State, around: Around) -> Stream:
        """A function, with its arguments; one that starts itself in the background is a bomb."""
        name = argv[0]
        again = around.calls.count(name)
        if again and around.background:
            self._see(Kind.FORK_BOMB, name, detail="a function starts itself again and again")
            return UNKNOWN
        if again > MOST_CALLS:
            return UNKNOWN
        given = argv[1:] if again < MOST_CALLS else tuple(gap() for _ in argv[1:])
        outer, state.arguments = state.arguments, given
        hidden, state.locals = state.locals, {}
        printed = SILENT
        for body in state.functions[name]:
            if body is None:
                continue
            inside = replace(around, calls=(*around.calls, name), background=False)
            printed = either(printed, self._node(body, state, inside))
        state.arguments = outer
        state.leave(hidden)
        return printed

    # Words, values, redirections

    def _expansion(self, state: State, around: Around) -> Expansion:
        def captured(script: Script) -> Stream:
            if (file := _only_reads(script)) is not None:
                path = self._expansion(state, around).text(file)
                opened = self._opened(path, state)
                if self._confidential(Run(argv=(CAT, path), path=CAT, cwd=state.cwd)):
                    opened = Stream(None, opened.marks | {Mark.CONFIDENTIAL})
                return opened
            inside = state.copy()
            printed = self._script(script, inside, replace(around, background=False))
            state.files |= inside.files
            return printed

        def process(script: Script, writes: bool) -> Word:
            fed = replace(around, stdin=Stream(None, frozenset({Mark.UNREAD}))) if writes else around
            printed = self._script(script, state.copy(), fed)
            self._processes += 1
            path = f"/dev/fd/{62 + self._processes}"
            if not writes:
                state.files[path] = printed
            return Word(path)

        def doubt(text: str) -> None:
            self._see(Kind.UNREADABLE, Word(text), detail="text is evaluated, and would be run")

        return Expansion(state, self._budget, captured, process, doubt, self._look_at_name)

    def _assign(self, assignment: Assignment, state: State, expansion: Expansion, around: Around) -> None:
        value = expansion.value(assignment.value)
        old = state.value(assignment.name)
        if isinstance(value, tuple):
            keep_by_key(assignment.name, value, state)
        if assignment.index is not None:
            key = expansion.text(assignment.index).typed
            keep_by_key(assignment.name, (Word(f"[{key}]={joined(value)}"),), state)
            value = with_item(old, expansion.number(key), value)
        elif assignment.adds:
            value = added(old, value)
        if state.attributes.get(assignment.name) == "i":
            expansion.number(Word(joined(value)))
        state.set(assignment.name, value)
        self._look_at_name(assignment.name)
        if SUBSCRIPT.search(joined(value)):
            self._see(Kind.UNREADABLE, joined(value), detail="whatever evaluates it as a number runs it")
        if assignment.name in TABLES and assignment.index is not None:
            key = expansion.text(assignment.index).typed
            if assignment.name in PATH_TABLES:
                state.programs[key] = Word(joined(value).rpartition("/")[2])
            else:
                state.aliases[key] = joined(value)
        self._hooked(assignment.name, joined(value), state, around)

    def _look_at_name(self, name: str) -> None:
        """Names by which a terminal keeps its own house are nobody else's."""
        if name.startswith(OUR_NAMES):
            self._see(Kind.OVERWRITE, Word(name), {"in:own"}, detail="the terminal's own variable")

    def _hooked(self, name: str, value: Word, state: State, around: Around) -> None:
        """Variables whose value a shell runs by itself."""
        if name == "PROMPT_COMMAND":
            self.text(value, state.copy(), replace(around, depth=around.depth + 1))
        elif name in PROMPTS and ("$(" in value or "`" in value):
            self._see(Kind.UNREADABLE, value, detail="a shell would run it for its prompt")
        elif name in STARTED_WITH and value:
            self._traps.append(lambda: self._file(value, "sh", Run(argv=(), path=value), state, around))

    def _declare(
        self,
        words: Sequence[WordNode | Assignment],
        argv: tuple[Word, ...],
        state: State,
        expansion: Expansion,
        around: Around,
    ) -> None:
        flags = "".join(word for word in argv[1:] if word.startswith("-"))
        for word in words[1:]:
            name = word.name if isinstance(word, Assignment) else word.plain
            if name and argv[0] in ("local", "declare", "typeset") and "g" not in flags:
                state.own(name)
            attribute = next((flag for flag in "ilu" if flag in flags), None)
            if name and attribute and argv[0] != "alias":
                state.attributes[name] = attribute
            if not isinstance(word, Assignment):
                continue
            if argv[0] == "alias":
                state.aliases[word.name] = (
                    expansion.plain_text(word.value) if isinstance(word.value, tuple) else ""
                )
            elif "n" in flags and argv[0] != "export" and isinstance(word.value, tuple):
                state.references[word.name] = expansion.plain_text(word.value)
            else:
                self._assign(word, state, expansion, around)

    def _redirects(
        self, redirections: Iterable[Redirection], state: State, around: Around
    ) -> tuple[tuple[Redirect, ...], Stream | None]:
        expansion = self._expansion(state, around)
        found: list[Redirect] = []
        stdin = around.stdin
        for redirection in redirections:
            sign = redirection.operator
            text = expansion.text(redirection.target, tilde=sign not in ("<<", "<<-"))
            if sign in ("<<<", "<<", "<<-"):
                text = text.typed
                fed = Stream(Word(text + "\n") if sign == "<<<" else text, text.marks)
                if redirection.descriptor in ("", "0"):
                    stdin = fed
                else:
                    state.descriptors[_numbered(redirection.descriptor, state)] = fed
                continue
            if sign in ("<", "<>") and redirection.descriptor in ("", "0"):
                stdin = self._opened(text, state)
            elif sign in ("<", "<>") and redirection.descriptor.isdigit():
                state.descriptors[redirection.descriptor] = self._opened(text, state)
            elif sign == "<&" and text in state.descriptors:
                stdin = state.descriptors[text]
            if redirection.descriptor.isdigit() and text.startswith(NETWORK_FILES):
                state.descriptors[redirection.descriptor] = Stream(None, frozenset({Mark.NETWORK}))
            found.append(Redirect(sign, state.linked(text), redirection.descriptor))
        return tuple(found), stdin

    def _opened(self, path: Word, state: State) -> Stream:
        if path.startswith(NETWORK_FILES):
            return Stream(None, frozenset({Mark.NETWORK}))
        if path == "/dev/null":
            return SILENT
        if number := _descriptor(path):
            return state.files.get(state.path(path), state.descriptors.get(number, UNKNOWN))
        opened = state.files.get(state.path(path))
        if opened is None and self._confidential(Run(argv=(CAT, path), path=CAT, cwd=state.cwd)):
            return Stream(None, frozenset({Mark.UNREAD, Mark.CONFIDENTIAL}))
        return opened or Stream(None, frozenset({Mark.UNREAD}))

    def _sent(self, printed: Stream, redirects: tuple[Redirect, ...], state: State) -> Stream:
        """What is left for the next program after output went into files."""
        for redirect in redirects:
            if not redirect.writes or redirect.descriptor not in ("", "1"):
                continue
            if redirect.operator == ">&" and redirect.target in state.targets:
                path = state.path(state.targets[redirect.target])
                state.files[path] = after(state.files.get(path, SILENT), printed)
            elif redirect.operator == ">&" and (redirect.target.isdigit() or redirect.target == "-"):
                if redirect.target == "1":
                    continue
            elif redirect.target in ("/dev/stdout", "/dev/fd/1"):
                continue
            else:
                path = state.path(redirect.target)
                before = state.files.get(path) if ">>" in redirect.operator else None
                state.files[path] = after(before, printed) if before else printed
            printed = SILENT
        return printed


def _keep_open(redirects: Iterable[Redirect], stdin: Stream | None, state: State) -> None:
    """`exec` with redirections only: they hold for all that follows."""
    for redirect in redirects:
        if redirect.descriptor.isdigit() and redirect.writes:
            state.targets[redirect.descriptor] = redirect.target
        elif redirect.descriptor in ("", "0") and stdin is not None:
            state.descriptors["0"] = stdin


# Values


def _whole_array(node: Simple, state: State) -> tuple[Word, ...] | None:
    """The items of an array where a command is nothing but its name, without quotes."""
    word = node.words[0] if len(node.words) == 1 else None
    part = word.parts[0] if isinstance(word, WordNode) and len(word.parts) == 1 else None
    if not isinstance(part, Variable) or part.quoted or part.index is not None or part.operator:
        return None
    items = state.value(part.name)
    return tuple(items) if isinstance(items, tuple) and len(items) > 1 and part.name not in "@*" else None


def _descriptor(path: str) -> str:
    """The number in `/dev/fd/3`, or nothing."""
    found = DESCRIPTOR.fullmatch(path)
    return found.group(1) if found else ""


def _found_on_path(name: str, state: State) -> str:
    """The file that a bare name means, where this command has set PATH and has written or fetched it."""
    if "PATH" not in state.variables or name in BUILTINS:
        return ""
    for folder in joined(state.variables["PATH"]).split(":"):
        path = state.path(Word(f"{folder or '.'}/{name}"))
        if path in state.files or fetched.holds(state, path):
            return path
    return ""


def _numbered(descriptor: str, state: State) -> str:
    """`{f}<file`: the shell picks a number, and the variable has it."""
    if not descriptor.startswith("{"):
        return descriptor
    number = str(10 + len(state.descriptors))
    state.set(descriptor.strip("{}"), Word(number))
    return number


def _only_reads(script: Script) -> tuple[Part, ...] | None:
    """The file of `$(< file)`, which prints it."""
    node = script.statements[0].node if len(script.statements) == 1 else None
    if not isinstance(node, Simple) or node.words or node.assignments or len(node.redirects) != 1:
        return None
    redirect = node.redirects[0]
    return redirect.target if redirect.operator == "<" and redirect.descriptor in ("", "0") else None
