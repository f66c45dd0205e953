"""What `toolfold doctor` finds about connected programs, the gateway and servers that are there twice."""

from __future__ import annotations

import shutil
import socket
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from toolfold.cli.connect import home_of, steps_file
from toolfold.cli.findings import Finding
from toolfold.cli.show import counted, listed
from toolfold.errors import ConfigError
from toolfold.sources.mcp.importing import CLIENTS

if TYPE_CHECKING:
    from toolfold.config import Config
    from toolfold.config.servers import McpServer
    from toolfold.connecting import Step

KNOCK_TIMEOUT_S = 2.0
_PORTS = {"http": 80, "https": 443}
_NOT_TELLING = frozenset({"-y", "--yes"})  # arguments of package runners that change nothing


def find_clients(config: Config) -> Iterator[Finding]:
    """The programs that were connected, whether they still are, and which servers they have twice."""
    from toolfold.connecting import Steps

    try:
        steps = {(each.client, each.file): each for each in Steps(steps_file(config)).all()}
    except ConfigError as error:
        yield Finding("fail", "clients", str(error))
        return
    if not steps:
        what = "no program is connected from here"
        yield Finding("ok", "clients", what, "toolfold connect cursor, or the like")
    for step in steps.values():
        yield _client(config, step)
        yield from _servers_beside_gateway(config, step)


def _client(config: Config, step: Step) -> Finding:
    from toolfold.connecting import address_in, opened

    title, again = CLIENTS[step.client].title, f"toolfold connect {step.client}"
    try:
        entry = opened(step.client, Path(step.file)).servers.get(step.name)
    except ConfigError as error:
        return Finding("fail", "clients", f"{title}: {error}")
    if not isinstance(entry, dict):
        return Finding("warn", "clients", f"{title} no longer has {step.name!r} in {step.file}", again)
    url = address_in(entry)
    if url and not is_listening(url):
        what = f"{title} reaches {url}, where nothing listens"
        return Finding("fail", "clients", what, _start_of(url))
    program = entry.get("command") or entry.get("cmd")
    if isinstance(program, str) and not shutil.which(program, path=config.environment.get("PATH")):
        return Finding("fail", "clients", f"{title} starts {program}, which cannot be found", again)
    return Finding("ok", "clients", f"{title} uses Toolfold ({step.file})")


def _servers_beside_gateway(config: Config, step: Step) -> Iterator[Finding]:
    """Servers that a connected program has itself, and through the gateway once more."""
    from toolfold.config.servers import usable
    from toolfold.sources.mcp.importing import Place, read

    ours = {_target(server): name for name, server in _enabled(config)}
    found = read(
        Place(step.client, "user", Path(step.file)), home=home_of(config), project=config.paths.project_dir
    ).found
    twice = [
        (each.name, ours[target])
        for each in found
        if (server := usable(each.settings)).enabled and (target := _target(server)) in ours
    ]
    if twice:
        names = [theirs if theirs == own else f"{theirs} (here {own})" for theirs, own in twice]
        what = (
            f"{CLIENTS[step.client].title} has {listed(names, 3)} twice: in its own settings and by Toolfold"
        )
        yield Finding("warn", "twice", what, f"toolfold connect {step.client} --replace")


def find_duplicates(config: Config) -> Iterator[Finding]:
    """Servers that are configured under two names: the model would see each of their tools twice."""
    same: dict[object, list[str]] = defaultdict(list)
    for name, server in _enabled(config):
        same[_target(server), _account(server)].append(name)
    for names in same.values():
        if len(names) > 1:
            what = (
                f"{' and '.join(names[:3])} are the same server: every tool of it is there {len(names)} times"
            )
            yield Finding("warn", "twice", what, f"toolfold mcp remove {names[-1]}")


def _enabled(config: Config) -> Iterable[tuple[str, McpServer]]:
    return ((name, server) for name, server in config.mcp.servers.items() if server.enabled)


def _target(server: McpServer) -> tuple[str, ...]:
    """What is started or reached, the same for every spelling of it."""
    if not server.url:
        return (server.command, *(each for each in server.args if each not in _NOT_TELLING))
    try:
        parts = urlsplit(server.url)
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        return (server.url,)
    return (parts.hostname or "", str(port), parts.path.rstrip("/"), parts.query)


def _account(server: McpServer) -> tuple[object, ...]:
    """What may make two servers with the same command different: two accounts, two folders, other tools."""
    pairs = (tuple(sorted(each.items())) for each in (server.env, server.headers))
    return (*pairs, server.pass_env, str(server.cwd), server.include, server.exclude)


def _start_of(url: str) -> str:
    """How to have a gateway there. What stands before one elsewhere, and at which port, is not known."""
    from toolfold.gateway.web import is_loopback

    try:
        parts = urlsplit(url)
        if parts.scheme == "http" and is_loopback(parts.hostname or ""):
            return f"start it: toolfold serve --port {parts.port or 80}"
    except ValueError:
        return "that is no address: connect it again"
    return "start it there: toolfold serve"


def is_listening(url: str) -> bool:
    """Whether a connection to the host and port of an address is accepted, by whatever program."""
    try:
        parts = urlsplit(url)
        return _accepts(parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 80))
    except ValueError:
        return False


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), KNOCK_TIMEOUT_S).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def find_gateway(config: Config) -> Iterator[Finding]:
    """Who may reach the gateway over HTTP, and whether something listens there now."""
    from toolfold.config.record import SettingsRecord
    from toolfold.gateway.tokens import Tokens
    from toolfold.gateway.web import is_loopback

    host = config.gateway.host
    try:
        state = config.paths.state_dir
        found = Tokens(state / "gateway" / "tokens.json", SettingsRecord(state))
        tokens = len(found.all())
    except ConfigError as error:
        yield Finding("fail", "gateway", str(error))
        return
    if is_loopback(host):
        yield _port_in_use(host, config.gateway.port)
        if found.are_in_use():
            yield _who_needs_a_token(tokens, config.gateway.allow_anonymous)
        else:
            yield Finding("ok", "gateway", "clients of this machine need no token until one is made")
        return
    what = f"{host} can be reached from other machines"
    if tokens:
        advice = "let only what speaks TLS reach it, or: toolfold config unset gateway.host"
        yield Finding("warn", "gateway", f"{what}, with {counted(tokens, 'token')}", advice)
    else:
        yield Finding("fail", "gateway", f"{what}, and nobody has a token", "toolfold token add NAME")


def _port_in_use(host: str, port: int) -> Finding:
    where = f"{host}, port {port}"
    if _accepts(host, port):
        return Finding("ok", "gateway", f"something listens on {where}, for this machine alone")
    what = f"nothing listens on {where}. Only clients that connect over HTTP need that"
    return Finding("info", "gateway", what, "toolfold serve")


def _who_needs_a_token(tokens: int, allow_anonymous: bool) -> Finding:
    if allow_anonymous:
        what = "a client that omits its token may use more than a narrow one grants (gateway.allow_anonymous)"
        return Finding("warn", "gateway", what, "toolfold config unset gateway.allow_anonymous")
    if not tokens:
        what = "every client needs a token, and nobody has one"
        return Finding("warn", "gateway", what, "toolfold token add NAME")
    return Finding("ok", "gateway", f"every client needs a token ({counted(tokens, 'token')})")
