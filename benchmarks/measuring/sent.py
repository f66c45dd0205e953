"""Tokens of a request's tools by mode, before and after, with the recall of what was selected.

Of the runtime's own (core) tools and of the deferrable ones apart: the bridge stands on the account of the
tools that are behind it. Before is every definition as its author wrote it; after is what a session sends.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from measuring.speed import server_tools
from measuring.trips import MODES, Mode, opened
from toolfold import Runtime, Tool, load_catalog
from toolfold.model import Json
from toolfold.retrieval.evaluation import Query, recall
from toolfold.turn.tokens import TokenCounter

SHOWN = ("eager", "search, call", "pre-selection", "both, replace", "both, tail")


@dataclass(frozen=True, slots=True)
class Sent:
    """One request's tokens."""

    core: int
    deferrable: int
    """The bridge and what stands beside the message included."""
    recall: float


def measure(tools: Sequence[Tool], queries: Sequence[Query], counter: TokenCounter, home: Path) -> list[Json]:
    """A row a mode, means over the messages."""
    before: Sent | None = None
    rows = []
    for mode in MODES:
        if mode.name not in SHOWN:
            continue
        with opened(mode, tools, home) as runtime:
            before = before or _count_unmodified(runtime, counter)
            rows.append(
                _make_row(mode, before, [_count_request(runtime, query, counter) for query in queries])
            )
    return rows


def servers(folder: Path, work: Path) -> list[Tool]:
    """The tools of `tools/list` answers, each under the name of its server."""
    file = work / "servers.catalog.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in server_tools(folder)), encoding="utf-8")
    return load_catalog(file)


def renamed(queries: Sequence[Query], tools: Sequence[Tool]) -> list[Query]:
    """Messages whose tools are named `server__tool`, for those of them that are here under longer names."""
    names = {tool.name for tool in tools}
    told = []
    for query in queries:
        gold = tuple(_resolve_name(name, names) for name in query.gold)
        if all(gold):
            told.append(Query(query.id, query.text, gold))
    return told


def _resolve_name(name: str, names: set[str]) -> str:
    server, _, tool = name.partition("__")
    candidates = (f"mcp_{server}_{tool}", f"mcp_mcp-server-{server}_{tool}")
    return next((each for each in candidates if each in names), "")


def _count_unmodified(runtime: Runtime, counter: TokenCounter) -> Sent:
    turn = runtime.session().assemble()
    core = sum(counter.definition(turn.described(tool)) for tool in turn.offered if tool.core)
    rest = sum(counter.definition(tool.definition()) for tool in turn.offered if not tool.core)
    return Sent(core, rest, 1.0)


def _count_request(runtime: Runtime, query: Query, counter: TokenCounter) -> Sent:
    request = runtime.session().request([{"role": "user", "content": query.text}])
    own = {tool.name for tool in request.turn.offered if tool.core}
    tokens = {tool["function"]["name"]: counter.definition(tool) for tool in request.tools}
    core = sum(count for name, count in tokens.items() if name in own)
    chosen = request.turn.selection.names if request.turn.selection else ()
    found = recall(query, chosen, len(chosen)) if query.gold else 1.0
    return Sent(core, sum(tokens.values()) - core + counter.text(request.tail), found)


def _make_row(mode: Mode, before: Sent, sent: Sequence[Sent]) -> Json:
    deferrable = fmean(each.deferrable for each in sent)
    return {
        "mode": mode.name,
        "core_before": before.core,
        "core": round(fmean(each.core for each in sent)),
        "deferrable_before": before.deferrable,
        "deferrable": round(deferrable),
        "most": max(each.deferrable for each in sent),
        "saved": round(1 - deferrable / before.deferrable, 5),
        "recall": round(fmean(each.recall for each in sent), 4) if mode.selection != "eager" else None,
    }
