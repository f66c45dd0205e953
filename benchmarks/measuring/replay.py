"""Replay recorded conversations through a real agent, with a model that makes the recorded calls.

The model makes each call if the request describes the tool, in the tools array, beside a message or in an
earlier search result. Otherwise it searches with the user's message, and if that does not find the tool, with
the words of the tool's name, as a model would that knows what it is looking for. If neither finds the tool,
the call counts as lost; it is made nevertheless, so that the conversation can go on.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

from measuring.conversations import Conversation, ConversationSet, GoldCall, GoldTurn, ToolState
from measuring.scripted import RequestHistory
from measuring.trips import SECONDS_A_CALL, SECONDS_A_MESSAGE, Mode, count_segment
from toolfold import Agent, Runtime, build_tool, load_config, open_runtime, sample_catalog
from toolfold.agent.agent_limits import AgentLimits
from toolfold.core.types import BRIDGE_CALL, BRIDGE_NAMES, BRIDGE_SEARCH, CallContext, Json, ToolCall
from toolfold.models.reply import ModelRequest
from toolfold.models.scripted import ScriptedProvider, ScriptedReply
from toolfold.selection.turn.pricing import ModelCall, compute_bill, prices_for
from toolfold.selection.turn.tokens import TokenCounter
from toolfold.state.store import SqliteSessionStore

Outcome = Literal["shown", "known", "found", "reworded", "lost"]
OUTCOMES: tuple[Outcome, ...] = ("shown", "known", "found", "reworded", "lost")
"""Described in the request; found by an earlier search of the conversation; found by one search with the
user's message; found by one search with the words of the tool's name; none of these."""
MAX_SEARCHES = 2
PRICED = tuple(map(prices_for, ("claude-sonnet-4-6", "gpt-5.4")))
_LIMITS = AgentLimits(max_steps=500, max_tokens=10**9, max_seconds=3_600, max_cost=0)


@dataclass(slots=True)
class ReplayResult:
    """Measurements of one mode on one data set."""

    data_set: str
    mode: str
    outcomes: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    dollars: dict[str, float] = field(default_factory=dict)
    """By model, with an empty prompt cache at the start of each conversation."""
    conversations: int = 0
    correct_states: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    """Tools of the lost calls."""

    def summarize(self) -> Json:
        calls = max(1, sum(self.outcomes.values()))
        return {
            "set": self.data_set,
            "mode": self.mode,
            "conversations": self.conversations,
            "turns": self.turns,
            "calls": sum(self.outcomes.values()),
            **{name: round(self.outcomes[name] / calls, 4) for name in OUTCOMES},
            "model_calls_per_turn": round(self.model_calls / max(1, self.turns), 2),
            "input_tokens_per_turn": round(self.input_tokens / max(1, self.turns)),
            "model_calls_per_task": round(self.model_calls / max(1, self.conversations), 2),
            "input_tokens_per_task": round(self.input_tokens / max(1, self.conversations)),
            "output_tokens_per_task": round(self.output_tokens / max(1, self.conversations)),
            "dollars_per_task": {
                name: round(dollars / max(1, self.conversations), 5) for name, dollars in self.dollars.items()
            },
            "correct_states": round(self.correct_states / max(1, self.conversations), 4),
            "lost_tools": dict(self.lost.most_common(10)),
        }


class ReplayModel:
    """Makes the recorded calls of one turn after the other, one in each reply."""

    def __init__(self, result: ReplayResult, counter: TokenCounter) -> None:
        self._result, self._counter = result, counter
        self._message = ""
        self._calls: list[GoldCall] = []
        self._searches = 0
        self._ids = count()
        self._turn = 0
        self._seconds = 0.0
        self.requests: list[ModelCall] = []

    def start_turn(self, turn: GoldTurn) -> None:
        self._message, self._calls, self._searches = turn.message, list(turn.calls), 0
        self._result.turns += 1
        self._turn += 1
        self._seconds += SECONDS_A_MESSAGE

    def reply(self, request: ModelRequest) -> str | ScriptedReply:
        """Return the next call, a search for its tool, or the end of the turn."""
        reply = self._choose_reply(request)
        self._count_request(request, reply)
        return reply

    def _choose_reply(self, request: ModelRequest) -> str | ScriptedReply:
        if not self._calls:
            return "Done."
        call = self._calls[0]
        shown = {tool["function"]["name"] for tool in request.tools}
        outcome = self._find_outcome(call.name, shown, RequestHistory(request.messages))
        if outcome is None:
            self._searches += 1
            words = self._message if self._searches == 1 else call.name.replace("_", " ")
            return self._make_reply(BRIDGE_SEARCH, {"query": words})
        self._calls.pop(0)
        self._searches = 0
        self._result.outcomes[outcome] += 1
        if outcome == "lost":
            self._result.lost[call.name] += 1
        if call.name in shown or BRIDGE_CALL not in shown:
            return self._make_reply(call.name, call.arguments)
        return self._make_reply(BRIDGE_CALL, {"name": call.name, "arguments": call.arguments})

    def _find_outcome(self, name: str, shown: set[str], history: RequestHistory) -> Outcome | None:
        """Return how the tool became available; None if the model should search for it first."""
        if name in (shown - BRIDGE_NAMES) | history.told:
            return "shown"
        if name in history.found | history.described:
            outcomes: tuple[Outcome, ...] = ("known", "found", "reworded")
            return outcomes[self._searches]
        return None if BRIDGE_SEARCH in shown and self._searches < MAX_SEARCHES else "lost"

    def _make_reply(self, name: str, arguments: Json) -> ScriptedReply:
        return ScriptedReply(calls=[ToolCall(name, arguments, f"call_{next(self._ids)}")])

    def _count_request(self, request: ModelRequest, reply: str | ScriptedReply) -> None:
        written = (
            [[call.name, call.arguments] for call in reply.calls] if not isinstance(reply, str) else reply
        )
        pieces = (*request.tools, request.system, *request.messages)  # in the order of prompt caches
        segments = tuple(count_segment(piece, self._counter) for piece in pieces)
        output = count_segment(written, self._counter).tokens
        self.requests.append(ModelCall(segments, output, self._turn, self._seconds))
        self._seconds += SECONDS_A_CALL
        self._result.model_calls += 1
        self._result.input_tokens += sum(segment.tokens for segment in segments)
        self._result.output_tokens += output


class Replay:
    """Runs the conversations of one data set in one mode."""

    def __init__(
        self, data: ConversationSet, mode: Mode, runtime: Runtime, store: SqliteSessionStore
    ) -> None:
        self._data, self._mode, self._runtime, self._store = data, mode, runtime, store
        self._counter = TokenCounter()
        self._state: ToolState | None = None
        for definition in data.definitions:
            self._add_tool(definition)

    def run(self) -> ReplayResult:
        result = ReplayResult(self._data.name, self._mode.name)
        for conversation in self._data.conversations:
            self._run_conversation(conversation, result)
        return result

    def _add_tool(self, definition: Json) -> None:
        name = definition["name"]

        def run(args: Json, _context: CallContext) -> Any:
            assert self._state is not None  # a conversation is running
            return self._state.run(name, args)

        schema = {"description": definition["description"], "parameters": definition["parameters"]}
        self._runtime.registry.add(
            build_tool(name=name, toolset=definition["toolset"], schema=schema, handler=run)
        )

    def _run_conversation(self, conversation: Conversation, result: ReplayResult) -> None:
        self._state = conversation.open_state()
        model = ReplayModel(result, self._counter)
        provider = ScriptedProvider(iter(lambda: model.reply, None))
        with Agent(provider, runtime=self._runtime, store=self._store, limits=_LIMITS) as agent:
            for turn in conversation.turns:
                model.start_turn(turn)
                done = agent.run_sync(turn.message)
                if not done.ok:
                    raise RuntimeError(f"{conversation.id}: {done.reason} {done.error}")
        result.conversations += 1
        for prices in PRICED:
            bill = compute_bill(model.requests, prices)
            result.dollars[prices.name] = result.dollars.get(prices.name, 0.0) + bill.dollars
        result.correct_states += self._state.is_correct()


@contextmanager
def open_replay(data: ConversationSet, mode: Mode, home: Path, *, distractors: bool) -> Iterator[Replay]:
    """Open a runtime with the tools of a data set, and optionally those of the sample catalog."""
    with tempfile.TemporaryDirectory() as folder:
        settings: Mapping[str, object] = {
            "tools.selection": mode.selection,
            "tools.tool_search.enabled": mode.tool_search,
            "tools.rag_placement": mode.placement,
            "tools.patience_seconds": 600,  # the selection is measured, not the time of the first index
            "plugins.enabled": False,
            "files.workspace": folder,
        }
        config = load_config(project=Path(folder), env={"TOOLFOLD_HOME": str(home)}, overrides=settings)
        store = SqliteSessionStore(Path(folder, "sessions.db"))
        try:
            with open_runtime(config) as runtime:
                if distractors:
                    own = {definition["name"] for definition in data.definitions}
                    runtime.registry.add_all(_without(own, sample_catalog()))
                yield Replay(data, mode, runtime, store)
        finally:
            store.close()


def _without(names: set[str], tools: Sequence[Any]) -> list[Any]:
    return [tool for tool in tools if tool.name not in names]
