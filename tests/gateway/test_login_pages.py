"""Login pages of a gateway, requested in this process, with a real runtime and real token files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2
import pytest

from tests.conftest import RuntimeOpener
from tests.mcp.issuers import run_oauth_setup
from toolfold.serving.gateway import login_pages
from toolfold.serving.gateway.client_tokens import open_tokens
from toolfold.serving.gateway.http_app import make_access_policy
from toolfold.serving.gateway.login_pages import LoginPages

ORIGIN = "http://127.0.0.1:8321"


@dataclass
class Served:
    """Login pages, and a client with a link and the token of its user."""

    pages: LoginPages
    http: httpx2.AsyncClient
    user_id: str
    token: str

    async def send_form(self, link: str, **headers: str) -> httpx2.Response:
        return await self.http.post(link, data={"token": self.token}, headers={"Origin": ORIGIN, **headers})


@asynccontextmanager
async def serve(open_test_runtime: RuntimeOpener, url: str) -> AsyncIterator[Served]:
    server = {"url": url, "credentials": "per-user", "trust": "off"}
    runtime = open_test_runtime({"mcp": {"servers": {"notes": server}, "wait_seconds": 1.0}})
    tokens = open_tokens(runtime.config, None)
    user = tokens.users.add_user("ann")
    token = tokens.add("laptop", user_id=user.id)
    policy = make_access_policy("127.0.0.1", tokens, toolsets=None, hosts=(), origins=())
    pages = LoginPages(runtime, policy, ORIGIN)
    transport = httpx2.ASGITransport(app=pages)
    async with httpx2.AsyncClient(transport=transport, base_url=ORIGIN) as http:
        yield Served(pages, http, user.id, token)
    await pages.close()


async def test_login_link_stays_valid_while_too_many_other_logins_are_in_progress(
    open_test_runtime: RuntimeOpener, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_oauth_setup() as there:
        async with serve(open_test_runtime, there.url) as served:
            link = served.pages.make_link(served.user_id, "notes")
            with monkeypatch.context() as patch:
                patch.setattr(login_pages, "MAX_PENDING_LOGINS", 0)
                refused = await served.send_form(link)
            assert refused.status_code == 503
            assert "Try again later." in refused.text
            assert (await served.send_form(link)).status_code == 303
            assert (await served.send_form(link)).status_code == 404


async def test_page_of_a_failed_login_says_how_to_get_another_link(open_test_runtime: RuntimeOpener) -> None:
    async with serve(open_test_runtime, "http://127.0.0.1:9/mcp") as served:
        link = served.pages.make_link(served.user_id, "notes")
        failed = await served.send_form(link)
        assert failed.status_code == 409
        assert "Call the tool again to get another link." in failed.text
        assert (await served.send_form(link)).status_code == 404


async def test_login_form_sent_by_a_script_of_another_website_is_refused(
    open_test_runtime: RuntimeOpener,
) -> None:
    with run_oauth_setup() as there:
        async with serve(open_test_runtime, there.url) as served:
            link = served.pages.make_link(served.user_id, "notes")
            foreign = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}
            assert (await served.send_form(link, **foreign)).status_code == 403
            assert (await served.send_form(link, Origin="https://evil.example")).status_code == 403
            without_origin = await served.http.post(link, data={"token": served.token})
            assert without_origin.status_code == 403
            own = {"sec-fetch-site": "same-origin", "sec-fetch-mode": "navigate"}
            assert (await served.send_form(link, **own)).status_code == 303


async def test_simultaneous_redirects_with_the_same_state_complete_one_login(
    open_test_runtime: RuntimeOpener,
) -> None:
    with run_oauth_setup() as there:
        async with serve(open_test_runtime, there.url) as served, httpx2.AsyncClient() as browser:
            start = await served.send_form(served.pages.make_link(served.user_id, "notes"))
            callback = (await browser.get(start.headers["location"])).headers["location"]
            answers = await asyncio.gather(*(served.http.get(callback) for _ in range(8)))
    assert sorted(each.status_code for each in answers) == [200] + [403] * 7
