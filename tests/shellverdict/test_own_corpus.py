"""A corpus of our own: families of programs on many systems, and harmless commands of the same programs.

The dangerous ones are written down before anybody looks whether they are noticed, so that some are not.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

import pytest

from shellverdict.judge import Judge
from shellverdict.paths import PathClassifier
from shellverdict.rules import Rules
from shellverdict.verdict import Verdict

CORPUS = Path(__file__).parent / "corpus"


class Row(TypedDict, total=False):
    command: str
    category: str
    tier: str


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(Rules.shipped(), PathClassifier(home="/home/me", cwd="/home/me/project", follow_links=False))


def rows(name: str) -> list[Row]:
    lines = (CORPUS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def missed(judge: Judge, each: Iterable[Row]) -> list[str]:
    return [row["command"] for row in each if not judge(row["command"]).dangerous]


def asked(judge: Judge, each: Iterable[Row]) -> list[Verdict]:
    verdicts = (judge(row["command"]) for row in each)
    return [verdict for verdict in verdicts if verdict.dangerous]


def test_the_corpus_has_both_kinds_for_every_category() -> None:
    dangerous, benign = rows("own_dangerous"), rows("own_benign")
    kinds = Counter(row["category"] for row in dangerous)
    assert len(kinds) == 18
    assert min(kinds.values()) >= 20
    assert set(kinds) == {row["category"] for row in benign}
    assert len({row["command"] for row in dangerous}) == len(dangerous)
    assert not {row["command"] for row in dangerous} & {row["command"] for row in benign}


def test_nearly_everything_dangerous_is_asked_about(judge: Judge) -> None:
    dangerous = rows("own_dangerous")
    through = missed(judge, dangerous)
    assert len(through) <= 0.05 * len(dangerous), through


def test_hardly_any_command_nobody_could_want_comes_through(judge: Judge) -> None:
    hard = [row for row in rows("own_dangerous") if row["tier"] == "hard"]
    through = missed(judge, hard)
    assert len(through) <= 0.02 * len(hard), through


def test_people_are_not_asked_about_everyday_commands_of_the_same_programs(judge: Judge) -> None:
    benign = rows("own_benign")
    found = asked(judge, benign)
    assert len(found) <= 0.02 * len(benign), [(each.command, each.reason) for each in found]


def test_no_everyday_command_is_refused_for_good(judge: Judge) -> None:
    assert [each.command for each in asked(judge, rows("own_benign")) if each.blocked] == []
