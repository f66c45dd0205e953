"""The ways a script can go: sequences, pipes, branches, loops, functions, without running anything.

What a simple command does is left to whoever walks. Where two ways meet again, what differs is first not
known, then as if the one had been taken, then as if it had not: each is a walk of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from shellverdict.shell.embedded import WrittenTexts
from shellverdict.shell.expansion import Expansion
from shellverdict.shell.grammar import Budget, TooMuch, Unreadable, parse
from shellverdict.shell.runs import Redirect, Run, Stream
from shellverdict.shell.state import State
from shellverdict.shell.streams import SILENT, UNKNOWN, after, either, forever, lines_of
from shellverdict.shell.tree import (
    Branch,
    Case,
    Chain,
    For,
    Function,
    Group,
    Literal,
    Loop,
    Node,
    Pipeline,
    Redirection,
    Script,
    Simple,
    Statement,
    WordNode,
)
from shellverdict.shell.words import EMPTY, Word, gap
from shellverdict.verdict import Effect, Kind

__all__ = ["Around", "Choice", "Reading", "Walk"]

DEEPEST_CODE = 12
MOST_ROUNDS = 32
# Functions that a shell calls by itself.
CALLED_BY_SHELL = frozenset(
    {
        *("command_not_found_handle", "command_not_found_handler", "precmd", "preexec", "chpwd", "periodic"),
        *("zshexit", "TRAPEXIT", "TRAPZERR", "TRAPDEBUG", "TRAPINT", "TRAPTERM"),
    }
)
DISCIPLINES = (".get", ".set", ".append", ".unset")  # of ksh, for every use of a variable
ENDLESS = frozenset({":", "true", "1"})


@dataclass(slots=True)
class Reading:
    """All that was seen in one command."""

    runs: list[Run] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    unread: bool = False
    leaves: dict[str, Word] = field(default_factory=dict)
    """The variables that a shell would hand on to the next command."""
    planted: WrittenTexts = field(default_factory=WrittenTexts)


@dataclass(frozen=True, slots=True)
class Around:
    """What surrounds a command: everything a run inherits."""

    stdin: Stream | None = None
    through: tuple[str, ...] = ()
    more_operands: bool = False
    filled: bool = False  # inside code that is given words nobody knows
    background: bool = False
    repeated: bool = False
    calls: tuple[str, ...] = ()  # the functions being run
    depth: int = 0


TOP = Around()


class Choice(Enum):
    """Where a command may go two ways, what is remembered after them."""

    DOUBT = "what differs is not known"
    TAKEN = "as if it had happened"
    PASSED = "as if it had not"


class Walk(ABC):
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

    def text(self, text: str, state: State, around: Around = TOP, *, top: bool = False) -> Stream:
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

    def _script(self, script: Script, state: State, around: Around) -> Stream:
        printed = SILENT
        for statement in script.statements:
            printed = after(printed, self._statement(statement, state, around))
        return printed

    def _statement(self, statement: Statement, state: State, around: Around) -> Stream:
        self._budget.spend()
        if not statement.background:
            return self._node(statement.node, state, around)
        if around.repeated:
            self._see(Kind.FORK_BOMB, detail="an endless loop starts processes and does not wait for them")
        beside = state.copy()
        printed = self._node(statement.node, beside, replace(around, background=True))
        state.files |= beside.files
        state.keep_programs(beside)
        return printed

    def _node(self, node: Node, state: State, around: Around) -> Stream:
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
                self._look_at_name(node.name)
                if node.name in CALLED_BY_SHELL or node.name.endswith(DISCIPLINES):
                    self._call((Word(node.name), gap()), state, around)
                return SILENT

    def _pipeline(self, node: Pipeline, state: State, around: Around) -> Stream:
        stream = around.stdin
        for place, stage in enumerate(node.stages):
            last = place == len(node.stages) - 1
            own = state.copy()
            beside = around.background or not last
            stream = self._node(stage, own, replace(around, stdin=stream, background=beside))
            state.files |= own.files
            state.keep_programs(own)
            if last:  # zsh and `lastpipe` run it in the shell itself
                self._join(state, state.copy(), own)
        return stream or UNKNOWN

    def _chain(self, node: Chain, state: State, around: Around) -> Stream:
        printed = self._node(node.first, state, around)
        for sign, link in node.links:
            before = state.copy()
            printed = after(printed, self._node(link, state, around))
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

    def _group(self, node: Group, state: State, around: Around) -> Stream:
        inside = state.copy() if node.own_shell else state
        self._evaluate(node.words, state, around)
        redirects, stdin = self._redirects(node.redirects, state, around)
        printed = self._script(node.body, inside, replace(around, stdin=stdin))
        state.files |= inside.files
        state.keep_programs(inside)
        if any(redirect.writes for redirect in redirects):
            run = Run(argv=(), redirects=redirects, cwd=state.cwd, through=around.through, span=self._span)
            self._reading.runs.append(run)
        return self._sent(printed, redirects, state)

    def _branch(self, node: Branch, state: State, around: Around) -> Stream:
        printed, ends = SILENT, []
        for condition, body in node.arms:
            if condition is not None:
                printed = after(printed, self._script(condition, state, around))
            arm = state.copy()
            printed = either(printed, self._script(body, arm, around))
            ends.append(arm)
        if node.arms[-1][0] is not None:  # no `else`: nothing may happen
            ends.append(state.copy())
        for end in ends[1:]:
            self._join(ends[0], end, ends[0].copy())
        state.become(ends[0])
        return printed

    def _case(self, node: Case, state: State, around: Around) -> Stream:
        self._expansion(state, around).text(node.subject.parts)
        printed, before = SILENT, state.copy()
        for patterns, body in node.arms:
            for pattern in patterns:
                self._expansion(state, around).text(pattern.parts)
            arm = before.copy()
            printed = either(printed, self._script(body, arm, around))
            self._join(state, state.copy(), arm)
        return printed

    def _evaluate(self, words: Iterable[WordNode], state: State, around: Around) -> None:
        """The words of `(( … ))` and `[[ … ]]`: what they compare may be evaluated as a number."""
        expansion = self._expansion(state, around)
        for word in words:
            expansion.number(expansion.text(word.parts).typed)

    def _loop(self, node: Loop, state: State, around: Around) -> Stream:
        self._evaluate(node.words, state, around)
        endless = _first_word(node.condition) in ENDLESS or any(_never_ends(word) for word in node.words)
        inside = replace(around, repeated=around.repeated or endless)
        stdin = around.stdin
        lines = lines_of(stdin, MOST_ROUNDS) if _first_word(node.condition) == "read" else None
        if lines is not None:
            return self._each_line(node, lines, state, inside)
        return self._rounds(lambda: self._round(node, state, inside), state)

    def _each_line(self, node: Loop, lines: Sequence[str], state: State, around: Around) -> Stream:
        printed = SILENT
        for line in lines:
            self._script(node.condition, state, replace(around, stdin=Stream(Word(line))))
            printed = after(printed, self._script(node.body, state, replace(around, stdin=UNKNOWN)))
        return printed

    def _round(self, node: Loop, state: State, around: Around) -> Stream:
        self._evaluate(node.words, state, around)
        return after(self._script(node.condition, state, around), self._script(node.body, state, around))

    def _rounds(self, once: Callable[[], Stream], state: State) -> Stream:
        """A loop of unknown length: until nothing new can happen."""
        before = state.copy()
        self._budget.spend(10 + len(state.variables))
        printed = once()
        if not state.remembers_the_same(before):
            middle = state.copy()
            once()
            if not state.remembers_the_same(middle):
                state.forget_what_changed(middle)
                once()
        self._join(state, before, state.copy())
        return forever(printed)

    def _for(self, node: For, state: State, around: Around) -> Stream:
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
            printed = after(printed, self._script(node.body, state, around))
        return printed

    def _see(self, kind: Kind, target: Word = EMPTY, marks: Iterable[str] = (), *, detail: str = "") -> None:
        traits = frozenset(str(mark) for mark in marks)
        self._reading.effects.append(Effect(kind, target, traits, self._span, detail))

    # What a walker brings

    @abstractmethod
    def _simple(self, node: Simple, state: State, around: Around) -> Stream:
        """One simple command."""

    @abstractmethod
    def _look_at_name(self, name: str) -> None:
        """A name that is set or asked for."""

    @abstractmethod
    def _call(self, argv: tuple[Word, ...], state: State, around: Around) -> Stream:
        """One function."""

    @abstractmethod
    def _expansion(self, state: State, around: Around) -> Expansion:
        """What expands words here."""

    @abstractmethod
    def _redirects(
        self, redirections: Iterable[Redirection], state: State, around: Around
    ) -> tuple[tuple[Redirect, ...], Stream | None]:
        """Redirections as they would be done, and the standard input after them."""

    @abstractmethod
    def _sent(self, printed: Stream, redirects: tuple[Redirect, ...], state: State) -> Stream:
        """What is left of the output after redirections."""


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
