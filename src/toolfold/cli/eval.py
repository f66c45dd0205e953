"""`toolfold eval`: measure the quality of tool search on the user's own catalog and messages."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.app import Invocation
from toolfold.cli.catalog_options import FILE, load_extra_tools, sample_files
from toolfold.cli.eval_report import print_report
from toolfold.cli.output import escape_text, format_count, print_note, print_warning, progress_bar
from toolfold.cli.plot import draw_recall, plot_option
from toolfold.cli.search import MODES, warn_about_mode
from toolfold.runtime.evaluation import (
    COMPARED_MODES,
    MAX_RANKED,
    EvalResults,
    QueryResult,
    build_recall_curve,
    count_tool_tokens,
    find_input_problems,
    run_queries,
)

if TYPE_CHECKING:
    from toolfold.config.settings import ToolsSettings
    from toolfold.core.registry import Snapshot
    from toolfold.selection.retrieval.ranking_metrics import Query
    from toolfold.selection.retrieval.tool_search import Mode, Retriever


@click.command("eval")
@click.option("--catalog", type=FILE, help="Tools to search: one JSON function definition per line.")
@click.option(
    "--queries",
    type=FILE,
    help='File of messages, one JSON object per line: "id", "query" (the message) and "gold" (the tools '
    "that it needs).",
)
@click.option("--sample", is_flag=True, help="Use the sample catalog and its messages.")
@click.option("--mode", type=MODES, default="hybrid", show_default=True, help="Search method.")
@click.option(
    "--k",
    "top_k",
    type=click.IntRange(1, MAX_RANKED),
    default=8,
    show_default=True,
    help="Number of tools selected per message.",
)
@click.option("--json", "as_lines", is_flag=True, help="Print one JSON line per message and nothing else.")
@plot_option("recall against tokens sent, for every mode,")
@click.pass_obj
def command(
    invocation: Invocation,
    catalog: Path | None,
    queries: Path | None,
    sample: bool,
    mode: Mode,
    top_k: int,
    as_lines: bool,
    plot: Path | None,
) -> None:
    """Measure the quality of tool search on your own tools and messages.

    Both files contain one JSON object per line and may be gzipped. A message may have `alternatives` to its
    gold tools, a `kind` to group the report by, and no gold tool if it needs none. With a `history`, a list
    of earlier messages (`role`, `content` and the `tools` that were called; oldest first), tools are selected
    as in a session.
    """
    if sample and not (catalog or queries):
        with sample_files() as (catalog, queries):
            tools, all_queries = _read_inputs(catalog, queries)
    elif catalog and queries and not sample:
        tools, all_queries = _read_inputs(catalog, queries)
    else:
        raise click.UsageError("give your own --catalog and --queries, or --sample for the sample catalog")
    with ExitStack() as stack:
        with progress_bar("reading the tools") as step:
            runtime = stack.enter_context(invocation.open_runtime(progress=step))
            warn_about_mode(runtime, mode)
            retriever = runtime.retriever
            retriever.find(tools, "warm up", mode=mode, limit=1)
        quiet = as_lines and sys.stdout.isatty()
        settings = runtime.config.tools
        results = _run_queries(retriever, tools, all_queries, mode, top_k, settings=settings, quiet=quiet)
        if as_lines:
            results = _print_lines(results)
        found = list(results)
        if as_lines and not plot:
            return
        eval_results = EvalResults(tools, found, mode, top_k, _count_tool_tokens(tools))
        if plot:
            _draw_plot(plot, retriever, eval_results, settings)
        if not as_lines:
            print_report(eval_results, retriever)


def _read_inputs(catalog: Path, queries: Path) -> tuple[Snapshot, list[Query]]:
    """Read the catalog and the messages, and warn about entries that make the results unreliable."""
    from toolfold.core.registry import Snapshot
    from toolfold.selection.retrieval.ranking_metrics import load_queries

    listing, all_queries = load_extra_tools(catalog, sample=False), load_queries(queries)
    if not listing:
        raise click.ClickException(f"{catalog} contains no tools")
    if not all_queries:
        raise click.ClickException(f"{queries} contains no messages")
    for problem in find_input_problems(
        listing, all_queries, catalog=str(catalog), messages=str(queries), short_catalog=catalog.name
    ):
        print_warning(problem)
    # Not registered: a catalog may contain names that the registry rejects, and is measured on its own.
    return Snapshot({tool.name: tool for tool in listing}, 0), all_queries


def _run_queries(
    retriever: Retriever,
    tools: Snapshot,
    all_queries: Sequence[Query],
    mode: Mode,
    top_k: int,
    *,
    settings: ToolsSettings,
    quiet: bool = False,
) -> Iterator[QueryResult]:
    with progress_bar(f"running queries ({mode})", enabled=not quiet) as step:
        yield from run_queries(retriever, tools, all_queries, mode, top_k, settings=settings, step=step)


def _print_lines(results: Iterator[QueryResult]) -> Iterator[QueryResult]:
    for each in results:
        line: dict[str, Any] = {
            "id": each.query.id,
            "ranked": each.ranked,
            "selected": each.selected,
            "ms": each.ms,
        }
        click.echo(json.dumps(line))  # ASCII only: safe for any terminal
        yield each


def _count_tool_tokens(tools: Snapshot) -> dict[str, int]:
    with progress_bar("counting tokens") as step:
        return count_tool_tokens(tools, step)


def _draw_plot(file: Path, retriever: Retriever, eval_results: EvalResults, settings: ToolsSettings) -> None:
    all_queries = [each.query for each in eval_results.results_with_gold]
    if not all_queries:
        raise click.ClickException("no message has a `gold` tool, so recall cannot be plotted")
    curves = []
    for mode in dict.fromkeys((*COMPARED_MODES, eval_results.mode)):
        results: Sequence[QueryResult] = eval_results.results_with_gold
        if mode != eval_results.mode:
            results = list(
                _run_queries(
                    retriever, eval_results.tools, all_queries, mode, eval_results.top_k, settings=settings
                )
            )
        curves.append(build_recall_curve(mode, results, eval_results.tool_tokens))
    about = (
        f"{format_count(len(eval_results.tools), 'tool')}, {format_count(len(all_queries), 'message')};"
        f" all tools cost {eval_results.all_tokens:,} tokens"
    )
    draw_recall(file, curves, about, numbered=eval_results.mode)
    print_note(f"plot of recall against tokens sent written to {escape_text(str(file))}")
