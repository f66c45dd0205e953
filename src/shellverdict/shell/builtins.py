"""Builtins that change what the shell remembers: each takes a run and leaves its trace in the state."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType

from shellverdict.options import Options
from shellverdict.shell.outputs import output
from shellverdict.shell.runs import Run
from shellverdict.shell.state import SOME_NUMBER, UNSET, State
from shellverdict.shell.words import GAP, Word, gap

__all__ = ["BUILTINS"]

REPLY = Word("REPLY")


def _cd(run: Run, state: State) -> None:
    operands = [word for word in run.argv[1:] if word == "-" or not word.startswith("-")]
    where = operands[0] if operands else state.home
    if "CDPATH" in state.variables and not where.startswith(("/", ".", "~")):
        where = Word(GAP + where)  # it is looked for in other folders first
    state.move(where)


def _unset(run: Run, state: State) -> None:
    for word in run.argv[1:]:
        name, bracket, place = word.partition("[")
        items = state.value(name)
        if bracket and isinstance(items, tuple):
            place = place.rstrip("]")
            holes = {int(place)} if place.isdigit() else set(range(len(items)))
            state.set(name, tuple(UNSET if at in holes else item for at, item in enumerate(items)))
        elif not word.startswith("-"):
            state.variables[word] = UNSET
            state.functions.pop(word, None)


def _set(run: Run, state: State) -> None:
    words = run.argv[1:]
    if any(word.startswith("-") and "a" in word for word in words) or "allexport" in words:
        state.exports_all = True
    if "--" in words:
        state.arguments = words[words.index("--") + 1 :]
    elif words and not words[0].startswith(("-", "+")):
        state.arguments = words


def _shift(run: Run, state: State) -> None:
    count = int(run.argv[1]) if len(run.argv) > 1 and run.argv[1].isdigit() else 1
    state.arguments = state.arguments[count:]


def _read(run: Run, state: State) -> None:
    words = Options.read(run.argv, frozenset({"-a", "-d", "-i", "-n", "-N", "-p", "-t", "-u"}))
    array = words.value("-a")
    names = [Word(array)] if array else [word for word in words.operands if word.isidentifier()]
    stream = run.stdin
    odd = words.has("-d", "-n", "-N", "-u")
    if stream is None or stream.text is None or odd or ("\\" in stream.text and not words.has("-r")):
        unknown = stream.as_unknown() if stream else gap()
        for name in names or [REPLY]:
            state.set(name, (gap(),) if array else unknown)
        return
    line = stream.text.split("\n", 1)[0]
    separators = state.value("IFS")
    between = None if separators in (None, " \t\n") or separators is UNSET else str(separators)
    if array:
        state.set(array, tuple(Word(piece) for piece in _cut(line, between, -1)))
    elif not names:
        state.set(REPLY, Word(line))
    else:
        pieces = _cut(line, between, len(names) - 1)
        for place, name in enumerate(names):
            state.set(name, Word(pieces[place] if place < len(pieces) else ""))


def _cut(line: str, separators: str | None, most: int) -> list[str]:
    """The line at its separators, at most so often; the last piece keeps the rest."""
    if separators is None:
        return line.strip().split(None, most)
    if separators == "" or most == 0:
        return [line]
    return re.split(f"[{re.escape(separators)}]", line, maxsplit=max(most, 0))


def _mapfile(run: Run, state: State) -> None:
    words = Options.read(run.argv, frozenset({"-d", "-n", "-O", "-s", "-u", "-C", "-c"}))
    name = words.operands[-1] if words.operands else Word("MAPFILE")
    text = run.stdin.text if run.stdin else None
    if text is None or words.has("-d", "-n", "-O", "-s", "-u"):
        state.set(name, (gap(),))
    else:
        state.set(name, tuple(Word(line) for line in text.splitlines()))


def _printf(run: Run, state: State) -> None:
    if len(run.argv) > 3 and run.argv[1] == "-v" and run.argv[2].isidentifier():
        printed = output(replace(run, argv=(run.argv[0], *run.argv[3:])))
        state.set(run.argv[2], printed.text if printed.text is not None else gap(printed.marks))


def _alias(run: Run, state: State) -> None:
    by_suffix = any(word.startswith("-") and "s" in word for word in run.argv[1:])
    for word in run.argv[1:]:
        name, equals, text = word.partition("=")
        if equals:
            state.aliases[f"*.{name}" if by_suffix else name] = text
    if len(run.argv) > 2 and "=" not in run.argv[1]:  # csh and fish: alias NAME TEXT
        state.aliases[run.argv[1]] = " ".join(run.argv[2:])


def _abbr(run: Run, state: State) -> None:
    """`abbr -a NAME TEXT` of fish."""
    words = [word for word in run.argv[1:] if not word.startswith("-")]
    if len(words) > 1:
        state.aliases[words[0]] = " ".join(words[1:])


def _unalias(run: Run, state: State) -> None:
    if "-a" in run.argv:
        state.aliases.clear()
    for name in run.argv[1:]:
        state.aliases.pop(name, None)


def _hash(run: Run, state: State) -> None:
    words = run.argv
    if len(words) >= 4 and words[1] == "-p":
        state.programs[words[3]] = Word(words[2].rpartition("/")[2])
    for word in words[1:]:  # zsh
        name, equals, path = word.partition("=")
        if equals and name:
            state.programs[name] = Word(path.rpartition("/")[2])


def _export(run: Run, state: State) -> None:
    words = Options.read(run.argv, frozenset())
    for word in words.operands:
        name, equals, text = word.partition("=")
        if not name.isidentifier():
            continue
        if equals and name not in state.variables:
            state.set(name, Word(text))
        name = f"{name}()" if words.has("-f") else name
        state.exported = state.exported - {name} if words.has("-n") else state.exported | {name}


def _declare(run: Run, state: State) -> None:
    words = Options.read(run.argv, frozenset())
    if words.has("-x"):
        names = (word.partition("=")[0] for word in words.operands)
        state.exported |= {name for name in names if name.isidentifier()}


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
        "abbr": _abbr,
        "unalias": _unalias,
        "hash": _hash,
        "export": _export,
        "declare": _declare,
        "typeset": _declare,
        "local": _declare,
        "let": _let,
    }
)
