"""Import MCP servers from the configuration files of other clients.

`locations` finds the files, `documents` parses them without trust, `entry_reader`, `variables` and one module
per client format translate their entries into Toolfold's settings, `gateways` recognises Toolfold's own
gateway, `candidates` gives each server a unique name, and `merging` compares entries for the same server.
Writes nothing and starts nothing.
"""

from toolfold.mcp.importing.candidates import ImportCandidate, build_candidates, normalise_server_name
from toolfold.mcp.importing.client_programs import CLIENTS, guess_client, read_client_file, read_snippet
from toolfold.mcp.importing.gateways import is_gateway, reject_gateways
from toolfold.mcp.importing.import_types import ClientConfigFile, ImportedServer, ImportResult, RejectedEntry
from toolfold.mcp.importing.locations import find_config_files, user_config_file
from toolfold.mcp.importing.merging import compare_servers, merge_settings, server_target
from toolfold.mcp.importing.secret_settings import (
    find_literal_secrets,
    redact_settings,
    replace_secrets,
)

__all__ = [
    "CLIENTS",
    "ClientConfigFile",
    "ImportCandidate",
    "ImportResult",
    "ImportedServer",
    "RejectedEntry",
    "build_candidates",
    "compare_servers",
    "find_config_files",
    "find_literal_secrets",
    "guess_client",
    "is_gateway",
    "merge_settings",
    "normalise_server_name",
    "read_client_file",
    "read_snippet",
    "redact_settings",
    "reject_gateways",
    "replace_secrets",
    "server_target",
    "user_config_file",
]
