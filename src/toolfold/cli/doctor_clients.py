"""Checks of `toolfold doctor` for connected programs, the gateway and duplicate servers."""

from __future__ import annotations

import shutil
import socket
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from toolfold.cli.connect import connections_file, home_directory
from toolfold.cli.doctor_findings import DoctorFinding
from toolfold.cli.output import format_count
from toolfold.cli.shared_database import use_database
from toolfold.core.errors import ConfigError, join_names
from toolfold.mcp.importing import CLIENTS, server_target

if TYPE_CHECKING:
    from toolfold.cli.connecting import FileChange
    from toolfold.config import Config
    from toolfold.config.servers_settings import McpServerSettings

CONNECT_TIMEOUT_S = 2.0
_DEFAULT_PORTS = {"http": 80, "https": 443}


def check_clients(config: Config) -> Iterator[DoctorFinding]:
    """Report for each connected program whether it still reaches the gateway, and any duplicate servers."""
    from toolfold.cli.connecting import ChangeLog

    try:
        steps = {
            (each.client, each.file): each for each in ChangeLog(connections_file(config)).list_changes()
        }
    except ConfigError as error:
        yield DoctorFinding("fail", "clients", str(error))
        return
    if not steps:
        what = "no program is connected"
        yield DoctorFinding(
            "ok", "clients", what, "toolfold connect PROGRAM, for example: toolfold connect cursor"
        )
    for step in steps.values():
        yield _check_client(config, step)
        yield from _check_client_duplicates(config, step)


def _check_client(config: Config, step: FileChange) -> DoctorFinding:
    from toolfold.cli.connecting import find_url, open_client_file, require_client

    client = require_client(step.client)
    title, again = CLIENTS[client].title, f"toolfold connect {client}"
    try:
        entry = open_client_file(client, Path(step.file)).servers.get(step.name)
    except ConfigError as error:
        return DoctorFinding("fail", "clients", f"{title}: {error}")
    if not isinstance(entry, dict):
        return DoctorFinding(
            "warn", "clients", f"the entry {step.name!r} of {title} is missing from {step.file}", again
        )
    url = find_url(entry)
    if url and not is_listening(url):
        what = f"{title} connects to {url}, but nothing is listening there"
        return DoctorFinding("fail", "clients", what, _start_advice(url))
    program = entry.get("command") or entry.get("cmd")
    if isinstance(program, str) and not shutil.which(program, path=config.environment.get("PATH")):
        return DoctorFinding("fail", "clients", f"{title} starts {program}, which was not found", again)
    return DoctorFinding("ok", "clients", f"{title} is connected ({step.file})")


def _check_client_duplicates(config: Config, step: FileChange) -> Iterator[DoctorFinding]:
    """Report servers that a connected program uses both directly and through the gateway."""
    from toolfold.cli.connecting import open_client_file, require_client
    from toolfold.config.servers_settings import parse_server_settings
    from toolfold.mcp.importing import ClientConfigFile, read_client_file

    client = require_client(step.client)
    configured_names = {server_target(server): name for name, server in _enabled_servers(config)}
    found = read_client_file(
        ClientConfigFile(client, "user", Path(step.file)),
        home=home_directory(config),
        project=config.paths.project_dir,
    ).servers
    duplicates = [
        (each.name, configured_names[target])
        for each in found
        if (server := parse_server_settings(each.settings)).enabled
        and (target := server_target(server)) in configured_names
    ]
    if duplicates:
        names = [
            client_name
            if client_name == configured_name
            else f"{client_name} (in Toolfold: {configured_name})"
            for client_name, configured_name in duplicates
        ]
        what = f"{CLIENTS[client].title} uses {join_names(names, 3)} twice: directly and through Toolfold"
        original = open_client_file(client, Path(step.file))
        movable = {**original.servers, **original.project_servers(config.paths.project_dir)}
        by_hand = [name for name, _ in duplicates if name not in movable]
        advice = (
            f"remove {join_names(by_hand, 3)} from the project's servers in {step.file}"
            if by_hand
            else f"toolfold connect {client} --replace"
        )
        yield DoctorFinding("warn", "twice", what, advice)


def check_duplicates(config: Config) -> Iterator[DoctorFinding]:
    """Report servers that are configured under two names, because a model would see each tool twice."""
    same: dict[object, list[str]] = defaultdict(list)
    for name, server in _enabled_servers(config):
        same[server_target(server), _server_identity(server)].append(name)
    for names in same.values():
        if len(names) > 1:
            what = (
                f"{' and '.join(names[:3])} are the same server, so each of its tools is listed"
                f" {len(names)} times"
            )
            yield DoctorFinding("warn", "twice", what, f"toolfold mcp remove {names[-1]}")


def _enabled_servers(config: Config) -> Iterable[tuple[str, McpServerSettings]]:
    return ((name, server) for name, server in config.mcp.servers.items() if server.enabled)


def _server_identity(server: McpServerSettings) -> tuple[object, ...]:
    """Return the settings that distinguish servers with the same command, such as an account in `env`."""
    pairs = (tuple(sorted(each.items())) for each in (server.env, server.headers))
    return (*pairs, server.pass_env, str(server.cwd), server.include, server.exclude)


def _start_advice(url: str) -> str:
    """Return advice on how to start the gateway so that it listens on the URL."""
    from toolfold.serving.gateway.http_app import is_loopback

    try:
        parts = urlsplit(url)
        if parts.scheme == "http" and is_loopback(parts.hostname or ""):
            return f"start the gateway: toolfold serve --port {parts.port or 80}"
    except ValueError:
        return "the URL is invalid: run toolfold connect again"
    return "start the gateway on that machine: toolfold serve"


def is_listening(url: str) -> bool:
    """Return True if a program accepts connections on the host and port of the URL."""
    try:
        parts = urlsplit(url)
        return _can_connect(parts.hostname or "", parts.port or _DEFAULT_PORTS.get(parts.scheme, 80))
    except ValueError:
        return False


def _can_connect(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def check_gateway(config: Config) -> Iterator[DoctorFinding]:
    """Report who can reach the gateway over HTTP, and whether it is running."""
    from toolfold.serving.gateway.client_tokens import open_tokens
    from toolfold.serving.gateway.http_app import is_loopback

    host, issuer = config.gateway.host, config.gateway.oauth.issuer
    try:
        found = open_tokens(config, use_database(config))
        tokens, are_in_use = len(found.list_clients()), found.are_in_use()
    except (ConfigError, OSError) as error:
        yield DoctorFinding("fail", "gateway", str(error))
        return
    if is_loopback(host):
        yield _check_port(host, config.gateway.port)
        if issuer:
            yield DoctorFinding("ok", "gateway", f"clients need a token, or a login at {issuer}")
        elif are_in_use:
            yield _check_tokens(tokens, config.gateway.allow_anonymous)
        else:
            yield DoctorFinding("ok", "gateway", "clients on this machine need no token until you create one")
        return
    what = f"the gateway on {host} can be reached from other machines"
    if tokens or issuer:
        advice = "put a TLS proxy in front of it, or run: toolfold config unset gateway.host"
        yield DoctorFinding("warn", "gateway", f"{what}; {format_count(tokens, 'token')} issued", advice)
    else:
        yield DoctorFinding(
            "fail", "gateway", f"{what}, but no token has been created", "toolfold token add NAME"
        )


def check_proxy(config: Config) -> Iterator[DoctorFinding]:
    """Report whether the model proxy can be used, and whether programs send their requests to it."""
    from toolfold.serving.proxy.upstreams import Upstreams

    if not config.proxy.enabled:
        yield DoctorFinding("info", "proxy", "the model proxy is turned off (proxy.enabled)")
        return
    try:
        Upstreams(config).require_other_address(config.gateway.host, config.gateway.port)
    except ConfigError as error:
        yield DoctorFinding("fail", "proxy", f"toolfold serve would not start: {error.problem}", error.hint)
        return
    folding = "requests are forwarded unchanged" if config.proxy.folding == "off" else "tools are folded"
    yield DoctorFinding("ok", "proxy", f"the model proxy starts with `toolfold serve`; {folding}")
    yield from _check_base_urls(config)


def _check_base_urls(config: Config) -> Iterator[DoctorFinding]:
    """Check the base URLs in environment variables that point to the proxy."""
    host, port = config.gateway.host, config.gateway.port
    for name, path in (("OPENAI_BASE_URL", "/v1"), ("ANTHROPIC_BASE_URL", "")):
        url = urlsplit(config.environment.get(name, ""))
        if url.hostname not in (host, "localhost", "127.0.0.1") or url.port != port:
            continue
        if url.path.rstrip("/") != path:
            right = f"http://{host}:{port}{path}"
            yield DoctorFinding("warn", "proxy", f"{name} has the wrong path", f"export {name}={right}")
        elif _can_connect(host, port):
            yield DoctorFinding("ok", "proxy", f"{name} is the address of the model proxy, which is running")
        else:
            what = f"{name} is the address of the model proxy, which is not running"
            yield DoctorFinding("warn", "proxy", what, "toolfold serve")


def _check_port(host: str, port: int) -> DoctorFinding:
    where = f"{host}, port {port}"
    if _can_connect(host, port):
        return DoctorFinding(
            "ok", "gateway", f"a program listens on {where}, reachable from this machine only"
        )
    what = f"nothing listens on {where}. Only clients that connect over HTTP need it"
    return DoctorFinding("info", "gateway", what, "toolfold serve")


def _check_tokens(tokens: int, allow_anonymous: bool) -> DoctorFinding:
    if allow_anonymous:
        what = (
            "a client without a token may be allowed more than one with a limited token"
            " (gateway.allow_anonymous)"
        )
        return DoctorFinding("warn", "gateway", what, "toolfold config unset gateway.allow_anonymous")
    if not tokens:
        what = "every client needs a token, but none has been created"
        return DoctorFinding("warn", "gateway", what, "toolfold token add NAME")
    return DoctorFinding("ok", "gateway", f"every client needs a token ({format_count(tokens, 'token')})")
