"""What a background process has been given by this runtime, so that more can be judged together with it.

Kept in memory: the notes beside a process lie in reach of commands. Nothing is dropped silently: where
something is missing, the log says that it is not complete, and why.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

__all__ = ["InputLog", "InputLogs"]

MAX_LOGGED_BYTES = 60_000
MAX_LOGGED_ENTRIES = 2_000
MAX_LOGS = 256

STRANGER = "the process was started by another runtime, so that nobody knows what it was given"
TOO_MUCH = "the process has been given more than is remembered"
IN_PART = "an earlier write may have reached the process only in part"
OTHERS = "somebody else has written to the process"


@dataclass(slots=True)
class InputLog:
    """The input of one process."""

    command: str
    folder: str = ""
    pty: bool = False
    entries: list[tuple[str, str]] = field(default_factory=list)
    """Writes and signals in order, as (kind, text)."""
    size: int = 0
    """How many bytes have been written."""
    revision: int = 0
    """Counts all changes."""
    unknown: str = ""
    """Why this is not all; empty where it is."""

    def add_write(self, data: bytes) -> None:
        self.size += len(data)
        self._add("write", data.decode("utf-8", "replace"))

    def add_signal(self, name: str) -> None:
        self._add("signal", name)

    def mark_unknown(self, why: str) -> None:
        """Note that something is missing. What is known stays, for a person to see."""
        self.unknown = self.unknown or why
        self.revision += 1

    def _add(self, kind: str, text: str) -> None:
        self.revision += 1
        if self.size > MAX_LOGGED_BYTES or len(self.entries) >= MAX_LOGGED_ENTRIES:
            self.unknown = self.unknown or TOO_MUCH
            return
        self.entries.append((kind, text))


class InputLogs:
    """The logs of the processes that this runtime has started; of very many, the oldest are forgotten."""

    def __init__(self) -> None:
        self._logs: OrderedDict[str, InputLog] = OrderedDict()

    def start(self, name: str, log: InputLog) -> None:
        self._logs[name] = log
        while len(self._logs) > MAX_LOGS:
            self._logs.popitem(last=False)

    def of(self, name: str, command: str) -> InputLog:
        """The log of a process; one of a stranger is not complete."""
        if name not in self._logs:
            self.start(name, InputLog(command, unknown=STRANGER))
        return self._logs[name]
