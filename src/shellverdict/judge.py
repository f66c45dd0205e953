"""The verdict on a command: read it, see what it would do, let the rules speak.

A failure on the way is a verdict too: what could not be judged is asked about.
"""

from __future__ import annotations

import functools
import logging
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from shellverdict.effects import confidential, effects_of
from shellverdict.effects.deleting import deletes_found, found_are_made
from shellverdict.foreign import read_foreign
from shellverdict.ground import Ground
from shellverdict.interactive.process_input import ProcessInput
from shellverdict.interactive.replay import read_input
from shellverdict.names import names
from shellverdict.places import Places
from shellverdict.rules import Rules
from shellverdict.shell.embedded import (
    calls_indirectly,
    embedded_commands,
    language_of,
    words_that_may_run,
)
from shellverdict.shell.grammar import Budget
from shellverdict.shell.inner import runs_others
from shellverdict.shell.reader import Reading, read_command
from shellverdict.shell.runs import HERE, Run
from shellverdict.shell.words import GAP, NOTHING_KEPT, Word
from shellverdict.spoof import spoofed_text, spoofed_words
from shellverdict.verdict import Effect, Finding, Kind, Severity, Verdict

log = logging.getLogger(__name__)

__all__ = ["Judge", "detect_dangerous_command"]

TOO_LONG = Finding(
    "too-long",
    "unreadable",
    Severity.HIGH,
    "it is too long or too tangled to be read in full, so that nobody can say what it would do",
)
FAILED = "failed"
INPUT_UNKNOWN = "input-unknown"
LONGEST_SHAPE = 4_000
MAX_EMBEDDED_RUNS = 16
GUESSES = frozenset({"unreadable", "spoof"})  # categories that say nothing of text that is no command
MOST_RUNS = 250  # different ones; more would take too long to judge
TOUCHING = frozenset({Kind.DELETE, Kind.OVERWRITE, Kind.WRITE, Kind.PERMISSIONS, Kind.DISCLOSE})


class Judge:
    """Judges commands by one set of rules, on one machine, or for the ground that they run on."""

    def __init__(self, rules: Rules, places: Places, ground: Ground | None = None) -> None:
        self._rules, self._places, self._ground = rules, places, ground

    def __call__(
        self, command: str, *, cwd: str | None = None, kept: Mapping[str, Word] = NOTHING_KEPT
    ) -> Verdict:
        """What a person should know before this runs. Raises nothing.

        `kept` are variables that earlier commands have left to this one (`Verdict.leaves`).
        """
        places, budget = self._places.again(), Budget()
        reading = self._read(command, places, cwd or HERE, kept, budget)
        if reading is None:
            return Verdict(command, (_failed(command),), unread=True)
        runs = _each_once(reading.runs)
        if any(_moves_files(run) for run in runs):
            places = places.without_evidence()
        findings = list(self._findings(command, reading.effects, runs[:MOST_RUNS], places))
        unread = reading.unread or len(runs) > MOST_RUNS or any(f.rule == FAILED for f in findings)
        if not findings and not unread:
            findings += self._embedded(reading, runs, places, cwd or HERE, budget)
            unread = any(f.rule in (FAILED, TOO_LONG.rule) for f in findings)
        if reading.unread or len(runs) > MOST_RUNS:
            findings.append(replace(TOO_LONG, span=(0, len(command))))
        shape = "" if unread else _shape(reading.runs, cwd or HERE, {**kept, **reading.leaves})
        return Verdict(command, tuple(dict.fromkeys(findings)), shape, unread, reading.leaves)

    def judge_input(self, given: ProcessInput) -> Verdict:
        """Judge text for a running process together with all that it was given before. Raises nothing."""
        # What was typed before may have moved files, and only the latest lines are told.
        places, command = self._places.without_evidence(), given.description
        try:
            found = read_input(
                given,
                home=places.home,
                cwd=given.workdir or HERE,
                start=places.session,
                confidential=lambda run: confidential(run, places),
            )
        except Exception:
            log.exception("reading the input of a process failed; it is asked about")
            return Verdict(command, (_failed(command),), unread=True)
        span, runs = (0, len(command)), _each_once(found.reading.runs)
        findings = list(self._findings(found.shown, found.reading.effects, runs[:MOST_RUNS], places))
        possible = _each_once(found.possible.runs)[:MOST_RUNS]
        guesses = self._findings("", found.possible.effects, possible, places)
        findings += [
            replace(each, blocked=False) for each in guesses
        ]  # nothing is refused for good by a guess
        findings += [Finding(INPUT_UNKNOWN, "unreadable", Severity.HIGH, why) for why in found.unknown]
        if found.reading.unread or len(runs) > MOST_RUNS:
            findings.append(TOO_LONG)
        unread = found.reading.unread or any(
            f.rule in (FAILED, INPUT_UNKNOWN, TOO_LONG.rule) for f in findings
        )
        return Verdict(command, tuple(dict.fromkeys(replace(f, span=span) for f in findings)), unread=unread)

    def _read(
        self, command: str, places: Places, cwd: str, kept: Mapping[str, Word], budget: Budget
    ) -> Reading | None:
        try:
            return read_command(
                command,
                home=places.home,
                cwd=cwd,
                start=places.session,
                confidential=lambda run: confidential(run, places),
                kept=kept,
                budget=budget,
            )
        except Exception:
            log.exception("reading a command failed; it is asked about")
            return None

    def _findings(
        self, command: str, effects: Iterable[Effect], runs: Sequence[Run], places: Places
    ) -> Iterator[Finding]:
        try:
            for effect in spoofed_text(command):
                yield from self._rules.about_effect(effect)
            for effect in spoofed_words(runs):
                yield from self._rules.about_effect(effect)
            for effect in effects:
                yield from self._rules.about_effect(_located(effect, places))
            made = any(map(deletes_found, runs)) and found_are_made(runs, places)
            ground = None if self._ground is None or self._ground.lets_out(runs) else self._ground
            for run in runs:
                if made and deletes_found(run):
                    continue
                yield from self._about(run, places, ground)
                if (shorter := _shortest(run)) is not None:  # a guess, for which nothing is refused for good
                    yield from (replace(each, blocked=False) for each in self._about(shorter, places, ground))
        except Exception:
            log.exception("judging a command failed; it is asked about")
            yield _failed(command)

    def _embedded(
        self, reading: Reading, runs: Sequence[Run], places: Places, cwd: str, budget: Budget
    ) -> Iterator[Finding]:
        """Judge commands inside text that a program may run: its words, its input, a file written before.

        Such a command is a guess: only what does real harm counts, and nothing is refused for good.
        """
        for holder, command, span in _candidates(reading, runs):
            inside = self._read(command, places, cwd, NOTHING_KEPT, budget)
            if inside is None or inside.unread:
                yield replace(TOO_LONG, span=span)
                return
            for finding in self._findings(command, inside.effects, inside.runs[:MAX_EMBEDDED_RUNS], places):
                if finding.severity >= Severity.MEDIUM and finding.category not in GUESSES:
                    reason = f"{holder} holds a command that may be run: {finding.reason}"
                    yield replace(finding, reason=reason, span=span, blocked=False, kept_in="")

    def _about(self, run: Run, places: Places, ground: Ground | None) -> Iterator[Finding]:
        yield from self._rules.about_run(run)
        for effect in effects_of(run, places):
            for finding in self._rules.about_effect(effect):
                kept = ground is not None and ground.keeps(finding, effect, run)
                yield replace(finding, kept_in=ground.name) if ground and kept else finding


def _candidates(reading: Reading, runs: Iterable[Run]) -> Iterator[tuple[str, Word, tuple[int, int]]]:
    """Embedded commands, each with what holds it and where that stands."""
    for text, (path, span) in reading.planted.texts.items():
        holder = f"a file that it writes ({path})" if path else "text that it may put into a script"
        language = language_of(path, text)
        for script in read_foreign(text, language).scripts:
            yield holder, script, span
        if not language or calls_indirectly(text, language):
            for command in embedded_commands(text):
                yield holder, command, span
    for run in runs:
        for text in (*run.assigned.values(), *words_that_may_run(run, known=runs_others(run))):
            for command in embedded_commands(text):
                yield f"what {run.name.shown} is given", command, run.span


_MOVERS = names("mv gmv rename prename mmv ln link mount rsync git-mv git-rm bindfs")
_MOVING_GIT = names("mv rm update-index read-tree worktree submodule init clone")


def _moves_files(run: Run) -> bool:
    """Whether a run could put tracked files where a look at the disk found none, or make them untracked."""
    return (
        not run.name.known
        or run.name in _MOVERS
        or (run.name == "git" and not _MOVING_GIT.isdisjoint(run.argv[1:]))
    )


def _shortest(run: Run) -> Run | None:
    """The run with nothing in the place of unknown text inside its words, where there is any."""
    words = tuple(word.shortest for word in run.argv)
    targets = tuple(replace(each, target=each.target.shortest) for each in run.redirects)
    if words == run.argv and targets == run.redirects:
        return None
    return replace(run, argv=words, redirects=targets)


def detect_dangerous_command(command: str) -> Verdict:
    """Judge a shell command by the shipped rules, for the person and the folder this process has.

    A runtime judges by its own configuration instead; see `Judge`.
    """
    return _shipped(os.path.expanduser("~"), os.getcwd())(command)  # noqa: PTH109, PTH111 - plain text


@functools.lru_cache(maxsize=8)  # what is kept is read-only and as long-lived as the package's files
def _shipped(home: str, cwd: str) -> Judge:
    return Judge(Rules.shipped(), Places(home=home, cwd=cwd))


def _located(effect: Effect, places: Places) -> Effect:
    """An effect seen in code, with the place it touches."""
    if effect.kind not in TOUCHING or not effect.target:
        return effect
    where = places.of(effect.target, whole="recursive" in effect.traits)
    everything = frozenset({"everything"} if where.everything else ())
    return replace(effect, traits=effect.traits | where.worst_traits | everything)


def _failed(command: str) -> Finding:
    reason = "judging it failed, so that nobody can say what it would do; the log says why"
    return Finding(FAILED, "unreadable", Severity.HIGH, reason, (0, len(command)))


def _each_once(runs: Iterable[Run]) -> list[Run]:
    """The runs that differ in something a rule may look at."""
    found: dict[object, Run] = {}
    for run in runs:
        fed = None if run.stdin is None else (run.stdin.text, run.stdin.marks)
        around = (run.cwd, run.through, run.more_operands, run.background, run.repeated, fed)
        found.setdefault((run.argv, run.path, run.redirects, *run.assigned.items(), around), run)
    return list(found.values())


def _shape(runs: Iterable[Run], cwd: str, kept: Mapping[str, Word]) -> str:
    """The command spelled one way; empty where something in it is not known or it is too long to show.

    What programs find in their environment belongs to it: `psql` means another database then.
    """
    if not all(value.known for value in kept.values()):
        return ""
    parts = [f"{name}={shlex.quote(value)}" for name, value in sorted(kept.items())]
    for run in runs:
        words = (*run.argv, *(redirect.target for redirect in run.redirects), *run.assigned.values())
        if any(GAP in word for word in words):
            return ""
        parts.append(_spelled(run, cwd))
    shape = "; ".join(parts)
    return shape if len(shape) <= LONGEST_SHAPE else ""


def _spelled(run: Run, cwd: str) -> str:
    assigned = [f"{name}={shlex.quote(value.shown)}" for name, value in run.assigned.items()]
    argv = [_quoted(word) for word in run.argv]
    redirects = [f"{r.descriptor}{r.operator} {_quoted(r.target)}" for r in run.redirects]
    fed = []
    if run.stdin is not None and run.stdin.text:
        fed = [f"<<< {shlex.quote(run.stdin.text.shown)}"]
    elif run.stdin is not None:
        fed = ["< ..."]
    folder = [] if run.cwd == cwd or not run.argv else [f"(in {shlex.quote(run.cwd.shown)})"]
    return " ".join([*folder, *assigned, *argv, *redirects, *fed])


def _quoted(word: Word) -> str:
    """The word as one would type it: what is a pattern bare, all else quoted where it must be."""
    if word.known:
        return shlex.quote(word)
    return "".join(part if wild else shlex.quote(part) if part else "" for part, wild in word.pieces())
