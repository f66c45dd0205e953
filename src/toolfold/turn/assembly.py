"""From a grant to a Turn: who is here, who can work, and how each describes itself in that company."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from toolfold.availability import Availability
from toolfold.errors import CallError, OutOfScope, nearest
from toolfold.model import Definition, Tool
from toolfold.registry import Snapshot

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn's tools, pinned: a change of the registry shows in the next turn."""

    snapshot: Snapshot
    granted: frozenset[str]
    unavailable: Mapping[str, str] = field(default_factory=dict)
    tools: Sequence[Tool] = ()
    """What the model is shown, in a stable order."""

    def tool(self, name: str) -> Tool:
        """The scope gate. What was not granted is not found, and no hint says that it exists."""
        tool = self.snapshot.find(name)
        if tool is None or tool.name not in self.granted:
            raise OutOfScope(name, nearest(name, self.granted - self.unavailable.keys()))
        if tool.name in self.unavailable:
            raise CallError(f"{tool.name!r} cannot be used right now: {self.unavailable[tool.name]}.")
        return tool

    def definitions(self) -> list[Definition]:
        """The tools array for the model, in the OpenAI form."""
        return definitions(self.tools)


def assemble(
    snapshot: Snapshot,
    granted: frozenset[str],
    availability: Availability,
    *,
    hidden: frozenset[str] = frozenset(),
) -> Turn:
    """The turn of a session that was granted these names; `hidden` ones are callable but not shown."""
    visible = granted - hidden
    tools = [tool for tool in snapshot.ordered if tool.name in visible]
    unavailable = availability.unavailable(tools)
    offered = [tool for tool in tools if tool.name not in unavailable] if unavailable else tools
    return Turn(snapshot, granted, unavailable, offered)


def definitions(tools: Iterable[Tool]) -> list[Definition]:
    """Each tool's definition; those that mention other tools mention only the ones beside them."""
    tools = list(tools)
    adapting = any(tool.adapt for tool in tools)
    present = frozenset(tool.name for tool in tools) if adapting else frozenset[str]()
    return [_adapted(tool, present) if tool.adapt else tool.definition() for tool in tools]


def _adapted(tool: Tool, present: frozenset[str]) -> Definition:
    assert tool.adapt is not None  # noqa: S101  (narrowing only)
    try:
        adapted = tool.adapt(tool.definition(), present)
        if adapted["function"]["name"] != tool.name:
            raise ValueError(f"it names {adapted['function']['name']!r}")
    except Exception:  # a tool's own code: its plain definition still serves
        log.exception("the definition of %r could not be adapted", tool.name)
        return tool.definition()
    return adapted
