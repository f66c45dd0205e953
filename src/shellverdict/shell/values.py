"""Values of variables: items of arrays, keys, what is added, and assignments as words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from shellverdict.shell.inner import Inner
from shellverdict.shell.state import UNSET, State, Value
from shellverdict.shell.tree import Assignment, Literal, Part, Substitution, Variable, WordNode
from shellverdict.shell.words import GAP, Word, gap

__all__ = ["added", "declared", "handed", "joined", "keep_by_key", "with_item"]

KEYED = re.compile(r"\[([^\]]+)\]=(.*)", re.DOTALL)


def keep_by_key(name: str, items: Iterable[Word], state: State) -> None:
    """`declare -A`: an item is a variable of its own."""
    for item in items:
        found = KEYED.fullmatch(item.typed)
        if found:
            state.variables[f"{name}[{found.group(1)}]"] = Word(found.group(2))


def joined(value: Value) -> Word:
    return Word(" ".join(value)) if isinstance(value, tuple) else value


def handed(one: Inner) -> tuple[Word, ...]:
    """The arguments of a script; those that `find` fills in are not known."""
    return tuple(gap() if "{}" in word else word for word in one.arguments)


def with_item(
    old: Word | tuple[Word, ...] | None, index: Word, value: Word | tuple[Word, ...]
) -> tuple[Word, ...]:
    items = list(old if isinstance(old, tuple) else (old,) if old is not None else ())
    if not index.isdigit() or int(index) > 256 or isinstance(value, tuple):
        return (*items, gap())
    items += [UNSET] * (int(index) + 1 - len(items))
    items[int(index)] = value
    return tuple(items)


def added(old: Value | None, value: Value) -> Value:
    if isinstance(value, tuple):
        return (*(old if isinstance(old, tuple) else (old,) if old is not None else ()), *value)
    if isinstance(old, tuple):
        return (*old[:-1], Word(old[-1] + value)) if old else (value,)
    return Word((old if old is not None else GAP) + value)


def declared(assignment: Assignment) -> WordNode:
    """`export A=b` as the words a judge may look at."""
    value: tuple[Part, ...] = assignment.value if isinstance(assignment.value, tuple) else ()
    return WordNode((Literal(f"{assignment.name}=", quoted=True), *_quoted(value)), 0, 0)


def _quoted(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """An assignment's value is never split."""
    return tuple(
        replace(part, quoted=True) if isinstance(part, Literal | Variable | Substitution) else part
        for part in parts
    )
