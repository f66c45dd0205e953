"""The benchmark of places runs, beside a bare client."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.environments.servers import ROOT


def test_a_place_is_measured_beside_its_bare_client() -> None:
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


def test_a_place_that_there_is_not_is_said() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/environments.py", "--places", "moon"], capture_output=True
    )
    assert done.returncode == 2
    assert b"there is no place moon" in done.stderr
