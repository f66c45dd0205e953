"""One-time links with which a user of the gateway logs in to an MCP server.

In memory, or in the database that replicas share, because the browser may reach another replica than the
client whose call needs the login. Only hashes are stored.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

from toolfold.mcp.user_logins import LINK_LIFETIME_S
from toolfold.state.database import Database, RowCursor

MAX_LINKS_PER_USER = 20
"""Unused links of one user; the oldest ones become invalid."""
MAX_LINKS = 10_000
"""Unused links of all users; the oldest ones become invalid."""
_LOCK_KEY = 0x746F6F6C6C6E6B73
"""Number of the advisory lock under which links are added, so that the limits hold."""


@dataclass(frozen=True, slots=True)
class LoginLink:
    """User and MCP server for which a login link was created."""

    user_id: str
    server: str


class LoginLinks(ABC):
    """Valid links to the login page. Thread-safe; methods may block."""

    @abstractmethod
    def create(self, user_id: str, server: str) -> str:
        """Create a login link and return its secret code."""

    @abstractmethod
    def find(self, code: str) -> LoginLink | None:
        """Return the user and server of a login link; None if the link is invalid or expired."""

    @abstractmethod
    def use(self, code: str) -> LoginLink | None:
        """Invalidate a login link and return its user and server; None if it was invalid or expired."""


class LocalLoginLinks(LoginLinks):
    """Login links in the memory of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: dict[str, tuple[LoginLink, float]] = {}
        """Links with the time when they end, by the hash of their secret part; the oldest first."""

    def create(self, user_id: str, server: str) -> str:
        code, link, now = secrets.token_urlsafe(32), LoginLink(user_id, server), time.monotonic()
        with self._lock:
            self._links = {key: each for key, each in self._links.items() if each[1] > now}
            own = [key for key, (each, _) in self._links.items() if each.user_id == user_id]
            surplus = list(self._links)[: max(0, len(self._links) - MAX_LINKS + 1)]
            for key in {*own[: max(0, len(own) - MAX_LINKS_PER_USER + 1)], *surplus}:
                del self._links[key]
            self._links[_hash_code(code)] = link, now + LINK_LIFETIME_S
        return code

    def find(self, code: str) -> LoginLink | None:
        with self._lock:
            return self._check(self._links.get(_hash_code(code)))

    def use(self, code: str) -> LoginLink | None:
        with self._lock:
            return self._check(self._links.pop(_hash_code(code), None))

    @staticmethod
    def _check(found: tuple[LoginLink, float] | None) -> LoginLink | None:
        return found[0] if found is not None and found[1] > time.monotonic() else None


class SharedLoginLinks(LoginLinks):
    """Login links in the database that replicas share. Methods raise DatabaseError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, user_id: str, server: str) -> str:
        code = secrets.token_urlsafe(32)

        def insert(cursor: RowCursor) -> None:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK_KEY,))
            cursor.execute("DELETE FROM login_links WHERE expires < clock_timestamp()")
            cursor.execute(
                "DELETE FROM login_links WHERE hash IN (SELECT hash FROM login_links WHERE user_id = %s"
                " ORDER BY expires DESC OFFSET %s)",
                (user_id, MAX_LINKS_PER_USER - 1),
            )
            cursor.execute(
                "DELETE FROM login_links WHERE hash IN"
                " (SELECT hash FROM login_links ORDER BY expires DESC OFFSET %s)",
                (MAX_LINKS - 1,),
            )
            cursor.execute(
                "INSERT INTO login_links (hash, user_id, server, expires)"
                " VALUES (%s, %s, %s, clock_timestamp() + make_interval(secs => %s))",
                (_hash_code(code), user_id, server, LINK_LIFETIME_S),
            )

        self._database.run(insert)
        return code

    def find(self, code: str) -> LoginLink | None:
        rows = self._database.query(
            "SELECT user_id, server FROM login_links WHERE hash = %s AND expires > clock_timestamp()",
            (_hash_code(code),),
        )
        return LoginLink(rows[0]["user_id"], rows[0]["server"]) if rows else None

    def use(self, code: str) -> LoginLink | None:
        rows = self._database.query(
            "DELETE FROM login_links WHERE hash = %s AND expires > clock_timestamp()"
            " RETURNING user_id, server",
            (_hash_code(code),),
        )
        return LoginLink(rows[0]["user_id"], rows[0]["server"]) if rows else None


def _hash_code(code: str) -> str:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()
