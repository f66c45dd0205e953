"""A browser that is signed in to the dashboard as a user opens login links of this user without a token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.dashboard.test_logins import Setup
from tests.gateway.gateway_process import gateway_process, write_settings
from tests.gateway.harness import TIMEOUT_S, free_port, result_text
from tests.gateway.test_user_logins import LINK
from tests.identity.provider import run_provider
from tests.mcp.issuers import run_oauth_setup
from toolfold import load_config
from toolfold.config.servers_settings import parse_server_settings
from toolfold.mcp.oauth import log_in
from toolfold.serving.gateway.client_tokens import open_tokens

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    home, port = tmp_path_factory.mktemp("home"), free_port()
    url = f"http://127.0.0.1:{port}/ui/"
    with run_provider(f"{url}oidc/callback") as issuer, run_oauth_setup() as there:
        oidc = {
            "issuer": issuer,
            "client_id": "dashboard",
            "client_secret": "test-only-client-credential",
            "url": url,
            "create_users": True,
        }
        server = {"url": there.url, "credentials": "per-user", "trust": "off"}
        settings = {"dashboard": {"oidc": oidc}, "mcp": {"servers": {"notes": server}, "wait_seconds": 60.0}}
        write_settings(home, settings)
        config = load_config(env={"TOOLFOLD_HOME": str(home)})
        asyncio.run(
            log_in(
                "notes",
                parse_server_settings(server),
                config.paths.state_dir / "oauth",
                environment={},
                open_url=lambda page: httpx2.get(page, follow_redirects=True, timeout=TIMEOUT_S) and None,
            )
        )
        with gateway_process(home, "--port", str(port)) as gateway:
            yield Setup(issuer, gateway, open_tokens(config, None), Path(home))


@pytest.fixture
def clients() -> Iterator[tuple[httpx2.Client, httpx2.Client]]:
    with (
        httpx2.Client(timeout=60, follow_redirects=False) as one,
        httpx2.Client(timeout=60, follow_redirects=False) as other,
    ):
        yield one, other


async def call_tool(setup: Setup, token: str) -> str:
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=TIMEOUT_S) as http,
        Client(streamable_http_client(setup.gateway.url, http_client=http), mode="legacy") as client,
    ):
        return result_text(await client.call_tool("notes_add", {"a": 2, "b": 3}))


def test_login_link_works_without_a_token_only_in_the_browser_where_its_user_is_signed_in(
    setup: Setup, clients: tuple[httpx2.Client, httpx2.Client]
) -> None:
    of_hanna, of_igor = clients
    setup.sign_in(of_hanna, "hanna")
    setup.sign_in(of_igor, "igor")
    hanna = setup.users.find_identity(setup.issuer, "hanna")
    assert hanna is not None
    token = setup.tokens.add("hanna-laptop", user_id=hanna.id)
    link = LINK.findall(asyncio.run(call_tool(setup, token)))[0]
    origin = {"origin": setup.url.removesuffix("/ui/")}
    assert 'name="token"' in of_igor.get(link).text
    assert of_igor.post(link, data={"token": ""}, headers=origin).status_code == 403
    assert 'name="token"' not in of_hanna.get(link).text
    from_elsewhere = {"origin": "https://evil.example"}
    assert of_hanna.post(link, data={"token": ""}, headers=from_elsewhere).status_code == 403
    assert of_hanna.post(link, data={"token": "wrong"}, headers=origin).status_code == 403
    start = of_hanna.post(link, headers=origin)
    assert start.status_code == 303
    callback = of_hanna.get(start.headers["location"]).headers["location"]
    assert of_igor.get(callback).status_code == 403
    assert of_hanna.get(callback).status_code == 200
    assert asyncio.run(call_tool(setup, token)) == "5"


@pytest.mark.clients
def test_real_browser_can_submit_the_form_of_a_login_link(setup: Setup, browser: Browser) -> None:
    user = setup.users.add_user("olga")
    token = setup.tokens.add("olga-laptop", user_id=user.id)

    def call() -> str:
        with ThreadPoolExecutor(1) as pool:  # the browser runs an event loop in this thread
            return pool.submit(asyncio.run, call_tool(setup, token)).result(TIMEOUT_S)

    link = LINK.findall(call())[0]
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(link)
    page.get_by_label("Your Toolfold token").fill(token)
    page.get_by_role("button", name="Continue").click()
    page.get_by_role("heading", name="Logged in", exact=True).wait_for()
    assert call() == "5"
    context.close()
