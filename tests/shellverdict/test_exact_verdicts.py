"""Exact verdicts: `verdicts.txt` lists the rules that match each command, below the rules in brackets.

The commands are judged in the sample project of `workspace.py`. `!` means that a rule blocks; `-` that none
matches; `␤` is a line break.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shellverdict.judging import Judge
from tests.cases import check_cases
from tests.shellverdict.workspace import judge_in, make_workspace


def verdicts() -> Iterator[tuple[str, str]]:
    rules = ""
    for line in (Path(__file__).parent / "verdicts.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("[") and line.endswith("]"):
            rules = line[1:-1]
        else:
            yield line.replace("␤", "\n"), rules


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    home = tmp_path_factory.mktemp("home")
    return judge_in(make_workspace(home), home)


@check_cases(("command", "rules"), verdicts())
def test_command_matches_exactly_these_rules(judge: Judge, command: str, rules: str) -> None:
    found = dict.fromkeys(f.rule + "!" * f.blocked for f in judge(command).findings)
    assert " ".join(found) == rules.removesuffix("-")


def test_each_command_of_the_table_has_one_verdict() -> None:
    commands = [command for command, _ in verdicts()]
    assert len(commands) == len(set(commands))
