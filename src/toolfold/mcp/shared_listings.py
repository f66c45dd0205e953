"""Tool lists of MCP servers in the database that replicas share.

One row for each server and start configuration, found by a hash of its settings without secrets. A list is
what the installation itself was shown: lists that a server shows to one user are never stored. What is read
is validated and checked by the trust policy like a list from the server. A damaged or oversized row counts as
missing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable

from toolfold.config.servers_settings import McpServerSettings
from toolfold.mcp.importing.secret_settings import redact_settings
from toolfold.mcp.listing_cache import (
    LISTING_ERRORS,
    START_SETTINGS,
    parse_listing,
    serialize_listing,
)
from toolfold.mcp.tool_listing import Listing
from toolfold.state.database import Database, RowCursor, SharedCopy

log = logging.getLogger(__name__)

MAX_LISTING_BYTES = 20_000_000
MAX_LISTINGS = 10_000
MAX_LISTINGS_PER_SERVER = 20
"""Start configurations of one server whose lists are stored; the oldest ones are deleted."""
UNUSED_DAYS = 30
"""Days after which a list that no replica has read is deleted."""
TOPIC = "tool_listings"

ListingKey = tuple[str, str]
"""Name of a server and hash of its settings."""


class SharedListings:
    """Tool lists of MCP servers in a shared database. Thread-safe; methods raise DatabaseError."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._reported: set[tuple[ListingKey, str]] = set()
        """Unusable rows that were logged."""

    def read(self, name: str, settings: McpServerSettings) -> tuple[Listing, float] | None:
        """Return a server's stored tool list and its age in seconds, or None."""
        key = compute_listing_key(name, settings)

        def select(cursor: RowCursor) -> dict[str, object] | None:
            cursor.execute(
                "UPDATE tool_listings SET used = CURRENT_DATE"
                " WHERE server = %s AND settings = %s AND used < CURRENT_DATE",
                key,
            )
            return cursor.execute(
                "SELECT checksum, extract(epoch FROM clock_timestamp() - listed)::float8 AS age,"
                " CASE WHEN octet_length(content) <= %s THEN content END AS content"
                " FROM tool_listings WHERE server = %s AND settings = %s",
                (MAX_LISTING_BYTES, *key),
            ).fetchone()

        row = self._database.run(select)
        if row is None:
            return None
        checksum, content = str(row["checksum"]), row["content"]
        try:
            return _parse_row(checksum, content), max(0.0, float(str(row["age"])))
        except LISTING_ERRORS as error:
            self._report_once(key, checksum, error)
            return None

    def write(self, name: str, settings: McpServerSettings, listing: Listing, *, age_s: float = 0.0) -> None:
        """Store a tool list read from its server `age_s` seconds ago, unless a newer list is stored."""
        key, content = compute_listing_key(name, settings), serialize_listing(listing)
        checksum = _hash_text(content)
        if len(content) > MAX_LISTING_BYTES:
            self._report_once(key, checksum, _too_large_error())
            return

        def store(cursor: RowCursor) -> None:
            cursor.execute(  # the same list again; a damaged one is replaced below
                "UPDATE tool_listings SET used = CURRENT_DATE,"
                " listed = greatest(least(listed, clock_timestamp()),"
                " clock_timestamp() - make_interval(secs => %s))"
                " WHERE server = %s AND settings = %s AND checksum = %s"
                " AND encode(sha256(convert_to(content, 'UTF8')), 'hex') = checksum",
                (age_s, *key, checksum),
            )
            if cursor.rowcount:
                return
            cursor.execute(
                "INSERT INTO tool_listings (server, settings, checksum, content, listed)"
                " VALUES (%s, %s, %s, %s, clock_timestamp() - make_interval(secs => %s))"
                " ON CONFLICT (server, settings) DO UPDATE SET checksum = excluded.checksum,"
                " content = excluded.content, listed = excluded.listed, used = excluded.used"
                # A time in the future is that of a wrong clock, and would block newer lists.
                " WHERE tool_listings.listed < excluded.listed OR tool_listings.listed > clock_timestamp()",
                (*key, checksum, content, age_s),
            )
            _delete_surplus(cursor, name)

        self._database.run(store)

    def follow(self, callback: Callable[[], None]) -> SharedCopy[dict[ListingKey, str]]:
        """Return a copy of all tool lists' checksums that updates itself; call `callback` after each update.

        The caller must close it.
        """
        return SharedCopy(
            self._database, TOPIC, self._read_checksums, "tool lists of MCP servers", on_reload=callback
        )

    def _read_checksums(self) -> dict[ListingKey, str]:
        rows = self._database.query(
            "SELECT server, settings, checksum FROM tool_listings ORDER BY used DESC, listed DESC LIMIT %s",
            (MAX_LISTINGS,),
        )
        return {(row["server"], row["settings"]): row["checksum"] for row in rows}

    def _report_once(self, key: ListingKey, checksum: str, error: Exception) -> None:
        with self._lock:
            if (key, checksum) in self._reported or len(self._reported) >= MAX_LISTINGS:
                return
            self._reported.add((key, checksum))
        why = str(error) if type(error) is ValueError else f"it is damaged ({type(error).__name__})"
        log.warning("the shared tool list of MCP server %r is not used: %s", key[0], why)


def compute_listing_key(name: str, settings: McpServerSettings) -> ListingKey:
    """Return the database key of a server's tool list: server name, and hash of the redacted settings."""
    plain = redact_settings(settings.model_dump(mode="json", include=set(START_SETTINGS)))
    return name, _hash_text(json.dumps(plain, sort_keys=True))


def compute_listing_checksum(listing: Listing) -> str:
    """Compute the checksum that is stored with a tool list."""
    return _hash_text(serialize_listing(listing))


def _too_large_error() -> ValueError:
    return ValueError(f"the tool list has more than {MAX_LISTING_BYTES:,} bytes")


def _parse_row(checksum: str, content: object) -> Listing:
    if not isinstance(content, str):
        raise _too_large_error()
    if _hash_text(content) != checksum:
        raise ValueError("the checksum of the stored tool list is wrong")
    return parse_listing(content)


def _delete_surplus(cursor: RowCursor, server: str) -> None:
    """Delete tool lists that were not used for a long time, and the oldest lists above the limits."""
    cursor.execute("DELETE FROM tool_listings WHERE used < CURRENT_DATE - %s::integer", (UNUSED_DAYS,))
    cursor.execute(
        "DELETE FROM tool_listings WHERE server = %s AND settings IN (SELECT settings FROM tool_listings"
        " WHERE server = %s ORDER BY listed DESC OFFSET %s)",
        (server, server, MAX_LISTINGS_PER_SERVER),
    )
    cursor.execute(
        "DELETE FROM tool_listings WHERE (server, settings) IN (SELECT server, settings FROM tool_listings"
        " ORDER BY used DESC, listed DESC OFFSET %s)",
        (MAX_LISTINGS,),
    )


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
