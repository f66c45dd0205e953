"""What the commands of a session have left behind: the variables that its next command will find.

A place keeps exported variables between commands. Reading a command without them would take a known file for
an unknown one. What is noted is what was agreed to, whether or not it then worked.
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
    """Whether the command got so far is not known: a value that differs may be the old one still."""
    return new if old is None or old == new else unknown_word(frozenset({Taint.UNREAD}))


class SessionVariables:
    """The variables of all tasks of a runtime; from any thread. The longest unused are forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: OrderedDict[tuple[str, ...], Mapping[str, Word]] = OrderedDict()

    def get_variables(self, task: tuple[str, ...]) -> Mapping[str, Word]:
        with self._lock:
            return self._tasks.get(task, MappingProxyType({}))

    def update(self, task: tuple[str, ...], exported: Mapping[str, Word]) -> None:
        """Note what one more command leaves."""
        if not exported:
            return
        with self._lock:
            before = self._tasks.get(task, {})
            kept = {
                **before,
                **{name: _merge_value(before.get(name), value) for name, value in exported.items()},
            }
            self._tasks[task] = MappingProxyType(dict(list(kept.items())[-MAX_VARIABLES_PER_TASK:]))
            self._tasks.move_to_end(task)
            while len(self._tasks) > MAX_TASKS:
                self._tasks.popitem(last=False)
