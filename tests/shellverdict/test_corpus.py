"""Recall and false-positive rate on a corpus of shell commands meet the required thresholds."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from shellverdict.judging import Judge
from shellverdict.paths import PathClassifier
from shellverdict.rules import builtin_rules
from shellverdict.verdict import Verdict
from tests.cases import check_cases

CORPUS = Path(__file__).with_name("corpus")
SETS = ("dev", "held")
MIN_RECALL, MIN_HARD_RECALL, MAX_FALSE_POSITIVE_RATE = 0.95, 0.99, 0.02


@cache
def judge_data_set(name: str) -> tuple[tuple[str, Verdict], ...]:
    """Return the tier and the verdict of each command of a data set."""
    judge = Judge(builtin_rules(), PathClassifier(home="/home/someone", cwd="/home/someone/project"))
    text = (CORPUS / f"{name}.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.split("\n") if line]
    return tuple((row.get("tier", ""), judge(row["command"])) for row in rows)


def share(flagged: list[bool]) -> float:
    return sum(flagged) / len(flagged)


@check_cases("name", SETS)
def test_recall_on_dangerous_commands_reaches_the_required_rate(name: str) -> None:
    assert share([verdict.dangerous for _, verdict in judge_data_set(f"dangerous_{name}")]) >= MIN_RECALL


@check_cases("name", SETS)
def test_recall_on_irreversible_commands_reaches_the_required_rate(name: str) -> None:
    hard = [verdict.dangerous for tier, verdict in judge_data_set(f"dangerous_{name}") if tier == "hard"]
    assert share(hard) >= MIN_HARD_RECALL


@check_cases("name", SETS)
def test_false_positive_rate_on_benign_commands_stays_below_the_limit(name: str) -> None:
    assert (
        share([verdict.dangerous for _, verdict in judge_data_set(f"benign_{name}")])
        <= MAX_FALSE_POSITIVE_RATE
    )


@check_cases("name", SETS)
def test_no_benign_command_is_blocked(name: str) -> None:
    assert not any(verdict.blocked for _, verdict in judge_data_set(f"benign_{name}"))


@check_cases("name", SETS)
def test_every_verdict_on_a_dangerous_command_has_a_reason_a_category_and_the_dangerous_part(
    name: str,
) -> None:
    for _, verdict in judge_data_set(f"dangerous_{name}"):
        if verdict.dangerous:
            assert verdict.reason
            assert verdict.category
            assert verdict.part
