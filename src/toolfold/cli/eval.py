"""`toolfold eval`: how well tools are found on anyone's own catalog and messages."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.app import Invocation
from toolfold.cli.search import MODES
from toolfold.cli.show import counted, out, plain, table

if TYPE_CHECKING:
    from toolfold.registry import Snapshot
    from toolfold.retrieval.judging import Query
    from toolfold.retrieval.search import Retriever

DEPTH = 50
WORST = 8
_file = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class Judged:
    """One message, what was found for it and how long that took."""

    query: Query
    ranked: list[str]
    ms: float


@click.command("eval")
@click.option("--catalog", type=_file, required=True, help="Tools, a JSON function definition a line.")
@click.option("--queries", type=_file, required=True, help='Messages: {"id", "query", "gold"} a line.')
@click.option("--mode", type=MODES, default="hybrid", show_default=True)
@click.option(
    "--k", "depth", type=click.IntRange(1, DEPTH), default=8, show_default=True, help="How many are shown."
)
@click.option("--json", "as_lines", is_flag=True, help="One JSON line a message, and nothing else.")
@click.pass_obj
def command(
    invocation: Invocation, catalog: Path, queries: Path, mode: str, depth: int, as_lines: bool
) -> None:
    """Measure recall, MRR and nDCG on your own tools and messages."""
    from toolfold.registry import Snapshot
    from toolfold.retrieval.judging import load_queries
    from toolfold.sources import load_catalog

    # Not registered: a catalog may hold names that no runtime would take, and is measured by itself.
    tools, asked = Snapshot({tool.name: tool for tool in load_catalog(catalog)}, 0), load_queries(queries)
    with invocation.runtime() as runtime:
        judged = _judged(runtime.retriever, tools, asked, mode, quiet=as_lines)
        if not as_lines:
            _report(list(judged), len(tools), mode)
            return
        for each in judged:
            line = {
                "id": each.query.id,
                "ranked": each.ranked,
                "selected": each.ranked[:depth],
                "ms": each.ms,
            }
            click.echo(json.dumps(line))  # ASCII: whatever the catalog holds, any terminal can carry it


def _judged(
    retriever: Retriever, tools: Snapshot, asked: Sequence[Query], mode: Any, *, quiet: bool
) -> Iterator[Judged]:
    from rich.console import Console
    from rich.progress import track

    retriever.find(tools, "warm up", mode=mode, limit=1)
    for query in track(asked, "searching", console=Console(stderr=True), transient=True, disable=quiet):
        started = time.process_time()
        hits = retriever.find(tools, query.text, mode=mode, limit=DEPTH)
        ms = (time.process_time() - started) * 1000
        yield Judged(query, [hit.name for hit in hits], round(ms, 3))


def _report(judged: Sequence[Judged], tools: int, mode: str) -> None:
    from toolfold.retrieval.judging import discounted_gain, recall, reciprocal_rank

    scored = [each for each in judged if each.query.gold]
    if not scored:
        raise click.ClickException("no message has a `gold` tool: there is nothing to measure")
    kinds = sorted({each.query.kind for each in scored if each.query.kind})
    groups = [("all", scored), *((kind, [e for e in scored if e.query.kind == kind]) for kind in kinds)]
    table(
        f"{tools:,} tools, {len(scored):,} messages, {mode}, {median(e.ms for e in judged):.2f} ms a message",
        ("messages", "#count", "#R@1", "#R@5", "#R@8", "#MRR", "#nDCG@10"),
        (
            (
                name,
                str(len(group)),
                *(f"{fmean(recall(e.query, e.ranked, at) for e in group):.3f}" for at in (1, 5, 8)),
                f"{fmean(reciprocal_rank(e.query, e.ranked) for e in group):.3f}",
                f"{fmean(discounted_gain(e.query, e.ranked) for e in group):.3f}",
            )
            for name, group in groups
        ),
    )
    _tell_the_worst(scored)


def _tell_the_worst(scored: Sequence[Judged]) -> None:
    from toolfold.retrieval.judging import recall

    missed = [each for each in scored if recall(each.query, each.ranked, 8) < 1]
    if missed:
        out(f"not all among the first eight, {counted(len(missed), 'message')}, for example:")
    for each in missed[:WORST]:
        wanted, first = ", ".join(each.query.gold), ", ".join(each.ranked[:3])
        out(f"  [bold]{_printable(each.query.text[:100])}[/bold]")
        out(f"    wanted {_printable(wanted)}; first {_printable(first)}")


def _printable(text: str) -> str:
    """Foreign text that does nothing to a terminal."""
    return plain("".join(char if char.isprintable() else " " for char in text))
