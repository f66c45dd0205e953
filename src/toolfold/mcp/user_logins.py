"""Ask a user of the gateway to log in to an MCP server, through the client that made the call.

A client that can open pages (URL elicitation) is asked to open the login page, and the call continues after
the login. Other clients get an error with the link. The link is of no use to others: its page asks who opens
it. Knows neither the page nor how logins are stored.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import TypeVar

from toolfold.mcp.call_relay import CallRelay
from toolfold.mcp.faults import NeedsLogin, NotStarted

T = TypeVar("T")

LINK_LIFETIME_S = 600.0
"""How long a link to the login page is valid."""
LOGIN_WAIT_S = 120.0
"""How long a call waits for its user to finish the login."""
ANSWER_TIMEOUT_S = 300.0
"""How long a call waits for its client to say that it has opened the page."""
POLL_INTERVAL_S = 0.5

MakeLink = Callable[[str, str], str]
"""Returns a link to the login page for a user id and a server. May block; raises ConfigError."""


class UserLogins:
    """Asks users to log in to MCP servers, and repeats their calls after the login."""

    def __init__(self) -> None:
        self.make_link: MakeLink | None = None
        """Makes links to the login page of the gateway; None if there is none."""

    async def retry_after_login(
        self,
        server: str,
        user_id: str,
        relay: CallRelay | None,
        send: Callable[[], Awaitable[T]],
        find_version: Callable[[], Awaitable[str]],
    ) -> T:
        """Send a request; if the user must log in first, ask for a login and send the request once more.

        `find_version` returns a text that differs after each login. Raises NeedsLogin if the user did not
        log in.
        """
        try:
            return await send()
        except NeedsLogin as error:
            if not user_id:
                raise
            before = await find_version()
            await self._ask_user(server, user_id, relay, error)
        if not await _wait_for_change(find_version, before):
            raise NeedsLogin(
                server,
                "was not logged in to in time.",
                advice="Finish the login in your browser, then try again.",
            )
        return await send()

    async def _ask_user(self, server: str, user_id: str, relay: CallRelay | None, error: NeedsLogin) -> None:
        """Ask the user to open the login page. Raises NeedsLogin unless the user accepts."""
        if self.make_link is None:
            advice = f"An administrator can log in for you: toolfold mcp login {server} --user USER"
            raise NeedsLogin(server, error.problem, advice=advice) from None
        try:
            link = await asyncio.to_thread(self.make_link, user_id, server)
        except (OSError, ValueError) as problem:
            raise NotStarted(server, f"requires a login, which cannot begin now: {problem}") from None
        if relay is None or relay.elicit is None or not _can_open_pages(relay):
            advice = (
                f"Open this link in your browser within {LINK_LIFETIME_S / 60:.0f} minutes, log in, then try"
                f" again: {link}"
            )
            raise NeedsLogin(server, error.problem, advice=advice) from None
        if not await _ask_client(server, relay, link):
            raise NeedsLogin(server, "requires a login, which was declined.", advice="Try again to log in.")


def _can_open_pages(relay: CallRelay) -> bool:
    """Return True if the client can open a login page, because it has declared URL elicitation."""
    declared = (relay.capabilities or {}).get("elicitation")
    return isinstance(declared, dict) and declared.get("url") is not None


async def _ask_client(server: str, relay: CallRelay, link: str) -> bool:
    from mcp_types import ElicitRequestURLParams

    params = ElicitRequestURLParams(
        message=f"Log in to the MCP server {server!r} as yourself, so that your calls use your own account.",
        url=link,
        elicitation_id=secrets.token_urlsafe(16),
    )
    assert relay.elicit is not None  # noqa: S101 - checked by the caller
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            answer = await relay.ask(relay.elicit, params)
    except TimeoutError:
        return False
    return bool(answer.action == "accept")


async def _wait_for_change(find_version: Callable[[], Awaitable[str]], before: str) -> bool:
    try:
        async with asyncio.timeout(LOGIN_WAIT_S):
            while await find_version() in ("", before):  # noqa: ASYNC110 - another replica may store it
                await asyncio.sleep(POLL_INTERVAL_S)
    except TimeoutError:
        return False
    return True
