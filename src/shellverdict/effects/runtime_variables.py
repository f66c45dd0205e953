"""Detect commands that write environment variables of Toolfold into a file, such as a shell script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from shellverdict.effects.run_context import MAX_OPERANDS, RunContext
from shellverdict.names import split_names
from shellverdict.shell.words import EMPTY, Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["find_runtime_variable_effects"]

MAX_TEXT_CHARS = 100_000
_SETTING = re.compile(r"\bTOOLFOLD_(?!LOG_LEVEL\b)[A-Z][A-Z0-9_]*[\"']?\s{0,4}[=:]")
_WRITERS = split_names("tee sponge sed gsed perl ed ex")
_DOCUMENTS = (".md", ".rst", ".txt", ".py", ".html", ".log", ".adoc")


def find_runtime_variable_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield an effect for each file to which a program writes an environment variable of Toolfold.

    Toolfold reads these environment variables. Documentation files may mention them and are left out.
    """
    targets = [redirect.target for redirect in context.run.redirects[:256] if redirect.is_output]
    if context.run.name in _WRITERS:
        targets.extend(islice(context.run.argv[-1:], MAX_OPERANDS))
    files = [target for target in targets if _is_file(target)]
    if files and any(_SETTING.search(text) for text in _written_texts(context)):
        for target in files:
            yield context.new_effect(EffectKind.WRITE, "in:own", "planted", target=target)


def _is_file(target: Word) -> bool:
    return not target.lower().endswith(_DOCUMENTS) and not target.isdigit() and target != "/dev/null"


def _written_texts(context: RunContext) -> Iterator[str]:
    """Yield the texts that a program may write to a file: its arguments and standard input."""
    yield from (word[:MAX_TEXT_CHARS] for word in islice(context.run.argv[1:], MAX_OPERANDS))
    stdin = context.run.stdin
    yield ((stdin.text if stdin else None) or EMPTY)[:MAX_TEXT_CHARS]
