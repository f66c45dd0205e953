"""A new token for an old login, without a person. Reads and writes no file."""

from __future__ import annotations

import dataclasses
import time

import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl, ValidationError

from toolfold.model import Json
from toolfold.sources.mcp.oauth.logins import Login, fresh_until
from toolfold.sources.mcp.oauth.signing_in import Client, PendingSignIn, plain
from toolfold.sources.mcp.oauth.traffic import Refusal, Traffic, origin, said_by

TAKEN_BACK = frozenset({"invalid_grant", "invalid_client", "unauthorized_client", "invalid_scope"})
"""What an issuer says when the login is over, whatever is tried."""
UNKNOWN_CLIENT = frozenset({"invalid_client", "unauthorized_client"})
"""What it says when it no longer knows us."""


async def renew(client: Client, login: Login, protocol: str | None) -> Login:
    """The login with a new token. Raises Refusal, whose `code` is among those above where it is over."""
    try:
        request = _request(client, login, protocol)
    except (ValidationError, OAuthFlowError, ValueError):
        raise Refusal("what was kept of the login cannot be read", "invalid_grant") from None
    async with Traffic(client.url, (*login.secrets(), client.client_secret)) as traffic:
        return _renewed(login, said_by(await traffic.send(request)))


async def revoke(client: Client, login: Login) -> None:
    """Tell the issuer that the login is over, where it wants to know. Raises Refusal."""
    endpoint = login.metadata.get("revocation_endpoint")
    token = login.renewal or login.token
    if not endpoint or not token:
        return
    try:
        asked = {"token": token, "client_id": str(login.client.get("client_id"))}
        form, headers = _context(client, login).prepare_token_auth(asked, {})
        request = httpx2.Request("POST", str(endpoint), data=form, headers=headers)
    except (ValidationError, OAuthFlowError, ValueError):
        raise Refusal("what was kept of the login cannot be read") from None
    async with Traffic(client.url, (*login.secrets(), client.client_secret)) as traffic:
        await traffic.send(request, expects="")


def _request(client: Client, login: Login, protocol: str | None) -> httpx2.Request:
    context = _context(client, login)
    asked = {
        "grant_type": "refresh_token",
        "refresh_token": login.renewal,
        "client_id": str(login.client.get("client_id")),
    }
    if context.should_include_resource_param(protocol):
        asked["resource"] = context.get_resource_url()
    form, headers = context.prepare_token_auth(asked, {"Content-Type": "application/x-www-form-urlencoded"})
    # Never the server itself for want of a better address: only who gave a token may see it again.
    endpoint = login.metadata.get("token_endpoint") or f"{origin(login.issuer)}/token"
    return httpx2.Request("POST", str(endpoint), data=form, headers=headers)


def _renewed(login: Login, said: Json) -> Login:
    try:
        given = OAuthToken.model_validate(said)
    except ValidationError:
        raise Refusal("it gives no token that can be read") from None
    given.refresh_token = given.refresh_token or login.renewal
    given.scope = given.scope or " ".join(login.scopes) or None
    now = time.time()
    return dataclasses.replace(
        login, tokens=plain(given), obtained=now, fresh_until=fresh_until(now, given.expires_in)
    )


def _context(client: Client, login: Login) -> OAuthContext:
    secret = {"client_secret": client.client_secret} if client.client_id else {}
    return OAuthContext(
        server_url=client.url,
        client_metadata=OAuthClientMetadata(redirect_uris=[AnyUrl("http://127.0.0.1/callback")]),
        storage=PendingSignIn(),
        redirect_handler=None,
        callback_handler=None,
        client_info=OAuthClientInformationFull.model_validate({**login.client, **secret}),
        oauth_metadata=OAuthMetadata.model_validate(login.metadata) if login.metadata else None,
        protected_resource_metadata=(
            ProtectedResourceMetadata.model_validate(login.resource) if login.resource else None
        ),
    )
