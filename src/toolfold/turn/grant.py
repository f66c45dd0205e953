"""What a scope grants of the tools there are, laid out once for each state of the registry.

Kept by what was granted and never by whom: sessions of the same scope share it, and a change of the
registry makes a new one. Knows nothing of what can work right now, or of what a model is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolfold.model import Tool
from toolfold.registry import Snapshot
from toolfold.scope import Scope, Toolsets

MOST_HELD = 256


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Grant:
    """The tools one scope grants of one snapshot."""

    snapshot: Snapshot
    names: frozenset[str]
    """What may be called."""
    tools: Sequence[Tool]
    """What of it may be shown, by name."""

    @classmethod
    def of(cls, snapshot: Snapshot, names: frozenset[str], hidden: frozenset[str] = frozenset()) -> Grant:
        """These names, of which the `hidden` ones are callable and never shown."""
        visible = names - hidden
        return cls(snapshot, names, [tool for tool in snapshot.ordered if tool.name in visible])


class Grants:
    """The grants of the current toolsets, each worked out once."""

    def __init__(self) -> None:
        self._held: tuple[Toolsets | None, dict[tuple[Scope, frozenset[str]], Grant]] = None, {}

    def of(self, toolsets: Toolsets, scope: Scope, offers: frozenset[str]) -> Grant:
        """What the scope grants; of the agent-level tools only those an agent `offers` may be shown."""
        current, grants = self._held  # one look at both: another thread may exchange them
        if current is not toolsets:
            grants = {}
            self._held = toolsets, grants
        grant = grants.get((scope, offers))
        if grant is None:
            snapshot = toolsets.snapshot
            grant = Grant.of(snapshot, scope.granted(toolsets), snapshot.agent_level - offers)
            if len(grants) >= MOST_HELD:
                grants.clear()
            grants[scope, offers] = grant
        return grant
