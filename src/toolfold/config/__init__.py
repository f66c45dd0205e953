"""Every setting, typed, and the only reader of configuration files and environment variables.

`settings` is the typed tree, `describe` names what is in it, `document` reads YAML, `check` turns what
was written into settings, `load` lays the files, the environment and the arguments over one another,
`trust` remembers which project folders may grant themselves something, `edit` changes a file.
Knows nothing of tools or sessions: it is read once at the start and handed on.
"""

from toolfold.config.describe import Setting, describe, get, json_schema
from toolfold.config.edit import rewrite, set_value, unset_value, written_value
from toolfold.config.load import load, locate
from toolfold.config.settings import (
    Approval,
    Availability,
    Config,
    Files,
    Paths,
    Plugins,
    Reranker,
    Settings,
    Tools,
    ToolSearch,
    Toolset,
)
from toolfold.config.trust import (
    PROJECT_FILE,
    TrustState,
    still_trusted,
    trust,
    trust_state,
    trusted_folders,
    untrust,
)

__all__ = [
    "PROJECT_FILE",
    "Approval",
    "Availability",
    "Config",
    "Files",
    "Paths",
    "Plugins",
    "Reranker",
    "Setting",
    "Settings",
    "ToolSearch",
    "Tools",
    "Toolset",
    "TrustState",
    "describe",
    "get",
    "json_schema",
    "load",
    "locate",
    "rewrite",
    "set_value",
    "still_trusted",
    "trust",
    "trust_state",
    "trusted_folders",
    "unset_value",
    "untrust",
    "written_value",
]
