"""Predicted programs of difficult commands against the programs that bash really starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from shellverdict.shell.reader import CommandReading, read_command
from tests.cases import check_cases
from tests.shellverdict.recording import RecordingShell
from tests.shellverdict.run_comparison import (
    find_unmatched_runs,
    find_unpredicted_runs,
    format_runs,
    has_reported_uncertainty,
)

HARD_COMMANDS_TEXT = (
    Path(__file__).with_name("hard_commands.txt").read_text(encoding="utf-8").removesuffix("\n")
)
HARD_COMMANDS = HARD_COMMANDS_TEXT.split("\n%%\n")
PARTS = 4  # so that they can run in parallel


def analyze_command(command: str, shell: RecordingShell) -> CommandReading:
    return read_command(command, home=str(shell.home), cwd=str(shell.work))


def assert_all_started_programs_are_predicted(command: str, shell: RecordingShell) -> None:
    reading = analyze_command(command, shell)
    starts = shell.run(command, seconds=60).starts
    assert find_unpredicted_runs(starts, reading) == [], format_runs(reading.runs)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("part", range(PARTS))
def test_analysis_predicts_the_programs_that_a_command_starts_in_bash(
    part: int, shell: RecordingShell
) -> None:
    unpredicted = []
    for command in HARD_COMMANDS[part::PARTS]:
        reading = analyze_command(command, shell)
        if find_unpredicted_runs(shell.run(command, seconds=60).starts, reading):
            unpredicted.append(f"{command}\n{format_runs(reading.runs)}")
    assert unpredicted == []


def test_prediction_of_started_programs_is_inexact_for_at_most_a_tenth_of_the_hard_test_commands(
    shell: RecordingShell,
) -> None:
    doubted = 0
    for command in HARD_COMMANDS:
        reading = analyze_command(command, shell)
        if has_reported_uncertainty(reading) and find_unmatched_runs(
            shell.run(command, seconds=60).starts, reading.runs
        ):
            doubted += 1
    assert doubted <= len(HARD_COMMANDS) // 10


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf / --no-preserve-root; /bin/rm -rf /; echo gone > /etc/passwd; echo gone > /tmp/gone",
        "exec 3<>/dev/tcp/127.0.0.1/22",
        "/usr/bin/env -i /usr/bin/id",
    ],
)
def test_recording_shell_for_tests_denies_dangerous_commands_access_to_this_machine(
    command: str, shell: RecordingShell
) -> None:
    recorded = shell.run(command, seconds=60)
    assert "denied" in recorded.printed.lower()
    assert all(start[0] == "rm" for start in recorded.starts)


@check_cases(
    "line",
    [
        *("rsync /bin/rm foo; ./foo -rf ~/docs", "scp /bin/rm foo; ./foo -rf ~/docs"),
        *("link /bin/rm foo; ./foo -rf ~/docs", "cp -t x /bin/rm; mv x/rm foo; ./foo -rf ~/docs"),
        *("sudo cp /bin/rm foo; ./foo -rf ~/docs", "(cp /bin/rm foo); ./foo -rf ~/docs"),
        "bash -c 'cp /bin/rm foo'; ./foo -rf ~/docs",
        "tar cf - -C /bin rm | tar xf -; mv rm foo; ./foo -rf ~/docs",
        "zip a.zip /bin/rm; unzip a.zip; mv bin/rm foo; ./foo -rf ~/docs",
    ],
)
def test_running_a_renamed_copy_of_rm_is_recognized_as_rm(line: str) -> None:
    runs = read_command(line, home="/home/ann", cwd="/home/ann/shop").runs
    assert ("rm", "-rf", "/home/ann/docs") in [run.argv for run in runs]


@check_cases(
    "line",
    [
        *("v='rm -rf /srv/x'; $=v", "v='rm -rf /srv/x'; \"$=v\"", "v=rm; $~v -rf /srv/x"),
        *("alias -s x='rm -rf'; /srv/x.x", "abbr -a ll rm; ll -rf /srv/x"),
    ],
)
def test_rm_command_hidden_in_a_zsh_expansion_or_fish_abbreviation_is_found(line: str) -> None:
    runs = read_command(line, home="/home/ann", cwd="/home/ann/shop").runs
    assert any(run.argv[:2] == ("rm", "-rf") and len(run.argv) == 3 for run in runs)
