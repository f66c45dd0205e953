"""Web pages on which users of the gateway log in to MCP servers that require a login per user.

A link names a user and a server. Whoever opens it must show to be that user, with a token of the gateway or a
session of the dashboard: otherwise one person could be made to log in for another. Then the browser is sent
to the issuer of the server, and back with a state that was made for this browser only. The tokens are stored
for the user of the link and never reach the browser.
"""

from __future__ import annotations

import asyncio
import hashlib
import html
import logging
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from toolfold.core.errors import ConfigError, ToolfoldError, shorten
from toolfold.core.invisible_characters import remove_invisible
from toolfold.mcp.faults import ServerFailed
from toolfold.mcp.oauth.redirect_listener import AuthorizationResponse, parse_redirect
from toolfold.serving.gateway.browser_requests import read_cookie, require_own_host, require_own_page
from toolfold.serving.gateway.http_app import AccessPolicy, parse_headers
from toolfold.serving.gateway.login_links import LocalLoginLinks, LoginLink, LoginLinks, SharedLoginLinks
from toolfold.serving.gateway.request_bodies import ClientGone, RequestRefused
from toolfold.state.database import DatabaseError

if TYPE_CHECKING:
    from toolfold.runtime.runtime import Runtime
    from toolfold.serving.gateway.http_sessions import Scope, Send
    from toolfold.serving.gateway.request_bodies import Receive

log = logging.getLogger(__name__)

PREFIX = "/ui/mcp-login/"
"""Below `/ui/`, so that browsers send the cookie of the dashboard, and load balancers know the browser."""
CALLBACK_PATH = "callback"
LOGIN_TIMEOUT_S = 600.0
START_TIMEOUT_S = 60.0
FINISH_TIMEOUT_S = 120.0
BODY_TIMEOUT_S = 5.0
MAX_BODY_BYTES = 16_384
MAX_PENDING_LOGINS = 200
"""Logins in progress of all users."""
MAX_OPEN_REQUESTS = 100
MAX_FAILURES = 10
"""Wrong tokens after which a link becomes invalid."""
MAX_COUNTED_LINKS = 1_000
_CODE = re.compile(r"[A-Za-z0-9_-]{43}")
_UNAVAILABLE = "Logins cannot be checked now. Try again later."
_GET_ANOTHER_LINK = "Call the tool again to get another link."
"""End of the errors after a link was used: it cannot be opened again."""
_LINK_INVALID = "This link was already used or has expired. Call the tool again to get another one."
_USER_GONE = "The user of this login was removed or disabled."
_STATE_INVALID = (
    f"This login was not started in this browser, has ended, or took too long. {_GET_ANOTHER_LINK}"
)
_SECURITY_HEADERS = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # With `no-referrer` browsers send the form with `Origin: null`, which is refused.
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    ),
)


@dataclass(eq=False)
class _PendingLogin:
    """Login in progress, which waits for the redirect from the OAuth issuer."""

    link: LoginLink
    uri: str
    """The redirect URI."""
    browser: str
    """Hash of the cookie of the browser that has started the login."""
    login_url: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """URL of the issuer's login page."""
    response: asyncio.Future[AuthorizationResponse] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    state: str = ""
    task: asyncio.Task[None] | None = None

    async def wait_for_response(self, state: str) -> AuthorizationResponse:
        """Wait for the OAuth redirect with the given state and return its authorization response."""
        self.state = state
        return await self.response


class LoginPages:
    """ASGI app for the login pages below `/ui/mcp-login/`. Only `make_link` may be called in any thread."""

    path = PREFIX + "{path:path}"

    def __init__(
        self,
        runtime: Runtime,
        policy: AccessPolicy,
        url: str,
        find_browser_user: Callable[[Mapping[str, str]], str] = lambda _headers: "",
    ) -> None:
        """Create the login pages; `url` is the URL of the gateway for browsers.

        `find_browser_user` returns the id of the user who is signed in to the dashboard, by the headers of a
        request; empty if there is none.
        """
        self._runtime, self._policy = runtime, policy
        self._url, self._find_browser_user = url.rstrip("/") + PREFIX, find_browser_user
        database = runtime.database
        self._links: LoginLinks = LocalLoginLinks() if database is None else SharedLoginLinks(database)
        self._pending: set[_PendingLogin] = set()
        self._failures: OrderedDict[str, int] = OrderedDict()
        """Number of wrong tokens that were sent with a link, by its secret part."""
        self._open_requests = 0

    def make_link(self, user_id: str, server: str) -> str:
        """Return a link with which a user can log in to a server once. Raises DatabaseError."""
        return self._url + self._links.create(user_id, server)

    async def close(self) -> None:
        """Cancel unfinished logins."""
        tasks = [each.task for each in self._pending if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        if scope["type"] != "http":
            return
        try:
            headers = parse_headers(scope)
            if refusal := self._policy.find_refusal({"host": headers.get("host", "")}):
                raise RequestRefused(*refusal)
            if self._open_requests >= MAX_OPEN_REQUESTS:
                raise RequestRefused(503, "Too many requests are open. Try again later.")
            self._open_requests += 1
            try:
                await self._serve(scope, headers, receive, send)
            finally:
                self._open_requests -= 1
        except RequestRefused as error:
            log.info("a request of a login page was refused with status %d: %s", error.status, error.problem)
            await _send_page(send, error.status, "Not logged in", f"<p>{html.escape(error.problem)}</p>")
        except (DatabaseError, ConfigError) as error:
            log.error("a login to an MCP server could not be checked: %s", error)
            await _send_page(send, 503, "Not logged in", f"<p>{_UNAVAILABLE}</p>")
        except ClientGone:
            return

    async def _serve(self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send) -> None:
        path, method = scope["path"].removeprefix(PREFIX), scope["method"]
        if path == CALLBACK_PATH:
            if method != "GET":
                raise RequestRefused(405, "This path can only be read.")
            await self._finish(scope["query_string"].decode("latin-1"), headers, send)
        elif method == "GET":
            await self._show_form(path, headers, send)
        elif method == "POST":
            await self._start(path, headers, receive, send)
        else:
            raise RequestRefused(405, "This path accepts only GET and POST.")

    async def _show_form(self, code: str, headers: Mapping[str, str], send: Send) -> None:
        """Show the user and server of the login; ask for a token unless the browser is signed in."""
        link, name = await self._find_link(code)
        is_known = self._find_browser_user(headers) == link.user_id
        field_text = (
            ""
            if is_known
            else "<p><label>Your Toolfold token, so that nobody else can log in for you:<br>"
            '<input name="token" type="password" autocomplete="off" size="50" autofocus></label></p>'
            "<p>If you log in to the dashboard with an identity provider, sign in there first"
            " (<a href='/ui/'>dashboard</a>) and leave this empty.</p>"
        )
        body = (
            f"<p>Log in to the MCP server <b>{html.escape(link.server)}</b> for the Toolfold user"
            f" <b>{html.escape(name)}</b>. Calls of this user will use the account with which you log in.</p>"
            f'<form method="post">{field_text}<button>Continue</button></form>'
        )
        await _send_page(send, 200, f"Log in to {link.server}", body)

    async def _start(self, code: str, headers: Mapping[str, str], receive: Receive, send: Send) -> None:
        """Verify the user, invalidate the link, and redirect the browser to the server's OAuth issuer."""
        require_own_host(self._policy, headers)
        require_own_page("POST", headers)
        link, _ = await self._find_link(code)
        form = await _read_form(receive)
        await self._require_same_user(code, link, headers, form.get("token", "").strip())
        cookie = secrets.token_urlsafe(32)
        pending = self._reserve_login(link, cookie)  # first: a refusal must not use up the link
        try:
            if await asyncio.to_thread(self._links.use, code) != link:
                raise RequestRefused(404, _LINK_INVALID)
            await self._start_login(pending)
        except BaseException:
            self._cancel(pending)
            raise
        set_cookie = self._make_cookie(pending.state, cookie, LOGIN_TIMEOUT_S)
        await _send(send, 303, [(b"location", pending.login_url.result().encode()), set_cookie], b"")

    def _make_cookie(self, state: str, value: str, max_age_s: float) -> tuple[bytes, bytes]:
        # Lax, because the issuer's redirect comes from another site.
        secure = "; Secure" if self._url.startswith("https:") else ""
        text = (
            f"{_name_cookie(state)}={value}; Path={PREFIX}; HttpOnly; SameSite=Lax;"
            f" Max-Age={max_age_s:.0f}{secure}"
        )
        return b"set-cookie", text.encode()

    async def _require_same_user(
        self, code: str, link: LoginLink, headers: Mapping[str, str], token: str
    ) -> None:
        """Raise RequestRefused unless the browser has a token or a session of the link's user.

        After several wrong tokens the link becomes invalid.
        """
        if not token and self._find_browser_user(headers) == link.user_id:
            return
        client = None
        if token:
            await self._policy.prepare_token(token)
            client = self._policy.find_client(token)
        if client is None or not client.user_id or client.user_id != link.user_id:
            await self._count_failure(code)
            log.warning(
                "a login link for MCP server %r was opened without the token of the "
                "user to whom the link belongs",
                link.server,
            )
            raise RequestRefused(403, "This link belongs to another user, or the token is not valid.")

    async def _count_failure(self, code: str) -> None:
        self._failures[code] = self._failures.pop(code, 0) + 1
        if len(self._failures) > MAX_COUNTED_LINKS:
            self._failures.popitem(last=False)
        if self._failures[code] >= MAX_FAILURES:
            await asyncio.to_thread(self._links.use, code)

    def _reserve_login(self, link: LoginLink, cookie: str) -> _PendingLogin:
        """Add a login in progress. Raises RequestRefused if too many logins are in progress."""
        if sum(each.link != link for each in self._pending) >= MAX_PENDING_LOGINS:
            raise RequestRefused(503, "Too many logins are in progress. Try again later.")
        pending = _PendingLogin(link, self._url + CALLBACK_PATH, _hash_text(cookie))
        self._pending.add(pending)
        return pending

    async def _start_login(self, pending: _PendingLogin) -> None:
        """Start a login, and wait until the URL of the issuer's login page is known."""
        link, loop = pending.link, asyncio.get_running_loop()
        for each in [each for each in self._pending if each.link == link and each is not pending]:
            self._cancel(each)  # an abandoned attempt

        def use_url(url: str) -> None:
            if not pending.login_url.done():
                pending.login_url.set_result(url)

        def open_url(url: str) -> None:
            loop.call_soon_threadsafe(use_url, url)

        work = self._runtime.mcp.log_in_user(
            link.server, link.user_id, pending, open_url=open_url, timeout_s=LOGIN_TIMEOUT_S
        )
        pending.task = task = asyncio.create_task(work)
        self._pending.add(pending)  # again: another attempt of the same user may have removed it
        task.add_done_callback(lambda _: self._pending.discard(pending))
        waiting: set[asyncio.Future[Any]] = {task, pending.login_url}
        await asyncio.wait(waiting, timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if task.done() and not task.cancelled() and (error := task.exception()):
            raise _describe_failure(link, error)
        login_url = pending.login_url.result() if pending.login_url.done() else ""
        if not login_url.startswith(("https://", "http://")) or not pending.state:
            raise RequestRefused(504, f"The server did not say where to log in. {_GET_ANOTHER_LINK}")

    async def _finish(self, query: str, headers: Mapping[str, str], send: Send) -> None:
        """Handle the redirect from the OAuth issuer: check state and browser, and wait for the tokens."""
        pending = self._find_pending(query, headers)
        try:
            response = parse_redirect(f"{pending.uri}?{query}", pending.state)
        except ValueError as error:
            raise RequestRefused(
                403, f"The response of the issuer was rejected: {error}. {_GET_ANOTHER_LINK}"
            ) from None
        if pending.response.done() or pending.task is None:
            raise RequestRefused(403, _STATE_INVALID)
        if not await self._find_user_name(pending.link):
            self._cancel(pending)
            raise RequestRefused(403, _USER_GONE)
        if pending.response.done():  # another request with the same state came while the user was looked up
            raise RequestRefused(403, _STATE_INVALID)
        pending.response.set_result(response)
        await asyncio.wait({pending.task}, timeout=FINISH_TIMEOUT_S)
        if not pending.task.done():
            self._cancel(pending)
            raise RequestRefused(504, f"The issuer of the server does not answer. {_GET_ANOTHER_LINK}")
        if pending.task.cancelled():
            raise RequestRefused(403, _STATE_INVALID)
        if failure := pending.task.exception():
            raise _describe_failure(pending.link, failure)
        if not await self._find_user_name(pending.link):  # removed while the issuer answered
            logins = self._runtime.mcp.open_logins(pending.link.user_id)
            await asyncio.to_thread(logins.delete, pending.link.server)
            raise RequestRefused(403, _USER_GONE)
        log.info("a user has logged in to MCP server %r", pending.link.server)
        server = html.escape(pending.link.server)
        body = f"<p>You are logged in to {server}. Close this window.</p>"
        await _send_page(send, 200, "Logged in", body, [self._make_cookie(pending.state, "", 0)])

    def _find_pending(self, query: str, headers: Mapping[str, str]) -> _PendingLogin:
        """Return the login in progress for a redirect's state, if this browser has started it."""
        try:
            states = parse_qs(query, max_num_fields=50).get("state", [])
        except ValueError:
            states = []
        if len(states) != 1:
            raise RequestRefused(403, _STATE_INVALID)
        browser = _hash_text(read_cookie(headers, _name_cookie(states[0])))
        for each in self._pending:
            is_same_state = each.state and secrets.compare_digest(each.state.encode(), states[0].encode())
            if is_same_state and secrets.compare_digest(each.browser, browser):
                return each
        raise RequestRefused(403, _STATE_INVALID)

    def _cancel(self, pending: _PendingLogin) -> None:
        self._pending.discard(pending)
        if pending.task is not None:
            pending.task.cancel()

    async def _find_link(self, code: str) -> tuple[LoginLink, str]:
        """Return a login link and the name of its user. Raises RequestRefused if the link is invalid."""
        link = await asyncio.to_thread(self._links.find, code) if _CODE.fullmatch(code) else None
        name = await self._find_user_name(link)
        if link is None or not name:
            raise RequestRefused(404, _LINK_INVALID)
        return link, name

    async def _find_user_name(self, link: LoginLink | None) -> str:
        """Return the name of a link's user; empty if the user does not exist or is disabled."""
        if link is None:
            return ""
        users = self._policy.tokens.users
        user = await asyncio.to_thread(lambda: users.directory().find_active(link.user_id))
        return user.name if user else ""


def _describe_failure(link: LoginLink, error: BaseException) -> RequestRefused:
    if isinstance(error, (ServerFailed, ConfigError)):
        return RequestRefused(409, f"{shorten(remove_invisible(str(error)), 500)} {_GET_ANOTHER_LINK}")
    if isinstance(error, (ToolfoldError, OSError)):
        log.error("a login to MCP server %r has failed: %s", link.server, error)
    else:
        log.error("internal error during a login to MCP server %r", link.server, exc_info=error)
    return RequestRefused(
        503, f"The login has failed because of a problem of the gateway. {_GET_ANOTHER_LINK}"
    )


async def _read_form(receive: Receive) -> dict[str, str]:
    """Return the fields of a submitted HTML form. Raises RequestRefused, ClientGone."""
    body = b""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                body += message.get("body", b"")
                if len(body) > MAX_BODY_BYTES:
                    raise RequestRefused(413, "The form is too large.")
                if not message.get("more_body"):
                    break
        fields = parse_qs(body.decode("ascii"), max_num_fields=5)
    except TimeoutError:
        raise RequestRefused(408, "The form did not arrive in time.") from None
    except ValueError:
        raise RequestRefused(400, "The form cannot be read.") from None
    return {name: values[0] for name, values in fields.items() if len(values) == 1}


def _name_cookie(state: str) -> str:
    """Return a cookie name that is unique to a login, so that a browser can run several logins."""
    return f"toolfold_mcp_login_{_hash_text(state)[:16]}"


async def _send_page(
    send: Send, status: int, title: str, body: str, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Toolfold</title>'
        '<body style="font:1.1em sans-serif;margin:4em auto;max-width:36em">'
        f"<h1>{html.escape(title)}</h1>{body}</body></html>"
    )
    await _send(send, status, headers or [], page.encode("utf-8", "replace"))


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    sent = [*_SECURITY_HEADERS, *headers, (b"content-length", str(len(body)).encode())]
    if status >= 400:
        sent.append((b"connection", b"close"))  # the rest of the request may be unread
    await send({"type": "http.response.start", "status": status, "headers": sent})
    await send({"type": "http.response.body", "body": body})


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
