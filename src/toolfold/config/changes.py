"""Compare two configurations, and find the changes that an open runtime can use without a restart.

The settings of MCP servers are left to the servers. The allow-lists are left to approval, which drops a
removed entry at once and uses an added one only if the user added it with Toolfold.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from toolfold.config.describe import get_value, list_keys
from toolfold.config.servers_settings import McpServerSettings
from toolfold.config.settings import Config, Settings
from toolfold.core.types import FrozenDict

__all__ = ["SettingsChanges", "compare_settings", "hold_edits", "keep_fixed_settings", "needs_restart"]

LIVE_SECTIONS = ("tools", "toolsets", "mcp", "agent", "providers", "command_allowlist")
"""Sections in which most changes take effect without a restart of the runtime or gateway."""
FIXED_TOOLS_SETTINGS = ("rag_embed_model", "synonyms", "example_messages", "patience_seconds")
_STRICT_TO_LOOSE = {
    "trust": ("pin", "warn", "off"),
    "sampling": ("deny", "ask", "allow"),
    "elicitation": ("decline", "ask"),
}
"""Settings that say how far an MCP server is trusted, and the values of each, strictest first."""
_RESTRICTIONS = ("tools.disabled", "tools.disabled_toolsets")
HELD_KEYS = (
    *_RESTRICTIONS,
    *("toolsets", "providers", "agent.model", "agent.auxiliary_model", "agent.instructions"),
    "tools.learn_from_use",
)
"""Settings that MCP servers must not change by editing files; lists of disabled tools may only grow."""
ALLOW_LISTS = ("command_allowlist", "approval.allowed_tools")
_FIXED_KEYS = (
    *(f"tools.{name}" for name in FIXED_TOOLS_SETTINGS),
    "tools.tool_search.reranker",
    "mcp.scan",
)


@dataclass(frozen=True, slots=True)
class SettingsChanges:
    """Keys of settings that differ between two configurations, except MCP servers and allow-lists."""

    live: tuple[str, ...] = ()
    """Settings that take effect without a restart: in the next turn or, some of them, with the next agent."""
    fixed: tuple[str, ...] = ()
    """Settings that take effect only after a restart."""


def compare_settings(before: Settings, now: Settings) -> SettingsChanges:
    """Return the keys of the settings that differ between two configurations."""
    changed = [key for key in _list_keys(before, now) if _find_value(before, key) != _find_value(now, key)]
    fixed = [key for key in changed if _is_fixed(key)]
    return SettingsChanges(tuple(key for key in changed if key not in fixed), tuple(fixed))


def keep_fixed_settings(before: Config, now: Config) -> Config:
    """Return the new settings, with the old values of all settings that need a restart to change."""
    search = now.tools.tool_search.model_copy(update={"reranker": before.tools.tool_search.reranker})
    fixed = {name: getattr(before.tools, name) for name in FIXED_TOOLS_SETTINGS}
    return now.model_copy(
        update={name: getattr(before, name) for name in Settings.model_fields if name not in LIVE_SECTIONS}
        | {
            "tools": now.tools.model_copy(update=fixed | {"tool_search": search}),
            "mcp": now.mcp.model_copy(update={"scan": before.mcp.scan}),
        }
    )


def _hold_loosened_servers(
    before: Config, now: Config, held: Collection[str], *, is_own_change: bool
) -> tuple[Config, frozenset[str]]:
    """Undo changes that loosen trust settings of servers; return the settings and the undone keys.

    Keys in `held` stay held back, whoever made later changes.
    """
    servers: dict[str, McpServerSettings] = {}
    found: set[str] = set()
    for name, server in now.mcp.servers.items():
        earlier = before.mcp.servers.get(name)
        loosened = {
            field: _strict_value(earlier, field)
            for field in _STRICT_TO_LOOSE
            if _is_looser(server, earlier, field)
            and (not is_own_change or f"mcp.servers.{name}.{field}" in held)
        }
        servers[name] = server.model_copy(update=loosened) if loosened else server
        found |= {f"mcp.servers.{name}.{field}" for field in loosened}
    if not found:
        return now, frozenset()
    mcp = now.mcp.model_copy(update={"servers": FrozenDict(servers)})
    return now.model_copy(update={"mcp": mcp}), frozenset(found)


def hold_edits(
    before: Config, now: Config, held: Collection[str], *, is_own_change: bool
) -> tuple[Config, frozenset[str]]:
    """Return the new settings `now` without changes that could give an MCP server more rights or secrets.

    Also returns the keys held back. Those in `held` stay held back, whoever made later changes.
    """
    config, servers = _hold_loosened_servers(before, now, held, is_own_change=is_own_change)
    kept = {
        key: value
        for key in HELD_KEYS
        if (value := _value_to_keep(before, now, key)) != _get_by_path(now, key)
        and (not is_own_change or key in held)
    }
    for key, value in kept.items():
        section, _, name = key.partition(".")
        changed = getattr(config, section).model_copy(update={name: value}) if name else value
        config = config.model_copy(update={section: changed})
    return config, servers | frozenset(kept)


def _value_to_keep(before: Config, now: Config, key: str) -> Any:
    """Return a setting's value until its change is accepted; new restrictions apply at once."""
    earlier, later = _get_by_path(before, key), _get_by_path(now, key)
    if key not in _RESTRICTIONS:
        return earlier
    return (*later, *(each for each in earlier if each not in later))


def _get_by_path(config: Config, key: str) -> Any:
    return functools.reduce(getattr, key.split("."), config)


def _is_looser(server: McpServerSettings, earlier: McpServerSettings | None, field: str) -> bool:
    order = _STRICT_TO_LOOSE[field]
    return order.index(getattr(server, field)) > order.index(_strict_value(earlier, field))


def _strict_value(earlier: McpServerSettings | None, field: str) -> str:
    """Return the value of a server's setting before the change; its default if the server is new."""
    value: str = McpServerSettings.model_fields[field].default if earlier is None else getattr(earlier, field)
    return value


def _list_keys(before: Settings, now: Settings) -> Iterator[str]:
    yield from (key for key in list_keys() if key not in ALLOW_LISTS)
    for section in ("toolsets", "providers"):
        names = {**getattr(before, section), **getattr(now, section)}
        yield from (f"{section}.{name}" for name in sorted(names))


def _find_value(config: Settings, key: str) -> Any:
    """Return the value of a setting; None for a toolset or provider that does not exist."""
    section, _, name = key.partition(".")
    if section in ("toolsets", "providers"):
        return getattr(config, section).get(name)
    return get_value(config, key)


def needs_restart(key: str) -> bool:
    """Return True if a change of a setting takes effect in running gateways only after a restart."""
    return key not in ALLOW_LISTS and _is_fixed(key)


def _is_fixed(key: str) -> bool:
    is_fixed = any(key == each or key.startswith(f"{each}.") for each in _FIXED_KEYS)
    return is_fixed or key.partition(".")[0] not in LIVE_SECTIONS
