"""`toolfold mcp`: list, add, test, review and remove MCP servers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.app import EXIT_FAILED, Invocation, json_option
from toolfold.cli.mcp_add import add
from toolfold.cli.mcp_change import disable, enable, set_key
from toolfold.cli.mcp_import import import_servers
from toolfold.cli.mcp_login import login, login_directory, logout
from toolfold.cli.mcp_logs import logs, server_log_path
from toolfold.cli.mcp_review import review
from toolfold.cli.mcp_status import status
from toolfold.cli.output import (
    escape_text,
    format_count,
    print_json,
    print_line,
    print_table,
    print_warning,
)
from toolfold.cli.serve import serve_stdio
from toolfold.cli.server_commands import (
    ServerProbe,
    changing_settings,
    dump_settings,
    find_server_file,
    print_probes,
    print_problems,
    probe_servers,
    project_option,
    select_servers,
    server_key,
    summarize_server,
)
from toolfold.cli.shared_database import use_database
from toolfold.core.errors import ConfigError

if TYPE_CHECKING:
    from toolfold.config import Config

_NO_SERVERS = (
    "no MCP servers are configured. Import those of other programs with `toolfold mcp import`, or add one"
    " with `toolfold mcp add`."
)
_ALL_DISABLED = "nothing to test: every server is disabled. List them with `toolfold mcp list`."


@click.group("mcp")
def command() -> None:
    """Manage MCP servers: add, import, test and review them."""


command.add_command(add)
command.add_command(enable)
command.add_command(disable)
command.add_command(set_key)
command.add_command(import_servers)
command.add_command(login)
command.add_command(logout)
command.add_command(logs)
command.add_command(review)
command.add_command(serve_stdio)
command.add_command(status)


@command.command("sample")
@click.argument("services", nargs=-1, metavar="[SERVICE]...")
def serve_sample(services: tuple[str, ...]) -> None:
    """Serve simulated services over stdio, to try Toolfold without servers of your own.

    Add it like any other server: toolfold mcp add sample toolfold mcp sample. Without SERVICE, it serves all
    22 services of the sample catalog. Its data is in memory and starts anew with each process.
    """
    import sys

    from toolfold.tools.sample.sample_server import SampleServer

    SampleServer(services).serve(sys.stdin.buffer, sys.stdout.buffer)


@command.command("remove")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@project_option
@click.pass_obj
def remove(invocation: Invocation, names: tuple[str, ...], in_project: bool) -> None:
    """Remove servers and the data stored about them."""
    from toolfold.config import unset_value

    try:
        config = invocation.load_config()
    except ConfigError as error:  # this server's settings may be the invalid ones
        print_warning(str(error))
        config = None
    files = {
        name: find_server_file(invocation, name, in_project) for name in names
    }  # all exist, or none is removed
    for name, file in files.items():
        with changing_settings(invocation, file) as record:
            unset_value(file, server_key(name), record=record)
        if config:  # afterwards: a gateway that still used the server could store its data again
            _delete_stored_data(config, name)
        print_line(f"{escape_text(name)} is removed from {escape_text(str(file))}")


def _delete_stored_data(config: Config, name: str) -> None:
    from toolfold.mcp.listing_cache import ListingCache
    from toolfold.mcp.oauth.login_store import FileLoginStore
    from toolfold.mcp.trust import Trust

    FileLoginStore(login_directory(config)).delete(name)  # replicas may still use a login in the database
    try:
        Trust.from_config(config, use_database(config)).forget(name)
    except ConfigError as error:
        print_warning(str(error))
    ListingCache(config.paths.cache_dir / "mcp").delete(name)
    for file in (server_log_path(config, name), server_log_path(config, name).with_suffix(".log.1")):
        file.unlink(missing_ok=True)


@command.command("list")
@json_option
@click.pass_obj
def list_servers(invocation: Invocation, as_json: bool) -> None:
    """List the configured servers without starting them."""
    config = invocation.load_config()
    rows = [_server_row(config, name) for name in config.mcp.servers]
    if as_json:
        print_json(rows)
        return
    if not rows:
        print_line(_NO_SERVERS)
        return
    print_table(
        format_count(len(rows), "server"),
        ("server", "command or URL", "state", "trust", "#tools", "#held"),
        (
            (
                row["name"],
                summarize_server(dump_settings(config.mcp.servers[row["name"]]), short=True),
                "enabled" if row["enabled"] else "disabled",
                row["trust"],
                "?" if row["tools"] is None else str(row["tools"]),
                str(row["held"] or ""),
            )
            for row in rows
        ),
        no_wrap="server",
    )
    for file in dict.fromkeys(_strip_line_number(row["from"]) for row in rows):
        names = [row["name"] for row in rows if _strip_line_number(row["from"]) == file]
        which = "" if len(names) == len(rows) else f": {', '.join(names)}"
        print_line(f"configured in {escape_text(file + which)}")
    for row in rows:
        print_problems(row["name"], row["problems"])
    if not config.mcp.enabled:
        print_warning("mcp.enabled is false, so none of these servers is used")
    if any(row["held"] for row in rows):
        print_line("held tools are not used until you review them: toolfold mcp review")


def _strip_line_number(origin: str) -> str:
    """Return the file name in the origin `FILE:LINE` of a setting, without the line number."""
    return re.sub(r":\d+$", "", origin)


def _server_row(config: Config, name: str) -> dict[str, Any]:
    from toolfold.mcp.importing import redact_settings
    from toolfold.mcp.listing_cache import ListingCache
    from toolfold.mcp.trust import Trust

    server = config.mcp.servers[name]
    found = ListingCache(config.paths.cache_dir / "mcp").read(name, server)
    offers = found[0].tools if found else ()
    trust = Trust.from_config(config, use_database(config))
    return {
        "name": name,
        "enabled": server.enabled,
        "summary": summarize_server(dump_settings(server)),
        "settings": redact_settings(dump_settings(server)),
        "trust": server.trust,
        "tools": len(offers) if found else None,
        "problems": list(found[0].problems) if found else [],
        "held": sum(trust.check_call(name, server.trust, offer) is not None for offer in offers),
        "from": config.origins.get(server_key(name), ""),
    }


@command.command("test")
@click.argument("names", nargs=-1)
@json_option
@click.pass_obj
def test(invocation: Invocation, names: tuple[str, ...], as_json: bool) -> int:
    """Start all servers, or those you name, and list their tools.

    The exit code is 1 if a server fails.
    """
    config = invocation.load_config()
    chosen = select_servers(config, names)
    probes = probe_servers(config, chosen) if chosen else []
    if as_json:
        print_json([_probe_as_json(each) for each in probes])
    elif not probes:
        print_line(_ALL_DISABLED if config.mcp.servers else _NO_SERVERS)
    else:
        print_probes(probes, whole=bool(names))
    return EXIT_FAILED if any(each.problem for each in probes) else 0


def _probe_as_json(probe: ServerProbe) -> dict[str, Any]:
    listing = probe.listing
    return {
        "name": probe.name,
        "state": probe.kind,
        "problem": probe.problem,
        "protocol": listing.protocol if listing else "",
        "version": listing.version if listing else "",
        "seconds": round(probe.seconds, 3),
        "tools": [probe.client_name(offer.name) for offer in listing.tools] if listing else [],
        "held": [{"tool": probe.client_name(each.tool.name), "why": each.reason} for each in probe.held],
        "problems": list(listing.problems) if listing else [],
    }
