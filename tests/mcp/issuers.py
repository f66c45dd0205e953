"""A real issuer of tokens and a real MCP server behind it, on loopback, in threads of the test.

Both are the MCP package's own server parts. Every request that reaches them is kept; what they do wrong is
set by the test. Knows nothing of the client.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode

import uvicorn
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    AuthorizeError,
    RefreshToken,
    TokenError,
)
from mcp.server.auth.routes import create_auth_routes
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

Answer = Callable[["Seen"], Response | None]


@dataclass(frozen=True, slots=True)
class Seen:
    """One request that arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def form(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(self.body.decode()).items()}


@dataclass
class Site:
    """Something that listens: what it saw, and what it answers instead of what it would by itself."""

    url: str
    seen: list[Seen] = field(default_factory=list)
    instead: dict[str, Answer] = field(default_factory=dict)

    def asked(self, path: str) -> list[Seen]:
        return [each for each in self.seen if each.path == path]

    def everything(self) -> str:
        return repr(self.seen)


class Issuer:
    """Gives codes and tokens. PKCE, redirect addresses and clients are checked by the MCP package."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Know nobody, and be good to everybody."""
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.tokens: dict[str, AccessToken] = {}
        self.renewals: dict[str, RefreshToken] = {}
        self.revoked: list[str] = []
        self.lifetime: int | None = 3600
        self.gives_renewals = True
        self.refuses = ""
        self.iss: str | None = None

    def issued(self) -> list[str]:
        """Every secret that was ever given."""
        secret = [client.client_secret for client in self.clients.values() if client.client_secret]
        return [*self.codes, *self.tokens, *self.renewals, *secret, *self.revoked]

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        if self.refuses == "consent":
            raise AuthorizeError("access_denied", "The person said no")
        code = AuthorizationCode(
            code="code-" + secrets.token_hex(16),
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        self.codes[code.code] = code
        answer = {"code": code.code, "state": params.state or ""} | ({"iss": self.iss} if self.iss else {})
        return f"{params.redirect_uri}?{urlencode(answer)}"

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        return self._token(client.client_id, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        return self.renewals.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        if self.refuses == "renewal":
            raise TokenError("invalid_grant", f"{refresh_token.token} is over")
        self.revoked.append(refresh_token.token)
        del self.renewals[refresh_token.token]  # used twice, it is refused
        return self._token(client.client_id, scopes, refresh_token.resource)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.tokens.get(token)

    async def verify_token(self, token: str) -> AccessToken | None:
        known = self.tokens.get(token)
        return known if known and (known.expires_at is None or known.expires_at > time.time()) else None

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.revoked.append(token.token)
        self.tokens.pop(token.token, None)
        self.renewals.pop(token.token, None)

    async def exchange_identity_assertion(self, client: Any, params: Any) -> OAuthToken:
        raise TokenError("unsupported_grant_type")

    def expire(self) -> None:
        """All tokens at once; what renews them stays."""
        self.revoked += list(self.tokens)
        self.tokens.clear()

    def _token(self, client_id: str, scopes: list[str], resource: str | None) -> OAuthToken:
        token, renewal = "token-" + secrets.token_hex(16), "renewal-" + secrets.token_hex(16)
        end = None if self.lifetime is None else int(time.time()) + max(self.lifetime, 0)
        self.tokens[token] = AccessToken(
            token=token, client_id=client_id, scopes=scopes, expires_at=end, resource=resource
        )
        if self.gives_renewals:
            self.renewals[renewal] = RefreshToken(
                token=renewal, client_id=client_id, scopes=scopes, resource=resource
            )
        return OAuthToken(
            access_token=token,
            expires_in=self.lifetime,
            scope=" ".join(scopes) or None,
            refresh_token=renewal if self.gives_renewals else None,
        )


@dataclass
class World:
    """An issuer at one origin, the server it guards at another, and a third that has no part in it."""

    issuer: Issuer
    logins: Site
    server: Site
    elsewhere: Site

    @property
    def url(self) -> str:
        return f"{self.server.url}/mcp"

    def begin_anew(self) -> None:
        """As if nobody had been here before."""
        self.issuer.begin_anew()
        for site in (self.logins, self.server, self.elsewhere):
            site.seen.clear()
            site.instead.clear()

    def demand(self, *scopes: str) -> None:
        """Let the server ask for these rights from now on."""

        def refused(seen: Seen) -> Response | None:
            token = self.issuer.tokens.get(seen.headers.get("authorization", "")[7:])
            if token is None or set(scopes) <= set(token.scopes):
                return None
            said = f'Bearer error="insufficient_scope", scope="{" ".join(scopes)}"'
            return PlainTextResponse("no", 403, headers={"WWW-Authenticate": said})

        self.server.instead["/mcp"] = refused

    def change_metadata(self, **changes: Any) -> None:
        """Let the issuer say something else of itself; None leaves a word out."""
        said = {
            "issuer": self.logins.url,
            "authorization_endpoint": f"{self.logins.url}/authorize",
            "token_endpoint": f"{self.logins.url}/token",
            "registration_endpoint": f"{self.logins.url}/register",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            **changes,
        }
        document = {name: value for name, value in said.items() if value is not None}
        self.logins.instead["/.well-known/oauth-authorization-server"] = lambda seen: JSONResponse(document)


@contextlib.contextmanager
def world() -> Iterator[World]:
    """All three, listening."""
    issuer = Issuer()
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(_bound()) for _ in range(3)]
        logins, server, elsewhere = (Site(f"http://127.0.0.1:{s.getsockname()[1]}") for s in sockets)
        apps = (_issuing(issuer, logins.url), _guarded(issuer, logins.url, server.url), Starlette())
        for site, app, bound in zip((logins, server, elsewhere), apps, sockets, strict=True):
            stack.enter_context(_serving(_Kept(app, site), bound))
        yield World(issuer, logins, server, elsewhere)


def redirect(to: str) -> Answer:
    """Sends every request on, as it is."""
    return lambda seen: RedirectResponse(to, 307)


def says(status: int, **words: Any) -> Answer:
    """The same document for everybody."""
    return lambda seen: JSONResponse(words, status)


def _issuing(issuer: Issuer, url: str) -> Starlette:
    routes = create_auth_routes(
        issuer,
        AuthSettings(issuer_url=url, resource_server_url=None).issuer_url,  # type: ignore[arg-type]
        client_registration_options=ClientRegistrationOptions(enabled=True),
        revocation_options=RevocationOptions(enabled=True),
    )
    return Starlette(routes=routes)


def _guarded(issuer: Issuer, issuer_url: str, url: str) -> Starlette:
    server = MCPServer(
        "notes",
        token_verifier=issuer,
        auth=AuthSettings(
            issuer_url=issuer_url,  # type: ignore[arg-type]
            resource_server_url=AnyHttpUrl(f"{url}/mcp"),
            validate_token_resource=True,
            required_scopes=["notes:read"],
        ),
    )

    @server.tool()
    def add(a: int, b: int) -> int:
        return a + b

    return server.streamable_http_app()


class _Kept:
    """Keeps each request, and answers some itself."""

    def __init__(self, app: Starlette, site: Site) -> None:
        self._app, self._site = app, site

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        seen = Seen(
            scope["method"],
            scope["path"],
            {name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()},
            {name.decode().lower(): value.decode("latin-1") for name, value in scope["headers"]},
            body,
        )
        self._site.seen.append(seen)
        answer = self._site.instead.get(scope["path"])
        response = answer(seen) if answer else None
        await (response or self._app)(scope, _again(body, receive), send)


def _again(body: bytes, receive: Any) -> Any:
    given = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Any:
        return given.pop() if given else await receive()

    return next_message


@contextlib.contextmanager
def _bound() -> Iterator[socket.socket]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


@contextlib.contextmanager
def _serving(app: Any, bound: socket.socket) -> Iterator[None]:
    config = uvicorn.Config(app, log_level="critical", ws="none", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(10)


def initialize() -> dict[str, Any]:
    """The first request of a client."""
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}


def from_file(text: str) -> Any:
    """What a file of a login says."""
    return json.loads(text)
