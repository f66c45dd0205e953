"""The reading of a command against the shell itself: what really starts is what was read."""

from __future__ import annotations

from pathlib import Path

import pytest

from shellverdict.shell.reader import CommandReading, read_command
from tests.shellverdict.comparing import confesses, shown, unaccounted, unforeseen
from tests.shellverdict.recording import Recording

HARD = Path(__file__).with_name("hard_commands.txt").read_text(encoding="utf-8").removesuffix("\n")
COMMANDS = HARD.split("\n%%\n")


def read(command: str, shell: Recording) -> CommandReading:
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


@pytest.mark.parametrize(
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
def test_a_copy_of_a_program_is_read_as_the_program(line: str) -> None:
    runs = read_command(line, home="/home/ann", cwd="/home/ann/shop").runs
    assert ("rm", "-rf", "/home/ann/docs") in [run.argv for run in runs]


@pytest.mark.parametrize(
    "line",
    [
        *("v='rm -rf /srv/x'; $=v", "v='rm -rf /srv/x'; \"$=v\"", "v=rm; $~v -rf /srv/x"),
        *("alias -s x='rm -rf'; /srv/x.x", "abbr -a ll rm; ll -rf /srv/x"),
    ],
)
def test_words_of_zsh_and_fish_are_expanded(line: str) -> None:
    runs = read_command(line, home="/home/ann", cwd="/home/ann/shop").runs
    assert any(run.argv[:2] == ("rm", "-rf") and len(run.argv) == 3 for run in runs)
