"""How good an order is: recall, reciprocal rank and discounted gain over labelled messages.

Knows the format of `queries.jsonl` and nothing of how the order came to be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolfold.jsonlines import read_file
from toolfold.model import Json

OWN_CANDIDATES = "own_candidates_only"


@dataclass(frozen=True, slots=True)
class Query:
    """A message and the tools it needs; a need may be served by alternatives."""

    id: str | int | float
    """As it stands in the file: whoever reads the answers looks for that."""
    text: str
    gold: tuple[str, ...]
    alternatives: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kind: str = ""
    candidates: frozenset[str] | None = None
    """The only tools it may be answered with, where the row says so; None is the whole catalog."""

    def needs(self) -> list[set[str]]:
        """For each need, the names that serve it."""
        return [{gold, *self.alternatives.get(gold, ())} for gold in self.gold]


def load_queries(file: Path) -> list[Query]:
    """The messages of a file, gzipped or not. Raises SourceError that names the line."""
    return read_file(file, _query, what="queries")


def _query(row: Any) -> Query:
    if not isinstance(row, dict) or not {"id", "query", "gold"} <= row.keys():
        raise ValueError("expected an object with id, query and gold")
    if not isinstance(row["query"], str):
        raise ValueError("expected a text as query")
    gold = _names(row["gold"], "gold")
    return Query(
        _identity(row["id"]),
        row["query"],
        gold,
        _alternatives(row, gold),
        str(row.get("kind") or ""),
        _candidates(row),
    )


def _identity(value: Any) -> str | int | float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("expected a text or a number as id")
    return value


def _candidates(row: Json) -> frozenset[str] | None:
    """Rows may list candidates for other uses; only the mark makes them the whole choice."""
    if row.get("scope") != OWN_CANDIDATES:
        return None
    return frozenset(_names(row.get("candidates"), "candidates"))


def _alternatives(row: Json, gold: Sequence[str]) -> dict[str, tuple[str, ...]]:
    also = row.get("alternatives") or {}
    if isinstance(also, dict):
        return {name: _names(more, "alternatives") for name, more in also.items()}
    return dict.fromkeys(gold, _names(also, "alternatives"))


def _names(value: Any, key: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"expected a list of tool names as {key}")
    return tuple(dict.fromkeys(value))


def ranks(query: Query, ranked: Sequence[str]) -> list[int | None]:
    """For each need, the rank of the first tool that serves it; None where none does."""
    places = {name: rank for rank, name in reversed(list(enumerate(ranked, 1)))}
    return [min((places[name] for name in need if name in places), default=None) for need in query.needs()]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that this share of all values does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def recall(query: Query, ranked: Sequence[str], depth: int) -> float:
    """The share of the needs that the first ones serve."""
    top = set(ranked[:depth])
    needs = query.needs()
    return sum(bool(top & need) for need in needs) / len(needs)


def reciprocal_rank(query: Query, ranked: Sequence[str]) -> float:
    """One over the rank of the first tool that serves any need."""
    wanted = set().union(*query.needs())
    return next((1 / rank for rank, name in enumerate(ranked, 1) if name in wanted), 0.0)


def discounted_gain(query: Query, ranked: Sequence[str], depth: int = 10) -> float:
    """nDCG: needs served early count more; each counts once."""
    open_needs = query.needs()
    ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(len(open_needs), depth) + 1))
    gained = 0.0
    for rank, name in enumerate(ranked[:depth], 1):
        served = [need for need in open_needs if name in need]
        if served:
            gained += 1 / math.log2(rank + 1)
            open_needs.remove(served[0])
    return gained / ideal
