"""A session's tools in the form that the adapters of agent frameworks share."""

from __future__ import annotations

import itertools
import keyword
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from toolfold.model import BRIDGE_NAMES, Definition, Json, ToolCall, ToolResult
from toolfold.session import Session
from toolfold.turn import copy_definitions

__all__ = ["SessionTools"]


class SessionTools:
    """Lists, selects and calls the tools of a session for an agent framework."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def list_all(self) -> list[Definition]:
        """Return the definitions of every tool that the session may call, and of the bridge tools.

        For frameworks that accept only calls of tools that they know in advance.
        """
        turn = self.session.assemble()
        bridge = turn.bridge.tools if turn.bridge else ()
        return copy_definitions([*turn.offered, *bridge])

    async def select(self, messages: str | Sequence[Mapping[str, Any]]) -> list[Definition]:
        """Begin a turn and return the definitions of the tools to show for a conversation."""
        turn = await self.session.prepare(messages)
        return turn.definitions()

    def select_sync(self, messages: str | Sequence[Mapping[str, Any]]) -> list[Definition]:
        """Begin a turn like `select`, from synchronous code."""
        return self.session.definitions(messages)

    async def select_names(self, messages: str | Sequence[Mapping[str, Any]]) -> frozenset[str]:
        """Begin a turn and return the names of the tools to show for a conversation."""
        return name_set(await self.select(messages))

    def can_call(self, name: str) -> bool:
        """Return True if the name belongs to a tool of the session or to a bridge tool."""
        return name in BRIDGE_NAMES or name in self.session.granted()

    async def call(self, name: str, arguments: Json | str | None, call_id: str = "") -> ToolResult:
        """Run one tool call in the session. An error is part of the result."""
        return await self.session.call(name, arguments, call_id=call_id or None)

    def call_sync(self, name: str, arguments: Json | str | None, call_id: str = "") -> ToolResult:
        """Run one tool call in the session from synchronous code."""
        return self.session.call_sync(name, arguments, call_id=call_id or None)

    async def call_all(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Run all calls of one model reply and return the results in the order of the calls."""
        return await self.session.call_all(calls)


def name_set(definitions: Sequence[Definition]) -> frozenset[str]:
    """Return the names of the tools in a tools array."""
    return frozenset(each["function"]["name"] for each in definitions)


def make_identifiers(names: Collection[str]) -> dict[str, str]:
    """Return a different Python identifier for each name of a tool, for frameworks that require identifiers.

    A name that is an identifier stays as it is. The result does not depend on the order of the names.
    """
    identifiers = {name: name for name in names if _make_identifier(name) == name}
    taken = set(identifiers)
    for name in sorted(set(names) - taken):
        base = _make_identifier(name)
        numbered = (f"{base}_{number}" for number in itertools.count(2))
        identifiers[name] = next(each for each in itertools.chain([base], numbered) if each not in taken)
        taken.add(identifiers[name])
    return identifiers


def _make_identifier(name: str) -> str:
    identifier = re.sub(r"\W", "_", name)
    is_valid = identifier.isidentifier() and not keyword.iskeyword(identifier)
    return identifier if is_valid else f"tool_{identifier}"
