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


@dataclass(frozen=True, slots=True)
class Query:
    """A message and the tools it needs; a need may be served by alternatives."""

    id: str
    text: str
    gold: tuple[str, ...]
    alternatives: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kind: str = ""

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
    return Query(str(row["id"]), row["query"], gold, _alternatives(row, gold), str(row.get("kind") or ""))


def _alternatives(row: Json, gold: Sequence[str]) -> dict[str, tuple[str, ...]]:
    also = row.get("alternatives") or {}
    if isinstance(also, dict):
        return {name: _names(more, "alternatives") for name, more in also.items()}
    return dict.fromkeys(gold, _names(also, "alternatives"))


def _names(value: Any, key: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"expected a list of tool names as {key}")
    return tuple(dict.fromkeys(value))


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
