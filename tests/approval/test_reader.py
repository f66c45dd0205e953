"""The reading of a command against the shell itself: what really starts is what was read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.approval.comparing import confesses, shown, unaccounted, unforeseen
from tests.approval.recording import Recording
from toolfold.approval.shell.reader import Reading, read_command

HARD = Path(__file__).with_name("hard_commands.txt").read_text(encoding="utf-8").removesuffix("\n")
COMMANDS = HARD.split("\n%%\n")


def read(command: str, shell: Recording) -> Reading:
    return read_command(command, home=str(shell.home), cwd=str(shell.work))


def check(command: str, shell: Recording) -> None:
    reading = read(command, shell)
    starts = shell.run(command, seconds=60).starts
    assert unaccounted(starts, reading) == [], shown(reading.runs)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_starts_was_read(command: str, shell: Recording) -> None:
    check(command, shell)


def test_nearly_all_is_read_and_not_merely_doubted(shell: Recording) -> None:
    doubted = 0
    for command in COMMANDS:
        reading = read(command, shell)
        if confesses(reading) and unforeseen(shell.run(command, seconds=60).starts, reading.runs):
            doubted += 1
    assert doubted <= len(COMMANDS) // 10


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf / --no-preserve-root; /bin/rm -rf /; echo gone > /etc/passwd; echo gone > /tmp/gone",
        "exec 3<>/dev/tcp/127.0.0.1/22",
        "/usr/bin/env -i /usr/bin/id",
    ],
)
def test_nothing_gets_out_of_the_place_where_commands_are_recorded(command: str, shell: Recording) -> None:
    recorded = shell.run(command, seconds=60)
    assert "denied" in recorded.printed.lower()
    assert all(start[0] == "rm" for start in recorded.starts)
