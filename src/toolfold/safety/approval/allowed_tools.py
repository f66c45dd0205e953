"""The setting `approval.allowed_tools`: tools whose declared effects need no approval.

Covers the findings "declares that it can destroy data" and "charges for each call", and nothing else. An
entry without a project does not cover a server that a project's file declares: another project may use the
same name.
"""

from __future__ import annotations

from pathlib import Path

from toolfold.config import Config
from toolfold.config.allowed_tool_entries import AllowedTool
from toolfold.config.record import SettingsRecord
from toolfold.core.types import MCP_SOURCE
from toolfold.safety.approval.allowlist import AllowList
from toolfold.safety.approval.call_analysis import CallAnalysis

__all__ = ["KEY", "AllowedTools", "build_allowed_tools", "is_own_server"]

KEY = "approval.allowed_tools"


class AllowedTools:
    """The tools that the setting `approval.allowed_tools` allows in one project."""

    def __init__(self, entries: AllowList | None = None, project: Path | None = None) -> None:
        self._entries, self._project = entries or AllowList(), project or Path.cwd()

    @property
    def entries(self) -> tuple[str, ...]:
        return self._entries.entries

    def find(self, analysis: CallAnalysis, client: str = "") -> tuple[AllowedTool, ...]:
        """Return the entries of `approval.allowed_tools` that cover the analyzed call; empty if none do.

        A call whose tool declares several effects needs an entry for each.
        """
        entries = [
            allowed
            for allowed in map(AllowedTool.parse, self._entries.entries)
            if _applies_to(allowed, analysis) and allowed.is_in_scope(client, self._project)
        ]
        found = {allowed.effect: allowed for allowed in reversed(entries)}
        effects = analysis.declared_effects
        return tuple(found[effect] for effect in sorted(effects)) if effects <= found.keys() else ()

    def add(self, *allowed: AllowedTool) -> None:
        """Add entries to `approval.allowed_tools`. Raises ConfigError if they cannot be saved."""
        self._entries.add(*map(str, allowed))

    def remove(self, entry: str) -> bool:
        """Remove an entry of `approval.allowed_tools`; return False if there is no such entry."""
        return self._entries.remove(entry)


def build_allowed_tools(config: Config) -> AllowedTools:
    """Create `AllowedTools` from the setting `approval.allowed_tools`; new entries go to the user's file."""
    paths, entries = config.paths, config.approval.allowed_tools
    from_file = str(paths.user_file) in config.origins.get(KEY, "")
    written = AllowList(
        entries,
        key=KEY,
        file=paths.user_file,
        lock_directory_path=paths.state_dir / "allowed_tools",
        follows_file=from_file or not entries,
        record=SettingsRecord(paths.state_dir),
        follow_own_changes=True,
    )
    return AllowedTools(written, paths.project_dir)


def is_own_server(config: Config, server: str) -> bool:
    """Return True if an MCP server is declared by the user's own settings, not by a project's file."""
    project = config.paths.project_file
    declared = config.origins.get(f"mcp.servers.{server}", "")
    return server in config.mcp.servers and (
        project is None or not declared.startswith(f"project file {project}:")
    )


def _applies_to(allowed: AllowedTool, analysis: CallAnalysis) -> bool:
    tool = analysis.tool
    from_server = tool.source.kind == MCP_SOURCE
    if from_server and not analysis.own_server and not allowed.project:
        return False
    if allowed.target == "server":
        return from_server and tool.server == allowed.name
    return allowed.name in tool.names
