"""The servers page: logins that fail after the page was answered, and URLs with quotes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.conftest import RuntimeOpener
from tests.mcp.issuers import OAuthSetup, run_oauth_setup
from toolfold.runtime.runtime import Runtime
from toolfold.safety.redaction import Redaction
from toolfold.serving.dashboard.chat_routes import ChatSessions
from toolfold.serving.dashboard.server_routes import ServerAdmin

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def oauth_setup() -> Iterator[OAuthSetup]:
    with run_oauth_setup() as found:
        yield found


def _find_error(admin: ServerAdmin) -> str:
    return str(admin.list_servers()["servers"][0]["error"])


async def _log_in(admin: ServerAdmin) -> str:
    """Log in as the page does, and return the error of the server afterwards."""
    url = (await admin.log_in("notes"))["url"]
    async with httpx2.AsyncClient(follow_redirects=True, timeout=TIMEOUT_S) as browser:
        await browser.get(url)
    logins = asyncio.all_tasks() - {asyncio.current_task()}
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*logins, return_exceptions=True)
    return _find_error(admin)


def test_failed_login_at_an_mcp_server_is_shown_without_secrets_until_a_login_succeeds(
    oauth_setup: OAuthSetup, open_test_runtime: RuntimeOpener, caplog: pytest.LogCaptureFixture
) -> None:
    oauth_setup.reset()
    runtime = open_test_runtime({"mcp": {"servers": {"notes": {"url": oauth_setup.url}}}})
    admin = ServerAdmin(runtime, Redaction(["The person said no"]))

    async def check() -> None:
        oauth_setup.issuer.refuses = "consent"
        with caplog.at_level(logging.WARNING, "toolfold.serving.dashboard"):
            error = await _log_in(admin)
        for text in (error, caplog.text):
            assert "access_denied: [redacted]" in text
        oauth_setup.reset()
        assert "access_denied" not in await _log_in(admin)
        await admin.close()

    asyncio.run(check())


def test_server_url_that_contains_a_quote_is_added_unchanged(
    oauth_setup: OAuthSetup, open_test_runtime: RuntimeOpener
) -> None:
    runtime = open_test_runtime()
    url = f"{oauth_setup.url}?owner=o'neil"
    ServerAdmin(runtime, Redaction()).add({"name": "quoted", "target": url}).apply()
    assert runtime.config.mcp.servers["quoted"].url == url


def test_concurrent_chat_requests_of_the_dashboard_open_the_session_store_only_once(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    from toolfold.agent import agent

    opened: list[Any] = []
    real = agent.open_store

    def record(*arguments: Any) -> Any:
        opened.append(real(*arguments))
        return opened[-1]

    monkeypatch.setattr(agent, "open_store", record)

    async def check() -> None:
        chat = ChatSessions(runtime, Redaction())
        await asyncio.gather(*(chat.describe("") for _ in range(8)))
        await chat.close()

    asyncio.run(check())
    for each in opened:
        each.close()
    assert len(opened) == 1
