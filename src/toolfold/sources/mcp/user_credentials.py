"""Open the stored credentials of users with the keys that the settings name."""

from __future__ import annotations

from pathlib import Path

from toolfold.config import Config
from toolfold.credentials import (
    CredentialKeys,
    CredentialStore,
    SharedCredentialStore,
    SqliteCredentialStore,
    load_keys,
)
from toolfold.database import Database
from toolfold.sources.mcp.setting_references import resolve_references

CREDENTIALS_FILE = "credentials.db"
"""Name of the file with encrypted credentials in the state directory."""


def find_key_file(config: Config) -> Path:
    """Return the file with the keys that encrypt credentials; it may not exist."""
    return config.credentials.key_file or config.paths.config_dir / "credentials.key"


def open_credentials(config: Config, database: Database | None) -> CredentialStore:
    """Open the credentials: in the database that replicas share, else in a file.

    The keys are read when they are needed. Without a database, a key is created if there is none. Replicas
    need the same keys, so they are never created for a database.
    """

    def load() -> CredentialKeys:
        text = resolve_references(config.credentials.keys, config.environment)
        return load_keys(text, find_key_file(config), may_create=database is None)

    if database is not None:
        return SharedCredentialStore(database, load)
    return SqliteCredentialStore(config.paths.state_dir / CREDENTIALS_FILE, load)
