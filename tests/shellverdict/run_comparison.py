"""Comparison of programs that really started with those predicted by the analysis of the command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from shellverdict.shell.reader import CommandReading
from shellverdict.shell.runs import ProgramRun
from shellverdict.shell.state import PLACEHOLDER_NUMBER
from shellverdict.shell.words import GAP, STAR, Word, compile_pattern
from shellverdict.verdict import EffectKind

SEPARATOR = "\x1f"
UNKNOWN_CHARACTERS = GAP + STAR + "\ufdd5\ufdd6\ufdd7\ufdd8"
UNCERTAIN_KINDS = frozenset({EffectKind.UNREADABLE, EffectKind.RUN_UNREAD, EffectKind.FORK_BOMB})


def find_unpredicted_runs(
    starts: Iterable[tuple[str, ...]], reading: CommandReading
) -> list[tuple[str, ...]]:
    """Return started programs that were not predicted; none if the analysis reports uncertainty."""
    if has_reported_uncertainty(reading):
        return []
    return find_unmatched_runs(starts, reading.runs)


def find_unmatched_runs(
    starts: Iterable[tuple[str, ...]], runs: Sequence[ProgramRun]
) -> list[tuple[str, ...]]:
    return [
        start
        for start in starts
        if not any(can_match(run, start) or can_match(run, _expand_env_split_string(start)) for run in runs)
    ]


def _expand_env_split_string(start: Sequence[str]) -> Sequence[str]:
    """Return `env -S 'a b'` as the words that env makes of its text."""
    if start[:2] != ("env", "-S") or len(start) < 3:
        return start
    return ("env", *shlex.split(start[2]), *start[3:])


def has_reported_uncertainty(reading: CommandReading) -> bool:
    return reading.is_incomplete or any(effect.kind in UNCERTAIN_KINDS for effect in reading.effects)


def can_match(run: ProgramRun, start: Sequence[str]) -> bool:
    """Return True if the unknown parts of a predicted run can have values that give the started program."""
    if not run.argv or not (run.argv[0].can_equal(start[0]) or run.path.can_equal(start[0])):
        return False
    if run.argv[1:] == tuple(start[1:]):
        return True
    return _argument_pattern(run).fullmatch("".join(SEPARATOR + word for word in start[1:])) is not None


def _argument_pattern(run: ProgramRun) -> re.Pattern[str]:
    """Return a pattern for the arguments; an unknown word may become several or none."""
    parts = []
    for word in run.argv[1:]:
        if word and not word.strip(UNKNOWN_CHARACTERS):
            parts.append(f"(?:{SEPARATOR}.*)?")
        else:
            parts.append(SEPARATOR + _word_pattern(word))
    if run.has_unknown_operands:
        parts.append(f"(?:{SEPARATOR}.*)?")
    return re.compile("".join(parts), re.DOTALL)


def _word_pattern(word: Word) -> str:
    """Return a pattern for one word: literal if no file matches it, with any number for placeholders."""
    spelled = re.escape(word).replace(re.escape(PLACEHOLDER_NUMBER), r"\d+")
    spelled = re.sub(r"/dev/fd/\d+", r"/dev/fd/\\d+", spelled)
    return f"(?:{spelled}|{compile_pattern(word).pattern}|{compile_pattern(word.literal).pattern})"


def format_runs(runs: Iterable[ProgramRun]) -> list[str]:
    """Format the runs for the message of a failing test."""
    return [" ".join(Word(word).display_text for word in run.argv) for run in runs]
