"""Apply shell builtins (`cd`, `export`, `read` …) to the state of the analyzed shell."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType

from shellverdict.options import Options
from shellverdict.shell.outputs import predict_output
from shellverdict.shell.runs import ProgramRun
from shellverdict.shell.state import PLACEHOLDER_NUMBER, UNSET, ShellState
from shellverdict.shell.words import GAP, Word, unknown_word

__all__ = ["BUILTINS"]

REPLY = Word("REPLY")


def _apply_cd(run: ProgramRun, state: ShellState) -> None:
    operands = [word for word in run.argv[1:] if word == "-" or not word.startswith("-")]
    where = operands[0] if operands else state.home
    if "CDPATH" in state.variables and not where.startswith(("/", ".", "~")):
        where = Word(GAP + where)  # CDPATH directories are searched first
    state.change_directory(where)


def _apply_unset(run: ProgramRun, state: ShellState) -> None:
    for word in run.argv[1:]:
        name, bracket, place = word.partition("[")
        items = state.get_value(name)
        if bracket and isinstance(items, tuple):
            place = place.rstrip("]")
            holes = {int(place)} if place.isdigit() else set(range(len(items)))
            state.set_variable(name, tuple(UNSET if at in holes else item for at, item in enumerate(items)))
        elif not word.startswith("-"):
            state.variables[word] = UNSET
            state.functions.pop(word, None)


def _apply_set(run: ProgramRun, state: ShellState) -> None:
    words = run.argv[1:]
    if any(word.startswith("-") and "a" in word for word in words) or "allexport" in words:
        state.exports_all = True
    if "--" in words:
        state.arguments = words[words.index("--") + 1 :]
    elif words and not words[0].startswith(("-", "+")):
        state.arguments = words


def _apply_shift(run: ProgramRun, state: ShellState) -> None:
    count = int(run.argv[1]) if len(run.argv) > 1 and run.argv[1].isdigit() else 1
    state.arguments = state.arguments[count:]


def _apply_read(run: ProgramRun, state: ShellState) -> None:
    words = Options.parse(run.argv, frozenset({"-a", "-d", "-i", "-n", "-N", "-p", "-t", "-u"}))
    array = words.value("-a")
    names = [Word(array)] if array else [word for word in words.operands if word.isidentifier()]
    stream = run.stdin
    odd = words.has("-d", "-n", "-N", "-u")
    if stream is None or stream.text is None or odd or ("\\" in stream.text and not words.has("-r")):
        unknown = stream.to_unknown_word() if stream else unknown_word()
        for name in names or [REPLY]:
            state.set_variable(name, (unknown_word(),) if array else unknown)
        return
    line = stream.text.split("\n", 1)[0]
    separators = state.get_value("IFS")
    between = None if separators in (None, " \t\n") or separators is UNSET else str(separators)
    if array:
        state.set_variable(array, tuple(Word(piece) for piece in _split_line(line, between, -1)))
    elif not names:
        state.set_variable(REPLY, Word(line))
    else:
        pieces = _split_line(line, between, len(names) - 1)
        for place, name in enumerate(names):
            state.set_variable(name, Word(pieces[place] if place < len(pieces) else ""))


def _split_line(line: str, separators: str | None, most: int) -> list[str]:
    """Split a line at the separators; after `most` splits, the rest of the line is the last field."""
    if separators is None:
        return line.strip().split(None, most)
    if separators == "" or most == 0:
        return [line]
    return re.split(f"[{re.escape(separators)}]", line, maxsplit=max(most, 0))


def _apply_mapfile(run: ProgramRun, state: ShellState) -> None:
    words = Options.parse(run.argv, frozenset({"-d", "-n", "-O", "-s", "-u", "-C", "-c"}))
    name = words.operands[-1] if words.operands else Word("MAPFILE")
    text = run.stdin.text if run.stdin else None
    if text is None or words.has("-d", "-n", "-O", "-s", "-u"):
        state.set_variable(name, (unknown_word(),))
    else:
        state.set_variable(name, tuple(Word(line) for line in text.splitlines()))


def _apply_printf(run: ProgramRun, state: ShellState) -> None:
    if len(run.argv) > 3 and run.argv[1] == "-v" and run.argv[2].isidentifier():
        printed = predict_output(replace(run, argv=(run.argv[0], *run.argv[3:])))
        state.set_variable(
            run.argv[2], printed.text if printed.text is not None else unknown_word(printed.taints)
        )


def _apply_alias(run: ProgramRun, state: ShellState) -> None:
    by_suffix = any(word.startswith("-") and "s" in word for word in run.argv[1:])
    for word in run.argv[1:]:
        name, equals, text = word.partition("=")
        if equals:
            state.aliases[f"*.{name}" if by_suffix else name] = text
    if len(run.argv) > 2 and "=" not in run.argv[1]:  # csh and fish: alias NAME TEXT
        state.aliases[run.argv[1]] = " ".join(run.argv[2:])


def _apply_abbr(run: ProgramRun, state: ShellState) -> None:
    """Apply fish's `abbr -a NAME TEXT`: define an abbreviation, which works like an alias."""
    words = [word for word in run.argv[1:] if not word.startswith("-")]
    if len(words) > 1:
        state.aliases[words[0]] = " ".join(words[1:])


def _apply_unalias(run: ProgramRun, state: ShellState) -> None:
    if "-a" in run.argv:
        state.aliases.clear()
    for name in run.argv[1:]:
        state.aliases.pop(name, None)


def _apply_hash(run: ProgramRun, state: ShellState) -> None:
    words = run.argv
    if len(words) >= 4 and words[1] == "-p":
        state.program_copies[words[3]] = Word(words[2].rpartition("/")[2])
    for word in words[1:]:  # zsh: hash NAME=PATH
        name, equals, path = word.partition("=")
        if equals and name:
            state.program_copies[name] = Word(path.rpartition("/")[2])


def _apply_export(run: ProgramRun, state: ShellState) -> None:
    words = Options.parse(run.argv, frozenset())
    for word in words.operands:
        name, equals, text = word.partition("=")
        if not name.isidentifier():
            continue
        if equals and name not in state.variables:
            state.set_variable(name, Word(text))
        name = f"{name}()" if words.has("-f") else name
        state.exported = state.exported - {name} if words.has("-n") else state.exported | {name}


def _apply_declare(run: ProgramRun, state: ShellState) -> None:
    words = Options.parse(run.argv, frozenset())
    if words.has("-x"):
        names = (word.partition("=")[0] for word in words.operands)
        state.exported |= {name for name in names if name.isidentifier()}


def _apply_let(run: ProgramRun, state: ShellState) -> None:
    for word in run.argv[1:]:
        name = word.partition("=")[0].rstrip("+-*/")
        if name.isidentifier():
            state.set_variable(name, PLACEHOLDER_NUMBER)


BUILTINS: MappingProxyType[str, Callable[[ProgramRun, ShellState], None]] = MappingProxyType(
    {
        "cd": _apply_cd,
        "pushd": _apply_cd,
        "popd": lambda _, state: state.change_directory(Word("-")),
        "unset": _apply_unset,
        "set": _apply_set,
        "shift": _apply_shift,
        "read": _apply_read,
        "mapfile": _apply_mapfile,
        "readarray": _apply_mapfile,
        "printf": _apply_printf,
        "alias": _apply_alias,
        "abbr": _apply_abbr,
        "unalias": _apply_unalias,
        "hash": _apply_hash,
        "export": _apply_export,
        "declare": _apply_declare,
        "typeset": _apply_declare,
        "local": _apply_declare,
        "let": _apply_let,
    }
)
