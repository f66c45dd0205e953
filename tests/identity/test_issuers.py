"""Metadata and keys of an identity provider are fetched with limits, and only from allowed addresses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.identity.issuer_server import IssuerServer, SigningKey, serve_issuer
from toolfold.serving.identity import Issuer, IssuerUnavailable, issuers

METADATA = "/.well-known/openid-configuration"


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey("one", kind="EC")


@pytest.fixture
def issuer(key: SigningKey) -> Iterator[IssuerServer]:
    with serve_issuer(key) as running:
        yield running


def set_metadata(issuer: IssuerServer, /, **changes: Any) -> None:
    document = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/jwks", **changes}
    issuer.replies[METADATA] = 200, {}, json.dumps(document).encode()


async def load_key(issuer: IssuerServer) -> Issuer:
    loaded = Issuer(issuer.url)
    await loaded.load_key("one")
    return loaded


async def test_signing_keys_are_fetched_once_from_the_url_in_the_metadata_of_the_issuer(
    issuer: IssuerServer,
) -> None:
    loaded = await load_key(issuer)
    assert loaded.find_key("one") is not None
    assert loaded.find_key("two") is None
    await loaded.load_key("one")
    assert issuer.requests == [METADATA, "/jwks"]


async def test_signing_keys_are_loaded_from_oauth_metadata_if_openid_connect_metadata_is_missing(
    issuer: IssuerServer,
) -> None:
    set_metadata(issuer)
    issuer.replies["/.well-known/oauth-authorization-server"] = issuer.replies[METADATA]
    issuer.replies[METADATA] = 404, {}, b""
    assert (await load_key(issuer)).find_key("one") is not None


async def test_identity_provider_metadata_with_a_different_issuer_is_refused(issuer: IssuerServer) -> None:
    set_metadata(issuer, issuer="https://other.example")
    with pytest.raises(IssuerUnavailable, match="describes another issuer"):
        await load_key(issuer)


async def test_signing_keys_document_above_the_size_limit_is_refused(
    issuer: IssuerServer, key: SigningKey
) -> None:
    body = json.dumps({"keys": [key.to_jwk()], "x": "y" * issuers.MAX_DOCUMENT_BYTES}).encode()
    issuer.replies["/jwks"] = 200, {}, body
    with pytest.raises(IssuerUnavailable, match="sent more than"):
        await load_key(issuer)


async def test_deeply_nested_signing_keys_document_is_refused(issuer: IssuerServer) -> None:
    issuer.replies["/jwks"] = 200, {}, b"[" * 100_000
    with pytest.raises(IssuerUnavailable, match="JSON object"):
        await load_key(issuer)


async def test_loading_signing_keys_fails_after_a_timeout_if_the_identity_provider_is_slow(
    issuer: IssuerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuers, "FETCH_TIMEOUT_S", 0.3)
    set_metadata(issuer, jwks_uri=f"{issuer.url}/slow")
    with pytest.raises(IssuerUnavailable, match="did not answer completely"):
        await load_key(issuer)


async def test_redirect_of_the_signing_keys_url_is_not_followed(issuer: IssuerServer) -> None:
    issuer.replies["/jwks"] = 302, {"Location": f"{issuer.url}/internal"}, b""
    with pytest.raises(IssuerUnavailable, match="status 302"):
        await load_key(issuer)
    assert "/internal" not in issuer.requests


@pytest.mark.parametrize(
    "url",
    [
        "https://169.254.169.254/latest/meta-data",
        "https://10.0.0.1/jwks",
        "https://[::1]/jwks",
        "https://2130706433/jwks",
        "http://169.254.169.254/",
        "file:///etc/passwd",
        "gopher://127.0.0.1/",
        "http://other.example/jwks",
        "",
    ],
)
async def test_signing_keys_are_not_fetched_from_an_internal_or_unencrypted_url(
    issuer: IssuerServer, url: str
) -> None:
    set_metadata(issuer, jwks_uri=url)
    with pytest.raises(IssuerUnavailable):
        await load_key(issuer)
    assert issuer.requests == [METADATA]


async def test_cached_signing_keys_are_used_while_the_identity_provider_does_not_respond(
    issuer: IssuerServer,
) -> None:
    now = 0.0
    loaded = Issuer(issuer.url, lambda: now)
    await loaded.load_key("one")
    issuer.replies["/jwks"] = 500, {}, b""
    now = issuers.REFRESH_INTERVAL_S + 1
    await loaded.load_key("one")
    assert loaded.find_key("one") is not None
    now = issuers.MAX_KEY_AGE_S + 1
    with pytest.raises(IssuerUnavailable, match="status 500"):
        await loaded.load_key("one")
    assert loaded.find_key("one") is None


async def test_issuer_metadata_is_fetched_again_if_the_cached_signing_keys_url_fails(
    issuer: IssuerServer, key: SigningKey
) -> None:
    now = 0.0
    loaded = Issuer(issuer.url, lambda: now)
    await loaded.load_key("one")
    issuer.replies["/jwks"] = 404, {}, b""
    issuer.replies["/moved"] = 200, {}, json.dumps({"keys": [{**key.to_jwk(), "kid": "two"}]}).encode()
    set_metadata(issuer, jwks_uri=f"{issuer.url}/moved")
    for _ in range(2):
        now += issuers.MIN_FETCH_INTERVAL_S
        await loaded.load_key("two")
    assert loaded.find_key("two") is not None
    assert loaded.find_key("one") is None


async def test_cached_signing_key_is_used_while_a_pending_request_for_new_keys_has_no_response(
    issuer: IssuerServer,
    key: SigningKey,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(issuers, "MAX_REFRESH_WAIT_S", 0.05)
    now = 0.0
    set_metadata(issuer, jwks_uri=f"{issuer.url}/slow")
    issuer.replies["/slow"] = 200, {}, json.dumps({"keys": [key.to_jwk()]}).encode()
    loaded = Issuer(issuer.url, lambda: now)
    await loaded.load_key("one")
    del issuer.replies["/slow"]
    now = issuers.REFRESH_INTERVAL_S + 1
    for _ in range(5):
        await loaded.load_key("one")
    assert caplog.messages == []  # the request has neither failed nor been answered
    now += issuers.MIN_FETCH_INTERVAL_S
    issuer.release.set()
    await loaded.load_key("two")  # waits for that request
    assert len(caplog.messages) == 1
    before = len(issuer.requests)
    await loaded.load_key("two")
    assert len(issuer.requests) == before  # the pause begins when a request has ended
