"""Log the input of background processes, so that new input can be checked together with earlier input.

Held in memory, because commands can modify the files of a process on the target. Nothing is dropped
silently: if something is missing, the log says that it is incomplete, and why.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

__all__ = ["InputLog", "InputLogs"]

MAX_LOGGED_BYTES = 60_000
MAX_LOGGED_ENTRIES = 2_000
MAX_LOGS = 256

STARTED_ELSEWHERE = "the process was started by another runtime, so its earlier input is not known"
TOO_LONG = "the process has received more input than is logged"
PARTIAL_WRITE = "an earlier write may have reached the process only in part"
WRITTEN_ELSEWHERE = "another client has written to the process"


@dataclass(slots=True)
class InputLog:
    """Log of the text written to one background process, in order."""

    command: str
    directory: str = ""
    pty: bool = False
    entries: list[tuple[str, str]] = field(default_factory=list)
    """Texts written and signals sent to the process, in order, as (kind, text)."""
    size: int = 0
    """Number of bytes written to the process."""
    revision: int = 0
    """Number that increases with every change of the log."""
    incomplete_reason: str = ""
    """Why the log is incomplete; empty if it is complete."""

    def add_write(self, data: bytes) -> None:
        self.size += len(data)
        self._add("write", data.decode("utf-8", "replace"))

    def add_signal(self, name: str) -> None:
        self._add("signal", name)

    def mark_incomplete(self, why: str) -> None:
        """Record why the log does not contain all input; the logged input is kept for display."""
        self.incomplete_reason = self.incomplete_reason or why
        self.revision += 1

    def _add(self, kind: str, text: str) -> None:
        self.revision += 1
        if self.size > MAX_LOGGED_BYTES or len(self.entries) >= MAX_LOGGED_ENTRIES:
            self.incomplete_reason = self.incomplete_reason or TOO_LONG
            return
        self.entries.append((kind, text))


class InputLogs:
    """Input logs of the processes that this runtime started; beyond MAX_LOGS, the oldest are dropped."""

    def __init__(self) -> None:
        self._logs: OrderedDict[str, InputLog] = OrderedDict()

    def start(self, name: str, log: InputLog) -> None:
        self._logs[name] = log
        while len(self._logs) > MAX_LOGS:
            self._logs.popitem(last=False)

    def get(self, name: str, command: str) -> InputLog:
        """Return the input log of a process; marked incomplete if another runtime started the process."""
        if name not in self._logs:
            self.start(name, InputLog(command, incomplete_reason=STARTED_ELSEWHERE))
        return self._logs[name]
