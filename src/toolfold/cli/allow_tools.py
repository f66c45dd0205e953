"""Let named tools, or the tools of a new server, run without approval despite their declared effects."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from toolfold.cli.app import Invocation
from toolfold.cli.output import NotFound, escape_text, format_count, print_line
from toolfold.core.errors import closest_names, did_you_mean

if TYPE_CHECKING:
    from toolfold.config import Config
    from toolfold.config.allowed_tool_entries import AllowedTool
    from toolfold.core.registry import Snapshot
    from toolfold.core.types import Tool

_DECLARATIONS = {
    "destructive": "can destroy data",
    "spend": "uses a service that charges for each call",
    "control": "operates devices",
}

__all__ = ["allow_destructive_option", "confirm_destructive", "find_targets", "offer_to_allow"]

allow_destructive_option = click.option(
    "--allow-destructive",
    is_flag=True,
    help="Run tools without approval even if they declare that they can destroy data.",
)


def find_targets(
    invocation: Invocation, targets: Sequence[str], *, client: str = "", in_project: bool = False
) -> list[AllowedTool]:
    """Return the `approval.allowed_tools` entries for the named tools and servers. Raises NotFound."""
    config = invocation.load_config()
    if any(each.isspace() for each in client):
        raise click.UsageError(f"{client!r} is not a valid client name: it contains whitespace")
    named = [_split_effect(each) for each in targets]
    if all(name in config.mcp.servers for name, _ in named):
        return [
            _make_entry(config, "server", name, name, effect, client, in_project) for name, effect in named
        ]
    with invocation.open_runtime() as runtime:
        snapshot = runtime.registry.snapshot()
    return [_find_target(config, snapshot, name, effect, client, in_project) for name, effect in named]


def offer_to_allow(
    invocation: Invocation,
    servers: Sequence[str],
    *,
    allow: bool,
    ask: bool = False,
    tools: Sequence[str] = (),
    quiet: bool = False,
) -> None:
    """Let destructive tools of new servers run without approval, if `allow` is set or the user agrees.

    `tools` are the names of the destructive tools, if known.
    """
    from toolfold.safety.approval.allowed_tools import build_allowed_tools

    command = f"toolfold approvals allow {' '.join(servers)}"
    if tools and not quiet:
        verb = "declares that it" if len(tools) == 1 else "declare that they"
        print_line(
            f"{format_count(len(tools), 'tool')} {verb} can destroy data. Each call needs your approval"
        )
        print_line("and is refused if the client cannot ask you.")
    if not allow and ask and not quiet and sys.stdin.isatty():
        with suppress(click.Abort):  # the server has been added already
            allow = confirm_destructive()
    if not allow:
        if tools and not quiet:
            print_line(f"to let them run without approval: {escape_text(command)}")
        return
    config = invocation.load_config()
    known = [name for name in servers if name in config.mcp.servers]
    entries = [_make_entry(config, "server", name, name, "destructive", "", False) for name in known]
    if entries:
        build_allowed_tools(config).add(*entries)
    if entries and not quiet:
        print_line(
            f"allowed. To undo, run: toolfold approvals revoke {escape_text(shlex.join(map(str, entries)))}"
        )


def confirm_destructive() -> bool:
    """Ask whether tools of new servers may destroy data without approval."""
    question = "Let tools that declare that they can destroy data run without approval?"
    return click.confirm(question, default=False, err=True)


def _split_effect(target: str) -> tuple[str, str]:
    """Return the name and the effect of NAME:EFFECT; the effect is empty if it is not given."""
    from toolfold.config.allowed_tool_entries import DECLARED_EFFECTS

    name, colon, effect = target.partition(":")
    if colon and effect not in DECLARED_EFFECTS:
        raise click.UsageError(
            f"unknown kind of effect {effect!r}; known kinds: {', '.join(DECLARED_EFFECTS)}"
        )
    return name, effect


def _find_target(
    config: Config, snapshot: Snapshot, name: str, effect: str, client: str, in_project: bool
) -> AllowedTool:
    from toolfold.config.allowed_tool_entries import DECLARED_EFFECTS
    from toolfold.core.types import MCP_SOURCE, Effect

    if name in config.mcp.servers:
        return _make_entry(config, "server", name, name, effect, client, in_project)
    tool = _find_tool(snapshot, name)
    declared = [each for each in DECLARED_EFFECTS if Effect(each) in tool.effects]
    effect = effect or (declared[0] if declared else DECLARED_EFFECTS[0])
    if effect not in declared:
        raise click.ClickException(
            f"{name!r} does not declare that it {_DECLARATIONS[effect]}, so there is nothing to allow."
        )
    server = tool.server if tool.source.kind == MCP_SOURCE else ""
    return _make_entry(config, "tool", tool.name, server, effect, client, in_project)


def _find_tool(snapshot: Snapshot, name: str) -> Tool:
    found = snapshot.named(name)
    if not found:
        near = did_you_mean(closest_names(name, snapshot))
        raise NotFound(
            f"there is no tool and no MCP server {name!r}.{near} `toolfold tools list` lists all tools."
        )
    if len(found) > 1 and found[0].name != name:
        names = ", ".join(each.name for each in found)
        raise click.ClickException(f"{name!r} matches several tools: {names}. Use one of these names.")
    return found[0]


def _make_entry(
    config: Config, target: str, name: str, server: str, effect: str, client: str, in_project: bool
) -> AllowedTool:
    """Return an `approval.allowed_tools` entry, limited to the project if the server is the project's own.

    Without `effect`, it covers the default one.
    """
    from toolfold.config.allowed_tool_entries import DECLARED_EFFECTS, AllowedTool
    from toolfold.safety.approval.allowed_tools import is_own_server

    effect = effect or DECLARED_EFFECTS[0]
    if in_project or (server and not is_own_server(config, server)):
        return AllowedTool(target, name, effect, client, str(config.paths.project_dir.resolve()))
    return AllowedTool(target, name, effect, client)
