"""Parameter names, such as `command` or `path`, that show what kind of value an argument of a tool is.

Used by approval for tools that declare nothing, and by sources that declare meanings for tools they import.
"""

from __future__ import annotations

__all__ = ["COMMAND_NAMES", "DIRECTORY_NAMES", "INPUT_NAMES", "PATH_NAMES"]

COMMAND_NAMES = frozenset(
    {"command", "cmd", "commands", "shell_command", "command_line", "commandline", "bash"}
)
PATH_NAMES = frozenset(
    {"path", "paths", "file", "files", "file_path", "filepath", "filename", "destination", "dest", "target"}
    | {"target_path", "output", "output_path", "output_file", "new_path", "to", "to_path", "target_file"}
)
INPUT_NAMES = frozenset({"stdin", "keystrokes", "send_keys", "stdin_data"})
DIRECTORY_NAMES = frozenset({"cwd", "workdir", "working_directory", "working_dir"})
