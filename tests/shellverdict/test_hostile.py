"""Texts made to cost time: each is read within bounds that do not grow with it, or said to be unread."""

from __future__ import annotations

import pytest

from shellverdict.judge import Judge
from shellverdict.paths import PathClassifier
from shellverdict.rules import Rules
from shellverdict.shell.reader import CommandReading, read_command
from tests.shellverdict.hostile import HOSTILE

LONGEST = 65_536
MOST_RUNS = 2_000
MOST_LETTERS = 4_000_000


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(Rules.shipped(), PathClassifier(home="/home/someone", cwd="/home/someone/project"))


def letters(reading: CommandReading) -> int:
    return sum(len(word) for run in reading.runs for word in run.argv)


@pytest.mark.parametrize("kilobytes", [2, 64])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_makes_no_more_work_than_the_bound(name: str, kilobytes: int) -> None:
    command = HOSTILE[name](kilobytes * 1024)[:LONGEST]
    reading = read_command(command, home="/home/someone", cwd="/home/someone/project")
    assert len(reading.runs) <= MOST_RUNS
    assert letters(reading) <= MOST_LETTERS


@pytest.mark.parametrize("name", HOSTILE)
def test_what_was_not_read_in_full_is_asked_about(name: str, judge: Judge) -> None:
    verdict = judge(HOSTILE[name](8 * 1024))
    assert verdict.dangerous or not verdict.unread


def test_beyond_the_longest_a_person_is_asked_at_once(judge: Judge) -> None:
    longest, longer = "a" * LONGEST, "a" * (LONGEST + 1)
    assert not judge(longest).unread
    assert judge(longer).unread
    assert judge(longer).dangerous
    assert read_command(longer, home="/", cwd="/").runs == []


def test_length_is_counted_in_bytes(judge: Judge) -> None:
    assert judge("é" * (LONGEST // 2 + 1)).unread
    assert not judge("é" * (LONGEST // 2)).unread


def test_a_dangerous_end_of_a_long_command_is_not_lost(judge: Judge) -> None:
    for size in (1, 8, 60):
        assert judge("ls;" * (size * 1024 // 3) + "rm -rf /").dangerous
        assert judge("echo " + "a " * (size * 512) + "; rm -rf /").dangerous
        assert judge("#" + "a" * (size * 1024) + "\nrm -rf /").dangerous
