"""Input of a running process is judged together with all its earlier input."""

from __future__ import annotations

import functools
import json
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shellverdict.interactive.code_reader import MAX_ANALYZED_CHARS, MAX_STATEMENT_LINES, CodeReader
from shellverdict.interactive.process_input import ProcessInput
from shellverdict.judging import FAILED, Judge
from shellverdict.paths import PathClassifier
from shellverdict.rules import builtin_rules
from shellverdict.shell.budget import BudgetExceeded
from shellverdict.verdict import Verdict
from tests.cases import check_cases
from tests.shellverdict.input_sequences import DANGEROUS, HARMLESS, Sequence
from tests.thorough import thorough_count, try_examples

WORKDIR = "/home/user/project"


@functools.cache
def builtin_judge() -> Judge:
    return Judge(builtin_rules(), PathClassifier(home="/home/user", cwd=WORKDIR))


@pytest.fixture
def judge() -> Judge:
    return builtin_judge()


def judge_sequence(judge: Judge, sequence: Sequence) -> list[Verdict]:
    """Return the verdict on each write, given that all earlier ones were delivered."""
    results: list[Verdict] = []
    before: tuple[tuple[str, str], ...] = ()
    for text in sequence.writes:
        written = ProcessInput(
            command=sequence.command, workdir=WORKDIR, pty=sequence.pty, history=before, text=text
        )
        results.append(judge.judge_input(written))
        before = (*before, ("write", text))
    return results


@check_cases("sequence", DANGEROUS)
def test_process_inputs_that_together_form_a_dangerous_command_are_flagged(
    judge: Judge, sequence: Sequence
) -> None:
    assert any(each.dangerous for each in judge_sequence(judge, sequence))


@check_cases("sequence", HARMLESS)
def test_sequence_of_harmless_process_inputs_is_not_flagged(judge: Judge, sequence: Sequence) -> None:
    flagged = [
        (text, finding.reason)
        for text, each in zip(sequence.writes, judge_sequence(judge, sequence), strict=True)
        for finding in each.findings
    ]
    assert flagged == []


# Each write with the rules that it must match; empty for writes that need no approval.
NESTED_SESSIONS: list[tuple[str, list[tuple[str, set[str]]]]] = [
    (
        "python3",
        [
            ("import os, shutil\n", set()),
            ("os.system('bash')\n", set()),
            ("ls\n", set()),
            ("exit\n", set()),
            ("shutil.rmtree('/etc')\n", {"delete-everything"}),
        ],
    ),
    (
        "python3",
        [
            ("import os\n", set()),
            ("os.system('bash')\n", set()),
            ("rm -rf /etc\n", {"delete-everything"}),
            ("exit\n", set()),
            ("x = 1\n", set()),
        ],
    ),
    (
        "bash",
        [
            ("python3\n", set()),
            ("import os\n", set()),
            ("os.system('bash')\n", set()),
            ("exit\n", set()),
            ("exit()\n", set()),
            ("rm -rf /etc\n", {"delete-everything"}),
        ],
    ),
    (
        "bash",
        [
            ("cd ~\n", set()),
            ("bash\n", set()),
            ("cd build\n", set()),
            ("exit\n", set()),
            (
                "rm -rf *\n",
                {
                    "delete-everything",
                    "delete-perhaps-everything",
                    "delete-protected",
                    "delete-whole-directory",
                },
            ),
        ],
    ),
    (
        "bash",
        [
            ("bash\n", set()),
            ("d=/etc\n", set()),
            ("bash\n", set()),
            ("d=build\n", set()),
            ("exit\n", set()),
            ("rm -rf $d\n", {"delete-everything", "delete-tree", "delete-unknown-tree"}),
        ],
    ),
    (
        "psql app",
        [
            ("\\! bash\n", set()),
            ("rm -rf /etc\n", {"delete-everything"}),
            ("exit\n", set()),
            ("DROP TABLE a;\n", {"database"}),
        ],
    ),
    (
        "python3",
        [
            ("import os, shutil\n", set()),
            ("os.system('psql app')\n", set()),
            ("DROP TABLE a;\n", {"database"}),
            ("shutil.rmtree('/etc')\n", {"delete-everything"}),  # psql may have failed to start
        ],
    ),
    ("bash", [("python3\n", set()), ("fi\n", set()), ("exit()\n", set()), ("fi\n", {"unreadable"})]),
]


@pytest.mark.parametrize("pty", [False, True])
@check_cases(("command", "writes"), NESTED_SESSIONS)
def test_each_line_is_judged_by_the_programs_that_may_read_it(
    judge: Judge, pty: bool, command: str, writes: list[tuple[str, set[str]]]
) -> None:
    verdicts = judge_sequence(judge, Sequence(command, tuple(text for text, _ in writes), pty))
    found = [(each.command.split("\n")[1], {one.rule for one in each.findings}) for each in verdicts]
    assert found == [(f"> {text.strip()}", rules) for text, rules in writes]


def judge_text(judge: Judge, text: str, before: str = "", command: str = "bash", **options: Any) -> Verdict:
    entries = (("write", before),) if before else ()
    return judge.judge_input(
        ProcessInput(command=command, workdir=WORKDIR, history=entries, text=text, **options)
    )


def test_harmless_process_input_after_earlier_dangerous_input_is_not_flagged(judge: Judge) -> None:
    assert judge_text(judge, "rm -rf /srv/x\n").dangerous
    assert not judge_text(judge, "ls\n", before="rm -rf /srv/x\n").dangerous
    assert judge_text(judge, "rm -rf /srv/x\n", before="rm -rf /srv/x\n").dangerous


@pytest.mark.parametrize(
    ("command", "define", "use"),
    [
        ("bash", "f() { rm -rf /srv/x; }\n", "f\n"),
        ("python3", "import shutil\ndef f(): shutil.rmtree('/srv/x')\n\n", "f()\n"),
        ("node", "const f = () => require('fs').rmSync('/srv/x', {recursive: true})\n", "f()\n"),
        ("psql app", "", "DROP TABLE a;\n"),
    ],
)
def test_every_call_of_a_dangerous_function_defined_in_an_interpreter_is_flagged(
    judge: Judge, command: str, define: str, use: str
) -> None:
    assert judge_text(judge, use, before=define, command=command).dangerous
    assert judge_text(judge, use, before=define + use, command=command).dangerous


def test_process_input_is_flagged_if_the_earlier_input_is_unknown(judge: Judge) -> None:
    verdict = judge_text(judge, "ls\n", unknown_reason="the process was started by another runtime")
    assert (verdict.unread, verdict.reason) == (True, "the process was started by another runtime")


def test_earlier_process_input_is_reported_as_unknown_if_the_command_of_the_process_is_unknown() -> None:
    assert ProcessInput.from_arguments(None, "ls\n").unknown_reason
    assert ProcessInput.from_arguments({"before": []}, "ls\n").unknown_reason
    assert not ProcessInput.from_arguments({"command": "bash"}, "ls\n").unknown_reason


def test_process_input_over_the_size_limit_is_flagged(judge: Judge) -> None:
    assert judge_text(judge, "ls\n", before="echo hello\n" * 6_000).unread


@pytest.mark.parametrize("command", ["python3", "psql app", "irb"])
def test_code_typed_into_an_interpreter_is_flagged_if_its_total_size_exceeds_the_limit(
    judge: Judge, command: str
) -> None:
    assert judge_text(judge, "x = 2\n", before="x = 1\n" * 3_000, command=command).dangerous


def test_unfinished_python_statement_typed_over_too_many_lines_is_flagged(judge: Judge) -> None:
    text = "x = [\n" + "1,\n" * 300
    written = ProcessInput(command="python3", workdir=WORKDIR, pty=True, history=(), text=text)
    assert judge.judge_input(written).dangerous


def test_parsing_unfinished_python_input_raises_budget_exceeded_above_the_line_limit() -> None:
    reader = CodeReader()
    reader.analyze_new("python", (), ["x = [", *["1," * 100] * 20])
    assert reader.chars_left < MAX_ANALYZED_CHARS - 20 * 21 / 2 * 200
    with pytest.raises(BudgetExceeded):
        reader.analyze_new("python", (), ["x = [", *["1,"] * MAX_STATEMENT_LINES])


def test_typed_function_of_ordinary_length_is_not_flagged(judge: Judge) -> None:
    lines = [
        "def total(items):\n",
        *(f"    value_{n} = items[{n}] + 1\n" for n in range(40)),
        "\n",
        "print(1)\n",
    ]
    sequence = Sequence("python3", tuple(lines), pty=True)
    assert not any(each.dangerous for each in judge_sequence(judge, sequence))


def test_closing_the_input_of_a_shell_is_flagged_if_an_unfinished_dangerous_command_would_run(
    judge: Judge,
) -> None:
    assert not judge_text(judge, "", before="ls\n", closes_input=True).dangerous
    assert judge_text(judge, "", before="cat <<EOF | sh\nrm -rf /\n", closes_input=True).dangerous
    assert judge_text(judge, "", before="echo 'half\n", closes_input=True).dangerous


def test_interrupt_signal_discards_the_unfinished_command_before_the_next_typed_command(
    judge: Judge,
) -> None:
    before = (("write", "echo '\n"), ("signal", "INT"))
    written = ProcessInput(command="bash", workdir=WORKDIR, history=before, text="rm -rf /\n")
    assert judge.judge_input(written).blocked


def test_catastrophic_process_input_is_blocked(judge: Judge) -> None:
    assert judge_text(judge, "f\n", before="f() { rm -rf /; }\n").blocked
    assert judge_text(judge, "s.rmtree('/')\n", before="import shutil as s\n", command="python3").blocked


def test_verdict_on_process_input_shows_the_program_and_the_new_and_earlier_input(
    judge: Judge,
) -> None:
    verdict = judge_text(judge, "f\n", before="f() { rm -rf /; }\n")
    assert verdict.command.split("\n") == [
        "# input of: bash",
        "> f",
        "# earlier input:",
        "| f() { rm -rf /; }",
    ]


def test_lone_surrogates_in_process_input_are_replaced_before_the_analysis() -> None:
    assert ProcessInput.from_arguments({"command": "bash"}, "rm -rf /\ud800").text == "rm -rf /?"


def test_dangerous_text_typed_into_an_open_here_document_is_flagged_but_not_blocked(judge: Judge) -> None:
    verdict = judge_text(judge, "rm -rf /\n", before="cat > notes <<EOF\n")
    assert (verdict.dangerous, verdict.blocked) == (True, False)


CORPUS = Path(__file__).parent / "corpus"


def commands(name: str) -> list[str]:
    return [json.loads(line)["command"] for line in (CORPUS / name).read_text("utf-8").splitlines()]


def split_randomly(text: str, random: Random) -> tuple[str, ...]:
    cuts = [0, *sorted(random.sample(range(1, len(text)), min(3, len(text) - 1))), len(text)]
    return tuple(text[first:last] for first, last in pairwise(cuts))


def is_flagged(judge: Judge, command: str, *writes: str, pty: bool = False) -> bool:
    return any(each.dangerous for each in judge_sequence(judge, Sequence(command, writes, pty)))


@pytest.mark.parametrize("process", ["bash", "./unknown", "ssh host"])
def test_dangerous_commands_of_the_corpus_are_flagged_when_typed_into_a_running_program(
    judge: Judge, process: str
) -> None:
    known = [
        each
        for each in commands("own_dangerous.jsonl")[:: thorough_count(3, 9)]
        if judge(each, cwd=WORKDIR).dangerous
    ]
    if process != "bash":  # elsewhere, directories and programs are unknown
        known = [each for each in known if judge(each, cwd=WORKDIR).blocked]
    assert [each for each in known if not is_flagged(judge, process, each + "\n")] == []


def test_dangerous_commands_split_over_several_process_inputs_are_flagged(judge: Judge) -> None:
    random = Random(5)
    known = [
        each
        for each in commands("own_dangerous.jsonl")[1 :: thorough_count(4, 12)]
        if judge(each, cwd=WORKDIR).dangerous
    ]
    missed = [each for each in known if not is_flagged(judge, "bash", *split_randomly(each + "\n", random))]
    assert missed == []


def test_ordinary_commands_of_the_corpus_are_not_flagged_when_typed_into_a_running_shell(
    judge: Judge,
) -> None:
    known = [
        each
        for each in commands("own_benign.jsonl")[:: thorough_count(1, 3)]
        if not judge(each, cwd=WORKDIR).dangerous
    ]
    assert [each for each in known if is_flagged(judge, "bash", each + "\n")] == []
    typed = [each for each in known if each.isprintable()]
    assert [each for each in typed if is_flagged(judge, "bash", each + "\r", pty=True)] == []


PIECES = ["f", "()", "{", "}", " rm -rf /tmp/x", "'", '"', "\n", "\\\n", "<<EOF\n", "EOF\n", "$(", ")", "`"]
PIECES += [
    "if true; then\n",
    "fi\n",
    "python3\n",
    "exit()\n",
    "exit\n",
    "psql\n",
    "\\q\n",
    "DROP TABLE",
    ";",
    "\x03",
]
PIECES += [
    "\x04",
    "\x7f",
    "\x1b[A",
    "\r",
    "x=1",
    "import os\n",
    "def f():\n",
    "    pass\n",
    "!!",
    "\0",
    "é",
    "\ufdd0",
]


@try_examples(80)
@given(
    command=st.sampled_from(
        ["bash", "python3", "psql a", "node", "cat", "redis-cli", "vim x", "gdb a", "python3; bash"]
    ),
    writes=st.lists(st.lists(st.sampled_from(PIECES), max_size=6).map("".join), min_size=1, max_size=8),
    pty=st.booleans(),
    closes=st.booleans(),
)
def test_judging_arbitrary_process_input_never_raises_an_exception(
    command: str, writes: list[str], pty: bool, closes: bool
) -> None:
    *earlier, text = writes
    before = tuple(("write", each) for each in earlier)
    written = ProcessInput(
        command=command, workdir=WORKDIR, pty=pty, history=before, text=text, closes_input=closes
    )
    assert FAILED not in {each.rule for each in builtin_judge().judge_input(written).findings}
