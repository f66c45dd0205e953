"""Whether a program that really started is one that our reading of the command speaks of."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from shellverdict.shell.reader import CommandReading
from shellverdict.shell.runs import ProgramRun
from shellverdict.shell.state import PLACEHOLDER_NUMBER
from shellverdict.shell.words import GAP, STAR, Word, compile_pattern
from shellverdict.verdict import EffectKind

BETWEEN = "\x1f"
UNKNOWN = GAP + STAR + "\ufdd5\ufdd6\ufdd7\ufdd8"
CONFESSED = frozenset({EffectKind.UNREADABLE, EffectKind.RUN_UNREAD, EffectKind.FORK_BOMB})


def unaccounted(starts: Iterable[tuple[str, ...]], reading: CommandReading) -> list[tuple[str, ...]]:
    """The programs nobody was told of; none where the reading says that it could not see all."""
    if confesses(reading):
        return []
    return unforeseen(starts, reading.runs)


def unforeseen(starts: Iterable[tuple[str, ...]], runs: Sequence[ProgramRun]) -> list[tuple[str, ...]]:
    return [
        start
        for start in starts
        if not any(could_be(run, start) or could_be(run, _written_out(start)) for run in runs)
    ]


def _written_out(start: Sequence[str]) -> Sequence[str]:
    """`env -S 'a b'` as the words that it makes of its text."""
    if start[:2] != ("env", "-S") or len(start) < 3:
        return start
    return ("env", *shlex.split(start[2]), *start[3:])


def confesses(reading: CommandReading) -> bool:
    return reading.is_incomplete or any(effect.kind in CONFESSED for effect in reading.effects)


def could_be(run: ProgramRun, start: Sequence[str]) -> bool:
    """Whether the words of the run, with their gaps filled somehow, are those of the program that started."""
    if not run.argv or not (run.argv[0].can_equal(start[0]) or run.path.can_equal(start[0])):
        return False
    if run.argv[1:] == tuple(start[1:]):
        return True
    return _words(run).fullmatch("".join(BETWEEN + word for word in start[1:])) is not None


def _words(run: ProgramRun) -> re.Pattern[str]:
    """An unknown word may become several or none, as an unquoted variable does."""
    parts = []
    for word in run.argv[1:]:
        if word and not word.strip(UNKNOWN):
            parts.append(f"(?:{BETWEEN}.*)?")
        else:
            parts.append(BETWEEN + _one_of(word))
    if run.has_unknown_operands:
        parts.append(f"(?:{BETWEEN}.*)?")
    return re.compile("".join(parts), re.DOTALL)


def _one_of(word: Word) -> str:
    """A pattern that no file meets stays as it was typed; numbers and pipes are only known to be such."""
    spelled = re.escape(word).replace(re.escape(PLACEHOLDER_NUMBER), r"\d+")
    spelled = re.sub(r"/dev/fd/\d+", r"/dev/fd/\\d+", spelled)
    return f"(?:{spelled}|{compile_pattern(word).pattern}|{compile_pattern(word.literal).pattern})"


def shown(runs: Iterable[ProgramRun]) -> list[str]:
    """The runs for the message of a failing test."""
    return [" ".join(Word(word).display_text for word in run.argv) for run in runs]
