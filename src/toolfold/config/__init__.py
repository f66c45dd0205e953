"""Typed settings, and the only code that reads settings files and environment variables.

`settings` defines the settings, `describe` names them, `document` reads YAML, `check` validates values and
builds settings from them, `load` merges the files, the environment and the arguments, `trust` stores which
project directories may grant themselves permissions, `edit` changes a file. Knows nothing of tools or
sessions: the configuration is loaded once at the start and passed on.
"""

from toolfold.config.describe import Setting, build_json_schema, describe_settings, get_value
from toolfold.config.edit import read_file_value, replace_settings, set_value, unset_value
from toolfold.config.load import default_config, load_config, locate_paths
from toolfold.config.project_trust import (
    PROJECT_FILE,
    TrustState,
    get_trust_state,
    is_still_trusted,
    load_trusted_projects,
    trust_project,
    untrust_project,
)
from toolfold.config.settings import (
    ApprovalSettings,
    AvailabilitySettings,
    Config,
    FilesSettings,
    Paths,
    PluginsSettings,
    RerankerSettings,
    Settings,
    ToolSearchSettings,
    ToolsetSettings,
    ToolsSettings,
)

__all__ = [
    "PROJECT_FILE",
    "ApprovalSettings",
    "AvailabilitySettings",
    "Config",
    "FilesSettings",
    "Paths",
    "PluginsSettings",
    "RerankerSettings",
    "Setting",
    "Settings",
    "ToolSearchSettings",
    "ToolsSettings",
    "ToolsetSettings",
    "TrustState",
    "build_json_schema",
    "default_config",
    "describe_settings",
    "get_trust_state",
    "get_value",
    "is_still_trusted",
    "load_config",
    "load_trusted_projects",
    "locate_paths",
    "read_file_value",
    "replace_settings",
    "set_value",
    "trust_project",
    "unset_value",
    "untrust_project",
]
