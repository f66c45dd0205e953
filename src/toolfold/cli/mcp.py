"""`toolfold mcp`: the servers there are; adding, testing, reviewing and removing them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolfold.approval.visible import brief, visible
from toolfold.cli.app import FAILED, Invocation, json_option
from toolfold.cli.mcp_add import add
from toolfold.cli.mcp_change import disable, enable, set_key
from toolfold.cli.mcp_import import import_servers
from toolfold.cli.mcp_login import login, logins, logout
from toolfold.cli.mcp_review import review
from toolfold.cli.mcp_status import status
from toolfold.cli.serve import serve_stdio
from toolfold.cli.servers import (
    Probe,
    changing,
    file_of_server,
    key_of,
    known,
    probed,
    project_option,
    show_problems,
    show_tools,
    summary,
    told,
    unknown,
    written,
)
from toolfold.cli.show import as_json, counted, note, out, plain, table, warn
from toolfold.errors import ConfigError

if TYPE_CHECKING:
    from toolfold.config import Config

_MOST_OF_A_LOG = 1 << 20
_NONE = (
    "no MCP servers. `toolfold mcp import` takes over those of other programs, `toolfold mcp add` adds one."
)
_NOTHING_ON = "there is nothing to test: every server is switched off. `toolfold mcp list` shows them."


@click.group("mcp")
def command() -> None:
    """Put MCP servers behind Toolfold: add, import, test and review them."""


command.add_command(add)
command.add_command(enable)
command.add_command(disable)
command.add_command(set_key)
command.add_command(import_servers)
command.add_command(login)
command.add_command(logout)
command.add_command(review)
command.add_command(serve_stdio)
command.add_command(status)


@command.command("remove")
@click.argument("name")
@project_option
@click.pass_obj
def remove(invocation: Invocation, name: str, in_project: bool) -> None:
    """Remove a server, and what was kept of it."""
    from toolfold.config import unset_value

    try:
        config = invocation.config()
    except ConfigError as error:  # it may be this very server that is wrong
        warn(str(error))
        config = None
    file = file_of_server(invocation, name, in_project)
    if config:
        _forget(config, name)
    with changing(invocation, file) as record:
        unset_value(file, key_of(name), record=record)
    out(f"{plain(name)} is no longer in {plain(str(file))}")


def _forget(config: Config, name: str) -> None:
    from toolfold.sources.mcp.kept import ListingCache
    from toolfold.sources.mcp.oauth.logins import Logins
    from toolfold.sources.mcp.trust import Trust

    Logins(logins(config)).forget(name)
    try:
        Trust.of(config).forget(name)
    except ConfigError as error:
        warn(str(error))
    ListingCache(config.paths.cache_dir / "mcp").forget(name)
    for file in (_log_file(config, name), _log_file(config, name).with_suffix(".log.1")):
        file.unlink(missing_ok=True)


@command.command("list")
@json_option
@click.pass_obj
def list_servers(invocation: Invocation, as_json_: bool) -> None:
    """List the servers, without starting any."""
    config = invocation.config()
    rows = [_row(config, name) for name in config.mcp.servers]
    if as_json_:
        as_json(rows)
        return
    if not rows:
        out(_NONE)
        return
    table(
        counted(len(rows), "server"),
        ("server", "what it is", "state", "trust", "#tools", "#held"),
        (
            (
                row["name"],
                summary(written(config.mcp.servers[row["name"]]), short=True),
                "on" if row["enabled"] else "off",
                row["trust"],
                "?" if row["tools"] is None else str(row["tools"]),
                str(row["held"] or ""),
            )
            for row in rows
        ),
        whole="server",
    )
    for file in dict.fromkeys(_file(row["from"]) for row in rows):
        names = [row["name"] for row in rows if _file(row["from"]) == file]
        who = "" if len(names) == len(rows) else f": {', '.join(names)}"
        out(f"from {plain(file + who)}")
    for row in rows:
        show_problems(row["name"], row["problems"])
    if not config.mcp.enabled:
        warn("mcp.enabled is false: none of them is used")
    if any(row["held"] for row in rows):
        out("tools are held until you have looked at them: toolfold mcp review")


def _file(origin: str) -> str:
    """Where something stands, without the line."""
    return re.sub(r":\d+$", "", origin)


def _row(config: Config, name: str) -> dict[str, Any]:
    from toolfold.sources.mcp.importing import veiled
    from toolfold.sources.mcp.kept import ListingCache
    from toolfold.sources.mcp.trust import Trust

    server = config.mcp.servers[name]
    found = ListingCache(config.paths.cache_dir / "mcp").read(name, server)
    offers = found[0].offers if found else ()
    trust = Trust.of(config)
    return {
        "name": name,
        "enabled": server.enabled,
        "summary": summary(written(server)),
        "settings": veiled(written(server)),
        "trust": server.trust,
        "tools": len(offers) if found else None,
        "problems": list(found[0].problems) if found else [],
        "held": sum(trust.allows(name, server.trust, offer) is not None for offer in offers),
        "from": config.origins.get(key_of(name), ""),
    }


@command.command("test")
@click.argument("names", nargs=-1)
@json_option
@click.pass_obj
def test(invocation: Invocation, names: tuple[str, ...], as_json_: bool) -> int:
    """Start servers, all or those you name, and ask each for its tools.

    The exit code is 1 where one of them did not answer.
    """
    config = invocation.config()
    chosen = known(config, names)
    probes = probed(config, chosen) if chosen else []
    if as_json_:
        as_json([_as_json(each) for each in probes])
    elif not probes:
        out(_NOTHING_ON if config.mcp.servers else _NONE)
    else:
        _show(probes, whole=bool(names))
    return FAILED if any(each.problem for each in probes) else 0


def _show(probes: Sequence[Probe], *, whole: bool) -> None:
    table(
        counted(len(probes), "server"),
        ("server", "state", "#tools", "#held", "protocol", "#seconds"),
        (
            (
                each.name,
                each.kind,
                str(len(each.listing.offers)) if each.listing else "",
                str(len(each.held) or ""),
                each.listing.protocol if each.listing else "",
                f"{each.seconds:.1f}" if each.listing else "",
            )
            for each in probes
        ),
        whole="server",
    )
    for each in probes:
        if each.problem:
            out(f"[red]✗[/red] {plain(told(each.problem))}")
        if each.listing and (whole or each.held):
            show_tools(each)
        elif each.listing:
            show_problems(each.name, each.listing.problems)


def _as_json(probe: Probe) -> dict[str, Any]:
    listing = probe.listing
    return {
        "name": probe.name,
        "state": probe.kind,
        "problem": probe.problem,
        "protocol": listing.protocol if listing else "",
        "version": listing.version if listing else "",
        "seconds": round(probe.seconds, 3),
        "tools": [offer.name for offer in listing.offers] if listing else [],
        "held": [{"tool": each.offer.name, "why": each.why} for each in probe.held],
        "problems": list(listing.problems) if listing else [],
    }


@command.command("logs", short_help="Show what servers wrote to their standard error.")
@click.argument("name", required=False)
@click.option("-n", "--last", default=50, show_default=True, type=click.IntRange(1), help="How many lines.")
@click.option("--path", is_flag=True, help="Print where the log lies instead.")
@click.pass_obj
def logs(invocation: Invocation, name: str | None, last: int, path: bool) -> None:
    """Show what a server wrote to its standard error, or the end of what each of them wrote."""
    config = invocation.config()
    if name is not None and name not in config.mcp.servers and not _log_file(config, name).is_file():
        raise unknown(name, config.mcp.servers)
    if path:
        click.echo(_log_file(config, name) if name else _log_file(config, "x").parent)
        return
    names = [name] if name else [each for each in config.mcp.servers if _log_file(config, each).is_file()]
    for each in names:
        if len(names) > 1:
            out(f"[bold]{plain(each)}[/bold]")
        lines = list(_last_lines(_log_file(config, each), last if name else min(last, 10)))
        for line in lines:
            click.echo(visible(brief(line, 2_000)))
        if not lines:
            note(f"{plain(each)} has written nothing so far.")
    if not names:
        note("no server has written anything so far.")


def _last_lines(file: Path, most: int) -> Iterator[str]:
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - _MOST_OF_A_LOG))
            text = stream.read(_MOST_OF_A_LOG).decode("utf-8", "replace")
    except FileNotFoundError:
        return
    yield from text.splitlines()[-most:]


def _log_file(config: Config, name: str) -> Path:
    return config.paths.state_dir / "mcp" / "logs" / f"{name}.log"
