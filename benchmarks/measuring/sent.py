"""Count the tokens of a request's tools without Toolfold and in each mode, with the selection's recall.

Core and deferrable tools are counted separately; the bridge counts as part of the deferrable tools.
"Before" is every definition as its author wrote it, "after" is what a session sends.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from measuring.speed import server_tools
from measuring.trips import MODES, Mode, opened
from toolfold import Runtime, Tool
from toolfold.core.types import Json
from toolfold.selection.retrieval.ranking_metrics import Query, recall
from toolfold.selection.turn.tokens import TokenCounter
from toolfold.tools.catalog import load_catalog

SHOWN = ("eager", "search, call", "pre-selection", "both, replace", "both, tail")


@dataclass(frozen=True, slots=True)
class Sent:
    """Token counts of one request."""

    core: int
    deferrable: int
    """Includes the bridge and the note in the message."""
    recall: float


def measure(tools: Sequence[Tool], queries: Sequence[Query], counter: TokenCounter, home: Path) -> list[Json]:
    """Return one row per mode with the mean token counts of all messages."""
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
    """Return the tools of `tools/list` results, prefixed with their server."""
    file = work / "servers.catalog.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in server_tools(folder)), encoding="utf-8")
    return load_catalog(file)


def renamed(queries: Sequence[Query], tools: Sequence[Tool]) -> list[Query]:
    """Map gold names of the form `server__tool` to the names of the loaded tools."""
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
