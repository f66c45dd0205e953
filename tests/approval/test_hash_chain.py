"""The audit log detects changed, removed, added and moved entries, in files and in a database."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from toolfold.cli.app import app
from toolfold.safety.approval.audit_log import AuditLog, DecisionLog
from toolfold.safety.approval.hash_chain import FIRST_HASH, START, seal_entry, verify_chain
from toolfold.safety.approval.shared_audit import SharedAuditLog
from toolfold.state.database import open_database


def make_lines(count: int) -> list[str]:
    lines, last = [], START
    for number in range(count):
        line, last = seal_entry({"command": f"rm {number}", "allowed": True}, last)
        lines.append(line)
    return lines


def test_first_audit_entry_contains_a_fixed_hash_and_others_the_hash_of_the_previous_entry() -> None:
    first, second = (json.loads(line) for line in make_lines(2))
    assert (first["number"], first["previous"]) == (1, FIRST_HASH)
    assert (second["number"], second["previous"]) == (2, first["hash"])


def test_verification_of_an_unchanged_audit_log_reports_no_problems() -> None:
    report = verify_chain(make_lines(5))
    assert report.is_intact
    assert (report.entries, report.first) == (5, 1)
    assert report.head == json.loads(make_lines(5)[-1])["hash"]


def change(lines: list[str]) -> list[str]:
    return [*lines[:2], lines[2].replace("true", "false"), *lines[3:]]


def remove(lines: list[str]) -> list[str]:
    return lines[:2] + lines[3:]


def move(lines: list[str]) -> list[str]:
    return [*lines[:2], lines[3], lines[2], lines[4]]


def add_copy(lines: list[str]) -> list[str]:
    return [*lines[:3], lines[2], *lines[3:]]


def add_without_hash(lines: list[str]) -> list[str]:
    return [*lines[:3], '{"command":"rm x","allowed":true}', *lines[3:]]


def replace_with_new_hash(lines: list[str]) -> list[str]:
    forged, _ = seal_entry({"command": "ls", "allowed": True}, START._replace(number=2))
    return [*lines[:2], forged, *lines[3:]]


def replace_start_without_hash(lines: list[str]) -> list[str]:
    return ['{"command":"ls","allowed":true}', *lines[1:]]


@pytest.mark.parametrize(
    "forge",
    [
        *(change, remove, move, add_copy, add_without_hash),
        *(replace_with_new_hash, replace_start_without_hash),
    ],
)
def test_verification_reports_changed_removed_moved_and_added_audit_log_entries(
    forge: Callable[[list[str]], list[str]],
) -> None:
    report = verify_chain(forge(make_lines(5)))
    assert not report.is_intact
    assert all("entry" in problem or "entries" in problem for problem in report.problems)


def test_verification_with_a_previously_recorded_hash_detects_removal_of_the_last_audit_entries() -> None:
    lines = make_lines(5)
    head = verify_chain(lines).head
    assert verify_chain(lines[:3]).is_intact
    assert not verify_chain(lines[:3], known=head).is_intact
    assert verify_chain(lines, known=verify_chain(lines[:3]).head).is_intact


def test_verification_counts_unhashed_and_truncated_audit_lines_without_reporting_forgery() -> None:
    lines = make_lines(3)
    report = verify_chain(['{"command":"ls"}', *lines[:2], '{"command":"r', lines[2]])
    assert report.is_intact
    assert (report.older, report.incomplete, report.entries) == (1, 1, 3)


@pytest.fixture(params=["file", "postgres"])
def open_log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], DecisionLog]]:
    """Opens the same audit log as another process would."""
    with ExitStack() as stack:

        def open_here() -> DecisionLog:
            if request.param == "file":
                return AuditLog(tmp_path, max_file_bytes=3_000)
            database = open_database(request.getfixturevalue("database_url"))
            assert database is not None
            stack.callback(database.close)
            return SharedAuditLog(database)

        yield open_here


def test_audit_entries_of_several_writers_form_one_hash_chain(open_log: Callable[[], DecisionLog]) -> None:
    logs = [open_log(), open_log()]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: logs[number % 2].write({"command": f"rm {number}"}), range(30)))
    report = logs[0].verify()
    assert report.is_intact, report.problems
    numbers = [entry["number"] for entry in logs[1].read_entries()]
    assert numbers == list(range(numbers[0], 31))
    assert (report.entries, report.first) == (len(numbers), numbers[0])
    assert [entry["command"] for entry in logs[1].read_entries(1)] == [logs[0].read_entries()[-1]["command"]]


def test_verification_reports_changed_and_deleted_audit_log_entries_in_the_database(
    database_url: str,
) -> None:
    database = open_database(database_url)
    assert database is not None
    log = SharedAuditLog(database)
    for number in range(3):
        log.write({"command": f"rm {number}", "nul": "\0"})
    assert log.verify().is_intact
    database.execute("UPDATE audit SET line = replace(line, 'rm 1', 'ls 1') WHERE number = 2")
    assert "entry 2 was changed" in log.verify().problems[0]
    database.execute("DELETE FROM audit WHERE number = 2")
    assert "entry 3 follows entry 1" in log.verify().problems[0]
    database.close()


def test_audit_verify_command_reports_a_changed_audit_log_entry(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "state")
    for number in range(3):
        log.write({"command": f"rm {number}"})

    def verify(*words: str) -> Result:
        home = {"TOOLFOLD_HOME": str(tmp_path)}
        return CliRunner().invoke(app, ["audit", "verify", *words], env=home, standalone_mode=False)

    intact = verify("--json")
    assert (intact.return_value, json.loads(intact.stdout)["intact"]) == (0, True)
    log.file.write_text(log.file.read_text().replace("rm 1", "ls 1"))
    changed = verify("--known", json.loads(intact.stdout)["head"])
    assert changed.return_value == 1
    assert "entry 2 was changed" in changed.stdout
