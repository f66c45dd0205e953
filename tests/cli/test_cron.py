"""`toolfold cron`: add, list, change and run scheduled jobs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Toolfold
from tests.cli.scripts import WriteScript, write_script
from tests.known_vectors import LIGHT_MODEL

__all__ = ["write_script"]


def test_scheduled_job_can_be_added_and_listed_and_changed_and_removed_with_cron_commands(
    toolfold: Toolfold,
) -> None:
    added = toolfold("cron", "add", "30 8 * * 1-5", "Read the news", "--time-zone", "Asia/Tokyo")
    assert added.code == 0
    assert "08:30 JST" in added.out
    assert "toolfold cron run" in added.err
    (job,) = toolfold("cron", "list", "--json").json
    assert (job["schedule"], job["state"]) == ("30 8 * * 1-5", "active")
    assert toolfold("cron", "edit", job["id"], "--schedule", "0 7 * * *", "--name", "news").code == 0
    assert "07:00 JST" in toolfold("cron", "list").out
    assert toolfold("cron", "pause", "news").code == 0
    assert toolfold("cron", "show", "news", "--json").json["state"] == "paused"
    assert "07:00 JST" in toolfold("cron", "resume", "news").out
    assert toolfold("cron", "remove", "news", "--yes").code == 0
    assert "no jobs are scheduled" in toolfold("cron", "list").out


def test_cron_preview_prints_the_next_times_of_a_schedule_without_adding_a_job(toolfold: Toolfold) -> None:
    shown = toolfold("cron", "preview", "0 12 1 * *", "--time-zone", "UTC", "--json")
    assert len(shown.json["times"]) == 5
    assert all("-01T12:00:00+00:00" in each for each in shown.json["times"])
    assert toolfold("cron", "list", "--json").json == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("add", "sometimes", "Work"), "was not understood"),
        (("add", "@hourly", " "), "needs a task"),
        (("add", "@hourly", "Work", "--to", "boss"), "there is no message target 'boss'"),
        (("add", "@hourly", "Work", "--time-zone", "Mars"), "not a known time zone"),
        (("add", "@hourly", "Work", "--toolset", "nukes"), "there is no toolset 'nukes'"),
        (("add", "@hourly", "Work", "--model", "nobody:x"), "names no known model provider"),
        (("pause", "nothing"), "There is no scheduled job 'nothing'"),
        (("preview", "every evening at 8"), "was not understood"),
        (("edit", "nothing"), "nothing to change"),
    ],
)
def test_cron_commands_reject_invalid_arguments_with_a_reason(
    toolfold: Toolfold, arguments: tuple[str, ...], problem: str
) -> None:
    done = toolfold("cron", *arguments)
    assert done.code != 0
    assert problem in done.err


def test_cron_run_with_a_job_name_runs_that_job_now_and_prints_its_result(
    toolfold: Toolfold, write_script: WriteScript
) -> None:
    model = write_script("All is well.")
    toolfold("cron", "add", "0 8 1 5 *", "Check", "--name", "check", "--model", model)
    done = toolfold("cron", "run", "check")
    assert done.code == 0, done.err
    assert "All is well." in done.out
    (run,) = toolfold("cron", "show", "check", "--json").json["runs"]
    assert run["result"] == "All is well."
    assert toolfold("sessions", "show", run["session_id"]).out.count("All is well.") == 1


def test_cron_run_without_a_job_name_waits_for_due_jobs_and_stops_on_sigterm(
    toolfold: Toolfold, home: Path
) -> None:
    toolfold("cron", "add", "0 7 * * *", "Work")
    process = subprocess.Popen(
        [sys.executable, "-m", "toolfold", "cron", "run"],
        env={**os.environ, "TOOLFOLD_HOME": str(home), **LIGHT_MODEL},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert "waiting for 1 job" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, rest) == (0, "stopped\n")
