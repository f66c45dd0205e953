"""`toolfold token`: who may use the gateway, and what of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from toolfold.cli.app import Invocation, json_option
from toolfold.cli.show import NOT_FOUND, as_json, note, out, plain, table
from toolfold.errors import UnknownToolset, nearest
from toolfold.model import MCP_PREFIX

if TYPE_CHECKING:
    from toolfold.gateway.tokens import Tokens


@click.group("token")
def command() -> None:
    """Make, list and revoke the tokens of clients of the gateway."""


@command.command("add")
@click.argument("name")
@click.option(
    "--toolset", "toolsets", multiple=True, metavar="NAME", help="What it may use; may be given again."
)
@click.pass_obj
def add(invocation: Invocation, name: str, toolsets: tuple[str, ...]) -> None:
    """Make a token for a client. It is shown once."""
    if toolsets:
        _require_known(invocation, toolsets)
    tokens = _tokens(invocation)
    is_first = not tokens.are_in_use()
    token = tokens.add(name, toolsets or None)
    note(f"The token of {plain(name)}, which cannot be shown again:")
    out(token)
    note(f"Clients send it as `Authorization: Bearer {token[:6]}…`.")
    if is_first:
        note("Now every client of `toolfold serve` needs a token, unless gateway.allow_anonymous is set.")


def _require_known(invocation: Invocation, toolsets: tuple[str, ...]) -> None:
    """A typo would make a token that opens nothing, or one day something else."""
    with invocation.runtime(behind_gateway=True) as runtime:
        known = runtime.toolsets()
        servers = {f"{MCP_PREFIX}{name}" for name in runtime.config.mcp.servers}
        for name in toolsets:
            if name.startswith(MCP_PREFIX) and name not in servers:
                raise UnknownToolset(name, nearest(name, {*servers, *known.listing()}))
        known.require(toolsets)


@command.command("list")
@json_option
@click.pass_obj
def listed(invocation: Invocation, as_json_: bool) -> None:
    """List the clients that have a token."""
    clients = _tokens(invocation).all()
    if as_json_:
        as_json([{"name": each.name, "toolsets": each.toolsets, "created": each.created} for each in clients])
        return
    if not clients:
        note("Nobody has a token. `toolfold token add NAME` makes one.")
        return
    rows = [
        (
            plain(each.name),
            plain(", ".join(each.toolsets)) if each.toolsets else "all but files and the terminal",
            time.strftime("%Y-%m-%d", time.localtime(each.created)),
        )
        for each in clients
    ]
    table("Clients of the gateway", ["client", "may use", "since"], rows)


@command.command("revoke")
@click.argument("name")
@click.pass_context
def revoke(ctx: click.Context, name: str) -> None:
    """Revoke a client's token: its next request is refused."""
    tokens = _tokens(ctx.obj)
    if not tokens.revoke(name):
        note(
            f"[red]error:[/red] nobody called {plain(name)} has a token. `toolfold token list` shows who has."
        )
        ctx.exit(NOT_FOUND)
    out(f"{plain(name)} is let in no more")
    if not tokens.all():
        note("That was the last token. Clients still need one, unless gateway.allow_anonymous is set.")


def _tokens(invocation: Invocation) -> Tokens:
    from toolfold.gateway.tokens import Tokens

    return Tokens(invocation.paths().state_dir / "gateway" / "tokens.json", invocation.record())
