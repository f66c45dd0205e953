"""Other spellings of a command, all of which run the same program with the same words.

A spelling is made in three steps, each drawn by a seeded generator: something put in front of the words
(`nice`, `env`…), the words spelled anew (quotes, escapes, variables, encodings…), and the script that results
put inside of something (functions, loops, shells in shells, files, decoders…). Nothing here is proved by
reasoning: `recording` tells whether a spelling really runs what it should.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tests.shellverdict.fuzzing_inside import INSIDE
from tests.shellverdict.fuzzing_words import IN_FRONT, KEEP_TYPED, WHOLE, Plain, Words

__all__ = ["Plain", "Spelling", "plain_command", "respell", "spell_inside"]

UNSPLIT = frozenset(";&|<>()`\n\\!#=\"'")  # signs that make more of a command than a list of words
EXPANDED = frozenset("$~*?[]{}")
# Started by the shell itself: no recorder can stand for them, and `kill -9 -1` would be a real one.
BUILTIN_NAMES = """
alias bg bind break builtin caller cd command compgen complete compopt continue declare dirs disown echo
enable eval exec exit export false fc fg getopts hash help history jobs kill let local logout mapfile popd
printf pushd pwd read readarray readonly return set shift shopt source suspend test times trap true type
typeset ulimit umask unalias unset wait if then else elif fi for while until do done case esac in function
select time coproc . : [ [[ ! { }
"""
BUILTINS = frozenset(BUILTIN_NAMES.split())


@dataclass(frozen=True, slots=True)
class Spelling:
    script: str
    steps: tuple[str, ...]


def plain_command(command: str) -> Plain | None:
    """The command as words; None where it is more than one program and its words."""
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if not words or words[0].rpartition("/")[2] in BUILTINS or "\r" in command or not command.isprintable():
        return None
    words[0] = words[0].rpartition("/")[2]
    if UNSPLIT & set(command) - set("\"'=") or "=" in words[0] or not words[0].strip("."):
        return None
    typed = tuple(bool(EXPANDED & set(word)) for word in words)
    quoted = "'" in command or '"' in command
    if typed[0] or (quoted and any(typed)) or "$(" in command:
        return None
    return Plain(tuple(words), typed)


def respell(plain: Plain, random: Random, steps: int) -> Spelling:
    """The command spelled anew by so many steps, one of which is about its words."""
    names = _names()
    in_front = steps > 1 and random.random() < 0.3
    prefix = random.choice(IN_FRONT) if in_front else ()
    possible = [name for name in WHOLE if not any(plain.typed) or name in KEEP_TYPED]
    name = random.choice(possible)
    done = [*(" ".join(prefix) for _ in range(in_front)), name]
    script = WHOLE[name](Words(plain, prefix), random, names)
    for _ in range(steps - len(done)):
        script, name = _wrapped(script, random, names)
        done.append(name)
    return Spelling(script, tuple(done))


def spell_inside(script: str, random: Random, steps: int) -> Spelling:
    """The script inside of so many things."""
    names, done = _names(), []
    for _ in range(steps):
        script, name = _wrapped(script, random, names)
        done.append(name)
    return Spelling(script, tuple(done))


def _wrapped(script: str, random: Random, names: Iterator[str]) -> tuple[str, str]:
    """The script inside of something, and inside of what."""
    name = random.choice(sorted(INSIDE))
    return INSIDE[name](script, random, names), name


def _names() -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield f"v{number}"
