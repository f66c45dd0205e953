"""The report of `toolfold eval`: search quality, token costs, and the worst results with reasons.

Uses the results of a finished run; searches again only to explain a bad result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING

from toolfold.cli.output import format_count, join_names, print_line, print_table

if TYPE_CHECKING:
    from toolfold.cli.plot import RecallCurve
    from toolfold.registry import Snapshot
    from toolfold.retrieval.evaluation import Query
    from toolfold.retrieval.search import Hit, Mode, Retriever

MAX_WORST_SHOWN = 8
DEPTHS = (1, 2, 3, 5, 8, 12, 20, 30, 50)
_MESSAGE_CHARS = 160


@dataclass(frozen=True, slots=True)
class QueryResult:
    """One labelled message and its search result."""

    query: Query
    ranked: list[str]
    selected: list[str]
    """The tools that would be sent to the model; empty if the message seems to need none."""
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
        """Return the number of tokens of all tool definitions together."""
        return sum(self.tool_tokens.values())


def build_recall_curve(
    mode: str, results: Sequence[QueryResult], tool_tokens: Mapping[str, int]
) -> RecallCurve:
    """Return the recall and the tokens sent to the model, for increasing numbers of tools."""
    from toolfold.cli.plot import CurvePoint, RecallCurve
    from toolfold.retrieval.evaluation import recall

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


def print_report(eval_results: EvalResults, retriever: Retriever) -> None:
    """Print the whole report to standard output."""
    print_line(
        f"[bold]{format_count(len(eval_results.tools), 'tool')},"
        f" {format_count(len(eval_results.results), 'message')},"
        f" {eval_results.mode}[/bold]\n"
    )
    if not eval_results.results:
        return
    if eval_results.results_with_gold:
        _print_quality(eval_results)
    else:
        print_line("No message has a `gold` tool, so recall cannot be measured.\n")
    print_table("", ("", ""), _cost_rows(eval_results))
    if eval_results.results_with_gold:
        _print_worst(eval_results, retriever)


def _print_quality(eval_results: EvalResults) -> None:
    results_with_gold = eval_results.results_with_gold
    depths = sorted({1, 5, 8, eval_results.top_k})
    kinds = sorted({each.query.kind for each in results_with_gold if each.query.kind})
    by_kind = [(kind, [each for each in results_with_gold if each.query.kind == kind]) for kind in kinds]
    groups = [("all", results_with_gold), *(by_kind if len(by_kind) > 1 else ())]
    print_table(
        "messages that need a tool",
        ("kind", "#count", *(f"#R@{top_k}" for top_k in depths), "#MRR", "#nDCG@10"),
        ((name, f"{len(group):,}", *_quality_figures(group, depths)) for name, group in groups),
    )


def _quality_figures(group: Sequence[QueryResult], depths: Sequence[int]) -> list[str]:
    from toolfold.retrieval.evaluation import discounted_gain, recall, reciprocal_rank

    figures = [
        *(fmean(recall(each.query, each.ranked, top_k) for each in group) for top_k in depths),
        fmean(reciprocal_rank(each.query, each.ranked) for each in group),
        fmean(discounted_gain(each.query, each.ranked) for each in group),
    ]
    return [f"{figure:.3f}" for figure in figures]


def _cost_rows(eval_results: EvalResults) -> list[tuple[str, str]]:
    from toolfold.retrieval.evaluation import percentile

    results, everything = eval_results.results, eval_results.all_tokens
    sent = fmean(sum(eval_results.tool_tokens[name] for name in each.selected) for each in results)
    times = [each.ms for each in results]
    return [
        *_selection_errors(eval_results),
        (
            "tokens sent per message",
            f"{sent:,.0f} of {everything:,} ({sent / everything:.1%}), at most {eval_results.top_k} tools",
        ),
        (
            "CPU time per message",
            f"{percentile(times, 0.5):.2f} ms p50, {percentile(times, 0.99):.2f} ms p99",
        ),
    ]


def _selection_errors(eval_results: EvalResults) -> list[tuple[str, str]]:
    """Return how often tools are selected though none is needed, and none though one is needed."""
    idle = [each for each in eval_results.results if not each.query.gold]
    groups = (
        ("tool needed, none selected", eval_results.results_with_gold, False),
        ("no tool needed, some selected", [e for e in idle if e.query.candidates is None], True),
        ("no tool needed among own candidates, some selected", [e for e in idle if e.query.candidates], True),
    )
    return [
        (what, _format_share(sum(bool(each.selected) is wrong for each in group), len(group)))
        for what, group, wrong in groups
        if group
    ]


def _format_share(count: int, total: int) -> str:
    return f"{count / total:.1%} ({count:,} of {total:,})"


@dataclass(frozen=True, slots=True)
class _MissedNeed:
    """A tool that a message needs but that was not ranked high enough."""

    result: QueryResult
    wanted: str
    serving: frozenset[str]
    rank: int | None

    @property
    def rank_text(self) -> str:
        deepest = len(self.result.ranked)
        return str(self.rank) if self.rank else f">{deepest}" if deepest >= DEPTHS[-1] else "none"

    @property
    def nothing_selected(self) -> bool:
        return not self.result.selected

    @property
    def sort_rank(self) -> float:
        return math.inf if self.nothing_selected or self.rank is None else self.rank


def _print_worst(eval_results: EvalResults, retriever: Retriever) -> None:
    misses = [miss for each in eval_results.results_with_gold if (miss := _worst_miss(each))]
    if not misses:
        print_line("For every message, the needed tools are ranked first.")
        return
    # A tool that is missing from the catalog says nothing about the search: list such messages last.
    misses.sort(key=lambda miss: (not miss.serving & eval_results.tools.keys(), -miss.sort_rank))
    shown = misses[:MAX_WORST_SHOWN]
    of = f" of {len(misses):,}" if len(misses) > len(shown) else ""
    print_table(
        f"messages whose tool is not ranked first: the worst {len(shown)}{of}",
        ("#rank", "message → wanted tool", "ranked before it, and why"),
        (
            (
                miss.rank_text,
                f"{_shorten_message(miss)}\n→ {miss.wanted}",
                _explain_miss(eval_results, retriever, miss),
            )
            for miss in shown
        ),
        row_lines=True,
    )


def _worst_miss(result: QueryResult) -> _MissedNeed | None:
    """Return the needed tool with the worst rank, or None if all needed tools are ranked first."""
    from toolfold.retrieval.evaluation import ranks

    query = result.query
    served = zip(query.gold, map(frozenset, query.needs()), ranks(query, result.ranked), strict=True)
    wanted, serving, rank = max(served, key=lambda each: each[2] or math.inf)
    if result.selected and rank is not None and rank <= len(query.gold):
        return None
    return _MissedNeed(result, wanted, serving, rank)


def _shorten_message(miss: _MissedNeed) -> str:
    text = " ".join(miss.result.query.text[: _MESSAGE_CHARS * 2].split())
    return text if len(text) <= _MESSAGE_CHARS else f"{text[:_MESSAGE_CHARS]}…"


def _explain_miss(eval_results: EvalResults, retriever: Retriever, miss: _MissedNeed) -> str:
    query, lines = miss.result.query, []
    front = _wrongly_ahead(miss)
    if miss.nothing_selected and miss.result.ranked:
        lines.append(f"classified as needing no tool (probability of need: {miss.result.need:.0%})")
    if front:
        lines.append(f"ranked after {join_names(front, 2)}")
    available_tools = miss.serving & eval_results.tools.keys()
    if not available_tools:
        lines.append("not in the catalog")
    elif query.candidates is not None and not available_tools & query.candidates:
        lines.append("not among the message's own candidates")
    else:
        lines += _compare_with_winner(eval_results, retriever, query, available_tools, front[:1])
    return "\n".join(lines)


def _wrongly_ahead(miss: _MissedNeed) -> list[str]:
    """Return the tools that were ranked before the needed one although the message does not need them."""
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
    """Explain why a wrong tool was ranked before the needed one, by comparing how both match the message."""
    mode: Mode = eval_results.mode
    hits = retriever.find(
        eval_results.tools, query.text, mode=mode, limit=DEPTHS[-1], granted={*wanted, *first}
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
            f"no matching words; the first tool matches {join_names(has, 5)}" if has else "no matching words"
        )
    more = [word for word in has if word not in missed.matched]
    shares = f"matching words: {join_names(missed.matched, 5)}"
    return f"{shares}; the first tool also matches {join_names(more, 5)}" if more else shares


def _compare_similarity(similarity: float, winner: Hit | None) -> str:
    text = f"similarity {similarity:.2f}"
    if winner is None or winner.similarity is None:
        return text
    compared = "lower than" if similarity < winner.similarity else "not lower than"
    return f"{text}, {compared} that of the first tool ({winner.similarity:.2f})"
