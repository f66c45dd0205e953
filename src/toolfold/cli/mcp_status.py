"""`toolfold mcp status`: the gateways that run, their servers, and the clients that are connected to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from toolfold.approval.visible import visible_line
from toolfold.cli.app import Invocation, json_option
from toolfold.cli.show import as_json, counted, out, plain, table

_NONE = (
    "no gateway runs. Programs start one that are connected (`toolfold connect`); so does `toolfold serve`."
)


@click.command("status")
@json_option
@click.pass_obj
def status(invocation: Invocation, as_json_: bool) -> None:
    """Show the gateways that run now: state of their servers, connected clients and what each may use."""
    from toolfold.gateway.status import read_statuses

    found = read_statuses(invocation.paths().state_dir / "gateway" / "status")
    if as_json_:
        as_json(found)
    elif not found:
        out(_NONE)
    for each in found if not as_json_ else ():
        _show(each)


def _show(gateway: dict[str, Any]) -> None:
    where = _text(gateway.get("address")) or "stdio"
    started = _text(gateway.get("started"))
    out(f"[bold]gateway {plain(where)}[/bold], process {gateway['pid']}, since {plain(started)}")
    servers, clients = _maps(gateway.get("servers")), _maps(gateway.get("clients"))
    table(
        counted(len(servers), "server"),
        ("server", "state", "#tools", "#held", "last error"),
        ([_text(each.get(key)) for key in ("name", "state", "tools", "held", "error")] for each in servers),
        whole="server",
    )
    table(
        counted(len(clients), "client"),
        ("client", "token", "toolsets", "#tools", "state"),
        (
            (
                _text(each.get("name")),
                _text(each.get("token")) or "none",
                ", ".join(map(_text, each.get("toolsets") or ())) or "all",
                _text(each.get("tools")),
                "busy" if each.get("busy") else "idle",
            )
            for each in clients
        ),
        whole="client",
    )


def _maps(value: object) -> list[dict[str, Any]]:
    items: Iterable[Any] = value if isinstance(value, list) else ()
    return [each for each in items if isinstance(each, dict)]


def _text(value: object) -> str:
    return "" if value is None else visible_line(str(value))
