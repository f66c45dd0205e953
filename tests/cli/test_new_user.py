"""What a new user meets first: mistyped commands, closed pipes, and notes about what is still missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Toolfold
from tests.cli.scripts import WriteScript, write_script
from toolfold.cli.audit import _print_report
from toolfold.cli.demo import find_own_command
from toolfold.safety.approval.hash_chain import ChainReport

__all__ = ["write_script"]
TIMEOUT_S = 120


def test_error_for_a_mistyped_toolfold_command_suggests_the_correct_command(toolfold: Toolfold) -> None:
    done = toolfold("serch")
    assert done.code == 2
    assert "No such command 'serch'. (Did you mean" in done.err
    assert "'search'" in done.err


@pytest.mark.thorough
def test_demo_command_prints_no_error_if_its_output_pipe_is_closed(home: Path) -> None:
    # The pipe is closed before the conversation, whose events come from another thread.
    command = [sys.executable, "-m", "toolfold", "demo", "hello"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as demo:
        assert demo.stdout
        assert demo.stderr
        for line in demo.stdout:
            if line.startswith(b"A conversation"):
                break
        demo.stdout.close()
        errors = demo.stderr.read().decode()
        demo.wait(TIMEOUT_S)
    assert "Traceback" not in errors
    assert "BrokenPipe" not in errors


def test_suggested_commands_contain_the_full_path_of_toolfold_if_its_directory_is_not_on_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["my env/bin/toolfold"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_own_command() == "'my env/bin/toolfold'"
    (tmp_path / "toolfold").touch(0o755)
    assert find_own_command() == "toolfold"


def test_mcp_import_prints_the_name_of_the_file_that_contains_the_servers(toolfold: Toolfold) -> None:
    Path("servers.json").write_text('{"mcpServers": {"git": {"command": "git-server"}}}')
    done = toolfold("mcp", "import", "--file", "servers.json", "--yes")
    assert "git, from servers.json" in done.out
    assert "Claude" not in done.out


def test_enrich_estimates_the_cost_of_example_messages_without_a_configured_model(toolfold: Toolfold) -> None:
    done = toolfold("enrich", "tallyhouse_get_invoice", "--sample", "--estimate")
    assert done.code == 0
    assert "1 tool, 1 call of a model (none is configured" in done.err
    assert toolfold("enrich", "tallyhouse_get_invoice", "--sample", "--yes").code == 3


def test_cron_add_warns_about_a_missing_model_and_cron_list_shows_the_failed_job(
    toolfold: Toolfold, write_script: WriteScript
) -> None:
    model = write_script("Done.")
    assert "no model is configured" in toolfold("cron", "add", "0 7 * * *", "Read", "--name", "bad").err
    assert "no model" not in toolfold("cron", "add", "0 7 * * *", "Read", "--model", model).err
    toolfold("cron", "run", "bad")
    jobs = {job.get("name", ""): job for job in toolfold("cron", "list", "--json").json}
    assert jobs["bad"]["last_run"] == "failed"
    assert "last_run" not in jobs[""]
    shown = toolfold("cron", "list")
    assert "failed" in shown.out
    assert f"toolfold cron show {jobs['bad']['id']}" in shown.err


def test_audit_log_report_uses_the_singular_for_one_entry_and_the_plural_for_two_entries(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _print_report(ChainReport(entries=1, first=1), "approvals.jsonl")
    _print_report(ChainReport(entries=2, first=1), "approvals.jsonl")
    assert capsys.readouterr().out.splitlines() == [
        "the audit log in approvals.jsonl is intact: 1 entry checked",
        "the audit log in approvals.jsonl is intact: 2 entries checked",
    ]
