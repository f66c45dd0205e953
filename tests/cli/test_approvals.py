"""What a person at the terminal is asked, and what they can see and take back afterwards."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.cli.conftest import Toolfold
from toolfold.authoring import build_tool
from toolfold.cli.prompt import Prompt, question
from toolfold.config import load, set_value, written_value
from toolfold.model import Answer, ApprovalRequest

PLUGIN = """
from toolfold import tool

@tool(toolset="shop", effects=["destructive"])
def wipe(what: str) -> str:
    '''Delete something.'''
    return "wiped " + what

def register(plugin):
    plugin.add(wipe)
"""
WIPE = build_tool(name="wipe", toolset="t", schema={}, handler=lambda args: args, effects=["destructive"])


def request(**options: object) -> ApprovalRequest:
    usual = ApprovalRequest(
        WIPE,
        {},
        "it deletes build",
        "s",
        command="rm -rf build",
        category="fs-delete",
        severity="low",
        answers=tuple(Answer),
    )
    return replace(usual, **options)  # type: ignore[arg-type]


def answered(typed: str, asked: ApprovalRequest) -> Answer:
    with CliRunner().isolation(input=typed):
        return Prompt()(asked)


class TestPrompt:
    @pytest.mark.parametrize("answer", list(Answer))
    def test_an_answer_is_a_letter_or_a_word(self, answer: Answer) -> None:
        assert answered(f"{answer.value[0]}\n", request()) is answer
        assert answered(f" {answer.value.upper()} \n", request()) is answer

    def test_only_an_answer_that_means_yes_is_one(self) -> None:
        assert answered("\n", request()) is Answer.DENY
        assert answered("y\nyes\nsure\n", request()) is Answer.DENY
        assert answered("y\no\n", request()) is Answer.ONCE

    def test_what_is_not_offered_cannot_be_answered(self) -> None:
        asked = request(answers=(Answer.ONCE, Answer.DENY))
        assert answered("a\ns\nalways\n", asked) is Answer.DENY
        assert "always" not in question(asked)

    def test_the_end_of_input_is_no_answer(self) -> None:
        with pytest.raises(click.exceptions.Abort):
            answered("", request())

    def test_the_whole_question_is_told(self) -> None:
        told = click.unstyle(
            question(
                request(
                    command="ls && rm -rf build",
                    part="rm -rf build",
                    also=("and more",),
                    rules=("delete-folder",),
                    covers="ls; rm -rf build",
                )
            )
        )
        assert "wipe needs your word (fs-delete, low)" in told
        assert "│ ls && rm -rf build" in told
        assert "part: rm -rf build" in told
        assert "why:  it deletes build" in told
        assert "also: and more" in told
        assert "found by delete-folder in this session" in told
        assert "never ask about ls; rm -rf build again" in told

    def test_a_model_cannot_draw_on_the_terminal(self) -> None:
        hostile = "ls \x1b[1A\x1b[2K\rrm -rf ~ \u202e [red]x[/red]"
        told = question(
            request(command=hostile, part=hostile, reason=hostile, covers=hostile, also=(hostile,))
        )
        assert "\r" not in told
        assert "\u202e" not in told
        assert "\x1b[2K" not in told
        assert "‹ESC›[2K‹CR›rm -rf ~ ‹U+202E› [red]x[/red]" in told

    def test_every_line_of_a_command_is_marked_as_its_own(self) -> None:
        told = question(request(command="ls\n\n  why: harmless\n  o  once: run it"))
        assert "  │   why: harmless" in told
        assert "  │   o  once: run it" in told

    def test_a_long_command_does_not_push_its_dangerous_part_away(self) -> None:
        long = "echo " + "x" * 60_000 + "; rm -rf ~"
        told = question(request(command=long, part="rm -rf ~"))
        assert len(told) < 7_000
        assert "characters are not shown" in told
        assert told.index("part: rm -rf ~") > told.index("characters are not shown")

    def test_a_question_that_nobody_waits_for_any_more_is_not_put(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        late = request()
        late.withdrawn.set()
        assert Prompt()(late) is Answer.DENY
        assert capfd.readouterr().err == ""

    def test_questions_come_one_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        prompt, inside, most = Prompt(), list[int](), list[int]()

        def think(*_: object, **__: object) -> str:
            inside.append(1)
            most.append(len(inside))
            threading.Event().wait(0.01)
            inside.pop()
            return "d"

        monkeypatch.setattr(click, "prompt", think)
        threads = [threading.Thread(target=prompt, args=(request(),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most == [1, 1, 1, 1]


@pytest.fixture
def shop(toolfold: Toolfold) -> Path:
    """A plugin with a tool that destroys."""
    folder = load().plugins_folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "shop.py").write_text(PLUGIN)
    return load().paths.user_file


def call_at_a_terminal(typed: bytes) -> tuple[str, str]:
    """Standard output and what the terminal showed of a call in a process of its own."""
    screen, terminal = pty.openpty()
    command = [str(Path(sys.executable).with_name("toolfold")), "call", "wipe", '{"what": "all"}']
    process = subprocess.Popen(command, stdin=terminal, stderr=terminal, stdout=subprocess.PIPE)
    os.close(terminal)  # or the end of the process would not be the end of what we read
    shown = b""
    try:
        while b"Your answer" not in shown:
            shown += os.read(screen, 4_096)
        os.write(screen, typed)
        out, _ = process.communicate(timeout=240)
    finally:
        os.close(screen)
    return out.decode(), shown.decode()


class TestAtATerminal:
    def test_a_yes_runs_the_call_once(self, shop: Path, toolfold: Toolfold) -> None:
        out, shown = call_at_a_terminal(b"o\n")
        assert out == '{"result":"wiped all"}\n'
        assert 'wipe {"what": "all"}' in shown
        assert toolfold("call", "wipe", '{"what": "all"}').code == 1  # and there is nobody to ask now

    def test_a_no_does_not(self, shop: Path) -> None:
        out, _ = call_at_a_terminal(b"\n")
        assert "the person asked said no" in out

    def test_always_is_kept_listed_and_taken_back(self, shop: Path, toolfold: Toolfold) -> None:
        entry = 'tool:wipe {"what": "all"}'
        call_at_a_terminal(b"a\n")
        assert written_value(shop, "command_allowlist") == [entry]
        assert toolfold("call", "wipe", '{"what": "all"}').code == 0
        assert toolfold("call", "wipe", '{"what": "more"}').code == 1
        assert toolfold("approvals", "list", "--json").json["allowed"] == [entry]
        assert toolfold("approvals", "revoke", "1").code == 0
        assert toolfold("call", "wipe", '{"what": "all"}').code == 1
        log = toolfold("approvals", "log", "--json").json
        assert [(each["allowed"], each["by"]) for each in log] == [
            (True, "person"),
            (True, "allow-list"),
            (False, "nobody to ask"),
            (False, "nobody to ask"),
        ]


class TestList:
    def test_nothing_is_there_at_first(self, toolfold: Toolfold) -> None:
        done = toolfold("approvals", "list")
        assert done.code == 0
        assert "mode: manual" in done.out
        assert "the allow-list is empty" in done.out

    def test_entries_and_deny_rules_are_shown(self, toolfold: Toolfold) -> None:
        file = load().paths.user_file
        set_value(file, "command_allowlist", ["rm -rf build", "rm \u202e x"])
        set_value(file, "approval.deny", ["git push *"])
        done = toolfold("approvals", "list")
        for text in ("rm -rf build", "rm ‹U+202E› x", "git push *"):
            assert text in done.out
        assert toolfold("approvals", "list", "--json").json == {
            "mode": "manual",
            "allowed": ["rm -rf build", "rm \u202e x"],
            "denied": ["git push *"],
        }

    def test_entries_that_can_never_count_are_said(self, toolfold: Toolfold) -> None:
        set_value(load().paths.user_file, "command_allowlist", ["rm -rf build", "rm -rf /", "tool:wipe"])
        done = toolfold("approvals", "list")
        assert done.code == 0
        assert "entry 2 never counts: this is never run, whoever agrees" in done.err
        assert "entry 3 never counts: behind the name it needs all arguments" in done.err
        assert "entry 1" not in done.err


class TestRevoke:
    def test_by_number_by_text_and_all(self, toolfold: Toolfold) -> None:
        file = load().paths.user_file
        set_value(file, "command_allowlist", ["rm a", "rm b", "rm c", "rm d"])
        assert toolfold("approvals", "revoke", "2", "rm d").code == 0
        assert written_value(file, "command_allowlist") == ["rm a", "rm c"]
        assert toolfold("approvals", "revoke", "--all").code == 0
        assert written_value(file, "command_allowlist") is None
        assert "nothing to take back" in toolfold("approvals", "revoke", "--all").out

    def test_what_is_not_there_is_said(self, toolfold: Toolfold) -> None:
        done = toolfold("approvals", "revoke", "rm z")
        assert done.code == 4
        assert "the allow-list has no 'rm z'" in done.err
        assert toolfold("approvals", "revoke").code == 2


class TestTest:
    def test_a_harmless_command_would_run(self, toolfold: Toolfold) -> None:
        done = toolfold("approvals", "test", "git status")
        assert done.code == 0
        assert done.out.startswith("runs, decided by: nothing found")

    def test_a_dangerous_one_would_be_asked_about(self, toolfold: Toolfold) -> None:
        done = toolfold("approvals", "test", "cd sub && rm -rf build")
        assert done.code == 1
        assert done.out.startswith("asked about, decided by: a person")
        for text in ("delete-tree", "fs-delete", "low", "rm -rf build"):
            assert text in done.out

    def test_the_floor_would_refuse_in_every_mode(self, toolfold: Toolfold) -> None:
        done = toolfold("--set", "approval.mode=off", "approvals", "test", "rm -rf /")
        assert done.code == 1
        assert done.out.startswith("refused, decided by: hard floor")

    @pytest.mark.parametrize(
        ("setting", "station", "code"),
        [
            ("approval.mode=off", "mode off", 0),
            ("command_allowlist=[rm -rf build]", "allow-list", 0),
            ("approval.deny=[rm]", "deny rule", 1),
            ("approval.mode=manual", "a person", 1),
        ],
    )
    def test_the_station_that_would_decide_is_named(
        self, toolfold: Toolfold, setting: str, station: str, code: int
    ) -> None:
        done = toolfold("--set", setting, "approvals", "test", "rm -rf build", "--json")
        assert (done.json["decided_by"], done.code) == (station, code)
        assert done.json["runs_unasked"] is (code == 0)

    def test_a_command_is_tried_for_the_place_where_it_would_run(self, toolfold: Toolfold) -> None:
        allowed = ("--set", "approval.isolated=fs-delete", "approvals", "test", "rm -rf /etc/nginx")
        there = toolfold(*allowed, "--backend", "sandbox")
        assert there.code == 0
        assert there.out.startswith("runs, decided by: isolated place\n  it stays in sandbox")
        assert (
            toolfold(*allowed, "--backend", "sandbox", "--json").json["findings"][0]["kept_in"] == "sandbox"
        )
        assert toolfold(*allowed).out.startswith("asked about, decided by: a person")

    def test_a_program_gets_the_whole_verdict(self, toolfold: Toolfold) -> None:
        told = toolfold("approvals", "test", "ls; rm -rf build", "--json").json
        assert told["dangerous"] is True
        assert told["blocked"] is told["unread"] is False
        assert (told["category"], told["severity"], told["part"]) == ("fs-delete", "low", "rm -rf build")
        assert (told["shape"], told["outcome"]) == ("ls; rm -rf build", "asked about")
        assert told["findings"][0]["rule"] == "delete-tree"

    def test_nothing_is_run_or_recorded(self, toolfold: Toolfold, home: Path) -> None:
        toolfold("approvals", "test", "touch trace; rm -rf trace")
        assert not Path("trace").exists()
        assert toolfold("approvals", "log", "--json").json == []


class TestLog:
    def test_an_empty_log_says_where_it_would_be(self, toolfold: Toolfold) -> None:
        assert "approvals.jsonl" in toolfold("approvals", "log").out

    def test_the_newest_are_shown_and_can_be_filtered(self, shop: Path, toolfold: Toolfold) -> None:
        for what in ("a", "b", "c"):
            toolfold("call", "wipe", f'{{"what": "{what}"}}')
        done = toolfold("approvals", "log", "-n", "2")
        assert "2 decisions" in done.out
        assert '"what": "c"' in done.out
        assert '"what": "a"' not in done.out
        assert len(toolfold("approvals", "log", "--refused", "--json").json) == 3
        assert toolfold("approvals", "log", "--session", "none", "--json").json == []
