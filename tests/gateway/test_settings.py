"""What settings say of a server's tool holds at the gateway, where the tool is shown without `mcp_`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError

from tests.gateway.harness import ERAS, faulty, serving, words

ATTACKER = str(Path(__file__).parents[1] / "mcp" / "attack_server.py")
both_eras = pytest.mark.parametrize("era", ERAS)


async def said(client: Client, name: str, args: dict[str, Any]) -> str:
    try:
        return words(await client.call_tool(name, args))
    except MCPError as error:
        return str(error)


async def listed(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


@both_eras
@pytest.mark.parametrize("entry", ["tool:mcp_one_*", "tool:one_*", "tool:mcp__one__echo"])
async def test_what_is_forbidden_is_forbidden_by_each_of_its_names(
    tmp_path: Path, era: str, entry: str
) -> None:
    with serving(tmp_path, {"one": faulty(), "two": faulty()}, **{"approval.deny": [entry]}) as served:
        async with served.client(era) as client:
            for name in ("one_echo", "mcp_one_echo", "mcp__one__echo"):
                assert "forbids" in await said(client, name, {"text": "hello"})
            assert await said(client, "two_echo", {"text": "hello"}) == "hello"


@both_eras
@pytest.mark.parametrize("name", ["mcp_one_tool_2", "one_tool_2"])
async def test_what_is_switched_off_is_neither_shown_nor_called(tmp_path: Path, era: str, name: str) -> None:
    settings = {"tools.disabled": [name]}
    with serving(tmp_path, {"one": faulty("--tools", "3")}, **settings) as served:
        async with served.client(era) as client:
            assert await listed(client) == {"one_echo", "one_tool_3"}
            for called in ("one_tool_2", "mcp_one_tool_2"):
                assert await said(client, called, {"text": "hello"}) != "hello"


async def test_pins_and_bundles_know_the_tool(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "tools.pinned": ["mcp_one_tool_7"],
        "tools.tool_search.threshold_tokens": 500,
        "toolsets.few.tools": ["mcp_one_tool_7"],
    }
    with serving(tmp_path, {"one": faulty("--tools", "30")}, **settings) as served:
        async with served.client() as client:
            assert "one_tool_7" in await listed(client)
        token = served.tokens.add("few", ["few"])
        async with served.client(token=token) as client:
            assert await listed(client) == {"one_tool_7"}


async def test_what_may_always_run_is_known_by_the_name_that_settings_have_for_it(tmp_path: Path) -> None:
    wipe = {"name": "wipe", "inputSchema": {"type": "object"}, "annotations": {"destructiveHint": True}}
    server = {"command": sys.executable, "args": [ATTACKER, "--name", "one", "--tools", json.dumps([wipe])]}
    allowed = {"command_allowlist": ["tool:mcp_one_wipe " + json.dumps({"text": "these"})]}
    with serving(tmp_path, {"one": server}, **allowed) as served:
        async with served.client() as client:
            assert await said(client, "one_wipe", {"text": "these"}) == "these"
            assert "was not run" in await said(client, "one_wipe", {"text": "others"})
