"""`toolfold search`: the tools a message would find, and why."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolfold.cli.app import Invocation, json_option
from toolfold.cli.show import as_json, out, table

if TYPE_CHECKING:
    from toolfold.retrieval.search import Hit, Mode

MODES = click.Choice(["keyword", "semantic", "hybrid"])


@click.command("search")
@click.argument("message")
@click.option("--mode", type=MODES, default="hybrid", show_default=True, help="Which legs are asked.")
@click.option("--limit", type=click.IntRange(1, 50), default=8, show_default=True, help="How many to show.")
@click.option(
    "--catalog",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Search the tools of this catalog file as well.",
)
@click.option("--sample", is_flag=True, help="Search the sample catalog as well.")
@json_option
@click.pass_obj
def command(
    invocation: Invocation,
    message: str,
    mode: Mode,
    limit: int,
    catalog: Path | None,
    sample: bool,
    as_json_: bool,
) -> None:
    """Find tools for a message: rank, tool, and what speaks for it."""
    from toolfold.sources import load_catalog, sample_catalog

    with invocation.runtime() as runtime:
        runtime.registry.add_all(load_catalog(catalog) if catalog else ())
        runtime.registry.add_all(sample_catalog() if sample else ())
        snapshot, granted = runtime.registry.snapshot(), runtime.session().granted()
        hits = runtime.retriever.find(snapshot, message, mode=mode, limit=limit, granted=granted)
    if as_json_:
        as_json([{"rank": rank, **asdict(hit)} for rank, hit in enumerate(hits, 1)])
    elif not hits:
        out("no tool matches. `toolfold tools list` shows them all.")
    else:
        table(
            "",
            ("#rank", "tool", "why"),
            ((str(rank), hit.name, _why(hit)) for rank, hit in enumerate(hits, 1)),
            whole="tool",
        )


def _why(hit: Hit) -> str:
    reasons = ["named in the message"] if hit.exact else []
    if hit.matched:
        reasons.append(f"shares {', '.join(hit.matched)}")
    if hit.similarity is not None:
        reasons.append(f"similarity {hit.similarity:.2f}")
    return "; ".join(reasons)
