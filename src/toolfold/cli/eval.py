"""`toolfold eval`: measure the quality of tool search on the user's own catalog and messages."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.app import Invocation
from toolfold.cli.catalogs import FILE, load_extra_tools
from toolfold.cli.eval_report import EvalResults, QueryResult, build_recall_curve, print_report
from toolfold.cli.output import escape_text, format_count, join_names, print_note, print_warning, progress_bar
from toolfold.cli.plot import draw_recall, plot_option
from toolfold.cli.search import MODES, warn_about_mode

if TYPE_CHECKING:
    from toolfold.config.settings import ToolsSettings
    from toolfold.registry import Snapshot
    from toolfold.retrieval.evaluation import Query
    from toolfold.retrieval.search import Mode, Retriever

MAX_RANKED = 50
PLOTTED_MODES: tuple[Mode, ...] = ("keyword", "semantic", "hybrid")


@click.command("eval")
@click.option(
    "--catalog", type=FILE, required=True, help="Tools to search: one JSON function definition per line."
)
@click.option(
    "--queries",
    type=FILE,
    required=True,
    help='File of messages, one JSON object per line: "id", "query" (the message) and "gold" (the tools '
    "that it needs).",
)
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
    catalog: Path,
    queries: Path,
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
    tools, all_queries = _read_inputs(catalog, queries)
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
    from toolfold.registry import Snapshot
    from toolfold.retrieval.evaluation import load_queries

    listing, all_queries = load_extra_tools(catalog, sample=False), load_queries(queries)
    if not listing:
        raise click.ClickException(f"{catalog} contains no tools")
    if not all_queries:
        raise click.ClickException(f"{queries} contains no messages")
    # Not registered: a catalog may contain names that the registry rejects, and is measured on its own.
    tools = Snapshot({tool.name: tool for tool in listing}, 0)
    if duplicates := _find_repeated(tool.name for tool in listing):
        print_warning(
            f"{catalog}: duplicate tool names: {join_names(duplicates, 5)}; the last definition is used"
        )
    if duplicates := _find_repeated(str(query.id) for query in all_queries):
        print_warning(f"{queries}: duplicate message ids: {join_names(duplicates, 5)}")
    if missing := _find_unknown_tools(all_queries, tools):
        print_warning(
            f"{queries}: tools that are missing from {catalog.name} cannot be found: {join_names(missing, 5)}"
        )
    return tools, all_queries


def _find_repeated(names: Iterator[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _find_unknown_tools(all_queries: Sequence[Query], tools: Snapshot) -> list[str]:
    named = (name for query in all_queries for name in (*query.gold, *sorted(query.candidates or ())))
    return [name for name in dict.fromkeys(named) if name not in tools]


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
        select = _session_selector(retriever, tools, mode, top_k, settings)
        for number, query in enumerate(all_queries):
            step(number, len(all_queries))
            started = time.process_time()
            if query.history is not None:
                ranked, selected, need = select(query)
            else:
                found = retriever.answer(
                    tools, query.text, mode=mode, limit=MAX_RANKED, granted=query.candidates
                )
                ranked, need = [hit.name for hit in found.hits], found.need
                selected = ranked[:top_k] if found.needed(settings.need_threshold) else []
            ms = round((time.process_time() - started) * 1000, 3)
            yield QueryResult(query, ranked, selected, need, ms)


def _session_selector(
    retriever: Retriever, tools: Snapshot, mode: Mode, top_k: int, settings: ToolsSettings
) -> Callable[[Query], tuple[list[str], list[str], float]]:
    """Return a function that selects tools for a message with a history, as a session would.

    It returns the ranked tools, the selected ones and the need. A session does not rerank: that mode
    selects like `hybrid`.
    """
    from toolfold.turn import Conversation, Grant, Selector, Turn

    selection = "hybrid" if mode == "rerank" else mode
    chosen = settings.model_copy(update={"selection": selection, "rag_top_k": top_k, "pinned": ()})
    selector = Selector(chosen, retriever)
    every = Grant.from_names(tools, frozenset(tools))

    def select(query: Query) -> tuple[list[str], list[str], float]:
        grant = every if query.candidates is None else Grant.from_names(tools, query.candidates)
        turn = Turn(tools, grant.names, offered=grant.tools, offered_names=grant.tool_names)
        messages = [*(query.history or ()), {"role": "user", "content": query.text}]
        found = selector(grant, turn, Conversation.from_messages(messages))
        ranked = dict.fromkeys((*found.names, *(hit.name for hit in found.hits)))
        return list(ranked), list(found.names), found.need

    return select


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
    """Return the number of tokens of each tool's definition."""
    from toolfold.turn import count_tokens

    tool_tokens = {}
    with progress_bar("counting tokens") as step:
        for number, tool in enumerate(tools.values()):
            step(number, len(tools))
            tool_tokens[tool.name] = count_tokens([tool.definition()])
    return tool_tokens


def _draw_plot(file: Path, retriever: Retriever, eval_results: EvalResults, settings: ToolsSettings) -> None:
    all_queries = [each.query for each in eval_results.results_with_gold]
    if not all_queries:
        raise click.ClickException("no message has a `gold` tool, so recall cannot be plotted")
    curves = []
    for mode in dict.fromkeys((*PLOTTED_MODES, eval_results.mode)):
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
