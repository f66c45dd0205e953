"""The built-in tools, one module per toolset.

Each module exposes `tools(services) -> list[Tool]` and does nothing when imported. The runtime passes
everything a module needs in `Services`; modules read no settings themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from toolfold.environments.environment_thread import EnvironmentThread
from toolfold.files import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Components of the runtime that built-in tools use."""

    workspace: Workspace
    terminal: EnvironmentThread | None = None
    """Environment that runs commands; without it there are no terminal tools."""
    max_command_s: float = 1_800.0
    """Maximum duration of a foreground command, whatever a model requests."""
