"""Dangerous commands in random other spellings, run by bash in a sandbox that records started programs.

Set `TOOLFOLD_FUZZ_CASES` and `TOOLFOLD_FUZZ_SEED` for a longer or a different run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shellverdict.judging import Judge
from shellverdict.paths import PathClassifier
from shellverdict.rules import Rules, builtin_rules
from shellverdict.shell.reader import read_command
from shellverdict.verdict import Verdict
from tests.shellverdict.fuzzing import (
    PlainCommand,
    Spelling,
    parse_plain_command,
    respell_command,
    wrap_script,
)
from tests.shellverdict.recording import RecordingShell, SandboxUnavailable
from tests.shellverdict.run_comparison import find_unpredicted_runs, format_runs
from tests.thorough import try_examples

CORPUS = Path(__file__).with_name("corpus")
CASE_COUNT = int(os.environ.get("TOOLFOLD_FUZZ_CASES", "300"))
SEED = int(os.environ.get("TOOLFOLD_FUZZ_SEED", "20261116"))
BATCHES = 10
MAX_STEPS = 4


@cache
def load_dangerous_commands() -> tuple[str, ...]:
    text = (CORPUS / "dangerous_dev.jsonl").read_text(encoding="utf-8")
    return tuple(json.loads(line)["command"] for line in text.split("\n") if line)


@cache
def load_plain_commands() -> tuple[PlainCommand, ...]:
    return tuple(plain for command in load_dangerous_commands() if (plain := parse_plain_command(command)))


@pytest.fixture(scope="module")
def shell() -> Iterator[RecordingShell]:
    try:
        recording = RecordingShell({plain.program for plain in load_plain_commands()} | {"ls", "git"})
    except SandboxUnavailable:
        pytest.skip("the kernel does not support Landlock, which the sandbox needs")
    with recording:
        yield recording


@pytest.fixture(scope="module")
def rules() -> Rules:
    return builtin_rules()


@pytest.fixture(scope="module")
def judge(rules: Rules) -> Judge:
    return Judge(rules, PathClassifier(home="/home/someone", cwd="/home/someone/project"))


def generate_spellings(batch: int) -> Iterator[tuple[PlainCommand, Spelling]]:
    random = Random(f"{SEED}/{batch}")
    for _ in range(CASE_COUNT // BATCHES):
        plain = random.choice(load_plain_commands())
        yield plain, respell_command(plain, random, random.randint(1, MAX_STEPS))


@pytest.mark.parametrize("batch", range(BATCHES))
def test_obfuscated_spellings_of_dangerous_commands_are_flagged_as_dangerous(
    batch: int, shell: RecordingShell, rules: Rules
) -> None:
    ran = 0
    judge = Judge(rules, PathClassifier(home=str(shell.home), cwd=str(shell.work)))
    for plain, spelling in generate_spellings(batch):
        wanted = shell.run(plain.script, recorded=plain.program).starts
        starts = shell.run(spelling.script, recorded=plain.program).starts
        reading = read_command(spelling.script, home=str(shell.home), cwd=str(shell.work))
        assert find_unpredicted_runs(starts, reading) == [], (spelling, format_runs(reading.runs))
        if not set(wanted) <= set(starts):
            continue  # the spelling does not run the command, so its verdict is irrelevant
        ran += 1
        if judge(plain.script).dangerous:
            assert judge(spelling.script).dangerous, spelling
    assert ran > CASE_COUNT // BATCHES * 0.8


def test_obfuscated_spellings_of_blocked_commands_are_blocked_if_no_word_depends_on_run_time_values(
    shell: RecordingShell, rules: Rules
) -> None:
    judge = Judge(rules, PathClassifier(home=str(shell.home), cwd=str(shell.work)))
    stayed, asked = 0, []
    for plain, spelling in (each for batch in range(BATCHES) for each in generate_spellings(batch)):
        if not judge(plain.script).blocked:
            continue
        verdict = judge(spelling.script)
        stayed += verdict.blocked
        if verdict.shape and not verdict.blocked:
            asked.append(spelling)
    assert asked == []
    assert stayed > CASE_COUNT // 10


def test_dangerous_script_inside_any_wrapper_command_is_flagged_as_dangerous(judge: Judge) -> None:
    random = Random(SEED)
    for command in load_dangerous_commands():
        plain = judge(command)
        if not plain.dangerous or "\r" in command:
            continue
        spelling = wrap_script(command, random, random.randint(1, 3))
        assert judge(spelling.script).dangerous, spelling


# Arbitrary text

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


@try_examples(300)
@example(text="alias g='if true; then rm'\ng x; fi")
@given(text=st.one_of(st.lists(FRAGMENTS, max_size=30).map("".join), st.text(max_size=60)))
def test_analysis_of_arbitrary_text_as_a_shell_command_never_raises_an_exception(text: str) -> None:
    reading = read_command(text, home="/home/someone", cwd="/")
    assert reading.is_incomplete in (True, False)


@try_examples(100)
@given(data=st.data())
def test_judging_randomly_mutated_dangerous_commands_never_raises_an_exception(
    judge: Judge, data: st.DataObject
) -> None:
    command = data.draw(st.sampled_from(load_dangerous_commands()))
    start = data.draw(st.integers(0, len(command)))
    end = data.draw(st.integers(start, len(command)))
    mangled = command[:start] + data.draw(FRAGMENTS) + command[end:]
    assert isinstance(judge(mangled), Verdict)
