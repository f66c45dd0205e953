"""Servers and settings that change while the gateway runs take effect for its clients."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from tests.gateway.harness import REVISIONS, TIMEOUT_S, fault_server, result_text, serve_gateway

both_revisions = pytest.mark.parametrize("revision", REVISIONS)


async def tool_names(client: Client) -> list[str]:
    return [tool.name for tool in (await client.list_tools()).tools]


class ListChanges:
    """Counts the notifications that the list of tools has changed."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, message: Any) -> None:
        self.count += type(message).__name__.startswith("ToolListChanged")

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while self.count < count:  # noqa: ASYNC110 - a condition of another task
                await asyncio.sleep(0.02)


@both_revisions
async def test_server_added_to_the_settings_is_listed_and_callable_for_connected_clients(
    tmp_path: Path, revision: str
) -> None:
    with serve_gateway(tmp_path, {"one": fault_server()}) as served:
        async with served.client(revision) as client:
            assert await tool_names(client) == ["one_echo"]
            await asyncio.to_thread(served.runtime.mcp.add, "two", fault_server("--resources", "2"))
            assert await tool_names(client) == ["one_echo", "two_echo"]
            assert result_text(await client.call_tool("two_echo", {"text": "hello"})) == "hello"
            resources = (await client.list_resources()).resources
            assert resources
            assert all(str(each.uri).startswith("two+") for each in resources)
            served.runtime.mcp.remove("two")
            assert await tool_names(client) == ["one_echo"]
            assert (await client.call_tool("two_echo", {"text": "hello"})).is_error
            assert (await client.list_resources()).resources == []


async def test_only_clients_whose_tool_list_has_changed_are_notified(tmp_path: Path) -> None:
    with serve_gateway(tmp_path, {"one": fault_server()}) as served:
        token = served.tokens.add("narrow", ["mcp-one"])
        wide, narrow = ListChanges(), ListChanges()
        async with (
            served.client("legacy", message_handler=wide) as wide_client,
            served.client("legacy", message_handler=narrow, token=token) as narrow_client,
        ):
            await tool_names(wide_client)
            await tool_names(narrow_client)
            await asyncio.to_thread(served.runtime.mcp.add, "two", fault_server())
            await wide.wait_for(1)
            served.runtime.mcp.remove("two")
            await wide.wait_for(2)
            assert await tool_names(narrow_client) == ["one_echo"]
            assert (wide.count, narrow.count) == (2, 0)
