"""Add Toolfold to the configuration files of other programs, and undo that change exactly.

Two kinds of changes: the gateway among an MCP client's servers, and the proxy as the base URL of a program's
model API.

`gateway_command` finds the command that starts the gateway, `required_variables` lists the variables its
servers need, `gateway_entries` builds the entry in each client's format. `model_programs` lists the settings
for base URLs, and `settings_edit` changes them. `json_edit`, `toml_edit` and
`yaml_edit` change one place of a text, `client_file` reads a client's file and builds the new content, and
`change_log` writes it with a backup and undoes it. Asks no questions and prints nothing.
"""

from toolfold.cli.connecting.change_log import ChangeLog, FileChange, FileChangedSinceError
from toolfold.cli.connecting.client_file import (
    ClientFile,
    ProgramName,
    build_content,
    open_client_file,
    reopen_client_file,
    require_client,
)
from toolfold.cli.connecting.gateway_command import RunningProgram, current_program, gateway_command
from toolfold.cli.connecting.gateway_entries import (
    GatewayAccess,
    add_gateway_path,
    build_entry,
    find_url,
    servers_key,
)
from toolfold.cli.connecting.model_programs import (
    MODEL_PROGRAMS,
    ApiName,
    ModelProgram,
    ProxyAccess,
    find_program,
    find_token_variable,
    get_setting,
)
from toolfold.cli.connecting.required_variables import list_required_variables
from toolfold.cli.connecting.settings_edit import SettingsEditor, build_settings_content, open_settings_file
from toolfold.cli.connecting.text_diff import unified_diff

__all__ = [
    "MODEL_PROGRAMS",
    "ApiName",
    "ChangeLog",
    "ClientFile",
    "FileChange",
    "FileChangedSinceError",
    "GatewayAccess",
    "ModelProgram",
    "ProgramName",
    "ProxyAccess",
    "RunningProgram",
    "SettingsEditor",
    "add_gateway_path",
    "build_content",
    "build_entry",
    "build_settings_content",
    "current_program",
    "find_program",
    "find_token_variable",
    "find_url",
    "gateway_command",
    "get_setting",
    "list_required_variables",
    "open_client_file",
    "open_settings_file",
    "reopen_client_file",
    "require_client",
    "servers_key",
    "unified_diff",
]
