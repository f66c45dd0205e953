"""How each program writes down a server: where in its file, and in which words. Touches no file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from toolfold.errors import ConfigError
from toolfold.model import Json
from toolfold.sources.mcp.importing import CLIENTS
from toolfold.sources.mcp.importing.found import Client
from toolfold.sources.mcp.importing.gateways import PATH

# The first start may have to download what is started.
_STARTING_SECONDS = 60
_CALL_SECONDS = 300
_ABOUT = "All MCP servers behind Toolfold."


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


def section_of(client: Client) -> str:
    """The key of the map that holds a program's servers."""
    return {"vscode": "servers", "codex": "mcp_servers", "goose": "extensions"}.get(client, "mcpServers")


def entry_of(client: Client, name: str, way: Way) -> Json:
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
    said = (entry.get(key) for key in ("url", "serverUrl", "uri"))
    return next((each for each in said if isinstance(each, str) and each), "")


def with_path(url: str) -> str:
    """The address of a gateway: where nobody said a path, with the one it has."""
    parts = urlsplit(url)
    return url if parts.path.strip("/") else urlunsplit(parts._replace(path=PATH))


def _started(client: Client, name: str, way: Way) -> Json:
    program, *arguments = way.command
    said: Json = {"command": program, "args": arguments}
    if client == "goose":
        said = {"enabled": True, "type": "stdio", "name": name, "description": _ABOUT}
        said |= {"cmd": program, "args": arguments, "timeout": _CALL_SECONDS}
    elif client == "codex":
        said["startup_timeout_sec"] = _STARTING_SECONDS
        if way.passed:  # the one program that hands on nothing but what is named
            said["env_vars"] = list(way.passed)
    elif client in ("claude-code", "vscode"):
        said = {"type": "stdio", **said}
    if way.variables:
        said["envs" if client == "goose" else "env"] = dict(way.variables)
    return said


def _reached(client: Client, name: str, way: Way) -> Json:
    variable = way.token_variable
    if client == "codex":
        return {"url": way.url, **({"bearer_token_env_var": variable} if variable else {})}
    headers = {"Authorization": f"Bearer {_reference(client, variable)}"} if variable else {}
    said: Json = {"type": "http", "url": way.url} if client in ("claude-code", "vscode") else {"url": way.url}
    if client == "windsurf":
        said = {"serverUrl": way.url}
    elif client == "goose":
        said = {"enabled": True, "type": "streamable_http", "name": name, "description": _ABOUT}
        said |= {"uri": way.url, "timeout": _CALL_SECONDS, **({"env_keys": [variable]} if variable else {})}
    return {**said, **({"headers": headers} if headers else {})}


def _reference(client: Client, variable: str) -> str:
    by_shells: Sequence[Client] = ("claude-code", "goose")
    return f"${{{variable}}}" if client in by_shells else f"${{env:{variable}}}"
