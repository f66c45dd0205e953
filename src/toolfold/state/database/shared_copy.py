"""In-memory copy of data that several processes share in a database."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from toolfold.state.database.connections import Database, DatabaseUnavailable

Value = TypeVar("Value")

MAX_STALE_S = 30.0
"""How long a copy may be used after the last contact to the database: a right may have been withdrawn."""


class SharedCopy(Generic[Value]):
    """In-memory copy of data in the shared database, read again after each change. Thread-safe."""

    value: Value
    """The state when it was last read."""

    def __init__(
        self,
        database: Database,
        topic: str,
        read: Callable[[], Value],
        what: str,
        *,
        on_reload: Callable[[], None] | None = None,
    ) -> None:
        """Read the data now, and again after each notification about `topic`. Raises DatabaseError.

        `what` names the state in errors, in the plural. `on_reload` is called in a separate thread after the
        data was read because of a notification.
        """
        self.max_stale_s = MAX_STALE_S
        self.version = 0
        """Number that increases whenever another state is read."""
        self._database, self._topic, self._read, self._what = database, topic, read, what
        self._lock = threading.Lock()
        self._on_reload = on_reload
        # Before reading, so that no change in between is missed.
        self._end_subscription = database.on_change(topic, self._handle_change)
        try:
            self.reload()
        except BaseException:
            self._end_subscription()
            raise

    def close(self) -> None:
        """Stop reading changes; the copy keeps its last state."""
        self._end_subscription()

    def require_recent(self) -> Value:
        """Return the copied data. Raises DatabaseUnavailable if the database did not respond recently."""
        if self._database.seconds_since_contact(self._topic) > self.max_stale_s:
            raise DatabaseUnavailable(
                f"the database {self._database.address} cannot be reached, so {self._what} cannot be checked"
            )
        return self.value

    def reload(self) -> None:
        """Read the data from the database again."""
        with self._lock:  # an older state must not replace a newer one
            value = self._read()
            if self.version == 0 or value != self.value:
                self.value = value
                self.version += 1

    def _handle_change(self) -> None:
        self.reload()
        if self._on_reload is not None:
            self._on_reload()
