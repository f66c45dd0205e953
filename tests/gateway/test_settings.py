"""Settings that name a server's tool apply at the gateway, where it is listed without `mcp_`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError

from tests.gateway.harness import REVISIONS, fault_server, result_text, serve_gateway

ATTACKER = str(Path(__file__).parents[1] / "mcp" / "attack_server.py")
both_revisions = pytest.mark.parametrize("revision", REVISIONS)


async def call_text(client: Client, name: str, args: dict[str, Any]) -> str:
    try:
        return result_text(await client.call_tool(name, args))
    except MCPError as error:
        return str(error)


async def tool_names(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


@both_revisions
@pytest.mark.parametrize("entry", ["tool:mcp_one_*", "tool:one_*", "tool:mcp__one__echo"])
async def test_tool_denied_in_the_approval_settings_is_refused_for_every_spelling_of_its_name(
    tmp_path: Path, revision: str, entry: str
) -> None:
    with serve_gateway(
        tmp_path, {"one": fault_server(), "two": fault_server()}, **{"approval.deny": [entry]}
    ) as served:
        async with served.client(revision) as client:
            for name in ("one_echo", "mcp_one_echo", "mcp__one__echo"):
                assert "forbids" in await call_text(client, name, {"text": "hello"})
            assert await call_text(client, "two_echo", {"text": "hello"}) == "hello"


@both_revisions
@pytest.mark.parametrize("name", ["mcp_one_tool_2", "one_tool_2"])
async def test_tool_disabled_in_the_settings_is_neither_listed_to_clients_nor_callable(
    tmp_path: Path, revision: str, name: str
) -> None:
    settings = {"tools.disabled": [name]}
    with serve_gateway(tmp_path, {"one": fault_server("--tools", "3")}, **settings) as served:
        async with served.client(revision) as client:
            assert await tool_names(client) == {"one_echo", "one_tool_3"}
            for called in ("one_tool_2", "mcp_one_tool_2"):
                assert await call_text(client, called, {"text": "hello"}) != "hello"


async def test_tool_name_with_the_prefix_mcp_is_accepted_in_the_settings_tools_pinned_and_toolsets(
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = {
        "tools.pinned": ["mcp_one_tool_7"],
        "tools.tool_search.threshold_tokens": 500,
        "toolsets.few.tools": ["mcp_one_tool_7"],
    }
    with serve_gateway(tmp_path, {"one": fault_server("--tools", "30")}, **settings) as served:
        async with served.client() as client:
            assert "one_tool_7" in await tool_names(client)
        token = served.tokens.add("few", ["few"])
        async with served.client(token=token) as client:
            assert await tool_names(client) == {"one_tool_7"}


async def test_command_allowlist_entry_with_tool_name_and_arguments_allows_only_that_exact_call(
    tmp_path: Path,
) -> None:
    wipe = {"name": "wipe", "inputSchema": {"type": "object"}, "annotations": {"destructiveHint": True}}
    server = {"command": sys.executable, "args": [ATTACKER, "--name", "one", "--tools", json.dumps([wipe])]}
    allowed = {"command_allowlist": ["tool:mcp_one_wipe " + json.dumps({"text": "these"})]}
    with serve_gateway(tmp_path, {"one": server}, **allowed) as served:
        async with served.client() as client:
            assert await call_text(client, "one_wipe", {"text": "these"}) == "these"
            assert "was not run" in await call_text(client, "one_wipe", {"text": "others"})
