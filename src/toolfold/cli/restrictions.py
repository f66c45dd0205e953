"""Allow only read-only commands inside a process that was started by a tool call.

A command that is not in the list is refused, so new commands are refused by default. Imports no command
module.
"""

from __future__ import annotations

import copy
from typing import Any, NoReturn

import click

from toolfold.core.errors import StartedByTool

__all__ = ["ALLOWED_IN_TOOL_CALLS", "restrict_command"]

ALLOWED_IN_TOOL_CALLS = frozenset(
    {
        *("approvals list", "approvals log", "approvals test", "audit verify", "call", "completion"),
        *("config get", "config schema", "config show", "cost", "demo", "doctor", "env list", "env test"),
        *(
            "eval",
            "explain",
            "mcp list",
            "mcp logs",
            "mcp sample",
            "mcp serve",
            "mcp status",
            "mcp test",
            "plugins",
            "plugins list",
        ),
        *("search", "serve", "token list", "tools", "tools list", "tools show"),
    }
)


def restrict_command(command: click.Command, path: str, started_by: str) -> click.Command:
    """Return a copy of the command that refuses to run subcommands which only the user may run."""
    allowed = path in ALLOWED_IN_TOOL_CALLS
    if not isinstance(command, click.Group):
        return command if allowed else _refuse(command, path, started_by)
    group = copy.copy(command)
    group.commands = {
        name: restrict_command(each, f"{path} {name}", started_by) for name, each in command.commands.items()
    }
    # Such a group runs without a subcommand too, so it needs its own entry in the list of allowed commands.
    return _refuse(group, path, started_by) if group.invoke_without_command and not allowed else group


def _refuse(command: click.Command, path: str, started_by: str) -> click.Command:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise StartedByTool(f"`toolfold {path}`", started_by)

    refused = copy.copy(command)
    refused.callback = refuse
    return refused
