"""Users of two real gateways log in to a protected MCP server, each for themselves, with one database."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.gateway.gateway_process import GatewayProcess, environment, gateway_process, write_settings
from tests.gateway.harness import REVISIONS, TIMEOUT_S, free_port, result_text
from tests.mcp.issuers import OAuthSetup, run_oauth_setup
from tests.postgres import PostgresServer
from toolfold.config.servers_settings import parse_server_settings
from toolfold.mcp.oauth import log_in
from toolfold.mcp.oauth.login_store import EncryptedLoginStore
from toolfold.state.credentials import OWNER, CredentialKeys, SharedCredentialStore, make_key
from toolfold.state.credentials.keys import load_keys
from toolfold.state.database import Database, open_database

LINK = re.compile(r"http://127\.0\.0\.1:\d+/ui/mcp-login/[\w-]{43}")


@dataclass
class Replica:
    home: Path
    gateway: GatewayProcess

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"

    def toolfold(self, *words: str, expect: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "toolfold", *words],
            env=environment(self.home),
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == expect, done.stderr
        return done.stdout.strip()

    async def call(self, token: str, *, revision: str = "legacy", **options: Any) -> str:
        """Call the tool of the protected server and return the text of its result."""
        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=TIMEOUT_S) as http,
            Client(
                streamable_http_client(self.gateway.url, http_client=http), mode=revision, **options
            ) as client,
        ):
            return result_text(await client.call_tool("notes_add", {"a": 2, "b": 3}))


class UserBrowser:
    """A browser of a person: keeps cookies, and sends forms with the Origin of the page."""

    def __init__(self) -> None:
        self.cookies = httpx2.Cookies()

    def request(self, method: str, url: str, **options: Any) -> httpx2.Response:
        with httpx2.Client(timeout=TIMEOUT_S, follow_redirects=False, cookies=self.cookies) as http:
            response = http.request(method, url, **options)
            self.cookies = http.cookies
            return response

    def open(self, url: str, **options: Any) -> httpx2.Response:
        return self.request("GET", url, **options)

    def send_token(self, link: str, token: str, origin: str | None = None) -> httpx2.Response:
        own = f"{urlsplit(link).scheme}://{urlsplit(link).netloc}"
        headers = {"Origin": own if origin is None else origin}
        return self.request("POST", link, data={"token": token}, headers=headers)

    def follow_to_callback(self, response: httpx2.Response) -> str:
        """Follow the redirect to the issuer and return the URL to which it redirects back."""
        assert response.status_code == 303, response.text
        answer = self.open(response.headers["location"])
        assert answer.status_code in (302, 303, 307), answer.text
        return str(answer.headers["location"])

    def log_in(self, link: str, token: str) -> httpx2.Response:
        return self.open(self.follow_to_callback(self.send_token(link, token)))


@dataclass
class Setup:
    """Two gateways, the protected server, and users with tokens."""

    one: Replica
    two: Replica
    there: OAuthSetup
    database: Database
    credentials: SharedCredentialStore
    tokens: dict[str, str] = field(default_factory=dict)
    users: dict[str, str] = field(default_factory=dict)

    def add_user(self, name: str) -> str:
        """Add a user and return its token."""
        self.one.toolfold("user", "add", name)
        self.tokens[name] = self.one.toolfold("token", "add", f"{name}-laptop", "--user", name).split()[-1]
        rows = self.database.query("SELECT id FROM users WHERE name = %s", (name,))
        self.users[name] = rows[0]["id"]
        return self.tokens[name]

    def stored_token(self, name: str) -> str:
        """Return the access token that is stored for a user; empty for none."""
        login = EncryptedLoginStore(lambda: self.credentials, self.users[name]).find("notes", self.there.url)
        return login.token if login else ""

    def tokens_of_calls(self) -> list[str]:
        """Return the access tokens of the tool calls that have reached the server."""
        return [
            each.headers["authorization"].removeprefix("Bearer ")
            for each in self.there.server.requests_to("/mcp")
            if b"tools/call" in each.body and each.headers.get("authorization")
        ]

    async def get_link(self, name: str, replica: Replica | None = None) -> str:
        text = await (replica or self.one).call(self.tokens[name])
        assert "requires" in text, text
        return str(LINK.findall(text)[0])

    async def log_in(self, name: str) -> None:
        """Log a user in through the link in an error message."""
        link = await self.get_link(name)
        answer = await asyncio.to_thread(UserBrowser().log_in, link, self.tokens[name])
        assert answer.status_code == 200, answer.text


@pytest.fixture(scope="module")
def setup(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    url, directory = postgres.create_database(), tmp_path_factory.mktemp("logins")
    key = make_key()
    with ExitStack() as stack:
        there = stack.enter_context(run_oauth_setup())
        database = open_database(url)
        assert database is not None
        stack.callback(database.close)
        keys: CredentialKeys = load_keys(key, directory / "none", may_create=False)
        credentials = stack.enter_context(closing(SharedCredentialStore(database, lambda: keys)))
        server = {"url": there.url, "credentials": "per-user", "trust": "off"}
        owner = EncryptedLoginStore(lambda: credentials, OWNER)
        asyncio.run(
            log_in("notes", parse_server_settings(server), owner, environment={}, open_url=_follow_redirects)
        )
        replicas = []
        for name in ("one", "two"):
            settings = {
                "store": url,
                "mcp": {"servers": {"notes": server}, "wait_seconds": 60.0},
                "tools": {"rag_embed_model": "light"},
            }
            write_settings(directory / name, settings)
            (directory / name / "credentials.key").write_text(key)
            (directory / name / "credentials.key").chmod(0o600)
            gateway = stack.enter_context(gateway_process(directory / name))
            replicas.append(Replica(directory / name, gateway))
        made = Setup(replicas[0], replicas[1], there, database, credentials)
        for name in ("ann", "bob"):
            made.add_user(name)
        yield made


@pytest.fixture(autouse=True)
def start_without_logins(setup: Setup) -> None:
    """Delete the logins of users, and what the servers have recorded."""
    for user_id in setup.users.values():
        setup.credentials.remove(user_id)
    setup.there.server.requests.clear()
    setup.there.auth_server.requests.clear()
    setup.there.issuer.refuses = ""


def _follow_redirects(url: str) -> None:
    httpx2.get(url, follow_redirects=True, timeout=TIMEOUT_S)


async def test_login_on_one_replica_is_used_by_all_replicas_but_only_for_calls_of_its_user(
    setup: Setup,
) -> None:
    link = await setup.get_link("ann", setup.one)
    elsewhere = link.replace(setup.one.origin, setup.two.origin)  # the load balancer chose another replica
    browser = UserBrowser()
    page = browser.open(elsewhere)
    assert page.status_code == 200
    assert "<b>notes</b>" in page.text
    assert "<b>ann</b>" in page.text
    callback = browser.follow_to_callback(browser.send_token(elsewhere, setup.tokens["ann"]))
    assert callback.startswith(f"{setup.two.origin}/ui/mcp-login/callback?")
    assert "Logged in" in browser.open(callback).text
    assert await setup.two.call(setup.tokens["ann"]) == "5"
    assert await setup.one.call(setup.tokens["ann"]) == "5"
    own = setup.stored_token("ann")
    assert set(setup.tokens_of_calls()) == {own}
    assert "requires your own login" in await setup.one.call(setup.tokens["bob"])
    await setup.log_in("bob")
    assert await setup.two.call(setup.tokens["bob"]) == "5"
    assert setup.tokens_of_calls()[-1] == setup.stored_token("bob") != own


@pytest.mark.parametrize("revision", REVISIONS)
async def test_tool_call_continues_after_the_client_has_opened_the_login_page(
    setup: Setup, revision: str
) -> None:
    asked: list[Any] = []

    async def open_page(_context: Any, params: Any) -> Any:
        from mcp_types import ElicitResult

        asked.append(params)
        answer = await asyncio.to_thread(UserBrowser().log_in, params.url, setup.tokens["ann"])
        assert answer.status_code == 200, answer.text
        return ElicitResult(action="accept")

    text = await setup.one.call(setup.tokens["ann"], revision=revision, elicitation_callback=open_page)
    assert text == "5"
    assert [each.mode for each in asked] == ["url"]
    assert "'notes'" in asked[0].message
    assert LINK.fullmatch(asked[0].url)


async def test_tool_call_fails_if_the_user_declines_to_log_in(setup: Setup) -> None:
    async def decline(_context: Any, _params: Any) -> Any:
        from mcp_types import ElicitResult

        return ElicitResult(action="decline")

    text = await setup.one.call(setup.tokens["ann"], elicitation_callback=decline)
    assert "was declined" in text
    assert setup.tokens_of_calls() == []


async def test_login_link_is_refused_without_a_token_of_its_user(setup: Setup) -> None:
    link = await setup.get_link("ann")
    thief = UserBrowser()
    stranger = setup.one.toolfold("token", "add", f"stranger-{time.monotonic_ns()}").split()[-1]
    for token in ("", "wrong", setup.tokens["bob"], stranger):
        answer = thief.send_token(link, token)
        assert (answer.status_code, "location" in answer.headers) == (403, False), token
    assert setup.there.auth_server.requests_to("/authorize") == []
    assert UserBrowser().log_in(link, setup.tokens["ann"]).status_code == 200  # it was not used up
    assert setup.stored_token("ann")


async def test_login_link_can_be_used_only_once(setup: Setup) -> None:
    link = await setup.get_link("ann")
    browser = UserBrowser()
    assert browser.send_token(link, setup.tokens["ann"]).status_code == 303
    assert browser.send_token(link, setup.tokens["ann"]).status_code == 404
    assert browser.open(link).status_code == 404
    assert browser.open(link[:-1] + "x").status_code == 404


async def test_browser_can_complete_two_concurrent_logins(setup: Setup) -> None:
    browser = UserBrowser()
    callbacks = []
    for name in ("ann", "bob"):
        link = await setup.get_link(name)
        callbacks.append(browser.follow_to_callback(browser.send_token(link, setup.tokens[name])))
    assert [browser.open(each).status_code for each in callbacks] == [200, 200]
    assert setup.stored_token("ann") != setup.stored_token("bob") != ""


async def test_login_link_becomes_invalid_after_too_many_wrong_tokens_but_links_of_other_users_do_not(
    setup: Setup,
) -> None:
    of_ann, of_bob = await setup.get_link("ann"), await setup.get_link("bob")
    browser = UserBrowser()
    statuses = [browser.send_token(of_ann, "wrong").status_code for _ in range(12)]
    assert statuses == [403] * 10 + [404] * 2
    assert browser.send_token(of_ann, setup.tokens["ann"]).status_code == 404
    assert browser.send_token(of_bob, setup.tokens["bob"]).status_code == 303


async def test_login_form_submitted_by_another_website_is_refused(setup: Setup) -> None:
    link = await setup.get_link("ann")
    for origin in ("https://evil.example", "null", ""):
        assert UserBrowser().send_token(link, setup.tokens["ann"], origin).status_code == 403
    answer = httpx2.get(link, headers={"Host": "evil.example"})
    assert answer.status_code == 421


async def test_login_page_has_a_referrer_policy_with_which_browsers_send_the_origin_header(
    setup: Setup,
) -> None:
    # By the Fetch standard a form of a page with `no-referrer` is sent with `Origin: null`.
    page = UserBrowser().open(await setup.get_link("ann"))
    assert page.headers["referrer-policy"] == "same-origin"


async def test_redirect_with_a_wrong_or_reused_state_or_from_another_browser_is_refused(
    setup: Setup,
) -> None:
    link = await setup.get_link("ann")
    browser = UserBrowser()
    callback = browser.follow_to_callback(browser.send_token(link, setup.tokens["ann"]))
    parts = urlsplit(callback)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    base = f"{parts.scheme}://{parts.netloc}{parts.path}"
    assert UserBrowser().open(callback).status_code == 403  # a browser that did not start the login
    for changed in ({**query, "state": "foreign"}, {"code": query["code"]}, {**query, "state": ""}):
        assert browser.open(base, params=changed).status_code == 403
    assert browser.open(f"{callback}&state={query['state']}").status_code == 403
    assert setup.stored_token("ann") == ""
    assert browser.open(callback).status_code == 200
    first = setup.stored_token("ann")
    assert first
    assert browser.open(callback).status_code == 403
    assert setup.stored_token("ann") == first


async def test_oauth_redirect_of_one_user_is_refused_in_the_browser_of_another_user(setup: Setup) -> None:
    browsers = {name: UserBrowser() for name in ("ann", "bob")}
    callbacks = {}
    for name, browser in browsers.items():
        link = await setup.get_link(name)
        callbacks[name] = browser.follow_to_callback(browser.send_token(link, setup.tokens[name]))
    assert browsers["bob"].open(callbacks["ann"]).status_code == 403
    assert browsers["ann"].open(callbacks["ann"]).status_code == 200
    assert setup.stored_token("bob") == ""
    assert browsers["bob"].open(callbacks["bob"]).status_code == 200
    assert setup.stored_token("ann") != setup.stored_token("bob") != ""


async def test_login_sends_a_pkce_challenge_and_hides_tokens_from_the_browser(setup: Setup) -> None:
    link = await setup.get_link("ann")
    browser = UserBrowser()
    start = browser.send_token(link, setup.tokens["ann"])
    query = parse_qs(urlsplit(start.headers["location"]).query)
    assert query["code_challenge_method"] == ["S256"]
    assert query["redirect_uri"] == [f"{setup.one.origin}/ui/mcp-login/callback"]
    assert setup.tokens["ann"] not in start.headers["location"]
    page = browser.open(browser.follow_to_callback(start))
    assert page.status_code == 200
    assert setup.stored_token("ann") not in page.text + repr(page.headers)
    exchange = setup.there.auth_server.requests_to("/token")[-1]
    assert len(exchange.form["code_verifier"]) >= 43


async def test_concurrent_calls_on_two_replicas_refresh_an_expired_token_only_once(
    setup: Setup,
) -> None:
    await setup.log_in("ann")
    assert await setup.one.call(setup.tokens["ann"]) == await setup.two.call(setup.tokens["ann"]) == "5"
    for _ in range(3):
        setup.there.auth_server.requests.clear()
        setup.there.issuer.expire()
        calls = [each.call(setup.tokens["ann"]) for each in (setup.one, setup.two) * 3]
        assert await asyncio.gather(*calls) == ["5"] * 6
        grants = [each.form["grant_type"] for each in setup.there.auth_server.requests_to("/token")]
        assert grants.count("refresh_token") == 1


async def test_user_gets_a_new_login_link_after_the_issuer_has_revoked_the_login(setup: Setup) -> None:
    await setup.log_in("ann")
    assert await setup.one.call(setup.tokens["ann"]) == "5"
    setup.there.issuer.expire()
    setup.there.issuer.refuses = "renewal"
    text = await setup.one.call(setup.tokens["ann"])
    assert LINK.search(text), text
    setup.there.issuer.refuses = ""
    UserBrowser().log_in(LINK.findall(text)[0], setup.tokens["ann"])
    assert await setup.one.call(setup.tokens["ann"]) == "5"


async def test_login_row_copied_to_another_user_in_the_database_is_not_used(setup: Setup) -> None:
    await setup.log_in("ann")
    setup.database.execute(
        "INSERT INTO logins SELECT %s, server, name, value, updated FROM logins WHERE user_id = %s",
        (setup.users["bob"], setup.users["ann"]),
    )
    text = await setup.one.call(setup.tokens["bob"])
    assert "log in" in text.lower()
    assert setup.tokens_of_calls() == []


async def test_login_of_a_user_is_listed_without_its_tokens_and_can_be_removed(setup: Setup) -> None:
    await setup.log_in("ann")
    listed = setup.two.toolfold("credentials", "list", "--user", "ann")
    assert "(login)" in listed
    assert setup.stored_token("ann") not in listed
    assert "logged out" in setup.two.toolfold("mcp", "logout", "notes", "--user", "ann")
    assert "requires your own login" in await setup.one.call(setup.tokens["ann"])
    await setup.log_in("ann")
    setup.one.toolfold("credentials", "remove", "notes", "(login)", "--user", "ann")
    assert setup.stored_token("ann") == ""


async def test_administrator_can_log_in_on_behalf_of_a_user_with_a_command(setup: Setup) -> None:
    command = [sys.executable, "-m", "toolfold", "mcp", "login", "notes", "--user", "bob", "--no-browser"]
    process = await asyncio.create_subprocess_exec(
        *command,
        env=environment(setup.one.home),
        cwd=setup.one.home,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    shown = ""
    async with asyncio.timeout(TIMEOUT_S):
        while not (found := re.search(r"(http://127\S+/authorize\S+)\s", shown)):
            shown += (await process.stderr.read(1_000)).decode()
        await asyncio.to_thread(_follow_redirects, found[1])
        output, _ = await process.communicate()
    assert "logged in to notes for bob" in output.decode()
    assert await setup.two.call(setup.tokens["bob"]) == "5"
    assert setup.tokens_of_calls() == [setup.stored_token("bob")]
    assert setup.stored_token("ann") == ""


async def test_removing_a_user_deletes_the_login_and_invalidates_login_links(setup: Setup) -> None:
    setup.add_user("carl")
    await setup.log_in("carl")
    setup.credentials.remove(setup.users["carl"])
    link_of_carl = await setup.get_link("carl")
    await setup.log_in("carl")
    setup.one.toolfold("user", "remove", "carl", "--yes")
    assert setup.database.query("SELECT * FROM logins WHERE user_id = %s", (setup.users["carl"],)) == []
    assert UserBrowser().send_token(link_of_carl, setup.tokens["carl"]).status_code == 404


def test_all_replicas_list_the_tools_of_a_server_after_a_shared_login(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    key = make_key()
    with ExitStack() as stack:
        there = stack.enter_context(run_oauth_setup())
        url = postgres.create_database()
        settings = {
            "store": url,
            "mcp": {"servers": {"notes": {"url": there.url, "trust": "off"}}},
            "tools": {"rag_embed_model": "light"},
        }
        replicas = []
        for name in ("one", "two"):
            write_settings(tmp_path / name, settings)
            (tmp_path / name / "credentials.key").write_text(key)
            (tmp_path / name / "credentials.key").chmod(0o600)
            replicas.append(Replica(tmp_path / name, stack.enter_context(gateway_process(tmp_path / name))))
        database = open_database(url)
        assert database is not None
        stack.callback(database.close)
        keys = load_keys(key, tmp_path, may_create=False)
        store = SharedCredentialStore(database, lambda: keys)
        settings_of_server = parse_server_settings({"url": there.url})
        logins = EncryptedLoginStore(lambda: store, OWNER)
        asyncio.run(log_in("notes", settings_of_server, logins, environment={}, open_url=_follow_redirects))

        async def count_tools(replica: Replica) -> int:
            async with Client(replica.gateway.url, mode="legacy") as client:
                return sum(each.name == "notes_add" for each in (await client.list_tools()).tools)

        end = time.monotonic() + TIMEOUT_S
        while [asyncio.run(count_tools(each)) for each in replicas] != [1, 1]:
            assert time.monotonic() < end
            time.sleep(0.2)


async def test_users_can_log_in_at_a_gateway_without_a_database(tmp_path: Path) -> None:
    with run_oauth_setup() as there:
        server = {"url": there.url, "credentials": "per-user", "trust": "off"}
        write_settings(tmp_path, {"mcp": {"servers": {"notes": server}, "wait_seconds": 60.0}})
        await log_in(
            "notes",
            parse_server_settings(server),
            tmp_path / "state" / "oauth",
            environment={},
            open_url=_follow_redirects,
        )
        with gateway_process(tmp_path) as gateway:
            replica = Replica(tmp_path, gateway)
            tokens = {}
            for name in ("ann", "bob"):
                replica.toolfold("user", "add", name)
                tokens[name] = replica.toolfold("token", "add", name, "--user", name).split()[-1]
            link = LINK.findall(await replica.call(tokens["ann"]))[0]
            assert UserBrowser().send_token(link, tokens["bob"]).status_code == 403
            assert UserBrowser().log_in(link, tokens["ann"]).status_code == 200
            assert await replica.call(tokens["ann"]) == "5"
            assert LINK.search(await replica.call(tokens["bob"]))
            there.issuer.expire()
            assert await replica.call(tokens["ann"]) == "5"
            replica.toolfold("user", "remove", "ann", "--yes")
            assert "(login)" not in replica.toolfold("credentials", "list", "--json")


def test_login_command_without_encryption_keys_fails_before_the_browser_opens(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{free_port()}/mcp"
    write_settings(
        tmp_path, {"store": postgres.create_database(), "mcp": {"servers": {"notes": {"url": url}}}}
    )
    done = subprocess.run(
        [sys.executable, "-m", "toolfold", "mcp", "login", "notes", "--no-browser"],
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode != 0
    assert "keys that encrypt stored credentials cannot be read" in done.stderr
