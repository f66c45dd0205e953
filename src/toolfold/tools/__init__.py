"""The built-in tools, one file a toolset.

Each module exposes `tools(services) -> list[Tool]` and does nothing when imported. What a module
needs from outside is in `Services`, handed over by the runtime; it reads no settings of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from toolfold.environments.environment_thread import EnvironmentThread
from toolfold.files import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the runtime lends the built-in tools."""

    workspace: Workspace
    terminal: EnvironmentThread | None = None
    """Where commands run; without it there are no tools that run any."""
    longest_command: float = 1_800.0
    """How many seconds a command in the foreground may take, whatever a model asks for."""
