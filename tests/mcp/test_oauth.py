"""Logins at a real server behind a real issuer, with a browser that follows addresses."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull
from starlette.responses import PlainTextResponse

from tests.conftest import Opened
from tests.mcp.issuers import World, from_file, initialize, redirect, says, world
from toolfold.config.servers import McpServer, usable
from toolfold.errors import ConfigError
from toolfold.sources.mcp.faults import NeedsLogin, NotStarted, ServerFailed
from toolfold.sources.mcp.oauth import Standing, auth, browser, log_in, log_out, standing
from toolfold.sources.mcp.oauth.logins import Login, Logins, fresh_until
from toolfold.sources.mcp.oauth.returning import read_return
from toolfold.sources.mcp.oauth.traffic import Refusal, require_allowed

PATIENCE = 60.0
ACCEPT = {"Accept": "application/json, text/event-stream"}
OPEN = "/.well-known/oauth-authorization-server"
FIELDS = [each.name for each in fields(Login)]
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("https://notes.example"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def listening() -> Iterator[World]:
    with world() as made:
        yield made


@pytest.fixture
def there(listening: World) -> World:
    listening.begin_anew()
    return listening


class Browser:
    """Follows the address it is given, as a browser does, and remembers where it has been."""

    def __init__(self) -> None:
        self.visited: list[str] = []

    def __call__(self, address: str) -> None:
        self.visited.append(address)
        httpx2.get(address, follow_redirects=True, timeout=PATIENCE)

    def asked(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.visited[-1]).query).items()}


class Notes:
    """One configured server and what a process does with it."""

    def __init__(self, there: World, folder: Path, **oauth: Any) -> None:
        self.there, self.folder, self.browser = there, folder, Browser()
        self.settings: McpServer = usable({"url": there.url, "oauth": oauth})
        self.environment: dict[str, str] = {"THE_SECRET": "kept-in-the-environment"}

    async def log_in(self, visit: Any = None, seconds: float = PATIENCE) -> Standing:
        return await log_in(
            "notes",
            self.settings,
            self.folder,
            environment=self.environment,
            visit=visit or self.browser,
            seconds=seconds,
        )

    async def knock(self, interactive: bool = False, **options: Any) -> int:
        """The status of one request, as a process would send it that has just started."""
        provider = auth(
            "notes",
            self.settings,
            self.folder,
            interactive,
            environment=self.environment,
            visit=self.browser,
            seconds=PATIENCE,
        )
        async with httpx2.AsyncClient(timeout=PATIENCE, auth=provider, **options) as client:
            return (await client.post(self.there.url, json=initialize(), headers=ACCEPT)).status_code

    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*.json"))

    def standing(self) -> Standing | None:
        return standing("notes", self.settings, self.folder, environment=self.environment)


@pytest.fixture
def notes(there: World, tmp_path: Path) -> Notes:
    return Notes(there, tmp_path / "oauth")


async def test_a_person_logs_in_once_and_tools_are_called_from_then_on(notes: Notes) -> None:
    done = await notes.log_in()
    assert (done.issuer, done.scopes, done.is_good) == (notes.there.logins.url, ("notes:read",), True)
    provider = auth("notes", notes.settings, notes.folder, False, environment={})
    async with (
        httpx2.AsyncClient(timeout=PATIENCE, auth=provider) as http,
        Client(streamable_http_client(notes.there.url, http_client=http), mode="legacy") as client,
    ):
        result = await client.call_tool("add", {"a": 2, "b": 3})
    assert result.structured_content == {"result": 5}
    assert len(notes.browser.visited) == 1


def test_a_runtime_waits_for_the_login_and_renews_it_under_way(there: World, opened: Opened) -> None:
    runtime = opened({"mcp": {"servers": {"notes": {"url": there.url}}}})
    (state,) = runtime.mcp.states()
    assert (state.state, "toolfold mcp login notes" in state.error) == ("login", True)
    folder = runtime.config.paths.state_dir / "oauth"
    asyncio.run(log_in("notes", usable({"url": there.url}), folder, environment={}, visit=Browser()))
    runtime.mcp.restart("notes")
    session = runtime.session(toolsets=["mcp-notes"])
    assert session.call_sync("mcp_notes_add", {"a": 2, "b": 3}).value == {"result": 5}
    there.issuer.expire()
    assert session.call_sync("mcp_notes_add", {"a": 3, "b": 4}).value == {"result": 7}
    assert [seen.form["grant_type"] for seen in there.logins.asked("/token")][1:] == ["refresh_token"]


async def test_the_code_is_protected_by_pkce_and_bound_to_the_server(notes: Notes) -> None:
    await notes.log_in()
    asked = notes.browser.asked()
    assert (asked["code_challenge_method"], asked["response_type"]) == ("S256", "code")
    assert asked["resource"] == notes.there.url
    (exchange,) = notes.there.logins.asked("/token")
    assert exchange.form["grant_type"] == "authorization_code"
    assert len(exchange.form["code_verifier"]) >= 43
    assert exchange.form["resource"] == notes.there.url
    assert exchange.form["code_verifier"] not in notes.browser.visited[0]


async def test_a_request_that_was_refused_is_sent_again_after_the_login(notes: Notes) -> None:
    assert await notes.knock(interactive=True) == 200
    assert len(notes.browser.visited) == 1
    assert await notes.knock(interactive=False) == 200  # and another process needs none


async def test_where_nobody_may_be_asked_the_answer_names_the_command(notes: Notes) -> None:
    with pytest.raises(NeedsLogin) as raised:
        await notes.knock()
    assert str(raised.value) == (
        "MCP server 'notes' asks for a login. Run `toolfold mcp login notes` in a terminal."
    )
    assert notes.browser.visited == []
    assert notes.there.logins.seen == []  # nobody was asked anything for it


async def test_where_there_is_no_browser_the_answer_names_the_command(notes: Notes) -> None:
    assert browser({}) is None
    assert browser({"DISPLAY": ":0"}) is not None
    provider = auth("notes", notes.settings, notes.folder, True, environment={})
    async with httpx2.AsyncClient(timeout=PATIENCE, auth=provider) as client:
        with pytest.raises(NeedsLogin, match="toolfold mcp login notes"):
            await client.post(notes.there.url, json=initialize(), headers=ACCEPT)
    assert isinstance(provider.problem, NeedsLogin)
    with pytest.raises(NeedsLogin, match="no browser here"):
        await log_in("notes", notes.settings, notes.folder, environment={})


async def test_a_login_lies_in_a_file_of_its_owner_named_after_the_issuer(notes: Notes) -> None:
    os.umask(0o000)
    try:
        await notes.log_in()
    finally:
        os.umask(0o022)
    (file,) = notes.files()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(notes.folder.stat().st_mode) == 0o700
    kept = from_file(file.read_text())
    assert (kept["server"], kept["url"], kept["issuer"]) == ("notes", notes.there.url, notes.there.logins.url)
    login = Login(**{name: value for name, value in kept.items() if name != "version"})
    assert login.token not in repr(login)
    Logins(notes.folder).keep(replace(login, issuer="https://other.example"))
    assert notes.files() not in ([], [file])


async def test_a_file_others_could_read_is_closed_and_one_that_is_broken_is_no_login(notes: Notes) -> None:
    await notes.log_in()
    (file,) = notes.files()
    file.chmod(0o644)
    assert await notes.knock() == 200
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for broken in ("", "{", "[]", "{}", '{"version": 1}', '{"version": 2}', "\udc00" * 2):
        file.write_text(broken, encoding="utf-8", errors="surrogatepass")
        assert notes.standing() is None
        with pytest.raises(NeedsLogin):
            await notes.knock()


async def test_a_login_through_a_link_is_not_followed(notes: Notes, tmp_path: Path) -> None:
    await notes.log_in()
    (file,) = notes.files()
    moved = file.rename(tmp_path / "moved.json")
    file.symlink_to(moved)
    assert notes.standing() is None


async def test_a_login_is_of_one_address_alone(notes: Notes) -> None:
    await notes.log_in()
    elsewhere = usable({"url": f"{notes.there.server.url}/other"})
    assert standing("notes", elsewhere, notes.folder, environment={}) is None
    assert standing("other", notes.settings, notes.folder, environment={}) is None
    assert notes.standing() is not None


async def test_a_stale_token_is_renewed_before_it_is_used(notes: Notes) -> None:
    notes.there.issuer.lifetime = 0
    await notes.log_in()
    notes.there.issuer.lifetime = 3600
    assert await notes.knock() == 200
    renewal = notes.there.logins.asked("/token")[-1]
    assert renewal.form["grant_type"] == "refresh_token"
    assert renewal.form["resource"] == notes.there.url
    assert len(notes.browser.visited) == 1
    assert await notes.knock() == 200
    assert len(notes.there.logins.asked("/token")) == 2  # it is kept


async def test_a_token_the_server_no_longer_takes_is_renewed(notes: Notes) -> None:
    await notes.log_in()
    notes.there.issuer.expire()
    assert await notes.knock() == 200
    assert len(notes.browser.visited) == 1


async def test_many_requests_at_once_renew_once(notes: Notes) -> None:
    await notes.log_in()
    notes.there.issuer.expire()
    assert await asyncio.gather(*(notes.knock() for _ in range(6))) == [200] * 6
    assert len(notes.there.logins.asked("/token")) == 2


async def test_a_renewal_that_is_refused_needs_a_person_and_is_not_tried_again(
    notes: Notes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "toolfold")
    await notes.log_in()
    caplog.clear()
    notes.there.issuer.expire()
    notes.there.issuer.refuses = "renewal"
    for _ in range(2):
        with pytest.raises(NeedsLogin, match="toolfold mcp login notes") as raised:
            await notes.knock()
        told = [record.getMessage() for record in caplog.records if record.name.startswith("toolfold")]
        no_secret_in(notes, str(raised.value), repr(raised.value), *told)
    assert len(notes.there.logins.asked("/token")) == 2
    assert notes.standing() is None


async def test_a_renewed_token_that_is_refused_is_not_renewed_for_ever(notes: Notes) -> None:
    await notes.log_in()
    provider = auth("notes", notes.settings, notes.folder, False, environment={})
    notes.there.server.instead["/mcp"] = lambda seen: PlainTextResponse("no", 401)
    async with httpx2.AsyncClient(timeout=PATIENCE, auth=provider) as client:
        for _ in range(3):
            with pytest.raises(NeedsLogin):
                await client.post(notes.there.url, json=initialize(), headers=ACCEPT)
    assert len(notes.there.logins.asked("/token")) == 2


async def test_an_issuer_that_is_down_costs_no_login(notes: Notes) -> None:
    await notes.log_in()
    notes.there.issuer.expire()
    notes.there.logins.instead["/token"] = says(503)
    with pytest.raises(NotStarted, match=r"cannot be renewed: 127\.0\.0\.1 gives no token: HTTP 503"):
        await notes.knock()
    del notes.there.logins.instead["/token"]
    assert await notes.knock() == 200


async def test_an_issuer_that_forgot_us_is_registered_at_again(notes: Notes) -> None:
    await notes.log_in()
    notes.there.issuer.expire()
    notes.there.issuer.clients.clear()
    with pytest.raises(NeedsLogin):
        await notes.knock()
    await notes.log_in()
    assert len(notes.there.logins.asked("/register")) == 2
    assert await notes.knock() == 200


async def test_a_second_login_uses_the_same_client(notes: Notes) -> None:
    await notes.log_in()
    await notes.log_in()
    assert len(notes.there.logins.asked("/register")) == 1
    assert len(notes.browser.visited) == 2
    assert len(notes.files()) == 1


async def test_a_second_login_registers_anew_where_its_port_is_taken(notes: Notes) -> None:
    await notes.log_in()
    port = urlsplit(notes.browser.asked()["redirect_uri"]).port
    with socket.create_server(("127.0.0.1", port or 0)):
        await notes.log_in()
    assert urlsplit(notes.browser.asked()["redirect_uri"]).port != port
    assert len(notes.there.logins.asked("/register")) == 2


async def test_a_port_that_is_set_and_taken_is_named(there: World, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(NotStarted, match=rf"port {port} .* oauth.redirect_port"):
            await Notes(there, tmp_path, redirect_port=port).log_in()


async def test_a_login_that_was_denied_is_told_and_leaves_nothing(
    notes: Notes, caplog: pytest.LogCaptureFixture
) -> None:
    notes.there.issuer.refuses = "consent"
    with pytest.raises(NeedsLogin, match="the login was refused: access_denied: The person said no"):
        await notes.log_in()
    assert notes.files() == []
    assert notes.there.logins.asked("/token") == []
    assert "Traceback" not in caplog.text


async def test_an_answer_with_another_state_is_answered_and_ignored(notes: Notes) -> None:
    statuses: list[int] = []

    def attacked(address: str) -> None:
        back = parse_qs(urlsplit(address).query)["redirect_uri"][0]
        queries = ("code=stolen&state=guessed", "code=stolen", "error=access_denied", "", "state=&code=x")
        with httpx2.Client(timeout=PATIENCE) as client:
            answers = [client.get(f"{back}?{query}") for query in queries]
            answers += [client.post(back), client.get(back.replace("/callback", "/else"))]
            answers += [client.get(back, headers={"Host": "evil.example"})]
        statuses.extend(answer.status_code for answer in answers)
        notes.browser(address)

    await notes.log_in(attacked)
    assert statuses == [400, 400, 400, 400, 400, 400, 404, 400]
    (exchange,) = notes.there.logins.asked("/token")
    assert exchange.form["code"] != "stolen"


async def test_only_another_state_is_no_login(notes: Notes) -> None:
    def lured(address: str) -> None:
        back = parse_qs(urlsplit(address).query)["redirect_uri"][0]
        httpx2.get(f"{back}?code=stolen&state=guessed", timeout=PATIENCE)

    with pytest.raises(NeedsLogin, match=r"nobody logged in within 0\.3 s"):
        await notes.log_in(lured, seconds=0.3)
    assert notes.there.logins.asked("/token") == []


async def test_the_address_a_browser_elsewhere_came_back_to_can_be_brought(notes: Notes) -> None:
    def pasted(address: str) -> str:
        return " " + httpx2.get(address, timeout=PATIENCE).headers["location"] + "\n"

    await notes.log_in(pasted)
    assert await notes.knock() == 200
    with pytest.raises(NeedsLogin, match="belongs to another login"):
        await notes.log_in(lambda address: "http://127.0.0.1/callback?code=x&state=y")


async def test_a_page_that_cannot_be_shown_is_told_without_details(notes: Notes) -> None:
    def broken(address: str) -> None:
        raise RuntimeError(address)

    with pytest.raises(NeedsLogin, match="could not be shown: RuntimeError") as raised:
        await notes.log_in(broken)
    assert "state=" not in str(raised.value)


async def test_two_processes_that_log_in_at_once_log_in_once(notes: Notes) -> None:
    script = """
import asyncio, sys, urllib.request
from pathlib import Path
from toolfold.config.servers import usable
from toolfold.sources.mcp.oauth import log_in

def visit(address):
    urllib.request.urlopen(address).read()

settings = usable({"url": sys.argv[1]})
done = asyncio.run(log_in("notes", settings, Path(sys.argv[2]), environment={}, visit=visit, seconds=60))
print(done.is_good)
"""
    seen = notes.there.server.seen

    def once_both_have_begun(_seen: Any) -> Any:
        end = time.monotonic() + PATIENCE
        while sum(b'"ping"' in each.body for each in tuple(seen)) < 2 and time.monotonic() < end:
            time.sleep(0.02)

    notes.there.logins.instead["/authorize"] = once_both_have_begun
    command = [sys.executable, "-c", script, notes.there.url, str(notes.folder)]
    told = await asyncio.gather(*(asyncio.to_thread(subprocess.check_output, command) for _ in range(2)))
    assert told == [b"True\n", b"True\n"]
    assert len(notes.there.logins.asked("/authorize")) == 1
    assert len(notes.there.logins.asked("/register")) == 1


async def test_a_client_that_was_registered_by_hand_registers_nowhere(there: World, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    by_hand(there, "ours", "kept-in-the-environment", port, "client_secret_basic")
    notes = Notes(there, tmp_path, client_id="ours", client_secret="${THE_SECRET}", redirect_port=port)
    await notes.log_in()
    there.issuer.expire()
    assert await notes.knock() == 200  # renewed with the secret
    assert there.logins.asked("/register") == []
    assert notes.browser.asked()["client_id"] == "ours"
    assert there.logins.asked("/token")[0].headers["authorization"].startswith("Basic ")
    assert "kept-in-the-environment" not in notes.files()[0].read_text()


async def test_a_secret_goes_the_way_the_issuer_takes_it(there: World, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    by_hand(there, "ours", "kept-in-the-environment", port, "client_secret_post")
    there.change_metadata(token_endpoint_auth_methods_supported=["client_secret_post"])
    notes = Notes(there, tmp_path, client_id="ours", client_secret="${THE_SECRET}", redirect_port=port)
    await notes.log_in()
    assert there.logins.asked("/token")[0].form["client_secret"] == "kept-in-the-environment"
    assert "authorization" not in there.logins.asked("/token")[0].headers


async def test_a_client_registered_by_hand_is_not_shown_to_another_issuer(
    there: World, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    by_hand(there, "ours", "kept-in-the-environment", port, "client_secret_basic")
    notes = Notes(there, tmp_path, client_id="ours", client_secret="${THE_SECRET}", redirect_port=port)
    await notes.log_in()
    move_to_elsewhere(there)
    with pytest.raises(NotStarted, match="another issuer"):
        await notes.log_in()
    assert "kept-in-the-environment" not in there.elsewhere.everything()
    assert "ours" not in there.elsewhere.everything()


async def test_a_document_that_describes_the_client_takes_the_place_of_registration(
    there: World, tmp_path: Path
) -> None:
    document = "https://toolfold.example/client.json"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    by_hand(there, document, None, port, "none")
    there.change_metadata(client_id_metadata_document_supported=True)
    notes = Notes(there, tmp_path, client_metadata_url=document, redirect_port=port)
    await notes.log_in()
    assert there.logins.asked("/register") == []
    assert notes.browser.asked()["client_id"] == document
    assert await notes.knock() == 200


async def test_without_a_word_for_documents_the_client_is_registered(there: World, tmp_path: Path) -> None:
    notes = Notes(there, tmp_path, client_metadata_url="https://toolfold.example/client.json")
    await notes.log_in()
    assert len(there.logins.asked("/register")) == 1


async def test_an_issuer_that_registers_nobody_says_what_to_do(notes: Notes) -> None:
    notes.there.logins.instead["/register"] = says(403, error="access_denied")
    with pytest.raises(
        NotStarted, match=r"registers no client: HTTP 403 \(access_denied\).* oauth.client_id"
    ):
        await notes.log_in()


async def test_scopes_of_the_settings_are_asked_for(there: World, tmp_path: Path) -> None:
    notes = Notes(there, tmp_path, scopes=["notes:read", "notes:all"])
    done = await notes.log_in()
    assert done.scopes == ("notes:read", "notes:all")


async def test_a_server_that_asks_for_more_rights_gets_them_beside_the_old(notes: Notes) -> None:
    await notes.log_in()
    notes.there.demand("notes:write")
    assert await notes.knock(interactive=True) == 200
    assert notes.browser.asked()["scope"] == "notes:read notes:write"
    now = notes.standing()
    assert now is not None
    assert set(now.scopes) == {"notes:read", "notes:write"}


async def test_more_rights_wait_for_a_person_and_are_asked_for_then(notes: Notes) -> None:
    await notes.log_in()
    notes.there.demand("notes:write")
    with pytest.raises(NeedsLogin, match=r"more rights .*\(notes:write\)"):
        await notes.knock()
    await notes.log_in()
    assert await notes.knock() == 200
    assert set(notes.browser.asked()["scope"].split()) == {"notes:read", "notes:write"}


async def test_rights_that_never_suffice_are_asked_for_once(notes: Notes) -> None:
    provider = auth("notes", notes.settings, notes.folder, True, environment={}, visit=notes.browser)
    refusal = {"WWW-Authenticate": 'Bearer error="insufficient_scope", scope="notes:write"'}
    async with httpx2.AsyncClient(timeout=PATIENCE, auth=provider) as client:
        await client.post(notes.there.url, json=initialize(), headers=ACCEPT)
        notes.there.server.instead["/mcp"] = lambda seen: PlainTextResponse("no", 403, headers=refusal)
        for _ in range(4):
            response = await client.post(notes.there.url, json=initialize(), headers=ACCEPT)
            assert response.status_code == 403
    assert len(notes.browser.visited) == 2


async def test_a_plain_403_is_no_reason_to_log_in(notes: Notes) -> None:
    await notes.log_in()
    notes.there.server.instead["/mcp"] = lambda seen: PlainTextResponse("no", 403)
    assert await notes.knock(interactive=True) == 403
    assert len(notes.browser.visited) == 1


async def test_a_token_is_never_sent_to_another_origin(notes: Notes) -> None:
    await notes.log_in()
    notes.there.server.instead["/mcp"] = redirect(f"{notes.there.elsewhere.url}/mcp")
    await notes.knock(follow_redirects=True)
    assert len(notes.there.elsewhere.asked("/mcp")) == 1
    provider = auth("notes", notes.settings, notes.folder, False, environment={})
    async with httpx2.AsyncClient(timeout=PATIENCE, auth=provider) as client:
        await client.get(f"{notes.there.elsewhere.url}/other")
    assert all("authorization" not in seen.headers for seen in notes.there.elsewhere.seen)
    no_secret_in(notes, notes.there.elsewhere.everything())


async def test_a_renewal_goes_to_who_gave_it_and_never_to_the_server(notes: Notes) -> None:
    notes.there.issuer.lifetime = 0
    await notes.log_in()
    notes.there.issuer.lifetime = 3600
    assert await notes.knock() == 200
    assert "renewal-" not in notes.there.server.everything()


async def test_a_login_in_the_settings_headers_is_left_alone(notes: Notes) -> None:
    await notes.log_in()
    provider = auth("notes", notes.settings, notes.folder, True, environment={}, visit=notes.browser)
    async with httpx2.AsyncClient(
        timeout=PATIENCE, auth=provider, headers={"Authorization": "Bearer by-hand"}
    ) as client:
        response = await client.post(notes.there.url, json=initialize(), headers=ACCEPT)
    assert response.status_code == 401
    assert notes.there.server.seen[-1].headers["authorization"] == "Bearer by-hand"
    assert len(notes.browser.visited) == 1


async def test_a_server_that_moves_to_another_issuer_shows_it_nothing_of_the_first(notes: Notes) -> None:
    await notes.log_in()
    given = notes.there.issuer.issued()
    move_to_elsewhere(notes.there)
    notes.there.elsewhere.instead["/register"] = says(201, client_id="anew")
    with pytest.raises(NeedsLogin):
        await notes.log_in(lambda address: None, seconds=0.3)
    seen = notes.there.elsewhere.everything()
    assert notes.there.elsewhere.asked("/register")
    assert not [secret for secret in given if secret in seen]
    assert not [client for client in notes.there.issuer.clients if client in seen]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"issuer": "https://attacker.example"}, "issuer mismatch"),
        ({"code_challenge_methods_supported": ["plain"]}, "no PKCE with S256"),
        ({"token_endpoint": "http://192.0.2.1/token"}, "not encrypted"),
        ({"authorization_endpoint": "http://192.0.2.1/authorize"}, "not encrypted"),
        ({"registration_endpoint": "http://192.0.2.1/register"}, "not encrypted"),
        ({"registration_endpoint": None}, "registers no client"),
    ],
)
async def test_an_issuer_that_cannot_be_trusted_is_given_nothing(
    notes: Notes, changes: dict[str, Any], problem: str
) -> None:
    notes.there.change_metadata(**changes)
    with pytest.raises(NotStarted, match=problem):
        await notes.log_in()
    assert notes.files() == []


async def test_an_answer_in_the_name_of_another_issuer_is_not_exchanged(notes: Notes) -> None:
    notes.there.issuer.iss = "https://attacker.example"
    with pytest.raises(NotStarted, match="iss mismatch"):
        await notes.log_in()
    assert notes.there.logins.asked("/token") == []


async def test_a_server_that_claims_to_be_another_is_not_logged_in_to(notes: Notes) -> None:
    notes.there.server.instead["/.well-known/oauth-protected-resource/mcp"] = says(
        200, resource="https://bank.example/mcp", authorization_servers=[notes.there.logins.url]
    )
    with pytest.raises(NotStarted, match=r"bank\.example"):
        await notes.log_in()
    assert notes.browser.visited == []


@pytest.mark.parametrize(
    "body",
    [
        {"error": "invalid_grant", "access_token": "token-in-an-error-0123456789"},
        {"access_token": 5},
        {"access_token": "token-in-an-error-0123456789", "refresh_token": {"a": 1}},
        {
            "error": "invalid_request",
            "error_description": "you sent access_token=token-in-an-error-0123456789",
        },
        {},
    ],
)
async def test_no_token_is_ever_in_an_error_or_a_log(
    notes: Notes, body: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "mcp")
    caplog.set_level(logging.DEBUG, "toolfold")
    notes.there.logins.instead["/token"] = says(400 if "error" in body else 200, **body)
    with pytest.raises(ServerFailed) as raised:
        await notes.log_in()
    told = f"{raised.value} {raised.value!r} {raised.value.details} {caplog.text}"
    assert "token-in-an-error" not in told
    no_secret_in(notes, told)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


async def test_answers_without_end_are_cut_off(notes: Notes) -> None:
    notes.there.logins.instead[OPEN] = lambda seen: PlainTextResponse("x" * 2_000_000)
    with pytest.raises(NotStarted, match="more than is taken"):
        await notes.log_in()


async def test_an_issuer_that_cannot_be_reached_is_named(notes: Notes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    notes.there.server.instead["/.well-known/oauth-protected-resource/mcp"] = says(
        200, resource=notes.there.url, authorization_servers=[f"http://127.0.0.1:{port}"]
    )
    with pytest.raises(NotStarted, match=r"127\.0\.0\.1 cannot be reached: ConnectError"):
        await notes.log_in()


async def test_a_server_that_cannot_be_reached_cannot_be_logged_in_to(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    settings = usable({"url": f"http://127.0.0.1:{port}/mcp"})
    with pytest.raises(NotStarted, match="cannot be reached"):
        await log_in("notes", settings, tmp_path, environment={}, visit=print)


async def test_who_waits_too_long_for_anothers_login_is_told(notes: Notes) -> None:
    shown = asyncio.Event()

    async def slow(address: str) -> None:
        shown.set()
        await asyncio.sleep(600)

    first = asyncio.create_task(notes.log_in(slow, seconds=600))
    await shown.wait()
    with pytest.raises(NeedsLogin, match="another process"):
        await notes.log_in(seconds=0.2)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await notes.log_in()  # a lock goes with who held it


async def test_logging_out_forgets_and_revokes(notes: Notes) -> None:
    await notes.log_in()
    issued = list(notes.there.issuer.renewals)
    assert await log_out("notes", notes.settings, notes.folder, environment={}) is True
    assert notes.files() == []
    assert issued[0] in notes.there.issuer.revoked
    with pytest.raises(NeedsLogin):
        await notes.knock()
    assert await log_out("notes", notes.settings, notes.folder, environment={}) is False


async def test_logging_out_works_without_the_issuer(notes: Notes) -> None:
    await notes.log_in()
    notes.there.logins.instead["/revoke"] = says(500)
    assert await log_out("notes", notes.settings, notes.folder, environment={}) is True
    assert notes.files() == []


async def test_a_secret_that_is_not_set_is_named(notes: Notes) -> None:
    settings = usable({"url": notes.there.url, "oauth": {"client_id": "x", "client_secret": "${NOT_SET}"}})
    with pytest.raises(ConfigError, match="NOT_SET"):
        auth("notes", settings, notes.folder, False, environment={})


async def test_logins_that_cannot_be_kept_are_told(notes: Notes, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    notes.folder = tmp_path / "file" / "oauth"
    with pytest.raises(NotStarted, match="logins cannot be kept"):
        await notes.log_in()


def test_a_synchronous_client_is_refused(notes: Notes) -> None:
    provider = auth("notes", notes.settings, notes.folder, False, environment={})
    with pytest.raises(RuntimeError, match="asynchronous"), httpx2.Client(auth=provider) as client:
        client.get(notes.there.url)


@pytest.mark.parametrize(
    ("address", "server", "allowed"),
    [
        ("https://login.example/token", "https://mcp.example/mcp", True),
        ("http://login.example/token", "https://mcp.example/mcp", False),
        ("http://169.254.169.254/latest", "https://mcp.example/mcp", False),
        ("http://127.0.0.1:8080/", "https://mcp.example/mcp", False),
        ("https://localhost/", "https://mcp.example/mcp", False),
        ("https://[::1]/", "https://mcp.example/mcp", False),
        ("https://x.localhost./", "https://mcp.example/mcp", False),
        ("http://localhost:9/token", "http://127.0.0.1:8/mcp", True),
        ("http://intranet:8080/token", "http://intranet:8080/mcp", True),
        ("http://intranet:8081/token", "http://intranet:8080/mcp", False),
        ("ftp://login.example/", "https://mcp.example/mcp", False),
        ("https://login.example:x/", "https://mcp.example/mcp", False),
    ],
)
def test_logins_are_sent_where_they_may_go(address: str, server: str, allowed: bool) -> None:
    if allowed:
        require_allowed(address, server)
    else:
        with pytest.raises(Refusal):
            require_allowed(address, server)


@given(st.text(), st.text(min_size=1))
def test_any_address_is_an_answer_to_this_login_or_none(address: str, state: str) -> None:
    for tried in (
        address,
        f"http://127.0.0.1/callback?{address}",
        f"?{urlencode({'state': state})}&{address}",
    ):
        try:
            returned = read_return(tried, state)
        except ValueError:
            continue
        assert returned.code or returned.error


@given(st.dictionaries(st.sampled_from(FIELDS), _JSON))
def test_any_file_is_a_login_or_none(said: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "notes-0.json").write_text(json.dumps({"version": 1, "server": "notes", **said}))
        login = Logins(Path(folder)).find("notes", "https://notes.example")
    assert login is None or isinstance(login.token, str)


def test_a_code_that_comes_twice_is_none() -> None:
    with pytest.raises(ValueError, match="no answer"):
        read_return("?state=s&code=a&code=b", "s")
    with pytest.raises(ValueError, match="another login"):
        read_return("?state=s&state=s&code=a", "s")


def test_a_token_is_renewed_a_little_early() -> None:
    assert fresh_until(1000.0, 3600) == 1000 + 3600 - 30
    assert fresh_until(1000.0, 10) == 1000 + 9
    assert fresh_until(1000.0, None) is None


def by_hand(there: World, client_id: str, secret: str | None, port: int, method: str) -> None:
    there.issuer.clients[client_id] = OAuthClientInformationFull(
        client_id=client_id,
        client_secret=secret,
        redirect_uris=[f"http://127.0.0.1:{port}/callback"],  # type: ignore[list-item]
        token_endpoint_auth_method=method,
        scope="notes:read notes:write",
    )


def move_to_elsewhere(there: World) -> None:
    other = there.elsewhere.url
    there.server.instead["/.well-known/oauth-protected-resource/mcp"] = says(
        200, resource=there.url, authorization_servers=[other]
    )
    there.elsewhere.instead[OPEN] = says(
        200,
        issuer=other,
        authorization_endpoint=f"{other}/authorize",
        token_endpoint=f"{other}/token",
        registration_endpoint=f"{other}/register",
        response_types_supported=["code"],
    )


def no_secret_in(notes: Notes, *texts: str) -> None:
    found = [secret for secret in notes.there.issuer.issued() if any(secret in text for text in texts)]
    assert found == []
