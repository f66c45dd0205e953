"""Check the signature and common claims of JSON Web Tokens issued by an identity provider.

Only asymmetric algorithms are accepted. The key is chosen by its id among the provider's own keys; keys or
addresses of keys in the token itself are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from toolfold.core.errors import ToolfoldError
from toolfold.core.types import Json

if TYPE_CHECKING:
    from toolfold.serving.identity.issuers import Issuer

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Accepted signature algorithms. Those with a shared secret, and `none`, must never be added."""
LEEWAY_S = 30.0
"""Accepted difference between the clocks of this machine and of the identity provider."""
MAX_TOKEN_CHARS = 16_384
MAX_SUBJECT_CHARS = 255
_JWT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")


class InvalidToken(ToolfoldError):
    """Raised for a rejected token; the message gives the reason without quoting the token."""


def is_jwt(token: str) -> bool:
    """Return True if a text has the form of a signed JSON Web Token."""
    return _JWT.fullmatch(token) is not None


def is_issued_for(token: str, issuer: str, audiences: Collection[str]) -> bool:
    """Return True if a token names this issuer and one of these audiences, without verifying it."""
    import jwt

    if len(token) > MAX_TOKEN_CHARS:
        return False
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        return False
    named = claims.get("aud")
    found = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    return claims.get("iss") == issuer and any(each in audiences for each in found if isinstance(each, str))


def read_key_id(token: str) -> str:
    """Return the id of a token's signing key; empty if the token names none. Raises InvalidToken."""
    key_id = _read_header(token).get("kid", "")
    if not isinstance(key_id, str):
        raise InvalidToken("the id of its key is not a text")
    return key_id


def read_type(token: str) -> str:
    """Return the `typ` header of a token in lower case; empty if it is missing. Raises InvalidToken."""
    return str(_read_header(token).get("typ") or "").lower().removeprefix("application/")


def verify_signed_token(
    token: str, issuer: Issuer, *, audiences: Collection[str], types: Collection[str]
) -> Json:
    """Verify a token with an already fetched key, and return its claims. Raises InvalidToken.

    `types` are the accepted values of the header `typ`, in lower case; empty for a token without one.
    """
    import jwt

    header = _read_header(token)
    if read_type(token) not in types:
        raise InvalidToken("it is a token for another purpose")
    if "crit" in header:
        raise InvalidToken("it requires an extension that is not supported")
    key = issuer.find_key(read_key_id(token))
    if key is None:
        raise InvalidToken("it is signed with a key that the identity provider does not have")
    algorithm = header.get("alg")
    if algorithm not in ALGORITHMS or not _fits_key(str(algorithm), key.key_type or "", key.algorithm_name):
        raise InvalidToken("its signature algorithm is not accepted")
    try:
        claims: Json = jwt.decode(
            token,
            key.key,
            algorithms=[str(algorithm)],
            audience=list(audiences),
            issuer=issuer.url,
            leeway=LEEWAY_S,
            options={"require": ["exp", "iss", "aud", "sub"], "verify_jti": False},
        )
    except jwt.PyJWTError as error:
        raise InvalidToken(_describe_problem(error)) from None
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise InvalidToken("it cannot be read") from None
    subject = claims["sub"]
    if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT_CHARS or not subject.isprintable():
        raise InvalidToken("its subject is empty, too long or not a text")
    return claims


def _read_header(token: str) -> Json:
    import jwt

    if len(token) > MAX_TOKEN_CHARS or not is_jwt(token):
        raise InvalidToken("it is not a signed JSON Web Token, or it is too long")
    try:
        return dict(jwt.get_unverified_header(token))
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise InvalidToken("its header cannot be read") from None


def _fits_key(algorithm: str, key_type: str, key_algorithm: str) -> bool:
    """Return True if a key of this type and algorithm can verify signatures made with `algorithm`."""
    if algorithm[:2] in ("RS", "PS"):
        return key_type == "RSA" and key_algorithm[:2] in ("RS", "PS")
    return algorithm == key_algorithm


def _describe_problem(error: Exception) -> str:
    import jwt

    problems: dict[type[Exception], str] = {
        jwt.ExpiredSignatureError: "it has expired",
        jwt.ImmatureSignatureError: "it is not valid yet",
        jwt.InvalidIssuedAtError: "its time of issue is not a number",
        jwt.InvalidAudienceError: "it was issued for another service",
        jwt.InvalidIssuerError: "it was issued by another identity provider",
        jwt.InvalidSignatureError: "its signature is wrong",
        jwt.MissingRequiredClaimError: "it lacks one of the claims exp, iss, aud and sub",
    }
    return problems.get(type(error), "it cannot be read")
