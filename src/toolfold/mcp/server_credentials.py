"""Credentials and OAuth logins for MCP servers: those of users and those of the installation.

Opened when a server first needs them. Knows nothing of processes, connections and tools.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from toolfold.config import Config
from toolfold.core.errors import ConfigError
from toolfold.mcp.faults import NeedsLogin, NotStarted
from toolfold.mcp.oauth.login_store import LoginStore
from toolfold.mcp.oauth.unsaved_logins import UnsavedLogins
from toolfold.mcp.setting_references import add_credentials
from toolfold.mcp.supervisor import ServerSupervisor
from toolfold.mcp.user_credentials import open_credentials, open_logins, uses_login
from toolfold.state.credentials import OWNER, CredentialStore
from toolfold.state.database import Database, DatabaseError

if TYPE_CHECKING:
    from toolfold.mcp.oauth import OpenUrl
    from toolfold.mcp.oauth.redirect_listener import Redirect

log = logging.getLogger(__name__)


class ServerCredentials:
    """Stored credentials and OAuth logins for the MCP servers of a runtime. Thread-safe."""

    def __init__(self, get_config: Callable[[], Config], database: Database | None) -> None:
        """Prepare access to the credentials; `get_config` returns the current configuration."""
        self._get_config, self._database = get_config, database
        self._lock = threading.Lock()
        self._store: CredentialStore | None = None
        self._unsaved_logins = UnsavedLogins()

    async def require_user_version(self, server: ServerSupervisor, user_id: str) -> str:
        """Return a string that identifies the current version of a user's credentials for a server.

        Raises NotStarted or NeedsLogin if the user has none.
        """
        name = server.name
        version = await self.read_user_version(name, user_id)
        may_log_in = not version and uses_login(server.settings)
        if may_log_in:  # the user may just have logged in at another replica
            version = await self.read_user_version(name, user_id, is_fresh=True)
        if not version and may_log_in:
            raise NeedsLogin(name, "requires your own login.")
        if not version:
            advice = f"An administrator can store them: toolfold credentials set {name} NAME --user USER"
            raise NotStarted(name, "has no stored credentials of yours.", advice=advice)
        return version

    async def read_user_version(self, server: str, user_id: str, *, is_fresh: bool = False) -> str:
        """Return a string that changes whenever a user's credentials or login change; empty if none exist.

        Read in a thread, because a file or a database can take seconds, and one event loop serves all
        servers. Raises NotStarted.
        """
        with _report_unreadable_credentials(server):
            return await asyncio.get_running_loop().run_in_executor(
                None, lambda: self._open().find_version(user_id, server, is_fresh=is_fresh)
            )

    def load(self, server: ServerSupervisor, user_id: str) -> Mapping[str, str]:
        """Return the user's credentials for a server; empty unless the server has `credentials: per-user`."""
        if server.settings.credentials != "per-user":
            return {}
        return self._open().load(user_id, server.name)

    def find_owner_version(self, server: ServerSupervisor) -> str:
        """Return a string that changes with every change of the installation's credentials for a server."""
        versions = []
        if server.settings.credentials == "per-user":
            versions.append(self._open().find_version(OWNER, server.name))
        if server.settings.effective_transport != "stdio":
            versions.append(self.open_logins().find_version(server.name))
        return " ".join(filter(None, versions))

    def load_auth(self, server: ServerSupervisor, user_id: str) -> Any:
        """Return an authenticator that uses the stored OAuth login for a server; None if OAuth is unused."""
        settings = server.settings
        if settings.effective_transport == "stdio" or "authorization" in map(str.lower, settings.headers):
            return None
        if user_id and not uses_login(settings):
            return None
        from toolfold.mcp.oauth import create_auth

        advice = "Log in to it as yourself." if user_id else ""
        return create_auth(
            server.name,
            settings,
            self.open_logins(user_id),
            interactive=False,
            environment=self._get_config().environment,
            advice=advice,
        )

    async def log_in_user(
        self,
        server: ServerSupervisor,
        user_id: str,
        redirect: Redirect,
        *,
        open_url: OpenUrl,
        timeout_s: float,
    ) -> None:
        """Log a user in to a server through a browser, wait for the redirect, and store the login.

        Raises ServerFailed and ConfigError.
        """
        from toolfold.mcp.oauth import find_client_issuer, log_in_with_redirect

        name, settings = server.name, server.settings
        if not user_id or settings.credentials != "per-user" or not uses_login(settings):
            raise NotStarted(name, "has no logins of single users.")
        credentials = await asyncio.to_thread(self.load, server, user_id)
        environment = add_credentials(self._get_config().environment, credentials)
        issuer = await asyncio.to_thread(
            find_client_issuer, name, settings, self.open_logins(), environment=environment
        )
        await log_in_with_redirect(
            name,
            settings,
            self.open_logins(user_id),
            redirect,
            environment=environment,
            open_url=open_url,
            timeout_s=timeout_s,
            issuer=issuer,
        )

    def open_logins(self, user_id: str = OWNER) -> LoginStore:
        """Return the store of a user's OAuth logins or, by default, of the installation's own logins."""
        return open_logins(self._get_config(), self._database, self._open, user_id, self._unsaved_logins)

    def close(self) -> None:
        """Store refreshed logins that could not be stored before, and close the credential store."""
        self._unsaved_logins.close()
        if self._store is not None:
            self._store.close()

    def _open(self) -> CredentialStore:
        with self._lock:
            if self._store is None:
                self._store = open_credentials(self._get_config, self._database)
            return self._store


@contextlib.contextmanager
def _report_unreadable_credentials(server: str) -> Iterator[None]:
    """In a `with` block, log why stored credentials cannot be read, and raise NotStarted."""
    try:
        yield
    except (ConfigError, DatabaseError) as error:
        log.error("the credentials for MCP server %r cannot be read: %s", server, error)
        raise NotStarted(server, "cannot be used: stored credentials cannot be read now.") from None
