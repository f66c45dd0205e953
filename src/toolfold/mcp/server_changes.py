"""Compare two sets of MCP server settings to find added, removed and changed servers.

A changed server is reconnected only if the change concerns its process or connection; otherwise it keeps
running with the new settings. Works on settings only, without servers and configuration files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from toolfold.config.servers_settings import McpServerSettings

__all__ = ["ServerChanges", "compare_servers"]

APPLIED_IN_PLACE = frozenset({"prefix", "include", "exclude", "resources", "prompts", "trust", "isolation"})
"""Server settings whose change needs no new connection: they are read when tools are registered or called."""


@dataclass(frozen=True, slots=True)
class ServerChanges:
    """Names of the MCP servers that differ between two sets of settings."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    reconnected: tuple[str, ...] = ()
    """Changed servers that need a new process or connection."""
    adjusted: tuple[str, ...] = ()
    """Changed servers that keep their process or connection."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.reconnected or self.adjusted)

    def describe(self) -> tuple[str, ...]:
        """Return one line for each changed server, such as `mcp.servers.git added`."""
        groups = {
            "added": self.added,
            "removed": self.removed,
            "changed": (*self.reconnected, *self.adjusted),
        }
        return tuple(f"mcp.servers.{name} {what}" for what, names in groups.items() for name in sorted(names))


def compare_servers(
    before: Mapping[str, McpServerSettings], now: Mapping[str, McpServerSettings]
) -> ServerChanges:
    """Return the MCP servers that were added, removed or changed between two sets of settings."""
    changed = [name for name in now if name in before and now[name] != before[name]]
    adjusted = [name for name in changed if _changed_fields(before[name], now[name]) <= APPLIED_IN_PLACE]
    return ServerChanges(
        added=tuple(name for name in now if name not in before),
        removed=tuple(name for name in before if name not in now),
        reconnected=tuple(name for name in changed if name not in adjusted),
        adjusted=tuple(adjusted),
    )


def _changed_fields(before: McpServerSettings, now: McpServerSettings) -> set[str]:
    fields = McpServerSettings.model_fields
    return {name for name in fields if getattr(before, name) != getattr(now, name)}
