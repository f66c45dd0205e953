"""Identity providers, their metadata and keys, and tokens signed by them.

Knows nothing of HTTP servers and of users: callers decide what a verified token may do.
"""

from toolfold.serving.identity.access_tokens import AccessToken, AccessTokenVerifier, InsufficientScope
from toolfold.serving.identity.issuers import Issuer, IssuerUnavailable
from toolfold.serving.identity.signed_tokens import InvalidToken, is_issued_for, is_jwt

__all__ = [
    "AccessToken",
    "AccessTokenVerifier",
    "InsufficientScope",
    "InvalidToken",
    "Issuer",
    "IssuerUnavailable",
    "is_issued_for",
    "is_jwt",
]
