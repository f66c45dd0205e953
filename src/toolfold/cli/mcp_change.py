"""`toolfold mcp enable`, `disable` and `set`: change one server that is configured."""

from __future__ import annotations

import glob
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolfold.approval.visible import visible_line
from toolfold.cli.app import Invocation
from toolfold.cli.servers import changing, file_of_server, keep_private, key_of, project_option, settings_file
from toolfold.cli.show import NotFound, out, plain, warn
from toolfold.errors import did_you_mean, nearest

if TYPE_CHECKING:
    from toolfold.config.servers import McpServer


@click.command("enable")
@click.argument("name")
@click.argument("tools", nargs=-1, metavar="[TOOL]...")
@project_option
@click.pass_obj
def enable(invocation: Invocation, name: str, tools: tuple[str, ...], in_project: bool) -> None:
    """Use a server again, or only some tools of it that were disabled."""
    file = file_of_server(invocation, name, in_project)
    if not tools:
        _write(invocation, file, name, "enabled", True)
        out(f"{plain(name)} is enabled in {plain(str(file))}")
        return
    server = _server_in(file, name)
    excluded = list(server.exclude)
    for tool in tools:
        excluded = [each for each in excluded if each not in (tool, glob.escape(tool))]
        _require_reachable(name, server, excluded, tool)
    _write(invocation, file, name, "exclude", excluded)
    out(f"enabled in {plain(str(file))}: {plain(_of_server(tools, name))}")
    if not server.enabled:
        warn(f"{name} itself is disabled: toolfold mcp enable {name}")


@click.command("disable")
@click.argument("name")
@click.argument("tools", nargs=-1, metavar="[TOOL]...")
@project_option
@click.pass_obj
def disable(invocation: Invocation, name: str, tools: tuple[str, ...], in_project: bool) -> None:
    """Stop using a server, or only some of its tools. Its settings and its login are kept."""
    file = file_of_server(invocation, name, in_project)
    if not tools:
        _write(invocation, file, name, "enabled", False)
        out(f"{plain(name)} is disabled in {plain(str(file))}")
        return
    server = _server_in(file, name)
    _require_known_tools(invocation, name, tools)
    added = [glob.escape(tool) for tool in tools]
    _write(invocation, file, name, "exclude", list(dict.fromkeys([*server.exclude, *added])))
    out(f"disabled in {plain(str(file))}: {plain(_of_server(tools, name))}")


@click.command("set", short_help="Change one setting of a server.")
@click.argument("name")
@click.argument("key")
@click.argument("value")
@project_option
@click.pass_obj
def set_key(invocation: Invocation, name: str, key: str, value: str, in_project: bool) -> None:
    """Change one setting of a server, such as `trust`, `env.TOKEN` or `call_timeout_seconds`.

    The same as `toolfold config set mcp.servers.NAME.KEY VALUE`, in whichever file has the server.
    """
    from toolfold.sources.mcp.importing import literal_secrets

    file = file_of_server(invocation, name, in_project)
    secrets = literal_secrets(_nest(key, value))
    if secrets and file == settings_file(invocation, True):
        raise click.ClickException("a project's file is no place for secrets. Write ${NAME} instead.")
    if secrets:
        warn(f"{key} is written out; a reference such as ${{NAME}} keeps it out of the file")
        keep_private(file)
    _write(invocation, file, name, key, value)
    out(f"{plain(f'{key_of(name)}.{key}')} is set in {plain(str(file))}")


def _nest(key: str, value: Any) -> dict[str, Any]:
    head, _, rest = key.partition(".")
    return {head: _nest(rest, value) if rest else value}


def _write(invocation: Invocation, file: Path, name: str, key: str, value: object) -> None:
    from toolfold.config import set_value

    with changing(invocation, file) as record:
        for remark in set_value(file, f"{key_of(name)}.{key}", value, record=record):
            warn(remark)


def _server_in(file: Path, name: str) -> McpServer:
    from toolfold.config import written_value
    from toolfold.config.servers import usable

    return usable(written_value(file, key_of(name)))


def _require_known_tools(invocation: Invocation, name: str, tools: tuple[str, ...]) -> None:
    """Refuse a name that the server has never listed. Where no list is stored, every name is taken."""
    from toolfold.sources.mcp.kept import ListingCache

    config = invocation.config()
    server = config.mcp.servers.get(name)
    stored = ListingCache(config.paths.cache_dir / "mcp").read(name, server) if server else None
    if not stored:
        return
    known = [offer.name for offer in stored[0].offers]
    for tool in tools:
        if tool not in known:
            near = did_you_mean(nearest(tool, known, count=1))
            raise NotFound(f"{name} has no tool {visible_line(tool)!r}.{near} See: toolfold mcp test {name}")


def _require_reachable(name: str, server: McpServer, excluded: list[str], tool: str) -> None:
    """Refuse to enable a tool that a pattern would still leave out."""
    pattern = next((each for each in excluded if fnmatchcase(tool, each)), None)
    if pattern is not None:
        raise click.ClickException(
            f"{tool} is left out by the pattern {pattern!r} in {key_of(name)}.exclude,"
            f" which may stand for other tools too. Change it: toolfold mcp set {name} exclude '[…]'"
        )
    if not any(fnmatchcase(tool, each) for each in server.include):
        raise click.ClickException(
            f"{tool} is not among the tools that {key_of(name)}.include names."
            f" Change it: toolfold mcp set {name} include '[…]'"
        )


def _of_server(tools: tuple[str, ...], name: str) -> str:
    return f"{', '.join(tools)} of {name}"
