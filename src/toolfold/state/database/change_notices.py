"""Receive notifications when any process changes data in the shared database.

One thread with a connection of its own. Notices are lost while it is not connected, so every subscriber is
called after each connection. A notice says only which kind of state has changed; subscribers read it again.
A subscriber that fails is called again until it succeeds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psycopg

    from toolfold.state.database.connections import Row

log = logging.getLogger(__name__)

CHANNEL = "toolfold_changes"
POLL_INTERVAL_S = 0.5
"""How long the thread waits for notices before it looks whether it shall end."""
CHECK_INTERVAL_S = 3.0
"""How often the connection is checked while no notices come."""
MIN_BACKOFF_S = 0.1
MAX_BACKOFF_S = 2.0
CLOSE_TIMEOUT_S = 10.0

Callback = Callable[[], None]


class ChangeListener:
    """Calls functions when any process has changed data in the shared database. Thread-safe."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Row]], address: str) -> None:
        self._connect, self._address = connect, address
        self._lock = threading.Lock()
        self._subscribers: dict[str, list[Callback]] = {}
        self._unread: dict[tuple[str, Callback], float] = {}
        """When subscribers that could not read a change of their topic failed first."""
        self._ended = threading.Event()
        self._last_contact = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="toolfold-changes", daemon=True)
        self._thread.start()

    def subscribe(self, topic: str, callback: Callback) -> Callback:
        """Call a function after each change of `topic`; return a function that ends the subscription."""
        with self._lock:
            self._subscribers.setdefault(topic, []).append(callback)

        def unsubscribe() -> None:
            with self._lock:
                if callback in self._subscribers.get(topic, ()):
                    self._subscribers[topic].remove(callback)
                self._unread.pop((topic, callback), None)

        return unsubscribe

    def seconds_since_contact(self, topic: str = "") -> float:
        """Return the seconds since the database last answered or sent a notification.

        With a topic: since when its state may be out of date, because a change of it could not be read.
        """
        with self._lock:
            failed = [since for (name, _), since in self._unread.items() if name == topic]
        return time.monotonic() - min([self._last_contact, *failed])

    def end(self) -> None:
        """Signal the notification thread to stop, without waiting for it."""
        self._ended.set()

    def close(self) -> None:
        """Stop the thread and close its connection."""
        self.end()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        backoff, was_lost = MIN_BACKOFF_S, False
        while not self._ended.is_set():
            try:
                with self._connect() as connection:
                    connection.execute(f"LISTEN {CHANNEL}")
                    self._last_contact = time.monotonic()
                    if was_lost:
                        log.info("the database %s can be reached again", self._address)
                    backoff, was_lost = MIN_BACKOFF_S, False
                    self._call_subscribers(None)
                    self._receive(connection)
            except Exception as error:
                if not was_lost:
                    log.warning(
                        "notices of changes in the database %s cannot be received now: %s",
                        self._address,
                        error,
                    )
                was_lost = True
                self._ended.wait(backoff)
                backoff = min(2 * backoff, MAX_BACKOFF_S)

    def _receive(self, connection: psycopg.Connection[Row]) -> None:
        """Receive notifications and call subscribers until closed. Raises the driver's disconnect error."""
        checked = time.monotonic()
        while not self._ended.is_set():
            topics = {notice.payload for notice in connection.notifies(timeout=POLL_INTERVAL_S, stop_after=1)}
            if topics:  # all that wait, so that a flood of notices causes few reads
                topics |= {notice.payload for notice in connection.notifies(timeout=0)}
            now = time.monotonic()
            if topics or now - checked > CHECK_INTERVAL_S:
                if not topics:
                    connection.execute("SELECT 1")
                checked = self._last_contact = now
            self._call_failed()
            for topic in topics:
                self._call_subscribers(topic)

    def _call_subscribers(self, topic: str | None) -> None:
        """Call the subscribers of a topic, or all subscribers if no topic is given."""
        with self._lock:
            found = [
                (name, callback)
                for name, callbacks in self._subscribers.items()
                if topic in (None, name)
                for callback in callbacks
            ]
        for name, callback in found:
            self._call(name, callback)

    def _call_failed(self) -> None:
        """Call again the subscribers that raised an exception when they were last called."""
        with self._lock:
            failed = list(self._unread)
        for topic, callback in failed:
            self._call(topic, callback)

    def _call(self, topic: str, callback: Callback) -> None:
        key = topic, callback
        try:
            callback()
        except Exception as error:
            if self._ended.is_set():  # the database was closed meanwhile
                return
            with self._lock:
                is_first = key not in self._unread
                if callback in self._subscribers.get(topic, ()):
                    self._unread.setdefault(key, time.monotonic())
            level = logging.WARNING if is_first else logging.DEBUG
            log.log(level, "a change in the database %s could not be read: %s", self._address, error)
        else:
            with self._lock:
                self._unread.pop(key, None)
