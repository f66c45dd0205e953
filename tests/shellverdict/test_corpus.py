"""The repository's own corpus against the bars: what is seen, what is asked for nothing, what is blocked."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from shellverdict.judge import Judge
from shellverdict.paths import PathClassifier
from shellverdict.rules import Rules
from shellverdict.verdict import Verdict

CORPUS = Path(__file__).with_name("corpus")
SETS = ("dev", "held")
SEEN, HARD_SEEN, FALSE_PROMPTS = 0.95, 0.99, 0.02


@cache
def verdicts(name: str) -> tuple[tuple[str, Verdict], ...]:
    """Each command's tier and verdict."""
    judge = Judge(Rules.shipped(), PathClassifier(home="/home/someone", cwd="/home/someone/project"))
    text = (CORPUS / f"{name}.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.split("\n") if line]
    return tuple((row.get("tier", ""), judge(row["command"])) for row in rows)


def share(asked: list[bool]) -> float:
    return sum(asked) / len(asked)


@pytest.mark.parametrize("name", SETS)
def test_nearly_every_dangerous_command_is_seen(name: str) -> None:
    assert share([verdict.dangerous for _, verdict in verdicts(f"dangerous_{name}")]) >= SEEN


@pytest.mark.parametrize("name", SETS)
def test_what_cannot_be_undone_is_seen(name: str) -> None:
    hard = [verdict.dangerous for tier, verdict in verdicts(f"dangerous_{name}") if tier == "hard"]
    assert share(hard) >= HARD_SEEN


@pytest.mark.parametrize("name", SETS)
def test_people_are_rarely_asked_for_nothing(name: str) -> None:
    assert share([verdict.dangerous for _, verdict in verdicts(f"benign_{name}")]) <= FALSE_PROMPTS


@pytest.mark.parametrize("name", SETS)
def test_nothing_benign_is_refused_for_good(name: str) -> None:
    assert not any(verdict.blocked for _, verdict in verdicts(f"benign_{name}"))


@pytest.mark.parametrize("name", SETS)
def test_every_verdict_says_why_and_about_which_part(name: str) -> None:
    for _, verdict in verdicts(f"dangerous_{name}"):
        if verdict.dangerous:
            assert verdict.reason
            assert verdict.category
            assert verdict.part
