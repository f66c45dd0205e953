"""Real MCP clients log in at a real identity provider and call tools through the gateway."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from tests.gateway.gateway_process import GatewayProcess, gateway_process, write_settings
from tests.gateway.harness import fault_server, free_port, result_text
from tests.identity.issuer_server import IssuerServer, serve_issuer
from tests.identity.provider import find_node, log_in, run_provider
from tests.identity.test_access_tokens import HEADERS, INITIALIZE
from toolfold import load_config
from toolfold.serving.gateway.client_tokens import open_tokens
from toolfold.state.users import UserStore

pytestmark = pytest.mark.clients

REDIRECT_URI = "http://127.0.0.1:1/callback"  # nothing listens there: the test reads the redirect itself


@dataclass
class MemoryStorage:
    """Tokens and registration of one OAuth client."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


@dataclass
class Browser:
    """Logs in at the provider as one subject, in place of a person with a browser."""

    subject: str
    redirect: str = ""
    authorization_urls: list[str] = field(default_factory=list)

    async def open(self, url: str) -> None:
        self.authorization_urls.append(url)
        self.redirect = await log_in(url, self.subject, REDIRECT_URI)

    async def read_code(self) -> Any:
        from mcp.client.auth import AuthorizationCodeResult

        query = {name: values[0] for name, values in parse_qs(urlsplit(self.redirect).query).items()}
        return AuthorizationCodeResult(code=query["code"], state=query.get("state"), iss=query.get("iss"))


@dataclass
class Setup:
    issuer: str
    gateway: GatewayProcess
    users: UserStore
    models: IssuerServer
    """Stands for a model provider; records the headers that it gets."""

    @asynccontextmanager
    async def client(self, browser: Browser, storage: MemoryStorage | None = None) -> AsyncIterator[Client]:
        """Connect the SDK's client, whose OAuth support does everything but the login form."""
        metadata = OAuthClientMetadata(
            redirect_uris=[AnyUrl(REDIRECT_URI)], client_name="test", token_endpoint_auth_method="none"
        )
        auth = OAuthClientProvider(
            self.gateway.url, metadata, storage or MemoryStorage(), browser.open, browser.read_code
        )
        async with (
            httpx2.AsyncClient(auth=auth, timeout=60) as http,
            Client(streamable_http_client(self.gateway.url, http_client=http)) as client,
        ):
            yield client


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    home, port = tmp_path_factory.mktemp("home"), free_port()
    with run_provider() as issuer, serve_issuer() as models:
        models.replies["/v1/models"] = 200, {"Content-Type": "application/json"}, b'{"data": []}'
        write_settings(
            home,
            {
                "gateway": {
                    "oauth": {
                        "issuer": issuer,
                        "resource": f"http://127.0.0.1:{port}/mcp",
                        "required_scopes": ["toolfold"],
                        "create_users": True,
                        "default_team": "everyone",
                    }
                },
                "mcp": {"servers": {"one": fault_server()}, "wait_seconds": 60.0},
                "providers": {"openai": {"dialect": "openai", "base_url": f"{models.url}/v1"}},
            },
        )
        users = open_tokens(load_config(env={"TOOLFOLD_HOME": str(home)}), None).users
        users.add_team("everyone")
        with gateway_process(home, "--port", str(port)) as gateway:
            yield Setup(issuer, gateway, users, models)


async def test_python_sdk_client_calls_a_gateway_tool_after_registration_and_login_at_the_issuer(
    setup: Setup,
) -> None:
    browser, storage = Browser("alice"), MemoryStorage()
    async with setup.client(browser, storage) as client:
        assert [each.name for each in (await client.list_tools()).tools] == ["one_echo"]
        assert result_text(await client.call_tool("one_echo", {"text": "hello"})) == "hello"
    sent = parse_qs(urlsplit(browser.authorization_urls[0]).query)
    assert sent["code_challenge_method"] == ["S256"]
    assert sent["resource"] == [setup.gateway.url]
    assert "toolfold" in sent["scope"][0].split()
    user = setup.users.find_identity(setup.issuer, "alice")
    assert user is not None
    assert not user.is_admin
    assert [team.name for team in setup.users.directory().list_teams(user.id)] == ["everyone"]


async def test_requests_with_an_access_token_are_limited_by_the_access_rules_of_its_user(
    setup: Setup,
) -> None:
    storage = MemoryStorage()
    async with setup.client(Browser("limited"), storage) as client:
        assert (await client.list_tools()).tools
    user = setup.users.find_identity(setup.issuer, "limited")
    assert user is not None
    setup.users.change_user(user.name, lambda each: replace(each, denied=("mcp-one",)))
    async with setup.client(Browser("limited"), storage) as client:
        assert (await client.list_tools()).tools == []
        assert (await client.call_tool("one_echo", {"text": "hello"})).is_error
    setup.users.set_disabled(user.name, True)
    assert storage.tokens is not None
    assert await initialize(setup.gateway.url, storage.tokens.access_token) == 403
    log = (setup.gateway.log.parent / "state" / "gateway" / "gateway.log").read_text()
    assert f"is disabled (issuer {setup.issuer}, subject 'limited')" in log


async def test_typescript_sdk_client_calls_a_gateway_tool_after_registration_and_login_at_the_issuer(
    setup: Setup,
) -> None:
    packages = Path(sys.prefix, "test_tools/mcp/node")
    if not (packages / "node_modules/@modelcontextprotocol/sdk").exists():
        pytest.skip("the TypeScript SDK is not installed: run `make test-tools`")
    script = Path(__file__).with_name("oauth_client.mjs")
    process = await asyncio.create_subprocess_exec(
        *(find_node(), str(script), str(packages), setup.gateway.url, REDIRECT_URI),
        *("one_echo", json.dumps({"text": "hello"})),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().strip()
        process.stdin.write(f"{await log_in(url, 'typescript', REDIRECT_URI)}\n".encode())
        result = json.loads(await process.stdout.readline())
        assert result == [{"type": "text", "text": "hello"}]
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_access_token_issued_for_another_service_by_a_real_identity_provider_is_refused(
    setup: Setup,
) -> None:
    """A token that the same provider issued for another service must not open this gateway."""
    token = await fetch_token(setup.issuer, "https://other.example/mcp")
    assert await initialize(setup.gateway.url, token) == 401
    assert await initialize(setup.gateway.url, await fetch_token(setup.issuer, setup.gateway.url)) == 200


async def test_model_proxy_accepts_an_access_token_and_does_not_forward_it_to_the_model_provider(
    setup: Setup,
) -> None:
    url = setup.gateway.url.removesuffix("/mcp") + "/v1/models"
    token = await fetch_token(setup.issuer, setup.gateway.url)
    foreign = await fetch_token(setup.issuer, "https://other.example/mcp")
    async with httpx2.AsyncClient(timeout=60) as http:
        for refused in ({"x-toolfold-token": foreign}, {"Authorization": f"Bearer {foreign}"}, {}):
            response = await http.get(url, headers=refused)
            assert response.status_code == 401
            assert "/.well-known/oauth-protected-resource" in response.headers["www-authenticate"]
        assert setup.models.headers == []
        both = {"x-toolfold-token": token, "Authorization": f"Bearer {foreign}"}
        for accepted in ({"Authorization": f"Bearer {token}"}, {"x-toolfold-token": token}, both):
            assert (await http.get(url, headers=accepted)).status_code == 200
    sent = setup.models.headers
    assert token not in repr(sent)
    assert [each.get("authorization") for each in sent] == [None, None, f"Bearer {foreign}"]


async def fetch_token(issuer: str, resource: str) -> str:
    """Register a client, log in as `alice` and return an access token for a resource."""
    verifier = secrets.token_urlsafe(48)
    digest = hashlib.sha256(verifier.encode()).digest()
    async with httpx2.AsyncClient(timeout=60) as http:
        wanted = {"redirect_uris": [REDIRECT_URI], "token_endpoint_auth_method": "none"}
        client_id = (await http.post(f"{issuer}/reg", json=wanted)).json()["client_id"]
        query = {
            "response_type": "code",
            "client_id": client_id,
            "redirect_uri": REDIRECT_URI,
            "scope": "toolfold",
            "resource": resource,
            "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        redirect = await log_in(f"{issuer}/auth?{urlencode(query)}", "alice", REDIRECT_URI)
        code = parse_qs(urlsplit(redirect).query)["code"][0]
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": REDIRECT_URI}
        form |= {"client_id": client_id, "code_verifier": verifier, "resource": resource}
        return str((await http.post(f"{issuer}/token", data=form)).json()["access_token"])


async def initialize(url: str, token: str) -> int:
    """Return the status of a request that opens an MCP session with a token."""
    async with httpx2.AsyncClient(timeout=60) as http:
        headers = {**HEADERS, "Authorization": f"Bearer {token}"}
        return (await http.post(url, json=INITIALIZE, headers=headers)).status_code
