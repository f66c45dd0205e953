"""`toolfold explain`: what a model would be shown for a message, and why every other tool is not."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.app import Invocation, json_option
from toolfold.cli.catalogs import FILE, brought, catalog_options
from toolfold.cli.show import as_json, counted, out, plain, table, warn, working
from toolfold.errors import SourceError, shorten
from toolfold.jsonlines import read_file

if TYPE_CHECKING:
    from toolfold.model import Json, Tool
    from toolfold.retrieval.search import Mode
    from toolfold.runtime import Runtime
    from toolfold.session import Session
    from toolfold.turn import Turn
    from toolfold.turn.tokens import TokenCounter

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
PLACEMENTS = click.Choice(["auto", "replace", "append", "tail"])


@dataclass(frozen=True, slots=True)
class Explained:
    """One tool: what each leg says of it, and what became of it."""

    name: str
    source: str
    shown: bool
    why: str
    ranks: Mapping[str, int | None]
    similarity: float | None
    score: float | None
    """What the fusion of both legs gives it; only the order means something."""
    tokens: int
    matched: tuple[str, ...] = field(default=())


@click.command("explain")
@click.argument("message", required=False)
@click.option("--history", type=FILE, help="What was said before: a JSON list of messages, or one a line.")
@click.option("--mode", type=click.Choice(list(MODES)), help="Show tools so. Default: as configured.")
@click.option("--placement", type=PLACEMENTS, help="Put chosen tools there. Default: as configured.")
@click.option("--model", default="", help="The model, by which `auto` decides where tools stand.")
@catalog_options
@click.option("--all", "every", is_flag=True, help=f"Every tool, not only the best {SHOWN}.")
@json_option
@click.pass_obj
def command(
    invocation: Invocation,
    message: str | None,
    history: Path | None,
    mode: str | None,
    placement: str | None,
    model: str,
    catalog: Path | None,
    sample: bool,
    every: bool,
    as_json_: bool,
) -> None:
    """Explain what a model is shown for a message: every tool's ranks, tokens, and why it is in or out.

    Without MESSAGE, the newest one of the user in --history is explained.
    """
    said = _said(message, history)
    added = brought(catalog, sample)
    overrides = (*MODES.get(mode or "", ()), *((f"tools.rag_placement={placement}",) if placement else ()))
    with invocation.also(overrides).runtime() as runtime, working("reading the tools"):
        _register(runtime, added)
        report = _explained(runtime, said, model)
    if as_json_:
        as_json(report)
    else:
        _tell(report, every)


def _said(message: str | None, file: Path | None) -> list[Json]:
    """The conversation, with the message at its end."""
    said = _read(file) if file else []
    if message is not None:
        said.append({"role": "user", "content": message})
    elif not file:
        raise click.UsageError(
            'say what to explain: toolfold explain "where is my parcel?", or --history FILE'
        )
    elif not any(each.get("role") == "user" for each in said):
        raise click.ClickException(f"{file} holds no message of a user (role: user)")
    return said


def _read(file: Path) -> list[Json]:
    """The messages of a file, in whatever form their provider keeps them."""
    lines = read_file(file, _messages, what="a history") if not _is_list(file) else [_whole(file)]
    return [message for line in lines for message in line]


def _is_list(file: Path) -> bool:
    """Whether it is one list over several lines."""
    with file.open("rb") as stream:
        return stream.read(100).decode("utf-8-sig", "replace").lstrip()[:1] == "["


def _whole(file: Path) -> list[Json]:
    try:
        return _messages(json.loads(file.read_text("utf-8-sig")))
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{file} is no list of messages: {shorten(str(error))}") from None


def _messages(value: Any) -> list[Json]:
    messages = value if isinstance(value, list) else [value]
    for each in messages:
        if not isinstance(each, dict) or not isinstance(each.get("role", each.get("type")), str):
            raise ValueError('a message is an object with a role: {"role": "user", "content": "…"}')
    return messages


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


def _explained(runtime: Runtime, said: Sequence[Json], model: str) -> dict[str, Any]:
    """What a session really assembles for the conversation, and the legs' words beside it."""
    from toolfold.turn import Conversation, definitions
    from toolfold.turn.tokens import TokenCounter

    session = runtime.session()
    whole = session.assemble()  # so that what is worked out once is not counted as this message's time
    message = next(reversed(Conversation.of(said).said), "")
    legs = _Legs(runtime, whole, message)
    started = time.perf_counter()
    turn = session.assemble(said)
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
        "request": _requested(session, said, model, counter),
        "tools": [asdict(each) for each in sorted(tools, key=_best_first)],
        "unavailable": dict(turn.unavailable),
    }


def _requested(session: Session, said: Sequence[Json], model: str, counter: TokenCounter) -> dict[str, Any]:
    """Where a request has the tools: slim in its array, and told beside the newest message."""
    request = session.request(said, model=model)
    return {
        "placement": request.placement,
        "array": [tool["function"]["name"] for tool in request.tools],
        "tokens_array": counter.definitions(request.tools),
        "tail": request.tail,
        "tokens_tail": counter.text(request.tail) if request.tail else 0,
    }


def _best_first(tool: Explained) -> tuple[bool, int, int, str]:
    last = 1 << 30
    return not tool.shown, tool.ranks["fused"] or last, tool.ranks["semantic"] or last, tool.name


class _Legs:
    """What the legs and their fusion say of every tool."""

    def __init__(self, runtime: Runtime, turn: Turn, message: str) -> None:
        offered = turn.offered_names
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
            source=tool.server,
            shown=shown,
            why=why,
            ranks={
                **{leg: self._ranks.get(leg, {}).get(tool.name) for leg in ("keyword", "semantic")},
                "fused": rank,
            },
            similarity=self._scores.get("semantic", {}).get(tool.name),
            score=self._scores.get("fused", {}).get(tool.name),
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
        ("in", "tool", "#kw", "#sem", "#fused", "#score", "#tokens", "why"),
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
    _tell_request(report["request"])


def _tell_request(request: Mapping[str, Any]) -> None:
    """Only where a request has the tools in another place than the array told of above."""
    if request["placement"] == "replace":
        return
    array, tail = request["array"], request["tail"]
    beside = f", and {request['tokens_tail']:,} beside the message" if tail else ""
    out(
        f"\nA request, placement {request['placement']}: {counted(len(array), 'tool')} in the array,"
        f" {request['tokens_array']:,} tokens{beside}."
    )
    out(f"In the array: {plain(', '.join(array))}.")
    if tail:
        out(f"Beside the message:\n{plain(tail)}")


def _row(tool: Mapping[str, Any]) -> Sequence[str]:
    ranks = (str(rank) if rank else "–" for rank in tool["ranks"].values())
    score = "–" if tool["score"] is None else f"{tool['score']:.2f}"
    return "✓" if tool["shown"] else "", tool["name"], *ranks, score, f"{tool['tokens']:,}", tool["why"]
