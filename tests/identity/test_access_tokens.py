"""The gateway accepts access tokens that its identity provider issued for it, and refuses all others."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest

from tests.gateway.harness import serve_protected_gateway
from tests.identity.issuer_server import RESOURCE, IssuerServer, SigningKey, serve_issuer
from toolfold.config.gateway_settings import OAuthResourceSettings
from toolfold.serving.gateway.oauth import OAuthResource
from toolfold.serving.identity import Issuer, issuers
from toolfold.state.users import FileUserStore, UserStore

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


class Clock:
    """A clock that a test moves forward."""

    def __init__(self) -> None:
        self.skipped = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.skipped


@dataclass
class ProtectedGateway:
    """A running gateway that accepts the access tokens of one provider."""

    url: str
    issuer: IssuerServer
    users: UserStore
    clock: Clock

    def send(self, token: str, **headers: str) -> httpx2.Response:
        """Open an MCP session with a token."""
        sent = {**HEADERS, **({"Authorization": f"Bearer {token}"} if token else {}), **headers}
        return httpx2.post(self.url, json=INITIALIZE, headers=sent, timeout=60)

    def origin(self) -> str:
        return self.url.removesuffix("/mcp")


@pytest.fixture(scope="module")
def keys() -> tuple[SigningKey, SigningKey]:
    return SigningKey("one"), SigningKey("two", kind="EC")


@pytest.fixture(scope="module")
def gateway(
    tmp_path_factory: pytest.TempPathFactory, keys: tuple[SigningKey, SigningKey]
) -> Iterator[ProtectedGateway]:
    home = tmp_path_factory.mktemp("gateway")
    users, clock = FileUserStore(home / "users.json"), Clock()
    with serve_issuer(keys[0]) as issuer:
        settings = OAuthResourceSettings(issuer=issuer.url, resource=RESOURCE, required_scopes=("toolfold",))
        oauth = OAuthResource(settings, users, Issuer(issuer.url, clock))
        users.add_user("alice", issuer=issuer.url, subject="alice-1")
        with serve_protected_gateway(home, {}, oauth) as running:
            yield ProtectedGateway(running.url, issuer, users, clock)


def encode_part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def test_request_with_an_access_token_issued_for_the_gateway_is_accepted(gateway: ProtectedGateway) -> None:
    response = gateway.send(gateway.issuer.token())
    assert response.status_code == 200
    assert response.headers["mcp-session-id"]


def test_request_without_a_token_returns_401_with_the_url_of_the_protected_resource_metadata(
    gateway: ProtectedGateway,
) -> None:
    response = gateway.send("")
    assert response.status_code == 401
    challenge = response.headers["www-authenticate"]
    assert challenge.startswith("Bearer ")
    assert (
        'resource_metadata="https://tools.example.com/.well-known/oauth-protected-resource/mcp"' in challenge
    )
    assert 'scope="toolfold"' in challenge
    assert "error=" not in challenge


@pytest.mark.parametrize("suffix", ["", "/mcp"])
def test_protected_resource_metadata_of_the_gateway_contains_the_identity_provider_url(
    gateway: ProtectedGateway, suffix: str
) -> None:
    response = httpx2.get(f"{gateway.origin()}/.well-known/oauth-protected-resource{suffix}")
    assert response.status_code == 200
    assert response.json() == {
        "resource": RESOURCE,
        "authorization_servers": [gateway.issuer.url],
        "bearer_methods_supported": ["header"],
        "resource_name": "Toolfold",
        "scopes_supported": ["toolfold"],
    }


def test_protected_resource_metadata_is_not_served_for_an_unknown_host(gateway: ProtectedGateway) -> None:
    response = httpx2.get(
        f"{gateway.origin()}/.well-known/oauth-protected-resource", headers={"Host": "evil.example"}
    )
    assert response.status_code == 421


def refused(response: httpx2.Response, reason: str) -> bool:
    """Return True if a token was refused as invalid, for this reason and with a challenge."""
    is_challenged = 'error="invalid_token"' in response.headers.get("www-authenticate", "")
    return response.status_code == 401 and is_challenged and reason in response.json()["error"]


def test_token_without_a_signature_is_refused(gateway: ProtectedGateway) -> None:
    claims = gateway.issuer.claims()
    for algorithm in ("none", "None", "NONE"):
        for signature in ("", "AAAA"):
            head = encode_part({"alg": algorithm, "kid": "one", "typ": "at+jwt"})
            response = gateway.send(f"{head}.{encode_part(claims)}.{signature}")
            assert refused(response, "its signature algorithm is not accepted")


def test_token_signed_with_the_public_key_as_a_shared_secret_is_refused(
    gateway: ProtectedGateway, keys: tuple[SigningKey, SigningKey]
) -> None:
    import hashlib
    import hmac

    head = encode_part({"alg": "HS256", "kid": "one", "typ": "at+jwt"})
    signed = f"{head}.{encode_part(gateway.issuer.claims())}"
    for secret in (keys[0].public_pem, json.dumps(keys[0].to_jwk()).encode()):
        digest = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
        signature = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        assert refused(gateway.send(f"{signed}.{signature}"), "its signature algorithm is not accepted")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"aud": "https://other.example/mcp"}, "issued for another service"),
        ({"aud": ["https://tools.example.com", "https://tools.example.com/mcp/more"]}, "another service"),
        ({"aud": None}, "lacks one of the claims"),
        ({"iss": "https://evil.example"}, "issued by another identity provider"),
        ({"iss": None}, "lacks one of the claims"),
        ({"exp": 1_000_000_000}, "it has expired"),
        ({"exp": None}, "lacks one of the claims"),
        ({"exp": 10**400}, "the time at which it expires is not a usable number"),
        ({"nbf": 32_000_000_000}, "it is not valid yet"),
        ({"sub": None}, "lacks one of the claims"),
        ({"sub": ""}, "its subject is empty"),
        ({"sub": "x" * 300}, "its subject is empty, too long"),
        ({"cnf": {"jkt": "abc"}}, "bound to a key of the client"),
    ],
)
def test_access_token_with_a_wrong_or_missing_claim_for_issuer_or_audience_or_time_is_refused(
    gateway: ProtectedGateway, changes: dict[str, Any], reason: str
) -> None:
    assert refused(gateway.send(gateway.issuer.token(**changes)), reason)


def test_token_time_claims_are_accepted_despite_a_clock_skew_of_a_few_seconds(
    gateway: ProtectedGateway,
) -> None:
    now = time.time()
    token = gateway.issuer.token(exp=int(now) - 5, nbf=int(now) + 5)
    assert gateway.send(token).status_code == 200


def test_token_signed_by_a_different_key_with_the_same_key_id_is_refused(gateway: ProtectedGateway) -> None:
    forged = SigningKey("one").sign(gateway.issuer.claims())
    assert refused(gateway.send(forged), "its signature is wrong")


def test_token_signed_with_a_key_embedded_or_linked_in_its_header_is_refused(
    gateway: ProtectedGateway,
) -> None:
    with serve_issuer(SigningKey("evil")) as evil:
        own = evil.keys[0]
        for header in (
            {"jku": f"{evil.url}/jwks"},
            {"jwk": own.to_jwk()},
            {"x5u": f"{evil.url}/jwks"},
            {"kid": "one", "jwk": own.to_jwk()},
        ):
            assert gateway.send(own.sign(gateway.issuer.claims(), **header)).status_code == 401
        assert evil.requests == []


@pytest.mark.parametrize("kind", ["dpop+jwt", "logout+jwt", "token-introspection+jwt", "secevent+jwt"])
def test_json_web_token_with_a_type_header_other_than_access_token_is_refused(
    gateway: ProtectedGateway, kind: str
) -> None:
    token = gateway.issuer.keys[0].sign(gateway.issuer.claims(), typ=kind)
    assert refused(gateway.send(token), "it is a token for another purpose")


@pytest.mark.parametrize("claims", [{"nonce": "n"}, {"at_hash": "x"}, {"c_hash": "x"}, {"typ": "ID"}])
def test_error_for_an_id_token_says_to_send_the_access_token_instead(
    gateway: ProtectedGateway, claims: dict[str, str]
) -> None:
    token = gateway.issuer.keys[0].sign(gateway.issuer.claims(**claims), typ="JWT")
    assert refused(gateway.send(token), "it is an ID token; send the access token instead")


def test_token_with_a_nonce_is_accepted_if_its_type_header_declares_an_access_token(
    gateway: ProtectedGateway,
) -> None:
    claims = gateway.issuer.claims(nonce="n")
    assert gateway.send(gateway.issuer.keys[0].sign(claims)).status_code == 200
    of_keycloak = gateway.issuer.keys[0].sign({**claims, "typ": "Bearer"}, typ="JWT")
    assert gateway.send(of_keycloak).status_code == 200


def test_token_whose_header_declares_a_critical_extension_is_refused(gateway: ProtectedGateway) -> None:
    token = gateway.issuer.keys[0].sign(gateway.issuer.claims(), crit=["exp"])
    assert gateway.send(token).status_code == 401


def test_token_without_the_required_scope_returns_403(gateway: ProtectedGateway) -> None:
    response = gateway.send(gateway.issuer.token(scope="profile toolfold2"))
    assert response.status_code == 403
    challenge = response.headers["www-authenticate"]
    assert 'error="insufficient_scope"' in challenge
    assert 'scope="toolfold"' in challenge


def test_token_with_scopes_in_the_claim_scp_instead_of_scope_is_accepted(
    gateway: ProtectedGateway,
) -> None:
    assert gateway.send(gateway.issuer.token(scope=None, scp=["toolfold"])).status_code == 200
    assert gateway.send(gateway.issuer.token(scope=None, scp="x toolfold")).status_code == 200
    assert gateway.send(gateway.issuer.token(scope={"toolfold": True})).status_code == 403


def test_valid_token_of_an_unknown_user_is_refused(gateway: ProtectedGateway) -> None:
    response = gateway.send(gateway.issuer.token("nobody"))
    assert response.status_code == 403
    assert "toolfold user add" in response.json()["error"]
    assert gateway.users.find_identity(gateway.issuer.url, "nobody") is None


def test_access_token_of_a_disabled_user_is_refused_even_in_an_open_session(
    gateway: ProtectedGateway,
) -> None:
    gateway.users.add_user("mallory", issuer=gateway.issuer.url, subject="mallory-1")
    token = gateway.issuer.token("mallory-1")
    opened = gateway.send(token)
    assert opened.status_code == 200
    gateway.users.set_disabled("mallory", True)
    assert gateway.send(token).status_code == 403
    replay = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
    assert gateway.send(token, **replay).status_code == 403
    gateway.users.set_disabled("mallory", False)
    assert gateway.send(token).status_code == 200


def test_disabling_a_user_invalidates_the_gateway_client_that_logged_in_as_the_user(tmp_path: Path) -> None:
    from toolfold.serving.gateway.client_tokens import GatewayClient, Tokens

    tokens = Tokens(tmp_path / "tokens.json")
    user = tokens.users.add_user("ann", issuer="https://i.example", subject="1")
    client = GatewayClient("user:ann", created=user.created, user_id=user.id, is_login=True)
    assert tokens.is_valid(client)
    tokens.users.set_disabled("ann", True)
    assert not tokens.is_valid(client)


def test_mcp_session_of_one_user_cannot_be_used_with_the_access_token_of_another_user(
    gateway: ProtectedGateway,
) -> None:
    gateway.users.add_user("bob", issuer=gateway.issuer.url, subject="bob-1")
    session = gateway.send(gateway.issuer.token()).headers["mcp-session-id"]
    message = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    own = {**HEADERS, "Mcp-Session-Id": session, "Authorization": f"Bearer {gateway.issuer.token('alice-1')}"}
    other = {**own, "Authorization": f"Bearer {gateway.issuer.token('bob-1')}"}
    assert httpx2.post(gateway.url, json=message, headers=other, timeout=60).status_code == 404
    assert httpx2.post(gateway.url, json=message, headers=own, timeout=60).status_code == 200


def test_request_with_two_authorization_headers_is_refused(gateway: ProtectedGateway) -> None:
    tokens = [gateway.issuer.token(), gateway.issuer.token("nobody")]
    for first, second in (tokens, tokens[::-1], [tokens[0], tokens[0]]):
        headers = [
            *HEADERS.items(),
            ("Authorization", f"Bearer {first}"),
            ("authorization", f"Bearer {second}"),
        ]
        response = httpx2.post(gateway.url, json=INITIALIZE, headers=headers, timeout=60)
        assert response.status_code == 400


@pytest.mark.parametrize(
    "value", ["Bearer {0}, Bearer {0}", "Basic {0}", "{0}", "Bearer {0} {0}", "DPoP {0}", "Bearer\t{0}"]
)
def test_valid_token_in_a_malformed_authorization_header_is_refused(
    gateway: ProtectedGateway, value: str
) -> None:
    headers = {**HEADERS, "Authorization": value.format(gateway.issuer.token())}
    assert httpx2.post(gateway.url, json=INITIALIZE, headers=headers, timeout=60).status_code == 401


def test_access_token_in_the_query_string_is_refused(gateway: ProtectedGateway) -> None:
    url = f"{gateway.url}?access_token={gateway.issuer.token()}"
    assert httpx2.post(url, json=INITIALIZE, headers=HEADERS, timeout=60).status_code == 401


def test_key_rotation_accepts_tokens_of_the_new_key_and_refuses_tokens_of_the_withdrawn_key(
    gateway: ProtectedGateway, keys: tuple[SigningKey, SigningKey]
) -> None:
    issuer, (old, new) = gateway.issuer, keys
    before = issuer.token()
    assert gateway.send(before).status_code == 200
    issuer.keys = [new, old]
    gateway.clock.skipped += issuers.MIN_FETCH_INTERVAL_S
    assert gateway.send(issuer.token()).status_code == 200
    assert gateway.send(before).status_code == 200
    issuer.keys = [new]
    gateway.clock.skipped += issuers.REFRESH_INTERVAL_S
    assert gateway.send(issuer.token()).status_code == 200
    assert gateway.send(before).status_code == 401
    issuer.keys = [old]
    gateway.clock.skipped += issuers.REFRESH_INTERVAL_S
    assert gateway.send(issuer.token()).status_code == 200


def test_many_tokens_with_unknown_key_ids_cause_only_few_requests_to_the_identity_provider(
    gateway: ProtectedGateway,
) -> None:
    gateway.send(gateway.issuer.token())
    gateway.clock.skipped += issuers.MIN_FETCH_INTERVAL_S
    before = len(gateway.issuer.requests)
    key = SigningKey("x")
    for number in range(20):
        token = key.sign(gateway.issuer.claims(), kid=f"unknown-{number}")
        assert gateway.send(token).status_code == 401
    assert len(gateway.issuer.requests) - before == 1


def test_access_token_cannot_be_used_to_sign_in_to_the_dashboard(tmp_path: Path) -> None:
    from toolfold.serving.dashboard.dashboard_access import find_full_client
    from toolfold.serving.gateway.client_tokens import Tokens
    from toolfold.serving.gateway.http_app import make_access_policy

    with serve_issuer(SigningKey("one")) as issuer:
        users = FileUserStore(tmp_path / "users.json")
        users.add_user("alice", issuer=issuer.url, subject="alice-1")
        oauth = OAuthResource(OAuthResourceSettings(issuer=issuer.url, resource=RESOURCE), users)
        policy = make_access_policy(
            "127.0.0.1", Tokens(tmp_path / "tokens.json"), toolsets=None, hosts=(), origins=(), oauth=oauth
        )
        assert find_full_client(policy, issuer.token()) is None


def test_access_token_with_250_groups_is_accepted(gateway: ProtectedGateway) -> None:
    assert gateway.send(gateway.issuer.token(groups=["a group of the directory"] * 250)).status_code == 200


def test_token_larger_than_the_header_limit_is_refused(gateway: ProtectedGateway) -> None:
    assert gateway.send(gateway.issuer.token(filler="x" * 20_000)).status_code in (401, 431, 400)


def test_malformed_json_web_token_returns_401(gateway: ProtectedGateway) -> None:
    head = encode_part({"alg": "RS256", "kid": 7})
    for token in (
        "a.b.c",
        "..",
        f"{head}.e30.AAAA",
        f"{encode_part([])}.e30.AAAA",
        "tf_unknown",
        "x" * 5_000,
    ):
        assert gateway.send(token).status_code == 401


def test_rsa_keys_below_the_minimum_size_are_not_used_to_verify_tokens() -> None:
    weak = SigningKey("weak", bits=1_024)
    assert issuers._parse_keys({"keys": [weak.to_jwk()]}) == {}


def test_symmetric_keys_and_encryption_keys_are_not_used_to_verify_tokens(
    keys: tuple[SigningKey, SigningKey],
) -> None:
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "s", "alg": "HS256"}
    encryption = {**keys[0].to_jwk(), "use": "enc"}
    assert issuers._parse_keys({"keys": [secret, encryption, "text", {}]}) == {}


def test_token_with_an_rsa_pss_signature_is_accepted(gateway: ProtectedGateway) -> None:
    key = gateway.issuer.keys[0]
    token = jwt.encode(gateway.issuer.claims(), key.private, "PS256", headers={"kid": key.key_id})
    assert gateway.send(token).status_code == 200
