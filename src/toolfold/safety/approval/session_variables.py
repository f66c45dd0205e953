"""Track environment variables exported by earlier commands of a session, which its next command inherits.

An environment keeps exported variables between commands. Judging a command without them would take a known
path for an unknown one. Variables are recorded when a command is approved, whether or not it succeeds.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType

from shellverdict.shell.words import Taint, Word, unknown_word

__all__ = ["SessionVariables"]

MAX_TASKS = 1_000
MAX_VARIABLES_PER_TASK = 1_000


def _merge_value(old: Word | None, new: Word) -> Word:
    """Return the value of an exported variable after a command has assigned `new` to it.

    A changed value counts as unknown, because the command may have failed.
    """
    return new if old is None or old == new else unknown_word(frozenset({Taint.UNREAD}))


class SessionVariables:
    """Environment variables exported in each shell session, limited in number. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: OrderedDict[tuple[str, ...], Mapping[str, Word]] = OrderedDict()

    def get_variables(self, task: tuple[str, ...]) -> Mapping[str, Word]:
        with self._lock:
            return self._tasks.get(task, MappingProxyType({}))

    def update(self, task: tuple[str, ...], exported: Mapping[str, Word]) -> None:
        """Record the environment variables that a command exports in the shell session `task`."""
        if not exported:
            return
        with self._lock:
            before = self._tasks.get(task, {})
            merged = {
                **before,
                **{name: _merge_value(before.get(name), value) for name, value in exported.items()},
            }
            self._tasks[task] = MappingProxyType(dict(list(merged.items())[-MAX_VARIABLES_PER_TASK:]))
            self._tasks.move_to_end(task)
            while len(self._tasks) > MAX_TASKS:
                self._tasks.popitem(last=False)
