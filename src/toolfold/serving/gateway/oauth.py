"""OAuth resource server: accepts an identity provider's access tokens for users of the gateway.

Follows the authorization chapter of the MCP specification: a refused request tells the client where the
metadata of this resource is (RFC 9728), and the metadata names the identity provider. A token must be issued
for this gateway (RFC 8707). It is never passed on to a server.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from toolfold.core.errors import ConfigError, ToolfoldError
from toolfold.serving.gateway.client_tokens import LOGIN_CLIENT_PREFIX, GatewayClient
from toolfold.serving.gateway.http_sessions import Scope, Send
from toolfold.serving.gateway.request_bodies import Receive, RequestRefused
from toolfold.serving.identity import (
    AccessToken,
    AccessTokenVerifier,
    InsufficientScope,
    InvalidToken,
    Issuer,
    IssuerUnavailable,
    is_issued_for,
    is_jwt,
)
from toolfold.serving.identity.accounts import add_missing_user
from toolfold.state.database import DatabaseError, DatabaseUnavailable
from toolfold.state.users import User, UserStore

if TYPE_CHECKING:
    from toolfold.config.gateway_settings import OAuthResourceSettings
    from toolfold.serving.gateway.http_app import AccessPolicy

log = logging.getLogger(__name__)

METADATA_PATH = "/.well-known/oauth-protected-resource"
CREATE_TIMEOUT_S = 20.0
_UNKNOWN_USER = (
    "No user of this gateway is linked to your identity, or the user is disabled. Ask its administrator for"
    " `toolfold user add NAME --issuer URL --subject ID`."
)


class OAuthResource:
    """OAuth resource server: finds the client of an access token, and describes itself to OAuth clients."""

    def __init__(
        self, settings: OAuthResourceSettings, users: UserStore, issuer: Issuer | None = None
    ) -> None:
        """Configure which tokens are accepted, without fetching anything."""
        self._settings, self._users = settings, users
        self._audiences = frozenset(settings.audiences or (settings.resource,))
        self._verifier = AccessTokenVerifier(
            issuer or Issuer(settings.issuer),
            audiences=self._audiences,
            required_scopes=settings.required_scopes,
        )
        self._creating: dict[str, asyncio.Task[None]] = {}

    @property
    def challenge(self) -> str:
        """Return the WWW-Authenticate header for a request without a token."""
        return self._make_challenge()

    @property
    def metadata_paths(self) -> tuple[str, ...]:
        """Return the paths of the metadata document, with and without the resource's path."""
        path = urlsplit(self._settings.resource).path.rstrip("/")
        return tuple(dict.fromkeys((METADATA_PATH + path, METADATA_PATH)))

    def describe(self) -> dict[str, object]:
        """Return the metadata of this resource as defined by RFC 9728."""
        scopes = list(self._settings.required_scopes)
        return {
            "resource": self._settings.resource,
            "authorization_servers": [self._settings.issuer],
            "bearer_methods_supported": ["header"],
            "resource_name": "Toolfold",
            **({"scopes_supported": scopes} if scopes else {}),
        }

    def is_own_token(self, token: str) -> bool:
        """Return True if a text looks like an access token for this gateway, without verifying it."""
        return is_jwt(token) and is_issued_for(token, self._settings.issuer, self._audiences)

    async def prepare(self, token: str) -> None:
        """Fetch a token's signing key and, if configured, create its missing user. Raises RequestRefused."""
        try:
            await self._verifier.prepare(token)
        except InvalidToken as error:
            raise self._refuse_token(error) from None
        except IssuerUnavailable:  # logged where it was found out
            raise RequestRefused(
                503, "Access tokens cannot be checked now: the identity provider does not answer."
            ) from None
        if self._settings.create_users:
            await self._create_missing_user(self._verify(token))

    def find_client(self, token: str) -> GatewayClient:
        """Return the client of an access token, without blocking. Raises RequestRefused.

        It is refused as soon as its user is disabled or removed.
        """
        found = self._verify(token)
        user = self._find_user(found)
        if user is None or user.is_disabled:
            why = f"the user {user.name!r} is disabled" if user else "no user has this identity"
            log_text = f"{why} (issuer {found.issuer}, subject {found.subject!r})"
            raise RequestRefused(403, _UNKNOWN_USER, log_text=log_text)
        return GatewayClient(
            name=LOGIN_CLIENT_PREFIX + user.name,
            toolsets=self._settings.toolsets,
            created=user.created,
            may_use_keys=self._settings.use_model_keys,
            user_id=user.id,
            is_login=True,
        )

    def _verify(self, token: str) -> AccessToken:
        try:
            return self._verifier.verify(token)
        except InvalidToken as error:
            raise self._refuse_token(error) from None
        except InsufficientScope:
            needed = " ".join(self._settings.required_scopes)
            raise RequestRefused(
                403,
                f"The access token needs the scopes {needed}.",
                challenge=self._make_challenge("insufficient_scope"),
            ) from None

    def _refuse_token(self, error: InvalidToken) -> RequestRefused:
        return RequestRefused(
            401, f"The access token is not valid: {error}.", challenge=self._make_challenge("invalid_token")
        )

    def _make_challenge(self, error: str = "") -> str:
        parts = urlsplit(self._settings.resource)
        parameters = {
            "realm": "toolfold",
            "error": error,
            "resource_metadata": f"{parts.scheme}://{parts.netloc}{self.metadata_paths[0]}",
            "scope": " ".join(self._settings.required_scopes),
        }
        shown = ", ".join(f'{name}="{_quote(value)}"' for name, value in parameters.items() if value)
        return f"Bearer {shown}"

    def _find_user(self, token: AccessToken) -> User | None:
        try:
            return self._users.find_identity(token.issuer, token.subject)
        except (DatabaseUnavailable, ConfigError) as error:
            log.error("a request was refused because users cannot be checked: %s", error)
            raise RequestRefused(503, "Users cannot be checked now. Try again later.") from None

    async def _create_missing_user(self, token: AccessToken) -> None:
        """Create the user of a verified token, only once for concurrent requests."""
        if self._find_user(token) is not None:
            return
        task = self._creating.get(token.subject)
        if task is None:
            task = asyncio.ensure_future(asyncio.to_thread(self._create_user, token))
            self._creating[token.subject] = task
            task.add_done_callback(lambda _: self._creating.pop(token.subject, None))
        try:
            async with asyncio.timeout(CREATE_TIMEOUT_S):
                await asyncio.shield(task)
        except (ToolfoldError, DatabaseError, TimeoutError, OSError) as error:
            log.error("no user could be created for a new identity: %s", error)
            raise RequestRefused(503, "Your user cannot be created now. Ask the administrator.") from None

    def _create_user(self, token: AccessToken) -> None:
        add_missing_user(
            self._users,
            issuer=token.issuer,
            subject=token.subject,
            name=token.name,
            default_team=self._settings.default_team,
        )
        log.info("a user was created for a new identity from the issuer %s", token.issuer)


class ResourceMetadataApp:
    """ASGI app that serves the gateway's OAuth metadata to all clients and web pages, without a token."""

    def __init__(self, resource: OAuthResource, policy: AccessPolicy, path: str) -> None:
        self._policy, self.path = policy, path
        self._body = json.dumps(resource.describe()).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        del receive
        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        status, body = 200, self._body
        if refusal := self._policy.find_refusal({"host": host}):
            status, body = refusal[0], json.dumps({"error": refusal[1]}).encode()
        elif scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            status, body = 405, b"{}"
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"max-age=300"),
            (b"access-control-allow-origin", b"*"),
            (b"access-control-allow-headers", b"mcp-protocol-version"),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def close(self) -> None:
        """Do nothing: the app has no resources to close."""


def _quote(value: str) -> str:
    """Remove characters that a quoted string in an HTTP header must not contain."""
    return re.sub(r'[^\x20-\x7e]|["\\]', "", value)
