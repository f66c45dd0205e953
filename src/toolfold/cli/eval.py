"""`toolfold eval`: how well tools are found on anyone's own catalog and messages."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.app import Invocation
from toolfold.cli.catalogs import FILE, brought
from toolfold.cli.plot import draw_recall, plot_option
from toolfold.cli.report import Judged, Measured, curve, tell
from toolfold.cli.search import MODES, warn_of_mode
from toolfold.cli.show import counted, listed, note, plain, progress, warn

if TYPE_CHECKING:
    from toolfold.registry import Snapshot
    from toolfold.retrieval.judging import Query
    from toolfold.retrieval.search import Mode, Retriever

DEPTH = 50
PLOTTED: tuple[Mode, ...] = ("keyword", "semantic", "hybrid")


@click.command("eval")
@click.option(
    "--catalog", type=FILE, required=True, help="The only tools: a JSON function definition a line."
)
@click.option("--queries", type=FILE, required=True, help='Messages: {"id", "query", "gold"} a line.')
@click.option("--mode", type=MODES, default="hybrid", show_default=True, help="Which legs are asked.")
@click.option(
    "--k", "depth", type=click.IntRange(1, DEPTH), default=8, show_default=True, help="How many are shown."
)
@click.option("--json", "as_lines", is_flag=True, help="One JSON line a message, and nothing else.")
@plot_option("recall against tokens sent, every mode")
@click.pass_obj
def command(
    invocation: Invocation,
    catalog: Path,
    queries: Path,
    mode: Mode,
    depth: int,
    as_lines: bool,
    plot: Path | None,
) -> None:
    """Measure how well tools are found, on your own tools and messages.

    Both files hold one JSON object a line and may be gzipped. A message may have `alternatives` to its
    gold tools, a `kind` to be reported by, and no gold at all where no tool is needed.
    """
    tools, asked = _read(catalog, queries)
    with ExitStack() as stack:
        with progress("reading the tools") as step:
            runtime = stack.enter_context(invocation.runtime(progress=step))
            warn_of_mode(runtime, mode)
            retriever = runtime.retriever
            retriever.find(tools, "warm up", mode=mode, limit=1)
        quiet = as_lines and sys.stdout.isatty()
        need = runtime.config.tools.rag_need
        judged = _judged(retriever, tools, asked, mode, depth, need=need, quiet=quiet)
        if as_lines:
            judged = _printed(judged)
        found = list(judged)
        if as_lines and not plot:
            return
        measured = Measured(tools, found, mode, depth, _costs(tools))
        if plot:
            _plot(plot, retriever, measured)
        if not as_lines:
            tell(measured, retriever)


def _read(catalog: Path, queries: Path) -> tuple[Snapshot, list[Query]]:
    """Both files. What makes the figures doubtful and does not stop the work is told."""
    from toolfold.registry import Snapshot
    from toolfold.retrieval.judging import load_queries

    listing, asked = brought(catalog, sample=False), load_queries(queries)
    if not listing:
        raise click.ClickException(f"{catalog} holds no tools: there is nothing to search")
    if not asked:
        raise click.ClickException(f"{queries} holds no messages: there is nothing to measure")
    # Not registered: a catalog may hold names that no runtime would take, and is measured by itself.
    tools = Snapshot({tool.name: tool for tool in listing}, 0)
    if twice := _repeated(tool.name for tool in listing):
        warn(f"{catalog}: more than one tool is called {listed(twice, 5)}; the last one counts")
    if twice := _repeated(str(query.id) for query in asked):
        warn(f"{queries}: more than one message has the id {listed(twice, 5)}")
    if strange := _strange(asked, tools):
        warn(f"{queries}: not in {catalog.name}, so never found: {listed(strange, 5)}")
    return tools, asked


def _repeated(names: Iterator[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _strange(asked: Sequence[Query], tools: Snapshot) -> list[str]:
    named = (name for query in asked for name in (*query.gold, *sorted(query.candidates or ())))
    return [name for name in dict.fromkeys(named) if name not in tools]


def _judged(
    retriever: Retriever,
    tools: Snapshot,
    asked: Sequence[Query],
    mode: Mode,
    depth: int,
    *,
    need: float = 0.0,
    quiet: bool = False,
) -> Iterator[Judged]:
    with progress(f"asking, {mode}", shown=not quiet) as step:
        for number, query in enumerate(asked):
            step(number, len(asked))
            started = time.process_time()
            found = retriever.answer(tools, query.text, mode=mode, limit=DEPTH, granted=query.candidates)
            ms = round((time.process_time() - started) * 1000, 3)
            ranked = [hit.name for hit in found.hits]
            yield Judged(query, ranked, ranked[:depth] if found.needed(need) else [], found.need, ms)


def _printed(judged: Iterator[Judged]) -> Iterator[Judged]:
    for each in judged:
        line: dict[str, Any] = {
            "id": each.query.id,
            "ranked": each.ranked,
            "selected": each.selected,
            "ms": each.ms,
        }
        click.echo(json.dumps(line))  # ASCII: whatever the catalog holds, any terminal can carry it
        yield each


def _costs(tools: Snapshot) -> dict[str, int]:
    """What each tool's definition costs in a prompt, in tokens."""
    from toolfold.turn import count_tokens

    costs = {}
    with progress("counting tokens") as step:
        for number, tool in enumerate(tools.values()):
            step(number, len(tools))
            costs[tool.name] = count_tokens([tool.definition()])
    return costs


def _plot(file: Path, retriever: Retriever, measured: Measured) -> None:
    asked = [each.query for each in measured.needing]
    if not asked:
        raise click.ClickException("no message has a `gold` tool: there is no recall to draw")
    curves = []
    for mode in dict.fromkeys((*PLOTTED, measured.mode)):
        judged: Sequence[Judged] = measured.needing
        if mode != measured.mode:
            judged = list(_judged(retriever, measured.tools, asked, mode, measured.depth))
        curves.append(curve(mode, judged, measured.costs))
    about = (
        f"{counted(len(measured.tools), 'tool')}, {counted(len(asked), 'message')};"
        f" all tools cost {measured.all_tokens:,} tokens"
    )
    draw_recall(file, curves, about, numbered=measured.mode)
    note(f"recall against tokens sent is drawn in {plain(str(file))}")
