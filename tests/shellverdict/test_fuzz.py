"""Dangerous commands spelled anew, run by a real shell among recorders: what runs is what was judged.

Set `TOOLFOLD_FUZZ_CASES` and `TOOLFOLD_FUZZ_SEED` for a longer run or another one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shellverdict.judge import Judge
from shellverdict.paths import PathClassifier
from shellverdict.rules import Rules
from shellverdict.shell.reader import read_command
from shellverdict.verdict import Verdict
from tests.shellverdict.comparing import shown, unaccounted
from tests.shellverdict.fuzzing import Plain, Spelling, plain_command, respell, spell_inside
from tests.shellverdict.recording import NotHeld, Recording

CORPUS = Path(__file__).with_name("corpus")
CASES = int(os.environ.get("TOOLFOLD_FUZZ_CASES", "300"))
SEED = int(os.environ.get("TOOLFOLD_FUZZ_SEED", "20261116"))
BATCHES = 10
MOST_STEPS = 4


@cache
def dangerous() -> tuple[str, ...]:
    text = (CORPUS / "dangerous_dev.jsonl").read_text(encoding="utf-8")
    return tuple(json.loads(line)["command"] for line in text.split("\n") if line)


@cache
def plain_commands() -> tuple[Plain, ...]:
    return tuple(plain for command in dangerous() if (plain := plain_command(command)))


@pytest.fixture(scope="module")
def shell() -> Iterator[Recording]:
    try:
        recording = Recording({plain.program for plain in plain_commands()} | {"ls", "git"})
    except NotHeld:
        pytest.skip("the kernel cannot hold a shell in, and nothing is run without that")
    with recording:
        yield recording


@pytest.fixture(scope="module")
def rules() -> Rules:
    return Rules.shipped()


@pytest.fixture(scope="module")
def judge(rules: Rules) -> Judge:
    return Judge(rules, PathClassifier(home="/home/someone", cwd="/home/someone/project"))


def spellings(batch: int) -> Iterator[tuple[Plain, Spelling]]:
    random = Random(f"{SEED}/{batch}")
    for _ in range(CASES // BATCHES):
        plain = random.choice(plain_commands())
        yield plain, respell(plain, random, random.randint(1, MOST_STEPS))


@pytest.mark.parametrize("batch", range(BATCHES))
def test_what_runs_is_what_was_judged(batch: int, shell: Recording, rules: Rules) -> None:
    ran = 0
    judge = Judge(rules, PathClassifier(home=str(shell.home), cwd=str(shell.work)))
    for plain, spelling in spellings(batch):
        wanted = shell.run(plain.script, recorded=plain.program).starts
        starts = shell.run(spelling.script, recorded=plain.program).starts
        reading = read_command(spelling.script, home=str(shell.home), cwd=str(shell.work))
        assert unaccounted(starts, reading) == [], (spelling, shown(reading.runs))
        if not set(wanted) <= set(starts):
            continue  # a spelling that does not run the command proves nothing
        ran += 1
        if judge(plain.script).dangerous:
            assert judge(spelling.script).dangerous, spelling
    assert ran > CASES // BATCHES * 0.8


def test_what_is_blocked_stays_blocked_where_every_word_is_known(shell: Recording, rules: Rules) -> None:
    judge = Judge(rules, PathClassifier(home=str(shell.home), cwd=str(shell.work)))
    stayed, asked = 0, []
    for plain, spelling in (each for batch in range(BATCHES) for each in spellings(batch)):
        if not judge(plain.script).blocked:
            continue
        verdict = judge(spelling.script)
        stayed += verdict.blocked
        if verdict.shape and not verdict.blocked:
            asked.append(spelling)
    assert asked == []
    assert stayed > CASES // 10


def test_a_dangerous_script_stays_dangerous_inside_of_anything(judge: Judge) -> None:
    random = Random(SEED)
    for command in dangerous():
        plain = judge(command)
        if not plain.dangerous or "\r" in command:
            continue
        spelling = spell_inside(command, random, random.randint(1, 3))
        assert judge(spelling.script).dangerous, spelling


# Whatever it is, there is an answer

FRAGMENTS = st.sampled_from(
    [
        *(
            "$(",
            "${",
            "`",
            "((",
            "))",
            "[[",
            "]]",
            "<<E\n",
            "<<<",
            "<(",
            ">(",
            "{",
            "}",
            "(",
            ")",
            "'",
            '"',
            "\\",
        ),
        *(
            "if ",
            "then ",
            "fi;",
            "while ",
            "do ",
            "done;",
            "case ",
            "in ",
            "esac;",
            "for ",
            "select ",
            "function ",
        ),
        *(
            "a=",
            "$a",
            "$",
            "${a[",
            "]}",
            "{a,b}",
            "{1..9}",
            "|",
            "&",
            ";",
            ";;",
            "&&",
            "\n",
            " ",
            "#",
            "!",
            "$'\\x",
        ),
        *(
            "rm -rf /",
            "eval ",
            "bash -c ",
            "xargs ",
            "find . -exec ",
            "\x00",
            "\r",
            "\ud800",
            "é",
            "\ufdd0",
            "=(",
        ),
        *(
            "alias a='b",
            "trap ",
            "${!a",
            "${a//",
            "@P}",
            "$((",
            "coproc ",
            "time ",
            "exec 3<>",
            "[",
            "]",
            "a[",
            "~",
        ),
    ]
)


@settings(max_examples=300, deadline=None)
@example(text="alias g='if true; then rm'\ng x; fi")
@given(text=st.one_of(st.lists(FRAGMENTS, max_size=30).map("".join), st.text(max_size=60)))
def test_any_text_gets_a_verdict(text: str) -> None:
    reading = read_command(text, home="/home/someone", cwd="/")
    assert reading.is_incomplete in (True, False)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_mangled_command_gets_a_verdict(judge: Judge, data: st.DataObject) -> None:
    command = data.draw(st.sampled_from(dangerous()))
    start = data.draw(st.integers(0, len(command)))
    end = data.draw(st.integers(start, len(command)))
    mangled = command[:start] + data.draw(FRAGMENTS) + command[end:]
    assert isinstance(judge(mangled), Verdict)
