"""Compute values of shell variables: arrays, associative arrays, appending."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from shellverdict.shell.inner import InnerCommand
from shellverdict.shell.state import UNSET, ShellState, Value
from shellverdict.shell.tree import (
    Assignment,
    CommandSubstitution,
    Literal,
    ParameterExpansion,
    Part,
    WordNode,
)
from shellverdict.shell.words import GAP, Word, unknown_word

__all__ = [
    "append_value",
    "assignment_to_word",
    "join_value",
    "replace_item",
    "script_arguments",
    "set_keyed_items",
]

KEYED_ITEM = re.compile(r"\[([^\]]+)\]=(.*)", re.DOTALL)


def set_keyed_items(name: str, items: Iterable[Word], state: ShellState) -> None:
    """Store the items of an associative array, each as a variable named `name[key]`."""
    for item in items:
        found = KEYED_ITEM.fullmatch(item.literal)
        if found:
            state.variables[f"{name}[{found.group(1)}]"] = Word(found.group(2))


def join_value(value: Value) -> Word:
    """Return the items of an array joined by blanks; return any other value unchanged."""
    return Word(" ".join(value)) if isinstance(value, tuple) else value


def script_arguments(command: InnerCommand) -> tuple[Word, ...]:
    """Return the arguments of a script; an argument with `{}`, which `find` replaces, becomes unknown."""
    return tuple(unknown_word() if "{}" in word else word for word in command.arguments)


def replace_item(
    old: Word | tuple[Word, ...] | None, index: Word, value: Word | tuple[Word, ...]
) -> tuple[Word, ...]:
    """Return the array with one item replaced or, if the index is unknown, with an unknown item added."""
    items = list(old if isinstance(old, tuple) else (old,) if old is not None else ())
    if not index.isdigit() or int(index) > 256 or isinstance(value, tuple):
        return (*items, unknown_word())
    items += [UNSET] * (int(index) + 1 - len(items))
    items[int(index)] = value
    return tuple(items)


def append_value(old: Value | None, value: Value) -> Value:
    """Return the value of a shell variable after `name+=value`."""
    if isinstance(value, tuple):
        return (*(old if isinstance(old, tuple) else (old,) if old is not None else ()), *value)
    if isinstance(old, tuple):
        return (*old[:-1], Word(old[-1] + value)) if old else (value,)
    return Word((old if old is not None else GAP) + value)


def assignment_to_word(assignment: Assignment) -> WordNode:
    """Return an assignment `NAME=value` in the arguments of `export` or a similar builtin as one word."""
    value: tuple[Part, ...] = assignment.value if isinstance(assignment.value, tuple) else ()
    return WordNode((Literal(f"{assignment.name}=", quoted=True), *_quote_parts(value)), 0, 0)


def _quote_parts(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Mark all parts of an assigned value as quoted, because the shell does not split the value."""
    return tuple(
        replace(part, quoted=True)
        if isinstance(part, Literal | ParameterExpansion | CommandSubstitution)
        else part
        for part in parts
    )
