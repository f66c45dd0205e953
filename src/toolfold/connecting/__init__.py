"""Add Toolfold's gateway to the configuration of other MCP clients, and remove it again exactly.

`gateway_command` finds the command that starts the gateway, `required_variables` lists the variables its
servers need, `gateway_entries` builds the entry in each client's format. `json_edit`, `toml_edit` and
`yaml_edit` change one place of a text, `client_file` reads a client's file and builds the new content, and
`change_log` writes it with a backup and undoes it. Asks no questions and prints nothing.
"""

from toolfold.connecting.change_log import ChangeLog, FileChange, FileChangedSinceError
from toolfold.connecting.client_file import ClientFile, build_content, open_client_file, reopen_client_file
from toolfold.connecting.gateway_command import RunningProgram, current_program, gateway_command
from toolfold.connecting.gateway_entries import (
    GatewayAccess,
    add_gateway_path,
    build_entry,
    find_url,
    servers_key,
)
from toolfold.connecting.required_variables import list_required_variables
from toolfold.connecting.text_diff import unified_diff

__all__ = [
    "ChangeLog",
    "ClientFile",
    "FileChange",
    "FileChangedSinceError",
    "GatewayAccess",
    "RunningProgram",
    "add_gateway_path",
    "build_content",
    "build_entry",
    "current_program",
    "find_url",
    "gateway_command",
    "list_required_variables",
    "open_client_file",
    "reopen_client_file",
    "servers_key",
    "unified_diff",
]
