"""OAuth authorization server and protected MCP server on loopback, run in threads of the test.

Both are built from the MCP SDK's server parts. They record every request; a test can override any response.
Knows nothing of the client.
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

ResponseOverride = Callable[["RecordedRequest"], Response | None]


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One received request."""

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
    """HTTP server with its recorded requests and overridden responses by path."""

    url: str
    requests: list[RecordedRequest] = field(default_factory=list)
    overrides: dict[str, ResponseOverride] = field(default_factory=dict)

    def requests_to(self, path: str) -> list[RecordedRequest]:
        return [each for each in self.requests if each.path == path]

    def dump_requests(self) -> str:
        return repr(self.requests)


class Issuer:
    """OAuth issuer of codes and tokens; the MCP SDK checks PKCE, redirect URIs and clients."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Delete all clients and tokens and accept every request."""
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.tokens: dict[str, AccessToken] = {}
        self.refresh_tokens: dict[str, RefreshToken] = {}
        self.revoked: list[str] = []
        self.lifetime: int | None = 3600
        self.issues_refresh_tokens = True
        self.refuses = ""
        self.iss: str | None = None

    def issued(self) -> list[str]:
        """Return every secret that was ever issued."""
        secret = [client.client_secret for client in self.clients.values() if client.client_secret]
        return [*self.codes, *self.tokens, *self.refresh_tokens, *secret, *self.revoked]

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
        parameters = {"code": code.code, "state": params.state or ""} | (
            {"iss": self.iss} if self.iss else {}
        )
        return f"{params.redirect_uri}?{urlencode(parameters)}"

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        return self._issue_token(client.client_id, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        return self.refresh_tokens.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        if self.refuses == "renewal":
            raise TokenError("invalid_grant", f"{refresh_token.token} is over")
        self.revoked.append(refresh_token.token)
        del self.refresh_tokens[refresh_token.token]  # a refresh token is valid once
        return self._issue_token(client.client_id, scopes, refresh_token.resource)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.tokens.get(token)

    async def verify_token(self, token: str) -> AccessToken | None:
        known = self.tokens.get(token)
        return known if known and (known.expires_at is None or known.expires_at > time.time()) else None

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.revoked.append(token.token)
        self.tokens.pop(token.token, None)
        self.refresh_tokens.pop(token.token, None)

    async def exchange_identity_assertion(self, client: Any, params: Any) -> OAuthToken:
        raise TokenError("unsupported_grant_type")

    def expire(self) -> None:
        """Invalidate all access tokens; refresh tokens stay valid."""
        self.revoked += list(self.tokens)
        self.tokens.clear()

    def _issue_token(self, client_id: str, scopes: list[str], resource: str | None) -> OAuthToken:
        token, renewal = "token-" + secrets.token_hex(16), "renewal-" + secrets.token_hex(16)
        end = None if self.lifetime is None else int(time.time()) + max(self.lifetime, 0)
        self.tokens[token] = AccessToken(
            token=token, client_id=client_id, scopes=scopes, expires_at=end, resource=resource
        )
        if self.issues_refresh_tokens:
            self.refresh_tokens[renewal] = RefreshToken(
                token=renewal, client_id=client_id, scopes=scopes, resource=resource
            )
        return OAuthToken(
            access_token=token,
            expires_in=self.lifetime,
            scope=" ".join(scopes) or None,
            refresh_token=renewal if self.issues_refresh_tokens else None,
        )


@dataclass
class OAuthSetup:
    """Authorization server, the MCP server it protects, and an unrelated third origin."""

    issuer: Issuer
    auth_server: Site
    server: Site
    elsewhere: Site

    @property
    def url(self) -> str:
        return f"{self.server.url}/mcp"

    def reset(self) -> None:
        """Reset all servers to their initial state."""
        self.issuer.reset()
        for site in (self.auth_server, self.server, self.elsewhere):
            site.requests.clear()
            site.overrides.clear()

    def demand_scopes(self, *scopes: str) -> None:
        """Make the server reject tokens without these scopes."""

        def reject_missing_scopes(request: RecordedRequest) -> Response | None:
            token = self.issuer.tokens.get(request.headers.get("authorization", "")[7:])
            if token is None or set(scopes) <= set(token.scopes):
                return None
            challenge = f'Bearer error="insufficient_scope", scope="{" ".join(scopes)}"'
            return PlainTextResponse("no", 403, headers={"WWW-Authenticate": challenge})

        self.server.overrides["/mcp"] = reject_missing_scopes

    def change_metadata(self, **changes: Any) -> None:
        """Change the authorization server metadata; None removes a field."""
        metadata = {
            "issuer": self.auth_server.url,
            "authorization_endpoint": f"{self.auth_server.url}/authorize",
            "token_endpoint": f"{self.auth_server.url}/token",
            "registration_endpoint": f"{self.auth_server.url}/register",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            **changes,
        }
        document = {name: value for name, value in metadata.items() if value is not None}
        self.auth_server.overrides["/.well-known/oauth-authorization-server"] = lambda request: JSONResponse(
            document
        )


@contextlib.contextmanager
def run_oauth_setup() -> Iterator[OAuthSetup]:
    """Run all three servers."""
    issuer = Issuer()
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(_bound_socket()) for _ in range(3)]
        auth_server, server, elsewhere = (Site(f"http://127.0.0.1:{s.getsockname()[1]}") for s in sockets)
        apps = (
            _build_auth_app(issuer, auth_server.url),
            _build_server_app(issuer, auth_server.url, server.url),
            Starlette(),
        )
        for site, app, bound in zip((auth_server, server, elsewhere), apps, sockets, strict=True):
            stack.enter_context(_run_server(_RecordingApp(app, site), bound))
        yield OAuthSetup(issuer, auth_server, server, elsewhere)


def redirect_to(url: str) -> ResponseOverride:
    """Return a response override that redirects every request with status 307."""
    return lambda request: RedirectResponse(url, 307)


def json_response(status: int, **fields: Any) -> ResponseOverride:
    """Return a response override with a fixed JSON document."""
    return lambda request: JSONResponse(fields, status)


def _build_auth_app(issuer: Issuer, url: str) -> Starlette:
    routes = create_auth_routes(
        issuer,
        AuthSettings(issuer_url=url, resource_server_url=None).issuer_url,  # type: ignore[arg-type]
        client_registration_options=ClientRegistrationOptions(enabled=True),
        revocation_options=RevocationOptions(enabled=True),
    )
    return Starlette(routes=routes)


def _build_server_app(issuer: Issuer, issuer_url: str, url: str) -> Starlette:
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


class _RecordingApp:
    """Records each request and applies the overrides."""

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
        request = RecordedRequest(
            scope["method"],
            scope["path"],
            {name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()},
            {name.decode().lower(): value.decode("latin-1") for name, value in scope["headers"]},
            body,
        )
        self._site.requests.append(request)
        override = self._site.overrides.get(scope["path"])
        response = override(request) if override else None
        await (response or self._app)(scope, _replay_body(body, receive), send)


def _replay_body(body: bytes, receive: Any) -> Any:
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Any:
        return messages.pop() if messages else await receive()

    return next_message


@contextlib.contextmanager
def _bound_socket() -> Iterator[socket.socket]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


@contextlib.contextmanager
def _run_server(app: Any, bound: socket.socket) -> Iterator[None]:
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
    """Return an initialize request."""
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}


def read_login_file(text: str) -> Any:
    """Parse a login file."""
    return json.loads(text)
