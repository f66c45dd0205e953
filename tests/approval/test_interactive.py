"""Text for a running process is judged together with everything the process was given before."""

from __future__ import annotations

from typing import Any

import pytest

from tests.approval.input_sequences import DANGEROUS, HARMLESS, Sequence
from toolfold.approval.interactive.process_input import ProcessInput
from toolfold.approval.judge import Judge
from toolfold.approval.places import Places
from toolfold.approval.rules import Rules
from toolfold.approval.verdict import Verdict

WORKDIR = "/home/user/project"


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(Rules.shipped(), Places(home="/home/user", cwd=WORKDIR))


def verdicts(judge: Judge, sequence: Sequence) -> list[Verdict]:
    """The verdict on each write, where every one before it was delivered."""
    found: list[Verdict] = []
    before: tuple[tuple[str, str], ...] = ()
    for text in sequence.writes:
        given = ProcessInput(
            command=sequence.command, workdir=WORKDIR, pty=sequence.pty, before=before, text=text
        )
        found.append(judge.judge_input(given))
        before = (*before, ("write", text))
    return found


@pytest.mark.parametrize("sequence", DANGEROUS, ids=str)
def test_a_dangerous_sequence_of_writes_is_asked_about(judge: Judge, sequence: Sequence) -> None:
    assert any(each.dangerous for each in verdicts(judge, sequence))


@pytest.mark.parametrize("sequence", HARMLESS, ids=str)
def test_a_harmless_sequence_of_writes_is_not_asked_about(judge: Judge, sequence: Sequence) -> None:
    asked = [
        (text, finding.reason)
        for text, each in zip(sequence.writes, verdicts(judge, sequence), strict=True)
        for finding in each.findings
    ]
    assert asked == []


def judged(judge: Judge, text: str, before: str = "", command: str = "bash", **options: Any) -> Verdict:
    entries = (("write", before),) if before else ()
    return judge.judge_input(
        ProcessInput(command=command, workdir=WORKDIR, before=entries, text=text, **options)
    )


def test_a_finding_counts_for_the_write_that_triggers_it_and_for_no_later_one(judge: Judge) -> None:
    assert judged(judge, "rm -rf /srv/x\n").dangerous
    assert not judged(judge, "ls\n", before="rm -rf /srv/x\n").dangerous
    assert judged(judge, "rm -rf /srv/x\n", before="rm -rf /srv/x\n").dangerous


@pytest.mark.parametrize(
    ("command", "define", "use"),
    [
        ("bash", "f() { rm -rf /srv/x; }\n", "f\n"),
        ("python3", "import shutil\ndef f(): shutil.rmtree('/srv/x')\n\n", "f()\n"),
        ("node", "const f = () => require('fs').rmSync('/srv/x', {recursive: true})\n", "f()\n"),
        ("psql app", "", "DROP TABLE a;\n"),
    ],
)
def test_every_use_of_something_dangerous_is_asked_about(
    judge: Judge, command: str, define: str, use: str
) -> None:
    assert judged(judge, use, before=define, command=command).dangerous
    assert judged(judge, use, before=define + use, command=command).dangerous


def test_an_unknown_state_is_asked_about_whatever_is_written(judge: Judge) -> None:
    verdict = judged(judge, "ls\n", unknown="the process was started by another runtime")
    assert (verdict.unread, verdict.reason) == (True, "the process was started by another runtime")


def test_input_without_its_context_is_asked_about() -> None:
    given = ProcessInput.from_arguments(None, "ls\n")
    assert given.unknown
    assert ProcessInput.from_arguments({"before": []}, "ls\n").unknown
    assert not ProcessInput.from_arguments({"command": "bash"}, "ls\n").unknown


def test_more_input_than_is_judged_is_asked_about(judge: Judge) -> None:
    assert judged(judge, "ls\n", before="echo hello\n" * 6_000).unread


@pytest.mark.parametrize("command", ["python3", "psql app", "irb"])
def test_more_code_than_is_read_is_asked_about(judge: Judge, command: str) -> None:
    assert judged(judge, "x = 2\n", before="x = 1\n" * 3_000, command=command).dangerous


def test_the_end_of_the_input_runs_what_was_unfinished(judge: Judge) -> None:
    assert not judged(judge, "", before="ls\n", closes=True).dangerous
    assert judged(judge, "", before="cat <<EOF | sh\nrm -rf /\n", closes=True).dangerous
    assert judged(judge, "", before="echo 'half\n", closes=True).dangerous


def test_a_signal_drops_the_unfinished_command(judge: Judge) -> None:
    before = (("write", "echo '\n"), ("signal", "INT"))
    given = ProcessInput(command="bash", workdir=WORKDIR, before=before, text="rm -rf /\n")
    assert judge.judge_input(given).blocked


def test_the_hard_floor_holds_for_input(judge: Judge) -> None:
    assert judged(judge, "f\n", before="f() { rm -rf /; }\n").blocked
    assert judged(judge, "s.rmtree('/')\n", before="import shutil as s\n", command="python3").blocked


def test_what_is_shown_holds_the_process_the_text_and_what_came_before(judge: Judge) -> None:
    verdict = judged(judge, "f\n", before="f() { rm -rf /; }\n")
    assert verdict.command.split("\n") == [
        "# input of: bash",
        "> f",
        "# given before:",
        "| f() { rm -rf /; }",
    ]


def test_lone_surrogates_are_judged_as_they_arrive() -> None:
    assert ProcessInput.from_arguments({"command": "bash"}, "rm -rf /\ud800").text == "rm -rf /?"
