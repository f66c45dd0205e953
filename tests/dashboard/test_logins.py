"""Users log in to the dashboard at a real identity provider, with a real browser."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx2
import pytest

from tests.gateway.gateway_process import GatewayProcess, gateway_process, write_settings
from tests.gateway.harness import free_port
from tests.identity.provider import log_in, run_provider
from toolfold import load_config
from toolfold.serving.dashboard.dashboard import Dashboard
from toolfold.serving.dashboard.dashboard_app import _ADMINISTRATORS_ONLY as ANSWER
from toolfold.serving.dashboard.dashboard_app import MAX_QUERY_FIELDS
from toolfold.serving.dashboard.recorder import HISTORY_FILE
from toolfold.serving.gateway.client_tokens import TokenStore, open_tokens
from toolfold.state.store.usage import SqliteUsageStore, UsageEntry
from toolfold.state.users import UserStore

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@dataclass
class Setup:
    """A gateway whose dashboard accepts logins, and the provider."""

    issuer: str
    gateway: GatewayProcess
    tokens: TokenStore
    tokens_home: Path

    @property
    def users(self) -> UserStore:
        return self.tokens.users

    def sign_in(self, client: httpx2.Client, subject: str) -> str:
        """Log in as a subject in a browser, and return the page key."""
        page = urljoin(self.url, self.log_in(client, subject).headers["location"])
        return str(self.open_session(client, page).json()["page_key"])

    @property
    def url(self) -> str:
        return self.gateway.url.removesuffix("mcp") + "ui/"

    def start(self, client: httpx2.Client) -> str:
        """Start a login in a browser; return the URL of the provider's login page."""
        response = client.get(f"{self.url}oidc/login")
        assert response.status_code == 303
        return response.headers["location"]

    def log_in(self, client: httpx2.Client, subject: str) -> httpx2.Response:
        """Log in as a subject, and return the answer to the provider's redirect back."""
        return client.get(self.authorize(self.start(client), subject))

    def authorize(self, login_page: str, subject: str) -> str:
        """Return the URL to which the provider redirects back after a login."""
        coroutine = log_in(login_page, subject, f"{self.url}oidc/callback")
        with ThreadPoolExecutor(1) as pool:  # the browser of the module runs an event loop in this thread
            return pool.submit(asyncio.run, coroutine).result(120)

    def open_session(self, client: httpx2.Client, page: str) -> httpx2.Response:
        """Exchange the one-time code in the URL of the page, as the page does it."""
        code = parse_qs(urlsplit(page).fragment)["login"][0]
        origin = self.url.removesuffix("/ui/")
        return client.post(f"{self.url}api/login", json={"code": code}, headers={"origin": origin})


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    home, port = tmp_path_factory.mktemp("home"), free_port()
    url = f"http://127.0.0.1:{port}/ui/"
    with run_provider(f"{url}oidc/callback") as issuer:
        oidc = {
            "issuer": issuer,
            "client_id": "dashboard",
            "client_secret": "test-only-client-credential",
            "url": url,
            "scopes": ["profile", "groups"],
            "admin_groups": ["admins"],
            "teams": {"dev": "developers"},
            "create_users": True,
        }
        write_settings(home, {"dashboard": {"oidc": oidc}, "mcp": {"enabled": False}})
        config = load_config(env={"TOOLFOLD_HOME": str(home)})
        with gateway_process(home, "--port", str(port)) as gateway:
            yield Setup(issuer, gateway, open_tokens(config, None), home)


@pytest.fixture
def client() -> Iterator[httpx2.Client]:
    with httpx2.Client(timeout=60, follow_redirects=False) as running:
        yield running


@pytest.fixture
def other_client() -> Iterator[httpx2.Client]:
    with httpx2.Client(timeout=60, follow_redirects=False) as running:
        yield running


@pytest.mark.clients
def test_administrator_can_log_in_to_the_dashboard_through_an_identity_provider_and_sign_out(
    setup: Setup, browser: Browser
) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(60_000)
    try:
        page.goto(setup.url)
        page.get_by_role("link", name="Log in").click()
        page.locator("input[name=login]").fill("ann+admins+dev")
        page.locator("input[name=password]").fill("any")
        page.get_by_role("button", name="Sign-in").click()
        page.get_by_role("button", name="Continue").click()
        page.get_by_role("heading", name="Overview").wait_for()
        assert "login=" not in page.url
        cookies = {each["name"]: each for each in context.cookies(setup.url)}
        name = f"toolfold_{setup.gateway.port}"
        assert cookies[name]["httpOnly"]
        assert cookies[name]["sameSite"] == "Strict"
        assert f"{name}_login" not in cookies
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url(f"{setup.issuer}/**")
        page.goto(setup.url)
        page.get_by_role("heading", name="Sign in to Toolfold").wait_for()
    finally:
        context.close()
    user = setup.users.find_identity(setup.issuer, "ann+admins+dev")
    assert user is not None
    assert user.is_admin
    assert [team.name for team in setup.users.directory().list_teams(user.id)] == ["developers"]


@pytest.mark.clients
def test_dashboard_of_a_non_administrator_shows_only_the_activity_of_that_user(
    setup: Setup, browser: Browser
) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(60_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    try:
        page.goto(setup.url)
        page.get_by_role("link", name="Log in").click()
        page.locator("input[name=login]").fill("gina+dev")
        page.locator("input[name=password]").fill("any")
        page.get_by_role("button", name="Sign-in").click()
        page.get_by_role("button", name="Continue").click()
        page.get_by_role("heading", name="Your activity").wait_for()
        page.get_by_text("Teams: developers").wait_for()
        assert page.get_by_role("link", name="Servers").count() == 0
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url(f"{setup.issuer}/**")
    finally:
        context.close()
    assert problems == []


def list_routes() -> Iterator[tuple[str, str]]:
    """Yield method and path of every request that the page can make after it has signed in."""
    dashboard = Dashboard.__new__(Dashboard)  # the routes do not depend on a runtime
    admin: Any = None
    yield from (("GET", name) for name in (*dashboard._list_reads(admin), "events"))
    yield from (("POST", name) for name in dashboard._list_writes(admin))


def test_non_administrator_gets_403_for_every_route_except_the_activity_of_the_user(
    setup: Setup, client: httpx2.Client
) -> None:
    key = setup.sign_in(client, "bob+dev")
    headers = {"x-toolfold-page-key": key, "origin": setup.url.removesuffix("/ui/")}
    routes = list(list_routes())
    assert len(routes) > 25
    for method, name in routes:
        body = {"name": "x", "change": "enable"} if method == "POST" else None
        answer = client.request(method, f"{setup.url}api/{name}", headers=headers, json=body)
        assert answer.status_code == 403, name
        assert answer.json() == {"error": ANSWER}
    for method in ("POST", "PUT", "DELETE"):
        assert client.request(method, f"{setup.url}api/own", headers=headers).status_code >= 400
    assert client.get(f"{setup.url}api/own", headers=headers).json()["user"].startswith("bob")
    hello = client.get(f"{setup.url}api/hello", headers=headers).json()
    assert hello["signed_in"]
    assert hello["is_limited"]


def test_dashboard_of_a_user_shows_neither_tokens_nor_calls_nor_usage_of_other_users(
    setup: Setup, client: httpx2.Client, other_client: httpx2.Client
) -> None:
    pages = {name: setup.sign_in(each, name) for name, each in (("dora", client), ("emil", other_client))}
    store = SqliteUsageStore(setup.tokens_home / "state" / HISTORY_FILE)
    for name in pages:
        user = setup.users.find_identity(setup.issuer, name)
        assert user is not None
        setup.users.change_user(user.name, lambda each: replace(each, limits={"calls_per_day": 7.0}))
        setup.tokens.add(f"{name}-laptop", user_id=user.id)
        store.add([UsageEntry(at=time.time(), kind="call", name=f"tool_of_{name}", user_id=user.id)])
    store.add([UsageEntry(at=time.time(), kind="call", name="tool_of_nobody")])
    store.close()
    for name, page, other in (("dora", client, "emil"), ("emil", other_client, "dora")):
        headers = {"x-toolfold-page-key": pages[name]}
        for query in ("", f"?user={other}", f"?user_id={other}&name={other}"):
            answer = page.get(f"{setup.url}api/own{query}", headers=headers)
            found = answer.json()
            assert [each["name"] for each in found["tokens"]] == [f"{name}-laptop"]
            assert [each["name"] for each in found["calls"]] == [f"tool_of_{name}"]
            assert found["day"]["calls"] == 1
            assert found["limits"] == [{"meter": "calls_per_day", "used": 0.0, "limit": 7.0}]
            assert other not in answer.text
            assert "nobody" not in answer.text


def test_user_who_loses_the_administrator_role_gets_403_for_administrator_pages(
    setup: Setup, client: httpx2.Client
) -> None:
    headers = {"x-toolfold-page-key": setup.sign_in(client, "frida+admins")}
    assert client.get(f"{setup.url}api/about", headers=headers).status_code == 200
    user = setup.users.find_identity(setup.issuer, "frida+admins")
    assert user is not None
    setup.users.change_user(user.name, lambda each: replace(each, is_admin=False))
    assert client.get(f"{setup.url}api/about", headers=headers).status_code == 403
    assert client.get(f"{setup.url}api/own", headers=headers).status_code == 200


def test_dashboard_session_ends_when_its_user_is_disabled(setup: Setup, client: httpx2.Client) -> None:
    page = urljoin(setup.url, setup.log_in(client, "carl+admins").headers["location"])
    headers = {"x-toolfold-page-key": setup.open_session(client, page).json()["page_key"]}
    assert client.get(f"{setup.url}api/about", headers=headers).status_code == 200
    user = setup.users.find_identity(setup.issuer, "carl+admins")
    assert user is not None
    setup.users.edit(lambda directory: directory.with_user(replace(user, is_disabled=True)))
    assert client.get(f"{setup.url}api/about", headers=headers).status_code == 401
    assert setup.log_in(client, "carl+admins").status_code == 403


def test_login_redirect_is_refused_in_a_browser_other_than_the_one_that_started_the_login(
    setup: Setup, client: httpx2.Client, other_client: httpx2.Client
) -> None:
    redirect = setup.authorize(setup.start(client), "eve+admins")
    assert other_client.get(redirect).status_code == 403
    setup.start(other_client)
    response = other_client.get(redirect)
    assert response.status_code == 403
    assert "the state differs" in response.text


def test_authorization_code_from_the_login_of_another_browser_is_refused(
    setup: Setup, client: httpx2.Client, other_client: httpx2.Client
) -> None:
    foreign = parse_qs(urlsplit(setup.authorize(setup.start(other_client), "eve+admins")).query)
    own = parse_qs(urlsplit(setup.start(client)).query)
    query: dict[str, Any] = {"state": own["state"][0], "code": foreign["code"][0], "iss": setup.issuer}
    response = client.get(f"{setup.url}oidc/callback", params=query)
    assert response.status_code == 403
    assert "does not accept the code" in response.text


def test_second_use_of_a_login_redirect_or_its_sign_in_code_is_refused(
    setup: Setup, client: httpx2.Client
) -> None:
    redirect = setup.authorize(setup.start(client), "dora+admins")
    page = urljoin(setup.url, client.get(redirect).headers["location"])
    assert client.get(redirect).status_code == 403
    assert setup.open_session(client, page).status_code == 200
    assert setup.open_session(client, page).status_code == 401


def test_sign_in_code_used_in_another_browser_is_refused_and_becomes_invalid(
    setup: Setup, client: httpx2.Client, other_client: httpx2.Client
) -> None:
    page = urljoin(setup.url, setup.log_in(client, "dora+admins").headers["location"])
    assert setup.open_session(other_client, page).status_code == 401
    assert setup.open_session(client, page).status_code == 401


def test_login_gives_the_browser_a_new_session_cookie_and_ends_the_one_it_had(
    setup: Setup, client: httpx2.Client, other_client: httpx2.Client
) -> None:
    name, read = f"toolfold_{setup.gateway.port}", f"{setup.url}api/own"
    client.cookies.set(name, "chosen-by-someone-else", domain="127.0.0.1", path="/ui/")
    first_key = setup.sign_in(client, "hanna")
    first = client.cookies[name]
    assert first != "chosen-by-someone-else"
    second_key = setup.sign_in(client, "hanna")
    second = client.cookies[name]
    assert second != first
    for key in (first_key, second_key):  # both tabs of this browser stay signed in
        assert client.get(read, headers={"x-toolfold-page-key": key}).status_code == 200
        old = {"x-toolfold-page-key": key, "cookie": f"{name}={first}"}
        assert httpx2.get(read, headers=old, timeout=60).status_code == 401


def test_login_in_a_browser_with_the_session_cookie_of_another_user_does_not_join_that_session(
    setup: Setup, client: httpx2.Client, other_client: httpx2.Client
) -> None:
    name, read = f"toolfold_{setup.gateway.port}", f"{setup.url}api/own"
    attacker = {"x-toolfold-page-key": setup.sign_in(other_client, "mallory")}
    client.cookies.set(name, other_client.cookies[name], domain="127.0.0.1", path="/ui/")
    victim = {"x-toolfold-page-key": setup.sign_in(client, "ingrid+admins")}
    assert client.cookies[name] != other_client.cookies[name]
    assert client.get(f"{setup.url}api/about", headers=victim).status_code == 200
    assert client.get(read, headers=attacker).status_code == 401
    assert other_client.get(read, headers=victim).status_code == 401
    assert other_client.get(f"{setup.url}api/about", headers=attacker).status_code == 403


HOSTILE_ADDRESSES = ("https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:alert(1)")
RETURN_NAMES = ("next", "return_to", "redirect_uri", "redirect", "url", "state", "iss", "target")


@pytest.mark.parametrize("address", HOSTILE_ADDRESSES)
def test_login_redirects_only_to_the_identity_provider_and_back_to_the_dashboard(
    setup: Setup, client: httpx2.Client, address: str
) -> None:
    named = dict.fromkeys(RETURN_NAMES, address)
    forwarded = {"x-forwarded-host": "evil.example", "x-forwarded-proto": "https", "referer": address}
    start = client.get(f"{setup.url}oidc/login", params=named, headers=forwarded)
    target = urlsplit(start.headers["location"])
    assert f"{target.scheme}://{target.netloc}" == setup.issuer
    assert parse_qs(target.query)["redirect_uri"] == [f"{setup.url}oidc/callback"]
    redirect = setup.authorize(start.headers["location"], "dora+admins")
    others = {each: address for each in RETURN_NAMES if each not in ("state", "iss")}
    answer = client.get(httpx2.URL(redirect).copy_merge_params(others), headers=forwarded)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/ui/#login=")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:80@127.0.0.1"])
def test_login_for_another_host_is_refused(setup: Setup, client: httpx2.Client, host: str) -> None:
    for path in ("oidc/login", "oidc/callback?state=a&code=b"):
        answer = client.get(f"{setup.url}{path}", headers={"host": host})
        assert answer.status_code in (400, 421)
        assert "location" not in answer.headers


def test_login_with_a_modified_cookie_is_refused(setup: Setup, client: httpx2.Client) -> None:
    redirect = setup.authorize(setup.start(client), "dora+admins")
    name = f"toolfold_{setup.gateway.port}_login"
    for value in (client.cookies[name] + "0", "x", "1.2.3.4.5", ""):
        response = httpx2.get(redirect, headers={"Cookie": f"{name}={value}"}, timeout=60)
        assert response.status_code == 403


def test_login_redirect_with_a_repeated_query_parameter_is_refused(
    setup: Setup, client: httpx2.Client
) -> None:
    redirect = setup.authorize(setup.start(client), "dora+admins")
    assert client.get(f"{redirect}&state=x").status_code == 400


def test_login_redirect_with_too_many_query_parameters_is_refused(
    setup: Setup, client: httpx2.Client
) -> None:
    redirect = setup.authorize(setup.start(client), "dora+admins")
    many = "&".join(f"p{number}=1" for number in range(MAX_QUERY_FIELDS))
    assert client.get(f"{redirect}&{many}").status_code == 400
