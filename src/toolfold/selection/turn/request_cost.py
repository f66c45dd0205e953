"""Compute the cost of a conversation in dollars for each strategy of presenting tools to a model.

Each strategy writes one dialogue down as the model calls it would make; `pricing` adds them up. Sends
nothing, reads no file and knows tools only by name and size.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from toolfold.config.settings import ToolsSettings
from toolfold.core.types import Tool
from toolfold.selection.turn.answers import MAX_DESCRIPTION_CHARS, to_single_line
from toolfold.selection.turn.pricing import Bill, ModelCall, Prices, Segment, compute_bill
from toolfold.selection.turn.signature import signature
from toolfold.selection.turn.slimming import Slimmer
from toolfold.selection.turn.tokens import TokenCounter

Placement = Literal["replace", "append", "tail"]
PLACEMENTS: tuple[Placement, ...] = ("tail", "append", "replace")

# The dialogue and its tools


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call in a cost simulation: token counts of its arguments and result."""

    tool: str
    arguments: int
    result: int


@dataclass(frozen=True, slots=True)
class DialogueTurn:
    """A user message in a cost simulation, with its tool calls and answer, as token counts."""

    user: int
    calls: tuple[Call, ...] = ()
    answer: int = 0
    ranked: tuple[str, ...] = ()
    """The tools that a search for the message finds, best first."""
    pause: float = 0.0
    """Seconds before the message."""
    selected: tuple[str, ...] | None = None
    """The tools that a session selects for the message, best first; None if that is not known."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A recorded or generated conversation for a cost simulation, as token counts."""

    system: int
    turns: tuple[DialogueTurn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSizes:
    """Token counts of tools in each format seen by a model, and the number of tools shown at once.

    The defaults are those of the settings, with the bridge tools without a listing.
    """

    full: Mapping[str, int]
    slim: Mapping[str, int]
    hit: Mapping[str, int]
    """Tokens in a search result or in a note: name, description and signature."""
    brief: Mapping[str, int]
    """In a search result without signatures."""
    core: frozenset[str] = frozenset()
    """Tools that are never deferred."""
    pinned: frozenset[str] = frozenset()
    """Tools that are shown beside every selection."""
    bridge: int = 224
    hits: int = 5
    """Tools in one search result."""
    shown: int = 8
    """Tools in one selection, if a message does not say which are selected for it."""
    limit: int | None = None
    """If set, only this many of the tools selected for a message are shown."""
    most_grown: int = 48
    """Tools that an append-only array may reach before it is reset."""


_HIT_OVERHEAD_TOKENS = 8
"""The JSON around a hit's name and description."""
_SIGNATURE_OVERHEAD_TOKENS = 4


def measure_tools(
    tools: Iterable[Tool], counter: TokenCounter, settings: ToolsSettings, *, bridge: Iterable[Tool]
) -> ToolSizes:
    """Count the tokens of tools in every format seen by a model, such as a search result."""
    tools, slimmer = list(tools), Slimmer()
    brief = {tool.name: _HIT_OVERHEAD_TOKENS + counter.text(_hit_text(tool)) for tool in tools}
    return ToolSizes(
        full={tool.name: counter.definition(tool.definition()) for tool in tools},
        slim={tool.name: counter.definition(slimmer(tool)) for tool in tools},
        hit={
            tool.name: brief[tool.name] + _SIGNATURE_OVERHEAD_TOKENS + counter.text(signature(tool))
            for tool in tools
        },
        brief=brief,
        core=frozenset(tool.name for tool in tools if tool.core),
        pinned=frozenset(
            tool.name
            for tool in tools
            if tool.name in settings.pinned or (tool.core and settings.selection == "auto")
        ),
        bridge=counter.definitions(map(slimmer, bridge)),
        hits=settings.tool_search.search_default_limit,
        shown=settings.rag_top_k,
        most_grown=settings.rag_append_max,
    )


def _hit_text(tool: Tool) -> str:
    return f"{tool.name}: {to_single_line(tool.description, MAX_DESCRIPTION_CHARS)}"


@dataclass(frozen=True, slots=True)
class DialogueMessage:
    """User message for `generate_dialogue`: token count, needed tools, search results, selected tools."""

    tokens: int
    needs: tuple[str, ...]
    ranked: tuple[str, ...]
    selected: tuple[str, ...] | None = None


def generate_dialogue(messages: Sequence[DialogueMessage], *, system: int = 1_500, seed: int = 7) -> Dialogue:
    """Generate a conversation from messages, with random but realistic sizes and pauses."""
    dice = random.Random(seed)  # noqa: S311  (nothing to guard)
    return Dialogue(system, tuple(_generate_exchange(each, dice) for each in messages))


def _generate_exchange(asked: DialogueMessage, dice: random.Random) -> DialogueTurn:
    calls = tuple(Call(tool, _draw_size(dice, 45), _draw_size(dice, 350, most=4_000)) for tool in asked.needs)
    is_break = dice.random() < 0.1  # sometimes the pause is longer than the cache lifetime
    pause = dice.uniform(600, 1800) if is_break else dice.uniform(10, 120)
    return DialogueTurn(asked.tokens, calls, _draw_size(dice, 130), asked.ranked, pause, asked.selected)


def _draw_size(dice: random.Random, median: int, most: int = 1_000) -> int:
    return min(most, round(median * math.exp(dice.gauss(0, 0.7))))


# The strategies

_SEARCH_OUTPUT_TOKENS = 25
_DESCRIBE_OUTPUT_TOKENS = 20
_BRIDGE_CALL_TOKENS = 12
"""Extra tokens of `tool_call(name, arguments)` over a direct call."""
_MODEL_CALL_SECONDS = 4.0

_Shown = tuple[Sequence[Segment], Sequence[Segment]]


class _CallScript:
    """Builds the list of model calls of a simulated conversation."""

    def __init__(self, dialogue: Dialogue, tools: ToolSizes) -> None:
        self.tools, self._dialogue = tools, dialogue
        self.calls: list[ModelCall] = []
        self.known: set[str] = set()
        """Tools that the history has told the model how to call."""
        self.ranked: tuple[str, ...] = ()
        self._history = [Segment("system", dialogue.system)]
        self._array: Sequence[Segment] = ()
        self._turn, self._now = 0, 0.0

    def write(
        self, show: Callable[[_CallScript, DialogueTurn], _Shown], find: Callable[[_CallScript, str], None]
    ) -> list[ModelCall]:
        """Simulate a conversation and return its model calls.

        `show` returns the tools for a message, `find` looks for a tool that is not shown.
        """
        for number, turn in enumerate(self._dialogue.turns):
            self._turn = number
            self._now += turn.pause
            self.ranked = turn.ranked
            self._array, beside = show(self, turn)
            self.hear("user", turn.user)
            self._history += beside
            visible = {segment.identity for segment in self._array}
            for call in turn.calls:
                if call.tool not in visible | self.known:
                    find(self, call.tool)
                self.ask(call.arguments + (0 if call.tool in visible else _BRIDGE_CALL_TOKENS))
                self.hear("result", call.result)
            self.ask(turn.answer)
        return self.calls

    def ask(self, output: int) -> None:
        """Record one simulated model call with `output` tokens, which are added to the history."""
        self.calls.append(ModelCall((*self._array, *self._history), output, self._turn, self._now))
        self._now += _MODEL_CALL_SECONDS
        self.hear("reply", output)

    def hear(self, what: str, tokens: int) -> None:
        self._history.append(Segment(f"{what} {len(self._history)}", tokens))

    def found(self, name: str) -> list[list[str]]:
        """Return the results of the simulated searches for a tool: one search, or two if the first fails."""
        first = [each for each in self.ranked if each in self.tools.hit][: self.tools.hits]
        return [first] if name in first else [first, [name, *first[: self.tools.hits - 1]]]


def _simulate_search(script: _CallScript, name: str) -> None:
    """Simulate a search for a tool that is not in the request, followed by a call of the tool."""
    for hits in script.found(name):
        script.ask(_SEARCH_OUTPUT_TOKENS)
        script.hear("hits", sum(script.tools.hit.get(each, 0) for each in hits))
        script.known.update(hits)


def _simulate_search_and_describe(script: _CallScript, name: str) -> None:
    for hits in script.found(name):
        script.ask(_SEARCH_OUTPUT_TOKENS)
        script.hear("hits", sum(script.tools.brief.get(each, 0) for each in hits))
    script.ask(_DESCRIBE_OUTPUT_TOKENS)
    script.hear("schema", script.tools.full.get(name, 0))
    script.known.add(name)


def _array_segments(sizes: Mapping[str, int], names: Iterable[str]) -> list[Segment]:
    return [Segment(name, sizes[name]) for name in names if name in sizes]


def _constant_segments(tools: ToolSizes, sizes: Mapping[str, int], names: Iterable[str]) -> list[Segment]:
    return [Segment("the bridge", tools.bridge), *_array_segments(sizes, sorted(names))]


class _SelectionState:
    """State of a simulated tool selection: the tools called earlier in the conversation."""

    def __init__(self, tools: ToolSizes) -> None:
        self.tools = tools
        self._used: dict[str, None] = {}

    def chosen(self, turn: DialogueTurn) -> list[str]:
        """Return the tools to include in the request for a message."""
        limit = self.tools.limit
        if turn.selected is not None:
            return list(turn.selected[:limit])
        best = [name for name in turn.ranked if name not in self.tools.pinned][: self.tools.shown][:limit]
        chosen = dict.fromkeys([*self._used, *best])
        self._used.update(
            dict.fromkeys(call.tool for call in turn.calls if call.tool not in self.tools.pinned)
        )
        return list(chosen)


def _write_eager(dialogue: Dialogue, tools: ToolSizes, form: Literal["full", "slim"]) -> list[ModelCall]:
    sizes = tools.full if form == "full" else tools.slim
    array = _array_segments(sizes, sizes)
    return _CallScript(dialogue, tools).write(lambda *_: (array, ()), _simulate_search)


def _write_search_and_describe(dialogue: Dialogue, tools: ToolSizes) -> list[ModelCall]:
    array = _constant_segments(tools, tools.full, tools.core)
    return _CallScript(dialogue, tools).write(lambda *_: (array, ()), _simulate_search_and_describe)


def _write_search(dialogue: Dialogue, tools: ToolSizes) -> list[ModelCall]:
    array = _constant_segments(tools, tools.slim, tools.core)
    return _CallScript(dialogue, tools).write(lambda *_: (array, ()), _simulate_search)


def _write_replace(dialogue: Dialogue, tools: ToolSizes) -> list[ModelCall]:
    selecting, always = _SelectionState(tools), _constant_segments(tools, tools.slim, tools.pinned)

    def show(_script: _CallScript, turn: DialogueTurn) -> _Shown:
        return [*always, *_array_segments(tools.slim, sorted(selecting.chosen(turn)))], ()

    return _CallScript(dialogue, tools).write(show, _simulate_search)


def _write_append(dialogue: Dialogue, tools: ToolSizes) -> list[ModelCall]:
    selecting, always = _SelectionState(tools), _constant_segments(tools, tools.slim, tools.pinned)
    grown: dict[str, None] = {}

    def show(_script: _CallScript, turn: DialogueTurn) -> _Shown:
        chosen = selecting.chosen(turn)
        if len(grown.keys() | chosen) > tools.most_grown:
            grown.clear()
        grown.update(dict.fromkeys(chosen))
        return [*always, *_array_segments(tools.slim, grown)], ()

    return _CallScript(dialogue, tools).write(show, _simulate_search)


def _write_tail(dialogue: Dialogue, tools: ToolSizes, form: Literal["hit", "slim"]) -> list[ModelCall]:
    selecting, always = _SelectionState(tools), _constant_segments(tools, tools.slim, tools.pinned)
    sizes = tools.hit if form == "hit" else tools.slim

    def show(script: _CallScript, turn: DialogueTurn) -> _Shown:
        new = [name for name in selecting.chosen(turn) if name in sizes and name not in script.known]
        script.known.update(new)
        return always, [Segment(f"schema of {name}", sizes[name]) for name in new]

    return _CallScript(dialogue, tools).write(show, _simulate_search)


Strategy = Callable[[Dialogue, ToolSizes], list[ModelCall]]

STRATEGIES: Mapping[str, Strategy] = {
    "eager": partial(_write_eager, form="full"),
    "eager slim": partial(_write_eager, form="slim"),
    "search+describe": _write_search_and_describe,
    "search": _write_search,
    "replace": _write_replace,
    "append": _write_append,
    "tail whole": partial(_write_tail, form="slim"),
    "tail": partial(_write_tail, form="hit"),
}


# Choosing a strategy


def best_placement(
    prices: Prices, dialogue: Dialogue | None = None, tools: ToolSizes | None = None
) -> Placement:
    """Return the cheapest placement of tools in the request at the given prices."""
    if dialogue is None or tools is None:
        dialogue, tools = typical_dialogue()
    dollars = {each: compute_bill(STRATEGIES[each](dialogue, tools), prices).dollars for each in PLACEMENTS}
    return min(PLACEMENTS, key=dollars.__getitem__)


def count_shown(dialogue: Dialogue, tools: ToolSizes) -> list[int]:
    """Return the number of tools shown for each message of a conversation with tool selection."""
    counts = (tools.shown if turn.selected is None else len(turn.selected) for turn in dialogue.turns)
    return [count if tools.limit is None else min(count, tools.limit) for count in counts]


def best_limit(prices: Prices, placement: Placement, dialogue: Dialogue, tools: ToolSizes) -> int:
    """Return the limit on tools per message with which the conversation costs least."""
    write = STRATEGIES[placement]
    limits = range(1, max([1, *count_shown(dialogue, tools)]) + 1)
    spent = {
        limit: compute_bill(write(dialogue, replace(tools, limit=limit)), prices).dollars for limit in limits
    }
    return min(limits, key=spent.__getitem__)


def typical_dialogue(turns: int = 10) -> tuple[Dialogue, ToolSizes]:
    """Return a typical conversation of ten messages with two hundred tools, for cost comparisons."""
    names = [f"tool {number}" for number in range(200)]
    asked = [
        DialogueMessage(
            40, (names[turn * 5 % 200],), tuple(names[(turn * 5 + place) % 200] for place in range(8))
        )
        for turn in range(turns)
    ]
    sizes = dict.fromkeys(names, 200)
    return generate_dialogue(asked), ToolSizes(
        full=sizes, slim=sizes, hit=dict.fromkeys(names, 110), brief=dict.fromkeys(names, 60)
    )


def cheapest(bills: Mapping[str, Mapping[str, Bill]], turns: int) -> dict[str, list[str]]:
    """Group the models by the strategy that is cheapest for them after this number of turns."""
    won: dict[str, list[str]] = {}
    for model, by_strategy in bills.items():
        spent = {name: each.by_turn()[turns - 1] for name, each in by_strategy.items()}
        won.setdefault(min(spent, key=spent.__getitem__), []).append(model)
    return won
