"""Judge a command: parse it, derive its effects, match them against the rules.

An internal failure yields a verdict too: a command that could not be judged needs approval.
"""

from __future__ import annotations

import functools
import logging
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from shellverdict.effects import find_effects, prints_confidential
from shellverdict.effects.deleting import deletes_only_generated_files, deletes_search_results
from shellverdict.embedded_code import analyze_code
from shellverdict.execution_site import ExecutionSite
from shellverdict.interactive.process_input import ProcessInput
from shellverdict.interactive.replay import analyze_input
from shellverdict.names import split_names
from shellverdict.paths import PathClassifier
from shellverdict.rules import Rules, builtin_rules
from shellverdict.shell.budget import Budget
from shellverdict.shell.earlier_files import NO_EARLIER_FILES, EarlierFiles
from shellverdict.shell.embedded import (
    detect_language,
    find_embedded_commands,
    has_indirect_call,
    possible_code_words,
)
from shellverdict.shell.inner import can_run_commands
from shellverdict.shell.reader import CommandReading, read_command
from shellverdict.shell.runs import CURRENT_DIRECTORY, ProgramRun
from shellverdict.shell.words import GAP, NO_VARIABLES, Word
from shellverdict.spoof import find_hidden_characters, find_lookalike_words
from shellverdict.verdict import CommandEffect, EffectKind, Finding, Severity, Verdict

log = logging.getLogger(__name__)

__all__ = ["Judge", "detect_dangerous_command", "judge"]

PathLike: TypeAlias = str | os.PathLike[str]

TOO_LONG = Finding(
    "too-long",
    "unreadable",
    Severity.HIGH,
    "it is too long or too complex to be analyzed completely, so its effects are unknown",
)
FAILED = "failed"
INPUT_UNKNOWN = "input-unknown"
MAX_SHAPE_CHARS = 4_000
MAX_EMBEDDED_RUNS = 16
# Categories that are meaningless for text that may not be a command, and a rule that matches every function
# that deletes its argument.
IGNORED_IN_EMBEDDED_CODE = frozenset({"unreadable", "spoof", "delete-unknown-tree"})
MAX_RUNS = 250  # distinct ones; more would take too long to judge
PATH_EFFECTS = frozenset(
    {EffectKind.DELETE, EffectKind.OVERWRITE, EffectKind.WRITE, EffectKind.PERMISSIONS, EffectKind.DISCLOSE}
)


class Judge:
    """Judges shell commands by one set of rules, for this machine or for another execution site."""

    def __init__(self, rules: Rules, paths: PathClassifier, site: ExecutionSite | None = None) -> None:
        self._rules, self._paths, self._site = rules, paths, site

    @classmethod
    def for_this_machine(
        cls, *, cwd: PathLike | None = None, home: PathLike | None = None, rules: Rules | None = None
    ) -> Judge:
        """Return a judge for commands on this machine, with the built-in and additional rules.

        `cwd` and `home` default to the working directory and the home directory of this process.
        """
        return _cached_judge(_absolute_path(home, "~"), _absolute_path(cwd, "."), rules)

    def __call__(
        self,
        command: str,
        *,
        cwd: str | None = None,
        variables: Mapping[str, Word] = NO_VARIABLES,
        earlier_files: EarlierFiles = NO_EARLIER_FILES,
    ) -> Verdict:
        """Judge a shell command before it runs. Never raises.

        `variables` are shell variables set by earlier commands (see `Verdict.leaves`), `earlier_files` the
        files that they changed (see `Verdict.file_changes`).
        """
        try:
            return self._judge_command(command, cwd or CURRENT_DIRECTORY, variables, earlier_files)
        except Exception:
            return _failure_verdict(command)

    def _judge_command(
        self, command: str, cwd: str, variables: Mapping[str, Word], earlier_files: EarlierFiles
    ) -> Verdict:
        paths, budget = self._paths.with_fresh_limits(), Budget()
        reading = _read_command(command, paths, cwd, variables, budget, earlier_files)
        runs = _unique_runs(reading.runs)
        if any(_moves_files(run) for run in runs):
            paths = paths.without_disk_checks()
        findings = list(self._collect_findings(command, reading.effects, runs[:MAX_RUNS], paths))
        unread = reading.is_incomplete or len(runs) > MAX_RUNS or any(f.rule == FAILED for f in findings)
        if not findings and not unread:
            findings += self._judge_embedded(reading, runs, paths, cwd, budget)
            unread = any(f.rule in (FAILED, TOO_LONG.rule) for f in findings)
        if reading.is_incomplete or len(runs) > MAX_RUNS:
            findings.append(replace(TOO_LONG, span=(0, len(command))))
        known = {**variables, **reading.exported_variables}
        shape = "" if unread else _command_shape(reading.runs, cwd, known)
        return Verdict(
            command,
            tuple(dict.fromkeys(findings)),
            shape,
            unread,
            reading.exported_variables,
            reading.file_changes,
        )

    def judge_input(
        self, process_input: ProcessInput, earlier_files: EarlierFiles = NO_EARLIER_FILES
    ) -> Verdict:
        """Judge text written to a running process, together with all its earlier input. Never raises."""
        try:
            return self._judge_input(process_input, earlier_files)
        except Exception:
            return _failure_verdict(process_input.description)

    def _judge_input(self, process_input: ProcessInput, earlier_files: EarlierFiles) -> Verdict:
        # Earlier input may have moved files, and only the latest lines are analyzed.
        paths, command = self._paths.without_disk_checks(), process_input.description
        input_reading = analyze_input(
            process_input,
            home=paths.home,
            cwd=process_input.workdir or CURRENT_DIRECTORY,
            initial_cwd=paths.session_directory,
            is_confidential=lambda run: prints_confidential(run, paths),
            earlier_files=earlier_files,
        )
        span, runs = (0, len(command)), _unique_runs(input_reading.reading.runs)
        findings = list(
            self._collect_findings(
                input_reading.displayed_text, input_reading.reading.effects, runs[:MAX_RUNS], paths
            )
        )
        possible = _unique_runs(input_reading.possible_reading.runs)[:MAX_RUNS]
        guesses = self._collect_findings("", input_reading.possible_reading.effects, possible, paths)
        findings += [replace(each, blocked=False) for each in guesses]  # a guess never blocks for good
        findings += [
            Finding(INPUT_UNKNOWN, "unreadable", Severity.HIGH, why) for why in input_reading.unknown_reasons
        ]
        if input_reading.reading.is_incomplete or len(runs) > MAX_RUNS:
            findings.append(TOO_LONG)
        unread = input_reading.reading.is_incomplete or any(
            f.rule in (FAILED, INPUT_UNKNOWN, TOO_LONG.rule) for f in findings
        )
        return Verdict(command, tuple(dict.fromkeys(replace(f, span=span) for f in findings)), unread=unread)

    def _collect_findings(
        self,
        command: str,
        effects: Iterable[CommandEffect],
        runs: Sequence[ProgramRun],
        paths: PathClassifier,
    ) -> Iterator[Finding]:
        try:
            for effect in find_hidden_characters(command):
                yield from self._rules.match_effect(effect)
            for effect in find_lookalike_words(runs):
                yield from self._rules.match_effect(effect)
            for effect in effects:
                yield from self._rules.match_effect(_classify_effect(effect, paths))
            only_generated = any(map(deletes_search_results, runs)) and deletes_only_generated_files(
                runs, paths
            )
            site = None if self._site is None or self._site.can_escape(runs) else self._site
            for run in runs:
                if only_generated and deletes_search_results(run):
                    continue
                yield from self._judge_run(run, paths, site)
                shorter = _drop_unknown_text(run)
                if shorter is not None:  # a guess never blocks for good
                    guesses = self._judge_run(shorter, paths, site)
                    yield from (replace(each, blocked=False) for each in guesses)
        except Exception:
            log.exception("judging a command failed; approval is required")
            yield _failure_finding(command)

    def _judge_embedded(
        self,
        reading: CommandReading,
        runs: Sequence[ProgramRun],
        paths: PathClassifier,
        cwd: str,
        budget: Budget,
    ) -> Iterator[Finding]:
        """Judge commands in text that a program may run: its arguments, its input, and files written before.

        Whether such a command runs is a guess, so only severe findings count, and all can be approved.
        """
        candidates = list(_possible_code(runs))
        for text, (path, span) in reading.written_texts.texts.items():
            source = f"a written file ({path})" if path else "text that it may write into a script"
            language = detect_language(path, text)
            code = analyze_code(text, language)
            effects = self._collect_findings("", code.effects, (), paths)
            yield from _guess_findings(effects, source, span)
            candidates += [(source, script, span) for script in code.scripts]
            if not language or has_indirect_call(text, language):
                candidates += [(source, command, span) for command in find_embedded_commands(text)]
        for source, command, span in candidates:
            embedded = _read_command(command, paths, cwd, NO_VARIABLES, budget)
            if embedded.is_incomplete:
                yield replace(TOO_LONG, span=span)
                return
            found = self._collect_findings(
                command, embedded.effects, embedded.runs[:MAX_EMBEDDED_RUNS], paths
            )
            yield from _guess_findings(found, source, span)

    def _judge_run(
        self, run: ProgramRun, paths: PathClassifier, site: ExecutionSite | None
    ) -> Iterator[Finding]:
        yield from self._rules.match_run(run)
        for effect in find_effects(run, paths):
            for finding in self._rules.match_effect(effect):
                is_confined = site is not None and site.confines(finding, effect, run)
                yield replace(finding, confined_to=site.name) if site and is_confined else finding


def _read_command(
    command: str,
    paths: PathClassifier,
    cwd: str,
    variables: Mapping[str, Word],
    budget: Budget,
    earlier_files: EarlierFiles = NO_EARLIER_FILES,
) -> CommandReading:
    return read_command(
        command,
        home=paths.home,
        cwd=cwd,
        initial_cwd=paths.session_directory,
        is_confidential=lambda run: prints_confidential(run, paths),
        variables=variables,
        earlier_files=earlier_files,
        budget=budget,
    )


def _guess_findings(findings: Iterable[Finding], source: str, span: tuple[int, int]) -> Iterator[Finding]:
    """Yield the severe findings about code that may be run."""
    for finding in findings:
        is_ignored = {finding.category, finding.rule} & IGNORED_IN_EMBEDDED_CODE
        if finding.severity >= Severity.MEDIUM and not is_ignored:
            reason = f"{source} contains a command that may be run: {finding.reason}"
            yield replace(finding, reason=reason, span=span, blocked=False, confined_to="")


def _possible_code(runs: Iterable[ProgramRun]) -> Iterator[tuple[str, Word, tuple[int, int]]]:
    """Yield the commands in arguments, input and variables, each with its source and position."""
    for run in runs:
        for text in (*run.env_assignments.values(), *possible_code_words(run, known=can_run_commands(run))):
            for command in find_embedded_commands(text):
                yield f"an argument or the input of {run.name.display_text}", command, run.span


_MOVING_PROGRAMS = split_names("mv gmv rename prename mmv ln link mount rsync git-mv git-rm bindfs")
_MOVING_GIT_COMMANDS = split_names("mv rm update-index read-tree worktree submodule init clone")


def _moves_files(run: ProgramRun) -> bool:
    """Return True if a program may move or untrack files, which makes earlier checks of the disk invalid."""
    return (
        not run.name.is_known
        or run.name in _MOVING_PROGRAMS
        or (run.name == "git" and not _MOVING_GIT_COMMANDS.isdisjoint(run.argv[1:]))
    )


def _drop_unknown_text(run: ProgramRun) -> ProgramRun | None:
    """Return a program run with all unknown text removed; None if it contains no unknown text."""
    words = tuple(word.without_unknown_parts for word in run.argv)
    targets = tuple(replace(each, target=each.target.without_unknown_parts) for each in run.redirects)
    if words == run.argv and targets == run.redirects:
        return None
    return replace(run, argv=words, redirects=targets)


def judge(
    command: str,
    *,
    cwd: PathLike | None = None,
    home: PathLike | None = None,
    rules: Rules | None = None,
) -> Verdict:
    """Judge a shell command by the built-in rules and the given additional rules, without running it.

    `cwd` is the directory in which it would run, `home` the home directory of the user who would run it; by
    default those of this process. Raises RuleError if `rules` reuse the name of a built-in rule.
    """
    return Judge.for_this_machine(cwd=cwd, home=home, rules=rules)(command)


def detect_dangerous_command(command: str) -> Verdict:
    """Judge a shell command by the built-in rules, for the current user and working directory.

    A runtime uses its own configuration instead; see `Judge`.
    """
    return judge(command)


@functools.lru_cache(maxsize=16)  # a judge keeps nothing of the commands it has judged
def _cached_judge(home: str, cwd: str, rules: Rules | None) -> Judge:
    return Judge(_add_to_builtin_rules(rules), PathClassifier(home=home, cwd=cwd))


@functools.lru_cache(maxsize=4)  # sets of rules are immutable and compared by identity
def _add_to_builtin_rules(rules: Rules | None) -> Rules:
    return builtin_rules() if rules is None else builtin_rules().merge(rules)


def _absolute_path(path: PathLike | None, default: str) -> str:
    text = default if path is None else os.fspath(path)
    return os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111 - plain text


def _classify_effect(effect: CommandEffect, paths: PathClassifier) -> CommandEffect:
    """Return an effect of embedded code, extended by the traits of its target path (home, system …)."""
    if effect.kind not in PATH_EFFECTS or not effect.target:
        return effect
    info = paths.classify(effect.target, recursive="recursive" in effect.traits)
    everything_trait = frozenset({"everything"} if info.covers_everything else ())
    return replace(effect, traits=effect.traits | info.worst_case_traits | everything_trait)


def _failure_verdict(command: str) -> Verdict:
    """Return the verdict on a command whose analysis raised the current exception: it needs approval."""
    log.exception("the analysis of a command failed; approval is required")
    return Verdict(command, (_failure_finding(command),), unread=True)


def _failure_finding(command: str) -> Finding:
    reason = "the analysis failed, so its effects are unknown; see the log for the error"
    return Finding(FAILED, "unreadable", Severity.HIGH, reason, (0, len(command)))


def _unique_runs(runs: Iterable[ProgramRun]) -> list[ProgramRun]:
    """Return the program runs without repeated ones, which would match the same rules again."""
    unique: dict[object, ProgramRun] = {}
    for run in runs:
        stdin_key = None if run.stdin is None else (run.stdin.text, run.stdin.taints)
        context_key = (
            run.cwd,
            run.wrappers,
            run.has_unknown_operands,
            run.background,
            run.in_endless_loop,
            stdin_key,
        )
        unique.setdefault((run.argv, run.path, run.redirects, *run.env_assignments.items(), context_key), run)
    return list(unique.values())


def _command_shape(runs: Iterable[ProgramRun], cwd: str, variables: Mapping[str, Word]) -> str:
    """Return the canonical spelling of a command; empty if it is too long or part of it is unknown.

    Inherited variables are included: with other variables, `psql` connects to another database.
    """
    if not all(value.is_known for value in variables.values()):
        return ""
    parts = [f"{name}={shlex.quote(value)}" for name, value in sorted(variables.items())]
    for run in runs:
        words = (*run.argv, *(redirect.target for redirect in run.redirects), *run.env_assignments.values())
        if any(GAP in word for word in words):
            return ""
        parts.append(_format_run(run, cwd))
    shape = "; ".join(parts)
    return shape if len(shape) <= MAX_SHAPE_CHARS else ""


def _format_run(run: ProgramRun, cwd: str) -> str:
    assigned = [f"{name}={shlex.quote(value.display_text)}" for name, value in run.env_assignments.items()]
    argv = [_quote_word(word) for word in run.argv]
    redirects = [f"{r.descriptor}{r.operator} {_quote_word(r.target)}" for r in run.redirects]
    stdin = []
    if run.stdin is not None and run.stdin.text:
        stdin = [f"<<< {shlex.quote(run.stdin.text.display_text)}"]
    elif run.stdin is not None:
        stdin = ["< ..."]
    directory = [] if run.cwd == cwd or not run.argv else [f"(in {shlex.quote(run.cwd.display_text)})"]
    return " ".join([*directory, *assigned, *argv, *redirects, *stdin])


def _quote_word(word: Word) -> str:
    """Return the word in shell syntax: wildcards unquoted, all other text quoted if necessary."""
    if word.is_known:
        return shlex.quote(word)
    return "".join(
        part if wild else shlex.quote(part) if part else "" for part, wild in word.split_wildcards()
    )
