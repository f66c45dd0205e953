"""The benchmark of environments runs, and compares each with direct use of its client program."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.environments.servers import ROOT


@pytest.mark.thorough
def test_benchmark_reports_durations_of_commands_run_in_an_environment_and_run_directly() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/environments.py", "--places", "local", "--runs", "2", "--json"],
        capture_output=True,
        check=True,
    )
    row = json.loads(done.stdout)
    assert row["place"] == "local"
    assert all(
        row[key] > 0 for key in ("empty", "bare_empty", "much", "bare_much", "at_once", "bare_at_once")
    )


def test_benchmark_with_an_unknown_environment_name_exits_with_an_error() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/environments.py", "--places", "moon"], capture_output=True
    )
    assert done.returncode == 2
    assert b"there is no place moon" in done.stderr
