"""Stored agent sessions: the session store interface and its records.

Keeps what an agent session needs to continue after a restart or a crash. Knows nothing of models: messages
are JSON in the dialect of their session.
"""

from toolfold.state.store.records import (
    CallRecord,
    MessageRecord,
    SearchMatch,
    SessionInUse,
    SessionRecord,
    SessionStore,
    UnknownSession,
)
from toolfold.state.store.sqlite import SqliteSessionStore

__all__ = [
    "CallRecord",
    "MessageRecord",
    "SearchMatch",
    "SessionInUse",
    "SessionRecord",
    "SessionStore",
    "SqliteSessionStore",
    "UnknownSession",
]
