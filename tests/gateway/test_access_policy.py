"""The door turns away whoever should not come in, before the protocol sees anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from toolfold.errors import ConfigError
from toolfold.gateway.http_app import AccessPolicy, guard_app, is_loopback, make_access_policy
from toolfold.gateway.server import CLIENT_SCOPE_KEY
from toolfold.gateway.tokens import ANONYMOUS, GatewayClient, Tokens

LOCAL = {"host": "127.0.0.1:8765"}


class Inside:
    """What stands behind the door: notes who came in, and with what."""

    def __init__(self) -> None:
        self.scopes: list[MutableMapping[str, Any]] = []

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def receive_nothing() -> dict[str, Any]:
    return {"type": "http.disconnect"}


def knock(at: AccessPolicy, headers: dict[str, str]) -> tuple[int, Inside, dict[str, Any]]:
    inside, sent = Inside(), []

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


def local(tokens: Tokens, **more: Any) -> AccessPolicy:
    return make_access_policy(
        "127.0.0.1",
        tokens,
        toolsets=None,
        hosts=more.get("hosts", ()),
        origins=more.get("origins", ()),
        allow_anonymous=more.get("allow_anonymous", False),
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8765", "localhost:1", "[::1]:8765", "LOCALHOST"])
def test_this_machine_is_let_in_without_a_token(tokens: Tokens, host: str) -> None:
    status, inside, _ = knock(local(tokens), {"host": host})
    assert status == 200
    assert inside.scopes[0][CLIENT_SCOPE_KEY] == GatewayClient(ANONYMOUS)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "localhost@evil.example", "", "[", "a b"],
)
def test_a_name_that_is_not_ours_is_turned_away(tokens: Tokens, host: str) -> None:
    status, inside, said = knock(local(tokens), {"host": host})
    assert (status, inside.scopes) == (421, [])
    assert "gateway.hosts" in said["error"]


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
def test_a_web_page_from_elsewhere_is_turned_away(tokens: Tokens, origin: str) -> None:
    status, inside, _ = knock(local(tokens), {**LOCAL, "origin": origin})
    assert (status, inside.scopes) == (403, [])


@pytest.mark.parametrize("origin", ["http://127.0.0.1:3000", "http://localhost", "https://[::1]:8765"])
def test_a_page_of_this_machine_is_let_in(tokens: Tokens, origin: str) -> None:
    assert knock(local(tokens), {**LOCAL, "origin": origin})[0] == 200


def test_names_and_pages_that_were_added_are_ours(tokens: Tokens) -> None:
    at = local(tokens, hosts=("box.lan",), origins=("https://app.example",))
    assert knock(at, {"host": "box.lan:80", "origin": "https://app.example"})[0] == 200


@pytest.mark.parametrize("given", ["Bearer wrong", "Basic eDp5", "Bearer", "bearer  ", "tf_x"])
def test_a_wrong_token_is_worse_than_none(tokens: Tokens, given: str) -> None:
    tokens.add("bob")
    status, inside, said = knock(local(tokens), {**LOCAL, "authorization": given})
    assert (status, inside.scopes) == (401, [])
    assert "toolfold token add" in said["error"]


def test_a_token_goes_no_further_than_the_door(tokens: Tokens) -> None:
    token = tokens.add("bob", ["mcp-x"])
    status, inside, _ = knock(local(tokens), {**LOCAL, "authorization": f"Bearer {token}"})
    assert status == 200
    assert inside.scopes[0][CLIENT_SCOPE_KEY] == GatewayClient(
        "bob", ("mcp-x",), inside.scopes[0][CLIENT_SCOPE_KEY].created
    )
    assert token not in repr(inside.scopes[0])


def test_once_a_token_exists_every_client_needs_one(tokens: Tokens) -> None:
    at = local(tokens)
    assert knock(at, LOCAL)[0] == 200
    token = tokens.add("narrow", ["mcp-git"])
    status, inside, said = knock(at, LOCAL)
    assert (status, inside.scopes) == (401, [])
    assert "A token is needed" in said["error"]
    assert knock(at, {**LOCAL, "authorization": f"Bearer {token}"})[0] == 200


def test_revoking_the_last_token_lets_nobody_in_without_one(tokens: Tokens) -> None:
    tokens.add("narrow")
    tokens.revoke("narrow")
    assert knock(local(tokens), LOCAL)[0] == 401


def test_anonymous_clients_are_let_in_beside_tokens_where_that_is_allowed(tokens: Tokens) -> None:
    tokens.add("narrow")
    at = local(tokens, allow_anonymous=True)
    assert knock(at, LOCAL)[0] == 200
    assert knock(at, {**LOCAL, "authorization": "Bearer wrong"})[0] == 401


def test_a_stream_without_a_token_says_no_more_once_one_is_needed(tokens: Tokens) -> None:
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
        await guard_app(stream, local(tokens))(
            {"type": "http", "method": "GET", "headers": raw}, receive_nothing, send
        )

    asyncio.run(enter())
    assert [each.get("body") for each in sent] == [None, b"before", b""]


def test_beyond_loopback_nobody_is_let_in_without_a_token(tokens: Tokens) -> None:
    token = tokens.add("bob")
    at = make_access_policy("192.0.2.7", tokens, toolsets=None, hosts=(), origins=())
    assert knock(at, {"host": "192.0.2.7:8765"})[0] == 401
    assert knock(at, {"host": "192.0.2.7:8765", "authorization": f"Bearer {token}"})[0] == 200


def test_beyond_loopback_there_must_be_a_token_at_all(tokens: Tokens) -> None:
    with pytest.raises(ConfigError, match="nobody has a token"):
        make_access_policy("0.0.0.0", tokens, toolsets=None, hosts=(), origins=())


@pytest.mark.parametrize(
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
def test_what_only_this_machine_can_reach(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
