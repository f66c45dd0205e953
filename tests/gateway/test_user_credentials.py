"""A server with credentials per user gets those of the calling user, in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.gateway.harness import REVISIONS, RunningGateway, result_text, serve_gateway
from tests.mcp.credential_server import Handler
from toolfold.mcp.user_credentials import find_key_file, open_credentials
from toolfold.state.credentials import OWNER, CredentialStore, make_key
from toolfold.state.credentials.keys import read_key_texts, write_keys

SERVER = str(Path(__file__).parents[1] / "mcp" / "credential_server.py")


@dataclass
class Setup:
    """A gateway with a server over stdio and one over HTTP, and two users with credentials for both."""

    gateway: RunningGateway
    credentials: CredentialStore
    tokens: dict[str, str]
    users: dict[str, str]

    async def call(self, user: str, tool: str, revision: str = "legacy") -> str:
        async with self.gateway.client(revision, token=self.tokens[user]) as client:
            return result_text(await client.call_tool(tool, {}))


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    home = tmp_path_factory.mktemp("home")
    with contextlib.ExitStack() as stack:
        web = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=web.serve_forever, args=(0.05,), daemon=True).start()
        stack.callback(web.shutdown)
        servers = {
            "local": {
                "command": sys.executable,
                "args": [SERVER],
                "env": {"TOKEN": "${user:TOKEN:-nobody}"},
                "credentials": "per_user",
                "trust": "off",
            },
            "web": {
                "url": f"http://127.0.0.1:{web.server_port}/mcp",
                "headers": {"X-Token": "${user:TOKEN:-nobody}"},
                "credentials": "per-user",
                "trust": "off",
            },
        }
        gateway = stack.enter_context(serve_gateway(home, servers))
        store = open_credentials(lambda: gateway.runtime.config, None)
        stack.callback(store.close)
        tokens, users = {"stranger": gateway.tokens.add("stranger")}, {}
        for name in ("ann", "bob", "new"):
            users[name] = gateway.tokens.users.add_user(name).id
            tokens[name] = gateway.tokens.add(f"{name}-laptop", user_id=users[name])
            for server in servers if name != "new" else ():
                store.set(users[name], server, "TOKEN", f"secret-of-{name}-{server}")
        yield Setup(gateway, store, tokens, users)


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("server", ["local", "web"])
async def test_mcp_server_receives_the_stored_credentials_of_the_calling_user(
    setup: Setup, server: str, revision: str
) -> None:
    for user in ("ann", "bob", "ann"):
        text = await setup.call(user, f"{server}_whoami", revision)
        assert text.startswith(f"secret-of-{user}-{server} ")


async def test_server_with_per_user_credentials_runs_a_separate_process_for_each_user(
    setup: Setup,
) -> None:
    gateway = setup.gateway
    async with (
        gateway.client(token=setup.tokens["ann"]) as ann,
        gateway.client(token=setup.tokens["bob"]) as bob,
    ):
        texts = [result_text(await each.call_tool("local_whoami", {})) for each in (ann, bob, ann)]
    processes = [text.rpartition(" ")[2] for text in texts]
    assert processes[0] == processes[2] != processes[1]


async def test_client_token_without_a_user_cannot_call_tools_of_a_server_with_per_user_credentials(
    setup: Setup,
) -> None:
    text = await setup.call("stranger", "local_whoami")
    assert "belongs to no user" in text


async def test_call_of_a_user_without_stored_credentials_fails_with_the_command_to_store_credentials(
    setup: Setup,
) -> None:
    text = await setup.call("new", "web_whoami")
    assert "no stored credentials of yours" in text
    assert "toolfold credentials set web" in text


async def test_server_with_per_user_credentials_does_not_show_resources_of_other_users(setup: Setup) -> None:
    setup.credentials.set(OWNER, "web", "TOKEN", "secret-of-owner")
    async with setup.gateway.client(token=setup.tokens["new"]) as client:
        assert "secret-of" not in repr(await client.list_resources())
    async with setup.gateway.client(token=setup.tokens["ann"]) as client:
        await client.call_tool("web_whoami", {})
        listed = await client.list_resources()
        assert [each.name for each in listed.resources if "web" in each.name + str(each.uri)]
        assert "secret-of-owner" not in repr(listed)
        assert "secret-of-bob" not in repr(listed)
        uri = next(str(each.uri) for each in listed.resources if "secret-of-ann-web" in repr(each))
        assert "notes of secret-of-ann-web" in repr(await client.read_resource(uri))


async def test_next_call_uses_changed_credentials_and_is_refused_if_the_credentials_were_removed(
    setup: Setup,
) -> None:
    user_id = setup.users["bob"]
    async with setup.gateway.client(token=setup.tokens["bob"]) as client:
        for server in ("local", "web"):
            tool = f"{server}_whoami"
            assert "secret-of-bob" in result_text(await client.call_tool(tool, {}))
            setup.credentials.set(user_id, server, "TOKEN", "replaced-secret")
            assert result_text(await client.call_tool(tool, {})).startswith("replaced-secret ")
            setup.credentials.remove(user_id, server)
            assert "no stored credentials" in result_text(await client.call_tool(tool, {}))
            setup.credentials.set(user_id, server, "TOKEN", f"secret-of-bob-{server}")


async def test_rotating_the_credential_encryption_key_does_not_interrupt_open_client_sessions(
    setup: Setup,
) -> None:
    config = setup.gateway.runtime.config
    async with setup.gateway.client(token=setup.tokens["ann"]) as client:
        assert "secret-of-ann" in result_text(await client.call_tool("local_whoami", {}))
        file = find_key_file(config)
        write_keys(file, [make_key(), *read_key_texts(file)])
        store = open_credentials(lambda: config, None)
        assert store.rotate() > 0
        write_keys(file, read_key_texts(file)[:1])
        store.close()
        assert "secret-of-ann" in result_text(await client.call_tool("local_whoami", {}))


async def test_server_with_a_missing_credential_starts_after_the_credential_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolfold.mcp.pool.CREDENTIALS_POLL_S", 0.05)
    server = {
        "command": sys.executable,
        "args": [SERVER],
        "env": {"TOKEN": "${user:TOKEN}"},
        "credentials": "per-user",
        "trust": "off",
    }
    with serve_gateway(tmp_path, {"local": server}) as gateway:
        (state,) = gateway.runtime.mcp.states()
        assert "TOKEN" in state.error
        async with gateway.client() as client:
            listed = {tool.name for tool in (await client.list_tools()).tools}
            assert listed <= {"tool_search", "tool_describe", "tool_call"}
            with contextlib.closing(open_credentials(lambda: gateway.runtime.config, None)) as store:
                store.set(OWNER, "local", "TOKEN", "of-the-installation")
            async with asyncio.timeout(60):
                while "local_whoami" not in {  # noqa: ASYNC110
                    tool.name for tool in (await client.list_tools()).tools
                }:
                    await asyncio.sleep(0.05)
