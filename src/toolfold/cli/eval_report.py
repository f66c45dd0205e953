"""The printed report of `toolfold eval`: search quality, token costs, and the worst results with reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolfold.cli.output import format_count, print_line, print_table
from toolfold.runtime.evaluation import (
    count_selection_errors,
    explain_miss,
    find_misses,
    measure_quality,
)

if TYPE_CHECKING:
    from toolfold.runtime.evaluation import EvalResults, Quality
    from toolfold.selection.retrieval.tool_search import Retriever

MAX_WORST_SHOWN = 8


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
        _print_quality(measure_quality(eval_results))
    else:
        print_line("No message has a `gold` tool, so recall cannot be measured.\n")
    print_table("", ("", ""), _cost_rows(eval_results))
    if eval_results.results_with_gold:
        _print_worst(eval_results, retriever)


def _print_quality(groups: list[Quality]) -> None:
    print_table(
        "messages that need a tool",
        ("kind", "#count", *(f"#R@{top_k}" for top_k in groups[0].recall), "#MRR", "#nDCG@10"),
        (
            (
                each.kind,
                f"{each.count:,}",
                *(
                    f"{figure:.3f}"
                    for figure in (*each.recall.values(), each.reciprocal_rank, each.discounted_gain)
                ),
            )
            for each in groups
        ),
    )


def _cost_rows(eval_results: EvalResults) -> list[tuple[str, str]]:
    sent, everything = eval_results.mean_tokens_sent, eval_results.all_tokens
    return [
        *(
            (each.what, f"{each.count / each.total:.1%} ({each.count:,} of {each.total:,})")
            for each in count_selection_errors(eval_results)
        ),
        (
            "tokens sent per message",
            f"{sent:,.0f} of {everything:,} ({sent / everything:.1%}), at most {eval_results.top_k} tools",
        ),
        (
            "CPU time per message",
            f"{eval_results.find_time(0.5):.2f} ms p50, {eval_results.find_time(0.99):.2f} ms p99",
        ),
    ]


def _print_worst(eval_results: EvalResults, retriever: Retriever) -> None:
    misses = find_misses(eval_results)
    if not misses:
        print_line("For every message, the needed tools are ranked first.")
        return
    shown = misses[:MAX_WORST_SHOWN]
    of = f" of {len(misses):,}" if len(misses) > len(shown) else ""
    print_table(
        f"messages whose tool is not ranked first: the worst {len(shown)}{of}",
        ("#rank", "message → wanted tool", "ranked before it, and why"),
        (
            (
                miss.rank_text,
                f"{miss.short_message}\n→ {miss.wanted}",
                "\n".join(explain_miss(eval_results, retriever, miss)),
            )
            for miss in shown
        ),
        row_lines=True,
    )
