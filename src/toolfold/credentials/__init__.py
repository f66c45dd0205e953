"""Credentials of users for MCP servers, encrypted at rest.

Each credential belongs to one user and one server and is never used for another. Knows no MCP protocol, no
HTTP and no command line.
"""

from toolfold.credentials.keys import CredentialKeys, UnreadableCredential, load_keys, make_key
from toolfold.credentials.store import (
    OWNER,
    Credential,
    CredentialStore,
    SharedCredentialStore,
    SqliteCredentialStore,
)

__all__ = [
    "OWNER",
    "Credential",
    "CredentialKeys",
    "CredentialStore",
    "SharedCredentialStore",
    "SqliteCredentialStore",
    "UnreadableCredential",
    "load_keys",
    "make_key",
]
