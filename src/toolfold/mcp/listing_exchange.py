"""Exchange the tool lists of MCP servers with other replicas, in a separate thread.

Lists that this replica has read from its servers are stored in the shared database, and lists that other
replicas have stored are handed to the servers here. Nothing waits for the database except the start of a
server whose list is not known. While the database cannot be reached, lists wait in memory, the newest one of
each server.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from toolfold.config.servers_settings import McpServerSettings
from toolfold.mcp.shared_listings import (
    ListingKey,
    SharedListings,
    compute_listing_checksum,
    compute_listing_key,
)
from toolfold.mcp.tool_listing import Listing
from toolfold.state.database import Database, DatabaseError, SharedCopy

log = logging.getLogger(__name__)

MIN_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
CLOSE_TIMEOUT_S = 3.0
READ_PAUSE_S = 10.0

Adopt = Callable[[str, McpServerSettings, Listing, float], None]
"""Uses a list of another replica: server name, its settings, the list, and its age in seconds."""


class ListingExchange:
    """Shares tool lists of MCP servers with other replicas through a database. Thread-safe."""

    def __init__(
        self,
        database: Database,
        find_servers: Callable[[], Mapping[str, McpServerSettings]],
        adopt: Adopt,
    ) -> None:
        """Prepare the exchange; `find_servers` returns the servers whose tool lists are needed."""
        self._listings = SharedListings(database)
        self._find_servers, self._adopt = find_servers, adopt
        self._lock = threading.Lock()
        self._own_checksums: dict[ListingKey, str] = {}
        """Checksum of the last list that this replica has read from a server itself."""
        self._applied_checksums: dict[ListingKey, str] = {}
        """Checksum of the last list in the database that was used here, or came from here."""
        self._cached_at: dict[ListingKey, float] = {}
        """When the lists in the cache of this machine were read; older lists of replicas are not used."""
        self._unsent: dict[ListingKey, tuple[str, McpServerSettings, Listing, float]] = {}
        """Lists to store, with the time when they were read."""
        self._copy: SharedCopy[dict[ListingKey, str]] | None = None
        self._wake, self._ended = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._next_read = 0.0

    def read(self, name: str, settings: McpServerSettings) -> tuple[Listing, float] | None:
        """Return a server's tool list in the database and its age in seconds; None if there is none.

        After a failure of the database, it is not asked again for a while: each request may take seconds.
        """
        if time.monotonic() < self._next_read:
            return None
        try:
            found = self._listings.read(name, settings)
        except DatabaseError as error:
            self._next_read = time.monotonic() + READ_PAUSE_S
            log.warning("the shared tool lists of MCP servers cannot be read now: %s", error)
            return None
        if found is not None:
            with self._lock:
                self._applied_checksums[compute_listing_key(name, settings)] = compute_listing_checksum(
                    found[0]
                )
        return found

    def note_cached(self, name: str, settings: McpServerSettings, listing: Listing, age_s: float) -> None:
        """Record that this machine uses a cached tool list that is `age_s` seconds old."""
        key, checksum = compute_listing_key(name, settings), compute_listing_checksum(listing)
        with self._lock:
            self._applied_checksums[key] = checksum
            self._cached_at[key] = time.monotonic() - age_s

    def offer(self, name: str, settings: McpServerSettings, listing: Listing) -> None:
        """Queue a tool list that was just read from a server, to be stored in the database.

        A list that this replica has read before is not stored again: where the same settings give other
        tools on another replica, the two would replace each other's list forever.
        """
        key, checksum = compute_listing_key(name, settings), compute_listing_checksum(listing)
        with self._lock:
            if self._own_checksums.get(key) == checksum:
                return
            self._own_checksums[key] = self._applied_checksums[key] = checksum
            self._unsent[key] = name, settings, listing, time.monotonic()
        self._start()

    def follow(self) -> None:
        """Start applying the tool lists that other replicas store in the database."""
        self._start()

    def close(self) -> None:
        """Try to store the queued tool lists within a short time, and stop the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._ended.set()
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_TIMEOUT_S)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._ended.is_set():
                self._thread = threading.Thread(
                    target=self._run_thread, name="toolfold-listings", daemon=True
                )
                self._thread.start()
        self._wake.set()

    def _run_thread(self) -> None:
        try:
            self._run()
        finally:
            if self._copy is not None:
                self._copy.close()

    def _run(self) -> None:
        backoff, is_failing = MIN_BACKOFF_S, False
        while True:
            if is_failing:
                self._ended.wait(backoff)
            else:
                self._wake.wait()
            self._wake.clear()
            try:
                self._store_unsent()
                if self._ended.is_set():
                    return
                self._adopt_changes()
            except Exception as error:
                if self._ended.is_set():
                    return
                is_expected = isinstance(error, DatabaseError)
                if not is_failing or not is_expected:
                    log.warning(
                        "tool lists of MCP servers cannot be exchanged with other replicas now: %s",
                        error,
                        exc_info=None if is_expected else error,
                    )
                backoff = min(2 * backoff, MAX_BACKOFF_S) if is_failing else MIN_BACKOFF_S
                is_failing = True
            else:
                backoff, is_failing = MIN_BACKOFF_S, False

    def _store_unsent(self) -> None:
        while True:
            with self._lock:
                key = next(iter(self._unsent), None)
                if key is None:
                    return
                unsent = self._unsent[key]
            name, settings, listing, read_at = unsent
            self._listings.write(name, settings, listing, age_s=time.monotonic() - read_at)
            with self._lock:
                if self._unsent.get(key) is unsent:  # no newer one came meanwhile
                    del self._unsent[key]

    def _adopt_changes(self) -> None:
        """Apply the tool lists that have changed in the database since they were last applied."""
        if self._copy is None:
            self._copy = self._listings.follow(self._wake.set)
        stored = self._copy.value
        for name, settings in self._find_servers().items():
            key = compute_listing_key(name, settings)
            checksum = stored.get(key, "")
            with self._lock:
                applied = self._applied_checksums.get(key)
                cached_at = self._cached_at.get(key, float("-inf"))
                is_known = not checksum or applied == checksum or key in self._unsent
            if is_known:
                continue
            found = self._listings.read(name, settings)
            if found is not None:
                if self._ended.is_set():
                    return
                if time.monotonic() - found[1] > cached_at:
                    self._adopt(name, settings, *found)
                checksum = compute_listing_checksum(found[0])  # it may have changed again meanwhile
            with self._lock:  # only now: a list that could not be adopted is tried again
                if self._applied_checksums.get(key) == applied:  # no own list came meanwhile
                    self._applied_checksums[key] = checksum
