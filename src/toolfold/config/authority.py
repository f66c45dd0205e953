"""Allow only the user to change Toolfold's settings, not processes started by a tool call.

Every function that writes a settings file calls this first, so that Python code in a tool call is refused
like a command of the command line.
"""

from __future__ import annotations

from toolfold.core.errors import StartedByTool
from toolfold.core.tool_processes import find_tool_call


def require_user(action: str) -> None:
    """Raise StartedByTool if a tool call has started this process; the error names the refused `action`."""
    if why := find_tool_call():
        raise StartedByTool(action, why)
