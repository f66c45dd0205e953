"""OAuth 2.1 logins for MCP servers over HTTP.

    create_auth   authorizes every request to a server
    log_in        runs an interactive login
    log_out       deletes the login and revokes its token
    login_status  reports the stored login

Tokens are stored in files that only their owner can read, or encrypted; they are sent only to the server they
were issued for, and appear in no error message. HTTP libraries are imported on first use.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolfold.config.servers_settings import McpServerSettings
from toolfold.core.errors import ConfigError
from toolfold.core.loops import EventLoops
from toolfold.mcp.oauth.login_store import FileLoginStore, Login, LoginStore
from toolfold.mcp.setting_references import resolve_references

if TYPE_CHECKING:
    from toolfold.mcp.oauth.provider import OAuthProvider
    from toolfold.mcp.oauth.redirect_listener import Redirect
    from toolfold.mcp.oauth.sign_in_flow import OAuthClient

__all__ = [
    "LoginStatus",
    "OpenUrl",
    "create_auth",
    "find_browser",
    "find_client_issuer",
    "log_in",
    "log_in_with_redirect",
    "log_out",
    "login_status",
]

LOGIN_TIMEOUT_S = 300.0

OpenUrl = Callable[[str], Any]
"""Shows a login page to a person; may be async.

It may return the redirect URL that the person pasted, if the browser runs on another machine.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginStatus:
    """State of a stored OAuth login."""

    issuer: str
    scopes: tuple[str, ...]
    is_usable: bool
    """True if the server can be used without a new login: the token is valid or can be refreshed."""
    expires: float | None
    """Expiry in seconds since 1970; None if the issuer did not state one."""


def create_auth(
    server: str,
    settings: McpServerSettings,
    logins: LoginStore | Path,
    interactive: bool,
    *,
    environment: Mapping[str, str],
    open_url: OpenUrl | None = None,
    timeout_s: float = LOGIN_TIMEOUT_S,
    loops: EventLoops | None = None,
    advice: str = "",
    issuer: str = "",
) -> OAuthProvider:
    """Return an `httpx2.Auth` that authorizes requests to an MCP server with the stored OAuth login.

    `logins` may be the directory of logins in files, `advice` tells how a user can log in, and `issuer` is
    the one at which a configured client is registered, if the settings do not name it. If a login is needed,
    it raises NeedsLogin, unless `interactive` is set and a browser or `open_url` is available: then the login
    runs at once. Raises ConfigError for an unresolved reference in the settings.
    """
    from toolfold.mcp.oauth.provider import OAuthProvider
    from toolfold.mcp.oauth.sign_in_flow import SignInPrompt

    opener = (open_url or find_browser(environment)) if interactive else None
    prompt = (
        SignInPrompt(open_url=opener, timeout_s=timeout_s, loops=loops or EventLoops()) if opener else None
    )
    client = _build_client(server, settings, environment, issuer)
    return OAuthProvider(client, _open_logins(logins), prompt, advice)


async def log_in(
    server: str,
    settings: McpServerSettings,
    logins: LoginStore | Path,
    *,
    environment: Mapping[str, str],
    open_url: OpenUrl | None = None,
    timeout_s: float = LOGIN_TIMEOUT_S,
    loops: EventLoops | None = None,
    issuer: str = "",
) -> LoginStatus:
    """Log in to an MCP server, replacing any stored login. Raises ServerFailed, ConfigError.

    `issuer` is the one at which a configured client is registered, if the settings do not name it.
    """
    from toolfold.mcp.faults import NotStarted

    logins = _open_logins(logins)
    await asyncio.to_thread(logins.require_keys)
    provider = create_auth(
        server,
        settings,
        logins,
        True,
        environment=environment,
        open_url=open_url,
        timeout_s=timeout_s,
        loops=loops,
        issuer=issuer,
    )
    client = _build_client(server, settings, environment)
    known = await asyncio.to_thread(logins.find, server, client.url)
    challenge = await _fetch_challenge(server, settings, client.url, environment)
    await provider.log_in(challenge, known=known.token if known else "")
    status = await asyncio.to_thread(login_status, server, settings, logins, environment=environment)
    if status is None:
        raise NotStarted(server, "accepted the login, but the stored login was deleted meanwhile.")
    return status


async def log_in_with_redirect(
    server: str,
    settings: McpServerSettings,
    logins: LoginStore,
    redirect: Redirect,
    *,
    environment: Mapping[str, str],
    open_url: OpenUrl,
    timeout_s: float,
    issuer: str = "",
) -> None:
    """Log in to an MCP server in a browser that returns to the URI of `redirect`, and store the login.

    `issuer` is the one at which a configured client is registered, if the settings do not name it.
    Raises ServerFailed, ConfigError.
    """
    from toolfold.mcp.faults import NotStarted
    from toolfold.mcp.oauth.auth_requests import AuthError
    from toolfold.mcp.oauth.sign_in_flow import SignInCancelled, SignInPrompt, sign_in

    await asyncio.to_thread(logins.require_keys)
    client = _build_client(server, settings, environment, issuer)
    previous = await asyncio.to_thread(logins.find, server, client.url)
    challenge = await _fetch_challenge(server, settings, client.url, environment)
    prompt = SignInPrompt(open_url=open_url, timeout_s=timeout_s, loops=EventLoops())
    try:
        login = await sign_in(client, challenge, prompt, previous, redirect)
    except (SignInCancelled, AuthError) as error:
        raise NotStarted(server, f"was not logged in to: {error}.") from None
    await asyncio.to_thread(logins.save, login, is_new=True)


async def log_out(
    server: str,
    settings: McpServerSettings | None,
    logins: LoginStore | Path,
    *,
    environment: Mapping[str, str],
) -> bool:
    """Delete all logins of a server and try to revoke their tokens; return True if there were any."""
    deleted = await asyncio.to_thread(_open_logins(logins).delete, server)
    if settings is not None and any(login.token for login in deleted.readable):
        await _revoke_tokens(server, settings, environment, deleted.readable)
    return deleted.count > 0


def login_status(
    server: str, settings: McpServerSettings, logins: LoginStore | Path, *, environment: Mapping[str, str]
) -> LoginStatus | None:
    """Return the state of the stored login without contacting its issuer; None if there is no login."""
    login = _open_logins(logins).find(server, resolve_references(settings.url, environment))
    if login is None or not login.token:
        return None
    is_valid = login.fresh_until is None or time.time() < login.fresh_until
    return LoginStatus(
        issuer=login.issuer,
        scopes=login.scopes,
        is_usable=is_valid or bool(login.refresh_token),
        expires=login.fresh_until,
    )


def find_client_issuer(
    server: str, settings: McpServerSettings, logins: LoginStore, *, environment: Mapping[str, str]
) -> str:
    """Return the issuer of the installation's login, if the login belongs to the configured OAuth client.

    `logins` are those of the installation. Empty if no client is configured or it has not logged in. A server
    could otherwise name another issuer to a new user, which would receive the client's secret.
    """
    client_id = resolve_references(settings.oauth.client_id, environment)
    login = logins.find(server, resolve_references(settings.url, environment)) if client_id else None
    return login.issuer if login is not None and login.client.get("client_id") == client_id else ""


def find_browser(environment: Mapping[str, str]) -> OpenUrl | None:
    """Return a function that opens a page in the local browser; None if there is no display."""
    has_display = sys.platform in ("darwin", "win32") or any(
        environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )
    return _open_page if has_display else None


def _open_page(url: str) -> None:
    import webbrowser

    if not webbrowser.open(url):
        raise RuntimeError("no browser could be opened")


async def _revoke_tokens(
    server: str, settings: McpServerSettings, environment: Mapping[str, str], logins: Iterable[Login]
) -> None:
    """Revoke tokens at their issuer; ignore failures, because the tokens expire anyway."""
    from toolfold.mcp.oauth.auth_requests import AuthError
    from toolfold.mcp.oauth.token_refresh import revoke_login

    with contextlib.suppress(ConfigError, AuthError):
        client = _build_client(server, settings, environment)
        for login in logins:
            if login.url == client.url:
                await revoke_login(client, login)


def _build_client(
    server: str, settings: McpServerSettings, environment: Mapping[str, str], issuer: str = ""
) -> OAuthClient:
    from toolfold.mcp.oauth.sign_in_flow import OAuthClient

    oauth = settings.oauth
    return OAuthClient(
        server=server,
        url=resolve_references(settings.url, environment),
        client_id=resolve_references(oauth.client_id, environment),
        client_secret=resolve_references(oauth.client_secret, environment),
        metadata_url=resolve_references(oauth.client_metadata_url, environment),
        scopes=oauth.scopes,
        redirect_port=oauth.redirect_port,
        issuer=oauth.issuer or issuer,
    )


def _open_logins(logins: LoginStore | Path) -> LoginStore:
    return FileLoginStore(logins) if isinstance(logins, Path) else logins


async def _fetch_challenge(
    server: str, settings: McpServerSettings, url: str, environment: Mapping[str, str]
) -> Any:
    """Send a ping without a token; return a 401 response with the headers of the server's 401, if any.

    Raises NotStarted if the server cannot be reached.
    """
    import httpx2

    from toolfold.mcp.faults import NotStarted

    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    headers = {name: resolve_references(value, environment) for name, value in settings.headers.items()}
    accept = {"Accept": "application/json, text/event-stream", **headers}
    try:
        async with (
            httpx2.AsyncClient(timeout=30.0, follow_redirects=False) as client,
            client.stream("POST", url, json=ping, headers=accept) as response,
        ):
            challenge = response.headers if response.status_code == 401 else {}
            return httpx2.Response(401, headers=challenge, request=response.request)
    except httpx2.HTTPError as error:
        raise NotStarted(server, f"cannot be reached: {type(error).__name__}.") from None
