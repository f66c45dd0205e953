"""`toolfold explain`: show which tools a model is sent for a message, and why the others are not."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.app import Invocation, json_option
from toolfold.cli.catalogs import FILE, catalog_options, load_extra_tools
from toolfold.cli.output import (
    escape_text,
    format_count,
    print_json,
    print_line,
    print_table,
    print_warning,
    show_spinner,
)
from toolfold.errors import SourceError, shorten
from toolfold.jsonlines import read_json_lines

if TYPE_CHECKING:
    from toolfold.model import Json, Tool
    from toolfold.retrieval.search import Mode
    from toolfold.runtime import Runtime
    from toolfold.session import Session
    from toolfold.turn import Turn
    from toolfold.turn.tokens import TokenCounter

MAX_TOOLS_SHOWN = 20
_OFF, _ON = "tools.tool_search.enabled=off", "tools.tool_search.enabled=on"
MODES: Mapping[str, tuple[str, ...]] = {
    "eager": ("tools.selection=eager", _OFF),
    "tool_search": ("tools.selection=eager", _ON),
    "keyword": ("tools.selection=keyword", _OFF),
    "semantic": ("tools.selection=semantic", _OFF),
    "hybrid": ("tools.selection=hybrid", _OFF),
    "both": ("tools.selection=hybrid", _ON),
}
"""For each value of --mode, the settings that it stands for."""
PLACEMENTS = click.Choice(["auto", "replace", "append", "tail"])


@dataclass(frozen=True, slots=True)
class ToolExplanation:
    """One tool in an explanation: its ranks, and why it is or is not sent to the model."""

    name: str
    source: str
    shown: bool
    why: str
    ranks: Mapping[str, int | None]
    similarity: float | None
    score: float | None
    """Combined score of keyword and similarity search. Only the order of scores is meaningful."""
    tokens: int
    matched: tuple[str, ...] = field(default=())
    learned: Mapping[str, Any] | None = None
    """What messages learned from use have added to the similarity, and how many and how old they are."""


@click.command("explain")
@click.argument("message", required=False)
@click.option("--history", type=FILE, help="Earlier messages: a JSON list, or one JSON message per line.")
@click.option(
    "--mode", type=click.Choice(list(MODES)), help="How tools are selected. Default: as configured."
)
@click.option(
    "--placement",
    type=PLACEMENTS,
    help="Where selected tools are placed in the request. Default: as configured.",
)
@click.option(
    "--model",
    default="",
    help="Model to assume. With rag_placement `auto`, its prices decide where definitions go.",
)
@catalog_options
@click.option(
    "--all", "show_all", is_flag=True, help=f"Show every tool, not only the best {MAX_TOOLS_SHOWN}."
)
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
    show_all: bool,
    as_json: bool,
) -> None:
    """Show which tools a model is sent for a message, with the ranks and tokens of each tool and the reason.

    Without MESSAGE, the latest user message in --history is explained.
    """
    messages = _build_messages(message, history)
    added = load_extra_tools(catalog, sample)
    overrides = (*MODES.get(mode or "", ()), *((f"tools.rag_placement={placement}",) if placement else ()))
    with invocation.with_overrides(overrides).open_runtime() as runtime, show_spinner("reading the tools"):
        _register_tools(runtime, added)
        report = _build_report(runtime, messages, model)
    if as_json:
        print_json(report)
    else:
        _print_report(report, show_all)


def _build_messages(message: str | None, file: Path | None) -> list[Json]:
    """Return the messages to explain: those of the history file, then the given message."""
    messages = _read_history(file) if file else []
    if message is not None:
        messages.append({"role": "user", "content": message})
    elif not file:
        raise click.UsageError(
            'missing MESSAGE or --history FILE, for example: toolfold explain "where is my parcel?"'
        )
    elif not any(each.get("role") == "user" for each in messages):
        raise click.ClickException(f"{file} contains no message with the role `user`")
    return messages


def _read_history(file: Path) -> list[Json]:
    """Read the messages of a history file in the format of any provider."""
    lines = (
        read_json_lines(file, _validate_messages, what="a history")
        if not _starts_with_list(file)
        else [_read_json_list(file)]
    )
    return [message for line in lines for message in line]


def _starts_with_list(file: Path) -> bool:
    """Return True if a history file is one JSON list instead of one JSON object per line."""
    with file.open("rb") as stream:
        return stream.read(100).decode("utf-8-sig", "replace").lstrip()[:1] == "["


def _read_json_list(file: Path) -> list[Json]:
    try:
        return _validate_messages(json.loads(file.read_text("utf-8-sig")))
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{file} is not a valid JSON list of messages: {shorten(str(error))}") from None


def _validate_messages(value: Any) -> list[Json]:
    messages = value if isinstance(value, list) else [value]
    for each in messages:
        if not isinstance(each, dict) or not isinstance(each.get("role", each.get("type")), str):
            raise ValueError('a message is an object with a role: {"role": "user", "content": "…"}')
    return messages


def _register_tools(runtime: Runtime, tools: Sequence[Tool]) -> None:
    """Register tools of a catalog, except those with reserved names."""
    from toolfold.naming import is_reserved

    by_name = {tool.name: tool for tool in tools}
    for name in [name for name in by_name if is_reserved(name)]:
        print_warning(f"{name} is left out: the name is reserved for one of Toolfold's own tools")
        del by_name[name]
    runtime.registry.add_all(by_name.values())
    if by_name and not {tool.source for tool in by_name.values()} & {
        runtime.registry.snapshot()[name].source for name in runtime.session().granted()
    }:
        print_warning(
            "the configuration does not allow the tools of the catalog in any session; see"
            " tools.enabled_toolsets"
        )


def _build_report(runtime: Runtime, messages: Sequence[Json], model: str) -> dict[str, Any]:
    """Select tools for the conversation as a session does, and explain the result."""
    from toolfold.turn import Conversation, render_definitions
    from toolfold.turn.tokens import TokenCounter

    session = runtime.session()
    whole = session.assemble()  # warms the caches, so that they do not count in this message's time
    message = next(reversed(Conversation.from_messages(messages).user_texts), "")
    legs = _LegResults(runtime, whole, message)
    started = time.perf_counter()
    turn = session.assemble(messages)
    sent = turn.definitions()
    spent = (time.perf_counter() - started) * 1000
    counter = TokenCounter()
    tokens = {
        each["function"]["name"]: counter.definition(each) for each in render_definitions(whole.offered)
    }
    reasons = _VisibilityReasons(runtime, turn)
    tools = [legs.explain_tool(tool, tokens[tool.name], reasons) for tool in whole.offered]
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
        "request": _describe_request(session, messages, model, counter),
        "tools": [asdict(each) for each in sorted(tools, key=_sort_key)],
        "unavailable": dict(turn.unavailable),
    }


def _describe_request(
    session: Session, messages: Sequence[Json], model: str, counter: TokenCounter
) -> dict[str, Any]:
    """Describe where a request contains the tools: in its tools array, or beside the newest message."""
    request = session.request(messages, model=model)
    return {
        "placement": request.placement,
        "array": [tool["function"]["name"] for tool in request.tools],
        "tokens_array": counter.definitions(request.tools),
        "tail": request.tail,
        "tokens_tail": counter.text(request.tail) if request.tail else 0,
    }


def _sort_key(tool: ToolExplanation) -> tuple[bool, int, int, str]:
    last = 1 << 30
    return not tool.shown, tool.ranks["fused"] or last, tool.ranks["semantic"] or last, tool.name


class _LegResults:
    """Rank and score of every tool in keyword search, in similarity search, and in both combined."""

    def __init__(self, runtime: Runtime, turn: Turn, message: str) -> None:
        from toolfold.retrieval.learned_messages import LOCAL_CLIENT

        offered = turn.offered_names
        self._runtime = runtime
        retriever, snapshot = runtime.retriever, turn.snapshot
        self.spent: dict[str, float] = {}
        self._scores: Mapping[str, Mapping[str, float]] = {}
        self._hits: Mapping[str, Any] = {}
        try:
            self._scores = retriever.legs(snapshot, message, granted=offered, client=LOCAL_CLIENT)
            modes: tuple[Mode, ...] = ("keyword", "semantic", "hybrid")
            for mode in modes:
                started = time.perf_counter()
                found = retriever.answer(
                    snapshot, message, mode=mode, limit=len(offered), granted=offered, client=LOCAL_CLIENT
                )
                self.spent[mode] = round((time.perf_counter() - started) * 1000, 3)
            self._hits = {hit.name: (rank, hit) for rank, hit in enumerate(found.hits, 1)}
        except Exception as error:  # the report is still useful without the ranks
            print_warning(f"the tool search failed, so no ranks are shown: {error}")
        self._ranks = {
            leg: {name: rank for rank, name in enumerate(scores, 1)} for leg, scores in self._scores.items()
        }

    def explain_tool(self, tool: Tool, tokens: int, reasons: _VisibilityReasons) -> ToolExplanation:
        rank, hit = self._hits.get(tool.name, (None, None))
        shown, why = reasons(tool, found=any(tool.name in each for each in self._ranks.values()))
        return ToolExplanation(
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
            learned=self._explain_learned(tool, hit.learned) if hit and hit.learned else None,
        )

    def _explain_learned(self, tool: Tool, gain: float) -> dict[str, Any]:
        from toolfold.cli.learned import describe_learned

        return {"gain": round(gain, 3), **describe_learned(tool, self._runtime)}


class _VisibilityReasons:
    """Explains why a turn shows a tool to the model or leaves it out."""

    def __init__(self, runtime: Runtime, turn: Turn) -> None:
        self._settings = runtime.config.tools
        self._turn, self._selection = turn, turn.selection
        self._shown = {tool.name for tool in turn.tools}

    def __call__(self, tool: Tool, *, found: bool) -> tuple[bool, str]:
        if tool.name in self._shown:
            return True, self._reason_shown(tool)
        return False, self._reason_hidden(tool, found)

    def _reason_shown(self, tool: Tool) -> str:
        selection = self._selection
        if selection and tool.name in selection.why:
            return selection.why[tool.name]
        if selection and selection.leg != "bridge":
            return "pinned"
        if not self._turn.searchable:
            return "every tool is sent"
        return "built-in tool, never deferred" if tool.core else "pinned"

    def _reason_hidden(self, tool: Tool, found: bool) -> str:
        behind = "; available through tool_search" if self._turn.searchable else ""
        selection = self._selection
        if selection is None or selection.leg == "bridge":
            return "deferred" + behind
        if not selection.needed:
            return f"the message probably needs no tool (probability {selection.need:.0%})" + behind
        if tool.name in selection.left_out:
            return selection.left_out[tool.name] + behind
        return (f"not among the best {self._settings.rag_top_k}" if found else "no match") + behind


def _print_report(report: Mapping[str, Any], show_all: bool) -> None:
    tools = report["tools"] if show_all else report["tools"][:MAX_TOOLS_SHOWN]
    print_table(
        "",
        ("sent", "tool", "#kw", "#sem", "#fused", "#score", "#tokens", "why"),
        (_table_row(each) for each in tools),
    )
    print_line("kw, sem, fused: rank in keyword search, semantic search and both combined.")
    for each in (each for each in tools if each["learned"]):
        learned = each["learned"]
        print_line(
            f"{escape_text(each['name'])}: +{learned['gain']:.2f} similarity, learned from"
            f" {format_count(learned['messages'], 'message')}, last used {learned['last_used']}."
        )
    if left := len(report["tools"]) - len(tools):
        print_line(f"{left:,} more tools are not shown; use --all to show every tool.")
    others = set(report["selected"]) - {each["name"] for each in report["tools"]}
    if others:
        print_line(f"Also sent: {escape_text(', '.join(sorted(others)))}.")
    if report["need"] is not None:
        method = f"; search method: {report['leg']}"
        print_line(f"Probability that the message needs a tool: {report['need']:.0%}{method}.")
    everything, sent = report["tokens_all"], report["tokens_sent"]
    saved = f", {1 - sent / everything:.1%} less" if everything else ""
    print_line(
        f"{format_count(len(report['selected']), 'tool')} sent: [bold]{sent:,} tokens[/bold]"
        f" of {everything:,}{saved}; {report['ms']:.1f} ms."
    )
    _print_request(report["request"])


def _print_request(request: Mapping[str, Any]) -> None:
    """Print where the request contains the tools, unless all of them are in its tools array."""
    if request["placement"] == "replace":
        return
    array, tail = request["array"], request["tail"]
    beside = f", and {request['tokens_tail']:,} tokens next to the message" if tail else ""
    print_line(
        f"\nRequest with placement {request['placement']}: {format_count(len(array), 'tool')}"
        " in the tool array,"
        f" {request['tokens_array']:,} tokens{beside}."
    )
    print_line(f"In the tool array: {escape_text(', '.join(array))}.")
    if tail:
        print_line(f"Next to the message:\n{escape_text(tail)}")


def _table_row(tool: Mapping[str, Any]) -> Sequence[str]:
    ranks = (str(rank) if rank else "–" for rank in tool["ranks"].values())
    score = "–" if tool["score"] is None else f"{tool['score']:.2f}"
    return "✓" if tool["shown"] else "", tool["name"], *ranks, score, f"{tool['tokens']:,}", tool["why"]
