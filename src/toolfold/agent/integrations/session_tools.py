"""List, select and call a session's tools; shared by the adapters for agent frameworks."""

from __future__ import annotations

import itertools
import keyword
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from toolfold.core.types import BRIDGE_NAMES, Definition, Json, ToolCall, ToolResult
from toolfold.runtime.session import Session
from toolfold.selection.turn import Turn, copy_definitions

__all__ = ["SessionTools", "make_call", "make_identifiers"]

T = TypeVar("T")


class SessionTools:
    """Lists, selects and calls the tools of a session for an agent framework."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def list_all(self) -> list[Definition]:
        """Return the definitions of all tools that the session may call, and of the search tools.

        For frameworks that accept only calls of tools that they know in advance.
        """
        turn = self.session.assemble()
        bridge = turn.bridge.tools if turn.bridge else ()
        return copy_definitions([*turn.offered, *bridge])

    async def select(self, messages: str | Sequence[Mapping[str, Any]]) -> list[Definition]:
        """Start a conversation turn and return the definitions of the tools that fit the conversation."""
        turn = await self.session.prepare(messages)
        return turn.definitions()

    def select_sync(self, messages: str | Sequence[Mapping[str, Any]]) -> list[Definition]:
        """Synchronous version of `select`."""
        return self.session.definitions(messages)

    async def select_names(self, messages: str | Sequence[Mapping[str, Any]]) -> frozenset[str]:
        """Start a conversation turn and return the names of the tools that fit the conversation."""
        return _shown_names(await self.session.prepare(messages))

    def select_names_sync(self, messages: str | Sequence[Mapping[str, Any]]) -> frozenset[str]:
        """Synchronous version of `select_names`."""
        return _shown_names(self.session.assemble(messages))

    async def keep_selected(
        self, tools: Iterable[T], name_of: Callable[[T], str], messages: str | Sequence[Mapping[str, Any]]
    ) -> list[T]:
        """Start a conversation turn; drop session tools that do not fit it from the framework's tools.

        Tools that do not belong to the session are all kept.
        """
        shown = await self.select_names(messages)
        hidden = (self.session.granted() | BRIDGE_NAMES) - shown
        return [each for each in tools if name_of(each) not in hidden]

    async def call(self, name: str, arguments: Json | str | None, call_id: str = "") -> ToolResult:
        """Run one tool call in the session; errors are returned as results, not raised."""
        return await self.session.call(name, arguments, call_id=call_id or None)

    def call_sync(self, name: str, arguments: Json | str | None, call_id: str = "") -> ToolResult:
        """Run one tool call in the session from synchronous code."""
        return self.session.call_sync(name, arguments, call_id=call_id or None)

    async def call_all(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Run all calls of one model reply and return the results in the order of the calls."""
        return await self.session.call_all(calls)


def make_call(call_id: str | None, name: str, arguments: Json | str) -> Json:
    """Return a tool call in the OpenAI format."""
    return {"id": call_id or "", "type": "function", "function": {"name": name, "arguments": arguments}}


def _shown_names(turn: Turn) -> frozenset[str]:
    return frozenset(tool.name for tool in turn.tools)


def make_identifiers(names: Collection[str]) -> dict[str, str]:
    """Return a unique Python identifier for each tool name, for frameworks that require identifiers.

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
