"""Look up properties of shell syntax tree nodes, such as a leading alias or an endless loop."""

from __future__ import annotations

from shellverdict.shell.state import ShellState
from shellverdict.shell.tree import (
    CommandGroup,
    Literal,
    ParameterExpansion,
    Part,
    Script,
    SimpleCommand,
    WordNode,
)
from shellverdict.shell.words import Word

__all__ = [
    "array_as_command",
    "expand_leading_alias",
    "file_of_read_substitution",
    "first_plain_word",
    "is_endless_for",
]


def expand_leading_alias(node: SimpleCommand, state: ShellState) -> tuple[str, str] | None:
    """Return the alias that a command starts with, and the expanded command; None if there is no alias."""
    first = node.words[0] if node.words else None
    name = first.bare_text if isinstance(first, WordNode) else None
    if name is None or not isinstance(first, WordNode):
        return None
    suffix = f"*.{name.rpartition('.')[2]}"
    if suffix in state.aliases:  # zsh: `alias -s txt=less` makes `notes.txt` a command
        return suffix, f"{state.aliases[suffix]} {node.source[first.start : node.end]}"
    if name not in state.aliases:
        return None
    text = node.source[node.start : first.start]
    copied_until, words = first.start, list(node.words)
    while words:  # after an alias that ends in a blank, the next word is also expanded
        word = words.pop(0)
        plain = word.bare_text if isinstance(word, WordNode) else None
        if plain is None or plain not in state.aliases or not isinstance(word, WordNode):
            break
        text += node.source[copied_until : word.start] + state.aliases[plain]
        copied_until = word.end
        if not state.aliases[plain].endswith((" ", "\t")):
            break
    return name, text + node.source[copied_until : node.end]


def array_as_command(node: SimpleCommand, state: ShellState) -> tuple[Word, ...] | None:
    """Return the items of the array `cmd` if a command is just the unquoted variable `$cmd`, else None."""
    word = node.words[0] if len(node.words) == 1 else None
    part = word.parts[0] if isinstance(word, WordNode) and len(word.parts) == 1 else None
    if not isinstance(part, ParameterExpansion) or part.quoted or part.index is not None or part.operator:
        return None
    items = state.get_value(part.name)
    return tuple(items) if isinstance(items, tuple) and len(items) > 1 and part.name not in "@*" else None


def file_of_read_substitution(script: Script) -> tuple[Part, ...] | None:
    """Return the file in `$(< file)`; None for any other command substitution."""
    node = script.statements[0].node if len(script.statements) == 1 else None
    if not isinstance(node, SimpleCommand) or node.words or node.assignments or len(node.redirects) != 1:
        return None
    redirect = node.redirects[0]
    return redirect.target if redirect.operator == "<" and redirect.descriptor in ("", "0") else None


def is_endless_for(head: WordNode) -> bool:
    """Return True for `for ((;;))`, a loop without a condition."""
    text = "".join(part.text for part in head.parts if isinstance(part, Literal))
    return len(text.split(";")) == 3 and not text.split(";")[1].strip()


def first_plain_word(script: Script) -> str | None:
    """Return the first word of a script; None if the word has quotes or expansions."""
    node = script.statements[0].node if script.statements else None
    if isinstance(node, SimpleCommand) and node.words and isinstance(node.words[0], WordNode):
        return node.words[0].bare_text
    if isinstance(node, CommandGroup) and node.words:
        parts = node.words[0].parts
        return parts[0].text.strip() if len(parts) == 1 and isinstance(parts[0], Literal) else None
    return None
