"""Explain which tools are sent to a model for a message, and why others are not.

Selects tools as a session does and adds the ranks of every search leg. `toolfold explain` and the dashboard
show the result. Knows nothing of how it is shown.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolfold.core.types import Json, Tool
    from toolfold.runtime.session import Session
    from toolfold.selection.retrieval.tool_search import Mode, Retriever
    from toolfold.selection.turn import Turn
    from toolfold.selection.turn.tokens import TokenCounter

_OFF, _ON = "off", "on"
MODES: Mapping[str, tuple[str, str]] = {
    "auto": ("auto", "auto"),
    "eager": ("eager", _OFF),
    "tool_search": ("eager", _ON),
    "keyword": ("keyword", _OFF),
    "semantic": ("semantic", _OFF),
    "hybrid": ("hybrid", _OFF),
    "both": ("hybrid", _ON),
}
"""The values of `tools.selection` and `tools.tool_search.enabled` for each mode of selection."""


@dataclass(frozen=True, slots=True)
class ToolExplanation:
    """A tool in an explanation: its ranks, and why it is or is not sent to the model."""

    name: str
    source: str
    shown: bool
    why: str
    ranks: Mapping[str, int | None]
    similarity: float | None
    score: float | None
    """Combined score of keyword and similarity search. Only the order of scores is meaningful."""
    tokens: int
    matched: tuple[str, ...] = field(default=())
    learned: Mapping[str, Any] | None = None
    """How much learned messages add to the similarity, and how many and how old these messages are."""


def explain_selection(
    session: Session, retriever: Retriever, messages: Sequence[Json], model: str
) -> dict[str, Any]:
    """Select tools for the conversation in the same way as a session, and explain the result.

    If the search fails, the entry `problem` says why ranks are missing.
    """
    from toolfold.selection.turn import Conversation, render_definitions
    from toolfold.selection.turn.tokens import TokenCounter

    whole = session.assemble()  # warms the caches, so that they do not count in this message's time
    message = next(reversed(Conversation.from_messages(messages).user_texts), "")
    legs = _LegResults(retriever, whole, message)
    started = time.perf_counter()
    turn = session.assemble(messages, model=model)
    sent = turn.definitions()
    spent = (time.perf_counter() - started) * 1000
    counter = TokenCounter()
    tokens = {
        each["function"]["name"]: counter.definition(each) for each in render_definitions(whole.offered)
    }
    reasons = _VisibilityReasons(turn)
    tools = [legs.explain_tool(tool, tokens[tool.name], reasons) for tool in whole.offered]
    selection = turn.selection
    names = [tool.name for tool in turn.tools]
    chosen = {name: place for place, name in enumerate(selection.names)} if selection else {}
    return {
        "message": message,
        "why": turn.why,
        "selected": sorted(names, key=lambda name: chosen.get(name, len(chosen))),
        "need": selection.need if selection else None,
        "needed": selection.needed if selection else None,
        "leg": selection.leg if selection else None,
        "index": _describe_index(retriever),
        "tokens_all": sum(tokens.values()),
        "tokens_sent": counter.definitions(sent),
        "ms": round(spent, 3),
        "ms_by_leg": legs.spent,
        "request": _describe_request(session, messages, model, counter),
        "tools": [asdict(each) for each in sorted(tools, key=_sort_key)],
        "unavailable": dict(turn.unavailable),
        "problem": legs.problem,
    }


def _describe_index(retriever: Retriever) -> dict[str, Any]:
    """Return the numbers of indexed and embedded tools, and how long searches waited for the index."""
    state = retriever.index_state()
    return {"tools": state.tools, "embedded": state.embedded, "waited_s": round(state.waited_s, 3)}


def _describe_request(
    session: Session, messages: Sequence[Json], model: str, counter: TokenCounter
) -> dict[str, Any]:
    """Describe which part of a request contains the tools: its tools array, or the newest message."""
    request = session.request(messages, model=model)
    return {
        "placement": request.placement,
        "array": [tool["function"]["name"] for tool in request.tools],
        "tokens_array": counter.definitions(request.tools),
        "tail": request.tail,
        "tokens_tail": counter.text(request.tail) if request.tail else 0,
    }


def _sort_key(tool: ToolExplanation) -> tuple[bool, int, int, str]:
    last = 1 << 30
    return not tool.shown, tool.ranks["fused"] or last, tool.ranks["semantic"] or last, tool.name


class _LegResults:
    """Ranks and scores of all tools per search method (leg): keywords, similarity, and both combined."""

    def __init__(self, retriever: Retriever, turn: Turn, message: str) -> None:
        from toolfold.selection.retrieval.learned_messages import LOCAL_CLIENT

        offered, snapshot = turn.offered_names, turn.snapshot
        self._learned, self.problem = retriever.learned, ""
        self.spent: dict[str, float] = {}
        self._scores: Mapping[str, Mapping[str, float]] = {}
        self._hits: Mapping[str, Any] = {}
        try:
            self._scores = retriever.legs(snapshot, message, granted=offered, client=LOCAL_CLIENT)
            modes: tuple[Mode, ...] = ("keyword", "semantic", "hybrid")
            for mode in modes:
                started = time.perf_counter()
                found = retriever.answer(
                    snapshot, message, mode=mode, limit=len(offered), granted=offered, client=LOCAL_CLIENT
                )
                self.spent[mode] = round((time.perf_counter() - started) * 1000, 3)
            self._hits = {hit.name: (rank, hit) for rank, hit in enumerate(found.hits, 1)}
        except Exception as error:  # the report is still useful without the ranks
            self.problem = f"the tool search failed, so no ranks are shown: {error}"
        self._ranks = {
            leg: {name: rank for rank, name in enumerate(scores, 1)} for leg, scores in self._scores.items()
        }

    def explain_tool(self, tool: Tool, tokens: int, reasons: _VisibilityReasons) -> ToolExplanation:
        rank, hit = self._hits.get(tool.name, (None, None))
        shown, why = reasons(tool, found=any(tool.name in each for each in self._ranks.values()))
        return ToolExplanation(
            name=tool.name,
            source=tool.server,
            shown=shown,
            why=why,
            ranks={
                **{leg: self._ranks.get(leg, {}).get(tool.name) for leg in ("keyword", "semantic")},
                "fused": rank,
            },
            similarity=self._scores.get("semantic", {}).get(tool.name),
            score=self._scores.get("fused", {}).get(tool.name),
            tokens=tokens,
            matched=hit.matched if hit else (),
            learned=self._explain_learned(tool, hit.learned) if hit and hit.learned else None,
        )

    def _explain_learned(self, tool: Tool, gain: float) -> dict[str, Any]:
        return {"gain": round(gain, 3), **self._learned.summarize(tool).to_json()}


class _VisibilityReasons:
    """Explains why a tool is or is not visible to the model in one turn of the conversation."""

    def __init__(self, turn: Turn) -> None:
        self._turn, self._selection = turn, turn.selection
        self._shown = {tool.name for tool in turn.tools}

    def __call__(self, tool: Tool, *, found: bool) -> tuple[bool, str]:
        if tool.name in self._shown:
            return True, self._reason_shown(tool)
        return False, self._reason_hidden(tool, found)

    def _reason_shown(self, tool: Tool) -> str:
        selection = self._selection
        if selection and tool.name in selection.why:
            return selection.why[tool.name]
        if selection and selection.leg != "bridge":
            return "always sent"
        if not self._turn.searchable:
            return "every tool is sent"
        return "built-in tool, never deferred" if tool.core else "pinned"

    def _reason_hidden(self, tool: Tool, found: bool) -> str:
        behind = "; available through tool_search" if self._turn.searchable else ""
        selection = self._selection
        if selection is None or selection.leg == "bridge":
            return "deferred" + behind
        if not selection.needed:
            return f"the message probably needs no tool (probability {selection.need:.0%})" + behind
        if tool.name in selection.left_out:
            return selection.left_out[tool.name] + behind
        return (f"not among the best {selection.count}" if found else "no match") + behind
