"""`toolfold mcp login` and `logout`: OAuth login to a server that is reached over HTTP."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolfold.cli.app import Invocation
from toolfold.cli.credentials import find_user_id, open_store, require_per_user_server
from toolfold.cli.output import escape_text, print_line, print_note
from toolfold.cli.server_commands import unknown_server_error
from toolfold.cli.shared_database import use_database
from toolfold.core.errors import ConfigError
from toolfold.safety.approval.safe_text import make_visible

if TYPE_CHECKING:
    from toolfold.config import Config
    from toolfold.mcp.oauth import LoginStatus
    from toolfold.mcp.oauth.login_store import LoginStore


@click.command("login")
@click.argument("name")
@click.option(
    "--user", metavar="NAME", help="Log in for this user, if the server has `credentials: per-user`."
)
@click.option(
    "--no-browser",
    is_flag=True,
    help="Print the login URL for a browser on another machine, without opening a browser here.",
)
@click.option(
    "--seconds",
    default=300.0,
    type=click.FloatRange(1, 3_600),
    show_default=True,
    help="Time limit for the login, in seconds.",
)
@click.pass_obj
def login(invocation: Invocation, name: str, user: str | None, no_browser: bool, seconds: float) -> None:
    """Log in to a server with your browser.

    If this machine has no browser, open the printed URL on another machine, log in, and paste the final URL
    from that browser's address bar. It begins with http://127.0.0.1, and its page does not load.
    """
    from toolfold.mcp.listing_cache import ListingCache
    from toolfold.mcp.oauth import find_browser, find_client_issuer, log_in
    from toolfold.mcp.user_credentials import uses_login

    config = invocation.load_config()
    if name not in config.mcp.servers:
        raise unknown_server_error(name, config.mcp.servers)
    server = config.mcp.servers[name]
    if server.effective_transport == "stdio":
        raise click.ClickException(
            f"{name} is started by a command on this machine, so it has no login. If it"
            " needs a key, refer to it in its `env` settings (`toolfold config edit`): ${NAME} for a variable"
            " of the environment, ${user:NAME} for a credential of each user (docs/logins.md)."
        )
    if user is not None:
        require_per_user_server(invocation, name)
        if not uses_login(server):
            raise click.ClickException(
                f"The settings of {name} name credentials of users, so it has no logins of users. Store a"
                f" credential with `toolfold credentials set {name} NAME --user {user}`."
            )
    logins, environment = _open_logins(invocation, name, user)
    issuer = ""
    if user is not None and server.oauth.client_id:
        installation, variables = _open_logins(invocation, name, None)
        issuer = find_client_issuer(name, server, installation, environment=variables)
    opener = None if no_browser else find_browser(config.environment)
    visit = _make_visitor(opener) if opener or no_browser or sys.stdin.isatty() else None
    work = log_in(
        name,
        server,
        logins,
        environment=environment,
        open_url=visit,
        timeout_s=seconds,
        issuer=issuer,
    )
    standing = asyncio.run(work)
    if user is None:
        ListingCache(config.paths.cache_dir / "mcp").clear_failure(name)
    _print_login(name, standing, user)


@click.command("logout", short_help="Delete the stored login of a server.")
@click.argument("name")
@click.option("--user", metavar="NAME", help="Delete the login of this user.")
@click.pass_obj
def logout(invocation: Invocation, name: str, user: str | None) -> None:
    """Delete the stored login of a server, and revoke it at the issuer if the issuer supports that."""
    from toolfold.mcp.oauth import log_out

    config = invocation.load_config()
    server = config.mcp.servers.get(name)
    logins, environment = _open_logins(invocation, name, user, needs_credentials=False)
    was_logged_in = asyncio.run(log_out(name, server, logins, environment=environment))
    if not was_logged_in and server is None:
        raise unknown_server_error(name, config.mcp.servers)
    print_line(f"{'logged out of' if was_logged_in else 'there was no stored login for'} {escape_text(name)}")


def _open_logins(
    invocation: Invocation, server: str, user: str | None, *, needs_credentials: bool = True
) -> tuple[LoginStore, Mapping[str, str]]:
    """Return the store of a user's or the installation's logins, and the values of `${NAME}` references.

    Unless `needs_credentials` is set, credentials that cannot be decrypted count as none.
    """
    from toolfold.mcp.setting_references import add_credentials
    from toolfold.mcp.user_credentials import open_logins

    config = invocation.load_config()
    user_id, database = find_user_id(invocation, user), use_database(config)
    credentials = cache(lambda: open_store(invocation))
    if user is not None or database is not None:
        credentials()  # now: threads cannot open it
    logins = open_logins(config, database, credentials, user_id)
    if user is None:
        return logins, config.environment
    try:
        loaded = credentials().load(user_id, server)
    except ConfigError as error:
        if needs_credentials:
            raise
        print_note(f"the login may not be revoked at the issuer: {error.problem}")
        loaded = {}
    return logins, add_credentials(config.environment, loaded)


def login_directory(config: Config) -> Path:
    """Return the directory that stores all OAuth logins."""
    return config.paths.state_dir / "oauth"


def _make_visitor(opener: Callable[[str], object] | None) -> Callable[[str], str | None]:
    def visit(address: str) -> str | None:
        print_note(f"open this URL to log in:\n  {escape_text(make_visible(address))}")
        if opener is not None:
            opener(address)
            return None
        if not sys.stdin.isatty():
            return None
        answer: str = click.prompt("URL that the browser shows after the login", err=True)
        return answer.strip()

    return visit


def _print_login(name: str, now: LoginStatus, user: str | None) -> None:
    who = f" for {escape_text(user)}" if user else ""
    print_line(f"logged in to {escape_text(name)}{who} at {escape_text(make_visible(now.issuer))}")
    if now.scopes:
        print_line(f"  scopes: {escape_text(make_visible(', '.join(now.scopes)))}")
    if now.expires is not None:
        left = max(0, now.expires - time.time()) / 60
        print_line(
            f"  the token expires in {left:.0f} min" + (" and is then refreshed" if now.is_usable else "")
        )
    if user is None:
        print_line(f"next: toolfold mcp test {escape_text(name)}")
