"""Logging of a background process's input: nothing is dropped silently."""

from __future__ import annotations

from toolfold.tools.environments.input_log import (
    MAX_LOGGED_BYTES,
    MAX_LOGGED_ENTRIES,
    MAX_LOGS,
    InputLog,
    InputLogs,
)


def test_input_log_lists_writes_and_signals_in_the_order_they_were_added() -> None:
    log = InputLog("bash")
    log.add_write(b"sleep 9\n")
    log.add_signal("INT")
    log.add_write("für\n".encode())
    assert log.entries == [("write", "sleep 9\n"), ("signal", "INT"), ("write", "für\n")]
    assert (log.size, log.revision, log.incomplete_reason) == (13, 3, "")


def test_input_log_with_more_bytes_than_the_limit_is_marked_incomplete() -> None:
    log = InputLog("bash")
    log.add_write(b"x" * MAX_LOGGED_BYTES)
    assert log.incomplete_reason == ""
    log.add_write(b"y")
    assert "more input than is logged" in log.incomplete_reason
    assert log.size == MAX_LOGGED_BYTES + 1


def test_input_log_with_more_writes_than_the_limit_is_marked_incomplete() -> None:
    log = InputLog("bash")
    for _ in range(MAX_LOGGED_ENTRIES + 1):
        log.add_write(b"\n")
    assert "more input than is logged" in log.incomplete_reason
    assert len(log.entries) == MAX_LOGGED_ENTRIES


def test_reason_of_an_input_log_marked_incomplete_twice_is_the_first_reason() -> None:
    log = InputLog("bash")
    log.mark_incomplete("first")
    log.mark_incomplete("second")
    assert (log.incomplete_reason, log.revision) == ("first", 2)


def test_input_log_dropped_above_the_maximum_number_of_logs_is_reported_as_incomplete() -> None:
    logs = InputLogs()
    for number in range(MAX_LOGS + 1):
        logs.start(f"p{number}", InputLog("bash"))
    assert logs.get("p1", "bash").incomplete_reason == ""
    assert "another runtime" in logs.get("p0", "bash").incomplete_reason
