"""`toolfold mcp status`: show the running gateways, their servers and their connected clients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from toolfold.cli.app import Invocation, json_option
from toolfold.cli.output import escape_text, format_count, print_json, print_line, print_note, print_table
from toolfold.safety.approval.safe_text import make_line_visible

_NO_GATEWAY = (
    "no gateway is running. Programs added with `toolfold connect` start one; so does `toolfold serve`."
)

_COUNTS = (
    "usable: tools that sessions can use, as `toolfold tools list --toolset mcp-SERVER` lists them, with"
    " those that Toolfold adds for resources and prompts. held: tools that wait for `toolfold mcp review`."
    " listed: tools that the server itself lists. granted: tools of all servers, and built-in ones, that"
    " the client may use."
)


@click.command("status", short_help="Show the running gateways, their servers and clients.")
@json_option
@click.pass_obj
def status(invocation: Invocation, as_json: bool) -> None:
    """Show the running gateways, the state of their servers, and their connected clients."""
    from toolfold.serving.gateway.status import read_statuses

    found = read_statuses(invocation.paths().state_dir / "gateway" / "status")
    if as_json:
        print_json(found)
    elif not found:
        print_line(_NO_GATEWAY)
    for each in found if not as_json else ():
        _print_gateway(each)


def _print_gateway(gateway: dict[str, Any]) -> None:
    where = _as_text(gateway.get("address")) or "stdio"
    started = _as_text(gateway.get("started"))
    print_line(
        f"[bold]gateway {escape_text(where)}[/bold], process {gateway['pid']}, since {escape_text(started)}"
    )
    servers, clients = _as_dicts(gateway.get("servers")), _as_dicts(gateway.get("clients"))
    print_table(
        format_count(len(servers), "server"),
        ("server", "state", "#usable", "#held", "#listed", "last error"),
        (
            [_as_text(each.get(key)) for key in ("name", "state", "tools", "held", "listed", "error")]
            for each in servers
        ),
        no_wrap="server",
    )
    print_table(
        format_count(len(clients), "client"),
        ("client", "token", "toolsets", "#granted", "state"),
        (
            (
                _as_text(each.get("name")),
                _as_text(each.get("token")) or "none",
                ", ".join(map(_as_text, each.get("toolsets") or ())) or "all",
                _as_text(each.get("tools")),
                "busy" if each.get("busy") else "idle",
            )
            for each in clients
        ),
        no_wrap="client",
    )
    print_note(_COUNTS)


def _as_dicts(value: object) -> list[dict[str, Any]]:
    items: Iterable[Any] = value if isinstance(value, list) else ()
    return [each for each in items if isinstance(each, dict)]


def _as_text(value: object) -> str:
    return "" if value is None else make_line_visible(str(value))
