"""Credentials and logins of users for MCP servers, encrypted at rest.

Each of them belongs to one user and one server and is never used for another. Knows no MCP protocol, no
HTTP and no command line.
"""

from toolfold.state.credentials.credential_store import (
    OWNER,
    Credential,
    CredentialStore,
    Lease,
    SharedCredentialStore,
    SqliteCredentialStore,
)
from toolfold.state.credentials.keys import CredentialKeys, UnreadableCredential, load_keys, make_key

__all__ = [
    "OWNER",
    "Credential",
    "CredentialKeys",
    "CredentialStore",
    "Lease",
    "SharedCredentialStore",
    "SqliteCredentialStore",
    "UnreadableCredential",
    "load_keys",
    "make_key",
]
