"""Servers out of the files other programs keep them in.

`places` knows where those files lie, `documents` reads them without trust, `entries`, `variables` and the
modules of programs turn what they say into our settings, `gateways` knows our own among them, `candidates`
gives each a name of its own. Writes nothing and starts nothing: a person decides what becomes of it.
"""

from toolfold.sources.mcp.importing.candidates import ImportCandidate, build_candidates, normalise_server_name
from toolfold.sources.mcp.importing.clients import CLIENTS, guess_client, read_client_file, read_snippet
from toolfold.sources.mcp.importing.gateways import is_gateway, reject_gateways
from toolfold.sources.mcp.importing.locations import find_config_files, user_config_file
from toolfold.sources.mcp.importing.secret_settings import (
    find_literal_secrets,
    redact_settings,
    replace_secrets,
)
from toolfold.sources.mcp.importing.types import ClientConfigFile, ImportedServer, ImportResult, RejectedEntry

__all__ = [
    "CLIENTS",
    "ClientConfigFile",
    "ImportCandidate",
    "ImportResult",
    "ImportedServer",
    "RejectedEntry",
    "build_candidates",
    "find_config_files",
    "find_literal_secrets",
    "guess_client",
    "is_gateway",
    "normalise_server_name",
    "read_client_file",
    "read_snippet",
    "redact_settings",
    "reject_gateways",
    "replace_secrets",
    "user_config_file",
]
