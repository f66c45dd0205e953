"""What is remembered of the input of a background process, and that nothing is dropped silently."""

from __future__ import annotations

from toolfold.environments.input_log import (
    MAX_LOGGED_BYTES,
    MAX_LOGGED_ENTRIES,
    MAX_LOGS,
    InputLog,
    InputLogs,
)


def test_writes_and_signals_are_kept_in_order() -> None:
    log = InputLog("bash")
    log.add_write(b"sleep 9\n")
    log.add_signal("INT")
    log.add_write("für\n".encode())
    assert log.entries == [("write", "sleep 9\n"), ("signal", "INT"), ("write", "für\n")]
    assert (log.size, log.revision, log.unknown) == (13, 3, "")


def test_too_many_bytes_make_the_log_incomplete() -> None:
    log = InputLog("bash")
    log.add_write(b"x" * MAX_LOGGED_BYTES)
    assert log.unknown == ""
    log.add_write(b"y")
    assert "more than is remembered" in log.unknown
    assert log.size == MAX_LOGGED_BYTES + 1


def test_too_many_writes_make_the_log_incomplete() -> None:
    log = InputLog("bash")
    for _ in range(MAX_LOGGED_ENTRIES + 1):
        log.add_write(b"\n")
    assert "more than is remembered" in log.unknown
    assert len(log.entries) == MAX_LOGGED_ENTRIES


def test_the_first_reason_for_an_incomplete_log_stays() -> None:
    log = InputLog("bash")
    log.mark_unknown("first")
    log.mark_unknown("second")
    assert (log.unknown, log.revision) == ("first", 2)


def test_a_process_that_was_forgotten_is_a_strangers() -> None:
    logs = InputLogs()
    for number in range(MAX_LOGS + 1):
        logs.start(f"p{number}", InputLog("bash"))
    assert logs.of("p1", "bash").unknown == ""
    assert "another runtime" in logs.of("p0", "bash").unknown
