"""The audit log: complete lines, private, bounded, without secrets, safe for concurrent processes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shellverdict.verdict import Severity, Verdict
from tests.approval.cases import SHELL, finding, verdict_on
from tests.redaction_corpus import SPELLINGS
from toolfold.core.errors import Refused
from toolfold.core.loops import EventLoops
from toolfold.core.types import Answer, CallContext
from toolfold.safety.approval.audit_log import MAX_ROTATED_FILES, AuditLog
from toolfold.safety.approval.call_analysis import CallAnalyzer
from toolfold.safety.approval.chain import DecisionChain
from toolfold.safety.approval.deny_rules import DenyRules
from toolfold.safety.approval.gate import Approval
from toolfold.safety.redaction import Redaction

SECRET = "Kq7wZx3vT9nB2mLs8Yp4"


def test_audit_log_entry_is_one_line_with_a_timestamp(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, clock=lambda: 0.25)
    log.write({"command": "rm a\nrm b", "rules": ("x", "y"), "allowed": True, "answer": None})
    (line,) = log.file.read_text().splitlines()
    entry = json.loads(line)
    assert len(entry.pop("hash")) == len(entry.pop("previous")) == 64
    assert entry == {
        "time": "1970-01-01T00:00:00.250Z",
        "command": "rm a\nrm b",
        "rules": ["x", "y"],
        "allowed": True,
        "answer": None,
        "number": 1,
    }


def test_audit_log_is_readable_by_the_user_only(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "state")
    log.write({"a": 1})
    assert log.file.stat().st_mode & 0o777 == 0o600


def test_new_audit_log_entries_are_appended_after_existing_entries(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    log.write({"n": 1})
    before = log.file.read_bytes()
    AuditLog(tmp_path).write({"n": 2})
    assert log.file.read_bytes().startswith(before)
    assert [entry["n"] for entry in log.read_entries()] == [1, 2]
    assert [entry["n"] for entry in log.read_entries(1)] == [2]


def test_secrets_are_redacted_in_the_audit_log(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, Redaction([SECRET]))
    log.write({"command": f"curl -H 'X: {SECRET}' x", "rules": [SECRET]})
    assert SECRET not in log.file.read_text()


def test_writing_an_audit_log_that_is_a_symbolic_link_fails_and_leaves_its_target_unchanged(
    tmp_path: Path,
) -> None:
    target = tmp_path / "elsewhere"
    target.write_text("untouched")
    log = AuditLog(tmp_path / "state")
    log.file.parent.mkdir()
    log.file.symlink_to(target)
    with pytest.raises(OSError, match=r"symbolic|ELOOP|Too many"):
        log.write({"a": 1})
    assert target.read_text() == "untouched"


def test_large_audit_log_is_rotated_and_old_files_are_deleted(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, max_file_bytes=2_000)
    for number in range(400):
        log.write({"n": number, "text": "x" * 50})
    files = sorted(path.name for path in tmp_path.iterdir())
    assert len(files) <= MAX_ROTATED_FILES + 1
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2_200 * (MAX_ROTATED_FILES + 1)
    numbers = [entry["n"] for entry in log.read_entries()]
    assert numbers == list(range(numbers[0], 400))


def test_reading_the_audit_log_skips_an_incomplete_line(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    log.write({"n": 1})
    with log.file.open("ab") as file:
        file.write(b'{"n": 2, "comm')
    log.write({"n": 3})
    assert [entry["n"] for entry in log.read_entries()] == [1, 3]


def test_oversized_audit_log_entry_is_truncated_and_marked_as_truncated(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    log.write({"command": "ls", "rules": ["x" * 1_000] * 100})
    (entry,) = log.read_entries()
    assert (entry["command"], entry["cut"]) == ("ls", True)


def test_command_with_surrogates_and_control_characters_is_read_back_from_the_audit_log(
    tmp_path: Path,
) -> None:
    log = AuditLog(tmp_path)
    log.write({"command": "echo \ud800\0\x1b"})
    assert len(log.read_entries()) == 1


WRITER_SCRIPT = """
import sys
from pathlib import Path
from toolfold.safety.approval.audit_log import AuditLog
log = AuditLog(Path(sys.argv[1]), max_file_bytes=60_000)
for number in range(200):
    log.write({"who": sys.argv[2], "n": number, "text": "x" * 40})
"""


def test_concurrent_processes_do_not_mix_or_lose_audit_log_lines(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER_SCRIPT, str(tmp_path), str(n)]) for n in range(3)
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    entries = AuditLog(tmp_path).read_entries()
    for who in "012":
        assert sorted(entry["n"] for entry in entries if entry["who"] == who) == list(range(200))


def test_verifying_the_audit_log_while_it_is_written_and_rotated_reports_no_problems(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, max_file_bytes=600)
    ended = threading.Event()

    def write_entries() -> None:
        number = 0
        while not ended.is_set():
            log.write({"n": number, "text": "x" * (number % 300)})
            number += 1

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write_entries)
        try:
            reports = [AuditLog(tmp_path).verify() for _ in range(200)]
        finally:
            ended.set()
        writing.result()
    assert [report.problems for report in reports if not report.is_intact] == []
    assert sum(report.incomplete for report in reports) == 0
    assert reports[-1].first > 1  # files were rotated and deleted during the checks


def test_verifying_a_missing_audit_log_creates_no_files(tmp_path: Path) -> None:
    report = AuditLog(tmp_path / "state").verify()
    assert (report.is_intact, report.entries) == (True, 0)
    assert list(tmp_path.iterdir()) == []


class TestRecordedDecisions:
    async def record_decision(
        self, tmp_path: Path, verdict: Verdict, approver: Any = None, **options: Any
    ) -> dict[str, Any]:
        loops, log = EventLoops(), AuditLog(tmp_path)
        analyzer = CallAnalyzer(lambda command, *, cwd=None, variables=None, earlier_files=None: verdict)
        gate = Approval(approver, loops, analyzer=analyzer, audit=log, timeout=60, **options)
        context = CallContext(session_id="session-1", call_id="call-1")
        try:
            await gate.require(SHELL, {"command": verdict.command}, context)
        except Refused:
            pass
        finally:
            loops.close()
        found = log.read_entries()
        return found[0] if found else {}

    async def test_approval_by_a_person_is_recorded_in_the_audit_log(self, tmp_path: Path) -> None:
        entry = await self.record_decision(tmp_path, verdict_on("rm a", finding()), lambda _: Answer.SESSION)
        for key in ("time", "number", "previous", "hash"):
            del entry[key]
        assert entry == {
            "session": "session-1",
            "call": "call-1",
            "tool": "terminal",
            "command": "rm a",
            "rules": ["delete-folder"],
            "category": "fs-delete",
            "severity": "low",
            "reason": "reason of delete-folder",
            "allowed": True,
            "by": "person",
            "answer": "session",
            "why": "the request was approved",
        }

    async def test_audit_log_states_whether_a_person_a_rule_or_a_missing_approver_caused_a_refusal(
        self, tmp_path: Path
    ) -> None:
        flagged = verdict_on("rm a", finding())
        blocked = verdict_on("rm a", finding(severity=Severity.CRITICAL, blocked=True))
        denied = DecisionChain(deny_rules=DenyRules(["tool:terminal"]))
        for number, (by, found) in enumerate(
            {
                "nobody to ask": await self.record_decision(tmp_path / "0", flagged),
                "person": await self.record_decision(tmp_path / "1", flagged, lambda _: False),
                "hard floor": await self.record_decision(tmp_path / "2", blocked, lambda _: True),
                "deny rule": await self.record_decision(
                    tmp_path / "3", flagged, lambda _: True, chain=denied
                ),
                "failed question": await self.record_decision(tmp_path / "4", flagged, lambda _: 1 / 0),
            }.items()
        ):
            assert (found["allowed"], found["by"]) == (False, by), number

    async def test_call_allowed_by_approval_mode_off_is_recorded_in_the_audit_log(
        self, tmp_path: Path
    ) -> None:
        entry = await self.record_decision(
            tmp_path, verdict_on("rm a", finding()), chain=DecisionChain(mode="off")
        )
        assert (entry["allowed"], entry["by"]) == (True, "mode off")

    async def test_harmless_calls_are_not_recorded_in_the_audit_log(self, tmp_path: Path) -> None:
        assert await self.record_decision(tmp_path, verdict_on("ls")) == {}

    async def test_call_is_refused_if_its_approval_cannot_be_written_to_the_audit_log(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        loops = EventLoops()
        (tmp_path / "state").write_text("a file in place of the directory")
        analyzer = CallAnalyzer(
            lambda command, *, cwd=None, variables=None, earlier_files=None: verdict_on(command, finding())
        )
        gate = Approval(lambda _: True, loops, analyzer=analyzer, audit=AuditLog(tmp_path / "state"))
        with pytest.raises(Refused, match="could not be recorded"):
            await gate.require(SHELL, {"command": "rm a"}, CallContext(session_id="s"))
        loops.close()


def test_password_in_any_tested_form_of_a_command_line_is_redacted_in_the_audit_log(tmp_path: Path) -> None:
    leaked = []
    for number, spelling in enumerate(SPELLINGS):
        log = AuditLog(tmp_path / str(number))
        command = spelling.replace("{s}", "Hunter2xyz")
        log.write({"command": command, "reason": "it says Hunter2xyz", "rules": ["a"]})
        if "Hunter2xyz" in log.file.read_text():
            leaked.append(spelling)
    assert leaked == []
