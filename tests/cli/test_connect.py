"""`toolfold connect` on files of every client, and changes of generated files."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import tempfile
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from tests.cli.conftest import Toolfold
from tests.cli.test_mcp import TOKEN, run_at_terminal, servers
from tests.thorough import try_examples
from toolfold.cli.connecting import (
    ChangeLog,
    ClientFile,
    GatewayAccess,
    RunningProgram,
    build_content,
    build_entry,
    gateway_command,
    open_client_file,
    servers_key,
    unified_diff,
)
from toolfold.core.errors import ConfigError
from toolfold.mcp.importing import CLIENTS, is_gateway, user_config_file
from toolfold.mcp.importing.documents import parse_document
from toolfold.mcp.importing.import_types import ClientName

FILES: dict[ClientName, str] = {
    "claude-code": ".claude.json",
    "claude-desktop": ".config/Claude/claude_desktop_config.json",
    "cursor": ".cursor/mcp.json",
    "vscode": ".config/Code/User/mcp.json",
    "windsurf": ".codeium/windsurf/mcp_config.json",
    "codex": ".codex/config.toml",
    "gemini": ".gemini/settings.json",
    "opencode": ".config/opencode/opencode.json",
    "goose": ".config/goose/config.yaml",
}
JSON_CLIENTS: tuple[ClientName, ...] = (
    "claude-code",
    "claude-desktop",
    "cursor",
    "vscode",
    "windsurf",
    "gemini",
    "opencode",
)

# Realistic files: comments, order, unusual whitespace, and a server named git.
FILE_CONTENTS: dict[ClientName, str] = {
    "claude-code": """{"numStartups": 3, "mcpServers": {"git": {"command": "uvx", "args": ["git"]}},
 "projects": {}}""",
    "claude-desktop": """{
    "mcpServers": {
        "git": {"command": "uvx",  "args": ["git"]}
    }
}""",
    "cursor": '{\r\n\t"mcpServers": {\r\n\t\t"git": {"command": "uvx", "args": ["git"]}\r\n\t}\r\n}\r\n',
    "vscode": """// mine
{
  "inputs": [],
  "servers": {
    "git": {"command": "uvx", "args": ["git"]}, // good
    /* more to come */
  },
}
""",
    "windsurf": '\ufeff{"mcpServers":{"git":{"command":"uvx","args":["git"]}}}',
    "codex": """model = "x" # fast

[mcp_servers.git]
command = "uvx"
args = [
  "git", # it
]

[tui]
x = 1
""",
    "gemini": """{
  // mine
  "security": {"auth": {"selectedType": "gemini-api-key"}},
  "mcpServers": {
    "git": {"command": "uvx", "args": ["git"]}
  }
}
""",
    "opencode": """{
  "$schema": "https://opencode.ai/config.json",
  "mcp": {
    "git": {"type": "local", "command": ["uvx", "git"], "enabled": true}, // good
  },
}
""",
    "goose": """# mine
GOOSE_MODEL: x
extensions:
  git:
    cmd: uvx   # it
    args: [git]
    type: stdio
""",
}
ACCESS = GatewayAccess(("/opt/bin/toolfold", "mcp", "serve"))


@pytest.fixture
def person(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home directory with a configuration file of every client."""
    directory = tmp_path / "person"
    monkeypatch.setenv("HOME", str(directory))
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    for client, path in FILES.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(FILE_CONTENTS[client].encode())
    return directory


def read_servers(person: Path, client: ClientName) -> Any:
    """Return the servers in a client's file by name."""
    return open_client_file(client, person / FILES[client]).servers


def read_all_files(directory: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(directory)): each.read_bytes() for each in directory.rglob("*") if each.is_file()
    }


@pytest.mark.parametrize("client", FILES)
class TestEveryClient:
    def test_settings_file_of_a_client_program_is_identical_after_connect_and_connect_undo(
        self, person: Path, toolfold: Toolfold, client: ClientName
    ) -> None:
        before = read_all_files(person)
        done = toolfold("connect", client, "--yes")
        assert done.code == 0
        assert set(read_servers(person, client)) == {"git", "toolfold"}
        backup = person / (FILES[client] + ".before-toolfold")
        assert backup.read_bytes() == before[FILES[client]]
        assert str(backup) in done.out
        undone = toolfold("connect", client, "--undo", "--yes")
        assert undone.code == 0
        assert read_all_files(person) == before
        assert "nothing to undo" in toolfold("connect", client, "--undo", "--yes").out

    def test_second_connect_of_the_same_client_program_changes_no_file(
        self, person: Path, toolfold: Toolfold, client: ClientName
    ) -> None:
        toolfold("connect", client, "--yes")
        before = read_all_files(person)
        done = toolfold("connect", client)
        assert done.code == 0
        assert "already" in done.out
        assert read_all_files(person) == before

    def test_connect_without_confirmation_prints_the_planned_change_and_writes_no_file(
        self, person: Path, toolfold: Toolfold, client: ClientName
    ) -> None:
        before = read_all_files(person)
        done = toolfold("connect", client)
        assert done.code == 1
        assert "--yes" in done.err
        assert any(line.startswith("+") and "toolfold" in line for line in done.out.splitlines())
        assert read_all_files(person) == before

    def test_connect_undo_deletes_the_settings_file_and_directory_that_connect_created(
        self, person: Path, toolfold: Toolfold, client: ClientName
    ) -> None:
        file = person / FILES[client]
        file.unlink()
        if file.parent != person:
            file.parent.rmdir()
        assert toolfold("connect", client, "--yes").code == 0
        assert set(read_servers(person, client)) == {"toolfold"}
        assert toolfold("connect", client, "--undo", "--yes").code == 0
        assert not file.exists()
        assert file.parent == person or not file.parent.exists()

    def test_connect_with_option_replace_moves_client_servers_to_toolfold_and_undo_moves_them_back(
        self, person: Path, toolfold: Toolfold, client: ClientName
    ) -> None:
        before = read_all_files(person)
        done = toolfold("connect", client, "--replace", "--yes")
        assert done.code == 0
        assert "command  uvx git" in done.out
        assert set(read_servers(person, client)) == {"toolfold"}
        assert servers() == {"git": {"command": "uvx", "args": ["git"]}}
        assert "toolfold mcp remove" in toolfold("connect", client, "--undo", "--yes").out
        assert read_all_files(person) == before

    def test_connect_undo_refuses_a_file_edited_since_connect_unless_the_option_keep_changes_is_given(
        self, person: Path, toolfold: Toolfold, client: ClientName
    ) -> None:
        toolfold("connect", client, "--replace", "--yes")
        file = person / FILES[client]
        text = file.read_bytes().decode("utf-8-sig")
        comment = "# later" if client in ("codex", "goose") else "// later"
        file.write_text(f"{text}\n{comment}\n")
        before = read_all_files(person)
        done = toolfold("connect", client, "--undo", "--yes")
        assert done.code == 1
        assert f"+{comment}" in done.out
        assert "was edited since" in done.err
        assert read_all_files(person) == before
        assert toolfold("connect", client, "--undo", "--keep-changes", "--yes").code == 0
        assert set(read_servers(person, client)) == {"git"}
        assert comment in file.read_text()

    def test_connect_does_not_change_a_client_config_file_that_it_cannot_parse(
        self, person: Path, toolfold: Toolfold, client: ClientName
    ) -> None:
        file = person / FILES[client]
        for content in (
            b'{"a": [',
            b"\xff\xfe",
            b"[1]" if client != "codex" else b"x",
            b"x: [\n" + b"a" * (33 << 20),
        ):
            file.write_bytes(content)
            before = read_all_files(person)
            done = toolfold("connect", client, "--yes")
            assert done.code == 3
            assert str(file) in done.err
            assert read_all_files(person) == before

    def test_connect_reports_an_invalid_server_section_in_the_client_config_file(
        self, person: Path, toolfold: Toolfold, client: ClientName
    ) -> None:
        file, section = person / FILES[client], servers_key(client)
        file.write_text(f"{section} = 1\n" if client == "codex" else json.dumps({section: [1]}))
        assert "is not a mapping of servers" in toolfold("connect", client, "--yes").err

    def test_connect_does_not_change_a_read_only_client_config_file(
        self, person: Path, toolfold: Toolfold, client: ClientName
    ) -> None:
        file = person / FILES[client]
        file.chmod(0o444)
        before = read_all_files(person)
        done = toolfold("connect", client, "--yes")
        assert done.code == 3
        assert "read-only" in done.err
        assert read_all_files(person) == before

    def test_connect_writes_through_a_symlinked_client_config_file_and_keeps_the_symlink(
        self, person: Path, toolfold: Toolfold, client: ClientName
    ) -> None:
        file, real = person / FILES[client], person / f"dotfiles{Path(FILES[client]).suffix}"
        before = file.read_bytes()
        file.rename(real)
        file.symlink_to(real)
        assert "is a symbolic link" in toolfold("connect", client, "--yes").err
        assert file.is_symlink()
        assert b"toolfold" in real.read_bytes()
        assert toolfold("connect", client, "--undo", "--yes").code == 0
        assert file.is_symlink()
        assert real.read_bytes() == before
        real.unlink()
        assert "symbolic link is broken" in toolfold("connect", client, "--yes").err
        assert not real.exists()

    def test_connect_with_option_http_writes_the_gateway_url_and_token_variable(
        self, person: Path, toolfold: Toolfold, client: ClientName
    ) -> None:
        url = "http://127.0.0.1:8765/mcp"
        done = toolfold("connect", client, "--http", url, "--token-env", "TF_TOKEN", "--yes")
        if client == "claude-desktop":
            assert done.code == 3
            assert "Omit --http" in done.err
            return
        assert done.code == 0
        entry = json.dumps(read_servers(person, client)["toolfold"])
        assert url in entry
        assert "TF_TOKEN" in entry
        found = {
            each.name: each
            for each in open_client_file(client, person / FILES[client]).import_servers(person).servers
        }
        assert "description" in read_servers(person, client)["toolfold"] or client != "goose"  # Goose insists
        assert found["toolfold"].settings["headers"] == {"Authorization": "Bearer ${TF_TOKEN}"}


class TestCommand:
    @pytest.mark.parametrize(
        ("url", "written"),
        [
            ("http://127.0.0.1:8799", "http://127.0.0.1:8799/mcp"),
            ("http://[::1]:8799/", "http://[::1]:8799/mcp"),
            ("http://127.0.0.1:8799/tools/mcp", "http://127.0.0.1:8799/tools/mcp"),
        ],
    )
    def test_connect_appends_the_path_mcp_to_a_gateway_url_without_a_path(
        self, person: Path, toolfold: Toolfold, url: str, written: str
    ) -> None:
        assert toolfold("connect", "cursor", "--http", url, "--yes").code == 0
        assert read_servers(person, "cursor")["toolfold"]["url"] == written

    def test_connect_with_option_replace_does_not_move_gateway_entries_of_the_client_to_toolfold(
        self, person: Path, toolfold: Toolfold
    ) -> None:
        toolfold("connect", "cursor", "--name", "one", "--yes")
        toolfold("connect", "cursor", "--name", "two", "--http", "http://localhost:8765", "--yes")
        assert toolfold("connect", "cursor", "--replace", "--yes").code == 0
        assert set(servers()) == {"git"}
        assert set(read_servers(person, "cursor")) == {"one", "two", "toolfold"}

    def test_connect_at_a_terminal_asks_whether_to_move_the_servers_of_the_client(self, person: Path) -> None:
        output = run_at_terminal("connect", "cursor", typed=b"y\ny\n", after=b"Move them to Toolfold?")
        assert "is connected to Toolfold" in output
        assert set(servers()) == {"git"}
        assert set(read_servers(person, "cursor")) == {"toolfold"}

    @pytest.mark.thorough
    def test_connect_at_a_terminal_asks_for_confirmation_before_it_changes_the_client_config_file(
        self, person: Path
    ) -> None:
        before = read_all_files(person)
        command = ("connect", "cursor", "--keep")
        assert "nothing was changed" in run_at_terminal(*command, typed=b"n\n", after=b"mcp.json?")
        assert read_all_files(person) == before
        assert "is connected to Toolfold" in run_at_terminal(*command, typed=b"y\n", after=b"mcp.json?")
        assert "toolfold" in read_servers(person, "cursor")

    @pytest.mark.thorough
    def test_connect_keeps_unrelated_edits_made_during_confirmation_and_stops_at_conflicting_edits(
        self, person: Path
    ) -> None:
        file = person / FILES["claude-code"]

        def change_unrelated_key(_shown: str) -> bytes:
            file.write_text(file.read_text().replace('"numStartups": 3', '"numStartups": 4'))
            return b"y\n"

        assert "is connected to Toolfold" in run_at_terminal(
            "connect", "claude-code", "--keep", typed=change_unrelated_key, after=b".claude.json?"
        )
        assert json.loads(file.read_text())["numStartups"] == 4
        assert "toolfold" in read_servers(person, "claude-code")

        def change_server_entry(_shown: str) -> bytes:
            file.write_text(file.read_text().replace('"uvx"', '"other"'))
            return b"y\n"

        words = ("connect", "claude-code", "--uvx", "--keep")
        assert "changed meanwhile" in run_at_terminal(
            *words, typed=change_server_entry, after=b".claude.json?"
        )
        assert read_servers(person, "claude-code")["git"]["command"] == "other"
        assert read_servers(person, "claude-code")["toolfold"]["command"] != "uvx"

    def test_gateway_command_that_connect_wrote_to_a_client_config_file_starts_a_working_gateway(
        self, person: Path, toolfold: Toolfold
    ) -> None:
        toolfold("connect", "cursor", "--yes")
        entry = read_servers(person, "cursor")["toolfold"]
        hello = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"},
            },
        }
        done = subprocess.run(
            [entry["command"], *entry["args"]],
            input=json.dumps(hello) + "\n",
            env={"PATH": "/usr/bin:/bin", "HOME": str(person), **entry["env"]},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert json.loads(done.stdout.splitlines()[0])["result"]["serverInfo"]["name"] == "toolfold"

    def test_connect_writes_the_settings_and_project_directories_to_the_gateway_entry(
        self, person: Path, toolfold: Toolfold, home: Path
    ) -> None:
        toolfold("--project", str(person), "connect", "cursor", "--yes")
        entry = read_servers(person, "cursor")["toolfold"]
        assert entry["env"] == {"TOOLFOLD_HOME": str(home)}
        assert entry["args"] == ["--project", str(person), "mcp", "serve"]

    @pytest.mark.parametrize(
        "words",
        [
            ("--name", "a b"),
            ("--name", ""),
            ("--keep-changes",),
            ("--undo", "--replace"),
            ("--undo", "--http", "http://localhost/mcp"),
            ("--uvx", "--http", "http://localhost/mcp"),
            ("--token-env", "X"),
            ("--http", "localhost"),
            ("--http", "http://["),
            ("--http", f"http://u:{TOKEN}@localhost/mcp"),
            ("--http", "http://localhost/mcp", "--token-env", TOKEN + "-x"),
        ],
        ids=str,
    )
    def test_connect_with_conflicting_options_exits_with_a_usage_error(
        self, person: Path, toolfold: Toolfold, words: tuple[str, ...]
    ) -> None:
        before = read_all_files(person)
        done = toolfold("connect", "cursor", "--yes", *words)
        assert done.code == 2
        assert TOKEN not in done.err
        assert read_all_files(person) == before

    def test_connect_warns_if_a_gateway_on_another_machine_is_used_without_a_token(
        self, person: Path, toolfold: Toolfold
    ) -> None:
        assert "toolfold token add" in toolfold("connect", "cursor", "--http", "https://x.example/mcp").err

    def test_connect_with_option_file_changes_the_given_file_instead_of_the_default_client_config_file(
        self, person: Path, toolfold: Toolfold, tmp_path: Path
    ) -> None:
        file = tmp_path / "profile.json"
        done = toolfold("connect", "vscode", "--file", str(file), "--yes")
        assert done.code == 0
        assert f"toolfold connect vscode --undo --file {file}" in done.out
        assert "toolfold" in json.loads(file.read_text())["servers"]
        assert toolfold("connect", "vscode", "--file", str(file), "--undo", "--yes").code == 0
        assert not file.exists()
        assert ".toml" in toolfold("connect", "codex", "--file", str(file), "--yes").err

    def test_connect_undo_after_two_connects_restores_the_original_client_config_file(
        self, person: Path, toolfold: Toolfold
    ) -> None:
        before = read_all_files(person)
        toolfold("connect", "cursor", "--yes")
        toolfold("connect", "cursor", "--http", "http://127.0.0.1:1/mcp", "--yes")
        toolfold("connect", "cursor", "--uvx", "--replace", "--yes")
        assert read_servers(person, "cursor")["toolfold"]["args"] == ["toolfold", "mcp", "serve"]
        assert toolfold("connect", "cursor", "--undo", "--yes").code == 0
        assert read_all_files(person) == before

    def test_connect_undo_reverts_two_connects_separately_if_the_file_was_edited_between_them(
        self, person: Path, toolfold: Toolfold
    ) -> None:
        file = person / FILES["cursor"]
        before = file.read_bytes()
        toolfold("connect", "cursor", "--yes")
        first = file.read_bytes()
        file.write_bytes(first + b"\n")
        toolfold("connect", "cursor", "--uvx", "--yes")
        assert toolfold("connect", "cursor", "--undo", "--yes").code == 0
        assert file.read_bytes() == first + b"\n"
        assert toolfold("connect", "cursor", "--undo", "--yes").code == 1
        file.write_bytes(first)
        assert toolfold("connect", "cursor", "--undo", "--yes").code == 0
        assert file.read_bytes() == before

    def test_connect_undo_changes_nothing_if_the_user_already_restored_the_client_config_file(
        self, person: Path, toolfold: Toolfold
    ) -> None:
        before = read_all_files(person)
        toolfold("connect", "cursor", "--yes")
        (person / FILES["cursor"]).write_bytes(before[FILES["cursor"]])
        done = toolfold("connect", "cursor", "--undo")
        assert done.code == 0
        assert "is already restored" in done.out
        assert read_all_files(person) == before

    def test_connect_undo_refuses_a_changed_backup_file_unless_the_option_keep_changes_is_given(
        self, person: Path, toolfold: Toolfold
    ) -> None:
        toolfold("connect", "cursor", "--yes")
        backup = person / (FILES["cursor"] + ".before-toolfold")
        backup.write_text("{}")
        before = read_all_files(person)
        done = toolfold("connect", "cursor", "--undo", "--yes")
        assert done.code == 3
        assert str(backup) in done.err
        assert read_all_files(person) == before
        assert toolfold("connect", "cursor", "--undo", "--keep-changes", "--yes").code == 0
        assert set(read_servers(person, "cursor")) == {"git"}

    def test_connect_fails_without_changes_if_its_record_of_earlier_changes_is_damaged(
        self, person: Path, toolfold: Toolfold, home: Path
    ) -> None:
        (home / "state").mkdir(parents=True)
        (home / "state/connected.json").write_text('{"steps": [{"client": 3}]}')
        before = read_all_files(person)
        assert toolfold("connect", "cursor", "--yes").code == 3
        assert set(read_servers(person, "cursor")) == {"git"}
        assert {name for name in read_all_files(person) if "before-toolfold" not in name} == set(before)

    def test_connect_that_cannot_write_the_client_config_file_records_nothing_to_undo(
        self, person: Path, toolfold: Toolfold
    ) -> None:
        for nowhere in ("/proc/mcp.json", "/proc/new/mcp.json"):
            done = toolfold("connect", "cursor", "--file", nowhere, "--yes")
            assert done.code == 3
            assert "cannot be" in done.err
            assert "nothing to undo" in toolfold("connect", "cursor", "--undo").out
        below_a_file = person / FILES["cursor"] / "mcp.json"
        assert "cannot be read" in toolfold("connect", "cursor", "--file", str(below_a_file), "--yes").err

    def test_gateway_entry_that_connect_writes_for_codex_lists_environment_variables_used_by_servers(
        self, person: Path, toolfold: Toolfold
    ) -> None:
        words = (
            "--env",
            "A=${ONE:-x}",
            "--pass-env",
            "TWO",
            "--no-test",
            "--yes",
            "run",
            "${THREE}",
            "$${NO}",
        )
        toolfold("mcp", "add", "some", *words)
        toolfold(
            "mcp", "add", "web", "http://127.0.0.1:1/mcp", "--header", "A: ${FOUR}", "--no-test", "--yes"
        )
        (person / FILES["codex"]).write_text('[mcp_servers.x]\ncommand = "x"\nenv_vars = ["FIVE"]\n')
        assert toolfold("connect", "codex", "--replace", "--yes").code == 0
        entry = read_servers(person, "codex")["toolfold"]
        assert entry["env_vars"] == ["FIVE", "FOUR", "ONE", "THREE", "TWO"]

    def test_connect_keeps_owner_only_permissions_of_the_client_config_file_and_its_backup(
        self, person: Path, toolfold: Toolfold, home: Path
    ) -> None:
        file = person / FILES["cursor"]
        file.chmod(0o600)
        toolfold("connect", "cursor", "--yes")
        for each in (file, file.with_name("mcp.json.before-toolfold"), home / "state/connected.json"):
            assert stat.S_IMODE(each.stat().st_mode) == 0o600

    def test_connect_redacts_secrets_in_the_printed_diff(self, person: Path, toolfold: Toolfold) -> None:
        secret = "nobody-may-read-this"
        entry = {
            "command": "run",
            "args": ["--api-key", secret],
            "env": {"MY_PASSWORD": secret, "B": TOKEN},
        }
        layouts = (
            json.dumps({"mcpServers": {"git": entry}}),
            json.dumps({"mcpServers": {"git": entry}}, indent=2),
        )
        for text in layouts:
            (person / FILES["cursor"]).write_text(text)
            for words in ((), ("--replace",)):
                done = toolfold("connect", "cursor", *words)
                assert secret not in done.out + done.err
                assert TOKEN not in done.out + done.err
                assert "+" in done.out

    def test_connect_undo_redacts_secrets_in_the_diff_of_later_edits(
        self, person: Path, toolfold: Toolfold
    ) -> None:
        file = person / FILES["cursor"]
        toolfold("connect", "cursor", "--yes")
        document = json.loads(file.read_text())
        document["mcpServers"]["new"] = {"command": "x", "args": ["--password", "nobody-may-read-this"]}
        file.write_text(json.dumps(document, indent=2))
        for words in ((), ("--keep-changes",)):
            done = toolfold("connect", "cursor", "--undo", *words)
            assert done.code == 1
            assert "nobody-may-read-this" not in done.out + done.err

    def test_connect_with_option_replace_writes_server_secrets_to_a_file_readable_only_by_its_owner(
        self, person: Path, toolfold: Toolfold, home: Path
    ) -> None:
        entry = {"command": "run", "env": {"API_TOKEN": TOKEN}}
        (person / FILES["cursor"]).write_text(json.dumps({"mcpServers": {"it": entry}}))
        done = toolfold("connect", "cursor", "--replace", "--yes")
        assert "env.API_TOKEN contains a secret" in done.out
        assert stat.S_IMODE((home / "config.yaml").stat().st_mode) == 0o600
        assert servers()["it"]["env"] == {"API_TOKEN": TOKEN}

    def test_connect_with_option_replace_leaves_servers_that_toolfold_cannot_use_in_the_client_file(
        self, person: Path, toolfold: Toolfold
    ) -> None:
        entries = {
            "odd": {"args": []},
            "older": {"command": "/x/toolfold", "args": ["mcp", "serve"]},
            "git": {"command": "uvx", "args": ["git"]},
        }
        (person / FILES["cursor"]).write_text(json.dumps({"mcpServers": entries}))
        done = toolfold("connect", "cursor", "--replace", "--yes")
        assert "odd is not moved" in done.err
        assert set(read_servers(person, "cursor")) == {"odd", "older", "toolfold"}
        assert set(servers()) == {"git"}

    def test_connect_with_option_replace_removes_a_client_server_that_toolfold_already_has(
        self, person: Path, toolfold: Toolfold
    ) -> None:
        toolfold("connect", "cursor", "--replace", "--yes")
        done = toolfold("connect", "windsurf", "--replace", "--yes")
        assert "is already configured in Toolfold" in done.out
        assert set(read_servers(person, "windsurf")) == {"toolfold"}
        assert set(servers()) == {"git"}

    def test_connect_replace_moves_servers_of_the_current_project_and_undo_puts_them_back(
        self, person: Path, toolfold: Toolfold
    ) -> None:
        project, file = str(Path.cwd()), person / FILES["claude-code"]
        own = {"git": {"command": "theirs"}, "local": {"command": "x"}}
        document: dict[str, Any] = {
            "mcpServers": {"git": {"command": "mine"}},
            "projects": {project: {"mcpServers": own}, "/other": {"mcpServers": {"far": {"command": "y"}}}},
        }
        before = json.dumps(document, indent=2)
        file.write_text(before)
        done = toolfold("connect", "claude-code", "--replace", "--yes")
        assert done.code == 0, done.err
        assert servers() == {
            "git": {"command": "mine"},
            "git-claude-code": {"command": "theirs", "cwd": project},
            "local": {"command": "x", "cwd": project},
        }
        now = json.loads(file.read_text())
        assert set(now["mcpServers"]) == {"toolfold"}
        assert now["projects"][project] == {"mcpServers": {}}
        assert now["projects"]["/other"] == document["projects"]["/other"]
        assert "still starts" not in done.err
        changed = file.read_text().replace("{", '{\n  "numStartups": 3,', 1)
        file.write_text(changed)
        assert toolfold("connect", "claude-code", "--undo", "--keep-changes", "--yes").code == 0
        assert json.loads(file.read_text()) == {"numStartups": 3, **document}
        file.write_text(before)
        toolfold("connect", "claude-code", "--replace", "--yes")
        toolfold("connect", "claude-code", "--undo", "--yes")
        assert file.read_text() == before

    @pytest.mark.thorough
    def test_connect_and_undo_print_a_short_diff_for_a_client_config_file_with_a_large_history(
        self, person: Path, toolfold: Toolfold
    ) -> None:
        history = [{"display": "x" * 50, "pasted": {}} for _ in range(20_000)]
        text = json.dumps({"history": history, "mcpServers": {}}, indent=2)
        (person / FILES["claude-code"]).write_text(text)
        done = toolfold("connect", "claude-code", "--yes")
        assert done.code == 0
        assert len(done.out.splitlines()) < 40
        assert toolfold("connect", "claude-code", "--undo", "--yes").code == 0
        assert (person / FILES["claude-code"]).read_text() == text

    def test_connect_reports_that_the_client_program_does_not_seem_to_be_installed(
        self, home: Path, toolfold: Toolfold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
        assert "does not seem to be installed" in toolfold("connect", "windsurf").err
        assert not (tmp_path / "nobody").exists()


class TestStarting:
    @pytest.fixture
    def running(self, tmp_path: Path) -> RunningProgram:
        for name in ("toolfold", "uvx", "pipx"):
            (tmp_path / "bin").mkdir(exist_ok=True)
            (tmp_path / "bin" / name).write_text("")
            (tmp_path / "bin" / name).chmod(0o755)
        environment = {"PATH": str(tmp_path / "bin")}
        return RunningProgram(
            tmp_path / "bin/toolfold", tmp_path / "bin/python", tmp_path / "venv", "linux", environment
        )

    def test_gateway_entry_of_a_client_has_the_absolute_path_of_an_executable_outside_the_default_path(
        self, running: RunningProgram
    ) -> None:
        assert gateway_command(running) == (str(running.script), "mcp", "serve")
        assert gateway_command(running, with_uvx=True)[0].endswith("/bin/uvx")

    def test_gateway_entry_of_a_client_contains_only_the_name_of_an_executable_on_the_default_path(
        self, running: RunningProgram
    ) -> None:
        there = RunningProgram(
            running.script, running.interpreter, running.prefix, "win32", running.environment
        )
        assert gateway_command(there) == ("toolfold", "mcp", "serve")
        assert gateway_command(there, with_uvx=True) == ("uvx", "toolfold", "mcp", "serve")

    @pytest.mark.parametrize(
        ("prefix", "words"),
        [
            ("/home/me/.cache/uv/archive-v0/abc", ("uvx", "toolfold")),
            ("/home/me/.cache/pipx/1234", ("pipx", "run", "toolfold")),
        ],
    )
    def test_gateway_entry_of_a_client_uses_uvx_or_pipx_run_if_toolfold_runs_from_their_cache(
        self, running: RunningProgram, prefix: str, words: tuple[str, ...]
    ) -> None:
        passing = RunningProgram(
            running.script, running.interpreter, Path(prefix), "linux", running.environment
        )
        command = gateway_command(passing)
        assert (Path(command[0]).name, *command[1:]) == (*words, "mcp", "serve")

    def test_gateway_entry_of_a_client_starts_the_gateway_executable_that_pipx_installed(
        self, running: RunningProgram
    ) -> None:
        prefix = Path("/home/me/.local/share/pipx/venvs/toolfold")
        installed = RunningProgram(running.script, running.interpreter, prefix, "linux", running.environment)
        assert gateway_command(installed)[0] == str(running.script)

    def test_gateway_entry_of_a_client_starts_the_python_interpreter_if_no_script_is_installed(
        self, running: RunningProgram
    ) -> None:
        running.script.unlink()
        command = gateway_command(running)
        assert command[0] == str(running.interpreter)
        assert command[-2:] == ("mcp", "serve")

    @pytest.mark.parametrize("client", FILES)
    def test_is_gateway_returns_true_for_the_entry_that_connect_wrote_to_a_client_config_file(
        self, client: ClientName, tmp_path: Path
    ) -> None:
        file = tmp_path / Path(FILES[client]).name
        original = ClientFile(client, file, file, None)
        file.write_bytes(build_content(original, "it", build_entry(client, "it", ACCESS), {}))
        (found,) = open_client_file(client, file).import_servers(tmp_path).servers
        assert is_gateway(found.settings, ())


def test_connect_vscode_uses_the_vscode_insiders_settings_file_if_only_insiders_is_installed(
    tmp_path: Path,
) -> None:
    def default_file(client: ClientName) -> Path:
        return user_config_file(client, home=tmp_path, platform="linux", environment={})

    assert {client: default_file(client) for client in CLIENTS} == {
        client: tmp_path / path for client, path in FILES.items()
    }
    insiders = tmp_path / ".config/Code - Insiders/User"
    (insiders / "profiles/a").mkdir(parents=True)
    (insiders / "profiles/a/mcp.json").write_text("{}")
    (insiders / "settings.json").write_text("{}")
    assert default_file("vscode") == insiders / "mcp.json"


CONNECT_AND_DIE = """
import os, sys
from pathlib import Path
from toolfold.cli.connecting import (
    ChangeLog, GatewayAccess, build_content, build_entry, change_log, open_client_file
)

file, at, late = Path(sys.argv[1]), int(sys.argv[3]), bool(int(sys.argv[4]))
replace_file, calls = change_log.replace_file, []

def die_at_call(*args, **options):
    calls.append(args)
    if len(calls) == at and not late:
        os._exit(9)
    replace_file(*args, **options)
    if len(calls) == at:
        os._exit(9)

change_log.replace_file = die_at_call
client_file = open_client_file("cursor", file)
entry = build_entry("cursor", "toolfold", GatewayAccess(("toolfold", "mcp", "serve")))
content = build_content(client_file, "toolfold", entry, {})
ChangeLog(Path(sys.argv[2])).apply(client_file, content, name="toolfold", entry=entry, moved=())
"""


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_client_config_file_can_be_restored_if_connect_is_killed_at_any_step(
    tmp_path: Path, at: int, late: int
) -> None:
    file, log_file = tmp_path / "mcp.json", tmp_path / "state/connected.json"
    file.write_text(FILE_CONTENTS["claude-desktop"])
    words = [sys.executable, "-c", CONNECT_AND_DIE, str(file), str(log_file), str(at), str(late)]
    assert subprocess.run(words).returncode == 9
    assert ("toolfold" in file.read_text()) == ((at, late) == (3, 1))
    change_log = ChangeLog(log_file)
    step = change_log.last_change("cursor")
    assert (step is not None) == ((at, late) > (2, 0))
    if step is not None:
        change_log.undo(step, *change_log.plan_undo(step))
    assert file.read_text() == FILE_CONTENTS["claude-desktop"]


# Property-based tests on generated files.

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=6)
LEAVES = st.none() | st.booleans() | st.integers(-99, 99) | st.floats(allow_nan=False) | st.text(max_size=8)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.just("mcpServers"), inner, max_size=3)
    ),
    max_leaves=8,
)
SERVERS = st.dictionaries(
    NAMES, st.just({"command": "x"}) | st.dictionaries(NAMES, VALUES, max_size=2), max_size=3
)
GAPS = ["", " ", "\n", "\n  ", "\r\n\t", ' // "{\n', "/* ,}] */", "\n  // it's\n  "]


@st.composite
def json_texts(draw: st.DrawFn) -> str:
    """JSON with arbitrary whitespace, comments and trailing commas."""
    section = draw(st.none() | SERVERS)
    others = draw(st.dictionaries(NAMES, VALUES, max_size=3))
    document = {
        **others,
        **({} if section is None else {draw(st.sampled_from(["mcpServers", "servers"])): section}),
    }
    if draw(st.booleans()):
        return json.dumps(
            document, indent=draw(st.sampled_from([None, 0, 2, "\t"])), ensure_ascii=draw(st.booleans())
        )

    def gap() -> str:
        return draw(st.sampled_from(GAPS))

    def render(value: Any) -> str:
        if isinstance(value, dict):
            inside = [
                f"{gap()}{json.dumps(name)}{gap()}:{gap()}{render(each)}{gap()}"
                for name, each in value.items()
            ]
        elif isinstance(value, list):
            inside = [f"{gap()}{render(each)}{gap()}" for each in value]
        else:
            return json.dumps(value)
        last = "," + gap() if bool(inside) and draw(st.booleans()) else gap()
        begin, end = "{}" if isinstance(value, dict) else "[]"
        return begin + ",".join(inside) + last + end

    return draw(st.sampled_from(["", "\ufeff"])) + gap() + render(document) + gap()


@st.composite
def toml_texts(draw: st.DrawFn) -> str:
    """TOML with servers in every syntax that TOML allows."""
    pieces = [
        'a = 1 # "[x]"',
        'b = """\n[mcp_servers.no]\n"x" """',
        "c = '''\n[mcp_servers.neither]\n'''",
        "d = [\n  [1], # ]\n  { x = '[' },\n]",
        "",
        "# [mcp_servers.comment]",
        'mcp_servers.dotted.command = "x"',
        "mcp_servers = { inline = { command = 'x' } }",
        "[mcp_servers]",
        'short = { command = "x", args = ["]"] }',
        "[mcp_servers.git]\n# about it\ncommand = 'x'",
        "  [ mcp_servers . 'odd name' ]\n  command = 'x'",
        "[mcp_servers.git.env]\nA = 'b'",
        "[mcp_servers.toolfold]\ncommand = 'old'",
        "[mcp_servers.toolfold.env]\nA = 'b'",
        "[[list.of]]\nx = 1",
        "[other.mcp_servers.x]\ny = 1979-05-27T07:32:00Z",
    ]
    chosen = draw(st.lists(st.sampled_from(pieces), max_size=8, unique=True))
    text = draw(st.sampled_from(["\n", "\n\n", "\r\n"])).join(chosen) + draw(
        st.sampled_from(["", "\n", "  \n"])
    )
    try:
        tomllib.loads(text)
    except ValueError:
        assume(False)
    return text


@st.composite
def yaml_texts(draw: st.DrawFn) -> str:
    """YAML with or without a mapping of extensions."""
    pieces = [
        "# mine",
        "GOOSE_MODEL: x",
        'text: "a # b"',
        "block: |\n  extensions:\n    no: 1",
        "list:\n- 1\n- {a: b}",
        "",
    ]
    before, after = draw(st.lists(st.sampled_from(pieces[:3]), max_size=2, unique=True)), pieces[3:]
    entries = draw(st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), VALUES, max_size=3))
    layout = draw(st.sampled_from(["none", "flow", "block", "empty"]))
    body = {
        "none": [],
        "empty": ["extensions:"],
        "flow": [f"extensions: {json.dumps(entries)}"],
        "block": ["extensions:", *(f"  {name}: {json.dumps(each)}  # it" for name, each in entries.items())],
    }[layout]
    lines = [*before, *body, *draw(st.lists(st.sampled_from(after), max_size=3, unique=True))]
    text = draw(st.sampled_from(["\n", "\r\n"])).join(lines) + draw(st.sampled_from(["", "\n"]))
    try:
        parse_document(text, Path("x.yaml"))
    except ConfigError:
        assume(False)
    return text


def texts_for(client: ClientName) -> st.SearchStrategy[str]:
    return {"codex": toml_texts(), "goose": yaml_texts()}.get(client, json_texts())


@st.composite
def files(draw: st.DrawFn) -> tuple[ClientName, str]:
    client: ClientName = draw(st.sampled_from([*FILES]))
    return client, draw(texts_for(client))


def make_client_file(client: ClientName, text: str) -> ClientFile:
    file = Path(Path(FILES[client]).name)
    original = ClientFile(client, file, file, text.encode())
    try:
        _ = original.servers
    except ConfigError:
        assume(False)
    return original


def is_subsequence(before: bytes, after: bytes) -> bool:
    """Return True if `before` is a subsequence of `after`."""
    matched, position = 0, 0
    for each in before:
        found = after.find(bytes([each]), position)
        if found < 0:
            return False
        matched, position = matched + 1, found + 1
    return matched == len(before)


@try_examples(150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(files())
def test_adding_the_gateway_to_a_client_config_file_keeps_all_other_content(
    file: tuple[ClientName, str],
) -> None:
    client, text = file
    original = make_client_file(client, text)
    entry = build_entry(client, "toolfold", ACCESS)
    try:
        content = build_content(original, "toolfold", entry, {})
    except ConfigError:
        assert client in ("codex", "goose")  # JSON can always be changed in place
        return
    after = ClientFile(client, original.file, original.file, content)
    assert after.servers == {**original.servers, "toolfold": entry}
    assert build_content(after, "toolfold", entry, {}) == content
    if "toolfold" not in original.servers and client != "goose":
        assert is_subsequence(original.data or b"", content)


@try_examples(100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(files(), st.data())
def test_removing_servers_from_a_client_config_file_keeps_all_other_content(
    file: tuple[ClientName, str], data: st.DataObject
) -> None:
    client, text = file
    original = make_client_file(client, text)
    assume(original.servers)
    gone = set(data.draw(st.lists(st.sampled_from(sorted(original.servers)), min_size=1))) - {"toolfold"}
    entry = build_entry(client, "toolfold", ACCESS)
    try:
        content = build_content(original, "toolfold", entry, dict.fromkeys(gone))
    except ConfigError:
        assert client in ("codex", "goose")
        return
    remaining = {name: each for name, each in original.servers.items() if name not in gone}
    assert ClientFile(client, original.file, original.file, content).servers == {
        **remaining,
        "toolfold": entry,
    }


@try_examples(50, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(files())
def test_connect_undo_restores_the_exact_bytes_of_any_client_config_file(
    file: tuple[ClientName, str],
) -> None:
    client, text = file
    make_client_file(client, text)
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory, "there", Path(FILES[client]).name)
        place.parent.mkdir()
        place.write_bytes(text.encode())
        change_log, entry = (
            ChangeLog(Path(directory, "state", "connected.json")),
            build_entry(client, "toolfold", ACCESS),
        )
        with suppress(ConfigError):
            original = open_client_file(client, place)
            content = build_content(
                original, "toolfold", entry, dict.fromkeys(set(original.servers) - {"toolfold"})
            )
            moved = tuple(set(original.servers) - {"toolfold"})
            step = change_log.apply(original, content, name="toolfold", entry=entry, moved=moved)
            assert place.read_bytes() == content
            change_log.undo(step, *change_log.plan_undo(step))
        assert place.read_bytes() == text.encode()
        assert list(place.parent.iterdir()) == [place]
        assert change_log.list_changes() == []


@given(st.lists(st.sampled_from("abc"), max_size=30), st.lists(st.sampled_from("abc"), max_size=30))
def test_diff_printed_by_connect_lists_removed_and_added_lines(old: list[str], new: list[str]) -> None:
    lines = list(unified_diff("\n".join(old), "\n".join(new), titles=("a", "b")))
    assert bool(lines) == (old != new)
    body = [line for line in lines[2:] if not line.startswith("@@")]
    assert sum(line.startswith("+") for line in body) - sum(line.startswith("-") for line in body) == len(
        new
    ) - len(old)


def test_gateway_entry_that_connect_writes_for_codex_has_required_true_and_a_long_startup_timeout(
    person: Path, toolfold: Toolfold
) -> None:
    done = toolfold("connect", "codex", "--yes")
    entry = read_servers(person, "codex")["toolfold"]
    assert entry["required"] is True
    assert entry["startup_timeout_sec"] >= 30
    assert "[mcp_servers.toolfold.tools.tool_call]" in done.err


def test_gateway_entry_that_connect_writes_for_claude_code_has_the_key_always_load(
    person: Path, toolfold: Toolfold
) -> None:
    assert toolfold("connect", "claude-code", "--yes").code == 0
    assert read_servers(person, "claude-code")["toolfold"]["alwaysLoad"] is True


def test_connect_copies_toolfold_environment_variables_to_the_gateway_entry(
    person: Path, toolfold: Toolfold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TOOLFOLD_TOOLS__RAG_TOP_K", "7")
    assert toolfold("connect", "cursor", "--yes").code == 0
    passed = read_servers(person, "cursor")["toolfold"]["env"]
    assert passed["XDG_STATE_HOME"] == str(tmp_path / "state")
    assert passed["TOOLFOLD_TOOLS__RAG_TOP_K"] == "7"


def test_connect_lists_the_mcp_servers_that_the_client_program_still_starts_directly(
    person: Path, toolfold: Toolfold
) -> None:
    done = toolfold("connect", "cursor", "--yes")
    assert "Cursor still starts git itself" in done.err
    assert "toolfold connect cursor --replace" in done.err
    assert "still starts" not in toolfold("connect", "windsurf", "--replace", "--yes").err


def test_connect_undo_lists_servers_that_stay_configured_in_toolfold_by_their_toolfold_names(
    person: Path, toolfold: Toolfold
) -> None:
    file = person / FILES["cursor"]
    file.write_text(file.read_text().replace('"git"', '"my git"', 1))
    assert toolfold("connect", "cursor", "--replace", "--yes").code == 0
    assert set(servers()) == {"my-git"}
    undone = toolfold("connect", "cursor", "--undo", "--yes")
    assert "still configured in Toolfold: my-git" in undone.out
