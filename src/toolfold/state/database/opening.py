"""Open the shared database named in the settings, and migrate its tables."""

from __future__ import annotations

from toolfold.state.database.connections import Database
from toolfold.state.database.migrations import upgrade

LOCAL_STORE = "sqlite"
"""Value of the setting `store` with which all state is in files of this machine."""


def open_database(store: str) -> Database | None:
    """Open the database named by the setting `store` and migrate its tables; None for a local file store.

    Raises DatabaseUnavailable if it cannot be reached, and ConfigError if the driver is missing or the tables
    were made by a newer version.
    """
    if store == LOCAL_STORE:
        return None
    database = Database(store)
    try:
        upgrade(database)
    except BaseException:
        database.close()
        raise
    return database
