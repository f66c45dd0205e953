"""The variables that servers need of whoever starts the gateway. Looks none of them up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from toolfold.config.servers import McpServerSettings
from toolfold.errors import ConfigError
from toolfold.sources.mcp.setting_references import build_environment, resolve_references, resolve_settings


def needed_by(servers: Iterable[McpServerSettings]) -> tuple[str, ...]:
    """The names of all variables that these refer to, or are passed, in alphabetical order."""
    asked = _Asked()
    for server in servers:
        for look_up in (_start, _reach, _log_in):
            with suppress(ConfigError):  # a reference that is wrong is told of when the server is started
                look_up(server, asked)
    return tuple(sorted(asked.names))


class _Asked(Mapping[str, str]):
    """An environment in which everything is set, and that remembers what it was asked for."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return ""

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _start(server: McpServerSettings, asked: _Asked) -> None:
    build_environment(server, asked, keyring=_no_password)


def _reach(server: McpServerSettings, asked: _Asked) -> None:
    resolve_settings(server, asked, keyring=_no_password)


def _log_in(server: McpServerSettings, asked: _Asked) -> None:
    resolve_references(server.oauth.client_secret, asked, keyring=_no_password)


def _no_password(_service: str, _name: str) -> str:
    return ""
