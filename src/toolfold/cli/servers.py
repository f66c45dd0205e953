"""MCP servers at a terminal: what one is, where it is written down, and how it fares when it is asked.

Common to the commands below `toolfold mcp`. What a server or a stranger's file says is shown with its
deceptive characters spelled out, and without secrets.
"""

from __future__ import annotations

import re
import shlex
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolfold.approval.visible import brief, visible, visible_line
from toolfold.cli.app import Invocation
from toolfold.cli.show import NotFound, counted, listed, note, out, plain, table, warn, working
from toolfold.errors import ConfigError, did_you_mean, nearest

if TYPE_CHECKING:
    from toolfold.config import Config
    from toolfold.config.record import SettingsRecord
    from toolfold.sources.mcp.offers import Listing
    from toolfold.sources.mcp.pool import McpServers
    from toolfold.sources.mcp.trust import Held

MOST_AT_ONCE = 8
MAX_PROBLEMS_SHOWN = 5
"""For each server, where several servers are shown."""
_LONGEST_PROBLEM = 600
_LONG_PATH = re.compile(r"(?<!\S)(?:/[^/\s]+){3,}((?:/[^/\s]+){3})(?!\S)")

yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
project_option = click.option(
    "--in-project", is_flag=True, help="Write the project's toolfold.yaml instead of your own file."
)


@dataclass(frozen=True, slots=True)
class Probe:
    """What became of asking one server for its tools."""

    name: str
    listing: Listing | None = None
    held: tuple[Held, ...] = ()
    problem: str = ""
    kind: str = "up"
    """`up`, or what went wrong, in the word the table of faults has for it."""
    seconds: float = 0.0


def key_of(name: str) -> str:
    """The key of a server in the settings."""
    return f"mcp.servers.{name}"


def agreed(question: str, yes: bool) -> bool:
    """A person's word; without a terminal, an error that says what to do."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise click.ClickException("This needs a terminal. Look at the above, then repeat it with --yes.")
    return click.confirm(question, default=False, err=True)


def known(config: Config, names: Sequence[str]) -> list[str]:
    """The servers of these names, or all that are switched on."""
    servers = config.mcp.servers
    for name in names:
        if name not in servers:
            raise unknown(name, servers)
    return list(names) or [name for name, server in servers.items() if server.enabled]


def unknown(name: str, servers: Mapping[str, Any]) -> NotFound:
    """The error for a server that is not there."""
    near = did_you_mean(nearest(name, servers, count=1))
    return NotFound(f"there is no MCP server {name!r}.{near} `toolfold mcp list` shows those there are.")


def describe(heading: str, settings: Mapping[str, Any], remarks: Sequence[str] = ()) -> None:
    """What would be started or reached, line by line. `settings` are as a file has them."""
    from toolfold.sources.mcp.importing import veiled

    out(f"[bold]{plain(heading)}[/bold]")
    for label, text in _lines(veiled(settings)):
        out(f"  {label:<9}{plain(brief(visible(text)))}")
    for remark in remarks:
        out(f"  {'note':<9}{plain(visible(remark))}")


def summary(settings: Mapping[str, Any], *, short: bool = False) -> str:
    """What it is, in one line; `short` leaves the folders of long paths out."""
    from toolfold.sources.mcp.importing import veiled

    _, text = next(_lines(veiled(settings)))
    shown = visible(text)
    return brief(_LONG_PATH.sub(r"…\1", shown) if short else shown, 200)


def told(problem: str) -> str:
    """What went wrong, for a person's eyes and not too long."""
    return brief(visible(problem), _LONGEST_PROBLEM)


def _lines(shown: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if shown.get("url"):
        yield "reaches", f"{shown['url']} ({'sse' if shown.get('transport') == 'sse' else 'http'})"
    else:
        yield "runs", shlex.join([shown.get("command", ""), *shown.get("args", ())])
    if shown.get("cwd"):
        yield "in", str(shown["cwd"])
    for section, label in (("env", "given"), ("headers", "sends")):
        for name, value in shown.get(section, {}).items():
            yield label, f"{name} = {value}"
    for key, label in (("pass_env", "passed"), ("include", "only"), ("exclude", "without")):
        if shown.get(key):
            yield label, ", ".join(map(str, shown[key]))
    if shown.get("enabled") is False:
        yield "state", "switched off"


def written(settings: Any) -> dict[str, Any]:
    """A server's settings in force as a file would have them: what differs from the defaults."""
    said: dict[str, Any] = settings.model_dump(mode="json", exclude_defaults=True)
    return said


def settings_file(invocation: Invocation, in_project: bool) -> Path:
    """The file to change; found without loading it, so that a broken one can be mended."""
    from toolfold.config import PROJECT_FILE

    paths = invocation.paths()
    return paths.project_file or paths.project_dir / PROJECT_FILE if in_project else paths.user_file


def file_of_server(invocation: Invocation, name: str, in_project: bool) -> Path:
    """The settings file that has a server: yours, or the project's. A broken file can be changed too."""
    from toolfold.config import written_value

    own, of_project = settings_file(invocation, False), settings_file(invocation, True)
    for file in (of_project,) if in_project else (own, of_project):
        if written_value(file, key_of(name)) is not None:
            return file
    try:
        config = invocation.config()
    except ConfigError:  # no server is known then
        raise unknown(name, {}) from None
    if name not in config.mcp.servers:
        raise unknown(name, config.mcp.servers)
    origin = config.origins.get(key_of(name), "")
    raise click.ClickException(f"change {name!r} by hand: it stands in {origin}")


@contextmanager
def changing(invocation: Invocation, file: Path) -> Iterator[SettingsRecord]:
    """Change a settings file; gives the record in which to note it.

    A project that was trusted before its owner changed it here stays so.
    """
    from toolfold.config import PROJECT_FILE, trust, trust_state

    paths = invocation.paths()
    of_project = file.name == PROJECT_FILE and file.parent == paths.project_dir
    before = trust_state(file.parent, paths) if of_project else "trusted"
    yield invocation.record()
    if of_project and before == "trusted":
        trust(file.parent, paths)
    elif of_project:
        warn("servers of a project are used once you trust it: toolfold plugins trust")


def keep_private(file: Path) -> None:
    """A file that is about to hold secrets is nobody else's to read."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o600)
    mode = file.stat().st_mode
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        file.chmod(stat.S_IMODE(mode) & stat.S_IRWXU)
        note(f"{plain(str(file))} can now be read by you alone, because it holds secrets.")


@contextmanager
def asked_alone(config: Config, names: Sequence[str]) -> Iterator[McpServers]:
    """Open a pool of these servers only, each switched on and none of them started yet.

    It declares the same client capabilities as the gateway does: some servers list other tools to a client
    that cannot be asked anything, and those would be pinned.
    """
    from toolfold.model import FrozenDict
    from toolfold.registry import Registry
    from toolfold.sources.mcp.pool import McpServers

    chosen = {name: config.mcp.servers[name].model_copy(update={"enabled": True}) for name in names}
    block = config.mcp.model_copy(update={"servers": FrozenDict(chosen), "enabled": True})
    alone = config.model_copy(update={"mcp": block})
    pool = McpServers(alone, Registry(), trust=acquainted(config, names), behind_gateway=True)
    try:
        yield pool
    finally:
        pool.close()


def acquainted(config: Config, but: Sequence[str]) -> Any:
    """The trust in servers, told of what all others offer, so that a name that shadows one is noticed."""
    from toolfold.sources.mcp.kept import ListingCache
    from toolfold.sources.mcp.trust import Trust

    trust, kept = Trust.of(config), ListingCache(config.paths.cache_dir / "mcp")
    for name, server in config.mcp.servers.items():
        if name not in but and server.enabled and (found := kept.read(name, server)):
            trust.sift(name, server.trust, found[0].offers)
    return trust


def probed(config: Config, names: Sequence[str]) -> list[Probe]:
    """Start each of the servers and ask for its tools, several at the same time."""
    waiting = list(names)

    def ask(name: str) -> Probe:
        try:
            return _probe(pool, name)
        finally:
            waiting.remove(name)
            shown.update(f"asking {plain(listed(waiting, 3))}")  # so that one sees who keeps us waiting

    with (
        working(f"asking {plain(listed(names, 3))}") as shown,
        ThreadPoolExecutor(MOST_AT_ONCE) as threads,
        asked_alone(
            config, names
        ) as pool,  # ended first: then nobody waits for what an interrupted one asked
    ):
        return list(threads.map(ask, names))


def _probe(pool: McpServers, name: str) -> Probe:
    from toolfold.sources.mcp.faults import ServerFailed

    try:
        listing = pool.listed_now(name)
    except ServerFailed as error:
        return Probe(name, problem=str(error), kind=error.kind)
    except ConfigError as error:
        return Probe(name, problem=f"MCP server {name!r} cannot be asked: {error}", kind="failed")
    seconds = next((each.seconds for each in pool.states() if each.name == name), 0.0)
    return Probe(name, listing, pool.held(name), seconds=seconds)


def show_tools(probe: Probe) -> None:
    """What a server brings, and what is odd about it."""
    listing = probe.listing
    if listing is None:
        return
    held = {each.offer.name: each for each in probe.held}
    table(
        f"{probe.name}: {counted(len(listing.offers), 'tool')}",
        ("tool", "description", ""),
        (
            (
                visible_line(offer.name),
                _first_words(offer.description),
                held[offer.name].why if offer.name in held else "",
            )
            for offer in listing.offers
        ),
        whole="tool",
    )
    extras = [
        word for word, has in (("resources", listing.has_resources), ("prompts", listing.has_prompts)) if has
    ]
    if extras:
        out(f"it also has {' and '.join(extras)}.")
    show_problems(probe.name, listing.problems, most=len(listing.problems))
    for each in probe.held:
        warn(visible_line(f"held: {each}"))
    if held:
        out(f"held tools are not used until you have looked at them: toolfold mcp review {plain(probe.name)}")


def tools_that_destroy(probe: Probe) -> list[str]:
    """The tools of a server that declare that they can destroy data."""
    from toolfold.approval.annotations import effects_of_annotations
    from toolfold.model import Effect

    offers = probe.listing.offers if probe.listing else ()
    return [each.name for each in offers if Effect.DESTRUCTIVE in effects_of_annotations(each.annotations)]


def show_problems(server: str, problems: Sequence[str], *, most: int = MAX_PROBLEMS_SHOWN) -> None:
    """Warn of what is wrong with a server's list of tools; what is usable of it is used."""
    for problem in problems[:most]:
        warn(visible_line(f"{server}: {problem}"))
    if len(problems) > most:
        warn(f"{server}: {len(problems) - most:,} more problems; `toolfold mcp test {server}` shows them")


def _first_words(text: str) -> str:
    line = " ".join(visible(text[:1_000]).split())
    return line if len(line) <= 100 else f"{line[:99]}…"
