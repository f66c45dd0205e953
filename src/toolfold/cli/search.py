"""`toolfold search`: the tools a message would find, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolfold.cli.app import Invocation, json_option
from toolfold.cli.catalogs import brought, catalog_options
from toolfold.cli.show import as_json, counted, listed, out, progress, table, warn

if TYPE_CHECKING:
    from toolfold.model import Tool
    from toolfold.registry import Snapshot
    from toolfold.retrieval.search import Hit, Mode
    from toolfold.runtime import Runtime

MODES = click.Choice(["keyword", "semantic", "hybrid", "rerank"])
WORDS = 8


@click.command("search")
@click.argument("message")
@click.option("--mode", type=MODES, default="hybrid", show_default=True, help="Which legs are asked.")
@click.option("--limit", type=click.IntRange(1, 50), default=8, show_default=True, help="How many to show.")
@catalog_options
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
    added = brought(catalog, sample)
    with progress("reading the tools") as step, invocation.runtime(progress=step) as runtime:
        warn_of_mode(runtime, mode)
        snapshot, granted = _searched(runtime, added)
        found = runtime.retriever.answer(snapshot, message, mode=mode, limit=limit, granted=granted)
    hits = found.hits
    if as_json_:
        as_json([{"rank": rank, **asdict(hit)} for rank, hit in enumerate(hits, 1)])
    elif not message.strip():
        out('the message is empty. Say what you want done: toolfold search "send an email to Anna"')
    elif not hits:
        out(_nothing(len(granted), mode))
    else:
        table(
            "",
            ("#rank", "tool", "why"),
            ((str(rank), hit.name, why(hit)) for rank, hit in enumerate(hits, 1)),
            whole="tool",
        )
        if not found.needed(runtime.config.tools.rag_need):
            out(
                f"It seems to need no tool ({found.need:.0%} likely): a session would be shown none of these."
            )


def _searched(runtime: Runtime, added: Sequence[Tool]) -> tuple[Snapshot, frozenset[str]]:
    """What the configuration grants and what was brought for this search.

    The latter is not registered: it is only looked at, and may hold names that no runtime would take.
    """
    from toolfold.registry import Snapshot

    configured, granted = runtime.registry.snapshot(), runtime.session().granted()
    if not added:
        return configured, granted
    by_name = {tool.name: tool for tool in added}
    return Snapshot({**configured, **by_name}, 0), granted | by_name.keys()


def warn_of_mode(runtime: Runtime, mode: Mode) -> None:
    """A mode that needs what is switched off answers all the same, and not as its name says."""
    if mode == "rerank" and not runtime.config.tools.tool_search.reranker.enabled:
        switch = "tools.tool_search.reranker.enabled"
        warn(f"{switch} is off, so `rerank` answers as `hybrid` does; --set {switch}=true turns it on")


def why(hit: Hit) -> str:
    """What speaks for a tool, in a few words."""
    reasons = ["named in the message"] if hit.exact else []
    if hit.matched:
        reasons.append(f"shares {listed(hit.matched, WORDS)}")
    if hit.similarity is not None:
        reasons.append(f"similarity {hit.similarity:.2f}")
    return "; ".join(reasons) or "its name holds a word of the message"


def _nothing(searched: int, mode: Mode) -> str:
    advice = "Other words may, or --mode hybrid; " if mode == "keyword" else "Other words may; "
    return f"no tool matches, of {counted(searched, 'tool')}. {advice}`toolfold tools list` shows yours."
