"""OpenID Connect logins in a browser: authorization code flow with PKCE, state and nonce.

Builds the URL of the login page, exchanges the code, and verifies the ID token. Knows nothing of cookies,
sessions and users.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from toolfold.core.types import Json
from toolfold.serving.identity.issuers import Issuer, IssuerUnavailable, require_secure_url
from toolfold.serving.identity.signed_tokens import InvalidToken, read_key_id, verify_signed_token

MAX_CODE_CHARS = 4_096
MAX_GROUPS = 1_000
_ID_TOKEN_TYPES = frozenset({"", "jwt"})


@dataclass(frozen=True, slots=True)
class LoginAttempt:
    """Secrets of one login, stored by the browser until the identity provider's redirect."""

    state: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    nonce: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(48))


@dataclass(frozen=True, slots=True)
class Identity:
    """Person who has logged in, as described by the identity provider."""

    issuer: str
    subject: str
    name: str = ""
    groups: tuple[str, ...] = ()


class OidcClient:
    """Toolfold as an OpenID Connect client of one identity provider."""

    def __init__(
        self,
        issuer: Issuer,
        *,
        client_id: str,
        client_secret: str,
        redirect_uri: str,
        scopes: tuple[str, ...],
        groups_claim: str,
    ) -> None:
        self._issuer, self._client_id, self._client_secret = issuer, client_id, client_secret
        self._redirect_uri, self._scopes, self._groups_claim = redirect_uri, scopes, groups_claim

    async def make_login_url(self, attempt: LoginAttempt) -> str:
        """Return the URL of the provider's login page. Raises IssuerUnavailable."""
        digest = hashlib.sha256(attempt.verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self._redirect_uri,
            "scope": " ".join(dict.fromkeys(("openid", *self._scopes))),
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        return await self._make_url("authorization_endpoint", query)

    async def make_logout_url(self, return_to: str) -> str:
        """Return the logout URL of the identity provider; empty if it has none."""
        metadata = await self._issuer.load_metadata()
        if not metadata.get("end_session_endpoint"):
            return ""
        query = {"client_id": self._client_id, "post_logout_redirect_uri": return_to}
        return await self._make_url("end_session_endpoint", query)

    async def finish(self, attempt: LoginAttempt, response: Mapping[str, str]) -> Identity:
        """Complete a login and return the person who logged in. Raises InvalidToken, IssuerUnavailable.

        `response` is the query with which the provider has redirected the browser back.
        """
        metadata = await self._issuer.load_metadata()
        self._check_response(attempt, response, metadata)
        tokens = await self._exchange_code(attempt, response["code"], metadata)
        id_token = tokens.get("id_token")
        if not isinstance(id_token, str):
            raise InvalidToken("the identity provider has sent no ID token")
        await self._issuer.load_key(read_key_id(id_token))
        claims = verify_signed_token(
            id_token, self._issuer, audiences=(self._client_id,), types=_ID_TOKEN_TYPES
        )
        self._check_claims(attempt, claims)
        return Identity(
            self._issuer.url, str(claims["sub"]), read_display_name(claims), self._read_groups(claims)
        )

    def _check_response(self, attempt: LoginAttempt, response: Mapping[str, str], metadata: Json) -> None:
        if not hmac.compare_digest(response.get("state", "").encode(), attempt.state.encode()):
            raise InvalidToken("the response belongs to another login: the state differs")
        issuer = response.get("iss")
        is_required = metadata.get("authorization_response_iss_parameter_supported") is True
        if issuer != self._issuer.url and (issuer is not None or is_required):
            raise InvalidToken("the response comes from another identity provider")
        if "error" in response:
            raise InvalidToken("the identity provider has refused the login")
        if not 0 < len(response.get("code", "")) <= MAX_CODE_CHARS:
            raise InvalidToken("the response contains no code")

    def _check_claims(self, attempt: LoginAttempt, claims: Json) -> None:
        nonce = claims.get("nonce")
        if not isinstance(nonce, str) or not hmac.compare_digest(nonce.encode(), attempt.nonce.encode()):
            raise InvalidToken("the ID token belongs to another login: the nonce differs")
        has_others = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", None if has_others else self._client_id) != self._client_id:
            raise InvalidToken("the ID token was issued to another client")

    async def _exchange_code(self, attempt: LoginAttempt, code: str, metadata: Json) -> Json:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect_uri,
            "code_verifier": attempt.verifier,
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        methods = metadata.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        if not self._client_secret:
            form["client_id"] = self._client_id
        elif "client_secret_basic" in methods:
            pair = f"{quote(self._client_id, safe='')}:{quote(self._client_secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": self._client_id, "client_secret": self._client_secret}
        endpoint = str(metadata.get("token_endpoint") or "")
        try:
            return await self._issuer.fetch_document(endpoint, body=urlencode(form).encode(), headers=headers)
        except IssuerUnavailable as error:
            if error.status not in (400, 401, 403):
                raise
            raise InvalidToken("the identity provider does not accept the code of this login") from None

    def _read_groups(self, claims: Json) -> tuple[str, ...]:
        value = claims.get(self._groups_claim)
        found = [value] if isinstance(value, str) else value if isinstance(value, list) else []
        return tuple(each for each in found[:MAX_GROUPS] if isinstance(each, str))

    async def _make_url(self, endpoint: str, query: Mapping[str, str]) -> str:
        url = str((await self._issuer.load_metadata()).get(endpoint) or "")
        require_secure_url(url, self._issuer.url)
        if not url.isascii() or not url.isprintable() or " " in url:
            raise IssuerUnavailable(f"the metadata of {self._issuer.url} contain an invalid {endpoint}")
        return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}"


def read_display_name(claims: Json) -> str:
    """Return a person's display name from the token; empty if it contains none."""
    names = (claims.get(key) for key in ("preferred_username", "email", "name"))
    return next((each for each in names if isinstance(each, str) and each), "")
