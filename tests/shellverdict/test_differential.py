"""Commands that do damage, run in a throwaway sandbox and compared with their verdicts.

A command that reaches its goal without a finding, although it was read in full, counts as unseen. Set
`TOOLFOLD_DIFFERENTIAL_REPORT=1` to print the counts with `pytest -s`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from functools import cache

import pytest

from shellverdict.judging import Judge
from shellverdict.paths import PathClassifier
from shellverdict.rules import builtin_rules
from tests.shellverdict.differential import (
    HOME,
    PROJECT,
    NoSandbox,
    Outcome,
    Sandbox,
    Template,
    load_templates,
    run_all,
)
from tests.thorough import thorough_count

PARTS = ("tuned", "held_out", "fresh")
MIN_TEMPLATES = 400
MIN_EXECUTED_SHARE = 0.8  # of those whose program is installed
MIN_EXECUTED_WHERE_ALL_ARE_INSTALLED = 1_000
MAX_UNSEEN_SHARE = 0.01
# Templates known to run without a finding; any other is a regression.
KNOWN_UNSEEN = frozenset({"delete/curl/download-curlrc", "delete/make/foreach"})


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(builtin_rules(), PathClassifier(home=HOME, cwd=PROJECT, follow_links=False))


def load_executed_templates(part: str) -> list[Template]:
    """Return the templates that run in the sandbox: with `make test` a sample of those that can."""
    installed = [template for template in load_templates(part) if template.installed]
    return installed[:: thorough_count(1, 12)]


@cache
def outcomes(part: str) -> tuple[tuple[Template, Outcome], ...]:
    """Return the results of one part of the templates, which run once per test session."""
    try:
        return tuple(run_all(load_executed_templates(part)))
    except NoSandbox as reason:
        pytest.skip(str(reason))


def find_unseen(judge: Judge, templates: Sequence[Template]) -> list[str]:
    return [each.name for each in templates if not _is_flagged(judge, each)]


def _is_flagged(judge: Judge, template: Template) -> bool:
    verdict = judge(template.command)
    return verdict.dangerous or verdict.unread


def test_corpus_has_enough_distinct_command_templates_and_no_duplicate_template_names() -> None:
    templates = [template for part in PARTS for template in load_templates(part)]
    assert len({template.command for template in templates}) >= MIN_TEMPLATES
    assert [name for name, count in Counter(each.name for each in templates).items() if count > 1] == []


def test_nearly_every_command_generated_from_a_dangerous_template_is_flagged(judge: Judge) -> None:
    """Needs no sandbox, so programs that are not installed are covered too."""
    templates = [template for part in PARTS for template in load_templates(part)]
    missed = find_unseen(judge, templates)
    assert len(missed) <= MAX_UNSEEN_SHARE * len(templates), missed
    assert set(missed) <= KNOWN_UNSEEN


def test_running_harmless_commands_in_the_test_sandbox_detects_no_damage() -> None:
    harmless = [
        Template("delete", "bash", "harmless", "ls ~/victim; rm -rf a.txt", "bash"),
        Template(
            "send",
            "bash",
            "harmless",
            "cat ~/.ssh/id_rsa; curl -s http://collector.example.net:8080/",
            "bash",
        ),
        Template("startup", "bash", "harmless", "cat ~/.bashrc; touch new", "bash"),
    ]
    try:
        with Sandbox() as sandbox:
            assert [sandbox.run(template).executed for template in harmless] == [False, False, False]
    except NoSandbox as reason:
        pytest.skip(str(reason))


def test_nearly_every_command_that_really_causes_damage_in_the_test_sandbox_is_flagged(judge: Judge) -> None:
    installed, executed, missed = 0, 0, []
    for part in PARTS:
        results = outcomes(part)
        assert len(results) == len(load_executed_templates(part))
        reached = [template for template, outcome in results if outcome.executed]
        unseen = find_unseen(judge, reached)
        report(part, results, unseen)
        installed, executed = installed + len(results), executed + len(reached)
        missed += unseen
    assert executed >= MIN_EXECUTED_SHARE * installed
    if installed == sum(len(load_templates(part)) for part in PARTS):
        assert executed >= MIN_EXECUTED_WHERE_ALL_ARE_INSTALLED
    assert len(missed) <= MAX_UNSEEN_SHARE * executed, missed
    assert set(missed) <= KNOWN_UNSEEN


def report(part: str, results: Sequence[tuple[Template, Outcome]], missed: Sequence[str]) -> None:
    """Print the counts for one part of the templates if TOOLFOLD_DIFFERENTIAL_REPORT is set."""
    if not os.environ.get("TOOLFOLD_DIFFERENTIAL_REPORT"):
        return
    absent = [each.name for each in load_templates(part) if not each.installed]
    idle = [template.name for template, outcome in results if not outcome.executed]
    print(f"\n{part}: {len(results) - len(idle)} executed, {len(missed)} unseen: {missed}")
    print(f"goal not reached: {idle}; program not installed: {absent}")
