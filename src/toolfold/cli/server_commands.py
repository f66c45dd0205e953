"""Helpers of the commands below `toolfold mcp`: describe, locate, change and test servers.

Text from servers and other programs' files is printed with deceptive characters escaped and secrets redacted.
"""

from __future__ import annotations

import re
import shlex
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.app import Invocation
from toolfold.cli.output import (
    NotFound,
    escape_text,
    format_count,
    print_line,
    print_note,
    print_table,
    print_warning,
    show_spinner,
)
from toolfold.cli.shared_database import use_database
from toolfold.core.errors import ConfigError, closest_names, did_you_mean, join_names
from toolfold.safety.approval.safe_text import make_line_visible, make_visible, shorten_middle

if TYPE_CHECKING:
    from toolfold.config import Config
    from toolfold.config.record import SettingsRecord
    from toolfold.mcp.pool import McpServers
    from toolfold.mcp.tool_listing import Listing
    from toolfold.mcp.tool_names import ToolNames
    from toolfold.mcp.trust import HeldTool, Trust

MAX_PARALLEL_PROBES = 8
MAX_PROBLEMS_SHOWN = 5
"""Maximum number of problems shown per server if several servers are shown."""
_MAX_PROBLEM_CHARS = 600
_LONG_PATH = re.compile(r"(?<!\S)(?:/[^/\s]+){3,}((?:/[^/\s]+){3})(?!\S)")

yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
project_option = click.option(
    "--in-project", is_flag=True, help="Change the project's toolfold.yaml instead of your own settings."
)


@dataclass(frozen=True, slots=True)
class ServerProbe:
    """Result of starting one server and listing its tools."""

    name: str
    listing: Listing | None = None
    held: tuple[HeldTool, ...] = ()
    problem: str = ""
    kind: str = "up"
    """`up` if the server works, otherwise the kind of failure."""
    seconds: float = 0.0
    names: ToolNames | None = None

    def client_name(self, tool: str) -> str:
        """Return the name that clients of the gateway see for a tool of this server."""
        return self.names.names_of(self.name, tool).client if self.names else tool


def server_key(name: str) -> str:
    """Return the settings key of a server, such as `mcp.servers.time`."""
    return f"mcp.servers.{name}"


def confirm(question: str, yes: bool) -> bool:
    """Ask for confirmation; `yes` skips the question. Raises an error if there is no terminal."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise click.ClickException(
            "Confirmation needs a terminal. Check the output above, then repeat with --yes."
        )
    return click.confirm(question, default=False, err=True)


def select_servers(config: Config, names: Sequence[str]) -> list[str]:
    """Return the named servers or, if no names are given, all enabled servers. Raises NotFound."""
    servers = config.mcp.servers
    for name in names:
        if name not in servers:
            raise unknown_server_error(name, servers)
    return list(names) or [name for name, server in servers.items() if server.enabled]


def unknown_server_error(name: str, servers: Mapping[str, Any]) -> NotFound:
    """Return the error for a server that is not configured."""
    near = did_you_mean(closest_names(name, servers, count=1))
    return NotFound(f"there is no MCP server {name!r}.{near} `toolfold mcp list` lists all servers.")


def print_server(heading: str, settings: Mapping[str, Any], remarks: Sequence[str] = ()) -> None:
    """Print a server's settings: the command that it would start, or the URL to connect to."""
    from toolfold.mcp.importing import redact_settings

    print_line(f"[bold]{escape_text(heading)}[/bold]")
    for label, text in _settings_lines(redact_settings(settings)):
        print_line(f"  {label:<9}{escape_text(shorten_middle(make_visible(text)))}")
    for remark in remarks:
        print_line(f"  {'note':<9}{escape_text(make_visible(remark))}")


def summarize_server(settings: Mapping[str, Any], *, short: bool = False) -> str:
    """Return a server's command or URL on one line; `short` shortens long paths."""
    from toolfold.mcp.importing import redact_settings

    _, text = next(_settings_lines(redact_settings(settings)))
    shown = make_visible(text)
    return shorten_middle(_LONG_PATH.sub(r"…\1", shown) if short else shown, 200)


def shorten_problem(problem: str) -> str:
    """Return an error message of limited length that is safe to print."""
    return shorten_middle(make_visible(problem), _MAX_PROBLEM_CHARS)


def _settings_lines(shown: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if shown.get("url"):
        yield "url", f"{shown['url']} ({'sse' if shown.get('transport') == 'sse' else 'http'})"
    else:
        yield "command", shlex.join([shown.get("command", ""), *shown.get("args", ())])
    if shown.get("cwd"):
        yield "cwd", str(shown["cwd"])
    for section, label in (("env", "env"), ("headers", "header")):
        for name, value in shown.get(section, {}).items():
            yield label, f"{name} = {value}"
    for key, label in (("pass_env", "pass env"), ("include", "include"), ("exclude", "exclude")):
        if shown.get(key):
            yield label, ", ".join(map(str, shown[key]))
    if shown.get("enabled") is False:
        yield "state", "disabled"


def dump_settings(settings: Any) -> dict[str, Any]:
    """Return a server's settings as in a settings file, without values equal to the defaults."""
    values: dict[str, Any] = settings.model_dump(mode="json", exclude_defaults=True)
    return values


def settings_file(invocation: Invocation, in_project: bool) -> Path:
    """Return the settings file to change, without loading it, so that an invalid file can be repaired."""
    from toolfold.config import PROJECT_FILE

    paths = invocation.paths()
    return paths.project_file or paths.project_dir / PROJECT_FILE if in_project else paths.user_file


def find_server_file(invocation: Invocation, name: str, in_project: bool) -> Path:
    """Return the settings file, the user's or the project's, that defines a server."""
    from toolfold.config import read_file_value

    own, of_project = settings_file(invocation, False), settings_file(invocation, True)
    for file in (of_project,) if in_project else (own, of_project):
        if read_file_value(file, server_key(name)) is not None:
            return file
    try:
        config = invocation.load_config()
    except ConfigError:  # without a valid configuration, no server is known
        raise unknown_server_error(name, {}) from None
    if name not in config.mcp.servers:
        raise unknown_server_error(name, config.mcp.servers)
    origin = config.origins.get(server_key(name), "")
    raise click.ClickException(
        f"{name!r} cannot be changed with this command because it is defined in {origin}; change it there"
    )


@contextmanager
def changing_settings(invocation: Invocation, file: Path) -> Iterator[SettingsRecord]:
    """Context manager for changing a settings file; yields the log of settings changes.

    A project that was trusted before the change stays trusted.
    """
    from toolfold.config import PROJECT_FILE, get_trust_state, trust_project

    paths = invocation.paths()
    of_project = file.name == PROJECT_FILE and file.parent == paths.project_dir
    before = get_trust_state(file.parent, paths) if of_project else "trusted"
    yield invocation.settings_record()
    if of_project and before == "trusted":
        trust_project(file.parent, paths)
    elif of_project:
        print_warning(
            "servers of a project are used only after you trust the project: toolfold plugins trust"
        )


def restrict_to_owner(file: Path) -> None:
    """Make a file that is about to contain secrets readable by its owner only."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o600)
    mode = file.stat().st_mode
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        file.chmod(stat.S_IMODE(mode) & stat.S_IRWXU)
        print_note(f"{escape_text(str(file))} is now readable by you only, because it contains secrets.")


@contextmanager
def open_server_pool(config: Config, names: Sequence[str]) -> Iterator[McpServers]:
    """Open a pool that has only the named servers, all enabled and none started yet.

    It declares the same client capabilities as the gateway. Some servers list fewer tools to a client that
    does not support elicitation, and that listing would be pinned.
    """
    from toolfold.core.registry import Registry
    from toolfold.core.types import FrozenDict
    from toolfold.mcp.pool import McpServers

    chosen = {name: config.mcp.servers[name].model_copy(update={"enabled": True}) for name in names}
    block = config.mcp.model_copy(update={"servers": FrozenDict(chosen), "enabled": True})
    alone = config.model_copy(update={"mcp": block})
    pool = McpServers(alone, Registry(), trust=load_trust(config, names), behind_gateway=True)
    try:
        yield pool
    finally:
        pool.close()


def load_trust(config: Config, exclude: Sequence[str]) -> Trust:
    """Load the trust policy for MCP servers, with the cached tools of all servers except `exclude`.

    The policy compares tool names with these tools, to detect imitations.
    """
    from toolfold.mcp.listing_cache import ListingCache
    from toolfold.mcp.trust import Trust

    trust, cache = (
        Trust.from_config(config, use_database(config)),
        ListingCache(config.paths.cache_dir / "mcp"),
    )
    for name, server in config.mcp.servers.items():
        if name not in exclude and server.enabled and (found := cache.read(name, server)):
            trust.check_tools(name, server.trust, found[0].tools)
    return trust


def load_tool_names(config: Config, extra: Sequence[str] = ()) -> ToolNames:
    """Return the tool names that clients of the gateway see, for all enabled servers and `extra` servers.

    No server is started. Built-in tools and plugins are loaded, because a server's tool cannot have the name
    of one of theirs.
    """
    from toolfold.mcp.tool_names import ToolNames
    from toolfold.runtime.runtime import open_runtime

    disabled = config.model_copy(update={"mcp": config.mcp.model_copy(update={"enabled": False})})
    with (
        redirect_stdout(sys.stderr),
        open_runtime(disabled, build_index=False) as runtime,
    ):  # plugins may print
        taken = runtime.registry.snapshot()
    servers = {name: each for name, each in config.mcp.servers.items() if each.enabled or name in extra}
    prefixes = {name: each.name_prefix(name) for name, each in servers.items()}
    return ToolNames(servers, prefixes=prefixes, taken=taken, for_clients=True)


def probe_servers(config: Config, names: Sequence[str]) -> list[ServerProbe]:
    """Start the servers and list their tools, several in parallel."""
    pending = list(names)
    tool_names = load_tool_names(config, names)

    def probe(name: str) -> ServerProbe:
        try:
            return replace(_probe_server(pool, name), names=tool_names)
        finally:
            pending.remove(name)
            spinner.update(describe_pending())

    def describe_pending() -> str:
        waiting = f"waiting for {escape_text(join_names(pending, 3))}"
        return waiting if len(names) == 1 else f"{len(names) - len(pending)}/{len(names)} servers, {waiting}"

    with (
        show_spinner(describe_pending()) as spinner,
        ThreadPoolExecutor(MAX_PARALLEL_PROBES) as threads,
        open_server_pool(config, names) as pool,  # closed before the threads, so that Ctrl-C does not hang
    ):
        return list(threads.map(probe, names))


def read_new_listings(invocation: Invocation, names: Sequence[str] = (), *, quiet: bool = False) -> None:
    """Start the servers that never listed their tools, and store their lists for the first client.

    `names` limits it to these servers. A server that cannot be started is reported; with `quiet`, nothing is
    printed.
    """
    from toolfold.mcp.listing_cache import ListingCache

    config = invocation.load_config(quiet=True)
    cache = ListingCache(config.paths.cache_dir / "mcp")
    servers = config.mcp.servers if config.mcp.enabled else {}
    new = [
        name
        for name, each in servers.items()
        if each.enabled and (name in names or not names) and cache.read(name, each) is None
    ]
    probes = probe_servers(config, new) if new else []
    if probes and not quiet:
        print_probes(probes, whole=False)


def _probe_server(pool: McpServers, name: str) -> ServerProbe:
    from toolfold.mcp.faults import ServerFailed

    try:
        listing = pool.refresh_listing(name)
    except ServerFailed as error:
        return ServerProbe(name, problem=str(error), kind=error.kind)
    except ConfigError as error:
        return ServerProbe(name, problem=f"MCP server {name!r} could not be checked: {error}", kind="failed")
    seconds = next((each.seconds for each in pool.states() if each.name == name), 0.0)
    return ServerProbe(name, listing, pool.held_tools(name), seconds=seconds)


def print_probes(probes: Sequence[ServerProbe], *, whole: bool) -> None:
    """Print a table of tested servers and their problems; with `whole`, also all their tools."""
    print_table(
        format_count(len(probes), "server"),
        ("server", "state", "#tools", "#held", "protocol", "#seconds"),
        (
            (
                each.name,
                each.kind,
                str(len(each.listing.tools)) if each.listing else "",
                str(len(each.held) or ""),
                each.listing.protocol if each.listing else "",
                f"{each.seconds:.1f}" if each.listing else "",
            )
            for each in probes
        ),
        no_wrap="server",
    )
    for each in probes:
        if each.problem:
            print_line(f"[red]✗[/red] {escape_text(shorten_problem(each.problem))}")
        if each.listing and (whole or each.held):
            print_tools(each)
        elif each.listing:
            print_problems(each.name, each.listing.problems)


def print_tools(probe: ServerProbe) -> None:
    """Print a server's tools and the problems found in its tool list."""
    listing = probe.listing
    if listing is None:
        return
    held = {each.tool.name: each for each in probe.held}
    print_table(
        f"{probe.name}: {format_count(len(listing.tools), 'tool')}",
        ("tool", "description", ""),
        (
            (
                make_line_visible(probe.client_name(offer.name)),
                _first_words(offer.description),
                held[offer.name].reason if offer.name in held else "",
            )
            for offer in listing.tools
        ),
        no_wrap="tool",
    )
    extras = [
        word for word, has in (("resources", listing.has_resources), ("prompts", listing.has_prompts)) if has
    ]
    if extras:
        print_line(f"it also offers {' and '.join(extras)}.")
    print_problems(probe.name, listing.problems, limit=len(listing.problems))
    for each in probe.held:
        print_warning(make_line_visible(f"held: {each.describe(probe.client_name(each.tool.name))}"))
    if held:
        print_line(
            f"held tools are not used until you review them: toolfold mcp review {escape_text(probe.name)}"
        )


def list_destructive_tools(probe: ServerProbe) -> list[str]:
    """Return the names of tools whose annotations declare that they can destroy data."""
    from toolfold.core.types import Effect
    from toolfold.safety.approval.annotations import effects_of_annotations

    offers = probe.listing.tools if probe.listing else ()
    return [
        probe.client_name(each.name)
        for each in offers
        if Effect.DESTRUCTIVE in effects_of_annotations(each.annotations)
    ]


def print_problems(server: str, problems: Sequence[str], *, limit: int = MAX_PROBLEMS_SHOWN) -> None:
    """Print warnings about problems in a server's tool list."""
    for problem in problems[:limit]:
        print_warning(make_line_visible(f"{server}: {problem}"))
    if len(problems) > limit:
        print_warning(
            f"{server}: {len(problems) - limit:,} more problems; `toolfold mcp test {server}` shows them"
        )


def _first_words(text: str) -> str:
    line = " ".join(make_visible(text[:1_000]).split())
    return line if len(line) <= 100 else f"{line[:99]}…"
