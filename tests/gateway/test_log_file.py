"""The log file of the gateways: bounded, private, redacted, shared by several processes."""

from __future__ import annotations

import logging
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from toolfold.safety.redaction import Redaction
from toolfold.serving.gateway.log_file import AppendOnlyFile, gateway_log_path, log_to_file

WRITER = """
import sys
from pathlib import Path
from toolfold.serving.gateway.log_file import AppendOnlyFile

file = AppendOnlyFile(Path(sys.argv[1]), max_bytes=20_000)
for number in range(200):
    file.append(f"{sys.argv[2]} {number} " + "x" * 40)
"""


def test_log_file_and_its_rotated_copy_are_readable_only_by_their_owner_and_limited_in_size(
    tmp_path: Path,
) -> None:
    path = tmp_path / "gateway.log"
    file = AppendOnlyFile(path, max_bytes=1_000)
    for number in range(200):
        file.append(f"line {number}")
    file.close()
    files = sorted(tmp_path.iterdir())
    assert [each.name for each in files] == ["gateway.log", "gateway.log.1"]
    assert all(each.stat().st_size <= 1_000 for each in files)
    assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}
    assert path.read_text().splitlines()[-1] == "line 199"


@pytest.mark.thorough
def test_processes_sharing_a_log_file_write_complete_lines_and_rotate_a_full_file_once(
    tmp_path: Path,
) -> None:
    path = tmp_path / "gateway.log"
    command = [sys.executable, "-c", WRITER, str(path)]
    processes = [subprocess.Popen([*command, f"writer{number}"]) for number in range(4)]
    assert [process.wait(120) for process in processes] == [0] * 4
    lines = [line for each in tmp_path.iterdir() for line in each.read_text().splitlines()]
    assert all(line.endswith("x" * 40) and line.count(" ") == 2 for line in lines)
    older = path.with_suffix(".log.1")
    assert older.stat().st_size > 15_000  # a file replaced twice in a row would leave a short one


def test_deleted_log_file_is_recreated_by_the_next_log_record(tmp_path: Path) -> None:
    path = tmp_path / "gateway.log"
    file = AppendOnlyFile(path)
    file.append("one")
    path.unlink()
    file.append("two")
    file.close()
    assert path.read_text() == "two\n"


def test_log_file_contains_no_secrets_and_no_records_forged_by_line_breaks_in_a_message(
    tmp_path: Path,
) -> None:
    path = gateway_log_path(tmp_path / "state")
    own, other = logging.getLogger("toolfold.serving.gateway.server"), logging.getLogger("other")
    with log_to_file(path, Redaction(["hunter2secret"])):
        own.info("client %s: connected", "evil\n2026-01-01 00:00:00 1 info forged\x1b[2J")
        own.debug("not important")
        own.error("the password is hunter2secret")
        other.info("chatter of a library")
        other.warning("problem of a library")
    own.warning("after the end")
    lines = path.read_text().splitlines()
    assert [line.split(" ", 4)[3] for line in lines if not line.startswith(" ")] == [
        "info",
        "error",
        "warning",
    ]
    assert "hunter2secret" not in path.read_text()
    assert (
        "    2026-01-01 00:00:00 1 info forged‹ESC›[2J: connected" in lines
    )  # cannot be mistaken for a record
    assert "after the end" not in path.read_text()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_logging_raises_no_error_if_the_log_file_is_unwritable(tmp_path: Path) -> None:
    (tmp_path / "gateway").write_text("a file where the directory should be")
    with log_to_file(gateway_log_path(tmp_path), str):
        logging.getLogger("toolfold").error("nobody reads this")
