"""Users and teams of the gateway, their permissions and their usage limits.

Stored in a file of this machine, or in the database that replicas share. Knows no tokens, tools or requests:
those who authenticate a request look up its user here.
"""

from toolfold.state.users.directory import Directory, Team, User
from toolfold.state.users.user_store import USERS_FILE, FileUserStore, SharedUserStore, UserStore

__all__ = [
    "USERS_FILE",
    "Directory",
    "FileUserStore",
    "SharedUserStore",
    "Team",
    "User",
    "UserStore",
]
