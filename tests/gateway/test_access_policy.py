"""Requests are accepted or refused by host, origin and token before the protocol sees them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from tests.cases import check_cases
from toolfold.core.errors import ConfigError
from toolfold.serving.gateway.client_tokens import ANONYMOUS, GatewayClient, Tokens
from toolfold.serving.gateway.http_app import AccessPolicy, guard_app, is_loopback, make_access_policy
from toolfold.serving.gateway.server import CLIENT_SCOPE_KEY

LOCAL = {"host": "127.0.0.1:8765"}


class RecordingApp:
    """ASGI application behind the access policy that records the requests it gets."""

    def __init__(self) -> None:
        self.scopes: list[MutableMapping[str, Any]] = []

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def receive_nothing() -> dict[str, Any]:
    return {"type": "http.disconnect"}


def send_request(at: AccessPolicy, headers: dict[str, str]) -> tuple[int, RecordingApp, dict[str, Any]]:
    inside, sent = RecordingApp(), []

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def enter() -> None:
        await guard_app(inside, at)({"type": "http", "method": "GET", "headers": raw}, receive_nothing, send)

    asyncio.run(enter())
    body = sent[1]["body"]
    return sent[0]["status"], inside, json.loads(body) if body else {}


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "tokens.json")


def local_policy(tokens: Tokens, **more: Any) -> AccessPolicy:
    return make_access_policy(
        "127.0.0.1",
        tokens,
        toolsets=None,
        hosts=more.get("hosts", ()),
        origins=more.get("origins", ()),
        allow_anonymous=more.get("allow_anonymous", False),
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8765", "localhost:1", "[::1]:8765", "LOCALHOST"])
def test_request_with_a_loopback_host_header_is_accepted_without_a_token_if_no_token_exists(
    tokens: Tokens, host: str
) -> None:
    status, inside, _ = send_request(local_policy(tokens), {"host": host})
    assert status == 200
    assert inside.scopes[0][CLIENT_SCOPE_KEY] == GatewayClient(ANONYMOUS)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "localhost@evil.example", "", "[", "a b"],
)
def test_request_with_a_host_header_that_is_not_loopback_or_configured_is_refused(
    tokens: Tokens, host: str
) -> None:
    status, inside, response = send_request(local_policy(tokens), {"host": host})
    assert (status, inside.scopes) == (421, [])
    assert "gateway.hosts" in response["error"]


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "https://localhost.evil.example",
        "file://",
        "http://[",
        "ftp://localhost",
    ],
)
def test_request_with_an_origin_header_that_is_not_a_loopback_http_url_is_refused(
    tokens: Tokens, origin: str
) -> None:
    status, inside, _ = send_request(local_policy(tokens), {**LOCAL, "origin": origin})
    assert (status, inside.scopes) == (403, [])


@pytest.mark.parametrize("origin", ["http://127.0.0.1:3000", "http://localhost", "https://[::1]:8765"])
def test_request_with_a_loopback_http_url_as_origin_header_is_accepted(tokens: Tokens, origin: str) -> None:
    assert send_request(local_policy(tokens), {**LOCAL, "origin": origin})[0] == 200


def test_requests_with_host_and_origin_headers_allowed_in_the_settings_are_accepted(tokens: Tokens) -> None:
    at = local_policy(tokens, hosts=("box.lan",), origins=("https://app.example",))
    assert send_request(at, {"host": "box.lan:80", "origin": "https://app.example"})[0] == 200


@pytest.mark.parametrize("given", ["Bearer wrong", "Basic eDp5", "Bearer", "bearer  ", "tf_x"])
def test_request_with_a_wrong_or_malformed_token_returns_401(tokens: Tokens, given: str) -> None:
    tokens.add("bob")
    status, inside, response = send_request(local_policy(tokens), {**LOCAL, "authorization": given})
    assert (status, inside.scopes) == (401, [])
    assert "toolfold token add" in response["error"]


def test_valid_token_is_removed_from_the_request_before_the_gateway_handles_it(tokens: Tokens) -> None:
    token = tokens.add("bob", ["mcp-x"])
    status, inside, _ = send_request(local_policy(tokens), {**LOCAL, "authorization": f"Bearer {token}"})
    assert status == 200
    assert inside.scopes[0][CLIENT_SCOPE_KEY] == GatewayClient(
        "bob", ("mcp-x",), inside.scopes[0][CLIENT_SCOPE_KEY].created, may_use_keys=False
    )
    assert token not in repr(inside.scopes[0])


def test_request_without_a_token_is_refused_after_the_first_token_is_created(tokens: Tokens) -> None:
    at = local_policy(tokens)
    assert send_request(at, LOCAL)[0] == 200
    token = tokens.add("narrow", ["mcp-git"])
    status, inside, response = send_request(at, LOCAL)
    assert (status, inside.scopes) == (401, [])
    assert "This gateway needs a token. Ask its administrator" in response["error"]
    assert send_request(at, {**LOCAL, "authorization": f"Bearer {token}"})[0] == 200


def test_request_without_a_token_is_refused_even_after_all_tokens_are_revoked(tokens: Tokens) -> None:
    tokens.add("narrow")
    tokens.revoke("narrow")
    assert send_request(local_policy(tokens), LOCAL)[0] == 401


def test_requests_without_a_token_are_accepted_if_allow_anonymous_is_set_even_if_tokens_exist(
    tokens: Tokens,
) -> None:
    tokens.add("narrow")
    at = local_policy(tokens, allow_anonymous=True)
    assert send_request(at, LOCAL)[0] == 200
    assert send_request(at, {**LOCAL, "authorization": "Bearer wrong"})[0] == 401


def test_open_stream_of_an_anonymous_client_ends_when_the_first_token_is_created(tokens: Tokens) -> None:
    sent: list[Any] = []

    async def stream(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"before", "more_body": True})
        tokens.add("first")
        await send({"type": "http.response.body", "body": b"after", "more_body": True})

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode()) for name, value in LOCAL.items()]

    async def enter() -> None:
        await guard_app(stream, local_policy(tokens))(
            {"type": "http", "method": "GET", "headers": raw}, receive_nothing, send
        )

    asyncio.run(enter())
    assert [each.get("body") for each in sent] == [None, b"before", b""]


def test_gateway_on_an_address_other_than_loopback_requires_a_token_from_clients(tokens: Tokens) -> None:
    token = tokens.add("bob")
    at = make_access_policy("192.0.2.7", tokens, toolsets=None, hosts=(), origins=())
    assert send_request(at, {"host": "192.0.2.7:8765"})[0] == 401
    assert send_request(at, {"host": "192.0.2.7:8765", "authorization": f"Bearer {token}"})[0] == 200


def test_gateway_on_an_address_other_than_loopback_does_not_start_before_a_token_is_created(
    tokens: Tokens,
) -> None:
    with pytest.raises(ConfigError, match="clients need a token"):
        make_access_policy("0.0.0.0", tokens, toolsets=None, hosts=(), origins=())


@check_cases(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("localhost.evil", False),
    ],
)
def test_is_loopback_returns_true_only_for_loopback_addresses_and_localhost(
    host: str, expected: bool
) -> None:
    assert is_loopback(host) is expected
