"""Refreshed logins that could not be stored, because the database did not answer.

They are the only copies of valid refresh tokens: the issuer may accept the stored ones no longer. A thread
stores them as soon as that is possible; what is left is tried once more at the end of the process.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from toolfold.core.errors import ConfigError
from toolfold.state.database import DatabaseError

if TYPE_CHECKING:
    from toolfold.mcp.oauth.login_store import Login

log = logging.getLogger(__name__)

RETRY_INTERVAL_S = 1.0
MAX_RETRY_INTERVAL_S = 15.0
CLOSE_TIMEOUT_S = 10.0

Key = tuple[str, str]
"""User id and server of a login."""
Write = Callable[["Login"], None]
"""Stores a refreshed login. Raises DatabaseError and ConfigError."""


class UnsavedLogins:
    """Refreshed logins of all users that could not be stored yet. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._logins: dict[Key, tuple[Login, Write]] = {}
        self._writing: Key | None = None
        self._writer = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def add(self, user_id: str, login: Login, write: Write) -> None:
        """Keep a login in memory; a background thread calls `write` until the login is stored."""
        with self._changed:
            self._logins[user_id, login.server] = login, write
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="toolfold-unsaved-logins", daemon=True)
                self._thread.start()

    def find(self, user_id: str, server: str) -> Login | None:
        """Return a user's unsaved login at a server; None if there is none."""
        with self._changed:
            found = self._logins.get((user_id, server))
        return found[0] if found else None

    def drop(self, user_id: str, server: str) -> None:
        """Forget an unsaved login that a newer one replaces; wait until no write of it is in progress."""
        key = user_id, server
        with self._changed:
            self._logins.pop(key, None)
            self._changed.wait_for(lambda: self._writing != key)

    def close(self) -> None:
        """Stop the background thread, and try once more to store the remaining logins."""
        self._closed.set()
        with self._changed:
            thread = self._thread
        if thread is not None:
            thread.join(CLOSE_TIMEOUT_S)
        if not self._save_all():
            with self._changed:
                servers = sorted({server for _, server in self._logins})
            log.error(
                "refreshed logins for the MCP servers %s could not be stored; their users may have to log in"
                " again",
                ", ".join(map(repr, servers)),
            )

    def _run(self) -> None:
        interval = RETRY_INTERVAL_S
        while not self._closed.wait(interval):
            is_done = self._save_all()
            interval = min(2 * interval, MAX_RETRY_INTERVAL_S)
            with self._changed:
                if is_done and not self._logins:
                    self._thread = None
                    return

    def _save_all(self) -> bool:
        """Try to store all logins; return False if one could not be stored."""
        with self._changed:
            keys = list(self._logins)
        is_done = True
        for key in keys:
            try:
                self._save(key)
            except DatabaseError:
                return False  # the others would fail too, each after a timeout
            except ConfigError as error:
                log.debug("the refreshed login for MCP server %r cannot be stored: %s", key[1], error)
                is_done = False
        return is_done

    def _save(self, key: Key) -> None:
        with self._writer:  # at the end, the thread may still wait for the database
            with self._changed:
                if key not in self._logins:
                    return
                login, write = self._logins[key]
                self._writing = key
            try:
                write(login)
            finally:
                with self._changed:
                    self._writing = None
                    self._changed.notify_all()
            with self._changed, contextlib.suppress(KeyError):
                if self._logins[key][0] is login:
                    del self._logins[key]
        log.info("the refreshed login for MCP server %r is stored now", key[1])
