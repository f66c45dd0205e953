"""`toolfold approvals allow`, and the offer of `mcp add` and `mcp import` to allow destructive tools."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Toolfold
from tests.cli.test_mcp import run_at_terminal
from toolfold.cli.restrictions import ALLOWED_IN_TOOL_CALLS
from toolfold.config import read_file_value, set_value
from toolfold.safety.approval.allowed_tools import KEY

NOTES = str(Path(__file__).parents[1] / "clients" / "notes_server.py")
DELETE = "notes_delete_note"
ENTRY = "server:notes:destructive"


@pytest.fixture
def file(home: Path) -> Path:
    """The user's settings file, without a server."""
    return home / "config.yaml"


@pytest.fixture
def notes(file: Path, tmp_path: Path) -> Path:
    """The user's settings file, with the notes server."""
    server = {"command": sys.executable, "args": [NOTES, str(tmp_path / "record")]}
    set_value(file, "mcp.servers.notes", server)
    set_value(file, "mcp.wait_seconds", 60.0)
    return file


def test_tool_allowed_with_the_approvals_allow_command_runs_until_the_permission_is_revoked(
    notes: Path, toolfold: Toolfold
) -> None:
    refused = toolfold("call", DELETE, '{"text": "draft"}')
    assert refused.code == 1
    assert f"toolfold approvals allow {DELETE}" in refused.out + refused.err
    done = toolfold("approvals", "allow", DELETE)
    assert done.code == 0, done.err
    assert read_file_value(notes, KEY) == [f"tool:{DELETE}:destructive"]
    assert toolfold("call", DELETE, '{"text": "draft"}').code == 0
    assert toolfold("approvals", "list", "--json").json["allowed_tools"] == [f"tool:{DELETE}:destructive"]
    listed = toolfold("approvals", "list").out
    assert f"tool:{DELETE}:destructive" in listed
    assert f"the tool {DELETE} may destroy data without approval" in listed
    assert toolfold("approvals", "revoke", "1").code == 0
    assert read_file_value(notes, KEY) is None


@pytest.mark.parametrize(
    ("words", "entry"),
    [
        (("notes",), ENTRY),
        (("notes:destructive",), ENTRY),
        (("notes", "--client", "desk"), f"{ENTRY} client=desk"),
        (("notes", "--project"), f"{ENTRY} project={{project}}"),
    ],
)
def test_approvals_allow_command_can_limit_the_permission_for_a_tool_to_a_client_or_project(
    notes: Path, toolfold: Toolfold, words: tuple[str, ...], entry: str
) -> None:
    assert toolfold("approvals", "allow", *words).code == 0
    assert read_file_value(notes, KEY) == [entry.format(project=Path.cwd())]
    assert ENTRY in toolfold("approvals", "list").out  # `:notes:` is not rendered as an emoji


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("nots_delete_note",), "there is no tool and no MCP server 'nots_delete_note'"),
        (("notes:open",), "unknown kind of effect 'open'; known kinds: destructive"),
        (("notes_echo",), "does not declare that it can destroy data"),
        (("notes", "--client", "a b"), "is not a valid client name"),
    ],
)
def test_approvals_allow_command_reports_an_unknown_tool_or_effect_or_client_name(
    notes: Path, toolfold: Toolfold, words: tuple[str, ...], problem: str
) -> None:
    done = toolfold("approvals", "allow", *words)
    assert done.code != 0
    assert problem in " ".join(done.err.split())
    assert read_file_value(notes, KEY) is None


def test_approvals_revoke_command_removes_an_allowed_tool_by_number_and_keeps_allowed_commands(
    notes: Path, toolfold: Toolfold
) -> None:
    set_value(notes, "command_allowlist", ["rm -rf photos/"])
    assert toolfold("approvals", "allow", "notes").code == 0
    assert toolfold("approvals", "revoke", "2").code == 0
    assert (read_file_value(notes, KEY), read_file_value(notes, "command_allowlist")) == (
        None,
        ["rm -rf photos/"],
    )
    assert toolfold("approvals", "allow", "notes").code == 0
    assert toolfold("approvals", "revoke", "--all").code == 0
    assert (read_file_value(notes, KEY), read_file_value(notes, "command_allowlist")) == (None, None)


def test_approvals_allow_command_is_refused_inside_a_tool_call() -> None:
    assert "approvals allow" not in ALLOWED_IN_TOOL_CALLS


class TestNewServers:
    def add(self, toolfold: Toolfold, tmp_path: Path, *options: str) -> str:
        command = (sys.executable, NOTES, str(tmp_path / "record"))
        done = toolfold("mcp", "add", "--yes", *options, "notes", *command)
        assert done.code == 0, done.err
        return " ".join(done.out.split())

    def test_mcp_add_command_lists_destructive_tools_of_the_server_without_allowing_them(
        self, file: Path, toolfold: Toolfold, tmp_path: Path
    ) -> None:
        text = self.add(toolfold, tmp_path)
        assert "2 tools declare that they can destroy data" in text
        assert "toolfold approvals allow notes" in text
        assert read_file_value(file, KEY) is None

    def test_mcp_add_with_option_allow_destructive_allows_destructive_tools_of_the_server(
        self, file: Path, toolfold: Toolfold, tmp_path: Path
    ) -> None:
        assert f"toolfold approvals revoke {ENTRY}" in self.add(toolfold, tmp_path, "--allow-destructive")
        assert read_file_value(file, KEY) == [ENTRY]

    @pytest.mark.thorough(keep=1)
    @pytest.mark.parametrize(("answer", "entries"), [(b"y\n", [ENTRY]), (b"\n", None), (b"\x04", None)])
    def test_mcp_add_at_a_terminal_asks_whether_destructive_tools_may_run_and_defaults_to_no(
        self, file: Path, tmp_path: Path, answer: bytes, entries: list[str] | None
    ) -> None:
        words = ("mcp", "add", "notes", sys.executable, NOTES, str(tmp_path / "record"))
        shown = run_at_terminal(*words, typed=b"y\n" + answer, after=b"Add this server?")
        assert "run without approval?" in shown
        assert read_file_value(file, KEY) == entries
        assert read_file_value(file, "mcp.servers.notes") is not None

    @pytest.mark.parametrize("options", [(), ("--allow-destructive",)])
    def test_mcp_import_allows_destructive_tools_only_with_the_option_allow_destructive(
        self, file: Path, toolfold: Toolfold, tmp_path: Path, options: tuple[str, ...]
    ) -> None:
        source = tmp_path / "mcp.json"
        server = {"command": sys.executable, "args": [NOTES, str(tmp_path / "record")]}
        source.write_text(json.dumps({"mcpServers": {"notes": server}}))
        done = toolfold("mcp", "import", "--file", str(source), "--yes", *options)
        assert done.code == 0, done.err
        assert read_file_value(file, KEY) == ([ENTRY] if options else None)
