"""Separate a proxy client's Toolfold token from its API key for a model provider.

A client may send a Toolfold token, its own key of a provider, or both. A token is never forwarded, and a
provider's key is never taken for a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from toolfold.serving.gateway.client_tokens import GatewayClient
from toolfold.serving.gateway.http_app import AccessPolicy
from toolfold.serving.gateway.request_bodies import RequestRefused

TOKEN_HEADER = "x-toolfold-token"  # noqa: S105 - the name of a header
KEY_HEADERS = frozenset({"authorization", "x-api-key", "api-key"})
"""Request headers in which clients send a provider's key."""
_TOKEN_PREFIX = "tf_"  # noqa: S105
_TOKEN_NEEDED = (
    "This proxy needs a token. Ask its administrator for one (`toolfold token add NAME`), and send it as the"
    f" API key or in the header {TOKEN_HEADER}."
)
_TOKEN_UNKNOWN = (
    "This token is not valid: it is mistyped or was revoked. Ask the administrator of the proxy for one"  # noqa: S105
    " (`toolfold token add NAME`)."
)


@dataclass(frozen=True, slots=True)
class AdmittedClient:
    """A client accepted by the proxy, and the request headers that contain its Toolfold tokens."""

    client: GatewayClient
    token_headers: frozenset[str]
    is_still_valid: Callable[[], bool]
    """Tells whether the client would still be accepted now."""


async def admit_client(policy: AccessPolicy, headers: Mapping[str, str]) -> AdmittedClient:
    """Return the client of a request. Raises RequestRefused if the client is not accepted."""
    if refusal := policy.find_refusal(dict(headers)):
        raise RequestRefused(*refusal)
    if headers.get("sec-fetch-site") == "cross-site" and "origin" not in headers:
        raise RequestRefused(403, "Requests from another web page are refused if they have no Origin header.")
    token_headers = _find_token_headers(policy, headers)
    for name in sorted(token_headers):
        await policy.prepare_token(_credential(headers[name]))
    client = _find_client(policy, headers, token_headers)
    if client is None:
        texts = (policy.describe_refused_token(_credential(headers[name])) for name in sorted(token_headers))
        log_text = next(filter(None, texts), "")
        raise RequestRefused(401, _TOKEN_UNKNOWN if token_headers else _TOKEN_NEEDED, log_text=log_text)

    def is_still_valid() -> bool:
        try:
            return _find_client(policy, headers, token_headers) is not None
        except RequestRefused:
            return False

    return AdmittedClient(client, token_headers, is_still_valid)


def require_single_keys(sent: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise RequestRefused if a key or token header is repeated, because only one can be checked."""
    names = [name.decode("latin-1").lower() for name, _ in sent]
    for name in (*KEY_HEADERS, TOKEN_HEADER):
        if names.count(name) > 1:
            raise RequestRefused(400, f"The header {name} must not be repeated.")


def _find_client(
    policy: AccessPolicy, headers: Mapping[str, str], token_headers: frozenset[str]
) -> GatewayClient | None:
    """Return the client that owns all tokens of a request; None if the request must be refused.

    Without a token it is the anonymous client, if the policy allows that. A wrong token is refused even
    where none is needed.
    """
    if not token_headers:
        return None if policy.requires_token else policy.anonymous_client
    clients = [policy.find_client(_credential(headers[name])) for name in sorted(token_headers)]
    return clients[0] if all(client == clients[0] for client in clients) else None


def _find_token_headers(policy: AccessPolicy, headers: Mapping[str, str]) -> frozenset[str]:
    sent = {name for name in KEY_HEADERS if _is_own_token(policy, _credential(headers.get(name, "")))}
    return frozenset(sent | ({TOKEN_HEADER} & headers.keys()))


def _is_own_token(policy: AccessPolicy, credential: str) -> bool:
    """Return True if a token was issued by this gateway, or by an identity provider for this gateway.

    Providers accept access tokens too, which are issued for them and are passed on like other keys.
    """
    is_access_token = policy.oauth is not None and policy.oauth.is_own_token(credential)
    return is_access_token or credential.startswith(_TOKEN_PREFIX)


def _credential(value: str) -> str:
    """Return the token or key in a header value, without a leading `Bearer`."""
    scheme, *rest = value.split(maxsplit=1) or [""]
    return rest[0].strip() if rest and scheme.lower() == "bearer" else value.strip()
