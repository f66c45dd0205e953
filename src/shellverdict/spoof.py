"""Detect characters that make a command look different from the one that runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from shellverdict.shell.runs import ProgramRun
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["find_hidden_characters", "find_lookalike_words"]

# Control characters (except tab and newline), bidi controls, line separators, noncharacters.
# Excludes characters of ordinary text, such as emoji, to avoid false warnings.
INVISIBLE_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029\u200b\u2060-\u2064"
    "\ufeff\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180e\u3164\uffa0\ufdd0-\ufdef\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
# Joiners belong to many scripts and to emoji; next to ASCII characters they only hide text.
HIDDEN_JOINER = re.compile("(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])")
# Cyrillic letters, and Greek letters that look like Latin ones.
LOOKALIKE_LETTERS = (
    "\u0400-\u04ff\u0391\u0392\u0395-\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u03bf"
)
MIXED_SCRIPTS = re.compile(f"[A-Za-z][{LOOKALIKE_LETTERS}]|[{LOOKALIKE_LETTERS}][A-Za-z]")
PLACEHOLDERS = re.compile("[\ufdd0-\ufddf]")  # of `Word`: unknown text and wildcards
FALSE_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d\u02d7\u2796\u30fc"


def find_hidden_characters(command: str) -> Iterator[CommandEffect]:
    """Yield an effect for invisible characters anywhere in the command."""
    # These tests cost a tenth of a search, and nearly every command passes them.
    is_plain = command.isascii() and command.replace("\n", "").replace("\t", "").isprintable()
    has_joiner = not is_plain and ("\u200c" in command or "\u200d" in command)
    for pattern in () if is_plain else (INVISIBLE_CHARACTERS, HIDDEN_JOINER)[: 1 + has_joiner]:
        found = pattern.search(command)
        if found:
            name = f"U+{ord(found.group()):04X}"
            yield CommandEffect(
                EffectKind.SPOOF, span=found.span(), detail=f"it contains the invisible character {name}"
            )


def find_lookalike_words(runs: Iterable[ProgramRun]) -> Iterator[CommandEffect]:
    """Yield an effect for each program or option with letters that only look like ASCII letters."""
    for run in runs:
        if _has_lookalike_name(run.path):
            yield CommandEffect(
                EffectKind.SPOOF,
                run.path,
                span=run.span,
                detail="the program name has characters that look like others",
            )
        for word in run.argv[1:]:
            if word.isascii():
                continue
            if word[0] in FALSE_DASHES:
                yield CommandEffect(
                    EffectKind.SPOOF,
                    word,
                    span=run.span,
                    detail="an option starts with a character that looks like a dash",
                )
            elif MIXED_SCRIPTS.search(word):
                yield CommandEffect(
                    EffectKind.SPOOF,
                    word,
                    span=run.span,
                    detail="it mixes letters of two alphabets that look alike",
                )


def _has_lookalike_name(path: str) -> bool:
    """Return True if a program name has a space or letters that only look like ASCII letters."""
    letters = PLACEHOLDERS.sub("", path)
    if letters.startswith(("/", "./", "../", "~")):
        name = letters.rpartition("/")[2]
        return not name.isascii() and not name.replace(".", "").replace("-", "").isidentifier()
    return not letters.isascii() or any(character.isspace() for character in letters)
