"""Compute the tools granted by a scope, cached until the registry changes.

Cached by scope: sessions with the same scope share a grant, and a change of the registry creates a new
one. Knows nothing of availability or of what a model is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from toolfold.core.registry import Snapshot
from toolfold.core.scope import Scope, Toolsets
from toolfold.core.types import Tool

MAX_CACHED_GRANTS = 256
_Rule: TypeAlias = tuple[tuple[str, ...] | None, tuple[str, ...], tuple[str, ...]]
_Key: TypeAlias = tuple[tuple[_Rule, ...], frozenset[str]]


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Grant:
    """The tools in one registry snapshot that are granted to a session by its scope."""

    snapshot: Snapshot
    names: frozenset[str]
    """Names that may be called."""
    tools: Sequence[Tool]
    """Tools that may be shown, by name."""
    shown: frozenset[str]
    """Names that may be shown, including some that do not exist."""
    checked: Sequence[Tool] = field(init=False)
    """Tools with an availability check."""
    tool_names: frozenset[str] = field(init=False)
    """The names of `tools`: one object, so that its hash is computed once."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "checked", [tool for tool in self.tools if tool.check is not None])
        object.__setattr__(self, "tool_names", frozenset(tool.name for tool in self.tools))

    @classmethod
    def from_names(
        cls, snapshot: Snapshot, names: frozenset[str], hidden: frozenset[str] = frozenset()
    ) -> Grant:
        """Create a grant with the named tools; `hidden` tools are callable but never listed."""
        shown = names - hidden
        return cls(snapshot, names, [tool for tool in snapshot.ordered if tool.name in shown], shown)


class GrantCache:
    """Cache of the tools granted by each scope, valid until the toolsets change."""

    def __init__(self) -> None:
        self._held: tuple[Toolsets | None, dict[_Key, Grant]] = None, {}

    def get_grant(self, toolsets: Toolsets, scope: Scope, offers: frozenset[str]) -> Grant:
        """Return the tools granted by a scope; agent-only tools are listed only if named in `offers`."""
        current, grants = self._held  # read together: another thread may replace them
        if current is not toolsets:
            grants = {}
            self._held = toolsets, grants
        key = _flatten_scope(scope), offers
        grant = grants.get(key)
        if grant is None:
            snapshot = toolsets.snapshot
            grant = Grant.from_names(snapshot, scope.granted(toolsets), snapshot.agent_level - offers)
            if len(grants) >= MAX_CACHED_GRANTS:
                grants.clear()
            grants[key] = grant
        return grant


def _flatten_scope(scope: Scope) -> tuple[_Rule, ...]:
    """Return a scope and its parents as a flat tuple, because hashing nested scopes recurses deeply."""
    rules: list[_Rule] = []
    each: Scope | None = scope
    while each is not None:
        rules.append((each.enabled, each.disabled, each.without))
        each = each.parent
    return tuple(rules)
