"""Servers and settings that change while the gateway runs take effect for its clients."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.gateway.gateway_process import write_settings
from tests.gateway.harness import REVISIONS, fault_server, result_text, serve_gateway, wait_until
from tests.gateway.live_gateway import (
    ListChanges,
    connect_http,
    connect_stdio,
    run_toolfold,
    tool_names,
    wait_for_tools,
)

both_revisions = pytest.mark.parametrize("revision", REVISIONS)


TRANSPORTS = {"stdio": connect_stdio, "http": connect_http}
each_transport = pytest.mark.parametrize("transport", TRANSPORTS)


@both_revisions
async def test_mcp_server_added_to_a_running_gateway_can_be_used_by_connected_clients(
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


async def test_adding_a_server_does_not_notify_clients_without_access_to_the_server(
    tmp_path: Path,
) -> None:
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


@pytest.mark.thorough
@each_transport
async def test_mcp_and_config_commands_change_the_tool_list_of_a_running_gateway(
    tmp_path: Path, transport: str
) -> None:
    home, changes = tmp_path / "home", ListChanges()
    write_settings(home, {"mcp": {"servers": {"one": fault_server("--tools", "2")}, "wait_seconds": 60}})
    added = fault_server("--first", "late")
    async with TRANSPORTS[transport](home, changes) as client:
        await wait_for_tools(client, "one_echo", "one_tool_2")
        seen = changes.count
        await run_toolfold(home, "mcp", "add", "--yes", "two", added["command"], *added["args"])
        await changes.wait_for(seen + 1)
        await wait_for_tools(client, "one_echo", "one_tool_2", "two_late")
        assert result_text(await client.call_tool("two_late", {"text": "hello"})) == "hello"
        seen = changes.count
        await run_toolfold(home, "mcp", "disable", "one", "tool_2")
        await changes.wait_for(seen + 1)
        assert await tool_names(client) == ["one_echo", "two_late"]
        await run_toolfold(home, "mcp", "remove", "two")
        await changes.wait_for(seen + 2)
        assert await tool_names(client) == ["one_echo"]
        await run_toolfold(home, "mcp", "set", "one", "trust", "warn")
        await run_toolfold(home, "mcp", "set", "one", "args", str([*fault_server()["args"], "--tools", "3"]))
        await wait_for_tools(client, "one_echo", "one_tool_3")
        await run_toolfold(home, "config", "set", "tools.disabled", "[mcp_one_echo]")
        await wait_for_tools(client, "one_tool_3")


@pytest.mark.thorough(keep=1)
@each_transport
async def test_running_gateway_applies_an_edited_settings_file_and_ignores_an_invalid_settings_file(
    tmp_path: Path, transport: str
) -> None:
    home, changes = tmp_path / "home", ListChanges()
    servers = {"one": fault_server(), "two": fault_server("--first", "late")}
    write_settings(home, {"mcp": {"servers": {"one": servers["one"]}, "wait_seconds": 60}})
    log = home / "state" / "gateway" / "gateway.log"
    async with TRANSPORTS[transport](home, changes) as client:
        await wait_for_tools(client, "one_echo")
        seen = changes.count
        (home / "config.yaml").write_text("mcp:\n  servers: [\n")
        await asyncio.to_thread(wait_until, lambda: "changed settings are not used" in log.read_text())
        assert await tool_names(client) == ["one_echo"]
        write_settings(home, {"mcp": {"servers": servers, "wait_seconds": 60}})
        await changes.wait_for(seen + 1)
        await wait_for_tools(client, "one_echo", "two_late")
        write_settings(home, {"mcp": {"servers": servers}, "gateway": {"port": 1}})
        await asyncio.to_thread(
            wait_until, lambda: "take effect after a restart: gateway.port" in log.read_text()
        )


async def test_disabling_a_tool_in_the_settings_notifies_only_clients_with_access_to_the_tool(
    tmp_path: Path,
) -> None:
    """Clients are also notified of a settings change that concerns no MCP server."""
    with serve_gateway(tmp_path, {"one": fault_server(), "two": fault_server()}) as served:
        token = served.tokens.add("narrow", ["mcp-one"])
        wide, narrow = ListChanges(), ListChanges()
        async with (
            served.client("legacy", message_handler=wide) as wide_client,
            served.client("legacy", message_handler=narrow, token=token) as narrow_client,
        ):
            await tool_names(wide_client)
            await tool_names(narrow_client)
            (tmp_path / "config.yaml").write_text("tools: {disabled: [mcp-two]}\n")
            await wide.wait_for(1)
            assert await tool_names(wide_client) == ["one_echo"]
            assert await tool_names(narrow_client) == ["one_echo"]
            assert (wide.count, narrow.count) == (1, 0)
