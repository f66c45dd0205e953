"""`toolfold explain`: what a model would be shown for a message, and why every other tool is not."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.app import Invocation, json_option
from toolfold.cli.catalogs import brought, catalog_options
from toolfold.cli.show import as_json, counted, out, plain, table, warn, working

if TYPE_CHECKING:
    from toolfold.model import Tool
    from toolfold.retrieval.search import Mode
    from toolfold.runtime import Runtime
    from toolfold.turn import Turn

SHOWN = 20
_OFF, _ON = "tools.tool_search.enabled=off", "tools.tool_search.enabled=on"
MODES: Mapping[str, tuple[str, ...]] = {
    "eager": ("tools.selection=eager", _OFF),
    "tool_search": ("tools.selection=eager", _ON),
    "keyword": ("tools.selection=keyword", _OFF),
    "semantic": ("tools.selection=semantic", _OFF),
    "hybrid": ("tools.selection=hybrid", _OFF),
    "both": ("tools.selection=hybrid", _ON),
}
"""What a mode means, in the words of the configuration."""


@dataclass(frozen=True, slots=True)
class Explained:
    """One tool: what each leg says of it, and what became of it."""

    name: str
    source: str
    shown: bool
    why: str
    ranks: Mapping[str, int | None]
    score: float | None
    """Fused, from 1 for the best."""
    similarity: float | None
    tokens: int
    matched: tuple[str, ...] = field(default=())


@click.command("explain")
@click.argument("message")
@click.option("--mode", type=click.Choice(list(MODES)), help="Show tools so. Default: as configured.")
@catalog_options
@click.option("--all", "every", is_flag=True, help=f"Every tool, not only the best {SHOWN}.")
@json_option
@click.pass_obj
def command(
    invocation: Invocation,
    message: str,
    mode: str | None,
    catalog: Path | None,
    sample: bool,
    every: bool,
    as_json_: bool,
) -> None:
    """Explain what a model is shown for a message: every tool's ranks, tokens, and why it is in or out."""
    added = brought(catalog, sample)
    with invocation.also(MODES[mode] if mode else ()).runtime() as runtime, working("reading the tools"):
        _register(runtime, added)
        report = _explained(runtime, message)
    if as_json_:
        as_json(report)
    else:
        _tell(report, every)


def _register(runtime: Runtime, tools: Sequence[Tool]) -> None:
    """All but those with names that no runtime would take."""
    from toolfold.naming import is_reserved

    by_name = {tool.name: tool for tool in tools}
    for name in [name for name in by_name if is_reserved(name)]:
        warn(f"{name} is left out: this is a bridge tool's name")
        del by_name[name]
    runtime.registry.add_all(by_name.values())
    if by_name and not {tool.source for tool in by_name.values()} & {
        runtime.registry.snapshot()[name].source for name in runtime.session().granted()
    }:
        warn("the configuration grants no session the tools of the catalog; see tools.enabled_toolsets")


def _explained(runtime: Runtime, message: str) -> dict[str, Any]:
    """What a session really assembles for the message, and the legs' words beside it."""
    from toolfold.turn import definitions
    from toolfold.turn.tokens import TokenCounter

    session = runtime.session()
    whole = session.assemble()  # so that what is worked out once is not counted as this message's time
    legs = _Legs(runtime, whole, message)
    started = time.perf_counter()
    turn = session.assemble(message)
    sent = turn.definitions()
    spent = (time.perf_counter() - started) * 1000
    counter = TokenCounter()
    tokens = {each["function"]["name"]: counter.definition(each) for each in definitions(whole.offered)}
    reasons = _Reasons(runtime, turn)
    tools = [legs.explained(tool, tokens[tool.name], reasons) for tool in whole.offered]
    selection = turn.selection
    names = [tool.name for tool in turn.tools]
    chosen = {name: place for place, name in enumerate(selection.names)} if selection else {}
    return {
        "message": message,
        "selected": sorted(names, key=lambda name: chosen.get(name, len(chosen))),
        "need": selection.need if selection else None,
        "needed": selection.needed if selection else None,
        "leg": selection.leg if selection else None,
        "tokens_all": sum(tokens.values()),
        "tokens_sent": counter.definitions(sent),
        "ms": round(spent, 3),
        "ms_by_leg": legs.spent,
        "tools": [asdict(each) for each in sorted(tools, key=_best_first)],
        "unavailable": dict(turn.unavailable),
    }


def _best_first(tool: Explained) -> tuple[bool, float, int, str]:
    return not tool.shown, -(tool.score or 0.0), tool.ranks["semantic"] or 1 << 30, tool.name


class _Legs:
    """What the legs and their fusion say of every tool."""

    def __init__(self, runtime: Runtime, turn: Turn, message: str) -> None:
        offered = frozenset(tool.name for tool in turn.offered)
        retriever, snapshot = runtime.retriever, turn.snapshot
        self.spent: dict[str, float] = {}
        self._scores: Mapping[str, Mapping[str, float]] = {}
        self._hits: Mapping[str, Any] = {}
        try:
            self._scores = retriever.legs(snapshot, message, granted=offered)
            modes: tuple[Mode, ...] = ("keyword", "semantic", "hybrid")
            for mode in modes:
                started = time.perf_counter()
                found = retriever.answer(snapshot, message, mode=mode, limit=len(offered), granted=offered)
                self.spent[mode] = round((time.perf_counter() - started) * 1000, 3)
            self._hits = {hit.name: (rank, hit) for rank, hit in enumerate(found.hits, 1)}
        except Exception as error:  # what a session does then is told all the same
            warn(f"the legs cannot be asked: {error}")
        self._ranks = {
            leg: {name: rank for rank, name in enumerate(scores, 1)} for leg, scores in self._scores.items()
        }

    def explained(self, tool: Tool, tokens: int, reasons: _Reasons) -> Explained:
        rank, hit = self._hits.get(tool.name, (None, None))
        shown, why = reasons(tool, found=any(tool.name in each for each in self._ranks.values()))
        return Explained(
            name=tool.name,
            source=tool.source.name or tool.toolset,
            shown=shown,
            why=why,
            ranks={
                **{leg: self._ranks.get(leg, {}).get(tool.name) for leg in ("keyword", "semantic")},
                "fused": rank,
            },
            score=hit.score if hit else None,
            similarity=self._scores.get("semantic", {}).get(tool.name),
            tokens=tokens,
            matched=hit.matched if hit else (),
        )


class _Reasons:
    """Why a turn shows a tool, or does not."""

    def __init__(self, runtime: Runtime, turn: Turn) -> None:
        self._settings = runtime.config.tools
        self._turn, self._selection = turn, turn.selection
        self._shown = {tool.name for tool in turn.tools}

    def __call__(self, tool: Tool, *, found: bool) -> tuple[bool, str]:
        if tool.name in self._shown:
            return True, self._why_in(tool)
        return False, self._why_out(tool, found)

    def _why_in(self, tool: Tool) -> str:
        selection = self._selection
        if selection and tool.name in selection.why:
            return selection.why[tool.name]
        if selection and selection.leg != "bridge":
            return "pinned"
        if not self._turn.searchable:
            return "every tool is shown"
        return "the runtime's own, never deferred" if tool.core else "pinned"

    def _why_out(self, tool: Tool, found: bool) -> str:
        behind = "; tool_search finds it" if self._turn.searchable else ""
        selection = self._selection
        if selection is None or selection.leg == "bridge":
            return "deferred" + behind
        if not selection.needed:
            return f"the message needs no tool ({selection.need:.0%} likely that it does)" + behind
        if tool.name in selection.left_out:
            return selection.left_out[tool.name] + behind
        return (f"below the best {self._settings.rag_top_k}" if found else "nothing speaks for it") + behind


def _tell(report: Mapping[str, Any], every: bool) -> None:
    tools = report["tools"] if every else report["tools"][:SHOWN]
    table(
        "",
        ("in", "tool", "#kw", "#sem", "#fused", "#tokens", "why"),
        (_row(each) for each in tools),
    )
    if left := len(report["tools"]) - len(tools):
        out(f"and {left:,} more; --all shows every tool.")
    others = set(report["selected"]) - {each["name"] for each in report["tools"]}
    if others:
        out(f"Beside them: {plain(', '.join(sorted(others)))}.")
    if report["need"] is not None:
        answered = f", answered by {report['leg']}"
        out(f"How likely the message needs a tool: {report['need']:.0%}{answered}.")
    everything, sent = report["tokens_all"], report["tokens_sent"]
    saved = f", {1 - sent / everything:.1%} less" if everything else ""
    out(
        f"{counted(len(report['selected']), 'tool')} shown: [bold]{sent:,} tokens[/bold]"
        f" of {everything:,}{saved}; {report['ms']:.1f} ms."
    )


def _row(tool: Mapping[str, Any]) -> Sequence[str]:
    ranks = (str(rank) if rank else "–" for rank in tool["ranks"].values())
    return "✓" if tool["shown"] else "", tool["name"], *ranks, f"{tool['tokens']:,}", tool["why"]
