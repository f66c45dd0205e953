"""`toolfold explain`: show which tools a model is sent for a message, and why others are not sent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.app import Invocation, json_option
from toolfold.cli.catalog_options import FILE, catalog_options, load_extra_tools
from toolfold.cli.output import (
    escape_text,
    format_count,
    print_json,
    print_line,
    print_table,
    print_warning,
    show_spinner,
)
from toolfold.core.errors import SourceError, shorten
from toolfold.core.jsonlines import read_json_lines
from toolfold.runtime.explanation import MODES, explain_selection

if TYPE_CHECKING:
    from toolfold.core.types import Json, Tool
    from toolfold.runtime.runtime import Runtime

MAX_TOOLS_SHOWN = 20
MAX_WAIT_S = 15
"""How long to wait for new tools to be embedded, unless --first-message is given."""
PLACEMENTS = click.Choice(["auto", "replace", "append", "tail"])


@click.command("explain")
@click.argument("message", required=False)
@click.option("--history", type=FILE, help="Earlier messages: a JSON list, or one JSON message per line.")
@click.option(
    "--mode",
    type=click.Choice(list(MODES)),
    help="How tools are selected. Default: the setting tools.selection.",
)
@click.option(
    "--placement",
    type=PLACEMENTS,
    help="Where selected tools are placed in the request. Default: the setting tools.rag_placement.",
)
@click.option(
    "--model",
    default="",
    help="Model that gets the request: its context window and its prices decide what is sent and where."
    " Default: the setting agent.model.",
)
@click.option(
    "--first-message",
    is_flag=True,
    help="Limit the wait for embeddings of new tools to tools.patience_seconds, as in a session.",
)
@catalog_options
@click.option(
    "--all",
    "show_all",
    is_flag=True,
    help=f"Show the scores of all tools, not only of the best {MAX_TOOLS_SHOWN}.",
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
    first_message: bool,
    catalog: Path | None,
    sample: bool,
    show_all: bool,
    as_json: bool,
) -> None:
    """Show which tools a model is sent for a message, and the ranks, the tokens and the reason for each tool.

    Without MESSAGE, the latest user message in --history is explained.
    """
    messages = _build_messages(message, history)
    added = load_extra_tools(catalog, sample)
    overrides = (*_mode_overrides(mode), *((f"tools.rag_placement={placement}",) if placement else ()))
    if not first_message:
        overrides = (*overrides, f"tools.patience_seconds={MAX_WAIT_S}")
    with invocation.with_overrides(overrides).open_runtime() as runtime, show_spinner("reading the tools"):
        _register_tools(runtime, added)
        model = model or runtime.config.agent.model
        report = explain_selection(runtime.session(), runtime.retriever, messages, model)
    if report["problem"]:
        print_warning(report["problem"])
    if as_json:
        print_json(report)
    else:
        _print_report(report, show_all)


def _mode_overrides(mode: str | None) -> tuple[str, ...]:
    """Return the `KEY=VALUE` overrides of settings for a value of --mode."""
    if mode is None:
        return ()
    selection, search = MODES[mode]
    return f"tools.selection={selection}", f"tools.tool_search.enabled={search}"


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
            raise ValueError(
                'each message of the history must be an object with a role: {"role": "user", "content": "…"}'
            )
    return messages


def _register_tools(runtime: Runtime, tools: Sequence[Tool]) -> None:
    """Register tools of a catalog, except those with reserved names."""
    from toolfold.core.naming import is_reserved

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
    index = report["index"]
    if missing := index["tools"] - index["embedded"]:
        print_line(
            f"{missing:,} of {index['tools']:,} tools are not embedded yet and were found by keywords only;"
            f" waited {index['waited_s']:.1f} s (tools.patience_seconds)."
        )
    everything, sent = report["tokens_all"], report["tokens_sent"]
    saved = f", {1 - sent / everything:.1%} less" if everything else ""
    print_line(
        f"{len(report['selected']):,} of {format_count(len(report['tools']), 'tool')}: {report['why']}."
    )
    print_line(
        f"Tokens of tools sent: [bold]{sent:,}[/bold] of {everything:,}{saved}; {report['ms']:.1f} ms."
    )
    _print_request(report["request"])


def _print_request(request: Mapping[str, Any]) -> None:
    """Print where a request contains its tools: in the tool array or next to the message."""
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
