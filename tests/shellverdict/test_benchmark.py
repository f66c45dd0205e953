"""The approval benchmark: custom commands, comparison with other detectors, missing detectors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "approval.py"
DANGEROUS = [
    {"command": "rm -rf /", "tier": "hard"},
    {"command": "git push --force", "tier": "ask"},
    {"command": "ls", "tier": "hard", "note": "mislabelled, and with a \u2028 that is not a line break"},
    {"command": "dd if=/dev/zero of=/dev/sda", "tier": "hard"},
]
BENIGN = [{"command": "ls -la"}, {"command": "rm -rf /"}]
SHELLGUARD = """
def scan_text(text):
    return [text] if "rm" in text else []
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name, rows in (("dangerous", DANGEROUS), ("benign_held", BENIGN)):
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return tmp_path


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCHMARK), *options], capture_output=True, text=True, check=False
    )


def test_benchmark_reports_recall_false_alarm_rate_and_latency_percentiles_of_the_detector(
    data: Path,
) -> None:
    (row,) = json.loads(run("--data", str(data), "--json").stdout)["detectors"]
    assert row["name"] == "toolfold"
    assert row["recall"] == 75.0
    assert row["hard"] == pytest.approx(200 / 3)
    assert row["false_prompts"] == 50.0
    assert row["blocked_benign"] == 1
    assert row["p50"] <= row["p99"] <= row["worst"]


@pytest.mark.thorough
def test_benchmark_compares_other_installed_detectors_and_names_detectors_that_are_not_installed(
    data: Path,
) -> None:
    package = data / "peers" / "shellguard"
    package.mkdir(parents=True)
    (package / "scanner.py").write_text(SHELLGUARD)
    peers = ("--peer-python", sys.executable, "--peer-folder", str(package.parent))
    done = run("--data", str(data), *peers)
    assert "| shellguard | 25.0% | 33.3% | 50.0% | - |" in done.stdout
    assert "left out: nah: ModuleNotFoundError" in done.stderr


def test_benchmark_with_a_data_directory_without_commands_exits_with_an_error(data: Path) -> None:
    done = run("--data", str(data), "--only", "nowhere")
    assert done.returncode == 1
    assert "holds no dangerous*.jsonl" in done.stderr
