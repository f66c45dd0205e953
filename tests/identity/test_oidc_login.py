"""A login is accepted only if state, nonce, issuer and ID token belong to it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.identity.issuer_server import IssuerServer, SigningKey, serve_issuer
from toolfold.serving.identity import InvalidToken, Issuer
from toolfold.serving.identity.accounts import GroupRules, add_missing_user, apply_groups
from toolfold.serving.identity.oidc_login import Identity, LoginAttempt, OidcClient
from toolfold.state.users import FileUserStore

METADATA = "/.well-known/openid-configuration"


@pytest.fixture(scope="module")
def issuer() -> Iterator[IssuerServer]:
    with serve_issuer(SigningKey("one", kind="EC")) as running:
        document = {
            "issuer": running.url,
            "jwks_uri": f"{running.url}/jwks",
            "token_endpoint": f"{running.url}/token",
            "authorization_endpoint": f"{running.url}/auth",
            "authorization_response_iss_parameter_supported": True,
        }
        running.replies[METADATA] = 200, {}, json.dumps(document).encode()
        yield running


def sign_normally(issuer: IssuerServer, claims: dict[str, Any]) -> str:
    return issuer.keys[0].sign(claims, typ="JWT")


async def finish(
    issuer: IssuerServer,
    *,
    response: dict[str, Any] | None = None,
    sign: Callable[[IssuerServer, dict[str, Any]], object] = sign_normally,
    **claims: Any,
) -> Identity:
    """Finish a login with an ID token and a response that are valid except for the given changes."""
    attempt = LoginAttempt()
    sent = {"aud": "dashboard", "nonce": attempt.nonce, "scope": None, **claims}
    token = sign(issuer, issuer.claims("alice-1", **sent))
    issuer.replies["/token"] = 200, {}, json.dumps({"id_token": token}).encode()
    client = OidcClient(
        Issuer(issuer.url),
        client_id="dashboard",
        client_secret="any",
        redirect_uri="https://tools.example.com/ui/oidc/callback",
        scopes=("profile",),
        groups_claim="groups",
    )
    query = {"state": attempt.state, "code": "c", "iss": issuer.url, **(response or {})}
    return await client.finish(attempt, {name: value for name, value in query.items() if value is not None})


async def test_valid_login_returns_the_issuer_and_subject_of_the_user(issuer: IssuerServer) -> None:
    identity = await finish(issuer, name="Alice", groups=["admins", 7, "staff"], azp="dashboard")
    assert identity == Identity(issuer.url, "alice-1", "Alice", ("admins", "staff"))


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ({"state": "other"}, "the state differs"),
        ({"state": None}, "the state differs"),
        ({"iss": "https://evil.example"}, "another identity provider"),
        ({"iss": None}, "another identity provider"),
        ({"code": None}, "contains no code"),
        ({"code": "x" * 5_000}, "contains no code"),
        ({"error": "access_denied"}, "has refused the login"),
    ],
)
async def test_login_redirect_with_a_wrong_state_or_issuer_or_code_is_refused(
    issuer: IssuerServer, response: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidToken, match=reason):
        await finish(issuer, response=response)


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"nonce": "other"}, "the nonce differs"),
        ({"nonce": None}, "the nonce differs"),
        ({"aud": "other-client"}, "for another service"),
        ({"aud": ["dashboard", "other-client"]}, "issued to another client"),
        ({"azp": "other-client"}, "issued to another client"),
        ({"iss": "https://evil.example"}, "another identity provider"),
        ({"exp": 1_000_000_000}, "has expired"),
        ({"exp": None}, "lacks one of the claims"),
        ({"nbf": 32_000_000_000}, "not valid yet"),
        ({"aud": None}, "lacks one of the claims"),
        ({"aud": []}, "lacks one of the claims"),
        ({"aud": ["other-client"]}, "for another service"),
        ({"iss": None}, "lacks one of the claims"),
        ({"sub": None}, "lacks one of the claims"),
        ({"sub": ""}, "subject is empty"),
        ({"sub": "alice-1\n"}, "subject is empty, too long or not a text"),
        ({"nonce": ["other"]}, "the nonce differs"),
        ({"azp": ["dashboard"]}, "issued to another client"),
    ],
)
async def test_id_token_with_a_wrong_nonce_or_audience_or_issuer_or_expiry_is_refused(
    issuer: IssuerServer, claims: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidToken, match=reason):
        await finish(issuer, **claims)


def make_token(claims: dict[str, Any], signature: Callable[[bytes], bytes], **header: str) -> str:
    parts = ({"kid": "one", "typ": "JWT", **header}, claims)
    signed = ".".join(encode_part(json.dumps(each).encode()) for each in parts)
    return f"{signed}.{encode_part(signature(signed.encode()))}"


def encode_part(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def sign_with_secret(secret: bytes) -> Callable[[bytes], bytes]:
    return lambda signed: hmac.new(secret, signed, hashlib.sha256).digest()


FORGERIES: dict[str, Callable[[IssuerServer, dict[str, Any]], object]] = {
    "algorithm none": lambda _, claims: make_token(claims, lambda _: b"", alg="none"),
    "algorithm NONE with a signature": lambda _, claims: make_token(claims, lambda _: b"x", alg="NONE"),
    "the client secret": lambda _, claims: make_token(claims, sign_with_secret(b"any"), alg="HS256"),
    "the public key as a secret": lambda issuer, claims: make_token(
        claims, sign_with_secret(issuer.keys[0].public_pem), alg="HS256"
    ),
    "another key with the same id": lambda _, claims: SigningKey("one", kind="EC").sign(claims, typ="JWT"),
    "an unknown key": lambda _, claims: SigningKey("two", kind="EC").sign(claims, typ="JWT"),
    "a key in the token": lambda _, claims: (other := SigningKey("two", kind="EC")).sign(
        claims, typ="JWT", jwk=other.to_jwk()
    ),
    "an access token": lambda issuer, claims: issuer.keys[0].sign(claims),
    "a token for logging out": lambda issuer, claims: issuer.keys[0].sign(claims, typ="logout+jwt"),
    "no token": lambda _issuer, _claims: None,
    "claims without a signature": lambda _, claims: claims,
    "text": lambda _issuer, _claims: "a.b",
}


@pytest.mark.parametrize("forgery", FORGERIES)
async def test_id_token_that_the_issuer_has_not_signed_for_logins_is_refused(
    issuer: IssuerServer, forgery: str
) -> None:
    with pytest.raises(InvalidToken):
        await finish(issuer, sign=FORGERIES[forgery])


def test_identity_provider_groups_determine_the_teams_and_administrator_role_of_a_user(
    tmp_path: Any,
) -> None:
    users = FileUserStore(tmp_path / "users.json")
    users.add_team("by-hand")
    add_missing_user(users, issuer="https://i.example", subject="1", name="Ann Lee", default_team="by-hand")
    add_missing_user(users, issuer="https://i.example", subject="1", name="Ann Lee")
    user = users.find_identity("https://i.example", "1")
    assert user is not None
    rules = GroupRules({"dev": "developers", "ops": "operators"}, ("ops",))

    def state() -> tuple[bool, list[str]]:
        directory = users.directory()
        return directory.users[user.id].is_admin, [each.name for each in directory.list_teams(user.id)]

    apply_groups(users, user.id, ["dev", "unknown"], rules)
    assert state() == (False, ["by-hand", "developers"])
    apply_groups(users, user.id, ["ops"], rules)
    assert state() == (True, ["by-hand", "operators"])
    apply_groups(users, user.id, [], rules)
    assert state() == (False, ["by-hand"])
    assert len(users.directory().users) == 1
    assert user.name == "Ann-Lee"
