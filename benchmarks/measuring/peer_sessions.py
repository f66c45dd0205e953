"""Run conversations with a scripted model, with a retriever's hits as tools, and measure their cost.

The hits are used in two ways: the best eight are the tools of each request (`pre-selection`), or the tools
are a search tool and a call tool, and the hits are the search's result (`search`). No other tools are sent.
Requests are counted in tokens of o200k, and billed with a simulation of the provider's prompt cache.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring.peers import print_progress
from measuring.scores import DEEPEST
from measuring.scripted import Script, ScriptedModel, served
from measuring.trips import ECHO_RESULT, MODES, Client, Mode, Outcome, Talk, opened, scripted
from toolfold import sample_catalog
from toolfold.core.types import BRIDGE_CALL, BRIDGE_SEARCH, Json, ToolCall, ToolResult, read_json
from toolfold.selection.retrieval.ranking_metrics import Query
from toolfold.selection.turn.pricing import Bill, prices_for
from toolfold.selection.turn.tokens import TokenCounter

TURNS = 10
PRICED = tuple(map(prices_for, ("claude-sonnet-4-6", "gpt-5.4")))
OURS = ("eager", "search, call", "pre-selection", "both, tail")
PRE_SELECTION, SEARCH = Mode("pre-selection"), Mode("search")


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """A request to the model in the chat format."""

    messages: Sequence[Json]
    tools: Sequence[Json]


class PeerSession:
    """Session of a client that shows the hits of a retriever in the tools array, or as a search result."""

    def __init__(
        self, mode: Mode, tools: Mapping[str, Json], bridge: Sequence[Json], hits: Mapping[str, Sequence[str]]
    ) -> None:
        self._mode, self._tools, self._bridge, self._hits = mode, tools, bridge, hits

    def request(self, history: Sequence[Json]) -> PeerRequest:
        """Return the request for a conversation."""
        if self._mode is SEARCH:
            return PeerRequest(list(history), self._bridge)
        newest = next(each["content"] for each in reversed(history) if each["role"] == "user")
        names = self._hits[newest][:DEEPEST]
        return PeerRequest(list(history), [self._tools[name] for name in names])

    def call_all_sync(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Run the model's calls."""
        return [self._run_call(call) for call in calls]

    def _run_call(self, call: ToolCall) -> ToolResult:
        arguments = read_json(call.arguments) if isinstance(call.arguments, str) else call.arguments or {}
        if call.name == BRIDGE_SEARCH:
            names = self._hits[arguments["query"]][: arguments.get("limit", DEEPEST)]
            # The scripted model knows a hit's parameters by this key.
            matches = [
                {
                    "name": name,
                    "description": self._tools[name]["function"]["description"],
                    "signature": self._tools[name]["function"]["parameters"],
                }
                for name in names
            ]
            return _make_result(call, BRIDGE_SEARCH, {"matches": matches})
        name = arguments["name"] if call.name == BRIDGE_CALL else call.name
        return _make_result(call, name, ECHO_RESULT)


def _make_result(call: ToolCall, name: str, value: Any) -> ToolResult:
    text = json.dumps(value, ensure_ascii=False)
    return ToolResult(call_id=call.id, name=name, text=text, value=value)


def measure_costs(
    queries: Sequence[Query], hits: Mapping[str, Mapping[str, Sequence[str]]], home: Path
) -> list[Json]:
    """Return the figures of Toolfold's modes and of each retriever, whose hits are given by message id."""
    script = scripted(queries, sample_catalog())
    talks = [queries[start : start + TURNS] for start in range(0, len(queries), TURNS)]
    counter = TokenCounter()  # shared, because the same definitions are counted again and again
    bridge = read_bridge()
    with served(ScriptedModel(script)) as address:
        rows = list(measure_ours(script, talks, address, home, counter))
        for peer, ranked in hits.items():
            print_progress(f"conversations with {peer}")
            by_text = {query.text: ranked[str(query.id)] for query in queries}
            rows += measure_peer(peer, by_text, script, talks, address, counter, bridge)
    return rows


def measure_ours(
    script: Script, talks: Sequence[Sequence[Query]], address: str, home: Path, counter: TokenCounter
) -> Iterator[Json]:
    """Yield the figures of Toolfold's modes, in sessions with only the tools of the sample catalog."""
    tools = sample_catalog()
    toolsets = sorted({tool.toolset for tool in tools})
    for mode in MODES:
        if mode.name not in OURS:
            continue
        print_progress(f"Toolfold, {mode.name}")
        with opened(mode, tools, home) as runtime:
            client = Client(address, mode, script, counter)
            done = [client.talk(runtime.session(toolsets), queries) for queries in talks]
        yield {"system": "toolfold", "mode": mode.name} | summarize(done)


def measure_peer(
    peer: str,
    hits: Mapping[str, Sequence[str]],
    script: Script,
    talks: Sequence[Sequence[Query]],
    address: str,
    counter: TokenCounter,
    bridge: Sequence[Json],
) -> Iterator[Json]:
    """Yield the figures of a retriever, used for pre-selection and for search."""
    tools = {tool.name: json.loads(json.dumps(tool.definition())) for tool in sample_catalog()}
    for mode in (PRE_SELECTION, SEARCH):
        client = Client(address, mode, script, counter)
        done = [client.talk(PeerSession(mode, tools, bridge, hits), queries) for queries in talks]
        yield {"system": peer, "mode": mode.name} | summarize(done)


def read_bridge() -> list[Json]:
    """Return the definitions of Toolfold's search and call tools, with which all retrievers are measured."""
    with tempfile.TemporaryDirectory() as home:
        mode = next(each for each in MODES if each.name == "search, call")
        tools = sample_catalog()
        with opened(mode, tools, Path(home)) as runtime:
            definitions = runtime.session(sorted({tool.toolset for tool in tools})).definitions()
            written: list[Json] = json.loads(json.dumps(definitions))
    return [each for each in written if each["function"]["name"] in (BRIDGE_SEARCH, BRIDGE_CALL)]


def summarize(talks: Sequence[Talk]) -> Json:
    """Return means per message and per request, and the costs with a prompt cache."""
    outcome = Outcome("", talks)
    trips = outcome.trips
    requests = [request for talk in talks for request in talk.requests]
    bills = {prices.name: outcome.bills(prices) for prices in PRICED}
    sent = sum(segment.tokens for request in requests for segment in request.segments)
    return {
        "calls": round(len(requests) / len(trips), 3),
        "served": round(sum(trip.served for trip in trips) / len(trips), 4),
        "input_per_request": round(sent / len(requests)),
        "input_per_message": round(sent / len(trips)),
        "cached": {name: round(share_cached(each), 4) for name, each in bills.items()},
        "dollars": {
            name: round(sum(bill.dollars for bill in each) / len(trips) * 1000, 2)
            for name, each in bills.items()
        },
    }


def share_cached(bills: Sequence[Bill]) -> float:
    """Return the share of all input tokens that the provider reads from its cache."""
    return sum(bill.cached for bill in bills) / sum(bill.input for bill in bills)
