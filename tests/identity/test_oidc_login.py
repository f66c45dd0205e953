"""A login is accepted only if state, nonce, issuer and ID token belong to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.identity.issuer_server import IssuerServer, SigningKey, serve_issuer
from toolfold.identity import InvalidToken, Issuer
from toolfold.identity.accounts import GroupRules, add_missing_user, apply_groups
from toolfold.identity.oidc_login import Identity, LoginAttempt, OidcClient
from toolfold.users import FileUserStore

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


async def finish(issuer: IssuerServer, *, response: dict[str, Any] | None = None, **claims: Any) -> Identity:
    """Finish a login with an ID token and a response that are valid except for the given changes."""
    attempt = LoginAttempt()
    sent = {"aud": "dashboard", "nonce": attempt.nonce, "scope": None, **claims}
    token = issuer.keys[0].sign(issuer.claims("alice-1", **sent), typ="JWT")
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
    ],
)
async def test_id_token_with_a_wrong_nonce_or_audience_or_issuer_or_expiry_is_refused(
    issuer: IssuerServer, claims: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidToken, match=reason):
        await finish(issuer, **claims)


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
