"""Open the shared database that the settings name, and bring its tables up to date."""

from __future__ import annotations

from toolfold.database.connections import Database
from toolfold.database.migrations import upgrade

LOCAL_STORE = "sqlite"
"""Value of the setting `store` with which all state is in files of this machine."""


def open_database(store: str) -> Database | None:
    """Return the database that the setting `store` names, after updating its tables; None if it is a file.

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
