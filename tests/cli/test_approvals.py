"""The approval prompt at a terminal, and `toolfold approvals`."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

import click
import pytest

from tests.cli.conftest import Toolfold
from toolfold.cli.approval_prompt import ApprovalPrompt, format_question
from toolfold.config import load_config, read_file_value, set_value
from toolfold.core.authoring import build_tool
from toolfold.core.types import Answer, ApprovalRequest

PLUGIN = """
from toolfold import tool

@tool(toolset="shop", effects=["destructive"])
def wipe(what: str) -> str:
    '''Delete something.'''
    return "wiped " + what

def register(plugin):
    plugin.add(wipe)
"""
CTRL_C, CTRL_D = b"\x03", b"\x04"
OWN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
WIPE = build_tool(name="wipe", toolset="t", schema={}, handler=lambda args: args, effects=["destructive"])


def request(**options: object) -> ApprovalRequest:
    default = ApprovalRequest(
        WIPE,
        {},
        "it deletes build",
        "s",
        command="rm -rf drafts",
        category="fs-delete",
        severity="low",
        answers=tuple(Answer),
    )
    return replace(default, **options)  # type: ignore[arg-type]


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[BinaryIO]:
    """Pipe that replaces standard input; closing it ends the input."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as typed, os.fdopen(writing, "wb", buffering=0) as keys:
        monkeypatch.setattr(sys, "stdin", typed)
        yield keys


AnswerQuestion = Callable[[str, ApprovalRequest], Answer]


@pytest.fixture
def answer_question(keyboard: BinaryIO) -> AnswerQuestion:
    """Return a function that types an answer and returns the prompt's result."""

    def answer(typed: str, question: ApprovalRequest) -> Answer:
        keyboard.write(typed.encode())
        return ApprovalPrompt()(question)

    return answer


class TestPrompt:
    @pytest.mark.parametrize("answer", list(Answer))
    def test_answer_to_an_approval_question_can_be_a_letter_or_a_word(
        self, answer: Answer, answer_question: AnswerQuestion
    ) -> None:
        key = {Answer.ALWAYS_KIND: "ak"}.get(answer, answer.value[0])
        assert answer_question(f"{key}\n", request()) is answer
        assert answer_question(f" {answer.value.upper()} \n", request()) is answer

    def test_approval_question_is_repeated_until_the_third_unknown_answer_denies_the_call(
        self, answer_question: AnswerQuestion
    ) -> None:
        assert answer_question("\n", request()) is Answer.DENY
        assert answer_question("what\nok\nsure\n", request()) is Answer.DENY
        assert answer_question("ok\no\n", request()) is Answer.ONCE

    def test_answer_yes_to_an_approval_question_allows_only_this_call(
        self, answer_question: AnswerQuestion
    ) -> None:
        assert answer_question("y\n", request()) is Answer.ONCE
        assert answer_question("Yes\n", request()) is Answer.ONCE
        assert answer_question("y\ny\ny\n", request(answers=(Answer.ALWAYS, Answer.DENY))) is Answer.DENY

    @pytest.mark.parametrize("word", ["n", "N", "no", "No"])
    def test_answer_no_to_an_approval_question_denies_the_call_without_asking_again(
        self, answer_question: AnswerQuestion, word: str
    ) -> None:
        assert answer_question(f"{word}\ny\n", request()) is Answer.DENY

    def test_answer_always_denies_the_call_if_the_approval_question_does_not_offer_always(
        self, answer_question: AnswerQuestion
    ) -> None:
        asked = request(answers=(Answer.ONCE, Answer.DENY))
        assert answer_question("a\ns\nalways\n", asked) is Answer.DENY
        assert "always" not in format_question(asked)

    def test_second_line_of_input_answers_the_second_approval_question(
        self, answer_question: AnswerQuestion
    ) -> None:
        assert answer_question("o\na\n", request()) is Answer.ONCE
        assert answer_question("", request()) is Answer.ALWAYS

    @pytest.mark.parametrize("typed", ["", "o"])
    def test_end_of_input_at_an_approval_question_denies_the_call(
        self, typed: str, keyboard: BinaryIO
    ) -> None:
        keyboard.write(typed.encode())
        keyboard.close()
        assert ApprovalPrompt()(request()) is Answer.DENY

    def test_invalid_utf8_as_answer_to_an_approval_question_denies_the_call(self, keyboard: BinaryIO) -> None:
        keyboard.write(b"\xff\xfeo\n\n")
        assert ApprovalPrompt()(request()) is Answer.DENY

    def test_withdrawing_an_approval_question_denies_the_call_without_waiting_for_input(
        self, keyboard: BinaryIO, capfd: pytest.CaptureFixture[str]
    ) -> None:
        question, answers = request(), list[Answer]()
        thread = threading.Thread(target=lambda: answers.append(ApprovalPrompt()(question)), daemon=True)
        thread.start()
        while "Your answer" not in capfd.readouterr().err:  # printed last, in a separate write
            time.sleep(0.01)
        question.withdrawn.set()
        thread.join(240)
        assert answers == [Answer.DENY]

    def test_approval_question_shows_the_command_and_the_reason_and_the_possible_answers(self) -> None:
        text = click.unstyle(
            format_question(
                request(
                    command="ls && rm -rf drafts",
                    part="rm -rf drafts",
                    also=("and more",),
                    kinds=("recursive delete", "git force push"),
                    covers="ls; rm -rf drafts",
                )
            )
        )
        assert "wipe needs your approval (fs-delete, low)" in text
        assert "│ ls && rm -rf drafts" in text
        assert "part: rm -rf drafts" in text
        assert "why:  it deletes build" in text
        assert "also: and more" in text
        assert "k  kind: run it, and allow every recursive delete or git force push in this session" in text
        assert (
            "ak always-kind: run it, and never ask about any recursive delete or git force push again" in text
        )
        assert "never ask about ls; rm -rf drafts again" in text

    def test_control_characters_of_a_command_are_escaped_in_the_approval_question(self) -> None:
        hostile = "ls \x1b[1A\x1b[2K\rrm -rf ~ \u202e [red]x[/red]"
        text = format_question(
            request(command=hostile, part=hostile, reason=hostile, covers=hostile, also=(hostile,))
        )
        assert "\r" not in text
        assert "\u202e" not in text
        assert "\x1b[2K" not in text
        assert "‹ESC›[2K‹CR›rm -rf ~ ‹U+202E› [red]x[/red]" in text

    def test_every_line_of_a_multiline_command_has_a_vertical_bar_in_the_approval_question(self) -> None:
        text = format_question(request(command="ls\n\n  why: harmless\n  o  once: run it"))
        assert "  │   why: harmless" in text
        assert "  │   o  once: run it" in text

    def test_approval_question_about_a_long_command_shows_its_dangerous_part(self) -> None:
        long = "echo " + "x" * 60_000 + "; rm -rf ~"
        text = format_question(request(command=long, part="rm -rf ~"))
        assert len(text) < 7_000
        assert "characters are not shown" in text
        assert text.index("part: rm -rf ~") > text.index("characters are not shown")

    def test_approval_question_withdrawn_before_it_is_shown_is_not_printed_and_denies_the_call(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        late = request()
        late.withdrawn.set()
        assert ApprovalPrompt()(late) is Answer.DENY
        assert capfd.readouterr().err == ""

    def test_concurrent_approval_questions_are_asked_one_at_a_time(
        self, keyboard: BinaryIO, capfd: pytest.CaptureFixture[str]
    ) -> None:
        prompt, shown = ApprovalPrompt(), ""
        threads = [threading.Thread(target=prompt, args=(request(),), daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for before in range(4):
            while shown.count("Your answer") <= before:
                time.sleep(0.01)
                shown += capfd.readouterr().err
            assert shown.count("needs your approval") == before + 1
            keyboard.write(b"d\n")
        for thread in threads:
            thread.join(240)


@pytest.fixture
def destructive_plugin(toolfold: Toolfold) -> Path:
    """Install a plugin with a destructive tool; returns the user's settings file."""
    directory = load_config().plugins_folder
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "shop.py").write_text(PLUGIN)
    return load_config().paths.user_file


class TerminalCall(NamedTuple):
    """Result of a call in a separate process: standard output, terminal output and exit code."""

    out: str
    shown: str
    code: int


def call_at_terminal(typed: bytes) -> TerminalCall:
    """Run a call in a new terminal session and type at its prompt; a typed Ctrl-C interrupts the call."""
    screen, terminal = pty.openpty()
    command = [str(Path(sys.executable).with_name("toolfold")), "call", "wipe", '{"what": "all"}']
    process = subprocess.Popen(
        [sys.executable, "-c", OWN_TERMINAL, *command],
        stdin=terminal,
        stderr=terminal,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    os.close(terminal)  # otherwise reading would not end with the process
    shown, has_answered = b"", False
    try:
        while piece := _read(screen):
            shown += piece
            if b"Your answer > " in shown and not has_answered:
                os.write(screen, typed)
                has_answered = True
        out, _ = process.communicate(timeout=240)
    finally:
        os.close(screen)
    return TerminalCall(out.decode(), click.unstyle(shown.decode()), process.returncode)


def _read(screen: int) -> bytes:
    try:
        return os.read(screen, 4_096)
    except OSError:  # the process has ended
        return b""


class TestAtATerminal:
    def test_answer_once_to_an_approval_question_at_the_terminal_allows_only_this_call(
        self, destructive_plugin: Path, toolfold: Toolfold
    ) -> None:
        out, shown, code = call_at_terminal(b"o\n")
        assert code == 0
        assert out == '{"result":"wiped all"}\n'
        assert 'wipe {"what": "all"}' in shown
        assert toolfold("call", "wipe", '{"what": "all"}').code == 1  # no terminal to ask at

    def test_empty_answer_to_an_approval_question_at_the_terminal_does_not_run_the_call(
        self, destructive_plugin: Path
    ) -> None:
        assert "the request was declined" in call_at_terminal(b"\n").out

    def test_ctrl_d_at_an_approval_question_denies_the_call(self, destructive_plugin: Path) -> None:
        out, shown, code = call_at_terminal(CTRL_D)
        assert "the request was declined" in out
        assert "Traceback" not in shown
        assert code == 1

    @pytest.mark.thorough(keep=1)
    @pytest.mark.parametrize(
        "before", [b"", b"o", b"o" + CTRL_D], ids=["at once", "in a line", "after a part"]
    )
    def test_ctrl_c_at_an_approval_question_ends_the_call_without_a_crash(
        self, before: bytes, destructive_plugin: Path
    ) -> None:
        out, shown, code = call_at_terminal(before + CTRL_C)
        assert out == ""
        assert "error: interrupted\r\n" in shown
        assert "Fatal" not in shown
        assert code == 130

    def test_permission_given_by_the_answer_always_is_listed_and_can_be_revoked(
        self, destructive_plugin: Path, toolfold: Toolfold
    ) -> None:
        entry = 'tool:wipe {"what": "all"}'
        call_at_terminal(b"a\n")
        assert read_file_value(destructive_plugin, "command_allowlist") == [entry]
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
    def test_approvals_list_command_says_that_no_commands_are_allowed_if_none_are_stored(
        self, toolfold: Toolfold
    ) -> None:
        done = toolfold("approvals", "list")
        assert done.code == 0
        assert "mode: manual" in done.out
        assert "no commands are allowed permanently" in done.out

    def test_approvals_list_command_shows_allowed_shell_commands_and_deny_rules(
        self, toolfold: Toolfold
    ) -> None:
        file = load_config().paths.user_file
        set_value(file, "command_allowlist", ["rm -rf drafts", "rm \u202e x"])
        set_value(file, "approval.deny", ["git push *"])
        done = toolfold("approvals", "list")
        for text in ("rm -rf drafts", "rm ‹U+202E› x", "git push *"):
            assert text in done.out
        assert toolfold("approvals", "list", "--json").json == {
            "mode": "manual",
            "allowed": ["rm -rf drafts", "rm \u202e x"],
            "allowed_tools": [],
            "denied": ["git push *"],
        }

    def test_allowed_rules_and_rule_groups_can_be_listed_and_revoked_with_approvals_commands(
        self, toolfold: Toolfold
    ) -> None:
        file = load_config().paths.user_file
        entries = ["kind:recursive-delete", "rule:git-clean", "rm -rf drafts"]
        set_value(file, "command_allowlist", entries)
        listed = " ".join(toolfold("approvals", "list").out.split())
        assert "every recursive delete: delete-tree, delete-project-tree" in listed
        assert "everything that this rule finds" in listed
        assert toolfold("approvals", "list", "--json").json["allowed"] == entries
        assert toolfold("approvals", "test", "git clean -fdx").code == 0
        assert toolfold("approvals", "revoke", "kind:recursive-delete", "rule:git-clean").code == 0
        assert toolfold("approvals", "test", "git clean -fdx").code == 1
        assert read_file_value(file, "command_allowlist") == ["rm -rf drafts"]

    def test_approvals_list_command_warns_about_allowed_rules_and_rule_groups_that_never_apply(
        self, toolfold: Toolfold
    ) -> None:
        entries = ["kind:recursive-deletes", "rule:delete-everything", "rule:own-file", "Recursive delete"]
        set_value(load_config().paths.user_file, "command_allowlist", entries)
        warnings = " ".join(toolfold("approvals", "list").err.split())
        assert (
            "entry 1 never applies: there is no kind 'recursive-deletes'. Did you mean recursive-delete?"
            in warnings
        )
        assert "entry 2 never applies: this is always blocked, even with approval" in warnings
        assert "entry 3 never applies: critical, unreadable and runtime-protecting findings" in warnings
        assert (
            "entry 4 never applies: it is treated as a command; to allow the kind, write"
            " kind:recursive-delete" in warnings
        )

    def test_approvals_list_command_warns_about_allowed_shell_commands_that_never_apply(
        self, toolfold: Toolfold
    ) -> None:
        set_value(
            load_config().paths.user_file, "command_allowlist", ["rm -rf drafts", "rm -rf /", "tool:wipe"]
        )
        done = toolfold("approvals", "list")
        assert done.code == 0
        assert "entry 2 never applies: this is always blocked, even with approval" in done.err
        assert "entry 3 never applies: all arguments must follow the tool name" in done.err
        assert "entry 1" not in done.err


class TestRevoke:
    def test_approvals_revoke_command_removes_allowed_shell_commands_by_number_or_text_or_all_at_once(
        self, toolfold: Toolfold
    ) -> None:
        file = load_config().paths.user_file
        set_value(file, "command_allowlist", ["rm a", "rm b", "rm c", "rm d"])
        assert toolfold("approvals", "revoke", "2", "rm d").code == 0
        assert read_file_value(file, "command_allowlist") == ["rm a", "rm c"]
        assert toolfold("approvals", "revoke", "--all").code == 0
        assert read_file_value(file, "command_allowlist") is None
        assert "nothing to remove" in toolfold("approvals", "revoke", "--all").out

    def test_approvals_revoke_command_fails_for_a_permission_that_is_not_stored(
        self, toolfold: Toolfold
    ) -> None:
        done = toolfold("approvals", "revoke", "rm z")
        assert done.code == 4
        assert "there is no allow-list entry 'rm z'" in done.err
        assert toolfold("approvals", "revoke").code == 2


class TestTest:
    def test_approvals_test_command_reports_that_a_harmless_shell_command_would_run(
        self, toolfold: Toolfold
    ) -> None:
        done = toolfold("approvals", "test", "git status")
        assert done.code == 0
        assert done.out.startswith("runs, decided by: nothing found")

    def test_approvals_test_command_reports_that_a_dangerous_shell_command_would_need_approval(
        self, toolfold: Toolfold
    ) -> None:
        done = toolfold("approvals", "test", "cd sub && rm -rf drafts")
        assert done.code == 1
        assert done.out.startswith("needs approval, decided by: a person")
        for text in ("delete-project-tree", "fs-delete", "medium", "rm -rf drafts"):
            assert text in done.out

    def test_approvals_test_command_reports_that_a_blocked_shell_command_is_always_refused(
        self, toolfold: Toolfold
    ) -> None:
        done = toolfold("--set", "approval.mode=off", "approvals", "test", "rm -rf /")
        assert done.code == 1
        assert done.out.startswith("refused, decided by: hard floor")

    @pytest.mark.parametrize(
        ("setting", "station", "code"),
        [
            ("approval.mode=off", "mode off", 0),
            ("command_allowlist=[rm -rf drafts]", "allow-list", 0),
            ("approval.deny=[rm]", "deny rule", 1),
            ("approval.mode=manual", "a person", 1),
        ],
    )
    def test_approvals_test_command_reports_which_setting_decides_or_that_a_person_must_decide(
        self, toolfold: Toolfold, setting: str, station: str, code: int
    ) -> None:
        done = toolfold("--set", setting, "approvals", "test", "rm -rf drafts", "--json")
        assert (done.json["decided_by"], done.code) == (station, code)
        assert done.json["runs_unasked"] is (code == 0)

    def test_approvals_test_command_with_option_backend_classifies_a_shell_command_for_that_backend(
        self, toolfold: Toolfold
    ) -> None:
        allowed = ("--set", "approval.isolated=fs-delete", "approvals", "test", "rm -rf /etc/nginx")
        there = toolfold(*allowed, "--backend", "sandbox")
        assert there.code == 0
        assert there.out.startswith("runs, decided by: isolated place\n  it only affects sandbox")
        assert (
            toolfold(*allowed, "--backend", "sandbox", "--json").json["findings"][0]["kept_in"] == "sandbox"
        )
        assert toolfold(*allowed).out.startswith("needs approval, decided by: a person")

    def test_json_of_the_approvals_test_command_contains_severity_and_category_and_findings(
        self, toolfold: Toolfold
    ) -> None:
        text = toolfold("approvals", "test", "ls; rm -rf drafts", "--json").json
        assert text["dangerous"] is True
        assert text["blocked"] is text["unread"] is False
        assert (text["category"], text["severity"], text["part"]) == ("fs-delete", "medium", "rm -rf drafts")
        assert (text["shape"], text["outcome"]) == ("ls; rm -rf drafts", "asked about")
        assert text["findings"][0]["rule"] == "delete-project-tree"

    def test_approvals_test_command_neither_runs_nor_logs_the_given_shell_command(
        self, toolfold: Toolfold, home: Path
    ) -> None:
        toolfold("approvals", "test", "touch trace; rm -rf trace")
        assert not Path("trace").exists()
        assert toolfold("approvals", "log", "--json").json == []


class TestLog:
    def test_approvals_log_command_prints_the_path_of_the_log_file_if_no_decision_is_logged(
        self, toolfold: Toolfold
    ) -> None:
        assert "approvals.jsonl" in toolfold("approvals", "log").out

    def test_approvals_log_command_prints_the_latest_decisions_and_can_filter_by_refusal_or_session(
        self, destructive_plugin: Path, toolfold: Toolfold
    ) -> None:
        for what in ("a", "b", "c"):
            toolfold("call", "wipe", f'{{"what": "{what}"}}')
        done = toolfold("approvals", "log", "-n", "2")
        assert "2 decisions" in done.out
        assert '"what": "c"' in done.out
        assert '"what": "a"' not in done.out
        assert len(toolfold("approvals", "log", "--refused", "--json").json) == 3
        assert toolfold("approvals", "log", "--session", "none", "--json").json == []
