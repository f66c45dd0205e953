"""Walking through a command as a shell would, without running it.

The reader follows every way a command can take: variables, functions, aliases, pipes, here-documents, files
the command itself writes, and code inside code. It yields one `Run` for every program that would be started,
and the few effects that only the walk can see. It judges nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType

from toolfold.approval.foreign import read_foreign
from toolfold.approval.shell import fetched
from toolfold.approval.shell.builtins import BUILTINS
from toolfold.approval.shell.expansion import Expansion
from toolfold.approval.shell.grammar import Budget, TooMuch, Unreadable, parse
from toolfold.approval.shell.inner import Inner, inner
from toolfold.approval.shell.outputs import output
from toolfold.approval.shell.runs import Redirect, Run, Stream
from toolfold.approval.shell.state import UNSET, State, Value
from toolfold.approval.shell.tree import (
    Assignment,
    Branch,
    Case,
    Chain,
    For,
    Function,
    Group,
    Literal,
    Loop,
    Node,
    Part,
    Pipeline,
    Redirection,
    Script,
    Simple,
    Statement,
    Substitution,
    Variable,
    WordNode,
)
from toolfold.approval.shell.words import EMPTY, GAP, Mark, Word, expression, gap
from toolfold.approval.verdict import Effect, Kind

__all__ = ["Reading", "read_command"]

LONGEST = 65_536
DEEPEST_CODE = 12
MOST_ROUNDS = 32
SILENT = Stream(EMPTY)
UNKNOWN = Stream(None)
SHELLS = frozenset(
    {"sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "fish", "csh", "tcsh", "rbash", "pwsh"}
)
NETWORK_FILES = ("/dev/tcp/", "/dev/udp/")
LOOPBACK = tuple(f"{folder}{host}/" for folder in NETWORK_FILES for host in ("127.0.0.1", "localhost", "::1"))
ENDLESS = frozenset({":", "true", "1"})
# Programs whose name a file pattern in the place of a command could be spelling.
WORTH_HIDING = frozenset(
    {
        "rm",
        "dd",
        "mkfs",
        "shred",
        "wipefs",
        "shutdown",
        "reboot",
        "poweroff",
        "halt",
        "chmod",
        "chown",
        "mv",
        "cp",
    }
    | {
        "tee",
        "sh",
        "bash",
        "dash",
        "zsh",
        "nc",
        "curl",
        "wget",
        "python",
        "python3",
        "perl",
        "ruby",
        "node",
        "php",
    }
    | {
        "kill",
        "killall",
        "pkill",
        "find",
        "xargs",
        "sudo",
        "su",
        "passwd",
        "crontab",
        "systemctl",
        "cat",
        "ssh",
    }
)
WHERE_PROGRAMS_ARE = ("", "/bin/", "/usr/bin/", "/sbin/", "/usr/sbin/", "/usr/local/bin/")

DECLARES = frozenset({"declare", "export", "local", "readonly", "typeset", "alias"})
PROMPTS = frozenset({"PS0", "PS1", "PS2", "PS4"})
STARTED_WITH = frozenset({"BASH_ENV", "ENV"})
# Builtins that take the name of a variable, and evaluate its subscript.
NAMING = frozenset({"let", "test", "[", "printf", "read", "unset", "declare", "typeset", "local", "mapfile"})
SUBSCRIPT = re.compile(r"^\w+\[[^\]]*(?:\$\(|`)")
KEYED = re.compile(r"\[([^\]]+)\]=(.*)", re.DOTALL)
MOST_CALLS = 3
SAME_SHELL = frozenset({"eval", "source", ".", "command", "builtin", "exec", "trap", "time", "coproc"})
DELETING = frozenset({"rm", "rmdir", "unlink", "shred", "srm", "wipe", "truncate"})
SENDERS = frozenset(
    {
        "curl",
        "wget",
        "nc",
        "ncat",
        "netcat",
        "socat",
        "scp",
        "sftp",
        "rsync",
        "ftp",
        "http",
        "https",
        "aws",
        "gsutil",
    }
    | {
        "gcloud",
        "az",
        "rclone",
        "mail",
        "mailx",
        "mutt",
        "sendmail",
        "gh",
        "ssh",
        "telnet",
        "openssl",
        "s3cmd",
    }
)
FILTERS = frozenset(
    {
        "cat",
        "head",
        "tail",
        "tac",
        "rev",
        "base64",
        "base32",
        "xxd",
        "gunzip",
        "zcat",
        "sed",
        "cut",
        "sort",
        "tee",
    }
    | {
        "uniq",
        "bzcat",
        "xzcat",
        "openssl",
        "nl",
        "gzip",
        "bunzip2",
        "xz",
        "uudecode",
        "strings",
        "grep",
        "awk",
    }
)
# What these print is what they run prints.
SEEN_THROUGH = (
    SHELLS | SAME_SHELL | {"sudo", "env", "nice", "timeout", "nohup", "doas", "stdbuf", "busybox", "time"}
)


@dataclass(slots=True)
class Reading:
    """All that was seen in one command."""

    runs: list[Run] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    unread: bool = False


def read_command(
    command: str, *, home: str, cwd: str, confidential: Callable[[Run], bool] = lambda _: False
) -> Reading:
    """Follow the command. Whatever it is, this ends soon and raises nothing."""
    reading = Reading()
    if len(command.encode(errors="surrogatepass")) > LONGEST:
        reading.unread = True
        return reading
    budget = Budget()
    try:
        for choice in Choice:
            walk = _Walk(reading, budget, confidential, (0, len(command)), choice)
            walk.text(command, State(home=Word(home), cwd=Word(cwd)), top=True)
            if not walk.doubted:
                break
    except (TooMuch, RecursionError):
        reading.unread = True
    return reading


@dataclass(frozen=True, slots=True)
class _Around:
    """What surrounds a command: everything a run inherits."""

    stdin: Stream | None = None
    through: tuple[str, ...] = ()
    more_operands: bool = False
    filled: bool = False  # inside code that is given words nobody knows
    background: bool = False
    repeated: bool = False
    calls: tuple[str, ...] = ()  # the functions being run
    depth: int = 0


TOP = _Around()


class Choice(Enum):
    """Where a command may go two ways, what is remembered after them."""

    DOUBT = "what differs is not known"
    TAKEN = "as if it had happened"
    PASSED = "as if it had not"


class _Walk:
    """One walk through one command."""

    def __init__(
        self,
        reading: Reading,
        budget: Budget,
        confidential: Callable[[Run], bool],
        span: tuple[int, int],
        choice: Choice,
    ) -> None:
        self._choice, self.doubted = choice, False
        self._reading, self._budget, self._confidential = reading, budget, confidential
        self._span, self._whole = span, ""
        self._eaten: dict[int, tuple[Stream, int]] = {}  # how much of a stream `read` has taken
        self._processes = 0
        self._traps: list[Callable[[], Stream]] = []  # code that runs when all the rest has

    # Scripts

    def text(self, text: str, state: State, around: _Around = TOP, *, top: bool = False) -> Stream:
        """A text of shell code; code inside code is shown to a person as the part that holds it."""
        if around.depth > DEEPEST_CODE:
            raise TooMuch
        if top:
            self._whole = text
        try:
            script = parse(text, self._budget)
        except Unreadable as problem:
            self._see(Kind.UNREADABLE, detail=str(problem))
            script = problem.script or Script()
        printed = self._script(script, state, around)
        while top and self._traps:
            self._traps.pop(0)()
        return printed

    def _script(self, script: Script, state: State, around: _Around) -> Stream:
        printed = SILENT
        for statement in script.statements:
            printed = _after(printed, self._statement(statement, state, around))
        return printed

    def _statement(self, statement: Statement, state: State, around: _Around) -> Stream:
        self._budget.spend()
        if not statement.background:
            return self._node(statement.node, state, around)
        if around.repeated:
            self._see(Kind.FORK_BOMB, detail="an endless loop starts processes and does not wait for them")
        return self._node(statement.node, state.copy(), replace(around, background=True))

    def _node(self, node: Node, state: State, around: _Around) -> Stream:
        match node:
            case Simple():
                return self._simple(node, state, around)
            case Pipeline():
                return self._pipeline(node, state, around)
            case Chain():
                return self._chain(node, state, around)
            case Group():
                return self._group(node, state, around)
            case Branch():
                return self._branch(node, state, around)
            case Loop():
                return self._loop(node, state, around)
            case For():
                return self._for(node, state, around)
            case Case():
                return self._case(node, state, around)
            case Function():
                state.functions[node.name] = (node.body,)
                if node.name == "command_not_found_handle":
                    self._call((Word(node.name), gap()), state, around)
                return SILENT

    def _pipeline(self, node: Pipeline, state: State, around: _Around) -> Stream:
        stream = around.stdin
        for place, stage in enumerate(node.stages):
            last = place == len(node.stages) - 1
            own = state.copy()
            beside = around.background or not last
            stream = self._node(stage, own, replace(around, stdin=stream, background=beside))
            state.files |= own.files
            if last:  # zsh and `lastpipe` run it in the shell itself
                self._join(state, state.copy(), own)
        return stream or UNKNOWN

    def _chain(self, node: Chain, state: State, around: _Around) -> Stream:
        printed = self._node(node.first, state, around)
        for sign, link in node.links:
            before = state.copy()
            printed = _after(printed, self._node(link, state, around))
            folder = state.cwd
            self._join(state, before, state.copy())
            if sign == "&&":
                state.cwd = folder  # what is left of it has most often worked
        return printed

    def _join(self, state: State, passed: State, taken: State) -> None:
        """Go on from where two ways meet again."""
        if passed.remembers_the_same(taken):
            state.become(taken)
            return
        self.doubted = True
        match self._choice:
            case Choice.TAKEN:
                state.become(taken)
            case Choice.PASSED:
                state.become(passed)
            case Choice.DOUBT:
                taken.merge(passed)
                state.become(taken)

    def _group(self, node: Group, state: State, around: _Around) -> Stream:
        inside = state.copy() if node.own_shell else state
        self._evaluate(node.words, state, around)
        redirects, stdin = self._redirects(node.redirects, state, around)
        printed = self._script(node.body, inside, replace(around, stdin=stdin))
        if any(redirect.writes for redirect in redirects):
            run = Run(argv=(), redirects=redirects, cwd=state.cwd, through=around.through, span=self._span)
            self._reading.runs.append(run)
        return self._sent(printed, redirects, state)

    def _branch(self, node: Branch, state: State, around: _Around) -> Stream:
        printed, ends = SILENT, []
        for condition, body in node.arms:
            if condition is not None:
                printed = _after(printed, self._script(condition, state, around))
            arm = state.copy()
            printed = _either(printed, self._script(body, arm, around))
            ends.append(arm)
        if node.arms[-1][0] is not None:  # no `else`: nothing may happen
            ends.append(state.copy())
        for end in ends[1:]:
            self._join(ends[0], end, ends[0].copy())
        state.become(ends[0])
        return printed

    def _case(self, node: Case, state: State, around: _Around) -> Stream:
        self._expansion(state, around).text(node.subject.parts)
        printed, before = SILENT, state.copy()
        for patterns, body in node.arms:
            for pattern in patterns:
                self._expansion(state, around).text(pattern.parts)
            arm = before.copy()
            printed = _either(printed, self._script(body, arm, around))
            self._join(state, state.copy(), arm)
        return printed

    def _evaluate(self, words: Iterable[WordNode], state: State, around: _Around) -> None:
        """The words of `(( … ))` and `[[ … ]]`: what they compare may be evaluated as a number."""
        expansion = self._expansion(state, around)
        for word in words:
            expansion.number(expansion.text(word.parts).typed)

    def _loop(self, node: Loop, state: State, around: _Around) -> Stream:
        self._evaluate(node.words, state, around)
        endless = _first_word(node.condition) in ENDLESS or any(_never_ends(word) for word in node.words)
        inside = replace(around, repeated=around.repeated or endless)
        stdin = around.stdin
        lines = _lines(stdin) if _first_word(node.condition) == "read" else None
        if lines is not None:
            return self._each_line(node, lines, state, inside)
        return self._rounds(lambda: self._round(node, state, inside), state)

    def _each_line(self, node: Loop, lines: Sequence[str], state: State, around: _Around) -> Stream:
        printed = SILENT
        for line in lines:
            self._script(node.condition, state, replace(around, stdin=Stream(Word(line))))
            printed = _after(printed, self._script(node.body, state, replace(around, stdin=UNKNOWN)))
        return printed

    def _round(self, node: Loop, state: State, around: _Around) -> Stream:
        self._evaluate(node.words, state, around)
        return _after(self._script(node.condition, state, around), self._script(node.body, state, around))

    def _rounds(self, once: Callable[[], Stream], state: State) -> Stream:
        """A loop of unknown length: until nothing new can happen."""
        before = state.copy()
        printed = once()
        if not state.remembers_the_same(before):
            middle = state.copy()
            once()
            if not state.remembers_the_same(middle):
                state.forget_what_changed(middle)
                once()
        self._join(state, before, state.copy())
        return _forever(printed)

    def _for(self, node: For, state: State, around: _Around) -> Stream:
        values: list[Word]
        if node.words is None:
            values = list(state.arguments)
        else:
            values = self._expansion(state, around).fields(node.words)
        if len(values) > MOST_ROUNDS:
            values = [*values[:MOST_ROUNDS], gap()]
        printed = SILENT
        for value in values:
            state.set(node.name, value)
            printed = _after(printed, self._script(node.body, state, around))
        return printed

    # Simple commands

    def _simple(self, node: Simple, state: State, around: _Around) -> Stream:
        if node.source is self._whole:
            self._span = (node.start, node.end)
        if alias := self._dealiased(node, state):  # scripts ignore aliases, people's shells do not
            self._alias(*alias, state.copy(), around)
        expansion = self._expansion(state, around)
        typed = [word if isinstance(word, WordNode) else _declared(word) for word in node.words]
        argv = tuple(expansion.fields(typed))
        redirects, stdin = self._redirects(node.redirects, state, around)
        if not argv:
            for assignment in node.assignments:
                self._assign(assignment, state, expansion, around)
            if redirects:
                self._start(Run(argv=(), redirects=redirects, cwd=state.cwd, span=self._span), around)
            return self._sent(SILENT, redirects, state)
        before = {each.name: state.variables.get(each.name) for each in node.assignments}
        for assignment in node.assignments:
            self._assign(assignment, state, expansion, around)
        given = {name: _joined(state.variables.get(name, EMPTY)) for name in before}
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
        if name is None or name not in state.aliases or not isinstance(first, WordNode):
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

    def _alias(self, name: str, text: str, state: State, around: _Around) -> Stream:
        meaning = state.aliases.pop(name)  # inside its own text it is no alias
        try:
            return self.text(text, state, replace(around, depth=around.depth + 1))
        finally:
            state.aliases.setdefault(name, meaning)

    def _invoke(
        self,
        argv: tuple[Word, ...],
        state: State,
        around: _Around,
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
        name = _program(argv[0], state)
        argv = (argv[0], *(state.linked(word, itself=name not in DELETING) for word in argv[1:]))
        run = Run(
            argv=(name, *argv[1:]),
            path=argv[0],
            span=self._span,
            assigned=MappingProxyType(dict(assigned or {})),
            redirects=redirects,
            stdin=around.stdin,
            cwd=state.cwd,
            through=around.through,
            more_operands=around.more_operands or (around.filled and len(argv) == 1 and name in DELETING),
            background=around.background,
            repeated=around.repeated,
        )
        if name == "let":
            for word in argv[1:]:
                self._expansion(state, around).number(word.typed)
        builtin = BUILTINS.get(name)
        if builtin is not None:
            builtin(self._fed(run), state)
        if name in NAMING and any(SUBSCRIPT.search(word) for word in argv[1:]):
            self._see(Kind.UNREADABLE, detail="text is evaluated as a name, and would be run")
        return self._start(run, around, state)

    def _fed(self, run: Run) -> Run:
        """A `read` after another one is given the lines that are left."""
        stream = run.stdin
        if run.name != "read" or stream is None or stream.text is None:
            return run
        _, taken = self._eaten.get(id(stream), (stream, 0))
        line_end = stream.text.find("\n", taken)
        self._eaten[id(stream)] = (stream, len(stream.text) if line_end < 0 else line_end + 1)
        return replace(run, stdin=Stream(Word(stream.text[taken:]), stream.marks)) if taken else run

    def _start(self, run: Run, around: _Around, state: State | None = None) -> Stream:
        """Note a program that would be started, and follow what it starts in turn."""
        self._reading.runs.append(run)
        self._look_at_connections(run)
        if state is None:
            return SILENT
        if not run.name.known:
            self._see(Kind.UNREADABLE, run.path, run.path.marks, detail="what would be run is not known")
        self._look_at_secrets(run, state)
        self._own_program(run, state, around)
        printed: Stream | None = None
        for one in inner(run):
            seen = self._inside(one, run, state, around)
            printed = seen if printed is None or one.through else printed
        fetched.remember(run, state, self._confidential)
        if printed is None or run.name not in SEEN_THROUGH:
            printed = _with_marks(output(_given_files(run, state)))
        if self._confidential(run):
            printed = Stream(printed.text, printed.marks | {Mark.CONFIDENTIAL})
        return printed

    def _own_program(self, run: Run, state: State, around: _Around) -> None:
        """A program that this very command has written or fetched."""
        if "/" not in run.path:
            return
        path = state.path(run.path)
        stream = state.files.get(path)
        if stream is not None:
            own = state.child(run.assigned)
            own.arguments = run.argv[1:]
            self._code(stream, "sh", run, own, around)
        elif fetched.holds(state, path):
            self._see(Kind.RUN_UNREAD, run.path, frozenset({Mark.NETWORK}))

    def _look_at_secrets(self, run: Run, state: State) -> None:
        """A secret that this command has put into another file, and now sends."""
        secret = [path for path, stream in state.files.items() if Mark.CONFIDENTIAL in stream.marks]
        if run.name not in SENDERS or not secret:
            return
        for word in run.argv[1:]:
            if state.path(Word(word.rpartition("@")[2].rpartition("=")[2])) in secret:
                self._see(Kind.EXFILTRATE, word, {Mark.CONFIDENTIAL})

    def _look_at_connections(self, run: Run) -> None:
        for redirect in run.redirects:
            far = redirect.target.startswith(NETWORK_FILES) and not redirect.target.startswith(LOOPBACK)
            if far and (run.name in SHELLS or run.name == "exec"):
                self._see(Kind.REVERSE_SHELL, redirect.target)

    # Code inside code

    def _inside(self, one: Inner, run: Run, state: State, around: _Around) -> Stream:
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
            own.arguments = _handed(one)
        printed = follow(own)
        own.arguments = before
        return printed

    def _inner_argv(self, argv: tuple[Word, ...], run: Run, state: State, around: _Around) -> Stream:
        if not argv:
            return UNKNOWN
        if around.depth > DEEPEST_CODE * 2:
            raise TooMuch
        own = state if run.name in SAME_SHELL else state.copy()
        functions = run.name in ("time", "coproc")
        return self._invoke(argv, own, around, redirects=run.redirects, functions=functions)

    def _typed_code(self, one: Inner, run: Run, state: State, around: _Around) -> Stream:
        code = (one.code or EMPTY).typed
        unread = code.marks & {Mark.NETWORK, Mark.DECODED}
        if unread:
            self._see(Kind.RUN_UNREAD, code, frozenset(unread))
        if one.language != "sh":
            return self._foreign(code, one.language, state, around)
        own = state if run.name in SAME_SHELL else state.child(run.assigned)
        if run.name not in SAME_SHELL:
            words = _handed(one)
            own.zero, own.arguments = words[0] if words else own.zero, words[1:]
            if one.more_operands and not own.arguments:
                own.arguments = (gap(),)
        if around.through and around.through[-1] in ("ssh", "docker", "podman", "kubectl"):
            own = State(home=state.home, cwd=gap())
        return self.text(code, own, around)

    def _code(self, stream: Stream, language: str, run: Run, state: State, around: _Around) -> Stream:
        """Code that flows into an interpreter, or stands in a file this command wrote."""
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

    def _file(self, file: Word, language: str, run: Run, state: State, around: _Around) -> Stream:
        if file in ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"):
            return self._code(run.stdin or UNKNOWN, language, run, state, around)
        path = state.path(file)
        stream = state.files.get(path)
        if stream is not None:
            return self._code(stream, language, run, state, around)
        if language == "binary" or fetched.holds(state, path):
            marks = {Mark.NETWORK} if fetched.holds(state, path) else {Mark.UNREAD}
            self._see(Kind.RUN_UNREAD, file, frozenset(marks))
        return UNKNOWN

    def _foreign(self, code: Word, language: str, state: State, around: _Around) -> Stream:
        found = read_foreign(code, language)
        for effect in found.effects:
            self._reading.effects.append(replace(effect, span=self._span))
        for script in found.scripts:
            self.text(script.typed, state.copy(), replace(around, depth=around.depth + 1))
        return UNKNOWN

    def _call(self, argv: tuple[Word, ...], state: State, around: _Around) -> Stream:
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
            printed = _either(printed, self._node(body, state, inside))
        state.arguments = outer
        state.leave(hidden)
        return printed

    # Words, values, redirections

    def _expansion(self, state: State, around: _Around) -> Expansion:
        def captured(script: Script) -> Stream:
            return self._script(script, state.copy(), replace(around, background=False))

        def process(script: Script, writes: bool) -> Word:
            printed = self._script(script, state.copy(), around)
            self._processes += 1
            path = f"/dev/fd/{62 + self._processes}"
            if not writes:
                state.files[path] = printed
            return Word(path)

        def doubt(text: str) -> None:
            self._see(Kind.UNREADABLE, Word(text), detail="text is evaluated, and would be run")

        return Expansion(state, self._budget, captured, process, doubt)

    def _assign(self, assignment: Assignment, state: State, expansion: Expansion, around: _Around) -> None:
        value = expansion.value(assignment.value)
        old = state.value(assignment.name)
        if isinstance(value, tuple):
            _keep_by_key(assignment.name, value, state)
        if assignment.index is not None:
            key = expansion.text(assignment.index).typed
            _keep_by_key(assignment.name, (Word(f"[{key}]={_joined(value)}"),), state)
            value = _with_item(old, expansion.number(key), value)
        elif assignment.adds:
            value = _added(old, value)
        if state.attributes.get(assignment.name) == "i":
            expansion.number(Word(_joined(value)))
        state.set(assignment.name, value)
        self._hooked(assignment.name, _joined(value), state, around)

    def _hooked(self, name: str, value: Word, state: State, around: _Around) -> None:
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
        around: _Around,
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
        self, redirections: Iterable[Redirection], state: State, around: _Around
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
                    state.descriptors[redirection.descriptor] = fed
                continue
            if sign in ("<", "<>") and redirection.descriptor in ("", "0"):
                stdin = self._opened(text, state)
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
        return state.files.get(state.path(path), Stream(None, frozenset({Mark.UNREAD})))

    def _sent(self, printed: Stream, redirects: tuple[Redirect, ...], state: State) -> Stream:
        """What is left for the next program after output went into files."""
        for redirect in redirects:
            if not redirect.writes or redirect.descriptor not in ("", "1"):
                continue
            if redirect.operator == ">&" and redirect.target in state.targets:
                path = state.path(state.targets[redirect.target])
                state.files[path] = _after(state.files.get(path, SILENT), printed)
            elif redirect.operator == ">&" and (redirect.target.isdigit() or redirect.target == "-"):
                if redirect.target == "1":
                    continue
            elif redirect.target in ("/dev/stdout", "/dev/fd/1"):
                continue
            else:
                path = state.path(redirect.target)
                before = state.files.get(path) if ">>" in redirect.operator else None
                state.files[path] = _after(before, printed) if before else printed
            printed = SILENT
        return printed

    def _see(self, kind: Kind, target: Word = EMPTY, marks: Iterable[Mark] = (), *, detail: str = "") -> None:
        traits = frozenset(str(mark) for mark in marks)
        self._reading.effects.append(Effect(kind, target, traits, self._span, detail))


# Streams


def _given_files(run: Run, state: State) -> Run:
    """A filter over a file that this command has written is given its text."""
    if run.name not in FILTERS:
        return run
    for place, word in enumerate(run.argv[1:], start=1):
        stream = state.files.get(state.path(word))
        if stream is not None and not word.startswith("-"):
            return replace(run, argv=run.argv[:place] + run.argv[place + 1 :], stdin=stream)
    return run


def _keep_open(redirects: Iterable[Redirect], stdin: Stream | None, state: State) -> None:
    """`exec` with redirections only: they hold for all that follows."""
    for redirect in redirects:
        if redirect.descriptor.isdigit() and redirect.writes:
            state.targets[redirect.descriptor] = redirect.target
        elif redirect.descriptor in ("", "0") and stdin is not None:
            state.descriptors["0"] = stdin


def _after(first: Stream, second: Stream) -> Stream:
    if first.text == "" and not first.marks:
        return second
    text = None if first.text is None or second.text is None else Word(first.text + second.text)
    if text is not None and len(text) > LONGEST:
        text = None
    return Stream(text, first.marks | second.marks)


def _either(first: Stream, second: Stream) -> Stream:
    if first == second or (first.text == "" and not first.marks):
        return second
    return Stream(None, first.marks | second.marks)


def _forever(printed: Stream) -> Stream:
    return printed if printed.text == "" else Stream(None, printed.marks)


def _with_marks(stream: Stream) -> Stream:
    if stream.text is None:
        return stream
    return Stream(stream.text, stream.marks | stream.text.marks)


def _lines(stream: Stream | None) -> list[str] | None:
    if stream is None or stream.text is None:
        return None
    lines = stream.text.splitlines(keepends=True)
    return lines if len(lines) <= MOST_ROUNDS else None


def _never_ends(head: WordNode) -> bool:
    """`for ((;;))`: a loop whose middle part is empty."""
    text = "".join(part.text for part in head.parts if isinstance(part, Literal))
    return len(text.split(";")) == 3 and not text.split(";")[1].strip()


def _first_word(script: Script) -> str | None:
    node = script.statements[0].node if script.statements else None
    if isinstance(node, Simple) and node.words and isinstance(node.words[0], WordNode):
        return node.words[0].plain
    if isinstance(node, Group) and node.words:
        parts = node.words[0].parts
        return parts[0].text.strip() if len(parts) == 1 and isinstance(parts[0], Literal) else None
    return None


# Values


def _keep_by_key(name: str, items: Iterable[Word], state: State) -> None:
    """`declare -A`: an item is a variable of its own."""
    for item in items:
        found = KEYED.fullmatch(item.typed)
        if found:
            state.variables[f"{name}[{found.group(1)}]"] = Word(found.group(2))


def _joined(value: Value) -> Word:
    return Word(" ".join(value)) if isinstance(value, tuple) else value


def _handed(one: Inner) -> tuple[Word, ...]:
    """The arguments of a script; those that `find` fills in are not known."""
    return tuple(gap() if "{}" in word else word for word in one.arguments)


def _with_item(
    old: Word | tuple[Word, ...] | None, index: Word, value: Word | tuple[Word, ...]
) -> tuple[Word, ...]:
    items = list(old if isinstance(old, tuple) else (old,) if old is not None else ())
    if not index.isdigit() or int(index) > 256 or isinstance(value, tuple):
        return (*items, gap())
    items += [UNSET] * (int(index) + 1 - len(items))
    items[int(index)] = value
    return tuple(items)


def _added(old: Value | None, value: Value) -> Value:
    if isinstance(value, tuple):
        return (*(old if isinstance(old, tuple) else (old,) if old is not None else ()), *value)
    if isinstance(old, tuple):
        return (*old[:-1], Word(old[-1] + value)) if old else (value,)
    return Word((old if old is not None else GAP) + value)


def _declared(assignment: Assignment) -> WordNode:
    """`export A=b` as the words a judge may look at."""
    value: tuple[Part, ...] = assignment.value if isinstance(assignment.value, tuple) else ()
    return WordNode((Literal(f"{assignment.name}=", quoted=True), *_quoted(value)), 0, 0)


def _quoted(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """An assignment's value is never split."""
    return tuple(
        replace(part, quoted=True) if isinstance(part, Literal | Variable | Substitution) else part
        for part in parts
    )


# Programs


def _program(word: Word, state: State) -> Word:
    """The bare name of the program behind a word: links, copies and patterns seen through."""
    if word in state.programs:
        return state.programs[word]
    if "/" in word and state.path(word) in state.programs:
        return state.programs[state.path(word)]
    if word.pattern and GAP not in word:
        matches = expression(word).fullmatch
        hidden = (n for n in sorted(WORTH_HIDING) if any(matches(f + n) for f in WHERE_PROGRAMS_ARE))
        return Word(next(hidden, gap()))
    if not word.known:
        return gap(word.marks) if GAP in word.rpartition("/")[2] else Word(word.rpartition("/")[2])
    return Word(word.rstrip("/").rpartition("/")[2] or word)
