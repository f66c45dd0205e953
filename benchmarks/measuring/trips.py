"""Run conversations with a scripted model through real sessions, and count the cost of each mode.

Counts model calls, tokens of o200k and dollars. Knows the modes and how a client drives a session; what the
model does is the script's, and what it costs is `toolfold.selection.turn.pricing`'s.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import urllib.request
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from measuring.arguments import example
from measuring.scripted import Habit, Script
from toolfold import Runtime, load_config, open_runtime
from toolfold.core.types import BRIDGE_SEARCH, CallContext, Json, Tool, ToolCall, ToolResult, read_json
from toolfold.selection.retrieval.ranking_metrics import Query
from toolfold.selection.turn.pricing import Bill, ModelCall, Prices, Segment, compute_bill
from toolfold.selection.turn.tokens import TokenCounter

SYSTEM = {"role": "system", "content": "You are a helpful assistant. Use the tools where they help. " * 40}
MAX_MODEL_CALLS = 12
SECONDS_A_CALL = 5.0
SECONDS_A_MESSAGE = 60.0
ECHO_RESULT = {
    "status": "ok",
    "items": [
        {
            "id": f"rec-{number:04}",
            "title": f"Entry number {number}",
            "state": "open",
            "updated": "2026-03-14",
        }
        for number in range(8)
    ],
}


@dataclass(frozen=True, slots=True)
class Mode:
    """One configuration of tool disclosure, and the model's behaviour."""

    name: str
    selection: str = "eager"
    tool_search: str = "off"
    placement: str = "replace"
    habit: Habit = "calls"


MODES = (
    Mode("eager"),
    Mode("search, describe, call", tool_search="on", habit="describes"),
    Mode("search, call", tool_search="on"),
    Mode("pre-selection", selection="hybrid"),
    Mode("both, replace", selection="hybrid", tool_search="on"),
    Mode("both, append", selection="hybrid", tool_search="on", placement="append"),
    Mode("both, tail", selection="hybrid", tool_search="on", placement="tail"),
    Mode("auto", selection="auto", tool_search="auto", placement="auto"),
)


@dataclass(frozen=True, slots=True)
class Trip:
    """Measurements of one message."""

    id: str
    calls: int
    served: bool
    """True if every needed tool was called and ran."""
    searched: bool


@dataclass(slots=True)
class Talk:
    """Record of one conversation."""

    trips: list[Trip] = field(default_factory=list)
    requests: list[ModelCall] = field(default_factory=list)


def scripted(queries: Sequence[Query], tools: Sequence[Tool]) -> Script:
    """Return a script with the tools that labelled messages need, and arguments for every tool."""
    return Script(
        {query.text: [frozenset(need) for need in query.needs()] for query in queries},
        {tool.name: example(json.loads(json.dumps(tool.parameters))) for tool in tools},
    )


@contextmanager
def opened(mode: Mode, tools: Sequence[Tool], home: Path | None = None) -> Iterator[Runtime]:
    """Open a runtime in the given mode with the built-in tools and the given tools."""
    with tempfile.TemporaryDirectory() as folder:
        overrides = {
            "tools.selection": mode.selection,
            "tools.tool_search.enabled": mode.tool_search,
            "tools.rag_placement": mode.placement,
            "tools.patience_seconds": 600,  # the selection is measured, not the time of the first index
            "plugins.enabled": False,
            "files.workspace": folder,
        }
        env = {"TOOLFOLD_HOME": str(home or folder)}
        with open_runtime(load_config(project=Path(folder), env=env, overrides=overrides)) as runtime:
            runtime.registry.add_all(replace(tool, handler=_echo_handler) for tool in tools)
            yield runtime


class ChatRequest(Protocol):
    """A request to a model in the chat format."""

    @property
    def messages(self) -> Sequence[Json]: ...
    @property
    def tools(self) -> Sequence[Json]: ...


class ChatSession(Protocol):
    """Interface of a session in a conversation: it returns the next request and the results of tool calls."""

    def request(self, messages: Sequence[Json], /) -> ChatRequest: ...
    def call_all_sync(self, calls: Sequence[ToolCall], /) -> Sequence[ToolResult]: ...


class Client:
    """Runs conversations: sends a session's requests and runs the model's calls."""

    def __init__(self, address: str, mode: Mode, script: Script, counter: TokenCounter) -> None:
        self._address, self._mode, self._script, self._counter = address, mode, script, counter

    def talk(self, session: ChatSession, queries: Sequence[Query]) -> Talk:
        """Run one conversation with the given messages."""
        talk, history, clock = Talk(), [SYSTEM], 0.0
        for turn, query in enumerate(queries):
            history.append({"role": "user", "content": query.text})
            before = len(talk.requests)
            ran = self._run_turn(session, history, talk, turn, clock)
            calls = len(talk.requests) - before
            clock += calls * SECONDS_A_CALL + SECONDS_A_MESSAGE
            served = not self._script.open_needs(query.text, ran)
            talk.trips.append(Trip(str(query.id), calls, served, BRIDGE_SEARCH in ran))
        return talk

    def _run_turn(
        self, session: ChatSession, history: list[Json], talk: Talk, turn: int, clock: float
    ) -> list[str]:
        """Run calls until the model makes none; return the names of the called tools."""
        ran: list[str] = []
        for number in range(MAX_MODEL_CALLS):
            written = session.request(history)
            reply = self._request_completion(written.messages, written.tools)
            at = clock + number * SECONDS_A_CALL
            talk.requests.append(self._count_request(written.messages, written.tools, reply, turn, at))
            history.append(reply)
            if not reply.get("tool_calls"):
                break
            results = session.call_all_sync([_parse_call(each) for each in reply["tool_calls"]])
            ran += [result.name for result in results if result.ok]
            history += map(self._render_result, results)
        return ran

    def _request_completion(self, messages: Sequence[Json], tools: Sequence[Json]) -> Json:
        body = {"model": f"scripted-{self._mode.habit}", "messages": messages, "tools": tools}
        request = urllib.request.Request(
            self._address,
            json.dumps(body, ensure_ascii=False).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            message: Json = read_json(answer.read().decode())["choices"][0]["message"]
        return message

    def _render_result(self, result: ToolResult) -> Json:
        """Return a tool result as it is sent to the model, without signatures in the modes that omit them."""
        text = result.text
        if self._mode.habit == "describes" and result.name == BRIDGE_SEARCH:
            text = _without_signatures(text)
        return {"role": "tool", "tool_call_id": result.call_id, "content": text}

    def _count_request(
        self, messages: Sequence[Json], tools: Sequence[Json], reply: Json, turn: int, at: float
    ) -> ModelCall:
        pieces = [*(tool["function"] for tool in tools), *messages]
        segments = tuple(count_segment(piece, self._counter) for piece in pieces)
        return ModelCall(segments, count_segment(reply, self._counter).tokens, turn, at)


def count_segment(piece: Any, counter: TokenCounter) -> Segment:
    """Return a tool definition or a message as a segment of a request."""
    text = json.dumps(piece, ensure_ascii=False, separators=(",", ":"))
    return Segment(hashlib.blake2b(text.encode(), digest_size=12).hexdigest(), counter.text(text))


@dataclass(frozen=True, slots=True)
class Outcome:
    """Measurements of all conversations in one mode."""

    mode: str
    talks: Sequence[Talk]

    @property
    def trips(self) -> list[Trip]:
        return [trip for talk in self.talks for trip in talk.trips]

    def bills(self, prices: Prices) -> list[Bill]:
        """Return the bill of each conversation, which starts with an empty prompt cache."""
        return [compute_bill(talk.requests, prices) for talk in self.talks]

    def figures(self, eager: Outcome, needing: Collection[str], prices: Sequence[Prices]) -> Json:
        """Return the metrics, compared with the eager mode."""
        trips = self.trips
        requests = [request for talk in self.talks for request in talk.requests]
        sent = sum(segment.tokens for request in requests for segment in request.segments)
        return {
            "mode": self.mode,
            "calls": round(sum(trip.calls for trip in trips) / len(trips), 3),
            "all": self._success_shares(eager, [trip.id for trip in trips]),
            "needing": self._success_shares(eager, needing),
            "input": round(sent / len(trips)),
            "output": round(sum(request.output for request in requests) / len(trips)),
            "dollars": {
                each.name: sum(bill.dollars for bill in self.bills(each)) / len(trips) * 1000
                for each in prices
            },
        }

    def _success_shares(self, eager: Outcome, among: Collection[str]) -> Json:
        """Return the shares of messages served, in all and with no more calls than in eager mode."""
        trips = [trip for trip in self.trips if trip.id in among]
        least = {trip.id: trip.calls for trip in eager.trips}
        return {
            "messages": len(trips),
            "no_more_than_eager": _mean_share(trip.served and trip.calls <= least[trip.id] for trip in trips),
            "served": _mean_share(trip.served for trip in trips),
            "searched": _mean_share(trip.searched for trip in trips),
        }


def hold(
    mode: Mode, runtime: Runtime, address: str, script: Script, talks: Sequence[Sequence[Query]]
) -> Outcome:
    """Run all conversations in one mode, each in its own session."""
    client = Client(address, mode, script, TokenCounter())
    return Outcome(mode.name, [client.talk(runtime.session(), queries) for queries in talks])


def _mean_share(values: Iterable[bool]) -> float:
    listed = list(values)
    return round(sum(listed) / max(1, len(listed)), 4)


def _echo_handler(_args: Mapping[str, Any], _context: CallContext) -> Json:
    return ECHO_RESULT


def _parse_call(written: Json) -> ToolCall:
    return ToolCall(written["function"]["name"], written["function"]["arguments"], written["id"])


def _without_signatures(text: str) -> str:
    told = read_json(text)
    matches = [
        {key: value for key, value in match.items() if key != "signature"}
        for match in told.get("matches", ())
    ]
    return json.dumps({**told, "matches": matches}, ensure_ascii=False)
