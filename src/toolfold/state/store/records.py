"""Records of a session store, and the interface implemented by every store backend."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from toolfold.core.errors import ToolfoldError
from toolfold.core.types import Json

CLAIM_LIFETIME_S = 60.0
"""Time after which another process may take over a session whose claim was not renewed."""
MAX_QUERY_WORDS = 16

MessageState = Literal["active", "compressed", "undone", "unsent"]
"""Only active messages are part of the prompt. Unsent ones never were; they are stored for people to read."""


class UnknownSession(ToolfoldError):
    """No stored session has this id."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"there is no stored session {session_id!r}")


class SessionInUse(ToolfoldError):
    """Another process has claimed the stored session."""

    def __init__(self, session_id: str, owner: str) -> None:
        super().__init__(
            f"session {session_id!r} is open in another process ({owner})."
            " Close it there, or start a new session."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """One stored session, without its messages."""

    id: str
    model: str
    dialect: str
    system: str = ""
    """The system prompt, fixed when the session starts so that the prompt prefix never changes."""
    title: str = ""
    parent: str = ""
    """Id of the session that delegated its task to this one; empty for a user's session."""
    toolsets: tuple[str, ...] | None = None
    disabled_toolsets: tuple[str, ...] = ()
    state: Json = field(default_factory=dict)
    """What is needed to continue the session besides its messages: tools sent so far, and the plan."""
    created: float = field(default_factory=time.time)
    updated: float = field(default_factory=time.time)
    turns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRecord:
    """One message of a stored session, in the provider's format."""

    body: Json
    role: str
    text: str = ""
    """Readable text of the message, for search and for display."""
    turn: int = 0
    number: float = 0
    """Position of the message in the session, set by the store."""
    state: MessageState = "active"
    created: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """A started tool call, and whether it has finished."""

    call_id: str
    tool: str
    is_finished: bool
    result: Json | None = None
    """Result of a finished call, stored until the message with the results of all calls is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchMatch:
    """A message of a stored session found by full-text search."""

    session_id: str
    title: str
    role: str
    snippet: str
    created: float
    number: float


class SessionStore(Protocol):
    """Interface of a session store. Every method is one durable transaction.

    A store with the attribute `is_remote = True` is used in a thread, because it may take long to answer.
    """

    def create_session(self, record: SessionRecord) -> None: ...

    def load_session(self, session_id: str) -> SessionRecord:
        """Return a stored session. Raises UnknownSession."""

    def list_sessions(self, *, limit: int = 50) -> list[SessionRecord]:
        """Return the most recently used sessions, newest first, without sub-agent sessions."""

    def delete_session(self, session_id: str) -> None: ...

    def load_messages(self, session_id: str, *, active_only: bool = True) -> list[MessageRecord]: ...

    def append_messages(
        self,
        session_id: str,
        messages: Sequence[MessageRecord],
        *,
        state: Json | None = None,
        finished_calls: Iterable[str] = (),
    ) -> list[float]:
        """In one transaction, append messages, mark calls as finished, store the state and delete the draft.

        Returns the positions of the messages.
        """

    def replace_messages(
        self,
        session_id: str,
        numbers: Sequence[float],
        state: MessageState,
        *,
        summary: MessageRecord | None = None,
    ) -> None:
        """Exclude messages from later prompts; `summary`, if given, replaces the first excluded message."""

    def save_state(self, session_id: str, state: Json, *, title: str | None = None) -> None: ...

    def change_model(
        self, session_id: str, model: str, dialect: str, messages: Sequence[MessageRecord] | None
    ) -> None:
        """Change the model of a session; `messages`, if given, replace its prompt messages."""

    def save_draft(self, session_id: str, text: str) -> None:
        """Store the partial text of an answer that is still streaming."""

    def load_draft(self, session_id: str) -> str: ...

    def start_calls(self, session_id: str, calls: Mapping[str, str]) -> None:
        """Record that tools are about to run; `calls` maps call ids to tool names."""

    def finish_call(self, session_id: str, call_id: str, result: Json) -> None:
        """Store the result of one tool call until the results of all calls are stored as a message."""

    def load_calls(self, session_id: str) -> list[CallRecord]: ...

    def search_messages(self, query: str, *, limit: int = 5, without_session: str = "") -> list[SearchMatch]:
        """Return the messages of all sessions that match a full-text query, best first."""

    def claim_session(self, session_id: str, owner: str) -> None:
        """Claim a session for the process `owner`, written as HOST:PID:TOKEN. Raises SessionInUse.

        A claim ends with its process, or when it is not renewed.
        """

    def release_session(self, session_id: str, owner: str) -> None: ...

    def close(self) -> None: ...


def has_owner_ended(owner: str) -> bool:
    """Return True if the owner of a session, HOST:PID:…, is a process of this machine that has ended."""
    host, _, rest = owner.partition(":")
    process = rest.partition(":")[0]
    if host != socket.gethostname() or not process.isdecimal():
        return False
    if os.name != "posix":  # on Windows, signal 0 is Ctrl-C; a claim there ends when it is not renewed
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
