"""PostgreSQL database shared by several processes: connections, migrations and change notifications.

Opened only if the setting `store` names one. Knows tables, but not what their content means: each kind of
state is read and written by the package that uses it.
"""

from toolfold.state.database.connections import (
    Database,
    DatabaseError,
    DatabaseUnavailable,
    RowCursor,
    clean_text,
)
from toolfold.state.database.opening import open_database
from toolfold.state.database.shared_copy import SharedCopy

__all__ = [
    "Database",
    "DatabaseError",
    "DatabaseUnavailable",
    "RowCursor",
    "SharedCopy",
    "clean_text",
    "open_database",
]
