"""Explain why a tool of an MCP server is not available to anyone, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolfold.mcp.mcp_tools import is_wanted

if TYPE_CHECKING:
    from toolfold.config.servers_settings import McpServerSettings
    from toolfold.runtime.runtime import Runtime


def explain_missing_tool(runtime: Runtime, name: str) -> str:
    """Return the reason why a server's tool is not registered; empty if no server is known to have it."""
    if server := runtime.mcp.find_holding_server(name):
        return (
            f"it is held: it is new at the MCP server {server} or has changed, and nobody can use it before"
            f" you accept it. Review it: toolfold mcp review {server}"
        )
    for server, settings in runtime.config.mcp.servers.items():
        prefix = settings.name_prefix(server)
        own = _find_own_name(name, prefix)
        # The tools of a server that is not started are not known, so only the prefix tells.
        if own and prefix and not (settings.enabled and runtime.config.mcp.enabled):
            return (
                f"the MCP server {server} is disabled, and its tools with it."
                f" Enable it: {_describe_enabling(runtime, server)}"
            )
        if own and _is_excluded(runtime, server, settings, own):
            return (
                f"the settings of the MCP server {server} leave it out (include, exclude)."
                f" Enable it: toolfold mcp enable {server} {own}"
            )
    return ""


def _find_own_name(name: str, prefix: str) -> str:
    """Return a tool's name without its server's prefix; empty if the name does not have the prefix."""
    for whole in (name, name.removeprefix("mcp_")):
        if whole.startswith(prefix) and whole != prefix:
            return whole.removeprefix(prefix)
    return ""


def _describe_enabling(runtime: Runtime, server: str) -> str:
    if not runtime.config.mcp.enabled:
        return "toolfold config set mcp.enabled true"
    return f"toolfold mcp enable {server}"


def _is_excluded(runtime: Runtime, server: str, settings: McpServerSettings, own: str) -> bool:
    return not is_wanted(settings, own) and runtime.mcp.find_tool(server, own) is not None
