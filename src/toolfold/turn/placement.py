"""Where a turn's selection stands in the request, so that a provider's prompt cache keeps what it can.

`replace`: the tools array is this turn's. `append`: a session's array only grows, until it reaches its
cap and begins anew. `tail`: the array is constant, and the chosen tools are told beside the user's newest
message, where they stay. No placement alters a message that was sent before. Knows nothing of how tools
are chosen; everything that was granted stays callable in all three.
"""

from __future__ import annotations

import logging
import re
import threading
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from toolfold.model import BRIDGE_NAMES, BRIDGE_SEARCH, Definition, Json, Tool, ToolResult
from toolfold.providers import DEFAULT_MEDIA_KINDS, Dialect, DialectName, Message
from toolfold.providers.anthropic_messages import MAX_TOOLS, find_references
from toolfold.turn.answers import MAX_DESCRIPTION_CHARS, to_single_line
from toolfold.turn.assembly import Turn, render_definitions
from toolfold.turn.cost import Placement, best_placement
from toolfold.turn.notes import CLOSING, OPENING, History, Note, Notes
from toolfold.turn.pricing import Prices, prices_for
from toolfold.turn.signature import MAX_SIGNATURE_CHARS as LONGEST_SIGNATURE
from toolfold.turn.signature import signature
from toolfold.turn.slimming import Slimmer, slim

log = logging.getLogger(__name__)

PlacementChoice = Literal["auto", "replace", "append", "tail"]

MAX_APPENDED_TOOLS = 48
MAX_TAIL_CHARS = 24_000
MAX_KEPT_DEFINITIONS = 1_000
"""How many definitions of tools that are gone are kept, should a history refer to them."""

# What a model may read as the end of our note or as somebody else's turn: tags and marks of any family.
_MARKUP_LIKE = re.compile(r"[<＜](?![\s\d=])[\u0300-\u036f]*|\[(?=/?INST\])", re.IGNORECASE)


class PlacementPolicy:
    """Which placement costs least with a model; worked out once for each set of prices."""

    def __init__(self) -> None:
        self._best: dict[Prices, Placement] = {}

    def choose(self, choice: PlacementChoice, model: str, dialect: Dialect) -> Placement:
        """The placement that is meant, for a model or else for those that speak this form."""
        if choice != "auto":
            return choice
        prices = replace(prices_for(model or dialect.default_model), name="")
        if prices not in self._best:
            self._best[prices] = best_placement(prices)
        return self._best[prices]


class DefinitionCache:
    """How each tool is written for a model, worked out once and kept as long as the tool lives."""

    def __init__(self) -> None:
        self._slimmer = Slimmer()
        self._lock = threading.Lock()
        self._lines: weakref.WeakKeyDictionary[Tool, str] = weakref.WeakKeyDictionary()

    def definition(self, turn: Turn, tool: Tool) -> Definition:
        """The slim definition, in the company of all that the turn may call."""
        return slim(turn.described(tool)) if tool.adapt else self._slimmer(tool)

    def array(self, tools: Sequence[Tool]) -> list[Definition]:
        """Slim definitions, each in the company of the others."""
        written = zip(tools, render_definitions(tools), strict=True)
        return [slim(definition) if tool.adapt else self._slimmer(tool) for tool, definition in written]

    def line(self, turn: Turn, tool: Tool) -> str:
        """A tool on one line: foreign words that end no line and close no bracket of ours."""
        if tool.adapt:  # it may speak of its company, which is this turn's
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
    """One request's tools and messages, before they are written in a provider's form."""

    tools: Sequence[Tool]
    definitions: Sequence[Definition]
    messages: list[Json]
    placement: Placement
    tail: str = ""
    """What stands beside the user's newest message."""
    reset: bool = False
    """Whether the array is another than the last one, where it was to stay."""
    why: str = ""
    constant: int = 0
    """How many tools at the front are there whatever is chosen."""
    deferred: Mapping[str, Definition] | None = None
    """Tools that the provider loads when an answer names them."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to send: `tools` and `messages` in the provider's form."""

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
        """Render a request. With `cache`, dialects that need one get a mark after the constant tools."""
        is_native = placed.deferred is not None
        listed = placed.deferred if is_native and dialect.lists_deferred_tools else None
        return cls(
            dialect.render_tools(
                placed.definitions,
                deferred=list((listed or {}).values()),
                native=is_native,
                cache_after=placed.constant if cache else 0,
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
        """Return the messages to append to the history for the calls of one reply.

        `takes` lists the kinds of media that the model accepts.
        """
        return self.dialect.render_results(results, deferred=self.deferred, media_kinds=takes)


class SessionPlacement:
    """What one session must remember so that its next request begins like its last. Thread-safe."""

    def __init__(self, wording: DefinitionCache, *, most: int = MAX_APPENDED_TOOLS) -> None:
        self._wording = wording
        self._most = most
        self._lock = threading.Lock()
        self._notes = Notes()
        self._array = _ToolsArray(wording)
        self._deferred: dict[str, tuple[Tool, Definition]] = {}
        self._last: Placement | None = None

    def export_state(self) -> Json:
        """Return what makes the next request start like the last one, as JSON data."""
        with self._lock:
            return {
                "notes": self._notes.export_state(),
                "array": self._array.export_state(),
                "placement": self._last,
            }

    def restore_state(self, state: Json) -> None:
        """Continue a session whose state was exported by another process."""
        with self._lock:
            self._notes.restore_state(state["notes"])
            self._array.restore_state(state["array"])
            self._last = state["placement"]

    def read(self, messages: Sequence[Message]) -> History:
        """The caller's history. What was chosen for its newest message before is `recalled` with it."""
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
        """The `fixed` tools, and the ones `chosen` for the newest message in their place.

        `native` is for forms that have something of their own for tools that come late.
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
        if not why and len(grown) > self._most and grown != wanted:
            why = f"more than {self._most} chosen tools"
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
        """The array is constant as at the tail, and the provider itself loads what it does not hold."""
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
        """See to an array that is to stay as it is, and say why it cannot."""
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
            log.info("the tools array begins anew: %s", why)
        array = self._array
        return PlacedTools(
            array.tools, array.definitions, messages, placement, tail, bool(why), why, array.constant
        )

    def _definitions_note(self, turn: Turn, chosen: Sequence[Tool], history: History) -> Note:
        """The chosen tools as a provider takes them in the middle of a request."""
        known = history.known_lines()
        lines = {tool.name: self._wording.line(turn, tool) for tool in chosen}
        new = [tool for tool in chosen if lines[tool.name] not in known]
        given = tuple(self._wording.definition(turn, tool) for tool in new)
        return Note("", given, frozenset(lines[tool.name] for tool in new), _names_of(chosen))

    def _deferred_definitions(
        self, turn: Turn, shown: Sequence[Tool], history: History
    ) -> Mapping[str, Definition]:
        """Every other tool, and of those that are gone the ones that answers in the history refer to."""
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
        """What is gone is kept for a history that refers to it after all, the latest of it."""
        gone = [name for name in self._deferred if name not in wanted]
        for name in gone[: max(0, len(gone) - MAX_KEPT_DEFINITIONS)]:
            del self._deferred[name]


class _ToolsArray:
    """A tools array as it was last sent. What it holds is written once and never again."""

    def __init__(self, wording: DefinitionCache) -> None:
        self._wording = wording
        self._held: dict[str, tuple[Tool | None, Definition]] = {}
        """Name → the tool, None until a turn has shown that a restored one still exists, and its text."""
        self.constant = 0

    def export_state(self) -> Json:
        """Return the array as JSON data."""
        written = [definition for _, definition in self._held.values()]
        return {"constant": self.constant, "definitions": written}

    def restore_state(self, state: Json) -> None:
        """Continue with an exported array; its definitions are sent again as they were."""
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
        """Why the array can no longer be sent as it is. That a tool cannot work just now is no reason."""
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
        """Put those of the tools at the end that are not there; `anew`, for whatever reason, all of them."""
        if anew or not self._held:
            self._held, self.constant = {}, constant
        for tool in tools:
            if tool.name not in self._held:
                self._held[tool.name] = tool, self._wording.definition(turn, tool)


class _OfferedDefinitions(Mapping[str, Definition]):
    """The definitions of a turn's tools, each written when it is asked for."""

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
    called = to_single_line(signature(tool), LONGEST_SIGNATURE + len(tool.name))
    about = to_single_line(description, MAX_DESCRIPTION_CHARS)
    return _MARKUP_LIKE.sub("‹", f"- {called}: {about}" if about else f"- {called}")


def _text_note(turn: Turn, chosen: Sequence[Tool], known: frozenset[str], wording: DefinitionCache) -> Note:
    """The chosen tools in a few words, those left out that the request tells of already."""
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
    """What stands beside the newest message: what stood there before, or what is new."""
    note = history.newest_note or new
    return note.text if note is not None and history.newest_user_entry is not None else ""


def _names_of(tools: Sequence[Tool]) -> tuple[str, ...]:
    return tuple(tool.name for tool in tools)
