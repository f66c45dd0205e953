"""CLI commands show an MCP tool by the name that gateway clients see, and accept all its names."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Toolfold
from toolfold import open_runtime
from toolfold.config import load_config, read_file_value, set_value
from toolfold.serving.gateway.server import open_session

NOTES = str(Path(__file__).parents[1] / "clients" / "notes_server.py")
SPELLINGS = ("notes_echo", "mcp_notes_echo", "mcp__notes__echo")
ARGUMENTS = '{"text": "hello"}'


@pytest.fixture
def file(home: Path, tmp_path: Path) -> Path:
    """The user's settings file, with the notes server."""
    server = {"command": sys.executable, "args": [NOTES, str(tmp_path / "record")]}
    set_value(home / "config.yaml", "mcp.servers.notes", server)
    set_value(home / "config.yaml", "mcp.wait_seconds", 60.0)
    return home / "config.yaml"


def tool_names(rows: list[dict[str, Any]]) -> set[str]:
    return {row["name"] for row in rows if "notes" in row["name"]}


def names_at_the_gateway() -> set[str]:
    with open_runtime(load_config(), behind_gateway=True) as runtime:
        return {name for name in open_session(runtime, None).granted() if "notes" in name}


@pytest.mark.thorough
def test_commands_that_list_or_search_tools_print_the_tool_names_that_gateway_clients_receive(
    file: Path, toolfold: Toolfold
) -> None:
    names = names_at_the_gateway()
    assert names >= {"notes_echo", "notes_delete_note", "notes_crash"}
    assert tool_names(toolfold("tools", "list", "--json").json) == names
    assert set(toolfold("mcp", "test", "--json").json[0]["tools"]) == names
    assert tool_names(toolfold("search", "echo a message", "--json").json) <= names
    assert tool_names(toolfold("explain", "echo a message", "--json").json["tools"]) == names
    for command in (("tools", "list"), ("mcp", "test", "notes"), ("search", "echo a message")):
        shown = toolfold(*command).out
        assert "notes_echo" in shown
        assert "mcp_notes_echo" not in shown


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("name", SPELLINGS)
def test_call_command_accepts_every_spelling_of_an_mcp_tool_name(
    file: Path, toolfold: Toolfold, name: str
) -> None:
    assert "hello" in toolfold("call", name, ARGUMENTS).out
    assert toolfold("tools", "show", name, "--json").json["name"] == "notes_echo"
    bridged = json.dumps({"name": name, "arguments": {"text": "hello"}})
    assert "hello" in toolfold("--set", "tools.tool_search=on", "call", "tool_call", bridged).out


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("name", SPELLINGS)
def test_tools_disable_and_tools_enable_commands_accept_every_spelling_of_a_tool_name(
    file: Path, toolfold: Toolfold, name: str
) -> None:
    assert "disabled: notes_echo" in toolfold("tools", "disable", name).out
    assert read_file_value(file, "tools.disabled") == ["notes_echo"]
    assert "notes_echo" not in names_at_the_gateway()
    assert "enabled: notes_echo" in toolfold("tools", "enable", name).out
    assert read_file_value(file, "tools.disabled") == []
    assert "notes_echo" in names_at_the_gateway()


def test_tool_disabled_by_its_name_with_prefix_can_be_enabled_by_its_name_without_prefix(
    file: Path, toolfold: Toolfold
) -> None:
    set_value(file, "tools.disabled", ["mcp_notes_echo"])
    assert toolfold("tools", "enable", "notes_echo").code == 0
    assert read_file_value(file, "tools.disabled") == []


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("name", ["echo", *SPELLINGS])
def test_mcp_disable_and_enable_accept_every_spelling_of_a_tool_name(
    file: Path, toolfold: Toolfold, name: str
) -> None:
    assert toolfold("mcp", "test").code == 0
    assert toolfold("mcp", "disable", "notes", name).code == 0
    assert read_file_value(file, "mcp.servers.notes.exclude") == ["echo"]
    assert toolfold("mcp", "enable", "notes", name).code == 0
    assert read_file_value(file, "mcp.servers.notes.exclude") == []
    unknown = toolfold("mcp", "disable", "notes", "notes_ecko")
    assert "Did you mean notes_echo?" in unknown.err


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("name", ["notes_delete_note", "mcp_notes_delete_note", "mcp__notes__delete_note"])
def test_call_and_approvals_commands_print_the_listed_tool_name_for_every_spelling(
    file: Path, toolfold: Toolfold, name: str
) -> None:
    refused = toolfold("call", name, ARGUMENTS)
    assert refused.code == 1
    assert "toolfold approvals allow notes_delete_note" in refused.out
    assert "mcp_notes" not in refused.out
    assert "the tool notes_delete_note may" in toolfold("approvals", "allow", name).out
    assert toolfold("call", name, ARGUMENTS).code == 0
    assert toolfold("approvals", "log", "--json").json[-1]["tool"] == "notes_delete_note"


@pytest.mark.parametrize("name", ["notes_delete_note", "mcp_notes_delete_note"])
def test_tool_names_in_settings_are_accepted_with_or_without_the_prefix_mcp(file: Path, name: str) -> None:
    overrides = [f"tools.disabled=[{name.replace('delete_note', 'crash')}]"]
    entry = f"tool:{name} {ARGUMENTS}"
    set_value(file, "command_allowlist", [entry])
    set_value(file, "approval.deny", [f"tool:{name.replace('delete_note', 'echo')}"])
    with open_runtime(load_config(overrides=overrides)) as runtime:
        session = runtime.session(["all"])
        granted = {each for each in session.granted() if "notes" in each}
        assert granted >= {"mcp_notes_echo", "mcp_notes_delete_note"}
        assert "mcp_notes_crash" not in granted
        assert session.call_sync("notes_delete_note", {"text": "hello"}).ok
        assert not session.call_sync("notes_delete_note", {"text": "other"}).ok
        assert "forbids" in (session.call_sync("mcp_notes_echo", {"text": "hello"}).error or "")


def test_mcp_test_prints_the_same_tool_names_as_tools_list_if_two_servers_have_the_same_prefix(
    file: Path, toolfold: Toolfold, tmp_path: Path
) -> None:
    server = {"command": sys.executable, "args": [NOTES, str(tmp_path / "record")], "prefix": "read_"}
    set_value(file, "mcp.servers.notes", server)
    plain = set(toolfold("mcp", "test", "--json").json[0]["tools"])
    assert plain >= {"read_echo", "read_delete_note", "read_crash"}
    set_value(file, "mcp.servers.files", {**server, "prefix": "read_"})
    shared = [set(row["tools"]) for row in toolfold("mcp", "test", "--json").json]
    listed = {row["name"] for row in toolfold("tools", "list", "--json").json}
    assert not shared[0] & shared[1]
    assert shared[0] | shared[1] <= listed
