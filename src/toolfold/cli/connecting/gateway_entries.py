"""Build the gateway's entry for the configuration file of each client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from toolfold.core.errors import ConfigError
from toolfold.core.types import Json
from toolfold.mcp.importing import CLIENTS
from toolfold.mcp.importing.gateways import GATEWAY_PATH
from toolfold.mcp.importing.import_types import ClientName

# The first start may have to download the package.
_STARTUP_TIMEOUT_S = 60
_CALL_TIMEOUT_S = 300
_DESCRIPTION = "All MCP servers behind Toolfold."
# Codex starts a turn without servers that are not ready, unless they are required.
_REQUIRED: Json = {"startup_timeout_sec": _STARTUP_TIMEOUT_S, "required": True}
# Claude Code defers tools behind its own search, which would hide the gateway's search tools.
_ALWAYS_LOAD: Json = {"alwaysLoad": True}
_EXTRA_KEYS: Mapping[ClientName, Json] = {
    "claude-code": {"type": "stdio", **_ALWAYS_LOAD},
    "vscode": {"type": "stdio"},
    "codex": _REQUIRED,
}
_HTTP_KEYS: Mapping[ClientName, Json] = {
    "claude-code": {"type": "http", **_ALWAYS_LOAD},
    "vscode": {"type": "http"},
    "opencode": {"type": "remote", "enabled": True},
}
_URL_KEYS: Mapping[ClientName, str] = {"windsurf": "serverUrl", "gemini": "httpUrl", "goose": "uri"}
_VARIABLE_KEYS: Mapping[ClientName, str] = {"goose": "envs", "opencode": "environment"}
_REFERENCES: Mapping[ClientName, str] = {
    "claude-code": "${{{}}}",
    "goose": "${{{}}}",
    "gemini": "${{{}}}",
    "opencode": "{{env:{}}}",
}
_SECTIONS: Mapping[str, str] = {
    "vscode": "servers",
    "codex": "mcp_servers",
    "opencode": "mcp",
    "goose": "extensions",
}


@dataclass(frozen=True, slots=True)
class GatewayAccess:
    """Connection of a client to the gateway: a command that starts a gateway, or the URL of a running one."""

    command: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    passed_variables: tuple[str, ...] = ()
    """Names of the user's environment variables that servers behind the gateway need."""
    url: str = ""
    token_variable: str = ""
    """Name of the environment variable with the access token; the token itself is never stored."""


def servers_key(client: str) -> str:
    """Return the key of a client's file under which its MCP servers are listed."""
    return _SECTIONS.get(client, "mcpServers")


def build_entry(client: ClientName, name: str, access: GatewayAccess) -> Json:
    """Return the gateway's entry in the client's format. Raises ConfigError if the format allows no URL."""
    if not access.url:
        return _build_command_entry(client, name, access)
    if client == "claude-desktop":
        raise ConfigError(
            f"{CLIENTS[client].title} cannot connect to a URL: its file can contain only commands that"
            " start a server",
            hint="Omit --http: the client then starts the gateway itself.",
        )
    return _build_url_entry(client, name, access)


def find_url(entry: Mapping[str, Any]) -> str:
    """Return the URL in a server entry of any client's format; empty if it has none."""
    values = (entry.get(key) for key in ("url", "httpUrl", "serverUrl", "uri"))
    return next((value for value in values if isinstance(value, str) and value), "")


def add_gateway_path(url: str) -> str:
    """Return the URL with the gateway's path appended; a URL that has a path is returned unchanged."""
    parts = urlsplit(url)
    return url if parts.path.strip("/") else urlunsplit(parts._replace(path=GATEWAY_PATH))


def _build_command_entry(client: ClientName, name: str, access: GatewayAccess) -> Json:
    """Return the gateway's entry for a client that starts the gateway with a command."""
    program, *arguments = access.command
    variables = dict(access.variables)
    if client == "gemini":  # it withholds secret-looking variables unless they are listed
        variables |= {name: f"${name}" for name in access.passed_variables}
    if client == "opencode":
        entry: Json = {"type": "local", "command": [*access.command], "enabled": True}
    elif client == "goose":
        entry = {"enabled": True, "type": "stdio", "name": name, "description": _DESCRIPTION}
        entry |= {"cmd": program, "args": arguments, "timeout": _CALL_TIMEOUT_S}
    else:
        entry = {"command": program, "args": arguments}
    entry = {**_EXTRA_KEYS.get(client, {}), **entry}
    if client == "codex" and access.passed_variables:  # it passes only listed variables
        entry["env_vars"] = list(access.passed_variables)
    if variables:
        entry[_VARIABLE_KEYS.get(client, "env")] = variables
    return entry


def _build_url_entry(client: ClientName, name: str, access: GatewayAccess) -> Json:
    """Return the gateway's entry for a client that connects to a running gateway."""
    variable = access.token_variable
    if client == "codex":
        return {"url": access.url, **({"bearer_token_env_var": variable} if variable else {}), **_REQUIRED}
    headers = {"Authorization": f"Bearer {_format_reference(client, variable)}"} if variable else {}
    entry: Json = {_URL_KEYS.get(client, "url"): access.url}
    if client in _HTTP_KEYS:
        entry = {**_HTTP_KEYS[client], **entry}
    elif client == "goose":
        entry = {
            "enabled": True,
            "type": "streamable_http",
            "name": name,
            "description": _DESCRIPTION,
            **entry,
        }
        entry |= {"timeout": _CALL_TIMEOUT_S, **({"env_keys": [variable]} if variable else {})}
    return {**entry, **({"headers": headers} if headers else {})}


def _format_reference(client: ClientName, variable: str) -> str:
    return _REFERENCES.get(client, "${{env:{}}}").format(variable)
