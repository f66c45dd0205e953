"""Inputs designed to be slow: each is analysed within fixed limits or reported as incomplete."""

from __future__ import annotations

import pytest

from shellverdict.judging import Judge
from shellverdict.paths import PathClassifier
from shellverdict.rules import builtin_rules
from shellverdict.shell.reader import CommandReading, read_command
from tests.cases import check_cases
from tests.shellverdict.hostile import HOSTILE_INPUTS
from tests.thorough import thorough_count

MAX_COMMAND_BYTES = 65_536
MAX_RUNS = 2_000
MAX_CHARACTERS = 4_000_000


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(builtin_rules(), PathClassifier(home="/home/someone", cwd="/home/someone/project"))


def count_characters(reading: CommandReading) -> int:
    return sum(len(word) for run in reading.runs for word in run.argv)


@check_cases("kilobytes", [2, thorough_count(64, 8)])
@check_cases("name", HOSTILE_INPUTS)
def test_analysis_result_of_a_hostile_command_is_limited_in_size(name: str, kilobytes: int) -> None:
    command = HOSTILE_INPUTS[name](kilobytes * 1024)[:MAX_COMMAND_BYTES]
    reading = read_command(command, home="/home/someone", cwd="/home/someone/project")
    assert len(reading.runs) <= MAX_RUNS
    assert count_characters(reading) <= MAX_CHARACTERS


@check_cases("name", HOSTILE_INPUTS)
def test_command_that_could_not_be_analyzed_completely_is_flagged_as_dangerous(
    name: str, judge: Judge
) -> None:
    verdict = judge(HOSTILE_INPUTS[name](thorough_count(8, 4) * 1024))
    assert verdict.dangerous or not verdict.unread


def test_command_over_the_length_limit_is_flagged_as_dangerous_without_analysis(judge: Judge) -> None:
    longest, longer = "a" * MAX_COMMAND_BYTES, "a" * (MAX_COMMAND_BYTES + 1)
    assert not judge(longest).unread
    assert judge(longer).unread
    assert judge(longer).dangerous
    assert read_command(longer, home="/", cwd="/").runs == []


def test_length_limit_of_a_command_is_measured_in_bytes_and_not_in_characters(judge: Judge) -> None:
    assert judge("é" * (MAX_COMMAND_BYTES // 2 + 1)).unread
    assert not judge("é" * (MAX_COMMAND_BYTES // 2)).unread


def test_dangerous_command_after_kilobytes_of_harmless_text_is_detected(judge: Judge) -> None:
    for size in (1, 8, 60):
        assert judge("ls;" * (size * 1024 // 3) + "rm -rf /").dangerous
        assert judge("echo " + "a " * (size * 512) + "; rm -rf /").dangerous
        assert judge("#" + "a" * (size * 1024) + "\nrm -rf /").dangerous
