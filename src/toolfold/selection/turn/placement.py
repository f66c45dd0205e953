"""Place the selected tools in a request so that the provider's prompt cache stays valid.

`replace`: the tools array is this turn's. `append`: a session's array only grows, until it reaches its
limit and is reset. `tail`: the array is constant, and the selected tools are listed beside the user's
newest message. No placement changes a message that was sent before. Everything granted stays callable in
all three.
"""

from __future__ import annotations

import logging
import re
import threading
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from toolfold.core.types import BRIDGE_NAMES, BRIDGE_SEARCH, Definition, Json, Tool, ToolResult, copy_mutable
from toolfold.models import DEFAULT_MEDIA_KINDS, Dialect, DialectName, Message
from toolfold.models.anthropic_messages import MAX_TOOLS, find_references
from toolfold.selection.turn.answers import MAX_DESCRIPTION_CHARS, to_single_line
from toolfold.selection.turn.assembly import Turn, render_definitions
from toolfold.selection.turn.notes import CLOSING, OPENING, History, Note, Notes
from toolfold.selection.turn.pricing import Prices, prices_for
from toolfold.selection.turn.request_cost import Placement, best_placement
from toolfold.selection.turn.signature import MAX_SIGNATURE_CHARS, signature
from toolfold.selection.turn.slimming import Slimmer, slim

log = logging.getLogger(__name__)

PlacementChoice = Literal["auto", "replace", "append", "tail"]

MAX_APPENDED_TOOLS = 48
MAX_TAIL_CHARS = 24_000
MAX_KEPT_DEFINITIONS = 1_000
"""Definitions of removed tools that are kept in case a history refers to them."""

# Text that a model may read as the end of the note or as another role: tags of any model family.
_TAG_LIKE = re.compile(r"<(?![\s\d=])([^<>]*)>")  # also the limits in a signature: string<date>
_MARKUP_LIKE = re.compile(r"[<＜](?![\s\d=])[\u0300-\u036f]*|\[(?=/?INST\])", re.IGNORECASE)


class PlacementPolicy:
    """Chooses the cheapest placement of tools in requests, computed once per set of prices."""

    def __init__(self) -> None:
        self._best: dict[Prices, Placement] = {}

    def choose(self, choice: PlacementChoice, model: str, dialect: Dialect) -> Placement:
        """Return the placement of tools in a request: the configured one, or the cheapest for the model."""
        if choice != "auto":
            return choice
        prices = replace(prices_for(model or dialect.default_model), name="")
        if prices not in self._best:
            self._best[prices] = best_placement(prices)
        return self._best[prices]


class DefinitionCache:
    """Cache of the definition of each tool as sent to models, valid while the tool exists."""

    def __init__(self) -> None:
        self._slimmer = Slimmer()
        self._lock = threading.Lock()
        self._lines: weakref.WeakKeyDictionary[Tool, str] = weakref.WeakKeyDictionary()

    def definition(self, turn: Turn, tool: Tool) -> Definition:
        """Return a tool's shortened definition; its description mentions only tools of the turn."""
        return slim(turn.described(tool)) if tool.adapt else self._slimmer(tool)

    def array(self, tools: Sequence[Tool]) -> list[Definition]:
        """Return the shortened definitions of tools; their descriptions mention only these tools."""
        written = zip(tools, render_definitions(tools), strict=True)
        return [slim(definition) if tool.adapt else self._slimmer(tool) for tool, definition in written]

    def line(self, turn: Turn, tool: Tool) -> str:
        """Return a tool's line in a note about tools, escaped so that it cannot end the line or the note."""
        if tool.adapt:  # its description may mention other tools of this turn
            return _render_line(tool, turn.described(tool)["function"].get("description", ""))
        with self._lock:
            line = self._lines.get(tool)
        if line is None:
            line = _render_line(tool, tool.description)
            with self._lock:
                self._lines[tool] = line
        return line


@dataclass(frozen=True, slots=True)
class PlacedTools:
    """Tools and messages of a request before they are converted to a provider's format."""

    tools: Sequence[Tool]
    definitions: Sequence[Definition]
    messages: list[Json]
    placement: Placement
    tail: str = ""
    """The note beside the user's newest message."""
    reset: bool = False
    """True if the array changed although the placement keeps it."""
    why: str = ""
    constant: int = 0
    """The number of tools at the front that do not depend on the selection."""
    deferred: Mapping[str, Definition] | None = None
    """Tools that the provider loads when a result names them."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request ready to send: `tools` and `messages` in the provider's format."""

    tools: list[Json]
    messages: list[Json]
    turn: Turn
    form: DialectName
    placement: Placement
    tail: str = ""
    reset: bool = False
    why: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    deferred: Mapping[str, Definition] | None = None

    dialect: Dialect = field(repr=False, kw_only=True)

    @classmethod
    def of(cls, placed: PlacedTools, turn: Turn, dialect: Dialect, *, cache: bool = False) -> Request:
        """Create a request in a provider's format from its tools and messages.

        With `cache`, a cache marker follows the constant tools where a provider needs one.
        """
        is_native = placed.deferred is not None
        listed = placed.deferred if is_native and dialect.lists_deferred_tools else None
        return cls(
            copy_mutable(
                dialect.render_tools(
                    placed.definitions,
                    deferred=list((listed or {}).values()),
                    native=is_native,
                    cache_after=placed.constant if cache else 0,
                )
            ),
            placed.messages,
            turn,
            dialect.name,
            placed.placement,
            placed.tail,
            placed.reset,
            placed.why,
            dialect.native_headers if listed else {},
            placed.deferred,
            dialect=dialect,
        )

    def answer(self, *results: ToolResult, takes: Collection[str] = DEFAULT_MEDIA_KINDS) -> list[Json]:
        """Return the tool-result messages to append to the history for the calls in one model reply.

        `takes` lists the kinds of media that the model accepts.
        """
        return self.dialect.render_results(results, deferred=self.deferred, media_kinds=takes)


class SessionPlacement:
    """Content of a session's last request, which the next request repeats as a prefix. Thread-safe."""

    def __init__(self, wording: DefinitionCache, *, most: int = MAX_APPENDED_TOOLS) -> None:
        self._wording = wording
        self.max_appended = most
        self._lock = threading.Lock()
        self._notes = Notes()
        self._array = _ToolsArray(wording)
        self._deferred: dict[str, tuple[Tool, Definition]] = {}
        self._last: Placement | None = None

    def export_state(self) -> Json:
        """Return, as JSON data, the state with which another process can build the next request."""
        with self._lock:
            return {
                "notes": self._notes.export_state(),
                "array": self._array.export_state(),
                "placement": self._last,
            }

    def restore_state(self, state: Json) -> None:
        """Restore the request state that another process exported for this session."""
        with self._lock:
            self._notes.restore_state(state["notes"])
            self._array.restore_state(state["array"])
            self._last = state["placement"]

    def read(self, messages: Sequence[Message]) -> History:
        """Return the caller's history with the notes about tools added by earlier requests."""
        with self._lock:
            return self._notes.read(messages)

    def place(
        self,
        turn: Turn,
        history: History,
        *,
        fixed: Sequence[Tool],
        chosen: Sequence[Tool],
        placement: Placement,
        dialect: Dialect,
        native: bool = False,
    ) -> PlacedTools:
        """Add the `fixed` tools, and the tools `chosen` for the newest message, to a request.

        `native` uses the provider's own way of loading tools on demand.
        """
        fixed = list(fixed)
        standing = {tool.name for tool in fixed}
        chosen = [tool for tool in chosen if tool.name not in standing]
        with self._lock:
            history = self._notes.refresh(history)
            if native:
                return self._place_natively(turn, history, fixed, chosen, dialect)
            if placement == "tail":
                placed = self._place_at_tail(turn, history, fixed, chosen, dialect)
            elif placement == "append":
                placed = self._place_appended(turn, history, fixed, chosen, dialect)
            else:
                placed = self._place_replaced(history, fixed, chosen, dialect)
            self._last = placement
        return placed

    def _place_replaced(
        self, history: History, fixed: Sequence[Tool], chosen: Sequence[Tool], dialect: Dialect
    ) -> PlacedTools:
        self._array.clear()
        tools = [*fixed, *sorted(chosen, key=lambda tool: tool.name)]
        messages = self._notes.write(history, Note(chosen=_names_of(chosen)), dialect)
        return PlacedTools(
            tools, self._wording.array(tools), messages, "replace", _tail_text(history), constant=len(fixed)
        )

    def _place_appended(
        self, turn: Turn, history: History, fixed: Sequence[Tool], chosen: Sequence[Tool], dialect: Dialect
    ) -> PlacedTools:
        why = self._array.explain_outdated(turn, fixed) or self._explain_switch("append")
        wanted = {tool.name for tool in chosen}
        grown = self._array.names.union(wanted).difference(tool.name for tool in fixed)
        if not why and len(grown) > self.max_appended and grown != wanted:
            why = f"more than {self.max_appended} chosen tools"
        self._array.grow(turn, [*fixed, *chosen], anew=why, constant=len(fixed))
        messages = self._notes.write(history, Note(chosen=_names_of(chosen)), dialect)
        return self._placed_from_array("append", messages, why, _tail_text(history))

    def _place_at_tail(
        self, turn: Turn, history: History, fixed: Sequence[Tool], chosen: Sequence[Tool], dialect: Dialect
    ) -> PlacedTools:
        why = self._keep_array(turn, fixed)
        note = _text_note(turn, chosen, history.known_lines(), self._wording)
        messages = self._notes.write(history, note, dialect)
        return self._placed_from_array("tail", messages, why, _tail_text(history, note))

    def _place_natively(
        self, turn: Turn, history: History, fixed: Sequence[Tool], chosen: Sequence[Tool], dialect: Dialect
    ) -> PlacedTools:
        """Add tools to a request with a constant tools array; the provider loads other tools on demand."""
        if dialect.accepts_tools_in_input:  # tools that are found or added can be called by name at once
            fixed = [tool for tool in fixed if tool.name not in BRIDGE_NAMES or tool.name == BRIDGE_SEARCH]
        why = self._keep_array(turn, fixed)
        note = (
            self._definitions_note(turn, chosen, history)
            if dialect.accepts_tools_in_input
            else _text_note(turn, chosen, history.known_lines(), self._wording)
        )
        messages = self._notes.write(history, note, dialect)
        placed = self._placed_from_array("tail", messages, why, _tail_text(history, note))
        late: Mapping[str, Definition] = _OfferedDefinitions(turn, self._wording)
        if dialect.lists_deferred_tools:
            late = self._deferred_definitions(turn, placed.tools, history)
        return replace(placed, deferred=late)

    def _keep_array(self, turn: Turn, fixed: Sequence[Tool]) -> str:
        """Reuse the last tools array if it is still valid; return the reason if it was rebuilt."""
        why = self._array.explain_outdated(turn, fixed) or self._explain_switch("tail")
        new = [tool.name for tool in fixed if tool.name not in self._array.names]
        if self._array.names and new and not why:
            why = f"{', '.join(new[:5])} came"
        self._array.grow(turn, fixed, anew=why, constant=len(fixed))
        self._last = "tail"
        return why

    def _explain_switch(self, placement: Placement) -> str:
        return f"{placement} comes after {self._last}" if self._last not in (None, placement) else ""

    def _placed_from_array(
        self, placement: Placement, messages: list[Json], why: str, tail: str
    ) -> PlacedTools:
        if why:
            log.info("the tools array of the session was rebuilt: %s", why)
        array = self._array
        return PlacedTools(
            array.tools, array.definitions, messages, placement, tail, bool(why), why, array.constant
        )

    def _definitions_note(self, turn: Turn, chosen: Sequence[Tool], history: History) -> Note:
        """Return a note with the definitions of the selected tools that earlier notes do not contain."""
        known = history.known_lines()
        lines = {tool.name: self._wording.line(turn, tool) for tool in chosen}
        new = [tool for tool in chosen if lines[tool.name] not in known]
        given = tuple(self._wording.definition(turn, tool) for tool in new)
        return Note("", given, frozenset(lines[tool.name] for tool in new), _names_of(chosen))

    def _deferred_definitions(
        self, turn: Turn, shown: Sequence[Tool], history: History
    ) -> Mapping[str, Definition]:
        """Return the definitions of tools that are not in the request but can be loaded later.

        These include removed tools to which results in the history refer.
        """
        standing = {tool.name for tool in shown}
        wanted = find_references(history.messages) | {name for name in self._deferred if turn.may_show(name)}
        for tool in turn.offered:
            held = self._deferred.get(tool.name)
            if tool.name in standing or (held and held[0] is tool):
                continue
            if held or len(wanted) + len(standing) < MAX_TOOLS:
                self._deferred[tool.name] = tool, self._wording.definition(turn, tool)
                wanted.add(tool.name)
        self._forget_removed(wanted)
        return {
            name: late
            for name, (_, late) in self._deferred.items()
            if name in wanted and name not in standing
        }

    def _forget_removed(self, wanted: Collection[str]) -> None:
        """Remove definitions of tools that no longer exist, oldest first, until the limit is met."""
        gone = [name for name in self._deferred if name not in wanted]
        for name in gone[: max(0, len(gone) - MAX_KEPT_DEFINITIONS)]:
            del self._deferred[name]


class _ToolsArray:
    """The tools array last sent by a session; new tools are appended, so that prompt caches stay valid."""

    def __init__(self, wording: DefinitionCache) -> None:
        self._wording = wording
        self._held: dict[str, tuple[Tool | None, Definition]] = {}
        """Name → the tool, None until a turn has shown that a restored one still exists, and its text."""
        self.constant = 0

    def export_state(self) -> Json:
        """Return the tools array as JSON data."""
        written = [definition for _, definition in self._held.values()]
        return {"constant": self.constant, "definitions": written}

    def restore_state(self, state: Json) -> None:
        """Restore a tools array exported by another process, with exactly the same definitions."""
        self.constant = state["constant"]
        self._held = {each["function"]["name"]: (None, each) for each in state["definitions"]}

    @property
    def names(self) -> set[str]:
        return set(self._held)

    @property
    def tools(self) -> list[Tool]:
        return [tool for tool, _ in self._held.values() if tool is not None]

    @property
    def definitions(self) -> list[Definition]:
        return [definition for _, definition in self._held.values()]

    def clear(self) -> None:
        self._held = {}

    def explain_outdated(self, turn: Turn, fixed: Sequence[Tool]) -> str:
        """Return why the last tools array is outdated (a tool was removed or changed); empty if it is valid.

        A tool that is only unavailable at the moment stays in the array.
        """
        bridge = {tool.name: tool for tool in fixed if tool.name in BRIDGE_NAMES}
        for name, (tool, written) in list(self._held.items()):
            now = turn.snapshot.get(name) if turn.may_show(name) else None
            if name in BRIDGE_NAMES:
                now = bridge.get(name, tool)
            if now is None:
                return f"{name} is gone"
            if now is not tool and self._wording.definition(turn, now) != written:
                return f"{name} changed"
            self._held[name] = now, written
        return ""

    def grow(self, turn: Turn, tools: Sequence[Tool], *, anew: str, constant: int) -> None:
        """Append missing tools to the tools array; clear the array first if `anew` is not empty."""
        if anew or not self._held:
            self._held, self.constant = {}, constant
        for tool in tools:
            if tool.name not in self._held:
                self._held[tool.name] = tool, self._wording.definition(turn, tool)


class _OfferedDefinitions(Mapping[str, Definition]):
    """Mapping of a turn's tool names to definitions, which are created on first access."""

    def __init__(self, turn: Turn, wording: DefinitionCache) -> None:
        self._turn, self._wording = turn, wording
        self._tools = {tool.name: tool for tool in turn.offered}

    def __getitem__(self, name: str) -> Definition:
        return self._wording.definition(self._turn, self._tools[name])

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)


def _render_line(tool: Tool, description: str) -> str:
    called = to_single_line(signature(tool), MAX_SIGNATURE_CHARS + len(tool.name))
    about = to_single_line(description, MAX_DESCRIPTION_CHARS)
    line = _TAG_LIKE.sub(r"‹\1›", f"- {called}: {about}" if about else f"- {called}")
    return _MARKUP_LIKE.sub("‹", line)


def _text_note(turn: Turn, chosen: Sequence[Tool], known: frozenset[str], wording: DefinitionCache) -> Note:
    """Return a note with one line for each selected tool that is not yet described in the request."""
    new: list[str] = []
    room = MAX_TAIL_CHARS
    lines = {tool.name: wording.line(turn, tool) for tool in chosen}
    unknown = [line for line in lines.values() if line not in known]
    for line in unknown:
        room -= len(line) + 1
        if room < 0:
            break
        new.append(line)
    if not new:
        return Note(chosen=_names_of(chosen))
    above = [name for name, line in lines.items() if line in known]
    told = [OPENING, *new]
    if len(new) < len(unknown):
        told.append(f"… {len(unknown) - len(new)} more: tool_search finds them.")
    if above:
        told.append(f"Also, from above: {', '.join(above)}.")
    return Note("\n".join([*told, CLOSING]), (), frozenset(new), _names_of(chosen))


def _tail_text(history: History, new: Note | None = None) -> str:
    """Return the text of the newest message's note about tools: the note already sent, or the new note."""
    note = history.newest_note or new
    return note.text if note is not None and history.newest_user_entry is not None else ""


def _names_of(tools: Sequence[Tool]) -> tuple[str, ...]:
    return tuple(tool.name for tool in tools)
