"""Logins at a real server with a real issuer and a browser that follows redirects."""

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
from pydantic import AnyUrl
from starlette.responses import PlainTextResponse

from tests.cases import check_cases
from tests.conftest import RuntimeOpener
from tests.mcp.issuers import (
    OAuthSetup,
    initialize,
    json_response,
    read_login_file,
    redirect_to,
    run_oauth_setup,
)
from toolfold import load_config
from toolfold.config.servers_settings import McpServerSettings, parse_server_settings
from toolfold.core.errors import ConfigError
from toolfold.mcp.faults import NeedsLogin, NotStarted, ServerFailed
from toolfold.mcp.oauth import LoginStatus, create_auth, find_browser, log_in, log_out, login_status
from toolfold.mcp.oauth.auth_requests import (
    AuthError,
    require_allowed_address,
    require_allowed_url,
)
from toolfold.mcp.oauth.login_store import FileLoginStore, Login, compute_fresh_until
from toolfold.mcp.oauth.redirect_listener import AuthorizationResponse, parse_redirect
from toolfold.runtime.runtime import open_runtime

TIMEOUT_S = 60.0
ACCEPT = {"Accept": "application/json, text/event-stream"}
METADATA_PATH = "/.well-known/oauth-authorization-server"
FIELDS = [each.name for each in fields(Login)]
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("https://notes.example"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def oauth_servers() -> Iterator[OAuthSetup]:
    with run_oauth_setup() as setup:
        yield setup


@pytest.fixture
def there(oauth_servers: OAuthSetup) -> OAuthSetup:
    oauth_servers.reset()
    return oauth_servers


class Browser:
    """Follows the given URL like a browser and records it."""

    def __init__(self) -> None:
        self.visited: list[str] = []

    def __call__(self, address: str) -> None:
        self.visited.append(address)
        httpx2.get(address, follow_redirects=True, timeout=TIMEOUT_S)

    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.visited[-1]).query).items()}


class NotesServer:
    """One configured server with its login directory and a browser."""

    def __init__(self, there: OAuthSetup, folder: Path, **oauth: Any) -> None:
        self.there, self.folder, self.browser = there, folder, Browser()
        self.settings: McpServerSettings = parse_server_settings({"url": there.url, "oauth": oauth})
        self.environment: dict[str, str] = {"THE_SECRET": "secret-from-the-environment"}

    async def log_in(self, open_url: Any = None, timeout_s: float = TIMEOUT_S) -> LoginStatus:
        return await log_in(
            "notes",
            self.settings,
            self.folder,
            environment=self.environment,
            open_url=open_url or self.browser,
            timeout_s=timeout_s,
        )

    async def send_request(self, interactive: bool = False, **options: Any) -> int:
        """Send one request with a new provider and return the status."""
        provider = create_auth(
            "notes",
            self.settings,
            self.folder,
            interactive,
            environment=self.environment,
            open_url=self.browser,
            timeout_s=TIMEOUT_S,
        )
        async with httpx2.AsyncClient(timeout=TIMEOUT_S, auth=provider, **options) as client:
            return (await client.post(self.there.url, json=initialize(), headers=ACCEPT)).status_code

    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*.json"))

    def status(self) -> LoginStatus | None:
        return login_status("notes", self.settings, self.folder, environment=self.environment)


@pytest.fixture
def notes(there: OAuthSetup, tmp_path: Path) -> NotesServer:
    return NotesServer(there, tmp_path / "oauth")


async def test_tool_of_a_protected_server_can_be_called_after_one_oauth_login(notes: NotesServer) -> None:
    done = await notes.log_in()
    assert (done.issuer, done.scopes, done.is_usable) == (notes.there.auth_server.url, ("notes:read",), True)
    provider = create_auth("notes", notes.settings, notes.folder, False, environment={})
    async with (
        httpx2.AsyncClient(timeout=TIMEOUT_S, auth=provider) as http,
        Client(streamable_http_client(notes.there.url, http_client=http), mode="legacy") as client,
    ):
        result = await client.call_tool("add", {"a": 2, "b": 3})
    assert result.structured_content == {"result": 5}
    assert len(notes.browser.visited) == 1


def test_runtime_reports_a_missing_oauth_login_and_refreshes_an_expired_token_after_the_login(
    there: OAuthSetup, open_test_runtime: RuntimeOpener
) -> None:
    runtime = open_test_runtime({"mcp": {"servers": {"notes": {"url": there.url}}}})
    (state,) = runtime.mcp.states()
    assert (state.state, "toolfold mcp login notes" in state.error) == ("login", True)
    folder = runtime.config.paths.state_dir / "oauth"
    asyncio.run(
        log_in("notes", parse_server_settings({"url": there.url}), folder, environment={}, open_url=Browser())
    )
    runtime.mcp.restart("notes")
    session = runtime.session(toolsets=["mcp-notes"])
    assert session.call_sync("mcp_notes_add", {"a": 2, "b": 3}).value == {"result": 5}
    there.issuer.expire()
    assert session.call_sync("mcp_notes_add", {"a": 3, "b": 4}).value == {"result": 7}
    assert [seen.form["grant_type"] for seen in there.auth_server.requests_to("/token")][1:] == [
        "refresh_token"
    ]


async def test_oauth_login_sends_a_pkce_challenge_and_the_url_of_the_server_as_resource(
    notes: NotesServer,
) -> None:
    await notes.log_in()
    query = notes.browser.query()
    assert (query["code_challenge_method"], query["response_type"]) == ("S256", "code")
    assert query["resource"] == notes.there.url
    (exchange,) = notes.there.auth_server.requests_to("/token")
    assert exchange.form["grant_type"] == "authorization_code"
    assert len(exchange.form["code_verifier"]) >= 43
    assert exchange.form["resource"] == notes.there.url
    assert exchange.form["code_verifier"] not in notes.browser.visited[0]


async def test_interactive_request_without_a_login_opens_the_login_page_and_succeeds_after_the_login(
    notes: NotesServer,
) -> None:
    assert await notes.send_request(interactive=True) == 200
    assert len(notes.browser.visited) == 1
    assert await notes.send_request(interactive=False) == 200  # another process uses the same login


async def test_error_for_a_request_without_a_stored_login_contains_the_login_command(
    notes: NotesServer,
) -> None:
    with pytest.raises(NeedsLogin) as raised:
        await notes.send_request()
    assert str(raised.value) == (
        "MCP server 'notes' requires a login. Run `toolfold mcp login notes` in a terminal."
    )
    assert notes.browser.visited == []
    assert notes.there.auth_server.requests == []


async def test_error_for_an_interactive_login_without_a_browser_contains_the_login_command(
    notes: NotesServer,
) -> None:
    assert find_browser({}) is None
    assert find_browser({"DISPLAY": ":0"}) is not None
    provider = create_auth("notes", notes.settings, notes.folder, True, environment={})
    async with httpx2.AsyncClient(timeout=TIMEOUT_S, auth=provider) as client:
        with pytest.raises(NeedsLogin, match="toolfold mcp login notes"):
            await client.post(notes.there.url, json=initialize(), headers=ACCEPT)
    assert isinstance(provider.problem, NeedsLogin)
    with pytest.raises(NeedsLogin, match="no browser is available"):
        await log_in("notes", notes.settings, notes.folder, environment={})


async def test_login_file_is_readable_only_by_its_owner_and_separate_for_each_issuer(
    notes: NotesServer,
) -> None:
    os.umask(0o000)
    try:
        await notes.log_in()
    finally:
        os.umask(0o022)
    (file,) = notes.files()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(notes.folder.stat().st_mode) == 0o700
    stored = read_login_file(file.read_text())
    assert (stored["server"], stored["url"], stored["issuer"]) == (
        "notes",
        notes.there.url,
        notes.there.auth_server.url,
    )
    login = Login(**{name: value for name, value in stored.items() if name != "version"})
    assert login.token not in repr(login)
    FileLoginStore(notes.folder).save(replace(login, issuer="https://other.example"), is_new=True)
    assert notes.files() not in ([], [file])


async def test_login_file_readable_by_others_is_restricted_and_a_damaged_login_file_is_ignored(
    notes: NotesServer,
) -> None:
    await notes.log_in()
    (file,) = notes.files()
    file.chmod(0o644)
    assert await notes.send_request() == 200
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for broken in ("", "{", "[]", "{}", '{"version": 1}', '{"version": 2}', "\udc00" * 2):
        file.write_text(broken, encoding="utf-8", errors="surrogatepass")
        assert notes.status() is None
        with pytest.raises(NeedsLogin):
            await notes.send_request()


async def test_stored_login_is_not_used_if_its_file_is_a_symlink(notes: NotesServer, tmp_path: Path) -> None:
    await notes.log_in()
    (file,) = notes.files()
    moved = file.rename(tmp_path / "moved.json")
    file.symlink_to(moved)
    assert notes.status() is None


async def test_stored_login_is_not_used_for_a_server_with_another_name_or_url(notes: NotesServer) -> None:
    await notes.log_in()
    elsewhere = parse_server_settings({"url": f"{notes.there.server.url}/other"})
    assert login_status("notes", elsewhere, notes.folder, environment={}) is None
    assert login_status("other", notes.settings, notes.folder, environment={}) is None
    assert notes.status() is not None


async def test_expired_oauth_token_is_refreshed_before_use(notes: NotesServer) -> None:
    notes.there.issuer.lifetime = 0
    await notes.log_in()
    notes.there.issuer.lifetime = 3600
    assert await notes.send_request() == 200
    renewal = notes.there.auth_server.requests_to("/token")[-1]
    assert renewal.form["grant_type"] == "refresh_token"
    assert renewal.form["resource"] == notes.there.url
    assert len(notes.browser.visited) == 1
    assert await notes.send_request() == 200
    assert len(notes.there.auth_server.requests_to("/token")) == 2  # the new token was stored


async def test_oauth_token_rejected_by_the_server_is_refreshed(notes: NotesServer) -> None:
    await notes.log_in()
    notes.there.issuer.expire()
    assert await notes.send_request() == 200
    assert len(notes.browser.visited) == 1


async def test_concurrent_requests_with_an_expired_oauth_token_refresh_the_token_only_once(
    notes: NotesServer,
) -> None:
    await notes.log_in()
    notes.there.issuer.expire()
    assert await asyncio.gather(*(notes.send_request() for _ in range(6))) == [200] * 6
    assert len(notes.there.auth_server.requests_to("/token")) == 2


async def test_rejected_oauth_token_refresh_requires_a_new_login_and_is_not_retried(
    notes: NotesServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "toolfold")
    await notes.log_in()
    caplog.clear()
    notes.there.issuer.expire()
    notes.there.issuer.refuses = "renewal"
    for _ in range(2):
        with pytest.raises(NeedsLogin, match="toolfold mcp login notes") as raised:
            await notes.send_request()
        messages = [record.getMessage() for record in caplog.records if record.name.startswith("toolfold")]
        assert_no_secrets(notes, str(raised.value), repr(raised.value), *messages)
    assert len(notes.there.auth_server.requests_to("/token")) == 2
    assert notes.status() is None


async def test_token_rejected_directly_after_a_refresh_is_not_refreshed_again(
    notes: NotesServer,
) -> None:
    await notes.log_in()
    provider = create_auth("notes", notes.settings, notes.folder, False, environment={})
    notes.there.server.overrides["/mcp"] = lambda request: PlainTextResponse("no", 401)
    async with httpx2.AsyncClient(timeout=TIMEOUT_S, auth=provider) as client:
        for _ in range(3):
            with pytest.raises(NeedsLogin):
                await client.post(notes.there.url, json=initialize(), headers=ACCEPT)
    assert len(notes.there.auth_server.requests_to("/token")) == 2


async def test_stored_login_remains_usable_after_a_token_refresh_failed_with_status_503(
    notes: NotesServer,
) -> None:
    await notes.log_in()
    notes.there.issuer.expire()
    notes.there.auth_server.overrides["/token"] = json_response(503)
    with pytest.raises(NotStarted, match=r"cannot be refreshed: 127\.0\.0\.1 returned no token: HTTP 503"):
        await notes.send_request()
    del notes.there.auth_server.overrides["/token"]
    assert await notes.send_request() == 200


async def test_login_registers_a_new_oauth_client_if_the_issuer_no_longer_knows_the_old_client(
    notes: NotesServer,
) -> None:
    await notes.log_in()
    notes.there.issuer.expire()
    notes.there.issuer.clients.clear()
    with pytest.raises(NeedsLogin):
        await notes.send_request()
    await notes.log_in()
    assert len(notes.there.auth_server.requests_to("/register")) == 2
    assert await notes.send_request() == 200


async def test_second_login_uses_the_oauth_client_that_the_first_login_registered(notes: NotesServer) -> None:
    await notes.log_in()
    await notes.log_in()
    assert len(notes.there.auth_server.requests_to("/register")) == 1
    assert len(notes.browser.visited) == 2
    assert len(notes.files()) == 1


async def test_second_login_registers_a_new_oauth_client_if_the_old_redirect_port_is_in_use(
    notes: NotesServer,
) -> None:
    await notes.log_in()
    port = urlsplit(notes.browser.query()["redirect_uri"]).port
    with socket.create_server(("127.0.0.1", port or 0)):
        await notes.log_in()
    assert urlsplit(notes.browser.query()["redirect_uri"]).port != port
    assert len(notes.there.auth_server.requests_to("/register")) == 2


async def test_login_error_contains_the_configured_redirect_port_that_is_already_in_use(
    there: OAuthSetup, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(NotStarted, match=rf"port {port} .* oauth.redirect_port"):
            await NotesServer(there, tmp_path, redirect_port=port).log_in()


async def test_login_denied_by_the_user_raises_an_error_and_stores_no_login(
    notes: NotesServer, caplog: pytest.LogCaptureFixture
) -> None:
    notes.there.issuer.refuses = "consent"
    with pytest.raises(NeedsLogin, match="the login was refused: access_denied: The person said no"):
        await notes.log_in()
    assert notes.files() == []
    assert notes.there.auth_server.requests_to("/token") == []
    assert "Traceback" not in caplog.text


async def test_forged_login_redirects_are_rejected_and_do_not_prevent_the_real_login(
    notes: NotesServer,
) -> None:
    statuses: list[int] = []

    def open_with_forged_redirects(address: str) -> None:
        back = parse_qs(urlsplit(address).query)["redirect_uri"][0]
        queries = ("code=stolen&state=guessed", "code=stolen", "error=access_denied", "", "state=&code=x")
        with httpx2.Client(timeout=TIMEOUT_S) as client:
            answers = [client.get(f"{back}?{query}") for query in queries]
            answers += [client.post(back), client.get(back.replace("/callback", "/else"))]
            answers += [client.get(back, headers={"Host": "evil.example"})]
        statuses.extend(answer.status_code for answer in answers)
        notes.browser(address)

    await notes.log_in(open_with_forged_redirects)
    assert statuses == [400, 400, 400, 400, 400, 400, 404, 400]
    (exchange,) = notes.there.auth_server.requests_to("/token")
    assert exchange.form["code"] != "stolen"


async def test_login_does_not_accept_a_redirect_with_a_wrong_state(notes: NotesServer) -> None:
    def redirect_with_wrong_state(address: str) -> None:
        back = parse_qs(urlsplit(address).query)["redirect_uri"][0]
        httpx2.get(f"{back}?code=stolen&state=guessed", timeout=TIMEOUT_S)

    with pytest.raises(NeedsLogin, match=r"the login was not completed within 0\.3 s"):
        await notes.log_in(redirect_with_wrong_state, timeout_s=0.3)
    assert notes.there.auth_server.requests_to("/token") == []


async def test_login_can_be_finished_by_pasting_the_redirect_url_from_a_browser_on_another_machine(
    notes: NotesServer,
) -> None:
    def return_redirect_url(address: str) -> str:
        return " " + httpx2.get(address, timeout=TIMEOUT_S).headers["location"] + "\n"

    await notes.log_in(return_redirect_url)
    assert await notes.send_request() == 200
    with pytest.raises(NeedsLogin, match="belongs to another login"):
        await notes.log_in(lambda address: "http://127.0.0.1/callback?code=x&state=y")


async def test_error_for_a_login_page_that_cannot_be_opened_does_not_contain_the_url_of_the_page(
    notes: NotesServer,
) -> None:
    def broken(address: str) -> None:
        raise RuntimeError(address)

    with pytest.raises(NeedsLogin, match="could not be opened: RuntimeError") as raised:
        await notes.log_in(broken)
    assert "state=" not in str(raised.value)


@pytest.mark.thorough
async def test_concurrent_logins_of_two_processes_open_only_one_login_page(notes: NotesServer) -> None:
    script = """
import asyncio, sys, urllib.request
from pathlib import Path
from toolfold.config.servers_settings import parse_server_settings
from toolfold.mcp.oauth import log_in

def visit(address):
    urllib.request.urlopen(address).read()

settings = parse_server_settings({"url": sys.argv[1]})
done = asyncio.run(log_in("notes", settings, Path(sys.argv[2]), environment={}, open_url=visit, timeout_s=60))
print(done.is_usable)
"""
    seen = notes.there.server.requests

    def wait_for_both_processes(_seen: Any) -> Any:
        end = time.monotonic() + TIMEOUT_S
        while sum(b'"ping"' in each.body for each in tuple(seen)) < 2 and time.monotonic() < end:
            time.sleep(0.02)

    notes.there.auth_server.overrides["/authorize"] = wait_for_both_processes
    command = [sys.executable, "-c", script, notes.there.url, str(notes.folder)]
    outputs = await asyncio.gather(*(asyncio.to_thread(subprocess.check_output, command) for _ in range(2)))
    assert outputs == [b"True\n", b"True\n"]
    assert len(notes.there.auth_server.requests_to("/authorize")) == 1
    assert len(notes.there.auth_server.requests_to("/register")) == 1


async def test_configured_oauth_client_id_is_used_without_registration(
    there: OAuthSetup, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    register_client(there, "ours", "secret-from-the-environment", port, "client_secret_basic")
    notes = NotesServer(there, tmp_path, client_id="ours", client_secret="${THE_SECRET}", redirect_port=port)
    await notes.log_in()
    there.issuer.expire()
    assert await notes.send_request() == 200  # refreshed with the secret
    assert there.auth_server.requests_to("/register") == []
    assert notes.browser.query()["client_id"] == "ours"
    assert there.auth_server.requests_to("/token")[0].headers["authorization"].startswith("Basic ")
    assert "secret-from-the-environment" not in notes.files()[0].read_text()


async def test_client_secret_is_sent_in_the_request_body_if_the_issuer_supports_only_client_secret_post(
    there: OAuthSetup, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    register_client(there, "ours", "secret-from-the-environment", port, "client_secret_post")
    there.change_metadata(token_endpoint_auth_methods_supported=["client_secret_post"])
    notes = NotesServer(there, tmp_path, client_id="ours", client_secret="${THE_SECRET}", redirect_port=port)
    await notes.log_in()
    assert there.auth_server.requests_to("/token")[0].form["client_secret"] == "secret-from-the-environment"
    assert "authorization" not in there.auth_server.requests_to("/token")[0].headers


async def test_configured_oauth_client_id_and_secret_are_not_sent_to_another_issuer(
    there: OAuthSetup, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    register_client(there, "ours", "secret-from-the-environment", port, "client_secret_basic")
    notes = NotesServer(there, tmp_path, client_id="ours", client_secret="${THE_SECRET}", redirect_port=port)
    await notes.log_in()
    change_issuer(there)
    with pytest.raises(NotStarted, match="the authorization server of this MCP server changed"):
        await notes.log_in()
    assert "secret-from-the-environment" not in there.elsewhere.dump_requests()
    assert "ours" not in there.elsewhere.dump_requests()


async def test_configured_client_secret_is_not_sent_to_an_issuer_other_than_the_configured_one(
    there: OAuthSetup, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    register_client(there, "ours", "secret-from-the-environment", port, "client_secret_basic")
    settings = {"client_id": "ours", "client_secret": "${THE_SECRET}", "redirect_port": port}
    await NotesServer(there, tmp_path / "right", issuer=there.auth_server.url, **settings).log_in()
    change_issuer(there)
    with pytest.raises(NotStarted, match="client_id belongs to another authorization server"):
        await NotesServer(there, tmp_path / "new", issuer=there.auth_server.url, **settings).log_in()
    assert there.elsewhere.requests_to("/token") == []


class _BrowserRedirect:
    """The redirect URI of a gateway, and a browser that follows the login page to it."""

    uri = "http://127.0.0.1:9/ui/mcp-login/callback"

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._callback: asyncio.Future[str] = self._loop.create_future()

    def open_url(self, url: str) -> None:
        answer = httpx2.get(url, follow_redirects=False, timeout=TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._callback.set_result, answer.headers["location"])

    async def wait_for_response(self, state: str) -> AuthorizationResponse:
        return parse_redirect(await self._callback, state)


async def test_first_login_of_a_user_sends_the_client_secret_only_to_the_issuer_of_the_shared_login(
    there: OAuthSetup, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    register_client(there, "ours", "secret-from-the-environment", port, "client_secret_basic")
    there.issuer.clients["ours"].redirect_uris = [
        AnyUrl(each) for each in (f"http://127.0.0.1:{port}/callback", _BrowserRedirect.uri)
    ]
    oauth = {"client_id": "ours", "client_secret": "${THE_SECRET}", "redirect_port": port}
    server = {"url": there.url, "credentials": "per-user", "trust": "off", "oauth": oauth}
    env = {"TOOLFOLD_HOME": str(tmp_path), "THE_SECRET": "secret-from-the-environment"}
    config = load_config(overrides={"mcp.servers": {"notes": server}, "mcp.wait_seconds": 0.0}, env=env)
    await log_in(
        "notes",
        config.mcp.servers["notes"],
        config.paths.state_dir / "oauth",
        environment=config.environment,
        open_url=lambda url: httpx2.get(url, follow_redirects=True, timeout=TIMEOUT_S) and None,
    )
    with open_runtime(config, behind_gateway=True) as runtime:

        async def log_in_user(user_id: str) -> None:
            redirect = _BrowserRedirect()
            await runtime.mcp.log_in_user(
                "notes", user_id, redirect, open_url=redirect.open_url, timeout_s=TIMEOUT_S
            )

        await log_in_user("ann")
        assert runtime.mcp.open_logins("ann").find("notes", there.url) is not None
        change_issuer(there)
        for user_id in ("bob", "ann"):
            with pytest.raises(NotStarted, match="the authorization server of this MCP server changed"):
                await log_in_user(user_id)
    assert there.elsewhere.requests_to("/token") == there.elsewhere.requests_to("/authorize") == []


async def test_configured_client_metadata_url_is_used_as_client_id_without_registration(
    there: OAuthSetup, tmp_path: Path
) -> None:
    document = "https://toolfold.example/client.json"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    register_client(there, document, None, port, "none")
    there.change_metadata(client_id_metadata_document_supported=True)
    notes = NotesServer(there, tmp_path, client_metadata_url=document, redirect_port=port)
    await notes.log_in()
    assert there.auth_server.requests_to("/register") == []
    assert notes.browser.query()["client_id"] == document
    assert await notes.send_request() == 200


async def test_oauth_client_is_registered_if_the_issuer_does_not_support_client_metadata_documents(
    there: OAuthSetup, tmp_path: Path
) -> None:
    notes = NotesServer(there, tmp_path, client_metadata_url="https://toolfold.example/client.json")
    await notes.log_in()
    assert len(there.auth_server.requests_to("/register")) == 1


async def test_error_for_a_refused_oauth_client_registration_suggests_setting_client_id(
    notes: NotesServer,
) -> None:
    notes.there.auth_server.overrides["/register"] = json_response(403, error="access_denied")
    with pytest.raises(
        NotStarted, match=r"registers no client: HTTP 403 \(access_denied\).* oauth.client_id"
    ):
        await notes.log_in()


async def test_configured_oauth_scopes_are_requested(there: OAuthSetup, tmp_path: Path) -> None:
    notes = NotesServer(there, tmp_path, scopes=["notes:read", "notes:all"])
    done = await notes.log_in()
    assert done.scopes == ("notes:read", "notes:all")


async def test_insufficient_scope_error_starts_a_login_that_also_requests_the_missing_scope(
    notes: NotesServer,
) -> None:
    await notes.log_in()
    notes.there.demand_scopes("notes:write")
    assert await notes.send_request(interactive=True) == 200
    assert notes.browser.query()["scope"] == "notes:read notes:write"
    now = notes.status()
    assert now is not None
    assert set(now.scopes) == {"notes:read", "notes:write"}


async def test_next_login_requests_the_scopes_that_the_server_reported_as_missing(
    notes: NotesServer,
) -> None:
    await notes.log_in()
    notes.there.demand_scopes("notes:write")
    with pytest.raises(NeedsLogin, match=r"more scopes .*\(notes:write\)"):
        await notes.send_request()
    await notes.log_in()
    assert await notes.send_request() == 200
    assert set(notes.browser.query()["scope"].split()) == {"notes:read", "notes:write"}


async def test_repeated_insufficient_scope_error_after_a_login_starts_no_further_login(
    notes: NotesServer,
) -> None:
    provider = create_auth(
        "notes", notes.settings, notes.folder, True, environment={}, open_url=notes.browser
    )
    refusal = {"WWW-Authenticate": 'Bearer error="insufficient_scope", scope="notes:write"'}
    async with httpx2.AsyncClient(timeout=TIMEOUT_S, auth=provider) as client:
        await client.post(notes.there.url, json=initialize(), headers=ACCEPT)
        notes.there.server.overrides["/mcp"] = lambda request: PlainTextResponse("no", 403, headers=refusal)
        for _ in range(4):
            response = await client.post(notes.there.url, json=initialize(), headers=ACCEPT)
            assert response.status_code == 403
    assert len(notes.browser.visited) == 2


async def test_status_403_without_the_error_insufficient_scope_starts_no_login(notes: NotesServer) -> None:
    await notes.log_in()
    notes.there.server.overrides["/mcp"] = lambda request: PlainTextResponse("no", 403)
    assert await notes.send_request(interactive=True) == 403
    assert len(notes.browser.visited) == 1


async def test_oauth_token_is_not_sent_to_another_origin_after_a_redirect(notes: NotesServer) -> None:
    await notes.log_in()
    notes.there.server.overrides["/mcp"] = redirect_to(f"{notes.there.elsewhere.url}/mcp")
    await notes.send_request(follow_redirects=True)
    assert len(notes.there.elsewhere.requests_to("/mcp")) == 1
    provider = create_auth("notes", notes.settings, notes.folder, False, environment={})
    async with httpx2.AsyncClient(timeout=TIMEOUT_S, auth=provider) as client:
        await client.get(f"{notes.there.elsewhere.url}/other")
    assert all("authorization" not in seen.headers for seen in notes.there.elsewhere.requests)
    assert_no_secrets(notes, notes.there.elsewhere.dump_requests())


async def test_refresh_token_is_sent_to_the_oauth_issuer_and_never_to_the_mcp_server(
    notes: NotesServer,
) -> None:
    notes.there.issuer.lifetime = 0
    await notes.log_in()
    notes.there.issuer.lifetime = 3600
    assert await notes.send_request() == 200
    assert "renewal-" not in notes.there.server.dump_requests()


async def test_authorization_header_from_the_settings_is_not_replaced_by_the_oauth_token(
    notes: NotesServer,
) -> None:
    await notes.log_in()
    provider = create_auth(
        "notes", notes.settings, notes.folder, True, environment={}, open_url=notes.browser
    )
    async with httpx2.AsyncClient(
        timeout=TIMEOUT_S, auth=provider, headers={"Authorization": "Bearer by-hand"}
    ) as client:
        response = await client.post(notes.there.url, json=initialize(), headers=ACCEPT)
    assert response.status_code == 401
    assert notes.there.server.requests[-1].headers["authorization"] == "Bearer by-hand"
    assert len(notes.browser.visited) == 1


async def test_login_at_a_new_oauth_issuer_sends_no_token_or_client_id_of_the_previous_issuer(
    notes: NotesServer,
) -> None:
    await notes.log_in()
    given = notes.there.issuer.issued()
    change_issuer(notes.there)
    notes.there.elsewhere.overrides["/register"] = json_response(201, client_id="anew")
    with pytest.raises(NeedsLogin):
        await notes.log_in(lambda address: None, timeout_s=0.3)
    seen = notes.there.elsewhere.dump_requests()
    assert notes.there.elsewhere.requests_to("/register")
    assert not [secret for secret in given if secret in seen]
    assert not [client for client in notes.there.issuer.clients if client in seen]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"issuer": "https://attacker.example"}, "issuer mismatch"),
        ({"code_challenge_methods_supported": ["plain"]}, "does not support PKCE with S256"),
        ({"token_endpoint": "http://192.0.2.1/token"}, "without encryption"),
        ({"authorization_endpoint": "http://192.0.2.1/authorize"}, "without encryption"),
        ({"registration_endpoint": "http://192.0.2.1/register"}, "without encryption"),
        ({"registration_endpoint": None}, "registers no client"),
    ],
)
async def test_oauth_metadata_with_a_wrong_issuer_or_without_encryption_or_pkce_is_rejected(
    notes: NotesServer, changes: dict[str, Any], problem: str
) -> None:
    notes.there.change_metadata(**changes)
    with pytest.raises(NotStarted, match=problem):
        await notes.log_in()
    assert notes.files() == []


async def test_login_redirect_with_a_different_oauth_issuer_is_rejected(notes: NotesServer) -> None:
    notes.there.issuer.iss = "https://attacker.example"
    with pytest.raises(NotStarted, match="iss mismatch"):
        await notes.log_in()
    assert notes.there.auth_server.requests_to("/token") == []


async def test_protected_resource_metadata_for_a_different_resource_is_rejected(
    notes: NotesServer,
) -> None:
    notes.there.server.overrides["/.well-known/oauth-protected-resource/mcp"] = json_response(
        200, resource="https://bank.example/mcp", authorization_servers=[notes.there.auth_server.url]
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
async def test_errors_and_logs_contain_no_oauth_tokens(
    notes: NotesServer, body: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "mcp")
    caplog.set_level(logging.DEBUG, "toolfold")
    notes.there.auth_server.overrides["/token"] = json_response(400 if "error" in body else 200, **body)
    with pytest.raises(ServerFailed) as raised:
        await notes.log_in()
    text = f"{raised.value} {raised.value!r} {raised.value.details} {caplog.text}"
    assert "token-in-an-error" not in text
    assert_no_secrets(notes, text)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


async def test_oversized_response_of_an_oauth_issuer_is_rejected(notes: NotesServer) -> None:
    notes.there.auth_server.overrides[METADATA_PATH] = lambda request: PlainTextResponse("x" * 2_000_000)
    with pytest.raises(NotStarted, match="sent more than 1000000 bytes"):
        await notes.log_in()


async def test_error_for_an_oauth_issuer_that_does_not_respond_contains_the_issuer_host(
    notes: NotesServer,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    notes.there.server.overrides["/.well-known/oauth-protected-resource/mcp"] = json_response(
        200, resource=notes.there.url, authorization_servers=[f"http://127.0.0.1:{port}"]
    )
    with pytest.raises(NotStarted, match=r"127\.0\.0\.1 cannot be reached: ConnectError"):
        await notes.log_in()


async def test_login_error_states_that_the_server_does_not_respond(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    settings = parse_server_settings({"url": f"http://127.0.0.1:{port}/mcp"})
    with pytest.raises(NotStarted, match="cannot be reached"):
        await log_in("notes", settings, tmp_path, environment={}, open_url=print)


async def test_login_fails_after_its_timeout_while_another_process_is_still_logging_in(
    notes: NotesServer,
) -> None:
    shown = asyncio.Event()

    async def slow(address: str) -> None:
        shown.set()
        await asyncio.sleep(600)

    first = asyncio.create_task(notes.log_in(slow, timeout_s=600))
    await shown.wait()
    with pytest.raises(NeedsLogin, match="another process"):
        await notes.log_in(timeout_s=0.2)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await notes.log_in()  # the lock is released with its holder


async def test_logout_deletes_the_stored_login_and_revokes_its_token_at_the_issuer(
    notes: NotesServer,
) -> None:
    await notes.log_in()
    issued = list(notes.there.issuer.refresh_tokens)
    assert await log_out("notes", notes.settings, notes.folder, environment={}) is True
    assert notes.files() == []
    assert issued[0] in notes.there.issuer.revoked
    with pytest.raises(NeedsLogin):
        await notes.send_request()
    assert await log_out("notes", notes.settings, notes.folder, environment={}) is False


async def test_logout_deletes_the_stored_login_even_if_the_issuer_fails_to_revoke_the_token(
    notes: NotesServer,
) -> None:
    await notes.log_in()
    notes.there.auth_server.overrides["/revoke"] = json_response(500)
    assert await log_out("notes", notes.settings, notes.folder, environment={}) is True
    assert notes.files() == []


async def test_error_for_a_client_secret_with_an_unset_variable_contains_the_variable_name(
    notes: NotesServer,
) -> None:
    settings = parse_server_settings(
        {"url": notes.there.url, "oauth": {"client_id": "x", "client_secret": "${NOT_SET}"}}
    )
    with pytest.raises(ConfigError, match="NOT_SET"):
        create_auth("notes", settings, notes.folder, False, environment={})


async def test_login_fails_with_an_error_if_the_directory_for_logins_cannot_be_written(
    notes: NotesServer, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    notes.folder = tmp_path / "file" / "oauth"
    with pytest.raises(NotStarted, match="logins cannot be stored"):
        await notes.log_in()


def test_oauth_authentication_raises_an_error_in_a_synchronous_http_client(notes: NotesServer) -> None:
    provider = create_auth("notes", notes.settings, notes.folder, False, environment={})
    with pytest.raises(RuntimeError, match="asynchronous"), httpx2.Client(auth=provider) as client:
        client.get(notes.there.url)


@check_cases(
    ("url", "server", "allowed"),
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
def test_oauth_requests_to_unencrypted_or_internal_urls_are_refused(
    url: str, server: str, allowed: bool
) -> None:
    if allowed:
        require_allowed_url(url, server)
    else:
        with pytest.raises(AuthError):
            require_allowed_url(url, server)


@pytest.mark.parametrize(
    ("url", "server", "allowed"),
    [
        ("https://169.254.169.254/latest", "https://8.8.8.8/mcp", False),
        ("https://169.254.169.254/latest", "http://127.0.0.1:8/mcp", False),
        ("https://2852039166/latest", "https://8.8.8.8/mcp", False),
        ("https://[fe80::1]/", "http://10.0.0.1/mcp", False),
        ("https://[::ffff:127.0.0.1]/", "https://8.8.8.8/mcp", False),
        ("https://[::ffff:169.254.169.254]/", "https://8.8.8.8/mcp", False),
        ("https://2130706433/", "https://8.8.8.8/mcp", False),
        ("https://127.1/", "https://8.8.8.8/mcp", False),
        ("https://0x7f.1/", "https://8.8.8.8/mcp", False),
        ("https://0.0.0.0/", "https://8.8.8.8/mcp", False),
        ("https://[64:ff9b::a00:1]/", "https://8.8.8.8/mcp", False),
        ("https://user:pass@10.0.0.1/", "https://8.8.8.8/mcp", False),
        ("https://8.8.8.8@10.0.0.1/", "https://8.8.8.8/mcp", False),
        ("https://10.0.0.1/", "https://8.8.8.8/mcp", False),
        ("https://localhost/", "https://8.8.8.8/mcp", False),
        (f"https://{'a' * 64}.example/", "https://8.8.8.8/mcp", False),  # has no address: too long
        ("https://10.0.0.1/", "https://10.0.0.2/mcp", True),
        ("https://9.9.9.9/", "https://8.8.8.8/mcp", True),
        ("https://127.0.0.1/", "http://127.0.0.1:8/mcp", True),
    ],
)
async def test_login_request_of_a_public_server_to_an_internal_address_in_any_notation_is_refused(
    url: str, server: str, allowed: bool
) -> None:
    if allowed:
        await require_allowed_address(url, server)
    else:
        with pytest.raises(AuthError):
            await require_allowed_address(url, server)


async def test_login_is_refused_if_the_oauth_issuer_of_the_server_is_a_cloud_metadata_service(
    notes: NotesServer,
) -> None:
    notes.there.server.overrides["/.well-known/oauth-protected-resource/mcp"] = json_response(
        200, resource=notes.there.url, authorization_servers=["https://169.254.169.254"]
    )
    with pytest.raises(NotStarted, match=r"whose address 169\.254\.169\.254"):
        await notes.log_in()
    assert notes.browser.visited == []


@given(st.text(), st.text(min_size=1))
def test_parsing_arbitrary_text_as_a_login_redirect_raises_no_error_other_than_value_error(
    address: str, state: str
) -> None:
    for tried in (
        address,
        f"http://127.0.0.1/callback?{address}",
        f"?{urlencode({'state': state})}&{address}",
    ):
        try:
            returned = parse_redirect(tried, state)
        except ValueError:
            continue
        assert returned.code or returned.error


@given(st.dictionaries(st.sampled_from(FIELDS), _JSON))
def test_reading_a_login_file_with_arbitrary_json_raises_no_error(
    content: dict[str, Any],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "notes-0.json").write_text(json.dumps({"version": 1, "server": "notes", **content}))
        login = FileLoginStore(Path(folder)).find("notes", "https://notes.example")
    assert login is None or isinstance(login.token, str)


def test_login_redirect_with_a_repeated_query_parameter_is_rejected() -> None:
    with pytest.raises(ValueError, match="neither a code nor an error"):
        parse_redirect("?state=s&code=a&code=b", "s")
    with pytest.raises(ValueError, match="another login"):
        parse_redirect("?state=s&state=s&code=a", "s")


def test_oauth_token_is_treated_as_expired_30_seconds_before_its_expiry() -> None:
    assert compute_fresh_until(1000.0, 3600) == 1000 + 3600 - 30
    assert compute_fresh_until(1000.0, 10) == 1000 + 9
    assert compute_fresh_until(1000.0, None) is None


def register_client(there: OAuthSetup, client_id: str, secret: str | None, port: int, method: str) -> None:
    there.issuer.clients[client_id] = OAuthClientInformationFull(
        client_id=client_id,
        client_secret=secret,
        redirect_uris=[f"http://127.0.0.1:{port}/callback"],  # type: ignore[list-item]
        token_endpoint_auth_method=method,
        scope="notes:read notes:write",
    )


def change_issuer(there: OAuthSetup) -> None:
    other = there.elsewhere.url
    there.server.overrides["/.well-known/oauth-protected-resource/mcp"] = json_response(
        200, resource=there.url, authorization_servers=[other]
    )
    there.elsewhere.overrides[METADATA_PATH] = json_response(
        200,
        issuer=other,
        authorization_endpoint=f"{other}/authorize",
        token_endpoint=f"{other}/token",
        registration_endpoint=f"{other}/register",
        response_types_supported=["code"],
    )


def assert_no_secrets(notes: NotesServer, *texts: str) -> None:
    found = [secret for secret in notes.there.issuer.issued() if any(secret in text for text in texts)]
    assert found == []
