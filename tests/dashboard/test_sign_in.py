"""Signing in to the dashboard with tokens, limits for visitors, and the end of browser sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from toolfold.safety.redaction import Redaction
from toolfold.serving.dashboard.dashboard_access import (
    CODE_LIFETIME_S,
    MAX_CODES,
    MAX_FAILURES,
    SESSION_LIFETIME_S,
    SignIn,
)
from toolfold.serving.dashboard.dashboard_app import (
    MAX_VISITOR_BODY_BYTES,
    MAX_VISITOR_BUFFER_BYTES,
    DashboardApp,
    DashboardRequest,
    Routes,
)
from toolfold.serving.gateway.client_tokens import Tokens
from toolfold.serving.gateway.http_app import AccessPolicy, make_access_policy
from toolfold.serving.gateway.request_bodies import RequestRefused

ORIGIN = "http://127.0.0.1:8766"


async def _return_body(request: DashboardRequest) -> Any:
    return {"body": request.body}


async def _close() -> None:
    return None


async def _stream_two_pieces(tokens: Tokens) -> AsyncIterator[bytes]:
    yield b"data: before\n\n"
    tokens.revoke("admin")
    yield b"data: after\n\n"


class Site:
    """A dashboard that is called in this process, whose ASGI server does not know the client's address."""

    def __init__(self, folder: Path, host: str) -> None:
        self.tokens = Tokens(folder / "tokens.json")
        self.token = self.tokens.add("admin")
        self.scoped_token = self.tokens.add("scoped", ["web"])
        policy: AccessPolicy = make_access_policy(host, self.tokens, toolsets=None, hosts=(), origins=())
        routes = Routes(
            {"read": _return_body},
            {"write": _return_body},
            {"events": lambda _: _stream_two_pieces(self.tokens)},
        )
        self.printed: list[str] = []
        self.app = DashboardApp(
            routes, policy, Redaction(), port=8766, print_link=self.printed.append, close=_close
        )
        # Without an address of the client, the process that makes the request cannot be determined.
        transport = httpx2.ASGITransport(app=self.app, client=None)  # type: ignore[arg-type]
        self.http = httpx2.AsyncClient(transport=transport, base_url=ORIGIN, headers={"origin": ORIGIN})

    async def sign_in(self, token: str = "") -> httpx2.Response:
        body = {"code": self.app.sign_in.create_code(), "token": token}
        response = await self.http.post("/ui/api/sign-in", json=body)
        if response.status_code == 200:
            self.http.headers["x-toolfold-page-key"] = response.json()["page_key"]
        return response

    async def read(self) -> int:
        return (await self.http.get("/ui/api/read")).status_code

    async def write(self) -> int:
        return (await self.http.post("/ui/api/write", json={})).status_code


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_dashboard_session_opened_with_a_token_ends_when_the_token_is_revoked(
    tmp_path: Path, host: str
) -> None:
    async def check() -> None:
        site = Site(tmp_path, host)
        assert (await site.sign_in(site.token)).status_code == 200
        assert await site.read() == 200
        site.tokens.revoke("admin")
        assert await site.read() == 401
        site.tokens.add("admin")  # another token of the same name does not open the session again
        assert await site.read() == 401

    asyncio.run(check())


def test_open_event_stream_of_the_dashboard_ends_when_the_token_of_its_session_is_revoked(
    tmp_path: Path,
) -> None:
    async def check() -> None:
        site = Site(tmp_path, "0.0.0.0")
        await site.sign_in(site.token)
        assert (await site.http.get("/ui/api/events")).text == "data: before\n\n"

    asyncio.run(check())


def test_local_browser_whose_process_cannot_be_identified_needs_a_token_to_sign_in(
    tmp_path: Path,
) -> None:
    async def check() -> None:
        site = Site(tmp_path, "127.0.0.1")
        refused = await site.sign_in()
        assert refused.status_code == 403
        assert "toolfold token add" in refused.json()["error"]
        for wrong in ("tf_wrong", site.scoped_token):
            assert (await site.sign_in(wrong)).status_code == 403
        assert (await site.sign_in(site.token)).status_code == 200
        assert await site.write() == 200

    asyncio.run(check())


def test_large_request_body_is_refused_before_sign_in_and_accepted_after_sign_in(tmp_path: Path) -> None:
    async def check() -> None:
        site = Site(tmp_path, "0.0.0.0")
        large = {"code": "x" * MAX_VISITOR_BODY_BYTES}
        for path in ("sign-in", "new-link"):
            response = await site.http.post(f"/ui/api/{path}", json=large)
            assert response.status_code == 413
        await site.sign_in(site.token)
        assert (await site.http.post("/ui/api/write", json=large)).json() == {"body": large}

    asyncio.run(check())


def test_incomplete_sign_in_requests_of_one_address_do_not_block_other_users(
    tmp_path: Path,
) -> None:
    headers = {"host": urlsplit(ORIGIN).netloc, "origin": ORIGIN, "content-type": "application/json"}
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/ui/api/sign-in",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("192.0.2.1", 50_000),
    }

    async def send_unfinished(site: Site, statuses: list[int]) -> None:
        parts = iter([{"type": "http.request", "body": b" " * MAX_VISITOR_BODY_BYTES, "more_body": True}])

        async def receive() -> Any:
            return next(parts, None) or await asyncio.Event().wait()

        async def send(message: Any) -> None:
            statuses.append(message.get("status", 0))

        await site.app(dict(scope), receive, send)

    async def check() -> None:
        site, statuses = Site(tmp_path, "0.0.0.0"), list[int]()
        count = MAX_VISITOR_BUFFER_BYTES // MAX_VISITOR_BODY_BYTES + 1
        attacks = [asyncio.create_task(send_unfinished(site, statuses)) for _ in range(count)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert statuses[:1] == [503]  # the last one is more than the address may send
        assert (await site.sign_in(site.token)).status_code == 200
        assert (await site.http.post("/ui/api/sign-out", json={})).status_code == 200
        for each in attacks:
            each.cancel()
        await asyncio.gather(*attacks, return_exceptions=True)

    asyncio.run(check())


def test_sign_in_link_requests_above_the_limit_are_refused_and_earlier_links_stay_valid() -> None:
    sign_in = SignIn(lambda _: True)
    first = sign_in.create_code()
    requested = [sign_in.create_requested_code() for _ in range(MAX_CODES)]
    with pytest.raises(RequestRefused, match="still valid"):
        sign_in.create_requested_code()
    for code in (first, *requested):
        sign_in.redeem(code)
    assert sign_in.create_requested_code()


def test_new_sign_in_links_can_be_requested_after_earlier_links_expired() -> None:
    now = [0.0]
    sign_in = SignIn(lambda _: True, lambda: now[0])
    for _ in range(MAX_CODES):
        sign_in.create_requested_code()
    now[0] = CODE_LIFETIME_S
    assert sign_in.create_requested_code()


def test_correct_sign_in_code_is_accepted_after_many_wrong_codes() -> None:
    sign_in = SignIn(lambda _: True)
    code = sign_in.create_code()
    for _ in range(MAX_FAILURES):
        with pytest.raises(RequestRefused, match="already used or has expired"):
            sign_in.redeem("guess")
    with pytest.raises(RequestRefused, match="Too many attempts"):
        sign_in.redeem("guess")
    assert sign_in.redeem(code)


def test_open_event_stream_does_not_extend_the_browser_session() -> None:
    now = [0.0]
    sign_in = SignIn(lambda _: True, lambda: now[0])
    signed_in = sign_in.redeem(sign_in.create_code())
    session = sign_in.use_session(signed_in.cookie, signed_in.page_key)
    assert session is not None
    now[0] = SESSION_LIFETIME_S
    assert sign_in.is_open(session)
    now[0] += 1
    assert not sign_in.is_open(session)
    assert sign_in.use_session(signed_in.cookie, signed_in.page_key) is None


def test_sign_in_of_a_second_tab_replaces_the_cookie_of_the_browser() -> None:
    sign_in = SignIn(lambda _: True)
    first = sign_in.redeem(sign_in.create_code())
    second = sign_in.redeem(sign_in.create_code(), cookie=first.cookie)
    assert sign_in.find_session(first.cookie) is None
    for key in (first.page_key, second.page_key):
        assert sign_in.use_session(second.cookie, key)
        assert sign_in.use_session(first.cookie, key) is None
