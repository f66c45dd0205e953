"""The dashboard as an ASGI app: checks access, serves the page and its JSON interface.

Every request passes the same checks in the same order: host, origin, sign-in, then size and time limits. A
request that changes something must also come from a process that no tool call has started. A change that an
answer only proposes is made on its confirmation page. Knows HTTP; what the answers contain is up to the other
modules.
"""

from __future__ import annotations

import asyncio
import html
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from toolfold.core.errors import ConfigError, ToolfoldError, error_message
from toolfold.core.json_limits import MAX_ARGUMENT_ITEMS
from toolfold.core.types import Json, read_json
from toolfold.mcp.sdk_compat import load_sdk
from toolfold.safety.approval.prompting import UntrustedClient
from toolfold.safety.redaction import Redaction
from toolfold.serving.dashboard.confirmations import (
    PAGE_HEADERS,
    Confirmations,
    ProposedChange,
    render_page,
    render_result,
    require_document_request,
)
from toolfold.serving.dashboard.dashboard_access import (
    SESSION_LIFETIME_S,
    BrowserSession,
    SignedIn,
    SignIn,
    find_full_client,
    find_session,
    require_signed_in,
)
from toolfold.serving.dashboard.static_files import INDEX, load_static_files
from toolfold.serving.dashboard.texts import remove_known_secrets
from toolfold.serving.gateway.browser_requests import read_cookie, require_own_host, require_own_page
from toolfold.serving.gateway.client_tokens import GatewayClient
from toolfold.serving.gateway.http_app import AccessPolicy, parse_headers
from toolfold.serving.gateway.http_sessions import Scope, Send
from toolfold.serving.gateway.peers import PeerProcesses
from toolfold.serving.gateway.request_bodies import (
    MAX_REQUEST_BYTES,
    BodyLimits,
    ClientGone,
    Receive,
    RequestBodies,
    RequestRefused,
    require_readable,
)

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from toolfold.serving.dashboard.oidc import DashboardLogins

log = logging.getLogger(__name__)

MAX_VISITOR_BODY_BYTES = 4_000
"""A visitor who has not signed in sends only a code and a token."""
MAX_VISITOR_BUFFER_BYTES = 100 * MAX_VISITOR_BODY_BYTES
"""Bytes of unfinished bodies from one address, of visitors who have not signed in."""
MAX_VISITORS_BUFFER_BYTES = 10 * MAX_VISITOR_BUFFER_BYTES
VISITOR_BODY_TIMEOUT_S = 5.0
MAX_QUERY_CHARS = 4_000
MAX_QUERY_FIELDS = 50
MAX_OPEN_REQUESTS = 100
MAX_USER_REQUESTS = 50
"""Open requests with which users who are not administrators are refused, so that administrators are not."""
REQUEST_TIMEOUT_S = 120.0
LINK_INTERVAL_S = 10.0
"""The shortest time between two new links that an unknown browser may request."""
PREFIX = "/ui/"
CONFIRM_PATH = "confirm/"
DEMO_HEADER = "x-toolfold-demo"
"""Set to 1 by a page that shows sample data instead of the user's own."""
_ADMINISTRATORS_ONLY = "Only administrators may see and change this. You can see your own activity."

SECURITY_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
        b" base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)


@dataclass(frozen=True, slots=True)
class DashboardRequest:
    """A request from the dashboard's page that has passed all access checks."""

    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    client: GatewayClient | None = None
    """The client that has signed in; None if a link was enough."""

    def text(self, name: str) -> str:
        """Return a text field of the request's JSON body. Raises RequestRefused if it is missing."""
        value = self.body.get(name)
        if not isinstance(value, str) or not value:
            raise RequestRefused(400, f"The request needs the text {name!r}.")
        return value


Answerer = Callable[[DashboardRequest], Awaitable[Any]]
Streamer = Callable[[DashboardRequest], Any]


@dataclass(frozen=True, slots=True)
class Routes:
    """The JSON interface of the dashboard: the function that answers each path below `/ui/api/`."""

    reads: Mapping[str, Answerer]
    writes: Mapping[str, Answerer]
    streams: Mapping[str, Streamer]
    """Paths that answer with a stream of server-sent events."""
    own: Mapping[str, Answerer] = field(default_factory=dict)
    """Paths that show a user only what belongs to this user; the only ones for users without admin rights."""


class DashboardApp:
    """ASGI app that serves the dashboard's page and its JSON interface below `/ui/`."""

    path = PREFIX + "{path:path}"

    def __init__(
        self,
        routes: Routes,
        policy: AccessPolicy,
        redact: Redaction,
        *,
        port: int,
        print_link: Callable[[str], None],
        close: Callable[[], Awaitable[None]],
        make_logins: Callable[[str], DashboardLogins] | None = None,
        load_demo: Callable[[], Awaitable[Routes]] | None = None,
    ) -> None:
        """Create the app; `print_link` shows a one-time code to the person who started the program.

        `make_logins` returns the logins at an identity provider, for the name of the cookie. `load_demo`
        returns the routes to sample data.
        """
        self._routes, self._policy, self._redact = routes, policy, redact
        self._print_link, self._close, self._load_demo = print_link, close, load_demo
        self._files = load_static_files()
        self._cookie_name = f"toolfold_{port}"  # browsers share cookies between the ports of a host
        self._logins = make_logins(self._cookie_name) if make_logins else None
        self._peers = PeerProcesses()
        self._bodies = RequestBodies(
            BodyLimits(
                max_bytes=MAX_REQUEST_BYTES,
                max_items=MAX_ARGUMENT_ITEMS,
                max_client_bytes=4 * MAX_REQUEST_BYTES,
                max_total_bytes=4 * MAX_REQUEST_BYTES,
            )
        )
        small = BodyLimits(
            max_bytes=MAX_VISITOR_BODY_BYTES,
            max_items=10,
            max_client_bytes=MAX_VISITOR_BUFFER_BYTES,
            max_total_bytes=MAX_VISITORS_BUFFER_BYTES,
            timeout_s=VISITOR_BODY_TIMEOUT_S,
        )
        self._visitor_bodies, self._small_bodies = RequestBodies(small), RequestBodies(small)
        self._confirmations = Confirmations()
        self._open_requests = 0
        self._next_link = 0.0
        self.sign_in = SignIn(self._has_token)

    def find_user(self, headers: Mapping[str, str]) -> str:
        """Return the id of the user who is signed in, by the cookie of a request; empty if there is none."""
        return self.sign_in.find_user(read_cookie(headers, self._cookie_name))

    async def close(self) -> None:
        """Close the resources of the dashboard when the server stops."""
        await self._close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        if scope["type"] != "http":
            return
        path = scope["path"].removeprefix(PREFIX)
        try:
            headers = parse_headers(scope)
            require_own_host(self._policy, headers)
            if path.startswith("oidc/") and self._logins is not None:
                await self._serve_login(self._logins, path, scope, headers, send)
                return
            if path.startswith(CONFIRM_PATH):
                await self._serve_confirmation(path.removeprefix(CONFIRM_PATH), scope, headers, receive, send)
                return
            if not path.startswith("api/"):
                await self._send_file(path, scope["method"], headers, send)
                return
            await self._serve_api(path.removeprefix("api/"), scope, headers, receive, send)
        except RequestRefused as error:
            log.info("a request to the dashboard was refused with status %d: %s", error.status, error.problem)
            await _send_json(send, error.status, {"error": error.problem})
        except ClientGone:
            return

    async def _send_file(self, path: str, method: str, headers: Mapping[str, str], send: Send) -> None:
        if method not in ("GET", "HEAD"):
            raise RequestRefused(405, "This path can only be read.")
        # Paths without a file type are pages, which the browser draws.
        found = self._files.get(path if "." in path else INDEX)
        if found is None:
            raise RequestRefused(404, "There is no such file.")
        sent = [(b"content-type", found.media_type.encode()), (b"cache-control", b"no-cache")]
        sent += [(b"etag", found.etag.encode()), (b"vary", b"accept-encoding")]
        if headers.get("if-none-match") == found.etag:
            await _send_response(send, 304, sent, b"")
            return
        content = found.content
        if found.compressed and "gzip" in headers.get("accept-encoding", ""):
            content = found.compressed
            sent.append((b"content-encoding", b"gzip"))
        await _send_response(send, 200, sent, content if method == "GET" else b"")

    async def _serve_api(
        self, name: str, scope: Scope, headers: Mapping[str, str], receive: Receive, send: Send
    ) -> None:
        method = scope["method"]
        require_own_page(method, headers)
        require_readable(method, headers)
        if name in ("sign-in", "login", "new-link", "hello"):
            await self._serve_visitor(name, scope, headers, receive, send)
            return
        session = require_signed_in(self.sign_in, self._cookie_name, headers)
        limit = MAX_OPEN_REQUESTS if self._has_full_access(session) else MAX_USER_REQUESTS
        if self._open_requests >= limit:
            raise RequestRefused(503, "Too many requests of the page are open. Try again later.")
        self._open_requests += 1
        try:
            is_demo = headers.get(DEMO_HEADER) == "1"
            await self._serve_signed_in(name, scope, session, receive, send, is_demo=is_demo)
        finally:
            self._open_requests -= 1

    async def _serve_visitor(
        self, name: str, scope: Scope, headers: Mapping[str, str], receive: Receive, send: Send
    ) -> None:
        """Answer a browser that has not signed in."""
        if name == "hello" and scope["method"] == "GET":
            session = find_session(self.sign_in, self._cookie_name, headers)
            found = {"signed_in": session is not None, "needs_token": self._needs_token}
            is_limited = session is not None and not self._has_full_access(session)
            await _send_json(
                send, 200, {**found, "has_login": self._logins is not None, "is_limited": is_limited}
            )
            return
        if scope["method"] != "POST":
            raise RequestRefused(405, "This path accepts only POST.")
        address = (scope.get("client") or ("",))[0]
        body = await self._read_body(receive, self._visitor_bodies, address)
        if name == "new-link":
            self._print_new_link()
            await _send_json(send, 200, {})
        elif name == "login":
            await self._finish_login(DashboardRequest(body=body), scope, headers, send)
        else:
            await self._sign_in(DashboardRequest(body=body), scope, headers, send)

    async def _serve_login(
        self, logins: DashboardLogins, path: str, scope: Scope, headers: Mapping[str, str], send: Send
    ) -> None:
        """Redirect a browser to the identity provider, or handle the redirect back; show errors as a page."""
        if scope["method"] != "GET" or path not in ("oidc/login", "oidc/callback"):
            raise RequestRefused(404, "There is no such path.")
        try:
            if path == "oidc/login":
                url, cookie = await logins.start()
            else:
                query = _parse_unique_query(scope["query_string"])
                url, cookie = await logins.finish(headers, query), ""
        except RequestRefused as error:
            log.info("a login to the dashboard was refused with status %d: %s", error.status, error.problem)
            await _send_problem_page(send, error, PREFIX)
            return
        sent = [(b"location", url.encode()), (b"cache-control", b"no-store")]
        sent += [(b"set-cookie", cookie.encode())] if cookie else []
        await _send_response(send, 303, sent, b"")

    async def _serve_confirmation(
        self, name: str, scope: Scope, headers: Mapping[str, str], receive: Receive, send: Send
    ) -> None:
        """Show the page on which the user confirms a proposed change, or make the confirmed change."""
        back = PREFIX
        try:
            require_own_page(scope["method"], headers)
            require_document_request(headers)
            session = self.sign_in.find_session(read_cookie(headers, self._cookie_name))
            if session is None or not self._has_full_access(session):
                raise RequestRefused(401, "You are not signed in. Repeat the change in the dashboard.")
            if scope["method"] == "GET":
                page = self._confirmations.render_page(name, session.cookie_hash)
                await _send_page(send, 200, page)
                return
            if scope["method"] != "POST":
                raise RequestRefused(405, "This path accepts only GET and POST.")
            await self._require_user(scope, session.client)
            form = dict(_parse_fields(await self._small_bodies.read(session.cookie_hash, receive)))
            change = self._confirmations.take(name, session.cookie_hash, form.get("token", ""))
            back = change.back
            text = await self._run_answer(lambda _: asyncio.to_thread(change.apply), DashboardRequest())
        except RequestRefused as error:
            log.info("a confirmation was refused with status %d: %s", error.status, error.problem)
            await _send_problem_page(send, error, back)
            return
        if text:
            await _send_page(send, 200, render_result(text, back))
            return
        await _send_response(send, 303, [(b"location", back.encode()), (b"cache-control", b"no-store")], b"")

    async def _finish_login(
        self, request: DashboardRequest, scope: Scope, headers: Mapping[str, str], send: Send
    ) -> None:
        if self._logins is None:
            raise RequestRefused(404, "No identity provider is configured.")
        client = self._logins.redeem(request.text("code"), headers)
        await self._require_user(scope, client)
        cookie = read_cookie(headers, self._cookie_name)
        is_limited = not self._logins.is_admin(client)
        granted = self.sign_in.open_login_session(client, is_limited=is_limited, cookie=cookie)
        cookies = [self._make_cookie(granted), self._logins.clear_cookie()]
        sent = [(b"set-cookie", each.encode()) for each in cookies]
        await _send_json(send, 200, {"page_key": granted.page_key}, sent)

    def _make_cookie(self, granted: SignedIn) -> str:
        return (
            f"{self._cookie_name}={granted.cookie}; Path={PREFIX}; HttpOnly; SameSite=Strict;"
            f" Max-Age={SESSION_LIFETIME_S:.0f}{self._logins.cookie_attributes if self._logins else ''}"
        )

    @property
    def _needs_token(self) -> bool:
        """Return True if signing in requires a token, because other machines can reach the dashboard."""
        return self._policy.anonymous_client is None

    def _has_full_access(self, session: BrowserSession) -> bool:
        """Return True if a browser session has full access; logged-in users must be administrators."""
        if session.is_limited:
            return False
        client = session.client
        if client is None or not client.is_login:
            return True
        return self._logins is not None and self._logins.is_admin(client)

    def _has_token(self, client: GatewayClient) -> bool:
        if client.is_login:
            return self._logins is not None and self._logins.is_valid(client)
        try:
            return self._policy.tokens.is_valid(client) and self._policy.tokens.is_unlimited(client)
        except ConfigError as error:
            log.error("%s; browsers that signed in with a token are signed out", error)
            return False

    async def _sign_in(
        self, request: DashboardRequest, scope: Scope, headers: Mapping[str, str], send: Send
    ) -> None:
        token = str(request.body.get("token") or "")
        try:
            client = find_full_client(self._policy, token)
        except ConfigError as error:
            raise RequestRefused(503, self._redact(str(error))) from None
        await self._require_user(scope, client)
        # A wrong token is refused even where none is needed.
        may_enter = client is not None or not (token or self._needs_token)
        present = read_cookie(headers, self._cookie_name)
        granted = self.sign_in.redeem(request.text("code"), client, may_enter=may_enter, cookie=present)
        cookie = self._make_cookie(granted)
        await _send_json(send, 200, {"page_key": granted.page_key}, [(b"set-cookie", cookie.encode())])

    def _print_new_link(self) -> None:
        if time.monotonic() < self._next_link:
            raise RequestRefused(429, f"A link was printed less than {LINK_INTERVAL_S:g} seconds ago.")
        code = self.sign_in.create_requested_code()
        self._next_link = time.monotonic() + LINK_INTERVAL_S
        self._print_link(code)

    async def _require_user(self, scope: Scope, client: GatewayClient | None) -> None:
        """Raise RequestRefused if the request may come from a process that a tool call started.

        Where the process cannot be determined, for example behind a tunnel, `client`'s token is enough.
        """
        try:
            await self._peers.require_user(
                scope.get("client"), scope.get("server"), has_token=client is not None
            )
        except UntrustedClient as error:
            raise RequestRefused(403, f"Nothing was changed: {error}.") from None

    async def _serve_signed_in(
        self,
        name: str,
        scope: Scope,
        session: BrowserSession,
        receive: Receive,
        send: Send,
        *,
        is_demo: bool,
    ) -> None:
        routes, method = self._routes, scope["method"]
        query = _parse_query(scope["query_string"])
        if method == "POST" and name == "sign-out":
            await self._read_body(receive, self._small_bodies, session.cookie_hash)
            self.sign_in.sign_out(session)
            await _send_json(send, 200, {"logout_url": await self._find_logout_url(session)})
            return
        if method == "GET" and name in routes.own:
            await self._send_answer(routes.own[name], DashboardRequest(query, client=session.client), send)
            return
        if not self._has_full_access(session):  # everything that is not listed in `own` is refused
            raise RequestRefused(403, _ADMINISTRATORS_ONLY)
        if is_demo and self._load_demo is not None:
            routes = await self._load_demo()
        if method == "GET" and name in routes.streams:
            stream = routes.streams[name](DashboardRequest(query=query))

            def is_accepted() -> bool:
                # An open stream is not a request: it must not keep the session from expiring.
                return self.sign_in.is_open(session) and self._has_full_access(session)

            await self._send_stream(stream, is_accepted, receive, send)
            return
        answer = (routes.reads if method == "GET" else routes.writes if method == "POST" else {}).get(name)
        if answer is None:
            raise RequestRefused(404, "There is no such path.")
        body: Mapping[str, Any] = {}
        if method == "POST":
            await self._require_user(scope, session.client)
            body = await self._read_body(receive, self._bodies, session.cookie_hash)
        await self._send_answer(answer, DashboardRequest(query, body), send, session)

    async def _find_logout_url(self, session: BrowserSession) -> str:
        """Return the URL to log out of the identity provider; empty if the browser has no login there."""
        has_logged_in = session.client is not None and session.client.is_login
        return await self._logins.make_logout_url() if self._logins and has_logged_in else ""

    async def _send_answer(
        self, answer: Answerer, request: DashboardRequest, send: Send, session: BrowserSession | None = None
    ) -> None:
        """Send the JSON of an answer; for a change that it proposes, the address of the confirmation page."""
        result = await self._run_answer(answer, request)
        if isinstance(result, ProposedChange) and session is not None:
            name = self._confirmations.add(result, session.cookie_hash)
            result = {"confirm": f"{PREFIX}{CONFIRM_PATH}{name}"}
        await _send_json(send, 200, remove_known_secrets(result, self._redact))

    async def _run_answer(self, answer: Answerer, request: DashboardRequest) -> Any:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                return await answer(request)
        except TimeoutError:
            raise RequestRefused(504, "The request took too long.") from None
        except ToolfoldError as error:
            raise RequestRefused(409, self._redact(str(error))) from None
        except RequestRefused as error:
            raise RequestRefused(error.status, self._redact(error.problem)) from None
        except Exception as error:
            log.exception("a request of the dashboard failed")
            raise RequestRefused(500, self._redact(f"Internal error: {error_message(error)}")) from None

    async def _read_body(self, receive: Receive, bodies: RequestBodies, sender: str) -> Json:
        """Return the JSON body of a request; incomplete bodies of the same `sender` share a size limit."""
        content = await bodies.read(sender, receive)
        try:
            body = read_json(content.decode("utf-8")) if content else {}
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise RequestRefused(400, "The body must be a JSON object.")
        return body

    async def _send_stream(
        self, stream: Any, is_accepted: Callable[[], bool], receive: Receive, send: Send
    ) -> None:
        """Send server-sent events until the page closes the connection or its session ends."""
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": [*headers, *SECURITY_HEADERS]})
        sending = asyncio.ensure_future(_send_pieces(stream, is_accepted, send))
        watching = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await asyncio.wait({sending, watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (sending, watching):
                each.cancel()
            for each in (sending, watching):
                with suppress(asyncio.CancelledError):
                    await each
            await stream.aclose()


async def _send_pieces(stream: Any, is_accepted: Callable[[], bool], send: Send) -> None:
    async for piece in stream:
        if not is_accepted():
            break
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _parse_query(query: bytes) -> dict[str, str]:
    if len(query) > MAX_QUERY_CHARS:
        raise RequestRefused(414, f"The query is longer than {MAX_QUERY_CHARS:,} characters.")
    return dict(_parse_fields(query))


def _parse_fields(query: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query.decode("latin-1"), max_num_fields=MAX_QUERY_FIELDS)
    except ValueError:
        raise RequestRefused(400, f"The query has more than {MAX_QUERY_FIELDS} parameters.") from None


def _parse_unique_query(query: bytes) -> dict[str, str]:
    """Return the query parameters of a login redirect. Raises RequestRefused if one is repeated."""
    pairs = _parse_fields(query[: MAX_QUERY_CHARS + 1])
    if len(query) > MAX_QUERY_CHARS or len({name for name, _ in pairs}) != len(pairs):
        raise RequestRefused(
            400, "The response of the identity provider is too long or has a parameter twice."
        )
    return dict(pairs)


async def _send_problem_page(send: Send, error: RequestRefused, back: str) -> None:
    problem = f'<p role="alert">{html.escape(error.problem)}</p><p><a href="{html.escape(back)}">Back</a></p>'
    await _send_page(send, error.status, render_page("Nothing was changed", problem))


async def _send_page(send: Send, status: int, page: str) -> None:
    body = page.encode("utf-8", "replace")
    sent = [*PAGE_HEADERS, (b"content-length", str(len(body)).encode())]
    if status >= 400:
        sent.append((b"connection", b"close"))  # the rest of the request may be unread
    await send({"type": "http.response.start", "status": status, "headers": sent})
    await send({"type": "http.response.body", "body": body})


async def _send_json(
    send: Send, status: int, content: Any, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    sent = [(b"content-type", b"application/json"), (b"cache-control", b"no-store"), *(headers or ())]
    if status >= 400:
        sent.append((b"connection", b"close"))  # the rest of the request may be unread
    await _send_response(send, status, sent, body)


async def _send_response(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    sent = [*headers, (b"content-length", str(len(body)).encode()), *SECURITY_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": sent})
    await send({"type": "http.response.body", "body": body})


def make_standalone_app(dashboard: DashboardApp) -> Starlette:
    """Return an ASGI app that serves the dashboard alone, and closes it when the server stops."""
    load_sdk()  # starlette is also imported by the MCP SDK, in other threads
    from starlette.applications import Starlette
    from starlette.responses import RedirectResponse
    from starlette.routing import Route

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await dashboard.close()

    routes = [
        Route("/", lambda _: RedirectResponse(PREFIX)),
        Route(PREFIX.rstrip("/"), lambda _: RedirectResponse(PREFIX)),
        Route(dashboard.path, endpoint=dashboard),
    ]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.router.redirect_slashes = False  # it would redirect to a Host that no policy has checked
    return app
