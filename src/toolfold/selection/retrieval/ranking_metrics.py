"""Compute ranking metrics over labelled messages: recall, reciprocal rank and nDCG.

Knows the format of `queries.jsonl` and nothing of how a ranking was made.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolfold.core.jsonlines import parse_json_lines, read_json_lines
from toolfold.core.types import Json

OWN_CANDIDATES = "own_candidates_only"


@dataclass(frozen=True, slots=True)
class Query:
    """Query of an evaluation: a message labelled with the tools it needs and their alternatives."""

    id: str | int | float
    """The id with its type from the file, so that results can be matched to rows."""
    text: str
    gold: tuple[str, ...]
    alternatives: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kind: str = ""
    candidates: frozenset[str] | None = None
    """The only tools allowed for this query if the row restricts them; None allows the whole catalog."""
    history: tuple[Json, ...] | None = None
    """The conversation before the message, oldest first, as chat messages; None if the row has none."""

    def needs(self) -> list[set[str]]:
        """Return, for each needed tool, the set of acceptable tool names."""
        return [{gold, *self.alternatives.get(gold, ())} for gold in self.gold]


def load_queries(file: Path) -> list[Query]:
    """Read labelled messages from a file, gzipped or not. Raises SourceError with the line number."""
    return read_json_lines(file, _parse_query, what="queries")


def parse_queries(content: bytes, *, where: str) -> list[Query]:
    """Read labelled messages, one JSON object per line; `where` names the source in a SourceError."""
    return list(parse_json_lines(io.BytesIO(content), _parse_query, where=where))


def _parse_query(row: Any) -> Query:
    if not isinstance(row, dict) or not {"id", "query", "gold"} <= row.keys():
        raise ValueError("each line must be a JSON object with the keys `id`, `query` and `gold`")
    if not isinstance(row["query"], str):
        raise ValueError("query must be a string")
    gold = _parse_names(row["gold"], "gold")
    return Query(
        _parse_id(row["id"]),
        row["query"],
        gold,
        _parse_alternatives(row, gold),
        str(row.get("kind") or ""),
        _parse_candidates(row),
        _parse_history(row),
    )


def _parse_history(row: Json) -> tuple[Json, ...] | None:
    """Return the conversation before a labelled message as chat messages, with its tool calls."""
    listed = row.get("history")
    if listed is None:
        return None
    if not isinstance(listed, list):
        raise ValueError("`history` must be a list of messages")
    return tuple(parsed for message in listed for parsed in _parse_message(message))


def _parse_message(message: Any) -> Iterator[Json]:
    """Yield one message of a labelled history, followed by a message that calls its listed tools."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ValueError("each message of `history` must be an object with `role` and `content`")
    content = message.get("content") or ""
    if not isinstance(content, str):
        raise ValueError("`content` of a message in `history` must be a string")
    yield {"role": message["role"], "content": content}
    if called := _parse_names(message.get("tools") or [], "tools"):
        calls = [{"function": {"name": name, "arguments": "{}"}} for name in called]
        yield {"role": "assistant", "content": "", "tool_calls": calls}


def _parse_id(value: Any) -> str | int | float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("`id` must be a string or a number")
    return value


def _parse_candidates(row: Json) -> frozenset[str] | None:
    """Return the tools to which the ranking for a message is restricted; None for no restriction."""
    if row.get("scope") != OWN_CANDIDATES:
        return None
    return frozenset(_parse_names(row.get("candidates"), "candidates"))


def _parse_alternatives(row: Json, gold: Sequence[str]) -> dict[str, tuple[str, ...]]:
    listed = row.get("alternatives") or {}
    if isinstance(listed, dict):
        return {name: _parse_names(more, "alternatives") for name, more in listed.items()}
    return dict.fromkeys(gold, _parse_names(listed, "alternatives"))


def _parse_names(value: Any, key: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{key} must be a list of tool names")
    return tuple(dict.fromkeys(value))


def ranks(query: Query, ranked: Sequence[str]) -> list[int | None]:
    """Return the rank of each needed tool or its best alternative; None for a tool that is not ranked."""
    positions = {name: rank for rank, name in reversed(list(enumerate(ranked, 1)))}
    return [
        min((positions[name] for name in need if name in positions), default=None) for need in query.needs()
    ]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile of the values for a share between 0 and 1, without interpolation."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def recall(query: Query, ranked: Sequence[str], depth: int) -> float:
    """Return the share of the needed tools that are among the first `depth` ranked tools."""
    top = set(ranked[:depth])
    needs = query.needs()
    return sum(bool(top & need) for need in needs) / len(needs)


def reciprocal_rank(query: Query, ranked: Sequence[str]) -> float:
    """Return the reciprocal rank of the first tool that the message needs; 0 if none is ranked."""
    wanted = set().union(*query.needs())
    return next((1 / rank for rank, name in enumerate(ranked, 1) if name in wanted), 0.0)


def discounted_gain(query: Query, ranked: Sequence[str], depth: int = 10) -> float:
    """Return the nDCG (a measure of ranking quality) of the first `depth` tools."""
    open_needs = query.needs()
    ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(len(open_needs), depth) + 1))
    gained = 0.0
    for rank, name in enumerate(ranked[:depth], 1):
        served = [need for need in open_needs if name in need]
        if served:
            gained += 1 / math.log2(rank + 1)
            open_needs.remove(served[0])
    return gained / ideal
