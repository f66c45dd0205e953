"""Measure tool search on labelled messages: ranks, tokens sent, and the worst results with reasons.

`toolfold eval` and the dashboard show the results. Searches again only to explain a bad result. Knows
nothing of where tools and messages come from, nor of how results are shown.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING

from toolfold.core.errors import join_names
from toolfold.selection.retrieval.ranking_metrics import (
    discounted_gain,
    percentile,
    ranks,
    recall,
    reciprocal_rank,
)

if TYPE_CHECKING:
    from toolfold.config.settings import ToolsSettings
    from toolfold.core.registry import Snapshot
    from toolfold.core.types import Tool
    from toolfold.selection.retrieval.ranking_metrics import Query
    from toolfold.selection.retrieval.tool_search import Hit, Mode, Retriever

MAX_RANKED = 50
DEPTHS = (1, 2, 3, 5, 8, 12, 20, 30, MAX_RANKED)
COMPARED_MODES: tuple[Mode, ...] = ("keyword", "semantic", "hybrid")
_MAX_NAMES = 5
_MESSAGE_CHARS = 160

Step = Callable[[int, int], None]
"""Receives the number of finished steps and the total."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """A labelled message and its search result."""

    query: Query
    ranked: list[str]
    selected: list[str]
    """The tools that would be sent to the model; empty if the message seems to need no tool."""
    need: float
    """Estimated probability that the message needs a tool."""
    ms: float


@dataclass(frozen=True)
class EvalResults:
    """Search results for all labelled messages, and the token count of each tool."""

    tools: Snapshot
    results: Sequence[QueryResult]
    mode: Mode
    top_k: int
    tool_tokens: Mapping[str, int]

    @cached_property
    def results_with_gold(self) -> list[QueryResult]:
        """Return the results for the messages that need a tool."""
        return [each for each in self.results if each.query.gold]

    @property
    def all_tokens(self) -> int:
        """Return the total number of tokens of all tool definitions."""
        return sum(self.tool_tokens.values())

    @property
    def mean_tokens_sent(self) -> float:
        """Return the mean number of tokens of the selected tools over all messages."""
        return fmean(sum(self.tool_tokens[name] for name in each.selected) for each in self.results)

    def find_time(self, share: float) -> float:
        """Return a percentile of the CPU time per search, in milliseconds; `share` is from 0 to 1."""
        return percentile([each.ms for each in self.results], share)


@dataclass(frozen=True, slots=True)
class Quality:
    """Ranking metrics for messages that need a tool."""

    kind: str
    """The kind of messages that was measured; `all` for all messages."""
    count: int
    recall: Mapping[int, float]
    """Share of the needed tools that are among the tools sent, by the number of tools sent."""
    reciprocal_rank: float
    discounted_gain: float


@dataclass(frozen=True, slots=True)
class SelectionErrors:
    """Error rates of the decision whether a message needs a tool."""

    what: str
    count: int
    total: int


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Mean tokens and mean recall over all messages for the `depth` best-ranked tools."""

    depth: int
    tokens: float
    recall: float


@dataclass(frozen=True, slots=True)
class RecallCurve:
    """Points of recall and tokens for one search mode, by increasing number of selected tools."""

    mode: str
    points: Sequence[CurvePoint]


@dataclass(frozen=True, slots=True)
class MissedNeed:
    """A tool that a message needs but that was not ranked high enough."""

    result: QueryResult
    wanted: str
    serving: frozenset[str]
    """The needed tool and its alternatives."""
    rank: int | None

    @property
    def rank_text(self) -> str:
        """Return the rank as text; for an unranked tool `none`, or `>50` if the ranking was cut off."""
        deepest = len(self.result.ranked)
        return str(self.rank) if self.rank else f">{deepest}" if deepest >= MAX_RANKED else "none"

    @property
    def is_nothing_selected(self) -> bool:
        """Return True if the message was classified as needing no tool."""
        return not self.result.selected

    @property
    def sort_rank(self) -> float:
        """Return a sort key that is larger for a worse result."""
        return math.inf if self.is_nothing_selected or self.rank is None else self.rank

    @property
    def short_message(self) -> str:
        """Return the beginning of the message on one line."""
        text = " ".join(self.result.query.text[: _MESSAGE_CHARS * 2].split())
        return text if len(text) <= _MESSAGE_CHARS else f"{text[:_MESSAGE_CHARS]}…"


def find_input_problems(
    listing: Sequence[Tool], queries: Sequence[Query], *, catalog: str, messages: str, short_catalog: str = ""
) -> list[str]:
    """Return problems that make results unreliable: duplicate names or ids, and labels with unknown tools.

    `catalog` and `messages` say where the tools and the messages come from.
    """
    known, problems = {tool.name for tool in listing}, []
    if repeated := _find_repeated(tool.name for tool in listing):
        names = join_names(repeated, _MAX_NAMES)
        problems.append(f"{catalog}: duplicate tool names: {names}; the last definition is used")
    if repeated := _find_repeated(str(query.id) for query in queries):
        problems.append(f"{messages}: duplicate message ids: {join_names(repeated, _MAX_NAMES)}")
    if missing := _find_unknown_tools(queries, known):
        names = join_names(missing, _MAX_NAMES)
        problems.append(
            f"{messages}: tools that are missing from {short_catalog or catalog} cannot be found: {names}"
        )
    return problems


def _find_repeated(names: Iterator[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _find_unknown_tools(queries: Sequence[Query], known: set[str]) -> list[str]:
    named = (name for query in queries for name in (*query.gold, *sorted(query.candidates or ())))
    return [name for name in dict.fromkeys(named) if name not in known]


def run_queries(
    retriever: Retriever,
    tools: Snapshot,
    queries: Sequence[Query],
    mode: Mode,
    top_k: int,
    *,
    settings: ToolsSettings,
    step: Step,
    max_k: int | None = None,
) -> Iterator[QueryResult]:
    """Search for each message and yield the result, calling `step` before each search.

    For messages with a history up to `max_k` tools are selected if the ranking is uncertain.
    """
    chosen = settings.model_copy(update={"rag_top_k": top_k, "rag_max_k": max_k or top_k, "pinned": ()})
    select = _make_session_selector(retriever, tools, mode, chosen)
    for number, query in enumerate(queries):
        step(number, len(queries))
        started = time.process_time()
        if query.history is not None:
            ranked, selected, need = select(query)
        else:
            found = retriever.answer(tools, query.text, mode=mode, limit=MAX_RANKED, granted=query.candidates)
            ranked, need = [hit.name for hit in found.hits], found.need
            selected = ranked[:top_k] if found.needed(settings.need_threshold) else []
        ms = round((time.process_time() - started) * 1000, 3)
        yield QueryResult(query, ranked, selected, need, ms)


def _make_session_selector(
    retriever: Retriever, tools: Snapshot, mode: Mode, settings: ToolsSettings
) -> Callable[[Query], tuple[list[str], list[str], float]]:
    """Return a function that selects tools for a message and its history in the same way as a session.

    It returns the ranked tools, the selected ones and the need. A session does not rerank: that mode
    selects like `hybrid`.
    """
    from toolfold.selection.turn import Conversation, Grant, Selector, Turn

    selection = "hybrid" if mode == "rerank" else mode
    selector = Selector(settings.model_copy(update={"selection": selection}), retriever)
    every = Grant.from_names(tools, frozenset(tools))

    def select(query: Query) -> tuple[list[str], list[str], float]:
        grant = every if query.candidates is None else Grant.from_names(tools, query.candidates)
        turn = Turn(tools, grant.names, offered=grant.tools, offered_names=grant.tool_names)
        messages = [*(query.history or ()), {"role": "user", "content": query.text}]
        found = selector(grant, turn, Conversation.from_messages(messages))
        ranked = dict.fromkeys((*found.names, *(hit.name for hit in found.hits)))
        return list(ranked), list(found.names), found.need

    return select


def count_tool_tokens(tools: Snapshot, step: Step) -> dict[str, int]:
    """Return the number of tokens of each tool's definition."""
    from toolfold.selection.turn import count_tokens

    tool_tokens = {}
    for number, tool in enumerate(tools.values()):
        step(number, len(tools))
        tool_tokens[tool.name] = count_tokens([tool.definition()])
    return tool_tokens


def build_recall_curve(
    mode: str, results: Sequence[QueryResult], tool_tokens: Mapping[str, int]
) -> RecallCurve:
    """Return recall and tokens sent to the model for increasing numbers of tools."""
    longest = max(len(each.ranked) for each in results)
    depths = [top_k for top_k in DEPTHS if top_k <= longest] or [1]
    return RecallCurve(
        mode,
        [
            CurvePoint(
                top_k,
                fmean(sum(tool_tokens[name] for name in each.ranked[:top_k]) for each in results),
                fmean(recall(each.query, each.ranked, top_k) for each in results),
            )
            for top_k in depths
        ],
    )


def measure_quality(eval_results: EvalResults) -> list[Quality]:
    """Return the ranking metrics of all messages that need a tool, and of each kind of message.

    Empty if no message needs a tool.
    """
    results = eval_results.results_with_gold
    if not results:
        return []
    kinds = sorted({each.query.kind for each in results if each.query.kind})
    by_kind = [(kind, [each for each in results if each.query.kind == kind]) for kind in kinds]
    groups = [("all", results), *(by_kind if len(by_kind) > 1 else ())]
    depths = sorted({1, 5, 8, eval_results.top_k})
    return [_measure_group(kind, group, depths) for kind, group in groups]


def _measure_group(kind: str, group: Sequence[QueryResult], depths: Iterable[int]) -> Quality:
    return Quality(
        kind,
        len(group),
        {top_k: fmean(recall(each.query, each.ranked, top_k) for each in group) for top_k in depths},
        fmean(reciprocal_rank(each.query, each.ranked) for each in group),
        fmean(discounted_gain(each.query, each.ranked) for each in group),
    )


def count_selection_errors(eval_results: EvalResults) -> list[SelectionErrors]:
    """Return how often tools are selected unnecessarily, and how often needed tools are not selected."""
    idle = [each for each in eval_results.results if not each.query.gold]
    groups = (
        ("tool needed, none selected", eval_results.results_with_gold, False),
        ("no tool needed, some selected", [e for e in idle if e.query.candidates is None], True),
        ("no tool needed among own candidates, some selected", [e for e in idle if e.query.candidates], True),
    )
    return [
        SelectionErrors(what, sum(bool(each.selected) is wrong for each in group), len(group))
        for what, group, wrong in groups
        if group
    ]


def find_misses(eval_results: EvalResults) -> list[MissedNeed]:
    """Return the messages whose needed tools are not ranked first, worst first."""
    misses = [miss for each in eval_results.results_with_gold if (miss := _find_worst_miss(each))]
    # A tool that is missing from the catalog says nothing about the search: list such messages last.
    misses.sort(key=lambda miss: (not miss.serving & eval_results.tools.keys(), -miss.sort_rank))
    return misses


def _find_worst_miss(result: QueryResult) -> MissedNeed | None:
    """Return the needed tool with the worst rank, or None if all needed tools are ranked first."""
    query = result.query
    served = zip(query.gold, map(frozenset, query.needs()), ranks(query, result.ranked), strict=True)
    wanted, serving, rank = max(served, key=lambda each: each[2] or math.inf)
    if result.selected and rank is not None and rank <= len(query.gold):
        return None
    return MissedNeed(result, wanted, serving, rank)


def explain_miss(eval_results: EvalResults, retriever: Retriever, miss: MissedNeed) -> list[str]:
    """Return the reasons why a needed tool was not ranked first, one per line."""
    query, reasons = miss.result.query, []
    front = _list_wrongly_ahead(miss)
    if miss.is_nothing_selected and miss.result.ranked:
        reasons.append(f"classified as needing no tool (probability of need: {miss.result.need:.0%})")
    if front:
        reasons.append(f"ranked after {join_names(front, 2)}")
    available_tools = miss.serving & eval_results.tools.keys()
    if not available_tools:
        reasons.append("not in the catalog")
    elif query.candidates is not None and not available_tools & query.candidates:
        reasons.append("not among the message's own candidates")
    else:
        reasons += _compare_with_winner(eval_results, retriever, query, available_tools, front[:1])
    return reasons


def _list_wrongly_ahead(miss: MissedNeed) -> list[str]:
    """Return the unneeded tools that were ranked before the needed tool."""
    serving = set().union(*miss.result.query.needs())
    before = miss.result.ranked[: miss.rank - 1 if miss.rank else None]
    return [name for name in before if name not in serving]


def _compare_with_winner(
    eval_results: EvalResults,
    retriever: Retriever,
    query: Query,
    wanted: frozenset[str],
    first: Sequence[str],
) -> list[str]:
    """Explain why a wrong tool was ranked before the needed tool, by comparing their matches."""
    mode: Mode = eval_results.mode
    hits = retriever.find(
        eval_results.tools, query.text, mode=mode, limit=MAX_RANKED, granted={*wanted, *first}
    )
    missed = next((hit for hit in hits if hit.name in wanted), None)
    winner = next((hit for hit in hits if hit.name in first), None)
    reasons = [f"the message names {winner.name}"] if winner and winner.exact else []
    if mode != "semantic":
        reasons.append(_compare_words(missed, winner))
    if missed and missed.similarity is not None:
        reasons.append(_compare_similarity(missed.similarity, winner))
    return reasons


def _compare_words(missed: Hit | None, winner: Hit | None) -> str:
    has = winner.matched if winner else ()
    if missed is None or not missed.matched:
        return (
            f"no matching words; the first tool matches {join_names(has, _MAX_NAMES)}"
            if has
            else "no matching words"
        )
    more = [word for word in has if word not in missed.matched]
    shares = f"matching words: {join_names(missed.matched, _MAX_NAMES)}"
    return f"{shares}; the first tool also matches {join_names(more, _MAX_NAMES)}" if more else shares


def _compare_similarity(similarity: float, winner: Hit | None) -> str:
    text = f"similarity {similarity:.2f}"
    if winner is None or winner.similarity is None:
        return text
    compared = "lower than" if similarity < winner.similarity else "not lower than"
    return f"{text}, {compared} that of the first tool ({winner.similarity:.2f})"
