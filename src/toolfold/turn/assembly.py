"""From a grant to a Turn: who is here, who can work, and how each describes itself in that company."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from toolfold.availability import Availability
from toolfold.errors import BridgeMisuse, CallError, OutOfScope, Refused, nearest, shorten
from toolfold.model import BRIDGE_CALL, BRIDGE_NAMES, Definition, Tool
from toolfold.registry import Snapshot
from toolfold.turn.grant import Grant

if TYPE_CHECKING:
    from toolfold.turn.bridge import Bridge
    from toolfold.turn.selection import Selection

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn's tools, pinned: a change of the registry shows in the next turn."""

    snapshot: Snapshot
    granted: frozenset[str]
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Name → reason, for the granted tools that are neither listed nor callable."""
    tools: Sequence[Tool] = ()
    """What the model is shown, in a stable order."""
    offered: Sequence[Tool] = ()
    """What it could be shown, by name: all that was granted and can work now."""
    offered_names: frozenset[str] = frozenset()
    bridge: Bridge | None = None
    """Answers the model's questions about tools it was not shown."""
    searchable: bool = False
    """Whether the model was given the bridge tools."""
    selection: Selection | None = None
    """What was chosen for the conversation, and why; None where nothing was to be chosen."""
    visible_names: frozenset[str] | None = None
    """The names that may be spoken of; None for all that was granted."""
    held_names: frozenset[str] = frozenset()
    """The names of tools that would be granted once a person has looked at them."""
    failing: Mapping[str, str] = field(default_factory=dict)
    """Name → reason, for the tools that stay listed for a grace period and are not callable meanwhile."""
    direct: frozenset[str] = frozenset()
    """The names of tools that are always in the model's list: not searchable, not for `tool_call`."""

    def tool(self, name: str) -> Tool:
        """The scope gate. What was not granted is not found, and no hint says that it exists."""
        if self.bridge is not None and name in self.bridge:
            return self.bridge.tool(name, self)
        tool = self._find_listed(name)
        if tool.name in self.failing:
            raise _unavailable_error(tool.name, self.failing[tool.name])
        return tool

    def find_visible(self, name: str) -> Tool:
        """The gate for what only speaks of a tool: some may be called and are never shown."""
        tool = self._find_listed(name)
        if self.visible_names is not None and tool.name not in self.visible_names:
            raise self._not_available(name)
        return tool

    def require_deferrable(self, name: str) -> None:
        """Raise BridgeMisuse for a granted tool that the model must call directly."""
        tool = self._find_listed(name)
        if tool.name in self.direct:
            raise BridgeMisuse(
                f"{tool.name!r} is always in your list of tools: call it directly, not through {BRIDGE_CALL}."
                " Nothing was run."
            )

    def may_show(self, name: str) -> bool:
        """Whether there is such a tool that may be shown, whether it can work just now or not."""
        return (
            name in self.granted
            and name in self.snapshot
            and (self.visible_names is None or name in self.visible_names)
        )

    def definitions(self) -> list[Definition]:
        """The tools array for the model, in the OpenAI form."""
        return render_definitions(self.tools)

    def described(self, tool: Tool) -> Definition:
        """The definition of one tool, in the company of all that this turn may call."""
        return _adapt_definition(tool, self.offered_names) if tool.adapt else tool.definition()

    @property
    def searchable_names(self) -> frozenset[str]:
        """The names that `tool_search` may find: all that is offered and not in the model's list anyway."""
        return self.offered_names - self.direct if self.direct else self.offered_names

    def _find_listed(self, name: str) -> Tool:
        tool = self._find_granted(name)
        if tool.name in self.unavailable:
            raise _unavailable_error(tool.name, self.unavailable[tool.name])
        return tool

    def _find_granted(self, name: str) -> Tool:
        """The granted tool of a name. Authors choose freely: a stranger must not hide one of ours."""
        granted = [tool for tool in self.snapshot.named(name) if tool.name in self.granted]
        if not granted:
            raise self._not_available(name)
        if len(granted) == 1 or granted[0].name == name:
            return granted[0]
        visible = [
            tool for tool in granted if self.visible_names is None or tool.name in self.visible_names
        ] or granted
        if len(visible) == 1:
            return visible[0]
        names = " or ".join(tool.name for tool in visible[:5])
        raise CallError(f"{shorten(name)!r} is ambiguous: call {names} by name.")

    def _not_available(self, name: str) -> CallError:
        if name in self.held_names:
            return Refused(f"{name!r} waits for a person to look at it: `toolfold mcp review`.")
        visible = self.granted if self.visible_names is None else self.granted & self.visible_names
        known = visible - self.unavailable.keys()
        if not self.searchable:
            return OutOfScope(name, nearest(name, known))
        return OutOfScope(name, nearest(name, known | BRIDGE_NAMES), hint="Use tool_search to see what is.")


def _unavailable_error(name: str, reason: str) -> CallError:
    return CallError(f"{name!r} cannot be used right now: {reason}.")


def assemble(
    snapshot: Snapshot,
    granted: frozenset[str],
    availability: Availability,
    *,
    hidden: frozenset[str] = frozenset(),
) -> Turn:
    """The turn of a session that was granted these names; `hidden` ones are callable but not shown."""
    return begin_turn(Grant.from_names(snapshot, granted, hidden), availability)


def begin_turn(
    grant: Grant,
    availability: Availability,
    bridge: Bridge | None = None,
    *,
    awaiting: frozenset[str] = frozenset(),
    direct: frozenset[str] = frozenset(),
) -> Turn:
    """A turn that shows all that was granted and can work now."""
    failures = availability.failures(grant.checked)
    unavailable = failures.unavailable
    offered, names = grant.tools, grant.tool_names
    if unavailable:
        offered = [tool for tool in offered if tool.name not in unavailable]
        names = names.difference(unavailable)
    return Turn(
        grant.snapshot,
        grant.names,
        unavailable,
        offered,
        offered,
        names,
        bridge,
        visible_names=grant.shown,
        held_names=awaiting,
        failing=failures.failing,
        direct=direct,
    )


def select_showable(grant: Grant, turn: Turn, names: Iterable[str]) -> list[Tool]:
    """The tools of these names, in their order, of those that may be shown in this turn."""
    tools = (grant.snapshot.get(name) for name in names if name in grant.shown)
    return [tool for tool in tools if tool is not None and tool.name not in turn.unavailable]


def render_definitions(tools: Iterable[Tool]) -> list[Definition]:
    """Each tool's definition; those that mention other tools mention only the ones beside them."""
    tools = list(tools)
    adapting = any(tool.adapt for tool in tools)
    present = frozenset(tool.name for tool in tools) if adapting else frozenset[str]()
    return [_adapt_definition(tool, present) if tool.adapt else tool.definition() for tool in tools]


def _adapt_definition(tool: Tool, present: frozenset[str]) -> Definition:
    assert tool.adapt is not None  # noqa: S101  (narrowing only)
    try:
        adapted = tool.adapt(tool.definition(), present)
        if adapted["function"]["name"] != tool.name:
            raise ValueError(f"it names {adapted['function']['name']!r}")
    except Exception:  # a tool's own code: its plain definition still serves
        log.exception("the definition of %r could not be adapted", tool.name)
        return tool.definition()
    return adapted
