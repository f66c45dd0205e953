"""Determine which tools a session may see and call.

Toolsets are named bundles of tools; a `Scope` is a grant of toolsets. A scope is a rule, not a list: it is
evaluated against each snapshot, so that tools of a server that connects later appear in sessions that were
granted it. Later stages may show fewer tools than the scope grants, never more. Knows nothing of models,
search or prompts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from toolfold.core.errors import UnknownToolset, closest_names, did_you_mean
from toolfold.core.registry import Snapshot
from toolfold.core.toolset_names import FOREIGN_PREFIX, LEGACY_NAMES, PRESETS, Toolset
from toolfold.core.types import MCP_PREFIX, GrantLimit, Tool

log = logging.getLogger(__name__)

ALL = "all"
SERVER_RULE, TOOL_RULE = "server:", "tool:"
"""Prefixes of names in a grant that stand for all tools of an MCP server, and for one tool."""


_RULE_PREFIXES = (SERVER_RULE, TOOL_RULE)
_PRESET_NAMES = frozenset(preset.name for preset in PRESETS)


class Toolsets:
    """All toolsets that exist in one snapshot of the tool registry."""

    def __init__(self, snapshot: Snapshot, declared: Iterable[Toolset] = ()) -> None:
        self._snapshot = snapshot
        # Presets last, so that no declaration changes what a preset grants.
        self._declared = {each.name: each for each in (*declared, *PRESETS)}
        # Names that a grant may use although they have no tools here.
        self._expected = {ALL, *LEGACY_NAMES, *LEGACY_NAMES.values()}.union(
            *(each.includes for each in PRESETS)
        )
        self._resolved: dict[str, frozenset[str]] = {}

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    def listing(self) -> dict[str, Toolset]:
        """Return all toolsets, sorted by name: the declared ones, and those of registered tools."""
        names = sorted({*self._declared, *self._snapshot.toolsets})
        return {name: self._describe_toolset(name) for name in names}

    def knows(self, name: str) -> bool:
        """Return True if a toolset exists, or may belong to an MCP server that is not connected yet."""
        return self._exists(name) or name in self._expected or name.startswith((MCP_PREFIX, *_RULE_PREFIXES))

    def is_taken(self, name: str) -> bool:
        """Return True if a toolset name is already used or reserved."""
        is_reserved = name in (ALL, *LEGACY_NAMES) or name.startswith((MCP_PREFIX, *_RULE_PREFIXES))
        return is_reserved or self._exists(name)

    def require(self, names: Iterable[str]) -> None:
        """Raise UnknownToolset, with similar names, for the first unknown toolset name."""
        for name in names:
            if not self.knows(name):
                raise UnknownToolset(name, closest_names(name, {*self.listing(), *self._expected}))
            if name.startswith(FOREIGN_PREFIX) and not self._exists(name):
                log.warning("toolset %r is called %r here; use that name", name, self._current_name(name))
            if name.startswith(MCP_PREFIX) and not self._exists(name):
                log.warning(
                    "no connected server provides toolset %r yet.%s",
                    name,
                    did_you_mean(self._similar_servers(name)),
                )

    def resolve(self, name: str) -> frozenset[str]:
        """Return the tools of a toolset and its included toolsets; empty if there are none."""
        if name == ALL:
            return frozenset(self._snapshot)
        if name not in self._resolved:
            self._resolved[name] = self._resolve_tools(name)
        return self._resolved[name]

    def reaches(self, start: str, toolset: str) -> bool:
        """Return True if the toolset `start` includes `toolset`, directly or indirectly."""
        return any(name in (ALL, toolset) for name in self._included_toolsets(start))

    def _resolve_tools(self, start: str) -> frozenset[str]:
        found: set[str] = set()
        for name in self._included_toolsets(start):
            found |= frozenset(self._snapshot) if name == ALL else self._own_tools(name)
        return frozenset(found)

    def _included_toolsets(self, start: str) -> Iterator[str]:
        """Yield a toolset and all toolsets that it includes, each once, even if they include each other."""
        seen: set[str] = set()
        pending = [start]
        while pending:
            name = self._current_name(pending.pop())
            if name in seen:
                continue
            seen.add(name)
            yield name
            if name in self._declared:
                pending += self._declared[name].includes

    def _similar_servers(self, name: str) -> list[str]:
        return closest_names(name, [each for each in self._snapshot.toolsets if each.startswith(MCP_PREFIX)])

    def _exists(self, name: str) -> bool:
        return name in self._declared or name in self._snapshot.toolsets

    def _current_name(self, name: str) -> str:
        if name.startswith(SERVER_RULE):
            return MCP_PREFIX + name.removeprefix(SERVER_RULE)
        return name if self._exists(name) else LEGACY_NAMES.get(name, name)

    def _own_tools(self, name: str) -> frozenset[str]:
        if name.startswith(TOOL_RULE):
            return frozenset(tool.name for tool in self._find_listed(name.removeprefix(TOOL_RULE)))
        # Registering a tool under a preset's name does not add it to the preset.
        registered = frozenset() if name in _PRESET_NAMES else self._snapshot.toolsets.get(name, frozenset())
        listed = self._declared[name].tools if name in self._declared else ()
        return registered | {tool.name for each in listed for tool in self._find_listed(each)}

    def _find_listed(self, name: str) -> Sequence[Tool]:
        """Return the tool that a name in a toolset refers to; empty if the name is unknown or ambiguous.

        A tool is found by its author's name only while no other has that name: otherwise a new tool could
        take its place in the grant.
        """
        tools = self._snapshot.named(name)
        return tools[:1] if len(tools) == 1 or (tools and tools[0].name == name) else ()

    def _describe_toolset(self, name: str) -> Toolset:
        declared = self._declared.get(name, Toolset(name))
        return Toolset(name, declared.description, tuple(sorted(self._own_tools(name))), declared.includes)


@dataclass(frozen=True, slots=True)
class Scope:
    """Toolsets that a session may use; narrower scopes are derived with `narrow`.

    The root of all scopes is the user's configuration; `rebase` follows a change of it.
    """

    enabled: tuple[str, ...] | None = None
    """Allowed toolsets, `server:NAME` and `tool:NAME`; None means all."""
    disabled: tuple[str, ...] = ()
    """Toolsets, servers and tools to exclude."""
    without: tuple[str, ...] = ()
    """Tools or toolsets to exclude, whether or not they exist now."""
    parent: Scope | None = None

    def narrow(
        self, enabled: Iterable[str] | None = None, disabled: Iterable[str] = (), without: Iterable[str] = ()
    ) -> Scope:
        """Return a scope that allows only tools allowed by both this scope and the given toolset lists."""
        chosen = None if enabled is None else _to_tuple(enabled)
        return Scope(chosen, _to_tuple(disabled), _to_tuple(without), parent=self)

    def delegated(
        self, toolsets: Toolsets, enabled: Iterable[str] | None = None, disabled: Iterable[str] = ()
    ) -> Scope:
        """Return this scope narrowed for a sub-agent. Raises UnknownToolset for unknown toolsets."""
        scope = self.narrow(enabled, disabled)
        toolsets.require((*(scope.enabled or ()), *scope.disabled))
        return scope

    def rebase(self, root: Scope, new_root: Scope) -> Scope:
        """Return this scope derived from `new_root` instead of `root`, after the settings have changed."""
        if self is root:
            return new_root
        parent = self.parent
        return self if parent is None else replace(self, parent=parent.rebase(root, new_root))

    def granted(self, toolsets: Toolsets) -> frozenset[str]:
        """Return the names of the existing tools that this scope allows."""
        names = self._allowed_names(toolsets)
        ancestor = self.parent
        while ancestor:
            names &= ancestor._allowed_names(toolsets)
            ancestor = ancestor.parent
        return names

    def list_limits(self) -> tuple[GrantLimit, ...]:
        """Return the toolset limits that were added to the configured scope, in the order they were added."""
        if self.parent is None:
            return ()
        return (*self.parent.list_limits(), GrantLimit(self.enabled, self.disabled))

    def covers(self, toolsets: Toolsets, toolset: str) -> bool:
        """Return True if this scope would allow tools added later to a currently empty toolset.

        False if a rule names a single tool: whether it belongs to the toolset is not known yet.
        """
        each: Scope | None = self
        while each is not None:
            enabled = (ALL,) if each.enabled is None else each.enabled
            removed = (*each.disabled, *each.without)
            if not any(toolsets.reaches(name, toolset) for name in enabled):
                return False
            if any(name.startswith(TOOL_RULE) or toolsets.reaches(name, toolset) for name in removed):
                return False
            each = each.parent
        return True

    def _allowed_names(self, toolsets: Toolsets) -> frozenset[str]:
        """Return the tools that this scope allows by itself, ignoring its parent scopes."""
        names = frozenset(toolsets.snapshot) if self.enabled is None else _resolve_all(toolsets, self.enabled)
        removed = (*self.disabled, *self.without)
        if removed:
            # By both names: a new toolset with the legacy name must not re-enable the current one.
            names -= _resolve_all(
                toolsets, (*removed, *(LEGACY_NAMES[name] for name in removed if name in LEGACY_NAMES))
            )
        # By any name, even one that several tools have: a tool must not escape by its other names.
        denied = [name.removeprefix(TOOL_RULE) for name in removed if name.startswith(TOOL_RULE)]
        if self.without or denied:
            names -= _tools_named(toolsets.snapshot, (*self.without, *denied))
        return names


def _resolve_all(toolsets: Toolsets, names: Iterable[str]) -> frozenset[str]:
    return frozenset().union(*(toolsets.resolve(name) for name in names))


def _to_tuple(names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(
        names, str
    ):  # its letters would be used as names, and a disabled toolset would stay granted
        raise TypeError(f"expected a list of names, not the string {names!r}")
    return tuple(names)


def _tools_named(snapshot: Snapshot, names: Iterable[str]) -> frozenset[str]:
    """Return all tools that have one of the given names; several tools may share a name."""
    wanted = frozenset(name for name in names if name)
    return frozenset(tool.name for tool in snapshot.ordered if not wanted.isdisjoint(tool.names))
