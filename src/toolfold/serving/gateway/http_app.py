"""The gateway over HTTP: an ASGI app for Streamable HTTP behind an access policy.

The policy checks every request before the protocol sees it: its Host, its Origin and its token. On loopback a
client needs no token as long as none exists, or if the configuration allows that; on other addresses every
client needs one. The token is removed from the request: no server behind the gateway ever sees it.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack

from toolfold.core.errors import ConfigError
from toolfold.mcp.sdk_compat import load_sdk
from toolfold.serving.gateway.client_tokens import ANONYMOUS, GatewayClient, TokenStore
from toolfold.serving.gateway.control import serve_control
from toolfold.serving.gateway.http_sessions import Scope, Send, make_limited_manager
from toolfold.serving.gateway.oauth import OAuthResource, ResourceMetadataApp
from toolfold.serving.gateway.request_bodies import (
    MAX_REQUEST_BYTES,
    ClientGone,
    Receive,
    RequestBodies,
    RequestRefused,
    replay_body,
    require_readable,
)
from toolfold.serving.gateway.request_origin import is_accepted_host, is_accepted_origin
from toolfold.serving.gateway.server import CLIENT_SCOPE_KEY, Gateway
from toolfold.serving.gateway.shared_sessions import SharedSessions
from toolfold.serving.identity import is_jwt
from toolfold.state.database import DatabaseUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import uvicorn
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from starlette.applications import Starlette
    from starlette.routing import Route

    from toolfold.runtime.runtime import Runtime

log = logging.getLogger(__name__)

App = Callable[[Scope, Receive, Send], Awaitable[None]]
_METHODS = frozenset({"POST", "GET", "DELETE"})
_UNIQUE_HEADERS = frozenset({"host", "origin", "authorization", "mcp-session-id"})
_TOKEN_NEEDED = "This gateway needs a token. Ask its administrator for one (`toolfold token add NAME`)."  # noqa: S105
_TOKEN_UNKNOWN = (
    "This token is not valid: it is mistyped or was revoked. Ask the administrator of the gateway for one"  # noqa: S105
    " (`toolfold token add NAME`)."
)

_CHALLENGE = 'Bearer realm="toolfold"'
_FILES_UNREADABLE = (
    "The gateway cannot check tokens now: a file with tokens or users cannot be read. See its log."
)
_TOKENS_UNKNOWN = "The gateway cannot check tokens now: its database cannot be reached. Try again later."


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPolicy:
    """Rules that decide which HTTP requests the gateway accepts, and which client made each request."""

    tokens: TokenStore
    anonymous_client: GatewayClient | None
    """The client of requests without a token; None if every request needs one."""
    allow_anonymous: bool = False
    """True if requests without a token are accepted although tokens exist."""
    hosts: frozenset[str] = frozenset()
    """Accepted values of `Host` in addition to loopback, without a port."""
    origins: frozenset[str] = frozenset()
    oauth: OAuthResource | None = None
    """Finds the clients of access tokens; None if no identity provider is configured."""

    def find_refusal(self, headers: MutableMapping[str, str]) -> tuple[int, str] | None:
        """Return status and message for a request with a wrong Host or Origin; None if both are accepted."""
        if not is_accepted_host(headers.get("host", ""), self.hosts):
            return 421, "This host name is not known to the gateway. To accept it, add it to gateway.hosts."
        origin = headers.get("origin")
        if origin is not None and not is_accepted_origin(origin, self.origins):
            return (
                403,
                "Requests from this web page are refused. To accept them, add its origin to gateway.origins.",
            )
        return None

    @property
    def requires_token(self) -> bool:
        """Return True if every client currently needs a token."""
        is_in_use = self.oauth is not None or self.tokens.are_in_use()
        return self.anonymous_client is None or (not self.allow_anonymous and is_in_use)

    @property
    def is_local(self) -> bool:
        """Return True if only programs on this machine can connect to the gateway."""
        return self.anonymous_client is not None and not self.hosts

    def authenticate(self, headers: MutableMapping[str, str]) -> GatewayClient | None:
        """Return the client that made the request; None if the request is refused.

        A wrong token is refused even where none is needed. Raises RequestRefused if tokens cannot be checked.
        """
        if "authorization" not in headers:
            return None if self.requires_token else self.anonymous_client
        token = _read_bearer_token(headers)
        return None if token is None else self.find_client(token)

    async def prepare(self, headers: Mapping[str, str]) -> None:
        """Fetch the data that `authenticate` needs to verify an access token. Raises RequestRefused."""
        await self.prepare_token(_read_bearer_token(headers) or "")

    async def prepare_token(self, token: str) -> None:
        """Fetch the keys for an access token and create the token's user, both required by `find_client`.

        Nothing is done for other tokens. Raises RequestRefused.
        """
        if self.oauth is not None and is_jwt(token):
            await self.oauth.prepare(token)

    def find_client(self, token: str) -> GatewayClient | None:
        """Return the client of a token; None if the token is unknown. Raises RequestRefused."""
        if self.oauth is not None and is_jwt(token):
            return self.oauth.find_client(token)
        return self.find_token_client(token)

    def find_token_client(self, token: str) -> GatewayClient | None:
        """Return the client of a token created by `toolfold token add`; None if the token is unknown."""
        try:
            return self.tokens.find(token)
        except DatabaseUnavailable:  # logged once by what follows the database's changes
            raise RequestRefused(503, _TOKENS_UNKNOWN) from None
        except ConfigError as error:
            log.error("a request was refused because tokens cannot be checked: %s", error)
            raise RequestRefused(503, _FILES_UNREADABLE) from None

    def describe_refused_token(self, token: str) -> str:
        """Return why an existing token is refused, for the log; empty for an unknown token."""
        try:
            return self.tokens.describe_refusal(token) if token else ""
        except (DatabaseUnavailable, ConfigError):
            return ""

    def is_accepted(self, headers: MutableMapping[str, str]) -> bool:
        """Return True if a request with these headers would be accepted now."""
        try:
            return self.authenticate(headers) is not None
        except RequestRefused:
            return False


class OpenRequests:
    """HTTP requests in progress; ends the requests of clients that are no longer accepted."""

    def __init__(self) -> None:
        self._open: set[GuardedRequest] = set()

    @contextmanager
    def track(self, request: GuardedRequest) -> Iterator[None]:
        """Register a request as in progress during a `with` block."""
        self._open.add(request)
        try:
            yield
        finally:
            self._open.discard(request)

    def end_refused(self) -> None:
        """End the event streams and other responses of clients that are no longer accepted."""
        for each in self._open:
            if not each.is_accepted():
                each.end()


class GuardedRequest:
    """A request in progress; the app sees a disconnect once the client is no longer accepted."""

    def __init__(self, is_accepted: Callable[[], bool], receive: Receive, send: Send) -> None:
        self.is_accepted, self._receive = is_accepted, receive
        self._send_checked = send_while_valid(is_accepted, send)
        self._has_body = self._has_started = self._has_ended = False
        self._waits: set[asyncio.Timeout] = set()
        """Calls of `receive` that wait for the client to close the connection."""

    def end(self) -> None:
        """Report to the app that the client has closed the connection."""
        if not self._has_ended:
            self._has_ended = True
            for each in self._waits:
                each.reschedule(0.0)  # in the past

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send a part of the response, or end the response if the client is no longer accepted."""
        self._has_started = self._has_started or message["type"] == "http.response.start"
        await self._send_checked(message)

    async def receive(self) -> MutableMapping[str, Any]:
        """Return the body, then a disconnect when the client disconnects or is no longer accepted."""
        if not self._has_body:
            message = await self._receive()
            self._has_body = not message.get("more_body")
            return message
        try:
            if not self._has_ended:
                return await self._receive_until_ended()
        except TimeoutError:
            if not self._has_ended:
                raise
        if self._has_started:
            await self.send({"type": "http.response.body", "body": b"", "more_body": True})
        return {"type": "http.disconnect"}

    async def _receive_until_ended(self) -> MutableMapping[str, Any]:
        """Return the next ASGI message. Raises TimeoutError if `end` is called first.

        A timeout needs no task, unlike waiting for both of two things.
        """
        async with asyncio.timeout(None) as wait:
            self._waits.add(wait)
            try:
                return await self._receive()
            finally:
                self._waits.discard(wait)


def guard_app(app: App, policy: AccessPolicy, requests: OpenRequests | None = None) -> App:
    """Return an ASGI app that passes on only the requests that the policy accepts."""
    bodies, requests = RequestBodies(), requests or OpenRequests()

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        with ExitStack() as stack:
            try:
                headers = parse_headers(scope)
                client = await _admit_client(policy, headers)
                require_readable(scope["method"], headers)
                if scope["method"] == "POST":
                    reservation = stack.enter_context(bodies.reserve(client.id))
                    receive = replay_body(await bodies.read_reserved(reservation, receive), receive)
            except RequestRefused as error:
                log.info("a request was refused with status %d: %s", error.status, error.log_text)
                await _send_error(send, error)
                return
            except ClientGone:
                return
            request = GuardedRequest(lambda: policy.is_accepted(headers), receive, send)
            stack.enter_context(requests.track(request))
            await app(_authenticated_scope(scope, client), request.receive, request.send)

    return handle


async def _admit_client(policy: AccessPolicy, headers: dict[str, str]) -> GatewayClient:
    """Return the client that made the HTTP request. Raises RequestRefused if it is not accepted."""
    if refusal := policy.find_refusal(headers):
        raise RequestRefused(*refusal)
    await policy.prepare(headers)
    client = policy.authenticate(headers)
    if client is None:
        problem = _TOKEN_UNKNOWN if "authorization" in headers else _TOKEN_NEEDED
        challenge = policy.oauth.challenge if policy.oauth else ""
        log_text = policy.describe_refused_token(_read_bearer_token(headers) or "")
        raise RequestRefused(401, problem, challenge=challenge, log_text=log_text)
    return client


def _read_bearer_token(headers: Mapping[str, str]) -> str | None:
    """Return the bearer token in the Authorization header; None if there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def parse_headers(scope: Scope) -> dict[str, str]:
    """Return the HTTP headers of a request by name.

    Raises RequestRefused if a header that decides about access is repeated: a proxy may use the other value.
    """
    headers: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1").lower()
        if name in headers and name in _UNIQUE_HEADERS:
            raise RequestRefused(400, f"The header {name} must not be repeated.")
        headers[name] = value.decode("latin-1")
    return headers


def send_while_valid(is_accepted: Callable[[], bool], send: Send) -> Send:
    """Return a `send` function that ends the response once the client is no longer accepted.

    While a response or a stream is in progress its token may be revoked, or the first token may be created,
    so that every client needs one.
    """
    has_ended = False

    async def send_checked(message: MutableMapping[str, Any]) -> None:
        nonlocal has_ended
        if has_ended:
            return  # the app gets a disconnect from uvicorn, as if the client had closed the connection
        has_ended = message["type"] == "http.response.body" and not is_accepted()
        await send({"type": "http.response.body", "body": b""} if has_ended else message)

    return send_checked


def _authenticated_scope(scope: Scope, client: GatewayClient) -> Scope:
    """Return the ASGI scope with the client's identity and without the client's token."""
    headers = [(name, value) for name, value in scope["headers"] if name.lower() != b"authorization"]
    return {**scope, "headers": headers, CLIENT_SCOPE_KEY: client, "user": _make_user(client.id)}


@functools.lru_cache(maxsize=256)
def _make_user(client_id: str) -> AuthenticatedUser:
    """Return a user object for the client, which the SDK compares with a session's owner."""
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.auth.provider import AccessToken

    return AuthenticatedUser(AccessToken(token="-", client_id=client_id, scopes=[]))  # noqa: S106 - none


async def _send_error(send: Send, error: RequestRefused) -> None:
    body = json.dumps({"error": error.problem}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),  # the rest of the request is not read
    ]
    if challenge := error.challenge or (_CHALLENGE if error.status == 401 else ""):
        headers.append((b"www-authenticate", challenge.encode("latin-1")))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class ServerOptions(TypedDict, total=False):
    """Options of uvicorn that callers of `make_server_config` can set."""

    log_config: None
    log_level: str
    backlog: int
    access_log: bool
    timeout_graceful_shutdown: int


def make_server_config(app: App | Starlette, **options: Unpack[ServerOptions]) -> uvicorn.Config:
    """Return uvicorn's configuration for the gateway, with limits on each connection."""
    import uvicorn

    from toolfold.serving.gateway.bounded_protocol import make_bounded_protocol
    from toolfold.serving.gateway.uvicorn_connections import KEEP_ALIVE_TIMEOUT_S

    # No WebSockets: they are not used, and every request would be checked for them. No proxy headers: a
    # client could fake its address, and so hide which process of this machine it is. No server header: the
    # model proxy passes on that of the provider.
    return uvicorn.Config(
        app,
        http=make_bounded_protocol(),
        lifespan="on",
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_TIMEOUT_S,
        **options,
    )


class MountedApp(Protocol):
    """ASGI app served alongside the gateway; it controls access to its paths itself."""

    @property
    def path(self) -> str:
        """Return the URL paths that this app serves, in the notation of starlette's routes."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    async def close(self) -> None:
        """Close the connections and other resources of the app when the server stops."""


def make_app(
    runtime: Runtime,
    policy: AccessPolicy,
    *,
    path: str = "/mcp",
    json_response: bool = False,
    on_start: Callable[[Gateway], object] | None = None,
    beside: Sequence[MountedApp] = (),
) -> Starlette:
    """Return an ASGI app that serves the gateway at `path`, and each app in `beside` at its own path.

    `on_start` gets the gateway before the first request.
    """
    load_sdk()  # before the imports below: servers of the runtime may be loading it in another thread
    from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
    from starlette.routing import Route

    gateway = Gateway(
        runtime, default_client=policy.anonymous_client, is_local=policy.is_local, tokens=policy.tokens
    )
    if on_start:
        on_start(gateway)
    manager = _make_session_manager(gateway, json_response)
    sdk_app: App = StreamableHTTPASGIApp(manager)
    if runtime.database is not None:
        sdk_app = SharedSessions(runtime.database).observe(
            sdk_app, lambda: manager.open_sessions, manager.discard_open_session
        )
    requests = OpenRequests()
    gateway.on_tokens_changed = requests.end_refused
    serve_gateway = guard_app(sdk_app, policy, requests)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            async with manager.run(), serve_control(gateway):
                yield
        finally:
            gateway.close()
            for each in beside:
                await each.close()

    routes = [
        Route(path, endpoint=_Endpoint(serve_gateway)),
        *(Route(each.path, endpoint=each) for each in (*beside, *_describe_resource(policy))),
        *(_redirect_to_folder(each.path) for each in beside if "/{" in each.path),
    ]
    app = _make_direct_app_class(path, serve_gateway)(routes=routes, lifespan=lifespan)
    app.router.redirect_slashes = False  # it would redirect to a Host that no policy has checked
    return app


def _make_session_manager(gateway: Gateway, json_response: bool) -> Any:
    """Return the SDK's session manager for the MCP sessions of all HTTP clients."""
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp.server.transport_security import TransportSecuritySettings

    manager_class = make_limited_manager(
        StreamableHTTPSessionManager, lambda scope: scope[CLIENT_SCOPE_KEY], gateway.is_busy
    )
    return manager_class(
        gateway.make_server(),
        json_response=json_response,
        max_request_body_size=MAX_REQUEST_BYTES,
        # The access policy has checked the host name already.
        security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )


def _make_direct_app_class(path: str, serve_gateway: App) -> type[Starlette]:
    """Return a Starlette class that passes MCP requests to the gateway without middleware and routing."""
    from starlette.applications import Starlette

    paths = (path, f"{path}/")

    class GatewayApp(Starlette):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["path"] in paths and scope["method"] in _METHODS:
                await serve_gateway(scope, receive, send)
            else:
                await super().__call__(scope, receive, send)

    return GatewayApp


def _redirect_to_folder(path: str) -> Route:
    """Return a route that redirects `/ui` to `/ui/`, for an app at `/ui/{path:path}`."""
    from starlette.responses import RedirectResponse
    from starlette.routing import Route

    folder = path.partition("{")[0]
    return Route(folder.rstrip("/"), lambda _: RedirectResponse(folder))


def _describe_resource(policy: AccessPolicy) -> list[ResourceMetadataApp]:
    """Return the apps that tell OAuth clients where to get a token; empty if OAuth is not configured."""
    if policy.oauth is None:
        return []
    return [ResourceMetadataApp(policy.oauth, policy, path) for path in policy.oauth.metadata_paths]


class _Endpoint:
    """ASGI app as an object, because Starlette would call a function with a Request instead."""

    def __init__(self, inner: App) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._inner(scope, receive, send)


def make_access_policy(
    host: str,
    tokens: TokenStore,
    *,
    toolsets: tuple[str, ...] | None,
    hosts: tuple[str, ...],
    origins: tuple[str, ...],
    allow_anonymous: bool = False,
    oauth: OAuthResource | None = None,
) -> AccessPolicy:
    """Return the access policy for an address. Raises ConfigError if a token is required but none exists."""
    if is_loopback(host):
        return AccessPolicy(
            tokens=tokens,
            anonymous_client=GatewayClient(ANONYMOUS, toolsets),
            allow_anonymous=allow_anonymous,
            hosts=frozenset(map(str.lower, hosts)),
            origins=frozenset(origins),
            oauth=oauth,
        )
    if oauth is None and not tokens.list_clients():
        raise ConfigError(
            f"{host} can be reached from other machines, so clients need a token, but no token exists",
            hint="Create a token with `toolfold token add <name>`, or listen on 127.0.0.1.",
        )
    known = {host.lower(), *map(str.lower, hosts)} - {"0.0.0.0", "::"}  # noqa: S104 - these are no host names
    return AccessPolicy(
        tokens=tokens,
        anonymous_client=None,
        hosts=frozenset(known),
        origins=frozenset(origins),
        oauth=oauth,
    )
