"""What a conversation costs in dollars, by what the model is shown of the tools.

Two halves. `bill` prices requests: a provider charges less for the part of a request that begins like
one it saw lately, so what counts is the order of the pieces and where the first new one stands. The
strategies write one conversation down as the requests that each way of showing tools makes of it. Pure
arithmetic: it sends nothing, reads no file and knows no tool but by its name and its tokens.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal

from toolfold.config.settings import Tools
from toolfold.model import Tool
from toolfold.turn.answers import LONGEST_DESCRIPTION, plain
from toolfold.turn.signature import signature
from toolfold.turn.slimming import Slimmer
from toolfold.turn.tokens import CLAUDE, CLAUDE_47, DEEPSEEK, GEMINI, LLAMA_4, TokenCounter

Placement = Literal["replace", "append", "tail"]
PLACEMENTS: tuple[Placement, ...] = ("tail", "append", "replace")

PRICES_AS_OF = "November 2026"

# Requests and their price


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a request. The same identity means the same text."""

    identity: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Request:
    """One model call: what is sent, in the order in which the provider reads it, and what comes back."""

    segments: tuple[Segment, ...]
    output: int
    turn: int = 0
    at: float = 0.0
    """Seconds since the conversation began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a model costs: dollars for a million tokens, and how its provider remembers prefixes."""

    name: str
    input: float
    output: float
    cached_read: float = math.inf
    """For what was sent before. Not below `input`: nothing is remembered."""
    cache_write: float = 0.0
    """For what is sent the first time, where that costs more than `input`."""
    minimum_prefix: int = 1024
    step: int = 1
    """A remembered prefix counts in whole multiples of so many tokens."""
    lifetime: float = 300.0
    """Seconds for which a prefix is remembered after its last use."""
    factor: float = 1.0
    """The model's tokens for one of o200k, in which requests are counted."""

    @property
    def kind(self) -> str:
        if self.cached_read >= self.input:
            return "no cache"
        return "cache, paid writes" if self.cache_write > self.input else "cache, free writes"


@dataclass(frozen=True, slots=True)
class Charge:
    """What one request came to."""

    turn: int
    input: int
    cached: int
    output: int
    dollars: float


@dataclass(frozen=True, slots=True)
class Bill:
    """What a conversation came to."""

    charges: tuple[Charge, ...]

    @property
    def calls(self) -> int:
        return len(self.charges)

    @property
    def input(self) -> int:
        return sum(charge.input for charge in self.charges)

    @property
    def cached(self) -> int:
        return sum(charge.cached for charge in self.charges)

    @property
    def cached_share(self) -> float:
        return self.cached / self.input if self.input else 0.0

    @property
    def output(self) -> int:
        return sum(charge.output for charge in self.charges)

    @property
    def dollars(self) -> float:
        return math.fsum(charge.dollars for charge in self.charges)

    def by_turn(self) -> list[float]:
        """The dollars after each turn."""
        dollars = [0.0] * (max((charge.turn for charge in self.charges), default=-1) + 1)
        for charge in self.charges:
            dollars[charge.turn] += charge.dollars
        return list(itertools.accumulate(dollars))


def bill(requests: Iterable[Request], prices: Prices) -> Bill:
    """The price of requests sent in this order."""
    seen = _Prefixes(prices)
    return Bill(tuple(_charge(request, seen.known(request), prices) for request in requests))


def _charge(request: Request, cached: int, prices: Prices) -> Charge:
    sent = round(sum(segment.tokens for segment in request.segments) * prices.factor)
    output = round(request.output * prices.factor)
    is_kept = prices.cached_read < prices.input and sent >= prices.minimum_prefix
    fresh = max(prices.input, prices.cache_write) if is_kept else prices.input
    read = prices.cached_read if cached else 0.0
    millionths = cached * read + (sent - cached) * fresh + output * prices.output
    return Charge(request.turn, sent, cached, output, millionths / 1_000_000)


class _Prefixes:
    """What the provider remembers: a tree of segments, each with the time of its last use."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._root: _Branch = {}

    def known(self, request: Request) -> int:
        """How many of the request's tokens are remembered; it is remembered itself from now on."""
        if self._prices.cached_read >= self._prices.input:
            return 0
        branch, shared, is_shared = self._root, 0, True
        for segment in request.segments:
            used, inner = branch.get(segment) or (-math.inf, {})
            is_shared = is_shared and request.at - used <= self._prices.lifetime
            shared += segment.tokens if is_shared else 0
            branch[segment] = request.at, inner
            branch = inner
        tokens = int(shared * self._prices.factor)
        return tokens - tokens % self._prices.step if tokens >= self._prices.minimum_prefix else 0


_Branch = dict[Segment, tuple[float, "_Branch"]]


# Published prices, examples to be checked: they change, and contracts differ.

PRICES = (
    Prices(
        name="claude-sonnet-4-6",
        input=3.0,
        cached_read=0.3,
        cache_write=3.75,
        output=15.0,
        minimum_prefix=2048,
        factor=CLAUDE.factor,
    ),
    Prices(
        name="claude-opus-4-8",
        input=5.0,
        cached_read=0.5,
        cache_write=6.25,
        output=25.0,
        minimum_prefix=4096,
        factor=CLAUDE_47.factor,
    ),
    Prices(name="gpt-5.4", input=2.5, cached_read=0.25, output=15.0, step=128),
    Prices(name="gpt-4.1", input=2.0, cached_read=0.5, output=8.0, step=128),
    Prices(name="gpt-4o", input=2.5, cached_read=1.25, output=10.0, step=128),
    Prices(
        name="gemini-2.5-pro",
        input=1.25,
        cached_read=0.125,
        output=10.0,
        minimum_prefix=2048,
        factor=GEMINI.factor,
    ),
    Prices(name="deepseek-chat", input=0.28, cached_read=0.028, output=0.42, step=64, factor=DEEPSEEK.factor),
    Prices(name="llama-4-maverick", input=0.2, output=0.6, factor=LLAMA_4.factor),
)
_FAMILIES = {
    "gpt-4o": "gpt-4o",
    "gpt-4.1": "gpt-4.1",
    "gpt-4-1": "gpt-4.1",
    "opus": "claude-opus-4-8",
    "claude": "claude-sonnet-4-6",
    "gemini": "gemini-2.5-pro",
    "deepseek": "deepseek-chat",
    "gpt": "gpt-5.4",
}


def prices_for(model: str, table: Sequence[Prices] = PRICES) -> Prices:
    """The prices of a model, or of the nearest of its family; a model nobody knows has no cache."""
    name = model.lower()
    named = {prices.name: prices for prices in table}
    exact = next((prices for prices in table if prices.name.lower() in name), None)
    family = next((kin for part, kin in _FAMILIES.items() if part in name and kin in named), None)
    return exact or (named[family] if family else Prices(name=model or "unknown", input=1.0, output=3.0))


def read_prices(table: Any) -> tuple[Prices, ...]:
    """Prices as someone wrote them: a map from a model's name to its figures. Raises ValueError."""
    if not isinstance(table, Mapping) or not table:
        raise ValueError("expected a map of models, each with its prices")
    return tuple(_read_one(str(name), figures) for name, figures in table.items())


def _read_one(name: str, figures: Any) -> Prices:
    known = {each.name for each in fields(Prices)} - {"name"}
    if not isinstance(figures, Mapping) or not {"input", "output"} <= figures.keys():
        raise ValueError(f"{name}: expected at least `input` and `output`, dollars for a million tokens")
    for key, value in figures.items():
        if key not in known:
            raise ValueError(f"{name}: {key} is none of {', '.join(sorted(known))}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
            raise ValueError(f"{name}: {key} must be a number, and not below zero")
    whole = {key: int(figures[key]) for key in ("minimum_prefix", "step") if key in figures}
    return Prices(name=name, **{**figures, **whole, "step": max(1, whole.get("step", 1))})


# A conversation, and the tools it is held over


@dataclass(frozen=True, slots=True)
class Call:
    """A tool the model calls, the tokens of its arguments and of what came back."""

    tool: str
    arguments: int
    result: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """One user message, the calls it takes and the answer; sizes in tokens."""

    user: int
    calls: tuple[Call, ...] = ()
    answer: int = 0
    ranked: tuple[str, ...] = ()
    """What a search with the message finds, best first."""
    pause: float = 0.0
    """Seconds before the message."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A recorded or an imagined conversation."""

    system: int
    turns: tuple[Exchange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSizes:
    """Tokens of tools in each of the forms in which a model meets them, and how many it meets at once.

    The defaults are those of the settings, and the size of the bridge without a listing.
    """

    full: Mapping[str, int]
    slim: Mapping[str, int]
    hit: Mapping[str, int]
    """In a search result or at the tail: name, description and signature."""
    brief: Mapping[str, int]
    """In a search result, without."""
    core: frozenset[str] = frozenset()
    """Never hidden behind a search."""
    pinned: frozenset[str] = frozenset()
    """Always beside a selection."""
    bridge: int = 224
    hits: int = 5
    """How many tools a search finds."""
    shown: int = 8
    """How many tools a selection has."""
    most_grown: int = 48
    """How many tools an array that only grows may reach before it begins anew."""


_AROUND_A_HIT = 8
"""The JSON around a hit's name and description."""
_AROUND_A_SIGNATURE = 4


def sizes_of(
    tools: Iterable[Tool], counter: TokenCounter, settings: Tools, *, bridge: Iterable[Tool]
) -> ToolSizes:
    """Tools, counted in every form, and shown as the settings say."""
    tools, slimmer = list(tools), Slimmer()
    brief = {tool.name: _AROUND_A_HIT + counter.text(_told(tool)) for tool in tools}
    return ToolSizes(
        full={tool.name: counter.definition(tool.definition()) for tool in tools},
        slim={tool.name: counter.definition(slimmer(tool)) for tool in tools},
        hit={
            tool.name: brief[tool.name] + _AROUND_A_SIGNATURE + counter.text(signature(tool))
            for tool in tools
        },
        brief=brief,
        core=frozenset(tool.name for tool in tools if tool.core),
        pinned=frozenset(settings.pinned) & {tool.name for tool in tools},
        bridge=counter.definitions(map(slimmer, bridge)),
        hits=settings.tool_search.search_default_limit,
        shown=settings.rag_top_k,
        most_grown=settings.rag_append_max,
    )


def _told(tool: Tool) -> str:
    return f"{tool.name}: {plain(tool.description, LONGEST_DESCRIPTION)}"


@dataclass(frozen=True, slots=True)
class Asked:
    """A message to imagine a conversation from: its tokens, the tools it needs, those a search finds."""

    tokens: int
    needs: tuple[str, ...]
    ranked: tuple[str, ...]


def imagine(messages: Sequence[Asked], *, system: int = 1_500, seed: int = 7) -> Conversation:
    """A conversation over these messages, with sizes and pauses as in practice; the same each time."""
    dice = random.Random(seed)  # noqa: S311  (nothing to guard)
    return Conversation(system, tuple(_imagined(each, dice) for each in messages))


def _imagined(asked: Asked, dice: random.Random) -> Exchange:
    calls = tuple(Call(tool, _around(dice, 45), _around(dice, 350, most=4_000)) for tool in asked.needs)
    is_break = dice.random() < 0.1  # now and then people come back later than the provider remembers
    pause = dice.uniform(600, 1800) if is_break else dice.uniform(10, 120)
    return Exchange(asked.tokens, calls, _around(dice, 130), asked.ranked, pause)


def _around(dice: random.Random, median: int, most: int = 1_000) -> int:
    return min(most, round(median * math.exp(dice.gauss(0, 0.7))))


# How each way of showing tools writes a conversation down

_SEARCH_WORDS = 25
_DESCRIBE_WORDS = 20
_WRAPPING = 12
"""What `tool_call(name, arguments)` takes more than a direct call."""
_SECONDS_A_CALL = 4.0

_Shown = tuple[Sequence[Segment], Sequence[Segment]]


class _Script:
    """A conversation being written down, request by request."""

    def __init__(self, conversation: Conversation, tools: ToolSizes) -> None:
        self.tools, self._conversation = tools, conversation
        self.requests: list[Request] = []
        self.known: set[str] = set()
        """Tools that the history has told the model how to call."""
        self.ranked: tuple[str, ...] = ()
        self._history = [Segment("system", conversation.system)]
        self._array: Sequence[Segment] = ()
        self._turn, self._now = 0, 0.0

    def write(
        self, show: Callable[[_Script, Exchange], _Shown], find: Callable[[_Script, str], None]
    ) -> list[Request]:
        """All requests, by what is shown for each message and how a tool is found that was not."""
        for number, turn in enumerate(self._conversation.turns):
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
                self.ask(call.arguments + (0 if call.tool in visible else _WRAPPING))
                self.hear("result", call.result)
            self.ask(turn.answer)
        return self.requests

    def ask(self, output: int) -> None:
        """One model call, whose reply joins the history."""
        self.requests.append(Request((*self._array, *self._history), output, self._turn, self._now))
        self._now += _SECONDS_A_CALL
        self.hear("reply", output)

    def hear(self, what: str, tokens: int) -> None:
        self._history.append(Segment(f"{what} {len(self._history)}", tokens))

    def found(self, name: str) -> list[list[str]]:
        """What the searches for a tool bring: one if the message's words find it, else a second."""
        first = [each for each in self.ranked if each in self.tools.hit][: self.tools.hits]
        return [first] if name in first else [first, [name, *first[: self.tools.hits - 1]]]


def _search(script: _Script, name: str) -> None:
    """Search, and call by the signature in the answer."""
    for hits in script.found(name):
        script.ask(_SEARCH_WORDS)
        script.hear("hits", sum(script.tools.hit.get(each, 0) for each in hits))
        script.known.update(hits)


def _search_and_describe(script: _Script, name: str) -> None:
    for hits in script.found(name):
        script.ask(_SEARCH_WORDS)
        script.hear("hits", sum(script.tools.brief.get(each, 0) for each in hits))
    script.ask(_DESCRIBE_WORDS)
    script.hear("schema", script.tools.full.get(name, 0))
    script.known.add(name)


def _array(sizes: Mapping[str, int], names: Iterable[str]) -> list[Segment]:
    return [Segment(name, sizes[name]) for name in names if name in sizes]


def _constant(tools: ToolSizes, sizes: Mapping[str, int], names: Iterable[str]) -> list[Segment]:
    return [Segment("the bridge", tools.bridge), *_array(sizes, sorted(names))]


class _Selecting:
    """The tools chosen for a message, and those that were called before."""

    def __init__(self, tools: ToolSizes) -> None:
        self.tools = tools
        self._used: dict[str, None] = {}

    def chosen(self, turn: Exchange) -> list[str]:
        best = [name for name in turn.ranked if name not in self.tools.pinned][: self.tools.shown]
        chosen = dict.fromkeys([*self._used, *best])
        self._used.update(
            dict.fromkeys(call.tool for call in turn.calls if call.tool not in self.tools.pinned)
        )
        return list(chosen)


def _eager(conversation: Conversation, tools: ToolSizes, form: Literal["full", "slim"]) -> list[Request]:
    sizes = tools.full if form == "full" else tools.slim
    array = _array(sizes, sizes)
    return _Script(conversation, tools).write(lambda *_: (array, ()), _search)


def _as_in_the_field(conversation: Conversation, tools: ToolSizes) -> list[Request]:
    array = _constant(tools, tools.full, tools.core)
    return _Script(conversation, tools).write(lambda *_: (array, ()), _search_and_describe)


def _searching(conversation: Conversation, tools: ToolSizes) -> list[Request]:
    array = _constant(tools, tools.slim, tools.core)
    return _Script(conversation, tools).write(lambda *_: (array, ()), _search)


def _replace(conversation: Conversation, tools: ToolSizes) -> list[Request]:
    selecting, always = _Selecting(tools), _constant(tools, tools.slim, tools.pinned)

    def show(_script: _Script, turn: Exchange) -> _Shown:
        return [*always, *_array(tools.slim, sorted(selecting.chosen(turn)))], ()

    return _Script(conversation, tools).write(show, _search)


def _append(conversation: Conversation, tools: ToolSizes) -> list[Request]:
    selecting, always = _Selecting(tools), _constant(tools, tools.slim, tools.pinned)
    grown: dict[str, None] = {}

    def show(_script: _Script, turn: Exchange) -> _Shown:
        chosen = selecting.chosen(turn)
        if len(grown.keys() | chosen) > tools.most_grown:
            grown.clear()
        grown.update(dict.fromkeys(chosen))
        return [*always, *_array(tools.slim, grown)], ()

    return _Script(conversation, tools).write(show, _search)


def _tail(conversation: Conversation, tools: ToolSizes, form: Literal["hit", "slim"]) -> list[Request]:
    selecting, always = _Selecting(tools), _constant(tools, tools.slim, tools.pinned)
    sizes = tools.hit if form == "hit" else tools.slim

    def show(script: _Script, turn: Exchange) -> _Shown:
        new = [name for name in selecting.chosen(turn) if name in sizes and name not in script.known]
        script.known.update(new)
        return always, [Segment(f"schema of {name}", sizes[name]) for name in new]

    return _Script(conversation, tools).write(show, _search)


Strategy = Callable[[Conversation, ToolSizes], list[Request]]

STRATEGIES: Mapping[str, Strategy] = {
    "eager": partial(_eager, form="full"),
    "eager slim": partial(_eager, form="slim"),
    "search+describe": _as_in_the_field,
    "search": _searching,
    "replace": _replace,
    "append": _append,
    "tail whole": partial(_tail, form="slim"),
    "tail": partial(_tail, form="hit"),
}


# Choosing


def best_placement(
    prices: Prices, conversation: Conversation | None = None, tools: ToolSizes | None = None
) -> Placement:
    """Where a selection costs least with these prices, over a usual conversation unless one is given."""
    if conversation is None or tools is None:
        conversation, tools = usual_conversation()
    dollars = {each: bill(STRATEGIES[each](conversation, tools), prices).dollars for each in PLACEMENTS}
    return min(PLACEMENTS, key=dollars.__getitem__)


def best_shown(prices: Prices, placement: Placement, conversation: Conversation, tools: ToolSizes) -> int:
    """How many tools a selection should have to cost least, up to as many as it has."""
    write = STRATEGIES[placement]
    counts = range(1, max(tools.shown, 1) + 1)
    spent = {
        count: bill(write(conversation, replace(tools, shown=count)), prices).dollars for count in counts
    }
    return min(counts, key=spent.__getitem__)


def usual_conversation(turns: int = 10) -> tuple[Conversation, ToolSizes]:
    """Ten messages over two hundred tools; from each to the next, five of the eight tools found change."""
    names = [f"tool {number}" for number in range(200)]
    asked = [
        Asked(40, (names[turn * 5 % 200],), tuple(names[(turn * 5 + place) % 200] for place in range(8)))
        for turn in range(turns)
    ]
    sizes = dict.fromkeys(names, 200)
    return imagine(asked), ToolSizes(
        full=sizes, slim=sizes, hit=dict.fromkeys(names, 110), brief=dict.fromkeys(names, 60)
    )


def cheapest(bills: Mapping[str, Mapping[str, Bill]], turns: int) -> dict[str, list[str]]:
    """For whom each strategy costs least after so many turns, from each model's bills by strategy."""
    won: dict[str, list[str]] = {}
    for model, by_strategy in bills.items():
        spent = {name: each.by_turn()[turns - 1] for name, each in by_strategy.items()}
        won.setdefault(min(spent, key=spent.__getitem__), []).append(model)
    return won
