"""`toolfold search`: show which tools a search for a message returns, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolfold.cli.app import Invocation, json_option
from toolfold.cli.catalog_options import catalog_options, load_extra_tools
from toolfold.cli.output import (
    format_count,
    print_json,
    print_line,
    print_table,
    print_warning,
    progress_bar,
)
from toolfold.core.errors import join_names

if TYPE_CHECKING:
    from toolfold.core.registry import Snapshot
    from toolfold.core.types import Tool
    from toolfold.runtime.runtime import Runtime
    from toolfold.selection.retrieval.tool_search import Hit, Mode

MODES = click.Choice(["keyword", "semantic", "hybrid", "rerank"])
MAX_WORDS_SHOWN = 8


@click.command("search")
@click.argument("message")
@click.option("--mode", type=MODES, default="hybrid", show_default=True, help="Search method.")
@click.option(
    "--limit",
    type=click.IntRange(1, 50),
    default=8,
    show_default=True,
    help="Maximum number of tools to show.",
)
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
    as_json: bool,
) -> None:
    """Search the tools for a message and show why each one matches."""
    added = load_extra_tools(catalog, sample)
    with progress_bar("reading the tools") as step, invocation.open_runtime(progress=step) as runtime:
        warn_about_mode(runtime, mode)
        snapshot, granted = _searched_tools(runtime, added)
        found = runtime.retriever.answer(snapshot, message, mode=mode, limit=limit, granted=granted)
        unusable = _find_unusable(runtime, [hit.name for hit in found.hits])
    hits = sorted(found.hits, key=lambda hit: hit.name in unusable)
    if as_json:
        print_json(
            [
                {"rank": rank, **asdict(hit), "unusable": unusable.get(hit.name, "")}
                for rank, hit in enumerate(hits, 1)
            ]
        )
    elif not message.strip():
        print_line(
            'the message is empty. Describe a task, for example: toolfold search "send an email to Anna"'
        )
    elif not hits:
        print_line(_no_match_text(len(granted), mode))
    else:
        print_table(
            "",
            ("#rank", "tool", "why", "cannot be used"),
            (
                (str(rank), hit.name, explain_hit(hit), unusable.get(hit.name, ""))
                for rank, hit in enumerate(hits, 1)
            ),
            no_wrap="tool",
        )
        if not found.needed(runtime.config.tools.need_threshold):
            print_line(
                f"The message probably needs no tool (probability that it does: {found.need:.0%}),"
                " so a session that selects tools would select none of these."
            )


def _searched_tools(runtime: Runtime, added: Sequence[Tool]) -> tuple[Snapshot, frozenset[str]]:
    """Return all tools to search, and the names of the tools that a session may use.

    Tools from a catalog are not registered, because a catalog may contain names that the registry rejects.
    """
    from toolfold.core.registry import Snapshot

    configured, granted = runtime.registry.snapshot(), runtime.session().granted()
    if not added:
        return configured, granted
    by_name = {tool.name: tool for tool in added}
    return Snapshot({**configured, **by_name}, 0), granted | by_name.keys()


def _find_unusable(runtime: Runtime, names: Sequence[str]) -> dict[str, str]:
    """Return the tools that cannot be used now, each with the reason."""
    registered = [name for name in names if runtime.registry.snapshot().find(name)]
    off, found = runtime.switched_off(), {}
    for name, status in runtime.statuses(registered).items():
        if name in off:
            found[name] = "disabled"
        elif not status.available:
            found[name] = status.reason or "unavailable"
    return found


def warn_about_mode(runtime: Runtime, mode: Mode) -> None:
    """Warn if the search mode needs a component that is disabled, so that a simpler search is used."""
    if mode == "rerank" and not runtime.config.tools.tool_search.reranker.enabled:
        switch = "tools.tool_search.reranker.enabled"
        print_warning(
            f"{switch} is off, so `rerank` gives the same results as `hybrid`. Enable it with"
            f" --set {switch}=true"
        )


def explain_hit(hit: Hit) -> str:
    """Describe in a few words why a tool matched the message."""
    reasons = ["named in the message"] if hit.exact else []
    if hit.matched:
        reasons.append(f"matching words: {join_names(hit.matched, MAX_WORDS_SHOWN)}")
    if hit.similarity is not None:
        reasons.append(f"similarity {hit.similarity:.2f}")
    return "; ".join(reasons) or "its name contains a word of the message"


def _no_match_text(searched: int, mode: Mode) -> str:
    advice = "Try other words or --mode hybrid; " if mode == "keyword" else "Try other words; "
    return f"none of {format_count(searched, 'tool')} matches. {advice}`toolfold tools list` lists all tools."
