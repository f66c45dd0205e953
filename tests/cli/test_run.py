"""`toolfold run`: the answer, JSON events, sessions, limits, approval and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Toolfold
from tests.cli.scripts import WriteScript, call, write_script
from tests.cli.test_process import TOOLFOLD
from tests.known_vectors import LIGHT_MODEL
from toolfold.cli.run import MAX_MESSAGE_CHARS

__all__ = ["write_script"]

TIMEOUT_S = 120
DANGEROUS = "rm -rf /srv/data"


def read_events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_run_prints_the_answer_of_the_model_to_stdout_and_tool_calls_to_stderr(
    toolfold: Toolfold, write_script: WriteScript
) -> None:
    Path("notes.txt").write_text("four boats", encoding="utf-8")
    model = write_script(call("read_file", path="notes.txt"), "There are **four** boats.")
    done = toolfold("run", "How many boats?", "--model", model)
    assert (done.code, done.out) == (0, "There are **four** boats.\n")
    assert 'read_file(path="notes.txt") ✓' in done.err
    assert "tools sent" in done.err
    assert "tokens in" in done.err


def test_run_with_option_quiet_prints_only_the_answer(toolfold: Toolfold, write_script: WriteScript) -> None:
    done = toolfold("run", "Hello", "--quiet", "--model", write_script("Hello."))
    assert (done.code, done.out, done.err) == (0, "Hello.\n", "")


def test_run_with_option_json_prints_every_event_as_one_json_line(
    toolfold: Toolfold, write_script: WriteScript
) -> None:
    model = write_script(call("todo", todos=[]), "An answer with \u2028 and \x1b[31m in it.")
    done = toolfold("run", "Plan it", "--json", "--model", model)
    events = read_events(done.out)
    types = [event["type"] for event in events]
    assert done.code == 0
    assert types[0] == "turn_started"
    assert types[-1] == "turn_finished"
    assert types.count("tool_started") == types.count("tool_finished") == 1
    assert len({event["session_id"] for event in events}) == 1
    assert events[-1]["text"] == "An answer with \u2028 and \x1b[31m in it."
    assert "\x1b" not in done.out


def test_run_with_option_json_prints_tool_calls_of_sub_agents(
    toolfold: Toolfold, write_script: WriteScript
) -> None:
    model = write_script(
        call("delegate_task", goal="Make a plan"), call("todo", todos=[]), "Planned.", "All done."
    )
    events = read_events(toolfold("run", "Delegate it", "--json", "--model", model).out)
    assert events[-1] | {"text": "All done."} == events[-1]
    planned = [event for event in events if event.get("tool") == "todo"]
    assert planned
    assert planned[0]["session_id"] != events[0]["session_id"]


def test_run_with_a_dash_reads_the_message_from_standard_input(
    tmp_path: Path, write_script: WriteScript
) -> None:
    done = subprocess.run(
        [TOOLFOLD, "run", "-", "--json", "--model", write_script("Fine.")],
        input="first line\nsecond line\n",
        env={**os.environ, "TOOLFOLD_HOME": str(tmp_path / "home"), **LIGHT_MODEL},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert read_events(done.stdout)[0]["message"] == "first line\nsecond line\n"


def test_run_resumes_the_session_given_by_an_id_prefix_or_the_word_last(
    toolfold: Toolfold, write_script: WriteScript
) -> None:
    first = read_events(toolfold("run", "One", "--json", "--model", write_script("1")).out)
    session = first[0]["session_id"]
    for number, name in enumerate((session, session[:8], "last"), 2):
        model = write_script(str(number), name=f"script{number}")
        done = toolfold("run", "More", "--json", "--session", name, "--model", model)
        started = read_events(done.out)[0]
        assert (started["session_id"], started["turn"]) == (session, number)


def test_run_resumes_a_session_with_the_model_of_that_session(
    toolfold: Toolfold, write_script: WriteScript
) -> None:
    toolfold("run", "One", "--model", write_script("The same script."))
    assert toolfold("run", "Two", "--session", "last").out == "The same script.\n"


def test_run_with_an_unknown_toolset_fails_and_stores_no_session(
    toolfold: Toolfold, write_script: WriteScript
) -> None:
    model = write_script("The same script.")
    session = read_events(toolfold("run", "One", "--json", "--model", model).out)[0]["session_id"]
    typo = toolfold("run", "typo", "--toolset", "fiel", "--model", model)
    assert typo.code == 4
    assert "file" in typo.err
    assert [each["id"] for each in toolfold("sessions", "list", "--json").json] == [session]


def test_run_with_option_toolsets_limits_which_tools_can_be_called(
    toolfold: Toolfold, write_script: WriteScript
) -> None:
    model = write_script(call("terminal", command="true"), "No terminal here.")
    done = toolfold("run", "Go", "--json", "--toolsets", "file,todo", "--model", model)
    events = read_events(done.out)
    selected = next(event for event in events if event["type"] == "tools_selected")
    assert "read_file" in selected["shown"]
    assert "todo" in selected["shown"]
    assert "terminal" not in selected["shown"]
    finished = next(event for event in events if event["type"] == "tool_finished")
    assert "not available in this session" in finished["error"]


class TestExitCodes:
    def test_run_exits_with_code_5_at_the_step_limit(
        self, toolfold: Toolfold, write_script: WriteScript
    ) -> None:
        model = write_script(call("todo", todos=[]), "Never reached.")
        done = toolfold("run", "Go", "--max-steps", "1", "--model", model)
        assert (done.code, done.out) == (5, "")
        assert "--max-steps" in done.err

    def test_run_exits_with_code_6_on_a_provider_error(
        self, toolfold: Toolfold, write_script: WriteScript
    ) -> None:
        model = write_script({"error": "the key was rejected", "kind": "authentication"})
        done = toolfold("run", "Go", "--model", model)
        assert done.code == 6
        assert "error: the key was rejected" in done.err

    def test_run_exits_with_code_7_if_a_tool_call_was_refused(
        self, toolfold: Toolfold, write_script: WriteScript
    ) -> None:
        model = write_script(call("terminal", command=DANGEROUS), "I could not.")
        done = toolfold("run", "Go", "--model", model)
        assert (done.code, done.out) == (7, "I could not.\n")
        assert "✗ refused:" in done.err

    def test_run_exits_with_code_2_on_invalid_usage(
        self, toolfold: Toolfold, write_script: WriteScript
    ) -> None:
        model = write_script("Hello.")
        assert toolfold("run").code == 2
        assert toolfold("run", "  ", "--model", model).code == 2
        assert toolfold("run", "x" * (MAX_MESSAGE_CHARS + 1), "--model", model).code == 2
        both = toolfold("run", "Hi", "--session", "last", "--toolset", "file", "--model", model)
        assert both.code == 2
        assert "keeps its toolsets" in both.err

    def test_run_exits_with_code_3_if_the_model_or_its_key_is_missing(
        self, toolfold: Toolfold, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
        no_model = toolfold("run", "Hi")
        assert no_model.code == 3
        assert "No model is configured yet." in no_model.err
        assert "toolfold chat --demo" in no_model.err
        no_key = toolfold("run", "Hi", "--model", "anthropic:claude-sonnet-4-6")
        assert no_key.code == 3
        assert "ANTHROPIC_API_KEY" in no_key.err

    def test_run_exits_with_code_3_if_the_script_file_of_a_scripted_model_is_unreadable(
        self, toolfold: Toolfold, tmp_path: Path
    ) -> None:
        (tmp_path / "bad.json").write_text('{"steps": [{"error": "x", "kind": "none"}]}', encoding="utf-8")
        done = toolfold("run", "Hi", "--model", f"scripted:{tmp_path / 'bad.json'}")
        assert done.code == 3
        assert "is not a script of model replies" in done.err

    def test_run_exits_with_code_3_if_the_script_file_of_a_scripted_model_does_not_exist(
        self, toolfold: Toolfold, tmp_path: Path
    ) -> None:
        done = toolfold("run", "Hi", "--model", f"scripted:{tmp_path / 'none.json'}")
        assert done.code == 3
        assert "does not exist" in done.err
        assert "Errno" not in done.err

    def test_run_exits_with_code_4_for_an_unknown_session_or_toolset(
        self, toolfold: Toolfold, write_script: WriteScript
    ) -> None:
        model = write_script("Hello.")
        unknown = toolfold("run", "Hi", "--session", "nope", "--model", model)
        assert unknown.code == 4
        assert "there is no session 'nope'" in unknown.err
        assert toolfold("run", "Hi", "--toolset", "nope", "--model", model).code == 4

    @pytest.mark.thorough(keep=1)
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_sigint_or_sigterm_ends_run_with_exit_code_130_and_the_session_can_be_resumed(
        self, number: signal.Signals, tmp_path: Path, write_script: WriteScript, toolfold: Toolfold
    ) -> None:
        model = write_script("word " * 20_000, delay_s=0.01)
        command = [TOOLFOLD, "run", "Talk", "--json", "--model", model]
        events: list[dict[str, Any]] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout or ():
                events.append(json.loads(line))
                if len([event for event in events if event["type"] == "text_received"]) == 2:
                    process.send_signal(number)
        assert process.returncode == 130
        assert events[-1]["reason"] == "interrupted"
        following = write_script("Yes.", name="following")
        assert toolfold("run", "Still there?", "--session", "last", "--model", following).out == "Yes.\n"


class TestDemo:
    def test_run_demo_answers_a_message_with_calls_of_sample_tools_and_without_a_key(
        self, toolfold: Toolfold
    ) -> None:
        done = toolfold("run", "--demo", "Where is the parcel I sent to Lisbon?")
        assert done.code == 0, done.err
        assert "FW-77310" in done.out
        assert "ferrywell_track-consignment" in done.err

    def test_run_demo_uses_the_model_that_is_named_with_the_sample_tools(
        self, toolfold: Toolfold, write_script: WriteScript
    ) -> None:
        model = write_script(call("tallyhouse_get_invoice", invoice_id="inv-2026-031"), "Overdue.")
        done = toolfold("run", "--demo", "Is it paid?", "--model", model)
        assert (done.code, done.out) == (0, "Overdue.\n"), done.err
        assert "tallyhouse_get_invoice" in done.err

    def test_run_demo_refuses_a_deletion_unless_yes_is_given(self, toolfold: Toolfold) -> None:
        refused = toolfold("run", "--demo", "Delete the folder old-exports")
        assert refused.code == 7
        assert "--yes" in refused.err
        assert toolfold("run", "--demo", "--yes", "Delete the folder old-exports").code == 0


class TestApproval:
    def test_run_with_option_yes_runs_calls_that_would_need_approval(
        self, toolfold: Toolfold, write_script: WriteScript
    ) -> None:
        Path("build").mkdir()
        Path("build/old").write_text("x", encoding="utf-8")
        model = write_script(call("terminal", command="git clean -fdx; rm -rf ./build"), "Removed.")
        refused = toolfold("run", "Go", "--model", model)
        assert refused.code == 7
        assert "--yes" in refused.err
        assert Path("build/old").exists()
        allowed = toolfold("run", "Go", "--yes", "--model", model)
        assert allowed.code == 0, allowed.err
        assert not Path("build").exists()

    @pytest.mark.parametrize("command", ["rm -rf /", "mkfs.ext4 /dev/sda"])
    def test_run_with_option_yes_refuses_commands_that_are_always_blocked(
        self, command: str, toolfold: Toolfold, write_script: WriteScript
    ) -> None:
        model = write_script(call("terminal", command=command), "No.")
        done = toolfold("run", "Go", "--yes", "--model", model)
        assert done.code == 7
        assert "✗ refused:" in done.err
        assert "--yes" not in done.err  # it would not help

    def test_run_with_option_yes_refuses_commands_that_change_toolfold_settings(
        self, toolfold: Toolfold, write_script: WriteScript, home: Path
    ) -> None:
        model = write_script(call("terminal", command=f"echo x >> {home}/config.yaml"), "No.")
        done = toolfold("run", "Go", "--yes", "--model", model)
        assert done.code == 7
        assert not (home / "config.yaml").exists()
