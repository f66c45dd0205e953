"""Characters by which a person would see another command than the one that runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from shellverdict.shell.runs import ProgramRun
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["find_hidden_characters", "find_lookalike_words"]

# Control characters (a tab and a line end are everyday), bidi controls, line separators, noncharacters.
# Fewer than `visible` spells out: a warning is for what no honest command has, and emoji are honest.
INVISIBLE_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029\u200b\u2060-\u2064"
    "\ufeff\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180e\u3164\uffa0\ufdd0-\ufdef\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
# A joiner is part of many scripts and of emoji; between plain letters it only hides.
HIDDEN_JOINER = re.compile("(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])")
# Cyrillic, and the Greek letters that look Latin, inside a Latin name.
LOOKALIKE_LETTERS = (
    "\u0400-\u04ff\u0391\u0392\u0395-\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u03bf"
)
MIXED_SCRIPTS = re.compile(f"[A-Za-z][{LOOKALIKE_LETTERS}]|[{LOOKALIKE_LETTERS}][A-Za-z]")
PLACEHOLDERS = re.compile("[\ufdd0-\ufddf]")  # gaps and patterns of words, which nobody typed
FALSE_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d\u02d7\u2796\u30fc"


def find_hidden_characters(command: str) -> Iterator[CommandEffect]:
    """Characters that nobody sees, anywhere in the command."""
    if command.isascii() and command.isprintable():
        return
    for pattern in (INVISIBLE_CHARACTERS, HIDDEN_JOINER):
        found = pattern.search(command)
        if found:
            name = f"U+{ord(found.group()):04X}"
            yield CommandEffect(
                EffectKind.SPOOF, span=found.span(), detail=f"{name} is in it and cannot be seen"
            )


def find_lookalike_words(runs: Iterable[ProgramRun]) -> Iterator[CommandEffect]:
    """Programs and options that only look like plain letters."""
    for run in runs:
        if _has_lookalike_name(run.path):
            yield CommandEffect(
                EffectKind.SPOOF, run.path, span=run.span, detail="the program's name is not in plain letters"
            )
        for word in run.argv[1:]:
            if word.isascii():
                continue
            if word[0] in FALSE_DASHES:
                yield CommandEffect(
                    EffectKind.SPOOF, word, span=run.span, detail="an option begins with a false dash"
                )
            elif MIXED_SCRIPTS.search(word):
                yield CommandEffect(
                    EffectKind.SPOOF, word, span=run.span, detail="letters of two scripts look alike in it"
                )


def _has_lookalike_name(path: str) -> bool:
    """Whether a program's name holds a space, or letters that only look like the plain ones."""
    letters = PLACEHOLDERS.sub("", path)
    if letters.startswith(("/", "./", "../", "~")):
        name = letters.rpartition("/")[2]
        return not name.isascii() and not name.replace(".", "").replace("-", "").isidentifier()
    return not letters.isascii() or any(character.isspace() for character in letters)
