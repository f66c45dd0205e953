"""Build the model requests of a session: placement of tools, and tools sent in every request.

Holds the state of one session's requests. Knows nothing of how a session is granted its tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from toolfold.config.settings import ToolsSettings
from toolfold.core.types import BRIDGE_NAMES, Json, Tool
from toolfold.models import Dialect, Message
from toolfold.selection.turn.answers import find_known_signatures
from toolfold.selection.turn.assembly import Turn, select_showable
from toolfold.selection.turn.bridge import Bridge
from toolfold.selection.turn.grant import Grant
from toolfold.selection.turn.native import NativePolicy
from toolfold.selection.turn.notes import History
from toolfold.selection.turn.placement import DefinitionCache, PlacementPolicy, Request, SessionPlacement
from toolfold.selection.turn.request_cost import Placement
from toolfold.selection.turn.selection import Selector


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """Settings and components with which all sessions of a runtime build requests."""

    settings: ToolsSettings
    selector: Selector
    bridge: Bridge
    placements: PlacementPolicy = field(default_factory=PlacementPolicy)
    native: NativePolicy = field(default_factory=NativePolicy)
    wording: DefinitionCache = field(default_factory=DefinitionCache)


class RequestBuilder:
    """Builds the model requests of one session; each repeats the previous request as a cacheable prefix."""

    def __init__(self, policy: RequestPolicy) -> None:
        self._policy = policy
        self._placing = SessionPlacement(policy.wording, most=policy.settings.rag_append_max)

    def use_policy(self, policy: RequestPolicy) -> None:
        """Change the settings for later requests; content repeated from earlier requests stays the same."""
        self._policy = policy
        self._placing.max_appended = policy.settings.rag_append_max

    def export_state(self) -> Json:
        """Return the session's request state as JSON data, for `restore_state` in another process."""
        return self._placing.export_state()

    def restore_state(self, state: Json) -> None:
        """Continue a session with the request state exported by another process."""
        self._placing.restore_state(state)

    def read(self, messages: Sequence[Message]) -> History:
        """Return the caller's history with the notes about tools added to earlier requests."""
        return self._placing.read(messages)

    def build(
        self,
        grant: Grant,
        turn: Turn,
        history: History,
        *,
        dialect: Dialect,
        model: str,
        native: bool | None,
        cache: bool,
    ) -> Request:
        """Return the model request for a turn and its message history.

        Raises ValueError if `native` is True and the dialect or the model has no native form.
        """
        policy = self._policy
        is_native = policy.native.decide(native, policy.settings.rag_native, dialect=dialect, model=model)
        placement = self._choose_placement(turn, model, dialect)
        selected = turn.selection.names if turn.selection else ()
        placed = self._placing.place(
            turn,
            history,
            fixed=self._fixed_tools(grant, turn, "tail" if is_native else placement),
            chosen=select_showable(
                grant, turn, history.newest_note.chosen if history.newest_note else selected
            ),
            placement=placement,
            dialect=dialect,
            native=is_native,
        )
        searchable = turn.searchable or any(tool.name in BRIDGE_NAMES for tool in placed.tools)
        direct = turn.direct.intersection(tool.name for tool in placed.tools)
        known = find_known_signatures(history.plain_messages()) if searchable and not is_native else {}
        turn = replace(turn, tools=placed.tools, searchable=searchable, direct=direct, known_signatures=known)
        return Request.of(placed, turn, dialect, cache=cache)

    def _choose_placement(self, turn: Turn, model: str, dialect: Dialect) -> Placement:
        settings = self._policy.settings
        if not turn.selects:  # nothing is selected, so there is nothing to place
            return "replace"
        choice = settings.rag_placement
        if choice == "auto" and settings.tool_search.enabled == "off":
            choice = "replace"  # tools listed beside a message are called through the bridge
        elif choice == "auto" and settings.selection == "auto":
            choice = "tail"  # keeps every prompt cache, also those of servers without prices
        return self._policy.placements.choose(choice, model, dialect)

    def _fixed_tools(self, grant: Grant, turn: Turn, placement: Placement) -> list[Tool]:
        """Return the tools that are sent in every request, regardless of the selection for the message.

        For placements with a constant array they do not depend on the message.
        """
        policy = self._policy
        if not turn.selects:
            return list(turn.tools)
        bridge = [tool for tool in turn.tools if tool.name in BRIDGE_NAMES]
        selected = turn.selection.names if turn.selection else ()
        if placement == "replace":
            fixed = [tool for tool in turn.tools if tool.name not in selected]
        else:
            pinned = policy.selector.pinned(grant)
            fixed = [*select_showable(grant, turn, (tool.name for tool in pinned)), *bridge]
        if not bridge and turn.offered and (placement == "tail" or not (fixed or selected)):
            fixed += policy.bridge.tools  # the array must not be empty while there is a tool to call
        return fixed
