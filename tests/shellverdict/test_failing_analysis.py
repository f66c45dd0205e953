"""A command whose analysis fails needs approval, at whatever stage the analysis fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from shellverdict.interactive.process_input import ProcessInput
from shellverdict.judging import Judge
from shellverdict.paths import PathClassifier
from shellverdict.rules import Rules, builtin_rules
from shellverdict.shell.runs import ProgramRun
from shellverdict.shell.words import Word
from shellverdict.verdict import CommandEffect, Finding, Severity, Verdict


class DamagedPaths(PathClassifier):
    """Paths in which one method or property raises."""

    broken = ""

    def __getattribute__(self, name: str) -> Any:
        if name == type(self).broken:
            raise OSError("damaged")
        return super().__getattribute__(name)

    def with_fresh_limits(self) -> PathClassifier:
        return self


class DamagedRules(Rules):
    def match_run(self, run: ProgramRun) -> Iterator[Finding]:
        raise ValueError("damaged")

    def match_effect(self, effect: CommandEffect) -> Iterator[Finding]:
        yield Finding("known", "data-loss", Severity.CRITICAL, "found before the failure", blocked=True)


class DamagedWord(Word):
    @property
    def is_known(self) -> bool:
        raise ValueError("damaged")


def damaged_judge(broken: str) -> Judge:
    kind = type("BrokenPaths", (DamagedPaths,), {"broken": broken})
    return Judge(builtin_rules(), kind(home="/home/me", cwd="/home/me/project", follow_links=False))


def failure_verdict(command: str) -> Verdict:
    reason = "the analysis failed, so its effects are unknown; see the log for the error"
    finding = Finding("failed", "unreadable", Severity.HIGH, reason, (0, len(command)))
    return Verdict(command, (finding,), unread=True)


@pytest.mark.parametrize(
    ("broken", "command"),
    [
        ("with_fresh_limits", "ls"),
        ("session_directory", "ls"),
        ("home", "ls"),
        ("classify", "rm notes.txt"),
        ("without_disk_checks", "mv notes.txt other.txt"),
    ],
)
def test_failure_at_any_stage_of_the_analysis_of_a_command_needs_approval(broken: str, command: str) -> None:
    assert damaged_judge("")("ls").findings == ()
    assert damaged_judge(broken)(command) == failure_verdict(command)


@pytest.mark.parametrize("broken", ["without_disk_checks", "session_directory", "home", "classify"])
def test_failure_at_any_stage_of_the_analysis_of_process_input_needs_approval(broken: str) -> None:
    written = ProcessInput(command="bash", workdir="/home/me/project", text="rm notes.txt\n")
    verdict = damaged_judge(broken).judge_input(written)
    assert verdict == failure_verdict(written.description)


def test_failure_while_the_shape_of_a_harmless_command_is_computed_needs_approval() -> None:
    judge = damaged_judge("")
    assert judge("ls", variables={"LANG": DamagedWord("C")}) == failure_verdict("ls")


def test_findings_made_before_a_failure_still_block_the_command() -> None:
    judge = Judge(DamagedRules(()), PathClassifier(home="/home/me", cwd="/home/me/project"))
    verdict = judge("python3 -c 'exec(input())'")
    assert [each.rule for each in verdict.findings] == ["known", "failed"]
    assert (verdict.blocked, verdict.unread, verdict.shape) == (True, True, "")
