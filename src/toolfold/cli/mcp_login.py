"""`toolfold mcp login` and `logout`: a person's login at a server that is reached over HTTP."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolfold.approval.visible import visible
from toolfold.cli.app import Invocation
from toolfold.cli.servers import unknown
from toolfold.cli.show import note, out, plain

if TYPE_CHECKING:
    from toolfold.config import Config
    from toolfold.sources.mcp.oauth import Standing


@click.command("login")
@click.argument("name")
@click.option("--no-browser", is_flag=True, help="Only show the address; for a browser on another machine.")
@click.option(
    "--seconds", default=300.0, type=click.FloatRange(1, 3_600), show_default=True, help="How long to wait."
)
@click.pass_obj
def login(invocation: Invocation, name: str, no_browser: bool, seconds: float) -> None:
    """Log in at a server, in your browser.

    Where there is no browser, open the address it shows on another machine, and paste back the address that
    browser ends at: it begins with http://127.0.0.1 and cannot be reached from there.
    """
    from toolfold.sources.mcp.kept import ListingCache
    from toolfold.sources.mcp.oauth import browser, log_in

    config = invocation.config()
    if name not in config.mcp.servers:
        raise unknown(name, config.mcp.servers)
    server = config.mcp.servers[name]
    if server.way == "stdio":
        raise click.ClickException(f"{name} is started here by a command; there is nowhere to log in.")
    opener = None if no_browser else browser(config.environment)
    visit = _visit(opener) if opener or no_browser or sys.stdin.isatty() else None
    work = log_in(name, server, logins(config), environment=config.environment, visit=visit, seconds=seconds)
    standing = asyncio.run(work)
    ListingCache(config.paths.cache_dir / "mcp").forgive(name)
    _tell(name, standing)


@click.command("logout", short_help="Forget the login at a server.")
@click.argument("name")
@click.pass_obj
def logout(invocation: Invocation, name: str) -> None:
    """Forget the login at a server, and tell its issuer where that can be done."""
    from toolfold.sources.mcp.oauth import log_out

    config = invocation.config()
    server = config.mcp.servers.get(name)
    was = asyncio.run(log_out(name, server, logins(config), environment=config.environment))
    if not was and server is None:
        raise unknown(name, config.mcp.servers)
    out(f"{'logged out of' if was else 'there was no login at'} {plain(name)}")


def logins(config: Config) -> Path:
    """The folder of all logins."""
    return config.paths.state_dir / "oauth"


def _visit(opener: Callable[[str], object] | None) -> Callable[[str], str | None]:
    def visit(address: str) -> str | None:
        note(f"log in here:\n  {plain(visible(address))}")
        if opener is not None:
            opener(address)
            return None
        if not sys.stdin.isatty():
            return None
        said: str = click.prompt("The address your browser ended at", err=True)
        return said.strip()

    return visit


def _tell(name: str, now: Standing) -> None:
    out(f"logged in to {plain(name)} by {plain(visible(now.issuer))}")
    if now.scopes:
        out(f"  rights: {plain(visible(', '.join(now.scopes)))}")
    if now.expires is not None:
        left = max(0, now.expires - time.time()) / 60
        out(f"  the token is good for {left:.0f} min" + (" and is then renewed" if now.is_good else ""))
    out(f"next: toolfold mcp test {plain(name)}")
