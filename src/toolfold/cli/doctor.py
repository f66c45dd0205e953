"""`toolfold doctor`: what is set up, what answers, what is slow, what is unsafe, and what to do about it.

Starts every MCP server, all at once and not for long, and changes no setting. Says where a secret stands, and
never what it is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolfold.approval.visible import brief, visible
from toolfold.cli.app import FAILED, Invocation, json_option
from toolfold.cli.connect import home_of
from toolfold.cli.doctor_clients import find_clients, find_duplicates, find_gateway
from toolfold.cli.findings import COLOURS, SIGNS, Finding
from toolfold.cli.servers import asked_alone, key_of, written
from toolfold.cli.show import as_json, counted, listed, out, plain, working
from toolfold.errors import ConfigError, ToolfoldError

if TYPE_CHECKING:
    from toolfold.config import Config
    from toolfold.environments.backend import Readiness
    from toolfold.redaction import Redaction
    from toolfold.sources.mcp.pool import McpServers

SLOW_SECONDS = 5.0
_MOST_AT_ONCE = 64
_MOST_HEARD = 10
_LONGEST = 500
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_PLAIN_WORD = re.compile(r"[A-Za-z][a-z]{0,11}")


@dataclass(frozen=True, slots=True)
class Health:
    """How one server fares."""

    name: str
    state: str
    """`up`, or the word the table of faults has for what is wrong."""
    seconds: float = 0.0
    tools: int = 0
    held: int = 0
    protocol: str = ""
    problem: str = ""
    advice: str = ""


@click.command("doctor")
@click.option(
    "--seconds",
    default=15.0,
    show_default=True,
    type=click.FloatRange(0.1, 600),
    help="How long to wait for servers and backends.",
)
@json_option
@click.pass_obj
def command(invocation: Invocation, seconds: float, as_json_: bool) -> int:
    """See what is configured, what answers, what is slow, what is unsafe, and what to do.

    Starts every MCP server to ask for its tools. The exit code is 1 where something fails.
    """
    from toolfold.redaction import Redaction

    try:
        config = invocation.config(quiet=True)
    except ConfigError as error:
        findings = [Finding("fail", "settings", str(error), "mend it: toolfold config edit")]
        return _told(findings, [], Redaction(), as_json_)
    clean_advice = _redaction(config, in_advice=True)
    with working("looking at everything…"), _heard(config) as heard, ThreadPoolExecutor(1) as aside:
        places = aside.submit(lambda: asyncio.run(_places(config, seconds)))
        servers, problems = _asked(config, seconds)
        servers = [replace(each, advice=clean_advice(each.advice)) for each in servers]
        findings = [
            *_settings(config),
            *_changed_in_calls(config),
            *problems,
            *(each for server in servers for each in _of_server(server)),
            *find_duplicates(config),
            *_told_meanwhile(heard),
            *_trusting(config),
            *find_clients(config),
            *find_gateway(config),
            *_listing(config, servers),
            *_approval(config),
            *_terminal(config, places.result(), clean_advice),
            *_secrets(config),
            *_files(config),
        ]
    return _told(findings, servers, _redaction(config), as_json_)


def _settings(config: Config) -> Iterator[Finding]:
    from toolfold.config import trust_state

    file, project = config.paths.user_file, config.paths.project_file
    count = counted(len(config.mcp.servers), "MCP server")
    where = f"your settings are in {file}" if file.exists() else f"no settings yet ({file})"
    yield Finding("ok", "settings", f"{count}; {where}")
    for warning in config.warnings:
        yield Finding("warn", "settings", warning)
    if project is None or config.project_trusted:
        return
    if trust_state(config.paths.project_dir, config.paths) == "changed":
        what = f"{project} has changed since you trusted it, and grants nothing until you do again"
        yield Finding("warn", "project", what, "look at it, then: toolfold plugins trust")
    else:
        yield Finding("ok", "project", f"{project} is not trusted, and grants nothing")


def _changed_in_calls(config: Config) -> Iterator[Finding]:
    """Settings that something else than the user or Toolfold has changed."""
    from toolfold.config.record import SettingsRecord

    try:
        pending = SettingsRecord(config.paths.state_dir).pending()
    except ConfigError as error:
        yield Finding("fail", "settings", str(error))
        return
    for change in pending.values():
        advice = "in your own terminal: toolfold config accept, or toolfold config restore"
        yield Finding("fail" if change.binding else "warn", "settings", str(change), advice)


def _asked(config: Config, seconds: float) -> tuple[list[Health], list[Finding]]:
    """Every server that is switched on, all at the same time."""
    names = [name for name, server in config.mcp.servers.items() if server.enabled]
    if not config.mcp.servers:
        return [], [Finding("warn", "servers", "there are no MCP servers", "toolfold mcp import, or mcp add")]
    if not config.mcp.enabled:
        what = "mcp.enabled is false, so that no server is used"
        return [], [Finding("warn", "servers", what, "toolfold config set mcp.enabled true")]
    if not names:
        return [], [Finding("warn", "servers", "every MCP server is switched off", "toolfold mcp list")]
    try:
        with (
            ThreadPoolExecutor(min(len(names), _MOST_AT_ONCE)) as threads,
            asked_alone(config, names) as pool,  # ended first: an interruption waits for no server
        ):
            return list(threads.map(lambda name: _health(pool, name, seconds), names)), []
    except ConfigError as error:
        return [], [Finding("fail", "servers", str(error))]


def _health(pool: McpServers, name: str, seconds: float) -> Health:
    from toolfold.sources.mcp.faults import ServerFailed

    try:
        listing = pool.listed_now(name, seconds)
    except ServerFailed as error:
        return Health(name, error.kind, problem=error.problem, advice=error.advice)
    except ConfigError as error:
        return Health(name, "failed", problem=f"cannot be asked: {error}")
    took = next((each.seconds for each in pool.states() if each.name == name), 0.0)
    return Health(name, "up", took, len(listing.offers), len(pool.held(name)), listing.protocol)


def _of_server(server: Health) -> Iterator[Finding]:
    if server.state != "up":
        login = f"toolfold mcp login {server.name}" if server.state == "needs-login" else ""
        advice = login or server.advice or f"toolfold mcp logs {server.name}"
        yield Finding("fail", "servers", f"{server.name} ({server.state}) {server.problem}", advice)
        return
    tools = counted(server.tools, "tool")
    what = f"{server.name} is up after {server.seconds:.1f} s: {tools}, protocol {server.protocol}"
    if server.seconds > SLOW_SECONDS:
        advice = "does it download itself each time? Install it, and name it by its path."
        yield Finding("warn", "servers", f"{what}. That is slow", advice)
    else:
        yield Finding("ok", "servers", what)
    if server.held:
        held = f"{counted(server.held, 'tool')} of {server.name} held until you have looked"
        yield Finding("warn", "review", held, f"toolfold mcp review {server.name}")


@contextmanager
def _heard(config: Config) -> Iterator[list[str]]:
    """What the log is warned of meanwhile, which becomes findings; a person who wants the log has it too."""
    messages: list[str] = []
    handler, log = logging.Handler(logging.WARNING), logging.getLogger("toolfold")
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    before = log.propagate
    log.propagate = config.log_level in ("debug", "info")
    log.addHandler(handler)
    try:
        yield messages
    finally:
        log.removeHandler(handler)
        log.propagate = before


def _told_meanwhile(heard: Sequence[str]) -> Iterator[Finding]:
    messages = list(dict.fromkeys(heard))
    for message in messages[:_MOST_HEARD]:
        yield Finding("warn", "log", message)
    if len(messages) > _MOST_HEARD:
        yield Finding("warn", "log", f"and {len(messages) - _MOST_HEARD} more", "toolfold mcp test")


def _trusting(config: Config) -> Iterator[Finding]:
    for name, server in config.mcp.servers.items():
        if server.enabled and server.trust == "off":
            what = f"{name} may change its tools unseen (trust: off)"
            yield Finding("warn", "trust", what, f"toolfold config set {key_of(name)}.trust pin")
        if server.enabled and server.sampling == "allow":
            what = f"{name} may use your model unasked (sampling: allow)"
            yield Finding("warn", "trust", what, f"toolfold config set {key_of(name)}.sampling ask")


def _listing(config: Config, servers: Sequence[Health]) -> Iterator[Finding]:
    """What a client of the gateway is shown, with the servers that are up."""
    from toolfold.gateway.listing_size import measure_listing
    from toolfold.gateway.server import open_session
    from toolfold.model import FrozenDict
    from toolfold.runtime import open_runtime

    up = {each.name: config.mcp.servers[each.name] for each in servers if each.state == "up"}
    if not up:
        return
    block = config.mcp.model_copy(update={"servers": FrozenDict(up)})
    try:
        with (
            redirect_stdout(sys.stderr),  # what a plugin prints must not end up in the report
            open_runtime(config.model_copy(update={"mcp": block}), behind_gateway=True) as runtime,
        ):
            size = measure_listing(open_session(runtime, config.gateway.toolsets), exact=True)
    except ToolfoldError as error:
        yield Finding("fail", "gateway", f"what clients are shown cannot be measured: {error}")
        return
    yield Finding("ok", "gateway", f"to clients, {size}")


def _approval(config: Config) -> Iterator[Finding]:
    if config.approval.mode == "off":
        what = "nobody is asked before a dangerous call runs (approval.mode: off)"
        yield Finding("warn", "approval", what, "toolfold config set approval.mode manual")
    else:
        yield Finding("ok", "approval", f"dangerous calls are asked about ({config.approval.mode})")


async def _places(config: Config, seconds: float) -> dict[str, Readiness]:
    """The place where commands run, and the safer one beside it."""
    names = dict.fromkeys([config.terminal.backend, "sandbox"])
    found = await asyncio.gather(*(_place(config, name, seconds) for name in names))
    return dict(zip(names, found, strict=True))


async def _place(config: Config, name: str, seconds: float) -> Readiness:
    from toolfold.environments.backend import Readiness
    from toolfold.environments.choosing import backend
    from toolfold.environments.trying import looked_at
    from toolfold.errors import EnvironmentFailed

    try:
        async with asyncio.timeout(seconds):
            return await looked_at(backend(config, name).check)
    except TimeoutError:
        return Readiness(False, f"it does not answer within {seconds:g} s", f"toolfold env test {name}")
    except (ConfigError, EnvironmentFailed) as error:
        return Readiness(False, str(error), "toolfold env list")


def _terminal(config: Config, places: dict[str, Readiness], clean_advice: Redaction) -> Iterator[Finding]:
    name = config.terminal.backend
    chosen = places[name]
    if not chosen.available:
        advice = clean_advice(chosen.advice) or "toolfold env list"
        yield Finding(
            "fail", "terminal", f"commands are to run in {name}, and cannot: {chosen.reason}", advice
        )
    elif name != "local":
        yield Finding("ok", "terminal", f"commands run in {name}")
    elif places["sandbox"].available:
        what = "commands run on this machine unconfined, and could run in a sandbox"
        yield Finding("warn", "terminal", what, "toolfold config set terminal.backend sandbox")
    else:
        why = places["sandbox"].reason
        advice = clean_advice(places["sandbox"].advice)
        yield Finding("ok", "terminal", f"commands run on this machine; no sandbox: {why}", advice)


def _secrets(config: Config) -> Iterator[Finding]:
    """Where secrets stand written out: in our settings, and in those of other programs."""
    from toolfold.sources.mcp.importing import existing, literal_secrets, read

    for name, server in config.mcp.servers.items():
        for key in literal_secrets(written(server)):
            what = f"a secret is written out in {key_of(name)}.{key} ({config.origins.get(key_of(name), '')})"
            yield Finding("warn", "secrets", what, "write ${NAME} or ${keyring:service/name} in its place")
    home, project = home_of(config), config.paths.project_dir
    places = existing(home=home, project=project, platform=sys.platform, environment=config.environment)
    for place in places:
        found = read(place, home=home, project=project).found
        names = [each.name for each in found if literal_secrets(each.settings)]
        if names:
            what = f"{place.file} has secrets written out, for {listed(names, 3)}"
            advice = f"toolfold connect {place.client} --replace, then write references in their place"
            yield Finding("warn", "secrets", what, advice)


def _files(config: Config) -> Iterator[Finding]:
    """Files that others may read or write and should not."""
    if os.name != "posix":
        return
    bad = [*_readable(config), *_writable(config)]
    yield from bad or [
        Finding("ok", "files", "what is private can be read, and what steers written, by you alone")
    ]


def _readable(config: Config) -> Iterator[Finding]:
    from toolfold.sources.mcp.importing import literal_secrets

    state = config.paths.state_dir
    private = [state / "gateway" / "tokens.json", state / "connected.json", *_below(state / "oauth")]
    if any(literal_secrets(written(each)) for each in config.mcp.servers.values()):
        private.append(config.paths.user_file)
    for file in private:
        if _mode(file) & _OTHERS:
            yield Finding("fail", "files", f"{file} can be read by others", f"chmod go= {file}")


def _writable(config: Config) -> Iterator[Finding]:
    from toolfold.sources.mcp.lock import LOCK_FILE, lock_file

    paths = config.paths
    locks = [lock_file(config, name) for name in config.mcp.servers]
    steering = [paths.config_dir, paths.user_file, paths.config_dir / LOCK_FILE, *locks, paths.state_dir]
    steering += [
        paths.state_dir / "trust.json",
        config.plugins_folder,
        *([paths.project_file] if paths.project_file else []),
    ]
    for file in dict.fromkeys(steering):
        if _mode(file) & stat.S_IWOTH:
            what = f"{file} can be written by anybody, who may then grant themselves anything"
            yield Finding("fail", "files", what, f"chmod o-w {file}")


def _below(folder: Path) -> list[Path]:
    try:
        return sorted(each for each in folder.iterdir() if each.is_file())
    except OSError:
        return []


def _mode(file: Path) -> int:
    try:
        return stat.S_IMODE(file.stat().st_mode)
    except OSError:
        return 0


def _redaction(config: Config, *, in_advice: bool = False) -> Redaction:
    """Hide the secrets of the settings. `in_advice` leaves plain words, which advice is made of."""
    from toolfold.redaction import Redaction
    from toolfold.sources.mcp.references import secret_values

    known = [
        value
        for server in config.mcp.servers.values()
        for value in secret_values(server, config.environment, keyring=lambda _service, _name: None)
    ]
    secrets = [*config.secret_values(), *known]
    if in_advice:
        secrets = [each for each in secrets if not _PLAIN_WORD.fullmatch(each)]
    return Redaction(secrets, longest=_LONGEST)


def _told(findings: Sequence[Finding], servers: Sequence[Health], redact: Redaction, as_json_: bool) -> int:
    def show_line(text: str) -> str:
        return brief(visible(" ".join(text.split())), _LONGEST)

    def clean(text: str) -> str:
        return show_line(redact(" ".join(text.split())))

    shown = [Finding(each.mark, each.about, clean(each.what), show_line(each.next)) for each in findings]
    failed = any(each.mark == "fail" for each in shown)
    if as_json_:
        states = [
            {**asdict(each), "problem": clean(each.problem), "advice": show_line(each.advice)}
            for each in servers
        ]
        as_json({"ok": not failed, "findings": [asdict(each) for each in shown], "servers": states})
    else:
        _show(shown)
    return FAILED if failed else 0


def _show(findings: Sequence[Finding]) -> None:
    for each in findings:
        colour = COLOURS[each.mark]
        advice = f"  [dim]→ {plain(each.next)}[/dim]" if each.next else ""
        mark = f"[{colour}]{SIGNS[each.mark]} {each.mark:<4}[/{colour}]"
        out(f"{mark}  {each.about:<9} {plain(each.what)}{advice}")
    counts = {mark: sum(each.mark == mark for each in findings) for mark in ("fail", "warn", "ok", "info")}
    out(f"\n{counts['fail']} failed, {counts['warn']} to look at, {counts['ok']} fine")
    urgent = sorted((each for each in findings if each.next), key=lambda each: list(counts).index(each.mark))
    if urgent:
        out(f"next: {plain(urgent[0].next)}")
