"""Open the stored credentials and logins of users with the encryption keys named in the settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from toolfold.config import Config
from toolfold.config.servers_settings import McpServerSettings
from toolfold.mcp.oauth.login_store import EncryptedLoginStore, FileLoginStore, LoginStore
from toolfold.mcp.oauth.unsaved_logins import UnsavedLogins
from toolfold.mcp.setting_references import CREDENTIAL_PREFIX, resolve_references
from toolfold.state.credentials import (
    OWNER,
    CredentialKeys,
    CredentialStore,
    SharedCredentialStore,
    SqliteCredentialStore,
    load_keys,
)
from toolfold.state.database import Database

CREDENTIALS_FILE = "credentials.db"
"""Name of the file with encrypted credentials in the state directory."""


def find_key_file(config: Config) -> Path:
    """Return the file with the keys that encrypt credentials; it may not exist."""
    return config.credentials.key_file or config.paths.config_dir / "credentials.key"


def open_credentials(get_config: Callable[[], Config], database: Database | None) -> CredentialStore:
    """Open the stored credentials: in the database shared by replicas or, without a database, in a file.

    The keys are read when they are needed, from the settings that `get_config` returns then. Without a
    database, a key is created if there is none. Replicas need the same keys, so they are never created for a
    database.
    """

    def load() -> CredentialKeys:
        config = get_config()
        text = resolve_references(config.credentials.keys, config.environment)
        return load_keys(text, find_key_file(config), may_create=database is None)

    if database is not None:
        return SharedCredentialStore(database, load)
    return SqliteCredentialStore(get_config().paths.state_dir / CREDENTIALS_FILE, load)


def open_logins(
    config: Config,
    database: Database | None,
    credentials: Callable[[], CredentialStore],
    user_id: str = OWNER,
    unsaved: UnsavedLogins | None = None,
) -> LoginStore:
    """Open the store of a user's OAuth logins or, by default, of the installation's own logins.

    They are encrypted among the credentials, except that those of the installation are in files of their own
    if there is no database. `unsaved` keeps refreshed ones that cannot be stored.
    """
    if user_id == OWNER and database is None:
        return FileLoginStore(config.paths.state_dir / "oauth")
    return EncryptedLoginStore(credentials, user_id, unsaved)


def uses_login(settings: McpServerSettings) -> bool:
    """Return True if users authenticate to a server by OAuth, because its settings name no credentials."""
    if settings.effective_transport == "stdio" or "authorization" in map(str.lower, settings.headers):
        return False
    return not any(f"${{{CREDENTIAL_PREFIX}" in text for text in (settings.url, *settings.headers.values()))
