"""Open the shared database once for a command, and close it when the command ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from toolfold.state.database import open_database
from toolfold.state.database.opening import LOCAL_STORE

if TYPE_CHECKING:
    from toolfold.config import Config
    from toolfold.state.database import Database

_KEY = "toolfold.state.database"


def use_database(config: Config) -> Database | None:
    """Return the database that the setting `store` names; None if state is in files on this machine."""
    if config.store == LOCAL_STORE:
        return None
    context = click.get_current_context()
    if _KEY not in context.meta:
        database = open_database(config.store)
        context.meta[_KEY] = database
        if database is not None:
            context.find_root().call_on_close(database.close)
    found: Database | None = context.meta[_KEY]
    return found
