"""Verify that OAuth access tokens were signed by the identity provider and issued for this gateway.

A verified token is remembered until it expires or the provider's key for it is gone, because a response is
checked again with every part that is sent.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from toolfold.core.errors import ToolfoldError
from toolfold.core.types import Json
from toolfold.serving.identity.issuers import Issuer
from toolfold.serving.identity.oidc_login import read_display_name
from toolfold.serving.identity.signed_tokens import (
    LEEWAY_S,
    InvalidToken,
    read_key_id,
    read_type,
    verify_signed_token,
)

__all__ = ["AccessToken", "AccessTokenVerifier", "InsufficientScope"]

MAX_REMEMBERED_TOKENS = 10_000
_ACCESS_TOKEN_TYPES = frozenset({"", "jwt", "at+jwt"})
_ID_TOKEN_CLAIMS = frozenset({"nonce", "at_hash", "c_hash"})
"""Claims of ID tokens, which tell an application who has logged in, and give access to nothing."""


class InsufficientScope(ToolfoldError):
    """Raised if a valid token lacks a scope that the gateway requires."""


@dataclass(frozen=True, slots=True)
class AccessToken:
    """Claims of a verified access token."""

    issuer: str
    subject: str
    scopes: frozenset[str]
    expires: float
    client_id: str
    """The OAuth client for which the token was issued; empty if the token does not name one."""
    name: str
    """A name of the user for display; empty if the token has none."""
    key_id: str


class AccessTokenVerifier:
    """Verifies access tokens that one identity provider issues for this gateway."""

    def __init__(
        self, issuer: Issuer, *, audiences: Collection[str], required_scopes: Collection[str] = ()
    ) -> None:
        """Create a verifier of tokens from `issuer` for any of the `audiences` with all `required_scopes`."""
        self._issuer, self._audiences = issuer, frozenset(audiences)
        self._required_scopes = frozenset(required_scopes)
        self._verified: OrderedDict[bytes, AccessToken] = OrderedDict()

    async def prepare(self, token: str) -> None:
        """Fetch the signing key of a token if needed. Raises InvalidToken, IssuerUnavailable."""
        await self._issuer.load_key(read_key_id(token))

    def verify(self, token: str) -> AccessToken:
        """Verify a token without blocking and return its claims. Raises InvalidToken, InsufficientScope."""
        digest = hashlib.sha256(token.encode()).digest()
        found = self._verified.get(digest)
        if found is None:
            found = self._verify_anew(token)
            self._verified[digest] = found
            if len(self._verified) > MAX_REMEMBERED_TOKENS:
                self._verified.popitem(last=False)
        if found.expires + LEEWAY_S <= time.time() or self._issuer.find_key(found.key_id) is None:
            del self._verified[digest]
            raise InvalidToken("it has expired, or the key with which it was signed was withdrawn")
        if not self._required_scopes <= found.scopes:
            raise InsufficientScope("the token does not have the scopes that this gateway requires")
        return found

    def _verify_anew(self, token: str) -> AccessToken:
        claims = verify_signed_token(
            token, self._issuer, audiences=self._audiences, types=_ACCESS_TOKEN_TYPES
        )
        if "cnf" in claims:
            raise InvalidToken("it is bound to a key of the client, and such proofs are not supported")
        if _is_id_token(claims, read_type(token)):
            raise InvalidToken("it is an ID token; send the access token instead")
        client_id = claims.get("client_id") or claims.get("azp")
        return AccessToken(
            issuer=self._issuer.url,
            subject=str(claims["sub"]),
            scopes=_read_scopes(claims),
            expires=_read_expiry(claims),
            client_id=client_id if isinstance(client_id, str) else "",
            name=read_display_name(claims),
            key_id=read_key_id(token),
        )


def _is_id_token(claims: Json, header_type: str) -> bool:
    """Return True if a token has claims of an ID token and is not marked as an access token.

    Keycloak says that in the claim `typ`, and older versions of it put the nonce in access tokens as well.
    """
    says_access = header_type == "at+jwt" or claims.get("typ") == "Bearer"
    return not says_access and (claims.get("typ") == "ID" or not _ID_TOKEN_CLAIMS.isdisjoint(claims))


def _read_expiry(claims: Json) -> float:
    try:
        return float(claims["exp"])
    except (ValueError, TypeError, OverflowError):
        raise InvalidToken("the time at which it expires is not a usable number") from None


def _read_scopes(claims: Json) -> frozenset[str]:
    """Return the scopes of a token, from the claim `scope` (RFC 9068) or `scp` (other providers)."""
    found: set[str] = set()
    for name in ("scope", "scp"):
        value = claims.get(name)
        if isinstance(value, str):
            found |= set(value.split())
        elif isinstance(value, list):
            found |= {each for each in value if isinstance(each, str)}
    return frozenset(found)
