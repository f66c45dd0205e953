"""Every setting, typed, and the only reader of configuration files and environment variables.

`settings` is the typed tree, `describe` names what is in it, `document` reads YAML, `check` turns what
was written into settings, `load` lays the files, the environment and the arguments over one another,
`trust` remembers which project folders may grant themselves something, `edit` changes a file.
Knows nothing of tools or sessions: it is read once at the start and handed on.
"""

from toolfold.config.describe import Setting, build_json_schema, describe_settings, get_value
from toolfold.config.edit import read_file_value, replace_settings, set_value, unset_value
from toolfold.config.load import load_config, locate_paths
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
from toolfold.config.trust import (
    PROJECT_FILE,
    TrustState,
    get_trust_state,
    is_still_trusted,
    load_trusted_projects,
    trust_project,
    untrust_project,
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
