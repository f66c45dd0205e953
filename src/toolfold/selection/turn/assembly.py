"""Build a turn: the available tools of a session and their descriptions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from toolfold.core.availability import Availability
from toolfold.core.errors import CallError, OutOfScope, Refused, closest_names, shorten
from toolfold.core.registry import Snapshot
from toolfold.core.types import BRIDGE_NAMES, Definition, Tool, copy_mutable
from toolfold.selection.turn.grant import Grant

if TYPE_CHECKING:
    from toolfold.selection.turn.bridge import Bridge
    from toolfold.selection.turn.selection import Selection

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Turn:
    """The tools of a session in one turn; later changes of the tools take effect in the next turn."""

    snapshot: Snapshot
    granted: frozenset[str]
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Name → reason, for granted tools that are neither listed nor callable."""
    tools: Sequence[Tool] = ()
    """Tools shown to the model, in a stable order."""
    offered: Sequence[Tool] = ()
    """Tools that could be shown, by name: everything granted that works now."""
    offered_names: frozenset[str] = frozenset()
    bridge: Bridge | None = None
    """Answers the model's questions about tools it was not shown."""
    searchable: bool = False
    """True if the model was given the bridge tools."""
    selection: Selection | None = None
    """The tools selected for the conversation, with reasons; None if selection is off."""
    visible_names: frozenset[str] | None = None
    """Names that may be mentioned to the model; None for everything granted."""
    held_names: frozenset[str] = frozenset()
    """Names of tools that would be granted once a person has reviewed them."""
    failing: Mapping[str, str] = field(default_factory=dict)
    """Name → reason, for tools that stay listed during a grace period but cannot be called."""
    direct: frozenset[str] = frozenset()
    """Names of tools that are always in the model's list and therefore not searchable."""
    selects: bool = False
    """True if tools are selected for each message of the conversation."""
    why: str = ""
    """Why tools are deferred to tool search in this turn, or why they are not."""
    known_signatures: Mapping[str, str] = field(default_factory=dict)
    """Name → signature, for tools in search results that the model still has in its messages."""
    explain_missing: Callable[[str], str] | None = None
    """Function that returns why a tool of this name is not known yet; empty if no server could have it."""

    def tool(self, name: str) -> Tool:
        """Return the callable tool with this name. Raises CallError for tools outside the session's grant."""
        if self.bridge is not None and name in self.bridge:
            return self.bridge.tool(name, self)
        tool = self._find_listed(name)
        if tool.name in self.failing:
            raise _unavailable_error(tool.name, self.failing[tool.name])
        return tool

    def find_visible(self, name: str) -> Tool:
        """Return the tool with this name if the model can see it. Raises CallError for any other tool."""
        tool = self._find_listed(name)
        if self.visible_names is not None and tool.name not in self.visible_names:
            raise self._not_available(name)
        return tool

    def may_show(self, name: str) -> bool:
        """Return True if the tool exists and may be listed for the model, even if it is unavailable now."""
        return (
            name in self.granted
            and name in self.snapshot
            and (self.visible_names is None or name in self.visible_names)
        )

    def may_call(self, tool: Tool) -> bool:
        """Return True if the tool is granted to the session, available, and visible to the model."""
        return self.may_show(tool.name) and tool.name not in self.unavailable

    def definitions(self) -> list[Definition]:
        """Return the definitions of the visible tools in the OpenAI format, as plain dicts."""
        return copy_definitions(self.tools)

    def described(self, tool: Tool) -> Definition:
        """Return the definition of one tool; its description mentions only tools of this turn."""
        return _adapt_definition(tool, self.offered_names) if tool.adapt else tool.definition()

    @property
    def searchable_names(self) -> frozenset[str]:
        """Return the names of the tools that `tool_search` may find, which are not in the tools array."""
        return self.offered_names - self.direct if self.direct else self.offered_names

    @property
    def awaiting(self) -> frozenset[str]:
        """Deprecated name of `held_names`."""
        return self.held_names

    @property
    def shown(self) -> frozenset[str] | None:
        """Deprecated name of `visible_names`."""
        return self.visible_names

    def told(self, name: str) -> Tool:
        """Deprecated name of `find_visible`."""
        return self.find_visible(name)

    def _find_listed(self, name: str) -> Tool:
        tool = self._find_granted(name)
        if tool.name in self.unavailable:
            raise _unavailable_error(tool.name, self.unavailable[tool.name])
        return tool

    def _find_granted(self, name: str) -> Tool:
        """Return the granted tool with this name. Raises CallError if several tools match the name."""
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
        raise CallError(f"{shorten(name)!r} could mean several tools: call {names} by its full name.")

    def _not_available(self, name: str) -> CallError:
        if name in self.held_names:
            return Refused(f"{name!r} cannot be used until a person reviews it: `toolfold mcp review`.")
        if self.explain_missing and (why := self.explain_missing(name)):
            return CallError(f"{shorten(name)!r} cannot be called yet: {why}")
        visible = self.granted if self.visible_names is None else self.granted & self.visible_names
        known = visible - self.unavailable.keys()
        if not self.searchable:
            return OutOfScope(name, closest_names(name, known))
        return OutOfScope(
            name,
            closest_names(name, known | BRIDGE_NAMES),
            hint="Use tool_search to see which tools are available.",
        )


def _unavailable_error(name: str, reason: str) -> CallError:
    return CallError(f"{name!r} cannot be used right now: {reason}.")


def assemble(
    snapshot: Snapshot,
    granted: frozenset[str],
    availability: Availability,
    *,
    hidden: frozenset[str] = frozenset(),
) -> Turn:
    """Build a turn from the granted tools of a session; `hidden` tools are callable but not listed."""
    return begin_turn(Grant.from_names(snapshot, granted, hidden), availability)


def begin_turn(
    grant: Grant,
    availability: Availability,
    bridge: Bridge | None = None,
    *,
    awaiting: frozenset[str] = frozenset(),
    explain_missing: Callable[[str], str] | None = None,
    direct: frozenset[str] = frozenset(),
) -> Turn:
    """Return a turn that lists every granted and available tool of the session."""
    failures = availability.find_failures(grant.checked)
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
        explain_missing=explain_missing,
        direct=direct,
    )


def select_showable(grant: Grant, turn: Turn, names: Iterable[str]) -> list[Tool]:
    """Return the named tools in the same order, omitting tools that the model may not see in this turn."""
    tools = (grant.snapshot.get(name) for name in names if name in grant.shown)
    return [tool for tool in tools if tool is not None and tool.name not in turn.unavailable]


def render_definitions(tools: Iterable[Tool]) -> list[Definition]:
    """Return tool definitions whose descriptions mention only tools in the list."""
    tools = list(tools)
    adapting = any(tool.adapt for tool in tools)
    present = frozenset(tool.name for tool in tools) if adapting else frozenset[str]()
    return [_adapt_definition(tool, present) if tool.adapt else tool.definition() for tool in tools]


def copy_definitions(tools: Iterable[Tool]) -> list[Definition]:
    """Return tool definitions as plain dicts that the caller may change."""
    copied: list[Definition] = copy_mutable(render_definitions(tools))
    return copied


def _adapt_definition(tool: Tool, present: frozenset[str]) -> Definition:
    assert tool.adapt is not None  # noqa: S101  (narrowing only)
    try:
        adapted = tool.adapt(tool.definition(), present)
        if adapted["function"]["name"] != tool.name:
            raise ValueError(f"it names {adapted['function']['name']!r}")
    except Exception:  # a tool's own code: its plain definition still serves
        log.exception("the definition of tool %r could not be adapted and is used unchanged", tool.name)
        return tool.definition()
    return adapted
