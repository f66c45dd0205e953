"""Logins at servers that are reached over HTTP, by OAuth 2.1 as MCP has it.

    auth      the token of every request to a server
    log_in    a person's login, asked for by name
    log_out   the end of it
    standing  what there is of it now

Tokens lie in files of their owner's alone, are sent to the server they were given for and to nobody else, and
appear in no error. Whatever speaks HTTP is loaded when the first of these is used.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolfold.config.servers import McpServer
from toolfold.errors import ConfigError
from toolfold.loops import Loops
from toolfold.sources.mcp.oauth.logins import Login, Logins
from toolfold.sources.mcp.references import resolve

if TYPE_CHECKING:
    from toolfold.sources.mcp.oauth.provider import Provider
    from toolfold.sources.mcp.oauth.signing_in import Client

__all__ = ["Standing", "Visit", "auth", "browser", "log_in", "log_out", "standing"]

SECONDS_TO_LOG_IN = 300.0

Visit = Callable[[str], Any]
"""Brings a person to an address, by a function of either kind.

It may give the address the person was sent back to, where their browser runs on another machine.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How things stand with a login."""

    issuer: str
    scopes: tuple[str, ...]
    is_good: bool
    """Whether the server can be used without a person: its token holds, or can be renewed."""
    expires: float | None
    """Until when the token is used, in seconds since 1970; None where nobody said."""


def auth(
    server: str,
    settings: McpServer,
    folder: Path,
    interactive: bool,
    *,
    environment: Mapping[str, str],
    visit: Visit | None = None,
    seconds: float = SECONDS_TO_LOG_IN,
    loops: Loops | None = None,
) -> Provider:
    """What authorizes each request of an HTTP client: an `httpx2.Auth`. `folder` is that of the logins.

    Where a person must log in, it raises NeedsLogin; only if `interactive`, and there is a browser or a
    `visit`, the login is done there and then. Raises ConfigError for a reference that leads nowhere.
    """
    from toolfold.sources.mcp.oauth.provider import Provider
    from toolfold.sources.mcp.oauth.signing_in import Asking

    shown_by = (visit or browser(environment)) if interactive else None
    asking = Asking(visit=shown_by, seconds=seconds, loops=loops or Loops()) if shown_by else None
    return Provider(_client(server, settings, environment), Logins(folder), asking)


async def log_in(
    server: str,
    settings: McpServer,
    folder: Path,
    *,
    environment: Mapping[str, str],
    visit: Visit | None = None,
    seconds: float = SECONDS_TO_LOG_IN,
    loops: Loops | None = None,
) -> Standing:
    """Log in anew, whatever there is; of several at once one does. Raises ServerFailed, ConfigError."""
    import httpx2

    from toolfold.sources.mcp.faults import NotStarted

    provider = auth(
        server, settings, folder, True, environment=environment, visit=visit, seconds=seconds, loops=loops
    )
    client = _client(server, settings, environment)
    known = Logins(folder).find(server, client.url)
    headers = {name: resolve(value, environment) for name, value in settings.headers.items()}
    try:
        challenge = await _challenge(client.url, headers)
    except httpx2.HTTPError as error:
        raise NotStarted(server, f"cannot be reached: {type(error).__name__}.") from None
    await provider.log_in(challenge, known=known.token if known else "")
    now = standing(server, settings, folder, environment=environment)
    if now is None:
        raise NotStarted(server, "was logged in to, and the login is gone already.")
    return now


async def log_out(
    server: str, settings: McpServer | None, folder: Path, *, environment: Mapping[str, str]
) -> bool:
    """Forget every login of the server, and tell its issuer if that can be done. Whether there was one."""
    forgotten = Logins(folder).forget(server)
    if settings is not None and any(login.token for login in forgotten):
        await _revoke(server, settings, environment, forgotten)
    return bool(forgotten)


def standing(
    server: str, settings: McpServer, folder: Path, *, environment: Mapping[str, str]
) -> Standing | None:
    """What is known of the login at a server, without asking anybody. Raises ConfigError."""
    login = Logins(folder).find(server, resolve(settings.url, environment))
    if login is None or not login.token:
        return None
    holds = login.fresh_until is None or time.time() < login.fresh_until
    return Standing(
        issuer=login.issuer,
        scopes=login.scopes,
        is_good=holds or bool(login.renewal),
        expires=login.fresh_until,
    )


def browser(environment: Mapping[str, str]) -> Visit | None:
    """What opens a page on this machine's screen, or None where there is no screen."""
    has_screen = sys.platform in ("darwin", "win32") or any(
        environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )
    return _open_page if has_screen else None


def _open_page(address: str) -> None:
    import webbrowser

    if not webbrowser.open(address):
        raise RuntimeError("no browser")


async def _revoke(
    server: str, settings: McpServer, environment: Mapping[str, str], logins: Iterable[Login]
) -> None:
    """As far as it can be done: a token ends by itself, and we no longer have it."""
    from toolfold.sources.mcp.oauth.renewing import revoke
    from toolfold.sources.mcp.oauth.traffic import Refusal

    with contextlib.suppress(ConfigError, Refusal):
        client = _client(server, settings, environment)
        for login in logins:
            if login.url == client.url:
                await revoke(client, login)


def _client(server: str, settings: McpServer, environment: Mapping[str, str]) -> Client:
    from toolfold.sources.mcp.oauth.signing_in import Client

    oauth = settings.oauth
    return Client(
        server=server,
        url=resolve(settings.url, environment),
        client_id=resolve(oauth.client_id, environment),
        client_secret=resolve(oauth.client_secret, environment),
        metadata_url=resolve(oauth.client_metadata_url, environment),
        scopes=oauth.scopes,
        redirect_port=oauth.redirect_port,
    )


async def _challenge(url: str, headers: Mapping[str, str]) -> Any:
    """How the server asks for a login; one that does not, when knocked at, may still say where it is done."""
    import httpx2

    knock = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    accept = {"Accept": "application/json, text/event-stream", **headers}
    async with (
        httpx2.AsyncClient(timeout=30.0, follow_redirects=False) as client,
        client.stream("POST", url, json=knock, headers=accept) as response,
    ):
        said = response.headers if response.status_code == 401 else {}
        return httpx2.Response(401, headers=said, request=response.request)
