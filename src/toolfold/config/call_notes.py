"""Read the notes of running tool calls, and find settings that changed since a note was written.

A runtime notes each call that may write or execute in a small file, with the fingerprints of the settings
files. The note stays while processes of the call run, and if the runtime is killed. Whoever reads settings
compares them with the notes of every runtime, living or not: a change that is neither in Toolfold's own
record nor accepted by the user is stored as pending, and the settings before it stay in force.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolfold.config.fingerprints import ABSENT, fingerprint_path
from toolfold.config.record import ADVICE, PendingChange, SettingsRecord
from toolfold.core.tool_processes import find_tool_call, has_tool_processes

log = logging.getLogger(__name__)

__all__ = ["find_unaccepted", "make_pending_change", "note_directory", "note_prefix", "record_changes"]

MAX_NOTES = 256
MAX_NOTE_BYTES = 16 << 20


def note_directory(record: SettingsRecord) -> Path:
    """Return the directory with the notes of tool calls."""
    return record.directory / "calls"


def note_prefix(pid: int) -> str:
    """Return how the names of a process's notes begin: its id and start time."""
    return f"{pid}-{_start_time(pid) or ''}-"


def find_unaccepted(record: SettingsRecord, path: Path, fingerprint: str) -> PendingChange | None:
    """Return the change that a settings file with this fingerprint contains, if the user must accept it.

    `fingerprint` is that of the content which was read: the file may have another content by now.
    """
    record_changes(record, {str(path): fingerprint})
    pending = record.find_pending(path)
    if pending is None or pending.accepted != fingerprint:
        return pending
    if not find_tool_call():
        record.drop_restored(path)
    return None


def record_changes(record: SettingsRecord, known: Mapping[str, str] | None = None) -> None:
    """Store as pending each settings file that changed while a tool call or its processes ran.

    `known` has the fingerprints of files that have been read already. Raises ConfigError.
    """
    if find_tool_call():  # it may not see the runtime's process, and would take it for killed
        return
    try:
        files = sorted(note_directory(record).iterdir())[:MAX_NOTES]
    except OSError:
        return
    for file in files:
        is_over = not _may_have_processes(file)  # before comparing: its last change must be seen
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            _compare_note(_read_note(file), record, known or {})
        if is_over:
            file.unlink(missing_ok=True)


def _compare_note(note: dict[str, Any], record: SettingsRecord, known: Mapping[str, str]) -> None:
    for name, (before, step, binding) in note["known"].items():
        path = Path(name)
        now = known.get(name) or fingerprint_path(path)
        if record.is_own_change(path, before, now, since=step):
            continue
        accepted = record.find_accepted(path, before, since=step)
        during = f"while {note['call']}, or a process that it left behind, was running"
        content = record.find_content(accepted)
        change = make_pending_change(path, accepted, content, during=during, binding=bool(binding))
        if record.add_pending(change):
            log.error("%s; %s", change, ADVICE)


def make_pending_change(
    path: Path, accepted: str, content: str | None, *, during: str, binding: bool
) -> PendingChange:
    """Describe a change of a settings file, whose last accepted fingerprint and content are given."""
    return PendingChange(
        path=str(path),
        during=during,
        time=time.time(),
        accepted=accepted,
        before=content,
        restorable=content is not None or accepted == ABSENT,
        binding=binding,
    )


def _read_note(file: Path) -> dict[str, Any]:
    note: dict[str, Any] = json.loads(file.read_bytes()[:MAX_NOTE_BYTES])
    return note


def _may_have_processes(file: Path) -> bool:
    """Return True if the runtime that wrote a note is open, or processes of its commands are running."""
    pid, began = [*file.name.split("-"), "", ""][:2]
    if pid.isdecimal() and _is_running(int(pid), began):
        return True
    try:
        client = _read_note(file)["client"]
        return bool(client) and has_tool_processes(client)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _is_running(pid: int, began: str) -> bool:
    """Return True if a process still runs; without /proc, also if a new process has the same id."""
    start = _start_time(pid)
    if start is not None:
        return start == began
    if os.name != "posix":  # on Windows, signal 0 is Ctrl-C
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def _start_time(pid: int) -> str | None:
    """Return the start time of a process from the kernel; None if it is unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19]
    except (OSError, IndexError):
        return None
