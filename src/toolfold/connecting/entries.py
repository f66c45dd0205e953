"""How each program writes down a server: where in its file, and in which words. Touches no file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from toolfold.errors import ConfigError
from toolfold.model import Json
from toolfold.sources.mcp.importing import CLIENTS
from toolfold.sources.mcp.importing.gateways import GATEWAY_PATH
from toolfold.sources.mcp.importing.types import ClientName

# The first start may have to download what is started.
_STARTING_SECONDS = 60
_CALL_SECONDS = 300
_ABOUT = "All MCP servers behind Toolfold."
# Codex starts a turn without the servers that are not ready, unless they are required.
_REQUIRED: Json = {"startup_timeout_sec": _STARTING_SECONDS, "required": True}
# Claude Code puts tools behind a search of its own, and so would hide the three that search.
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
_SECTIONS: Mapping[ClientName, str] = {
    "vscode": "servers",
    "codex": "mcp_servers",
    "opencode": "mcp",
    "goose": "extensions",
}


@dataclass(frozen=True, slots=True)
class Way:
    """How a program comes to the gateway: by a command that starts it, or by the address of one that runs."""

    command: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    passed: tuple[str, ...] = ()
    """Variables of the user's that servers behind the gateway need, by name."""
    url: str = ""
    token_variable: str = ""
    """The variable that holds the token. The token itself is never written down."""


def section_of(client: ClientName) -> str:
    """Return the key of the map that holds a client's servers."""
    return _SECTIONS.get(client, "mcpServers")


def entry_of(client: ClientName, name: str, way: Way) -> Json:
    """What the program's file says of the gateway. Raises ConfigError where it cannot say that."""
    if not way.url:
        return _started(client, name, way)
    if client == "claude-desktop":
        raise ConfigError(
            f"{CLIENTS[client].title} takes no address from its file, only commands that it starts",
            hint="Leave --http out: it then starts the gateway itself.",
        )
    return _reached(client, name, way)


def address_in(entry: Mapping[str, Any]) -> str:
    """The address that an entry names, whatever its program calls it; nothing where it names none."""
    said = (entry.get(key) for key in ("url", "httpUrl", "serverUrl", "uri"))
    return next((each for each in said if isinstance(each, str) and each), "")


def with_path(url: str) -> str:
    """The address of a gateway: where nobody said a path, with the one it has."""
    parts = urlsplit(url)
    return url if parts.path.strip("/") else urlunsplit(parts._replace(path=GATEWAY_PATH))


def _started(client: ClientName, name: str, way: Way) -> Json:
    """Build the entry of a client that starts the gateway itself."""
    program, *arguments = way.command
    variables = dict(way.variables)
    if client == "gemini":  # it withholds variables that look like secrets unless they are named
        variables |= {each: f"${each}" for each in way.passed}
    if client == "opencode":
        entry: Json = {"type": "local", "command": [*way.command], "enabled": True}
    elif client == "goose":
        entry = {"enabled": True, "type": "stdio", "name": name, "description": _ABOUT}
        entry |= {"cmd": program, "args": arguments, "timeout": _CALL_SECONDS}
    else:
        entry = {"command": program, "args": arguments}
    entry = {**_EXTRA_KEYS.get(client, {}), **entry}
    if client == "codex" and way.passed:  # it passes on no variable that is not named
        entry["env_vars"] = list(way.passed)
    if variables:
        entry[_VARIABLE_KEYS.get(client, "env")] = variables
    return entry


def _reached(client: ClientName, name: str, way: Way) -> Json:
    """Build the entry of a client that connects to a running gateway."""
    variable = way.token_variable
    if client == "codex":
        return {"url": way.url, **({"bearer_token_env_var": variable} if variable else {}), **_REQUIRED}
    headers = {"Authorization": f"Bearer {_reference(client, variable)}"} if variable else {}
    entry: Json = {_URL_KEYS.get(client, "url"): way.url}
    if client in _HTTP_KEYS:
        entry = {**_HTTP_KEYS[client], **entry}
    elif client == "goose":
        entry = {"enabled": True, "type": "streamable_http", "name": name, "description": _ABOUT, **entry}
        entry |= {"timeout": _CALL_SECONDS, **({"env_keys": [variable]} if variable else {})}
    return {**entry, **({"headers": headers} if headers else {})}


def _reference(client: ClientName, variable: str) -> str:
    return _REFERENCES.get(client, "${{env:{}}}").format(variable)
