"""Other spellings of a command that run the same program with the same arguments.

A spelling is made in three steps, each chosen by a seeded generator: a prefix (`nice`, `env` and others),
another spelling of the words (quotes, escapes, variables, encodings), and wrappers around the resulting
script (functions, loops, nested shells, files, decoders). Whether a spelling really runs the same program is
checked with `recording`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tests.shellverdict.fuzzing_words import (
    COMMAND_PREFIXES,
    COMMAND_SPELLINGS,
    EXPANSION_SAFE_SPELLINGS,
    PlainCommand,
    PrefixedCommand,
)
from tests.shellverdict.fuzzing_wrappers import WRAPPERS

__all__ = ["PlainCommand", "Spelling", "parse_plain_command", "respell_command", "wrap_script"]

COMPOUND_CHARACTERS = frozenset(";&|<>()`\n\\!#=\"'")  # make a command more than a list of words
EXPANSION_CHARACTERS = frozenset("$~*?[]{}")
# Builtins cannot be replaced by recorders, and `kill -9 -1` would really run.
BUILTIN_NAMES = """
alias bg bind break builtin caller cd command compgen complete compopt continue declare dirs disown echo
enable eval exec exit export false fc fg getopts hash help history jobs kill let local logout mapfile popd
printf pushd pwd read readarray readonly return set shift shopt source suspend test times trap true type
typeset ulimit umask unalias unset wait if then else elif fi for while until do done case esac in function
select time coproc . : [ [[ ! { }
"""
BUILTIN_COMMANDS = frozenset(BUILTIN_NAMES.split())


@dataclass(frozen=True, slots=True)
class Spelling:
    script: str
    steps: tuple[str, ...]


def parse_plain_command(command: str) -> PlainCommand | None:
    """Parse a command into words; None if it is more than one program with arguments."""
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if (
        not words
        or words[0].rpartition("/")[2] in BUILTIN_COMMANDS
        or "\r" in command
        or not command.isprintable()
    ):
        return None
    words[0] = words[0].rpartition("/")[2]
    if COMPOUND_CHARACTERS & set(command) - set("\"'=") or "=" in words[0] or not words[0].strip("."):
        return None
    has_expansion = tuple(bool(EXPANSION_CHARACTERS & set(word)) for word in words)
    quoted = "'" in command or '"' in command
    if has_expansion[0] or (quoted and any(has_expansion)) or "$(" in command:
        return None
    return PlainCommand(tuple(words), has_expansion)


def respell_command(plain: PlainCommand, random: Random, steps: int) -> Spelling:
    """Spell the command differently in the given number of steps, one of which changes its words."""
    names = _generate_names()
    has_prefix = steps > 1 and random.random() < 0.3
    prefix = random.choice(COMMAND_PREFIXES) if has_prefix else ()
    possible = [
        name for name in COMMAND_SPELLINGS if not any(plain.has_expansion) or name in EXPANSION_SAFE_SPELLINGS
    ]
    name = random.choice(possible)
    applied_steps = [*(" ".join(prefix) for _ in range(has_prefix)), name]
    script = COMMAND_SPELLINGS[name](PrefixedCommand(plain, prefix), random, names)
    for _ in range(steps - len(applied_steps)):
        script, name = _wrap_once(script, random, names)
        applied_steps.append(name)
    return Spelling(script, tuple(applied_steps))


def wrap_script(script: str, random: Random, steps: int) -> Spelling:
    """Put the script into the given number of random wrappers."""
    names, applied_steps = _generate_names(), []
    for _ in range(steps):
        script, name = _wrap_once(script, random, names)
        applied_steps.append(name)
    return Spelling(script, tuple(applied_steps))


def _wrap_once(script: str, random: Random, names: Iterator[str]) -> tuple[str, str]:
    """Put the script into a random wrapper; return the new script and the name of the wrapper."""
    name = random.choice(sorted(WRAPPERS))
    return WRAPPERS[name](script, random, names), name


def _generate_names() -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield f"v{number}"
