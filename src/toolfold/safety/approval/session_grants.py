"""Approvals that are valid for the rest of a session, stored in memory only.

Knows keys and names of kinds, not commands. If there are too many sessions, the least recently used are
dropped; they need approval again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

MAX_SESSIONS = 1_000
MAX_GRANTS_PER_SESSION = 1_000

__all__ = ["SessionGrants"]


@dataclass(slots=True)
class _SessionGrant:
    keys: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)


class SessionGrants:
    """The approvals that people gave for the rest of each session. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, _SessionGrant] = OrderedDict()

    def allow(self, session_id: str, key: str) -> None:
        """Allow all tool calls with the approval key `key` for the rest of a session."""
        with self._lock:
            _add_limited(self._grant_for(session_id).keys, (key,))

    def allow_kind(self, session_id: str, kinds: Iterable[str]) -> None:
        """Allow calls that have findings of the given kinds, for the rest of a session."""
        with self._lock:
            _add_limited(self._grant_for(session_id).kinds, kinds)

    def covers(self, session_id: str, key: str) -> bool:
        with self._lock:
            grant = self._sessions.get(session_id)
            return grant is not None and bool(key) and key in grant.keys

    def covers_kind(self, session_id: str, kinds: Iterable[str]) -> bool:
        """Return True if all given kinds of findings are allowed in a session; False if none are given."""
        needed = set(kinds)
        with self._lock:
            grant = self._sessions.get(session_id)
            return grant is not None and bool(needed) and needed <= grant.kinds

    def forget(self, session_id: str) -> None:
        """Forget all approvals that were given in a session."""
        with self._lock:
            self._sessions.pop(session_id, None)

    def _grant_for(self, session_id: str) -> _SessionGrant:
        grant = self._sessions.setdefault(session_id, _SessionGrant())
        self._sessions.move_to_end(session_id)
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return grant


def _add_limited(stored: set[str], more: Iterable[str]) -> None:
    for each in more:
        if len(stored) < MAX_GRANTS_PER_SESSION:  # further approvals are not remembered
            stored.add(each)
