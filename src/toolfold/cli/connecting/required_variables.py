"""Find the environment variables that configured servers need, without reading their values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from toolfold.config.servers_settings import McpServerSettings
from toolfold.core.errors import ConfigError
from toolfold.mcp.setting_references import (
    CREDENTIAL_PREFIX,
    build_environment,
    resolve_references,
    resolve_settings,
)


def list_required_variables(servers: Iterable[McpServerSettings]) -> tuple[str, ...]:
    """Return the sorted names of all environment variables that the settings of these servers use."""
    environment = _RecordingEnvironment()
    for server in servers:
        for resolve in (_resolve_process, _resolve_connection, _resolve_oauth):
            with suppress(ConfigError):  # an invalid reference is reported when the server starts
                resolve(server, environment)
    return tuple(sorted(name for name in environment.names if not name.startswith(CREDENTIAL_PREFIX)))


class _RecordingEnvironment(Mapping[str, str]):
    """Replacement for `os.environ` that records which variables are read, and treats all of them as set."""

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


def _resolve_process(server: McpServerSettings, environment: _RecordingEnvironment) -> None:
    build_environment(server, environment, keyring=_no_password)


def _resolve_connection(server: McpServerSettings, environment: _RecordingEnvironment) -> None:
    resolve_settings(server, environment, keyring=_no_password)


def _resolve_oauth(server: McpServerSettings, environment: _RecordingEnvironment) -> None:
    resolve_references(server.oauth.client_secret, environment, keyring=_no_password)


def _no_password(_service: str, _name: str) -> str:
    return ""
