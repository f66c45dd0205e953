"""The dashboard adds and enables servers and creates tokens only after the user has confirmed it."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.dashboard.harness import DashboardProcess
from tests.dashboard.test_access import Visitor
from toolfold.config import read_file_value
from toolfold.serving.dashboard.confirmations import (
    CONFIRMATION_LIFETIME_S,
    MAX_PENDING,
    Confirmations,
    ProposedChange,
)
from toolfold.serving.gateway.request_bodies import RequestRefused

OPENED = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document", "sec-fetch-site": "same-origin"}
COMMAND = shlex.join([sys.executable, "-c", "print('a  b <b>')", "--flag"])


class Page(Visitor):
    """A signed-in browser, as far as HTTP shows it."""

    def __init__(self, dashboard: DashboardProcess) -> None:
        super().__init__(dashboard)
        self.settings = dashboard.home / "config.yaml"
        self.http.headers["x-toolfold-page-key"] = self.sign_in(dashboard)

    def propose(self, path: str = "servers/add", **body: str) -> str:
        """Request a change and return the address of the confirmation page."""
        response = self.post(path, body)
        assert response.status_code == 200, response.text
        return str(response.json()["confirm"])

    def show(self, address: str) -> str:
        response = self.http.get(address, headers=OPENED)
        assert response.status_code == 200, response.text
        return response.text

    def confirm(self, address: str, token: str, **headers: str) -> httpx2.Response:
        sent = {**OPENED, "origin": self.origin, **headers}
        return self.http.post(address, data={"token": token}, headers=sent)

    def has_server(self, name: str) -> bool:
        return read_file_value(self.settings, f"mcp.servers.{name}") is not None


def find_token(page: str) -> str:
    (found,) = re.findall(r'name="token" value="([^"]+)"', page)
    return str(found)


@pytest.fixture
def page(dashboard: DashboardProcess) -> Iterator[Page]:
    found = Page(dashboard)
    yield found
    found.http.close()


def test_server_is_added_only_when_the_page_that_shows_its_command_is_confirmed(page: Page) -> None:
    address = page.propose(name="shown", target=COMMAND, env="MODE=fast\nLD_PRELOAD=/tmp/x.so")
    assert not page.has_server("shown")
    text = page.show(address)
    assert "print(&#x27;&quot;&#x27;&quot;&#x27;a  b &lt;b&gt;" in text
    assert "LD_PRELOAD" in text
    assert "/tmp/x.so" in text
    assert "<script" not in text
    assert not page.has_server("shown")
    response = page.confirm(address, find_token(text))
    assert (response.status_code, response.headers["location"]) == (303, "/ui/servers")
    assert page.has_server("shown")
    assert page.confirm(address, find_token(text)).status_code == 404


def test_confirmation_page_can_be_neither_framed_nor_accessed_by_the_window_that_opens_it(page: Page) -> None:
    address = page.propose(name="framed", target=COMMAND)
    headers = page.http.get(address, headers=OPENED).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    own = page.http.get("/ui/").headers["cross-origin-opener-policy"]
    assert headers["cross-origin-opener-policy"] not in (own, "unsafe-none")


@pytest.mark.parametrize(
    "sent",
    [
        {"sec-fetch-mode": "cors", "sec-fetch-dest": "empty"},
        {"sec-fetch-mode": "same-origin", "sec-fetch-dest": "empty"},
        {"sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
        {"sec-fetch-mode": "navigate", "sec-fetch-dest": "object"},
        {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"},
        {"sec-fetch-mode": "", "sec-fetch-dest": ""},
    ],
    ids=str,
)
def test_script_in_the_origin_of_the_dashboard_can_neither_read_nor_send_the_confirmation(
    page: Page, sent: dict[str, str]
) -> None:
    address = page.propose(name="script", target=COMMAND)
    read = page.http.get(address, headers={**OPENED, **sent})
    assert read.status_code == 403
    assert "token" not in read.text
    token = find_token(page.show(address))
    assert page.confirm(address, token, **sent).status_code == 403
    assert not page.has_server("script")


def test_confirmation_with_a_wrong_token_is_refused_and_ends_the_proposal(page: Page) -> None:
    address = page.propose(name="guessed", target=COMMAND)
    token = find_token(page.show(address))
    for wrong in ("", "x", address.rpartition("/")[2]):
        other = page.propose(name="guessed", target=COMMAND)
        assert page.confirm(other, wrong).status_code == 403
        assert page.confirm(other, token).status_code == 404
    other = page.propose(name="guessed", target=f"{COMMAND} --other")
    assert page.confirm(other, token).status_code == 403  # a token is valid for its own command only
    assert not page.has_server("guessed")


def test_confirmation_from_another_origin_or_host_is_refused(page: Page) -> None:
    address = page.propose(name="foreign", target=COMMAND)
    token = find_token(page.show(address))
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        assert page.confirm(address, token, origin=origin).status_code == 403
    assert page.confirm(address, token, host="evil.example").status_code == 421
    without = page.http.post(address, data={"token": token}, headers=OPENED)
    assert without.status_code == 403
    assert not page.has_server("foreign")


def test_confirmation_of_another_browser_session_is_refused(page: Page, dashboard: DashboardProcess) -> None:
    address = page.propose(name="stolen", target=COMMAND)
    token = find_token(page.show(address))
    other = Page(dashboard)
    assert other.http.get(address, headers=OPENED).status_code == 404
    assert other.confirm(address, token).status_code == 404
    other.http.cookies.clear()
    assert other.confirm(address, token).status_code == 401
    other.http.close()
    assert page.post("sign-out", {}).status_code == 200
    assert page.confirm(address, token).status_code == 401
    assert not page.has_server("stolen")


def test_server_is_enabled_only_when_its_command_is_confirmed_and_has_not_changed(page: Page) -> None:
    address = page.propose(name="paused", target=COMMAND)
    page.confirm(address, find_token(page.show(address)))
    assert page.post("servers/change", {"name": "paused", "change": "disable"}).status_code == 200
    address = page.propose("servers/change", name="paused", change="enable")
    text = page.show(address)
    assert "--flag" in text
    assert read_file_value(page.settings, "mcp.servers.paused.enabled") is False
    _replace_text(page.settings, "--flag", "--changed")
    refused = page.confirm(address, find_token(text))
    assert refused.status_code == 409
    assert read_file_value(page.settings, "mcp.servers.paused.enabled") is False
    address = page.propose("servers/change", name="paused", change="enable")
    text = page.show(address)
    assert "--changed" in text
    assert page.confirm(address, find_token(text)).status_code == 303
    assert read_file_value(page.settings, "mcp.servers.paused.enabled") is True


def _replace_text(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_token_is_created_only_when_its_name_and_toolsets_are_confirmed_and_is_shown_once(
    page: Page, dashboard: DashboardProcess
) -> None:
    tokens = dashboard.home / "state" / "gateway" / "tokens.json"
    response = page.post("clients/add", {"name": "laptop", "toolsets": ["mcp-notes"]})
    address = response.json()["confirm"]
    assert "tf_" not in response.text
    text = page.show(address)
    assert ">laptop<" in text
    assert ">mcp-notes<" in text
    assert "tf_" not in text
    assert not tokens.exists() or "laptop" not in tokens.read_text()
    confirmed = page.confirm(address, find_token(text))
    assert confirmed.status_code == 200
    assert len(re.findall(r"tf_[\w-]{20,}", confirmed.text)) == 1
    assert "laptop" in tokens.read_text()
    assert page.confirm(address, find_token(text)).status_code == 404
    again = page.propose("clients/add", name="laptop")
    text = page.show(again)
    assert "all toolsets of the gateway, and the configured keys of model providers" in text
    refused = page.confirm(again, find_token(text))
    assert refused.status_code == 409
    assert "laptop" in refused.text
    assert page.post("clients/revoke", {"name": "laptop"}).status_code == 200


def test_hidden_characters_of_a_command_are_shown_on_the_confirmation_page(page: Page) -> None:
    address = page.propose(name="hidden", target="echo a\u202eb\u200bc")
    text = page.show(address)
    assert "\u202e" not in text
    assert "\u200b" not in text


def test_proposed_change_expires_and_the_oldest_is_dropped_if_there_are_many() -> None:
    now = [0.0]
    confirmations = Confirmations(lambda: now[0])
    change = ProposedChange("Add?", {}, "Add", str, "/ui/")
    first, *_, last = [confirmations.add(change, "session") for _ in range(MAX_PENDING + 1)]
    with pytest.raises(RequestRefused):
        confirmations.render_page(first, "session")
    token = find_token(confirmations.render_page(last, "session"))
    now[0] = CONFIRMATION_LIFETIME_S
    with pytest.raises(RequestRefused):
        confirmations.take(last, "session", token)


def test_second_tab_of_a_browser_signs_in_without_signing_out_the_first_one(
    page: Page, dashboard: DashboardProcess
) -> None:
    first = page.http.headers["x-toolfold-page-key"]
    second = page.sign_in(dashboard)
    assert second != first
    for key in (first, second):
        assert page.http.get("/ui/api/about", headers={"x-toolfold-page-key": key}).status_code == 200
    page.post("sign-out", {})
    for key in (first, second):
        assert page.http.get("/ui/api/about", headers={"x-toolfold-page-key": key}).status_code == 401
