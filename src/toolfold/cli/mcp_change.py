"""`toolfold mcp enable`, `disable` and `set`: change one configured server."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.app import Invocation
from toolfold.cli.output import NotFound, escape_text, print_line, print_warning
from toolfold.cli.server_commands import (
    changing_settings,
    find_server_file,
    load_tool_names,
    project_option,
    restrict_to_owner,
    server_key,
    settings_file,
)
from toolfold.core.errors import closest_names, did_you_mean
from toolfold.safety.approval.safe_text import make_line_visible

if TYPE_CHECKING:
    from toolfold.config.servers_settings import McpServerSettings


@click.command("enable")
@click.argument("name")
@click.argument("tools", nargs=-1, metavar="[TOOL]...")
@project_option
@click.pass_obj
def enable(invocation: Invocation, name: str, tools: tuple[str, ...], in_project: bool) -> None:
    """Enable a server, or only the named tools of it."""
    file = find_server_file(invocation, name, in_project)
    if not tools:
        _write_setting(invocation, file, name, "enabled", True)
        print_line(f"{escape_text(name)} is enabled in {escape_text(str(file))}")
        return
    server = _read_server(file, name)
    excluded = list(server.exclude)
    for tool in _resolve_tools(invocation, name, tools, must_exist=False):
        excluded = [each for each in excluded if each not in (tool, glob.escape(tool))]
        _require_no_exclusion(name, server, excluded, tool)
    _write_setting(invocation, file, name, "exclude", excluded)
    print_line(f"enabled in {escape_text(str(file))}: {escape_text(_format_tools(tools, name))}")
    if not server.enabled:
        print_warning(f"{name} itself is disabled: toolfold mcp enable {name}")


@click.command("disable")
@click.argument("name")
@click.argument("tools", nargs=-1, metavar="[TOOL]...")
@project_option
@click.pass_obj
def disable(invocation: Invocation, name: str, tools: tuple[str, ...], in_project: bool) -> None:
    """Disable a server, or only the named tools of it. Its settings and login are kept."""
    file = find_server_file(invocation, name, in_project)
    if not tools:
        _write_setting(invocation, file, name, "enabled", False)
        print_line(f"{escape_text(name)} is disabled in {escape_text(str(file))}")
        return
    server = _read_server(file, name)
    added = [glob.escape(tool) for tool in _resolve_tools(invocation, name, tools)]
    _write_setting(invocation, file, name, "exclude", list(dict.fromkeys([*server.exclude, *added])))
    print_line(f"disabled in {escape_text(str(file))}: {escape_text(_format_tools(tools, name))}")


@click.command("set", short_help="Change one setting of a server.")
@click.argument("name")
@click.argument("key")
@click.argument("value")
@project_option
@click.pass_obj
def set_key(invocation: Invocation, name: str, key: str, value: str, in_project: bool) -> None:
    """Change one setting of a server, such as `trust`, `env.TOKEN` or `call_timeout_seconds`.

    Same as `toolfold config set mcp.servers.NAME.KEY VALUE`, in the file that defines the server.
    """
    from toolfold.mcp.importing import find_literal_secrets

    file = find_server_file(invocation, name, in_project)
    secrets = find_literal_secrets(_nest_value(key, value))
    if secrets and file == settings_file(invocation, True):
        raise click.ClickException(
            "secrets must not be written to a project's settings file. Write ${NAME} instead."
        )
    if secrets:
        print_warning(
            f"{key} contains a secret in plain text; write ${{NAME}} to read it from an environment variable"
        )
        restrict_to_owner(file)
    _write_setting(invocation, file, name, key, value)
    print_line(f"{escape_text(f'{server_key(name)}.{key}')} is set in {escape_text(str(file))}")


def _nest_value(key: str, value: Any) -> dict[str, Any]:
    head, _, rest = key.partition(".")
    return {head: _nest_value(rest, value) if rest else value}


def _write_setting(invocation: Invocation, file: Path, name: str, key: str, value: object) -> None:
    from toolfold.config import set_value

    with changing_settings(invocation, file) as record:
        for remark in set_value(file, f"{server_key(name)}.{key}", value, record=record):
            print_warning(remark)


def _read_server(file: Path, name: str) -> McpServerSettings:
    from toolfold.config import read_file_value
    from toolfold.config.servers_settings import parse_server_settings

    return parse_server_settings(read_file_value(file, server_key(name)))


def _resolve_tools(
    invocation: Invocation, name: str, tools: Sequence[str], *, must_exist: bool = True
) -> list[str]:
    """Convert tool names, in the spelling of the server or of the gateway, to the server's own names.

    Raises NotFound for a tool that the server does not list, if `must_exist`. Any name is accepted as it is
    if no listing is cached.
    """
    from toolfold.mcp.listing_cache import ListingCache

    config = invocation.load_config()
    server = config.mcp.servers.get(name)
    stored = ListingCache(config.paths.cache_dir / "mcp").read(name, server) if server else None
    if not stored:
        return list(tools)
    listed, names = [offer.name for offer in stored[0].tools], load_tool_names(config, [name])
    found = {tool: names.find_own_name(name, tool, listed) for tool in tools}
    missing = next((tool for tool, own in found.items() if own is None), None)
    if missing is not None and must_exist:
        known = {names.names_of(name, own).client for own in listed}
        near = did_you_mean(closest_names(missing, {*known, *listed}, count=1))
        raise NotFound(
            f"{name} has no tool {make_line_visible(missing)!r}.{near} See: toolfold mcp test {name}"
        )
    return [own if own is not None else tool for tool, own in found.items()]


def _require_no_exclusion(name: str, server: McpServerSettings, excluded: list[str], tool: str) -> None:
    """Raise an error if an exclude pattern would still hide the tool that is to be enabled."""
    pattern = next((each for each in excluded if fnmatchcase(tool, each)), None)
    if pattern is not None:
        raise click.ClickException(
            f"{tool} is excluded by the pattern {pattern!r} in {server_key(name)}.exclude,"
            f" which may match other tools too. Change it with: toolfold mcp set {name} exclude '[…]'"
        )
    if not any(fnmatchcase(tool, each) for each in server.include):
        raise click.ClickException(
            f"{tool} does not match any pattern in {server_key(name)}.include."
            f" Change it with: toolfold mcp set {name} include '[…]'"
        )


def _format_tools(tools: tuple[str, ...], name: str) -> str:
    return f"{', '.join(tools)} of {name}"
