"""Compute the cost of model calls in dollars, from a provider's prices and prompt caching.

A provider charges less for the part of a request that starts like a recent one, so the order of the
segments matters. Pure arithmetic: sends nothing, reads no file and knows nothing of tools.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from toolfold.core.events import Usage
from toolfold.selection.turn.tokens import CLAUDE, CLAUDE_47, DEEPSEEK, GEMINI, LLAMA_4

PRICES_AS_OF = "November 2026"


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of a model request, such as a tool definition; segments of equal identity have equal text."""

    identity: str
    tokens: int


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A model call for cost estimates: the ordered segments of its request, and its output size."""

    segments: tuple[Segment, ...]
    output: int
    turn: int = 0
    at: float = 0.0
    """Seconds since the conversation began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """A model's prices in dollars per million tokens, and how its provider caches prompt prefixes."""

    name: str
    input: float
    output: float
    cached_read: float = math.inf
    """Price of cached input. If it is not below `input`, there is no cache."""
    cache_write: float = 0.0
    """Price of writing to the cache, if higher than `input`."""
    minimum_prefix: int = 1024
    step: int = 1
    """Cached prefixes count in multiples of this many tokens."""
    lifetime: float = 300.0
    """Seconds for which a prefix stays cached after its last use."""
    factor: float = 1.0
    """The model's tokens per o200k token, in which requests are counted."""

    @property
    def kind(self) -> str:
        if self.cached_read >= self.input:
            return "no cache"
        return "cache, paid writes" if self.cache_write > self.input else "cache, free writes"


@dataclass(frozen=True, slots=True)
class Charge:
    """The cost of one model call in dollars."""

    turn: int
    input: int
    cached: int
    output: int
    dollars: float


@dataclass(frozen=True, slots=True)
class Bill:
    """The cost of a conversation in dollars."""

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
        """Return the cumulative cost of the conversation in dollars after each turn."""
        dollars = [0.0] * (max((charge.turn for charge in self.charges), default=-1) + 1)
        for charge in self.charges:
            dollars[charge.turn] += charge.dollars
        return list(itertools.accumulate(dollars))


def compute_bill(calls: Iterable[ModelCall], prices: Prices) -> Bill:
    """Return the cost of model calls made in the given order."""
    seen = _PrefixCache(prices)
    return Bill(tuple(_charge_call(call, seen.match_prefix(call), prices) for call in calls))


def _charge_call(call: ModelCall, cached: int, prices: Prices) -> Charge:
    sent = round(sum(segment.tokens for segment in call.segments) * prices.factor)
    output = round(call.output * prices.factor)
    is_kept = prices.cached_read < prices.input and sent >= prices.minimum_prefix
    fresh = max(prices.input, prices.cache_write) if is_kept else prices.input
    read = prices.cached_read if cached else 0.0
    millionths = cached * read + (sent - cached) * fresh + output * prices.output
    return Charge(call.turn, sent, cached, output, millionths / 1_000_000)


class _PrefixCache:
    """Simulation of a provider's prompt cache: a tree of segments with the times of their last use."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._root: _Branch = {}

    def match_prefix(self, call: ModelCall) -> int:
        """Return the number of cached tokens of a request, and add the request to the cache."""
        if self._prices.cached_read >= self._prices.input:
            return 0
        branch, shared, is_shared = self._root, 0, True
        for segment in call.segments:
            used, inner = branch.get(segment) or (-math.inf, {})
            is_shared = is_shared and call.at - used <= self._prices.lifetime
            shared += segment.tokens if is_shared else 0
            branch[segment] = call.at, inner
            branch = inner
        tokens = int(shared * self._prices.factor)
        return tokens - tokens % self._prices.step if tokens >= self._prices.minimum_prefix else 0


_Branch = dict[Segment, tuple[float, "_Branch"]]


# Published prices. They change, and contracts differ: check them.

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


_MAKERS = {"openai": "gpt", "responses": "gpt", "anthropic": "claude"}
"""Providers that serve only their own models, with the start of the names of these."""


EXPENSIVE_PRICES = (Prices(name="o1-pro", input=150.0, output=600.0),)
"""Prices that only limits of users need, of models that cost more than any listed above."""
UNKNOWN_FACTOR = 12.0
"""Factor by which a model of unknown price may cost more than the listed models of its provider.

It is the ratio of gpt-5.4-pro to gpt-5.4, the highest among the variants of a listed model.
"""
_CHEAPER = "(?:-(?:mini|nano|lite))?"
_VERSION = r"(?:[-@:.](?:latest|v?\d+))*"
_CHEAPER_FAMILIES = {
    r"claude-(?:[\d.]+-)*(?:sonnet|haiku)": "claude-sonnet-4-6",
    r"gemini-2\.5-flash": "gemini-2.5-pro",
}
"""Models that cost no more than a listed one, by a pattern of their names without version."""


def prices_for(model: str, table: Sequence[Prices] = PRICES) -> Prices:
    """Return the prices of a model or its family; for an unknown model, default prices without a cache."""
    return find_prices(model, table) or Prices(name=model or "unknown", input=1.0, output=3.0)


def find_prices(model: str, table: Sequence[Prices] = PRICES) -> Prices | None:
    """Return the prices of a model or the nearest model of its family; None if unknown."""
    name = model.lower()
    named = {prices.name: prices for prices in table}
    exact = next((prices for prices in table if prices.name.lower() in name), None)
    family = next((kin for part, kin in _FAMILIES.items() if part in name and kin in named), None)
    return exact or (named[family] if family else None)


def find_listed_prices(model: str, table: Sequence[Prices] = PRICES) -> Prices | None:
    """Return an upper bound on a model's prices, for users' spending limits; None if the model is unknown.

    Unlike `find_prices`, this takes a name for a listed model only if a version, a date or the name of a
    smaller variant follows: `gpt-5.4-pro` costs many times as much as `gpt-5.4`.
    """
    for prices in (*EXPENSIVE_PRICES, *table):
        if _is_version_of(model, re.escape(prices.name)):
            return prices
    named = {prices.name: prices for prices in table}
    families = (kin for pattern, kin in _CHEAPER_FAMILIES.items() if _is_version_of(model, pattern))
    return next((named[kin] for kin in families if kin in named), None)


def _is_version_of(model: str, pattern: str) -> bool:
    name = re.split(r"[/]|(?<=[a-z])[.](?=[a-z])", model.lower())[-1]  # without the name of a maker or region
    return re.fullmatch(pattern + _CHEAPER + _VERSION, name) is not None


def find_highest_prices(provider: str, table: Sequence[Prices] = PRICES) -> Prices:
    """Return the prices to assume for an unknown model: UNKNOWN_FACTOR times the provider's highest.

    If no models of the provider are listed, the highest prices of all listed models count.
    """
    maker = _MAKERS.get(provider.lower(), "")
    known = [prices for prices in table if maker and prices.name.startswith(maker)] or list(table)
    return Prices(
        name=f"the most expensive listed model{f' of {provider}' if maker else ''}",
        input=UNKNOWN_FACTOR * max(max(prices.input, prices.cache_write) for prices in known),
        output=UNKNOWN_FACTOR * max(prices.output for prices in known),
    )


def cost_of_call(usage: Usage, prices: Prices | None) -> float | None:
    """Return the cost of one model call in dollars; None if the model's price is unknown."""
    if prices is None:
        return None
    fresh = usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens
    read_price = min(prices.cached_read, prices.input)
    write_price = max(prices.cache_write, prices.input)
    dollars = fresh * prices.input + usage.output_tokens * prices.output
    dollars += usage.cached_tokens * read_price + usage.cache_write_tokens * write_price
    return dollars / 1_000_000


def read_prices(table: Any) -> tuple[Prices, ...]:
    """Parse prices from a mapping of model names to numbers. Raises ValueError."""
    if not isinstance(table, Mapping) or not table:
        raise ValueError("expected a mapping of model names to prices")
    return tuple(_read_one(str(name), figures) for name, figures in table.items())


def _read_one(name: str, figures: Any) -> Prices:
    known = {each.name for each in fields(Prices)} - {"name"}
    if not isinstance(figures, Mapping) or not {"input", "output"} <= figures.keys():
        raise ValueError(f"{name}: expected at least `input` and `output`, in dollars per million tokens")
    for key, value in figures.items():
        if key not in known:
            raise ValueError(f"{name}: {key} is none of {', '.join(sorted(known))}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
            raise ValueError(f"{name}: {key} must be a number, and not below zero")
    whole = {key: int(figures[key]) for key in ("minimum_prefix", "step") if key in figures}
    return Prices(name=name, **{**figures, **whole, "step": max(1, whole.get("step", 1))})
