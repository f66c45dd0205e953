"""Refresh and revoke the tokens of a stored login, without user interaction."""

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

from toolfold.core.types import Json
from toolfold.mcp.oauth.auth_requests import AuthError, AuthHttpClient, origin, parse_json_object
from toolfold.mcp.oauth.login_store import Login, compute_fresh_until
from toolfold.mcp.oauth.sign_in_flow import MemoryTokenStorage, OAuthClient, dump_model

REVOKED_ERRORS = frozenset({"invalid_grant", "invalid_client", "unauthorized_client", "invalid_scope"})
"""Error codes that mean the login is no longer valid."""
UNKNOWN_CLIENT_ERRORS = frozenset({"invalid_client", "unauthorized_client"})
"""Error codes that mean the client registration is no longer valid."""


async def refresh_login(client: OAuthClient, login: Login, protocol: str | None) -> Login:
    """Return the login with a new token. Raises AuthError with the issuer's error code on refusal."""
    try:
        request = _build_refresh_request(client, login, protocol)
    except (ValidationError, OAuthFlowError, ValueError):
        raise AuthError("the stored login cannot be read", "invalid_grant") from None
    async with AuthHttpClient(client.url, (*login.secrets(), client.client_secret)) as traffic:
        return _apply_response(login, parse_json_object(await traffic.send(request)))


async def revoke_login(client: OAuthClient, login: Login) -> None:
    """Revoke the login's tokens if the issuer has a revocation endpoint. Raises AuthError."""
    endpoint = login.metadata.get("revocation_endpoint")
    token = login.refresh_token or login.token
    if not endpoint or not token:
        return
    try:
        form = {"token": token, "client_id": str(login.client.get("client_id"))}
        body, headers = _build_context(client, login).prepare_token_auth(form, {})
        request = httpx2.Request("POST", str(endpoint), data=body, headers=headers)
    except (ValidationError, OAuthFlowError, ValueError):
        raise AuthError("the stored login cannot be read") from None
    async with AuthHttpClient(client.url, (*login.secrets(), client.client_secret)) as traffic:
        await traffic.send(request, required_field="")


def _build_refresh_request(client: OAuthClient, login: Login, protocol: str | None) -> httpx2.Request:
    context = _build_context(client, login)
    form = {
        "grant_type": "refresh_token",
        "refresh_token": login.refresh_token,
        "client_id": str(login.client.get("client_id")),
    }
    if context.should_include_resource_param(protocol):
        form["resource"] = context.get_resource_url()
    body, headers = context.prepare_token_auth(form, {"Content-Type": "application/x-www-form-urlencoded"})
    # Never fall back to the server itself: only the issuer of a token may see it again.
    endpoint = login.metadata.get("token_endpoint") or f"{origin(login.issuer)}/token"
    return httpx2.Request("POST", str(endpoint), data=body, headers=headers)


def _apply_response(login: Login, response: Json) -> Login:
    try:
        token = OAuthToken.model_validate(response)
    except ValidationError:
        raise AuthError("the OAuth issuer returned no valid token") from None
    token.refresh_token = token.refresh_token or login.refresh_token
    token.scope = token.scope or " ".join(login.scopes) or None
    now = time.time()
    return dataclasses.replace(
        login, tokens=dump_model(token), obtained=now, fresh_until=compute_fresh_until(now, token.expires_in)
    )


def _build_context(client: OAuthClient, login: Login) -> OAuthContext:
    # A configured secret is sent only to the issuer at which its client is registered.
    is_same_client = client.client_id and login.client.get("client_id") == client.client_id
    is_same_issuer = not client.issuer or client.issuer.rstrip("/") == login.issuer.rstrip("/")
    secret = {"client_secret": client.client_secret} if is_same_client and is_same_issuer else {}
    return OAuthContext(
        server_url=client.url,
        client_metadata=OAuthClientMetadata(redirect_uris=[AnyUrl("http://127.0.0.1/callback")]),
        storage=MemoryTokenStorage(),
        redirect_handler=None,
        callback_handler=None,
        client_info=OAuthClientInformationFull.model_validate({**login.client, **secret}),
        oauth_metadata=OAuthMetadata.model_validate(login.metadata) if login.metadata else None,
        protected_resource_metadata=(
            ProtectedResourceMetadata.model_validate(login.resource) if login.resource else None
        ),
    )
