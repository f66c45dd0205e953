"""What a scope grants of the tools there are, laid out once for each state of the registry.

Kept by what was granted and never by whom: sessions of the same scope share it, and a change of the
registry makes a new one. Knows nothing of what can work right now, or of what a model is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from toolfold.model import Tool
from toolfold.registry import Snapshot
from toolfold.scope import Scope, Toolsets

MAX_CACHED_GRANTS = 256
_Rule: TypeAlias = tuple[tuple[str, ...] | None, tuple[str, ...], tuple[str, ...]]
_Key: TypeAlias = tuple[tuple[_Rule, ...], frozenset[str]]


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Grant:
    """The tools one scope grants of one snapshot."""

    snapshot: Snapshot
    names: frozenset[str]
    """What may be called."""
    tools: Sequence[Tool]
    """What of it may be shown, by name."""
    shown: frozenset[str]
    """Its names, and perhaps more that do not exist."""
    checked: Sequence[Tool] = field(init=False)
    """Those of the tools that may be unable to work."""
    tool_names: frozenset[str] = field(init=False)
    """Of the tools: one object, whose hash is worked out once."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "checked", [tool for tool in self.tools if tool.check is not None])
        object.__setattr__(self, "tool_names", frozenset(tool.name for tool in self.tools))

    @classmethod
    def from_names(
        cls, snapshot: Snapshot, names: frozenset[str], hidden: frozenset[str] = frozenset()
    ) -> Grant:
        """These names, of which the `hidden` ones are callable and never shown."""
        shown = names - hidden
        return cls(snapshot, names, [tool for tool in snapshot.ordered if tool.name in shown], shown)


class GrantCache:
    """The grants of the current toolsets, each worked out once."""

    def __init__(self) -> None:
        self._held: tuple[Toolsets | None, dict[_Key, Grant]] = None, {}

    def get_grant(self, toolsets: Toolsets, scope: Scope, offers: frozenset[str]) -> Grant:
        """What the scope grants; of the agent-level tools only those an agent `offers` may be shown."""
        current, grants = self._held  # one look at both: another thread may exchange them
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
    """A scope and its ancestors side by side: to hash them one inside the other has a depth that ends."""
    rules: list[_Rule] = []
    each: Scope | None = scope
    while each is not None:
        rules.append((each.enabled, each.disabled, each.without))
        each = each.parent
    return tuple(rules)
