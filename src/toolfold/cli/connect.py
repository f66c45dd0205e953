"""`toolfold connect`: add the gateway or the proxy to another program's settings, or undo that."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from toolfold.cli.app import EXIT_FAILED, Invocation
from toolfold.cli.connect_changes import (
    format_file_option,
    print_difference,
    print_file_notes,
    undo_change,
)
from toolfold.cli.output import escape_text, format_count, print_line, print_note, print_warning
from toolfold.cli.server_commands import (
    changing_settings,
    confirm,
    print_server,
    read_new_listings,
    restrict_to_owner,
    server_key,
    yes_option,
)
from toolfold.cli.shared_database import use_database
from toolfold.core.errors import ConfigError, join_names
from toolfold.mcp.importing import CLIENTS, ImportResult
from toolfold.safety.approval.safe_text import make_visible

if TYPE_CHECKING:
    from toolfold.cli.connecting import ChangeLog, ClientFile, FileChange, GatewayAccess, ProgramName
    from toolfold.config import Config
    from toolfold.mcp.importing import ImportCandidate
    from toolfold.mcp.importing.import_types import ClientName

_MAX_LISTED_SERVERS = 8
# Variables that decide where the gateway looks for its settings. Not every client passes them on.
_DIRECTORY_VARIABLES = (
    "TOOLFOLD_HOME",
    "TOOLFOLD_CONFIG",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
)
_CLIENT_NOTES: Mapping[ClientName, str] = {
    "codex": "Codex asks before each tool_call. To leave approval to Toolfold only, add to config.toml:\n"
    '    [mcp_servers.{name}.tools.tool_call]\n    approval_mode = "approve"',
    "claude-code": "Claude Code asks before each new tool. To leave approval to Toolfold only, allow"
    " mcp__{name} in its /permissions.",
    "gemini": "Gemini CLI asks before each new tool. To leave approval to Toolfold only, add"
    ' "trust": true to the entry. It starts servers only in directories that you trust.',
    "opencode": "opencode runs tools without asking: calls that need approval are refused unless"
    " you allow them with `toolfold approvals`.",
}


@dataclass(frozen=True, slots=True)
class _ConnectOptions:
    """Options of `toolfold connect`."""

    client: ClientName
    name: str
    yes: bool
    uvx: bool
    url: str
    token_variable: str
    move_servers: bool | None
    """None to ask, if there is a terminal."""
    file: Path | None = None
    """The settings file to change; by default the program's own."""


@dataclass(frozen=True, slots=True)
class _MovedServers:
    """MCP servers that are moved from a program's settings to Toolfold."""

    candidates: Sequence[ImportCandidate] = ()
    names: tuple[str, ...] = ()
    """Names of the user's servers in the program's file."""
    of_project: list[str] = field(default_factory=list)
    """Names of the servers for the current project."""


@click.command("connect")
@click.argument("client", metavar="PROGRAM", type=click.Choice([*CLIENTS, "aider"]))
@click.option(
    "--name",
    default="toolfold",
    show_default=True,
    help="Name of the Toolfold entry in the program's settings.",
)
@click.option(
    "--proxy",
    is_flag=True,
    help="Send the program's model requests through Toolfold instead of adding MCP tools to it.",
)
@click.option("--uvx", is_flag=True, help="Start Toolfold with `uvx toolfold`.")
@click.option(
    "--http",
    "url",
    default="",
    metavar="URL",
    help="Connect to a gateway or, with --proxy, to a proxy that was started with `toolfold serve`.",
)
@click.option(
    "--token-env",
    default="",
    metavar="NAME",
    help="Environment variable that holds the access token for --http or --proxy.",
)
@click.option(
    "--replace/--keep",
    "move_servers",
    default=None,
    help="Move the MCP servers in the program's settings to Toolfold, or leave them there. Default: ask.",
)
@click.option(
    "--undo",
    is_flag=True,
    help="Restore the program's settings file as it was before the program was connected.",
)
@click.option(
    "--keep-changes",
    is_flag=True,
    help="With --undo: keep other changes made to the settings file since the program was connected.",
)
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    help="Change this file instead of the program's default settings file.",
)
@yes_option
@click.pass_obj
def command(
    invocation: Invocation,
    client: ProgramName,
    name: str,
    proxy: bool,
    uvx: bool,
    url: str,
    token_env: str,
    move_servers: bool | None,
    undo: bool,
    keep_changes: bool,
    file: Path | None,
    yes: bool,
) -> int:
    """Add Toolfold to another program's settings: to its MCP servers, or with --proxy as its model API.

    PROGRAM is claude-desktop, claude-code, cursor, vscode, windsurf, codex, gemini, opencode or goose; with
    --proxy, it is claude-code, codex, opencode, goose or aider.

    The change is shown and written only after you confirm it. A backup of the file is stored next to it;
    --undo restores the file.
    """
    from toolfold.cli.connect_proxy import ProxyOptions, connect_proxy, undo_proxy
    from toolfold.cli.connecting import ChangeLog, require_client

    chosen = file.absolute() if file else None
    if proxy:
        if uvx or move_servers or name != "toolfold":
            raise click.UsageError("--proxy cannot be combined with --uvx, --replace or --name")
        _validate_undo(undo=undo, keep_changes=keep_changes, has_options=bool(url or token_env))
        way = ProxyOptions(client, chosen, url, token_env, yes)
        config = invocation.load_config()
        return undo_proxy(config, way, keep_changes=keep_changes) if undo else connect_proxy(config, way)
    options = _ConnectOptions(require_client(client), name, yes, uvx, url, token_env, move_servers, chosen)
    _validate_options(options, undo=undo, keep_changes=keep_changes)
    config = invocation.load_config()
    steps = ChangeLog(connections_file(config))
    if undo:
        step = steps.last_change(client, chosen)
        title = CLIENTS[options.client].title
        return undo_change(config, steps, step, title=title, yes=yes, keep_changes=keep_changes)
    return _connect(invocation, config, steps, chosen or default_file(config, options.client), options)


def connections_file(config: Config) -> Path:
    """Return the path of the file that records which programs were connected to the gateway."""
    return config.paths.state_dir / "connected.json"


def gateway_urls(config: Config) -> list[str]:
    """Return the URLs of gateways on this machine: the configured URL, and the URLs in connected programs."""
    from toolfold.cli.connecting import ChangeLog, find_url
    from toolfold.serving.gateway.http_app import is_loopback

    host = config.gateway.host
    addresses = [f"http://{f'[{host}]' if ':' in host else host}:{config.gateway.port}/mcp"]
    with suppress(ConfigError, ValueError):  # `toolfold doctor` reports an unreadable record
        recorded = [find_url(each.entry) for each in ChangeLog(connections_file(config)).list_changes()]
        # A gateway on another machine is treated like any other server.
        addresses += [each for each in recorded if is_loopback(urlsplit(each).hostname or "")]
    return addresses


def home_directory(config: Config) -> Path:
    """Return the home directory, below which other programs store their settings."""
    return Path(config.environment.get("HOME") or Path.home())


def default_file(config: Config, client: ClientName) -> Path:
    """Return the file in which a program stores its user's MCP servers."""
    from toolfold.mcp.importing import user_config_file

    return user_config_file(
        client, home=home_directory(config), platform=sys.platform, environment=config.environment
    )


def _validate_options(options: _ConnectOptions, *, undo: bool, keep_changes: bool) -> None:
    from toolfold.mcp.importing import normalise_server_name

    if normalise_server_name(options.name) != options.name:
        raise click.UsageError(
            f"--name: {options.name!r} is not a valid name of an entry."
            f" Try {normalise_server_name(options.name)!r}."
        )
    has_options = bool(options.url or options.move_servers or options.uvx or options.token_variable)
    _validate_undo(undo=undo, keep_changes=keep_changes, has_options=has_options)
    if options.uvx and options.url:
        raise click.UsageError(
            "use either --uvx, which starts a gateway, or --http, which connects to a running gateway"
        )
    if options.token_variable and not options.url:
        raise click.UsageError(
            "--token-env can be used only with --http: a gateway started by the program needs no token"
        )
    if options.url:
        validate_url(options.url, options.token_variable)


def _validate_undo(*, undo: bool, keep_changes: bool, has_options: bool) -> None:
    if keep_changes and not undo:
        raise click.UsageError("--keep-changes can be used only with --undo")
    if undo and has_options:
        raise click.UsageError("--undo cannot be combined with --http, --replace, --uvx or --token-env")


def validate_url(url: str, variable: str) -> None:
    """Raise UsageError if a gateway's URL, or the environment variable with its token, cannot be used."""
    from toolfold.serving.gateway.http_app import is_loopback

    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_address = False
    if not is_address:
        raise click.UsageError("--http needs a URL such as http://127.0.0.1:8765/mcp")
    if parts.password or parts.username:
        raise click.UsageError("the URL must not contain a user name or password; use --token-env instead")
    if variable and not (variable.isidentifier() and variable.isascii()):
        raise click.UsageError("--token-env needs the name of an environment variable, not the token itself")
    if not variable and not is_loopback(parts.hostname or ""):
        print_warning(
            "a gateway on another machine requires a token: create one there with `toolfold token add NAME`,"
            " then use --token-env"
        )


def warn_about_missing_token(config: Config, url: str, variable: str) -> None:
    """Print a warning if the gateway at the URL needs a token, but no variable with a token is given."""
    from toolfold.serving.gateway.client_tokens import open_tokens

    if not url or variable or config.gateway.allow_anonymous:
        return
    if open_tokens(config, use_database(config)).are_in_use():
        print_warning(
            "the gateway requires a token: create one with `toolfold token add NAME`, then use --token-env"
        )


def _connect(
    invocation: Invocation, config: Config, steps: ChangeLog, file: Path, options: _ConnectOptions
) -> int:
    from toolfold.cli.connecting import build_content, build_entry, open_client_file, reopen_client_file

    warn_about_missing_token(config, options.url, options.token_variable)
    title = CLIENTS[options.client].title
    way = _build_connection(invocation, config, options)
    original = open_client_file(options.client, file)
    may_ask = options.move_servers is None and not options.yes and sys.stdin.isatty()
    moves = _MovedServers()
    if options.move_servers or may_ask:
        moves = _select_servers_to_move(config, original, way, options)
    if may_ask and moves.candidates and not _ask_to_move(moves.candidates, title):
        moves = _MovedServers()
    moving, project = moves.candidates, config.paths.project_dir
    entry = build_entry(
        options.client, options.name, replace(way, passed_variables=_required_variables(config, moving))
    )
    of_projects = {str(project): moves.of_project} if moves.of_project else {}
    removals = {directory: dict.fromkeys(names) for directory, names in of_projects.items()}
    content = build_content(original, options.name, entry, dict.fromkeys(moves.names), removals)
    if content == original.data:
        print_line(f"{title} is already connected to Toolfold: {escape_text(str(file))}")
        return 0
    print_file_notes(original, title)
    for each in moving:
        print_server(f"{each.name}, moved to Toolfold", each.server.settings, _candidate_remarks(each))
    print_difference(config, original, original.text, content.decode("utf-8-sig"))
    if not confirm(_confirmation_question(moving, file), options.yes):
        print_line("nothing was changed.")
        return EXIT_FAILED
    original = reopen_client_file(original, project)
    content = build_content(original, options.name, entry, dict.fromkeys(moves.names), removals)
    _import_servers(invocation, moving)
    step = steps.apply(
        original,
        content,
        name=options.name,
        entry=entry,
        moved=moves.names,
        moved_of_projects=of_projects,
        imported=tuple(each.name for each in moving),
    )
    if not options.url:  # a gateway elsewhere has servers of its own
        read_new_listings(invocation)
    _print_result(step, options)
    _print_remaining_servers(original, moves, project, options)
    return 0


def _ask_to_move(moving: Sequence[ImportCandidate], title: str) -> bool:
    names = make_visible(join_names([each.name for each in moving], 5))
    return click.confirm(
        f"{title} starts {names} itself, with all their tools. Move them to Toolfold?", default=True, err=True
    )


def _build_connection(invocation: Invocation, config: Config, options: _ConnectOptions) -> GatewayAccess:
    from toolfold.cli.connecting import GatewayAccess, add_gateway_path, current_program, gateway_command

    if options.url:
        return GatewayAccess(url=add_gateway_path(options.url), token_variable=options.token_variable)
    words = gateway_command(current_program(config.environment), with_uvx=options.uvx)
    if invocation.project is not None:
        serve = len(words) - 2
        words = (*words[:serve], "--project", str(invocation.project.absolute()), *words[serve:])
    return GatewayAccess(words, _environment_to_pass(config))


def _environment_to_pass(config: Config) -> dict[str, str]:
    """Return the environment variables that the gateway needs to find its settings."""
    environment, secrets = config.environment, set(config.secret_values())
    given = {name: environment.get(name) for name in _DIRECTORY_VARIABLES}
    found = {name: str(Path(value).absolute()) for name, value in given.items() if value}
    for name, value in sorted(environment.items()):
        if not (name.startswith("TOOLFOLD_") and "__" in name and value):
            continue
        if value in secrets:
            print_warning(
                f"{name} looks like a secret and is not written to the file: set it in the"
                " program's environment"
            )
        else:
            found[name] = value
    return found


def _select_servers_to_move(
    config: Config, original: ClientFile, way: GatewayAccess, options: _ConnectOptions
) -> _MovedServers:
    """Return the MCP servers in a program's settings that the gateway can start instead of the program."""
    from toolfold.mcp.importing import build_candidates, is_gateway

    home, project = home_directory(config), config.paths.project_dir
    answer = original.import_servers(home)
    of_project = (
        original.import_servers(home, project) if original.has_projects else ImportResult(answer.source)
    )
    for unusable in (*answer.rejected, *of_project.rejected):
        name, reason = make_visible(unusable.name), make_visible(unusable.reason)
        print_note(f"{escape_text(name)} is not moved: {escape_text(reason)}")
    for remark in answer.remarks:
        print_note(escape_text(make_visible(remark)))
    addresses = [*gateway_urls(config), way.url]
    own = [
        each
        for each in answer.servers
        if each.name in original.servers
        and each.name != options.name
        and not is_gateway(each.settings, addresses)
    ]
    projects_own = [each for each in of_project.servers if not is_gateway(each.settings, addresses)]
    return _MovedServers(
        build_candidates([*own, *projects_own], config.mcp.servers),
        tuple(each.name for each in own),
        [each.name for each in projects_own],
    )


def _required_variables(config: Config, moving: Sequence[ImportCandidate]) -> tuple[str, ...]:
    from toolfold.cli.connecting import list_required_variables
    from toolfold.config.servers_settings import parse_server_settings

    servers = [
        *config.mcp.servers.values(),
        *(parse_server_settings(each.server.settings) for each in moving),
    ]
    return list_required_variables(each for each in servers if each.enabled)


def _candidate_remarks(candidate: ImportCandidate) -> Sequence[str]:
    from toolfold.mcp.importing import find_literal_secrets

    remarks = list(candidate.server.remarks)
    if candidate.is_known:
        remarks.append("is already configured in Toolfold")
    if candidate.server.name != candidate.name:
        remarks.insert(0, f"its name in the program is {candidate.server.name!r}")
    if secrets := find_literal_secrets(candidate.server.settings):
        remarks.append(
            f"{', '.join(secrets)} contains a secret in plain text, which is copied to Toolfold's settings"
        )
    return remarks


def _confirmation_question(moving: Sequence[ImportCandidate], file: Path) -> str:
    if not moving:
        return f"Change {file}?"
    return f"Approve {format_count(len(moving), 'server')}, and change {file}?"


def _import_servers(invocation: Invocation, moving: Sequence[ImportCandidate]) -> None:
    """Write the MCP servers taken from another program into Toolfold's settings.

    Done before the program's file is changed, so that no server is lost if a later step fails.
    """
    from toolfold.config import set_value
    from toolfold.mcp.importing import find_literal_secrets

    new = [each for each in moving if not each.is_known]
    file = invocation.paths().user_file
    if not new:
        return
    if any(find_literal_secrets(each.server.settings) for each in new):
        restrict_to_owner(file)
    with changing_settings(invocation, file) as record:
        for each in new:
            set_value(file, server_key(each.name), dict(each.server.settings), record=record)
    print_line(f"{format_count(len(new), 'server')} written to {escape_text(str(file))}")


def _print_result(step: FileChange, options: _ConnectOptions) -> None:
    title = CLIENTS[options.client].title
    print_line(f"{title} is connected to Toolfold: {escape_text(step.file)}")
    if step.backup:
        print_line(f"  backup: {escape_text(step.backup)}")
    if options.token_variable:
        print_line(
            f"  set {options.token_variable} in the environment of {title}."
            f" Create its token with: toolfold token add {step.client}"
        )
    undo = f"toolfold connect {step.client} --undo{format_file_option(options.file)}"
    print_line(f"next: restart {title}, then run `toolfold doctor`. To undo: {undo}")


def _print_remaining_servers(
    original: ClientFile, moves: _MovedServers, project: Path, options: _ConnectOptions
) -> None:
    """Print the MCP servers that the connected program still starts directly, in addition to the gateway."""
    remaining = [name for name in original.servers if name != options.name and name not in moves.names]
    remaining += [name for name in original.project_servers(project) if name not in moves.of_project]
    if remaining:
        title = CLIENTS[options.client].title
        names = escape_text(make_visible(", ".join(remaining[:_MAX_LISTED_SERVERS])))
        more = (
            f" and {len(remaining) - _MAX_LISTED_SERVERS} more"
            if len(remaining) > _MAX_LISTED_SERVERS
            else ""
        )
        print_note(
            f"{title} still starts {names}{more} itself, with all their tools."
            f" To move them to Toolfold: toolfold connect {options.client} --replace"
            f"{format_file_option(options.file)}"
        )
    if about := _CLIENT_NOTES.get(options.client):
        print_note(escape_text(about.format(name=options.name)))
