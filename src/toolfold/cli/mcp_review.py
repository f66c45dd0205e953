"""`toolfold mcp review`: show new and changed tools of servers, and accept them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.app import EXIT_FAILED, Invocation, json_option
from toolfold.cli.output import escape_text, format_count, print_json, print_line, print_warning
from toolfold.cli.server_commands import (
    ServerProbe,
    confirm,
    load_tool_names,
    load_trust,
    probe_servers,
    select_servers,
    yes_option,
)
from toolfold.safety.approval.safe_text import make_line_visible

if TYPE_CHECKING:
    from toolfold.config import Config
    from toolfold.mcp.tool_names import ToolNames
    from toolfold.mcp.trust import HeldTool

MAX_SUSPICIONS_SHOWN = 10

_ANSWERS = {"y": "yes", "n": "no", "q": "quit"}
_COLOURS = {"+": "green", "-": "red"}
_REASON_TEXTS = {
    "new": "is new",
    "changed": "has changed",
    "flagged": "contains text that looks like instructions to the model",
}


@click.command("review", short_help="Review new and changed tools of servers, and accept them.")
@click.argument("names", nargs=-1)
@click.option("--all", "all_", is_flag=True, help="Ask once for all tools instead of one by one.")
@yes_option
@json_option
@click.pass_obj
def review(invocation: Invocation, names: tuple[str, ...], all_: bool, yes: bool, as_json: bool) -> int:
    """Show new and changed tools that wait for your review, and ask whether to accept each tool.

    A tool that is new or has changed since you added its server is held: it is not sent to models and cannot
    be called until you accept it here. With --json, nothing is asked and nothing is accepted.
    """
    if yes and not all_:
        raise click.UsageError(
            "--yes can be used only with --all: it accepts every tool that waits for review"
        )
    config = invocation.load_config()
    chosen = select_servers(config, names)
    held_tools, tool_names = _find_held_tools(config, chosen), load_tool_names(config, chosen)
    if as_json:
        print_json([_held_as_json(server, each, tool_names) for server, each in held_tools])
        return 0
    _warn_about_suspicions(config, chosen, {each.tool.name for _, each in held_tools}, tool_names)
    if not held_tools:
        print_line("no tools are held for review.")
        return 0
    accepted = (
        _accept_all(held_tools, yes, tool_names) if all_ else _accept_one_by_one(held_tools, tool_names)
    )
    for server in dict.fromkeys(server for server, _ in accepted):
        offers = [each.tool for of, each in accepted if of == server]
        load_trust(config, [server]).accept(server, offers)
        print_line(f"{escape_text(server)}: {format_count(len(offers), 'tool')} accepted")
    left = len(held_tools) - len(accepted)
    if left:
        print_line(f"{format_count(left, 'tool')} still held")
    return EXIT_FAILED if left else 0


def _find_held_tools(config: Config, names: Sequence[str]) -> list[tuple[str, HeldTool]]:
    """Return the servers' new or changed tools that wait for review, from cached lists if possible."""
    from toolfold.mcp.listing_cache import ListingCache

    cache = ListingCache(config.paths.cache_dir / "mcp")
    pinned = [name for name in names if config.mcp.servers[name].trust == "pin"]
    seen = {name: found[0] for name in pinned if (found := cache.read(name, config.mcp.servers[name]))}
    unseen = [name for name in pinned if name not in seen]
    probes = {each.name: each for each in (probe_servers(config, unseen) if unseen else ())}
    trust = load_trust(config, pinned)
    held_tools: list[tuple[str, HeldTool]] = []
    for name in pinned:
        held = probes[name].held if name in probes else trust.check_tools(name, "pin", seen[name].tools).held
        held_tools += [(name, each) for each in held]
        _warn_about_failure(probes.get(name))
    return held_tools


def _warn_about_suspicions(
    config: Config, names: Sequence[str], held: Collection[str], tool_names: ToolNames
) -> None:
    """Warn about tools in use whose text looks like instructions to the model (prompt injection)."""
    from toolfold.mcp.listing_cache import ListingCache

    cache, trust = ListingCache(config.paths.cache_dir / "mcp"), load_trust(config, ())
    for name in names:
        server = config.mcp.servers[name]
        found = cache.read(name, server) if server.trust == "pin" else None
        offers = [each for each in found[0].tools if each.name not in held] if found else []
        suspicions = trust.find_suspicious(name, offers)
        for offer, finding in suspicions[:MAX_SUSPICIONS_SHOWN]:
            shown = tool_names.names_of(name, offer.name).client
            print_warning(make_line_visible(f"in use but suspicious: {shown} of {name}: {finding}"))
        if len(suspicions) > MAX_SUSPICIONS_SHOWN:
            print_warning(f"{name}: {len(suspicions) - MAX_SUSPICIONS_SHOWN} more suspicious tools")


def _warn_about_failure(probe: ServerProbe | None) -> None:
    if probe is not None and probe.problem:
        print_warning(make_line_visible(probe.problem))


def _accept_all(
    held_tools: Sequence[tuple[str, HeldTool]], yes: bool, tool_names: ToolNames
) -> list[tuple[str, HeldTool]]:
    for server, each in held_tools:
        _print_held_tool(server, each, tool_names)
    return list(held_tools) if confirm(f"Accept {format_count(len(held_tools), 'tool')}?", yes) else []


def _accept_one_by_one(
    held_tools: Sequence[tuple[str, HeldTool]], tool_names: ToolNames
) -> list[tuple[str, HeldTool]]:
    accepted: list[tuple[str, HeldTool]] = []
    for server, each in held_tools:
        _print_held_tool(server, each, tool_names)
        if not sys.stdin.isatty():
            continue
        words = click.Choice([*_ANSWERS, *_ANSWERS.values()], case_sensitive=False)
        question = f"Accept this tool? yes, no or quit ({', '.join(_ANSWERS)})"
        answer = click.prompt(question, type=words, show_choices=False, default="n", err=True)[0]
        if answer == "q":
            break
        if answer == "y":
            accepted.append((server, each))
    if not sys.stdin.isatty():
        raise click.ClickException(
            "Confirmation needs a terminal. To accept all of the above, use --all --yes."
        )
    return accepted


def _print_held_tool(server: str, held: HeldTool, tool_names: ToolNames) -> None:
    from toolfold.mcp.trust import describe_difference

    shown = make_line_visible(tool_names.names_of(server, held.tool.name).client)
    print_line(f"\n[bold]{escape_text(shown)}[/bold] of {escape_text(server)} {_REASON_TEXTS[held.reason]}")
    for finding in held.findings:
        print_line(f"  [yellow]![/yellow] {escape_text(make_line_visible(str(finding)))}")
    for change in held.changes:
        print_line(f"  [cyan]*[/cyan] {escape_text(make_line_visible(change))}")
    for line in map(make_line_visible, describe_difference(held.accepted_version, held.tool)):
        colour = _COLOURS.get(line[:1])
        print_line(f"  [{colour}]{escape_text(line)}[/{colour}]" if colour else f"  {escape_text(line)}")


def _held_as_json(server: str, held: HeldTool, tool_names: ToolNames) -> dict[str, Any]:
    from toolfold.mcp.trust import describe_difference

    return {
        "server": server,
        "tool": tool_names.names_of(server, held.tool.name).client,
        "why": held.reason,
        "findings": [str(each) for each in held.findings],
        "changes": list(held.changes),
        "difference": list(describe_difference(held.accepted_version, held.tool)),
    }
