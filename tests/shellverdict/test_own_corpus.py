"""Thresholds on the project's own corpus: families of programs on many systems, dangerous and harmless uses.

The dangerous commands were collected without checking whether the rules match them, so a few are missed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

import pytest

from shellverdict.judging import Judge
from shellverdict.paths import PathClassifier
from shellverdict.rules import builtin_rules
from shellverdict.verdict import Verdict

CORPUS = Path(__file__).parent / "corpus"


class Row(TypedDict, total=False):
    command: str
    category: str
    tier: str


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(builtin_rules(), PathClassifier(home="/home/me", cwd="/home/me/project", follow_links=False))


def rows(name: str) -> list[Row]:
    lines = (CORPUS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def missed_commands(judge: Judge, each: Iterable[Row]) -> list[str]:
    return [row["command"] for row in each if not judge(row["command"]).dangerous]


def flagged_verdicts(judge: Judge, each: Iterable[Row]) -> list[Verdict]:
    verdicts = (judge(row["command"]) for row in each)
    return [verdict for verdict in verdicts if verdict.dangerous]


def test_corpus_has_dangerous_and_benign_commands_for_every_category() -> None:
    dangerous, benign = rows("own_dangerous"), rows("own_benign")
    kinds = Counter(row["category"] for row in dangerous)
    assert len(kinds) == 18
    assert min(kinds.values()) >= 20
    assert set(kinds) == {row["category"] for row in benign}
    assert len({row["command"] for row in dangerous}) == len(dangerous)
    assert not {row["command"] for row in dangerous} & {row["command"] for row in benign}


def test_at_most_5_percent_of_dangerous_commands_are_missed(judge: Judge) -> None:
    dangerous = rows("own_dangerous")
    missed = missed_commands(judge, dangerous)
    assert len(missed) <= 0.05 * len(dangerous), missed


def test_at_most_2_percent_of_catastrophic_commands_are_missed(judge: Judge) -> None:
    hard = [row for row in rows("own_dangerous") if row["tier"] == "hard"]
    missed = missed_commands(judge, hard)
    assert len(missed) <= 0.02 * len(hard), missed


def test_at_most_2_percent_of_benign_commands_are_flagged(judge: Judge) -> None:
    benign = rows("own_benign")
    flagged = flagged_verdicts(judge, benign)
    assert len(flagged) <= 0.02 * len(benign), [(each.command, each.reason) for each in flagged]


def test_no_benign_command_is_blocked(judge: Judge) -> None:
    assert [each.command for each in flagged_verdicts(judge, rows("own_benign")) if each.blocked] == []
