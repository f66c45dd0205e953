"""`toolfold doctor`: check settings, servers, clients and file permissions, and suggest fixes.

Starts every MCP server in parallel with a time limit, and changes no setting. Reports where a secret is
stored but never its value.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sqlite3
import stat
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolfold.cli.app import EXIT_FAILED, Invocation, json_option
from toolfold.cli.connect import default_file, home_directory
from toolfold.cli.doctor_clients import check_clients, check_duplicates, check_gateway, check_proxy
from toolfold.cli.doctor_findings import COLOURS, SYMBOLS, DoctorFinding
from toolfold.cli.doctor_proxy import check_proxy_programs
from toolfold.cli.output import escape_text, format_count, print_json, print_line, show_spinner
from toolfold.cli.server_commands import dump_settings, open_server_pool, server_key
from toolfold.core.errors import ConfigError, ToolfoldError, join_names
from toolfold.safety.approval.safe_text import make_visible, shorten_middle

if TYPE_CHECKING:
    from toolfold.config import Config
    from toolfold.mcp.pool import McpServers
    from toolfold.safety.redaction import Redaction
    from toolfold.tools.environments.backend import Readiness

SLOW_START_S = 5.0
_MAX_PARALLEL_SERVERS = 64
_MAX_LOG_FINDINGS = 10
_MAX_TEXT_CHARS = 500
_GROUP_OR_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_PLAIN_WORD = re.compile(r"[A-Za-z][a-z]{0,11}")


@dataclass(frozen=True, slots=True)
class ServerHealth:
    """Result of checking one MCP server."""

    name: str
    state: str
    """`up` if the server works, otherwise the kind of failure."""
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
    help="Time limit for the check of each server or backend, in seconds.",
)
@json_option
@click.pass_obj
def command(invocation: Invocation, seconds: float, as_json: bool) -> int:
    """Check settings, servers, clients and file permissions, and suggest fixes.

    Starts every MCP server to list its tools. The exit code is 1 if a check fails.
    """
    from toolfold.safety.redaction import Redaction

    try:
        config = invocation.load_config(quiet=True)
    except ConfigError as error:
        findings = [DoctorFinding("fail", "settings", str(error), "fix it with: toolfold config edit")]
        return _print_report(findings, [], Redaction(), as_json)
    clean_advice = _build_redaction(config, in_advice=True)
    with (
        show_spinner("running all checks…"),
        _collect_log_warnings(config) as log_messages,
        ThreadPoolExecutor(1) as aside,
    ):
        places = aside.submit(lambda: asyncio.run(_check_backends(config, seconds)))
        servers, problems = _check_servers(config, seconds)
        servers = [replace(each, advice=clean_advice(each.advice)) for each in servers]
        findings = [
            *_check_settings(config),
            *_check_pending_changes(config),
            *problems,
            *(each for server in servers for each in _server_findings(server)),
            *check_duplicates(config),
            *_log_findings(log_messages),
            *_check_trust(config),
            *check_clients(config),
            *check_gateway(config),
            *check_proxy(config),
            *check_proxy_programs(config),
            *_check_listing_size(config, servers),
            *_check_model(config),
            *_check_approval(config),
            *_terminal_findings(config, places.result(), clean_advice),
            *_check_secrets(config),
            *_check_file_permissions(config),
            *_check_store_files(config),
        ]
    return _print_report(findings, servers, _build_redaction(config), as_json)


def _check_settings(config: Config) -> Iterator[DoctorFinding]:
    from toolfold.config import get_trust_state

    file, project = config.paths.user_file, config.paths.project_file
    count = format_count(len(config.mcp.servers), "MCP server")
    where = f"your settings are in {file}" if file.exists() else f"no settings file yet ({file})"
    yield DoctorFinding("ok", "settings", f"{count}; {where}")
    for warning in config.warnings:
        yield DoctorFinding("warn", "settings", warning)
    if project is None or config.project_trusted:
        return
    if get_trust_state(config.paths.project_dir, config.paths) == "changed":
        what = f"{project} has changed since you trusted it and is ignored until you trust it again"
        yield DoctorFinding("warn", "project", what, "review the file, then run: toolfold plugins trust")
    else:
        yield DoctorFinding("ok", "project", f"{project} is not trusted, so its settings are ignored")


def _check_pending_changes(config: Config) -> Iterator[DoctorFinding]:
    """Report settings that were changed during a tool call and not accepted yet."""
    from toolfold.config.record import SettingsRecord

    try:
        pending = SettingsRecord(config.paths.state_dir).list_pending()
    except ConfigError as error:
        yield DoctorFinding("fail", "settings", str(error))
        return
    for change in pending.values():
        advice = "run in your own terminal: toolfold config accept, or toolfold config restore"
        yield DoctorFinding("fail" if change.binding else "warn", "settings", str(change), advice)


def _check_servers(config: Config, seconds: float) -> tuple[list[ServerHealth], list[DoctorFinding]]:
    """Check all enabled MCP servers in parallel, by listing the tools of each."""
    names = [name for name, server in config.mcp.servers.items() if server.enabled]
    if not config.mcp.servers:
        return [], [
            DoctorFinding(
                "warn", "servers", "no MCP servers are configured", "toolfold mcp import, or toolfold mcp add"
            )
        ]
    if not config.mcp.enabled:
        what = "mcp.enabled is false, so no MCP server is used"
        return [], [DoctorFinding("warn", "servers", what, "toolfold config set mcp.enabled true")]
    if not names:
        return [], [
            DoctorFinding("warn", "servers", "every MCP server is disabled", "toolfold mcp enable NAME")
        ]
    try:
        with (
            ThreadPoolExecutor(min(len(names), _MAX_PARALLEL_SERVERS)) as threads,
            open_server_pool(config, names) as pool,  # closed first, so that Ctrl-C does not wait for servers
        ):
            return list(threads.map(lambda name: _check_server(pool, name, seconds), names)), []
    except ConfigError as error:
        return [], [DoctorFinding("fail", "servers", str(error))]


def _check_server(pool: McpServers, name: str, seconds: float) -> ServerHealth:
    from toolfold.mcp.faults import ServerFailed

    try:
        listing = pool.refresh_listing(name, seconds)
    except ServerFailed as error:
        return ServerHealth(name, error.kind, problem=error.problem, advice=error.advice)
    except ConfigError as error:
        return ServerHealth(name, "failed", problem=f"could not be checked: {error}")
    took = next((each.seconds for each in pool.states() if each.name == name), 0.0)
    return ServerHealth(name, "up", took, len(listing.tools), len(pool.held_tools(name)), listing.protocol)


def _server_findings(server: ServerHealth) -> Iterator[DoctorFinding]:
    if server.state != "up":
        login = f"toolfold mcp login {server.name}" if server.state == "needs-login" else ""
        advice = login or server.advice or f"toolfold mcp logs {server.name}"
        yield DoctorFinding("fail", "servers", f"{server.name} ({server.state}) {server.problem}", advice)
        return
    tools = format_count(server.tools, "tool")
    what = f"{server.name} started in {server.seconds:.1f} s: {tools}, protocol {server.protocol}"
    if server.seconds > SLOW_START_S:
        advice = (
            "if its command downloads it (npx, uvx), install it and set the installed program as the command"
        )
        yield DoctorFinding("warn", "servers", f"{what} (slow)", advice)
    else:
        yield DoctorFinding("ok", "servers", what)
    if server.held:
        held = f"{format_count(server.held, 'tool')} of {server.name} held until you review them"
        yield DoctorFinding("warn", "review", held, f"toolfold mcp review {server.name}")


@contextmanager
def _collect_log_warnings(config: Config) -> Iterator[list[str]]:
    """Collect the warnings that are logged in a `with` block, for the report of `toolfold doctor`."""
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


def _log_findings(log_messages: Sequence[str]) -> Iterator[DoctorFinding]:
    messages = list(dict.fromkeys(log_messages))
    for message in messages[:_MAX_LOG_FINDINGS]:
        yield DoctorFinding("warn", "log", message)
    if len(messages) > _MAX_LOG_FINDINGS:
        yield DoctorFinding(
            "warn", "log", f"{len(messages) - _MAX_LOG_FINDINGS} more log warnings", "toolfold mcp test"
        )


def _check_trust(config: Config) -> Iterator[DoctorFinding]:
    for name, server in config.mcp.servers.items():
        if server.enabled and server.trust == "off":
            what = f"{name} can change its tools without your review (trust: off)"
            yield DoctorFinding("warn", "trust", what, f"toolfold config set {server_key(name)}.trust pin")
        if server.enabled and server.sampling == "allow":
            what = f"{name} can use your model without asking you (sampling: allow)"
            yield DoctorFinding("warn", "trust", what, f"toolfold config set {server_key(name)}.sampling ask")


def _check_listing_size(config: Config, servers: Sequence[ServerHealth]) -> Iterator[DoctorFinding]:
    """Report how many tools and tokens a gateway client receives from the servers that work."""
    from toolfold.core.types import FrozenDict
    from toolfold.runtime.runtime import open_runtime
    from toolfold.serving.gateway.listing_size import measure_listing
    from toolfold.serving.gateway.server import open_session

    up = {each.name: config.mcp.servers[each.name] for each in servers if each.state == "up"}
    if not up:
        return
    block = config.mcp.model_copy(update={"servers": FrozenDict(up)})
    try:
        with (
            redirect_stdout(sys.stderr),  # plugins may print; keep that out of the report
            open_runtime(
                config.model_copy(update={"mcp": block}), behind_gateway=True, build_index=False
            ) as runtime,
        ):
            size = measure_listing(open_session(runtime, config.gateway.toolsets), exact=True)
    except ToolfoldError as error:
        yield DoctorFinding(
            "fail", "gateway", f"the size of the tool list for clients cannot be measured: {error}"
        )
        return
    yield DoctorFinding("ok", "gateway", f"tools for clients: {size}")


def _check_model(config: Config) -> Iterator[DoctorFinding]:
    """Report whether a client for the agent's model can be created, without sending it a request."""
    from toolfold.models.model_names import build_client, parse_model_name

    text = config.agent.model
    if not text:
        what = "no model is configured. Only toolfold chat and toolfold run need one"
        yield DoctorFinding("info", "model", what, "toolfold config set agent.model PROVIDER:MODEL")
        return
    try:
        asyncio.run(build_client(parse_model_name(text, config), config).close())
    except ConfigError as error:
        yield DoctorFinding("warn", "model", f"{text} cannot be used: {error.problem}", error.hint)
    except ToolfoldError as error:
        yield DoctorFinding("warn", "model", f"{text} cannot be used: {error}")
    else:
        yield DoctorFinding("ok", "model", f"the agent uses {text}")


def _check_approval(config: Config) -> Iterator[DoctorFinding]:
    if config.approval.mode == "off":
        what = "dangerous calls run without approval (approval.mode: off)"
        yield DoctorFinding("warn", "approval", what, "toolfold config set approval.mode manual")
    else:
        yield DoctorFinding(
            "ok", "approval", f"dangerous calls need approval (approval.mode: {config.approval.mode})"
        )


async def _check_backends(config: Config, seconds: float) -> dict[str, Readiness]:
    """Check the configured terminal backend, and whether the safer `sandbox` backend would work instead."""
    names = dict.fromkeys([config.terminal.backend, "sandbox"])
    found = await asyncio.gather(*(_check_backend(config, name, seconds) for name in names))
    return dict(zip(names, found, strict=True))


async def _check_backend(config: Config, name: str, seconds: float) -> Readiness:
    from toolfold.core.errors import EnvironmentFailed
    from toolfold.tools.environments.backend import Readiness
    from toolfold.tools.environments.environment_factory import build_backend
    from toolfold.tools.environments.trials import check_readiness

    try:
        async with asyncio.timeout(seconds):
            return await check_readiness(build_backend(config, name).check)
    except TimeoutError:
        return Readiness(False, f"no response within {seconds:g} s", f"toolfold env test {name}")
    except (ConfigError, EnvironmentFailed) as error:
        return Readiness(False, str(error), "toolfold env list")


def _terminal_findings(
    config: Config, places: dict[str, Readiness], clean_advice: Redaction
) -> Iterator[DoctorFinding]:
    name = config.terminal.backend
    chosen = places[name]
    if not chosen.available:
        advice = clean_advice(chosen.advice) or "toolfold env list"
        yield DoctorFinding(
            "fail", "terminal", f"the configured backend {name} cannot be used: {chosen.reason}", advice
        )
    elif name != "local":
        yield DoctorFinding("ok", "terminal", f"commands run in the backend {name}")
    elif places["sandbox"].available:
        what = "commands run on this machine without a sandbox, although one is available"
        yield DoctorFinding("warn", "terminal", what, "toolfold config set terminal.backend sandbox")
    else:
        why = places["sandbox"].reason
        advice = clean_advice(places["sandbox"].advice)
        yield DoctorFinding(
            "ok", "terminal", f"commands run on this machine; a sandbox is not available: {why}", advice
        )


def _check_secrets(config: Config) -> Iterator[DoctorFinding]:
    """Report secrets stored as plain text in settings of Toolfold or other programs."""
    from toolfold.mcp.importing import find_config_files, find_literal_secrets, read_client_file

    for name, server in config.mcp.servers.items():
        for key in find_literal_secrets(dump_settings(server)):
            what = (
                f"{server_key(name)}.{key} contains a secret in plain text"
                f" ({config.origins.get(server_key(name), '')})"
            )
            yield DoctorFinding("warn", "secrets", what, "replace it with ${NAME} or ${keyring:service/name}")
    home, project = home_directory(config), config.paths.project_dir
    places = find_config_files(
        home=home, project=project, platform=sys.platform, environment=config.environment
    )
    for place in places:
        found = read_client_file(place, home=home, project=project).servers
        names = [each.name for each in found if find_literal_secrets(each.settings)]
        if names:
            what = f"{place.file} contains secrets in plain text, for {join_names(names, 3)}"
            can_move = place.file == default_file(config, place.client_name)
            move = f"toolfold connect {place.client_name} --replace, then " if can_move else ""
            yield DoctorFinding("warn", "secrets", what, f"{move}replace the secrets with ${{NAME}}")


def _check_file_permissions(config: Config) -> Iterator[DoctorFinding]:
    """Report files that other users should not be able to read or write."""
    if os.name != "posix":
        return
    bad = [*_find_readable_files(config), *_find_writable_files(config)]
    yield from bad or [
        DoctorFinding("ok", "files", "only you can read Toolfold's private files and change its settings")
    ]


def _check_store_files(config: Config) -> Iterator[DoctorFinding]:
    """Report damaged or unusable files in which state is stored."""
    from toolfold.state.store.recovery import find_damage, list_store_files

    for file in list_store_files(config.paths.state_dir):
        try:
            damage = find_damage(file)
        except (OSError, sqlite3.Error) as error:
            yield DoctorFinding("warn", "store", f"{file} could not be checked: {error}")
            continue
        if damage:
            yield DoctorFinding("fail", "store", f"{file} is damaged: {damage}", "toolfold store recover")


def _find_readable_files(config: Config) -> Iterator[DoctorFinding]:
    from toolfold.mcp.importing import find_literal_secrets

    state = config.paths.state_dir
    private = [
        *(state / "credentials.db", config.paths.config_dir / "credentials.key"),
        *(state / "gateway" / "tokens.json", state / "gateway" / "users.json", state / "connected.json"),
        *_list_files(state / "oauth"),
    ]
    if any(find_literal_secrets(dump_settings(each)) for each in config.mcp.servers.values()):
        private.append(config.paths.user_file)
    for file in private:
        if _file_mode(file) & _GROUP_OR_OTHERS:
            yield DoctorFinding("fail", "files", f"{file} can be read by other users", f"chmod go= {file}")


def _find_writable_files(config: Config) -> Iterator[DoctorFinding]:
    from toolfold.mcp.lock import LOCK_FILE, lock_path

    paths = config.paths
    locks = [lock_path(config, name) for name in config.mcp.servers]
    steering = [paths.config_dir, paths.user_file, paths.config_dir / LOCK_FILE, *locks, paths.state_dir]
    steering += [
        paths.state_dir / "trust.json",
        config.plugins_folder,
        *([paths.project_file] if paths.project_file else []),
    ]
    for file in dict.fromkeys(steering):
        if _file_mode(file) & stat.S_IWOTH:
            what = f"{file} can be written by every user of this machine, who could change what is allowed"
            yield DoctorFinding("fail", "files", what, f"chmod o-w {file}")


def _list_files(directory: Path) -> list[Path]:
    try:
        return sorted(each for each in directory.iterdir() if each.is_file())
    except OSError:
        return []


def _file_mode(file: Path) -> int:
    try:
        return stat.S_IMODE(file.stat().st_mode)
    except OSError:
        return 0


def _build_redaction(config: Config, *, in_advice: bool = False) -> Redaction:
    """Return a function that removes the configured secrets from text.

    Advice consists of ordinary words and would otherwise become unreadable.
    """
    from toolfold.mcp.setting_references import collect_secrets
    from toolfold.safety.redaction import Redaction

    known = [
        value
        for server in config.mcp.servers.values()
        for value in collect_secrets(server, config.environment, keyring=lambda _service, _name: None)
    ]
    secrets = [*config.secret_values(), *known]
    if in_advice:
        secrets = [each for each in secrets if not _PLAIN_WORD.fullmatch(each)]
    return Redaction(secrets, max_chars=_MAX_TEXT_CHARS)


def _print_report(
    findings: Sequence[DoctorFinding], servers: Sequence[ServerHealth], redact: Redaction, as_json: bool
) -> int:
    def show_line(text: str) -> str:
        return shorten_middle(make_visible(" ".join(text.split())), _MAX_TEXT_CHARS)

    def clean(text: str) -> str:
        return show_line(redact(" ".join(text.split())))

    shown = [
        DoctorFinding(each.mark, each.about, clean(each.what), show_line(each.next)) for each in findings
    ]
    failed = any(each.mark == "fail" for each in shown)
    if as_json:
        states = [
            {**asdict(each), "problem": clean(each.problem), "advice": show_line(each.advice)}
            for each in servers
        ]
        print_json({"ok": not failed, "findings": [asdict(each) for each in shown], "servers": states})
    else:
        _print_findings(shown)
    return EXIT_FAILED if failed else 0


def _print_findings(findings: Sequence[DoctorFinding]) -> None:
    for each in findings:
        colour = COLOURS[each.mark]
        advice = f"  [dim]→ {escape_text(each.next)}[/dim]" if each.next else ""
        mark = f"[{colour}]{SYMBOLS[each.mark]} {each.mark:<4}[/{colour}]"
        print_line(f"{mark}  {each.about:<9} {escape_text(each.what)}{advice}")
    counts = {mark: sum(each.mark == mark for each in findings) for mark in ("fail", "warn", "ok", "info")}
    print_line(f"\n{counts['fail']} failed, {format_count(counts['warn'], 'warning')}, {counts['ok']} ok")
    urgent = sorted((each for each in findings if each.next), key=lambda each: list(counts).index(each.mark))
    if urgent:
        print_line(f"next: {escape_text(urgent[0].next)}")
