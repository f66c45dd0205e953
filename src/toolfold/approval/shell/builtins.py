"""Builtins that change what the shell remembers: each takes a run and leaves its trace in the state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType

from toolfold.approval.shell.outputs import output
from toolfold.approval.shell.runs import Run
from toolfold.approval.shell.state import SOME_NUMBER, State
from toolfold.approval.shell.words import EMPTY, Word, gap

__all__ = ["BUILTINS"]


def _cd(run: Run, state: State) -> None:
    operands = [word for word in run.argv[1:] if word == "-" or not word.startswith("-")]
    state.move(operands[0] if operands else state.home)


def _unset(run: Run, state: State) -> None:
    for name in run.argv[1:]:
        if name == "-f":
            continue
        state.variables[name] = EMPTY
        state.functions.pop(name, None)


def _set(run: Run, state: State) -> None:
    words = run.argv[1:]
    if "--" in words:
        state.arguments = words[words.index("--") + 1 :]
    elif words and not words[0].startswith(("-", "+")):
        state.arguments = words


def _shift(run: Run, state: State) -> None:
    count = int(run.argv[1]) if len(run.argv) > 1 and run.argv[1].isdigit() else 1
    state.arguments = state.arguments[count:]


def _read(run: Run, state: State) -> None:
    names = [word for word in run.argv[1:] if word.isidentifier()] or [Word("REPLY")]
    stream = run.stdin
    if stream is None or stream.text is None:
        for name in names:
            state.set(name, gap(stream.marks if stream else frozenset()))
        return
    line = stream.text.split("\n", 1)[0]
    separators = state.value("IFS")
    pieces = line.split(None if separators == " \t\n" else str(separators or "\0")[:1], len(names) - 1)
    if "-a" in run.argv:
        state.set(names[-1], tuple(Word(piece) for piece in line.split()))
        return
    for place, name in enumerate(names):
        state.set(name, Word(pieces[place].strip() if place < len(pieces) else ""))


def _mapfile(run: Run, state: State) -> None:
    names = [word for word in run.argv[1:] if word.isidentifier()] or [Word("MAPFILE")]
    text = run.stdin.text if run.stdin else None
    state.set(names[-1], tuple(Word(line) for line in text.splitlines()) if text is not None else (gap(),))


def _printf(run: Run, state: State) -> None:
    if len(run.argv) > 3 and run.argv[1] == "-v" and run.argv[2].isidentifier():
        printed = output(replace(run, argv=(run.argv[0], *run.argv[3:])))
        state.set(run.argv[2], printed.text if printed.text is not None else gap(printed.marks))


def _alias(run: Run, state: State) -> None:
    for word in run.argv[1:]:
        name, equals, text = word.partition("=")
        if equals:
            state.aliases[name] = text


def _unalias(run: Run, state: State) -> None:
    if "-a" in run.argv:
        state.aliases.clear()
    for name in run.argv[1:]:
        state.aliases.pop(name, None)


def _hash(run: Run, state: State) -> None:
    words = run.argv
    if len(words) >= 4 and words[1] == "-p":
        state.programs[words[3]] = Word(words[2].rpartition("/")[2])


def _declare_words(run: Run, state: State) -> None:
    for word in run.argv[1:]:
        name, equals, text = word.partition("=")
        if equals and name.isidentifier() and name not in state.variables:
            state.set(name, Word(text))


def _let(run: Run, state: State) -> None:
    for word in run.argv[1:]:
        name = word.partition("=")[0].rstrip("+-*/")
        if name.isidentifier():
            state.set(name, SOME_NUMBER)


BUILTINS: MappingProxyType[str, Callable[[Run, State], None]] = MappingProxyType(
    {
        "cd": _cd,
        "pushd": _cd,
        "popd": lambda _, state: state.move(Word("-")),
        "unset": _unset,
        "set": _set,
        "shift": _shift,
        "read": _read,
        "mapfile": _mapfile,
        "readarray": _mapfile,
        "printf": _printf,
        "alias": _alias,
        "unalias": _unalias,
        "hash": _hash,
        "export": _declare_words,
        "let": _let,
    }
)
