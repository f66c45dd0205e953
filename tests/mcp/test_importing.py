"""Import of servers from the configuration files of other clients, in their own formats."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import check_cases
from toolfold.cli.connecting import servers_key
from toolfold.config.servers_settings import McpServerSettings, parse_server_settings
from toolfold.core.errors import ConfigError
from toolfold.mcp.importing import (
    CLIENTS,
    ClientConfigFile,
    ImportedServer,
    ImportResult,
    build_candidates,
    find_config_files,
    find_literal_secrets,
    guess_client,
    is_gateway,
    normalise_server_name,
    read_client_file,
    redact_settings,
    replace_secrets,
)
from toolfold.mcp.importing.documents import parse_document, read_document, strip_comments
from toolfold.mcp.importing.import_types import ClientName, FileScope, RejectedEntryError
from toolfold.mcp.importing.variables import Variables
from toolfold.mcp.setting_references import resolve_references

TOKEN = "ghp_" + "a1B2" * 9

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["command", "args", "env", "url", "type", "headers", "cwd", "timeout", "x"])
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def import_text(
    folder: Path, client: ClientName, text: str, name: str = "mcp.json", scope: FileScope = "user"
) -> ImportResult:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return read_client_file(ClientConfigFile(client, scope, file), home=folder / "home", project=folder)


def servers(result: ImportResult) -> dict[str, Any]:
    assert not result.problem
    return {each.name: each.settings for each in result.servers}


def import_entry(
    folder: Path, client: ClientName, entry: dict[str, Any], scope: FileScope = "user", **more: Any
) -> ImportedServer:
    key = "servers" if client == "vscode" else "mcpServers"
    result = import_text(folder, client, json.dumps({key: {"it": entry}, **more}), scope=scope)
    assert result.rejected == ()
    return result.servers[0]


def test_servers_are_imported_from_the_configuration_file_of_claude_desktop(tmp_path: Path) -> None:
    result = import_text(
        tmp_path,
        "claude-desktop",
        """{"globalShortcut": "", "mcpServers": {
            "filesystem": {"command": "npx",
                           "args": ["-y", "@modelcontextprotocol/server-filesystem", "/data"]},
            "github": {"command": "docker", "args": ["run", "-i"], "env": {"PAT": "secret-value"}}}}""",
    )
    assert servers(result) == {
        "filesystem": {
            "command": "npx",
            "args": ["-y", "@modelcontextprotocol/server-filesystem", "/data"],
        },
        "github": {"command": "docker", "args": ["run", "-i"], "env": {"PAT": "secret-value"}},
    }


def test_user_and_project_servers_are_imported_from_the_files_of_claude_code(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "history": ["anything"],
            "mcpServers": {
                "web": {"type": "http", "url": "https://x.example/mcp", "headers": {"X-Key": "${KEY:-none}"}},
                "off": {"command": "off"},
            },
            "projects": {
                str(tmp_path): {
                    "mcpServers": {"here": {"type": "stdio", "command": "${HOME}/bin/run", "timeout": 5000}},
                    "disabledMcpServers": ["off", "unknown", 3],
                },
                "/elsewhere": {"mcpServers": {"there": {"command": "x"}}},
            },
        }
    )
    result = import_text(tmp_path, "claude-code", text, ".claude.json")
    assert servers(result) == {
        "web": {"url": "https://x.example/mcp", "headers": {"X-Key": "${KEY:-none}"}},
        "off": {"command": "off", "enabled": False},
        "here": {"command": "${HOME}/bin/run", "call_timeout_seconds": 5.0, "cwd": str(tmp_path)},
    }
    assert result.remarks == ("it also has servers for 1 other project; run the import in their directories",)


def test_oauth_client_id_and_secret_and_scopes_and_redirect_port_are_imported_from_client_files(
    tmp_path: Path,
) -> None:
    entry = {
        "type": "http",
        "url": "https://x.example/mcp",
        "oauth": {
            "clientId": "me",
            "callbackPort": 8080,
            "scopes": "read write",
            "authServerMetadataUrl": "https://y",
        },
    }
    found = import_entry(tmp_path, "claude-code", entry)
    assert found.settings["oauth"] == {"client_id": "me", "scopes": ["read", "write"], "redirect_port": 8080}
    assert found.remarks == ("oauth.authServerMetadataUrl has no counterpart and is left out",)
    entry = {"url": "https://x.example", "auth": {"CLIENT_ID": "me", "CLIENT_SECRET": "${env:SECRET}"}}
    assert import_entry(tmp_path, "cursor", entry).settings["oauth"] == {
        "client_id": "me",
        "client_secret": "${SECRET}",
    }


def test_variable_references_in_cursor_files_are_translated_to_toolfold_syntax(tmp_path: Path) -> None:
    entry = {
        "command": "${userHome}/bin/server",
        "args": ["${workspaceFolder}/data", "${workspaceFolderBasename}", "a${/}b"],
        "env": {"TOKEN": "${env:MY_TOKEN}"},
        "envFile": "${workspaceFolder}/.env",
    }
    found = import_entry(tmp_path, "cursor", entry, scope="project")
    assert found.settings == {
        "command": f"{tmp_path}/home/bin/server",
        "args": [f"{tmp_path}/data", tmp_path.name, "a/b"],
        "env": {"TOKEN": "${MY_TOKEN}"},
        "cwd": str(tmp_path),
    }
    assert len(found.remarks) == 1
    assert ".env" in found.remarks[0]


def test_server_with_the_workspace_folder_variable_is_not_imported_from_a_user_config_file(
    tmp_path: Path,
) -> None:
    result = import_text(
        tmp_path, "cursor", '{"mcpServers": {"it": {"command": "x", "args": ["${workspaceFolder}"]}}}'
    )
    assert result.servers == ()
    assert result.rejected[0].reason == "the server uses ${workspaceFolder} but belongs to no project"


def test_servers_are_imported_from_vscode_files_with_comments_and_inputs(tmp_path: Path) -> None:
    result = import_text(
        tmp_path,
        "vscode",
        """{
          // the token is asked for
          "inputs": [{"type": "promptString", "id": "gh-token", "description": "GitHub token"},
                     {"type": "promptString", "id": "region", "default": "eu",},],
          "servers": {
            "gh": {"type": "http", "url": "https://gh.example/mcp", /* "x": 1, */
                   "headers": {"Authorization": "Bearer ${input:gh-token}"},},
            "db": {"type": "stdio", "command": "db // no comment", "sandboxEnabled": true,
                   "env": {"REGION": "${input:region}", "N": 3, "NONE": null}},
            "socket": {"type": "http", "url": "unix:///tmp/x.sock"},
            "odd": {"command": "x", "args": ["${command:pick}"]},
          },
        }""",
    )
    assert servers(result) == {
        "gh": {"url": "https://gh.example/mcp", "headers": {"Authorization": "Bearer ${GH_TOKEN}"}},
        "db": {"command": "db // no comment", "env": {"REGION": "${REGION:-eu}", "N": "3"}},
    }
    remarks = {each.name: each.remarks for each in result.servers}
    assert remarks["gh"] == ("the editor asks for 'gh-token' (GitHub token): set the variable GH_TOKEN",)
    assert "sandbox" in remarks["db"][1]
    whys = {each.name: each.reason for each in result.rejected}
    assert whys["socket"] == "url must start with http:// or https://"
    assert "${command:pick}" in whys["odd"]


def test_servers_are_imported_from_the_settings_format_of_older_vscode_versions(tmp_path: Path) -> None:
    text = '{"editor.fontSize": 12, "mcp": {"servers": {"it": {"command": "x"}}}}'
    assert servers(import_text(tmp_path, "vscode", text, "settings.json")) == {"it": {"command": "x"}}
    assert servers(import_text(tmp_path, "vscode", '{"editor.fontSize": 12}', "settings.json")) == {}


def test_keys_of_a_windsurf_server_entry_are_translated_to_settings_of_toolfold(tmp_path: Path) -> None:
    entry = {
        "serverUrl": "https://x.example/sse",
        "headers": {"Authorization": "Bearer ${env:T}"},
        "disabled": True,
        "disabledTools": ["drop_table", "odd[1]"],
    }
    assert import_entry(tmp_path, "windsurf", entry).settings == {
        "url": "https://x.example/sse",
        "headers": {"Authorization": "Bearer ${T}"},
        "transport": "sse",
        "enabled": False,
        "exclude": ["drop_table", "odd[[]1]"],
    }


def test_servers_are_imported_from_the_toml_tables_of_a_codex_file(tmp_path: Path) -> None:
    result = import_text(
        tmp_path,
        "codex",
        """
        model = "some-model"
        [mcp_servers.docs]
        command = "npx"
        args = ["-y", "docs"]
        env_vars = ["TOKEN", {name = "OTHER", source = "local"}, {name = "FAR", source = "remote"}]
        startup_timeout_sec = 20
        tool_timeout_sec = 1200
        enabled_tools = ["search"]
        default_tools_approval_mode = "approve"
        [mcp_servers.docs.env]
        MODE = "fast"
        [mcp_servers.web]
        url = "https://x.example/mcp"
        bearer_token_env_var = "WEB_TOKEN"
        http_headers = {X-Region = "eu"}
        env_http_headers = {X-Key = "WEB_KEY"}
        enabled = false
        scopes = ["a"]
        [mcp_servers.bad]
        url = "https://x.example/mcp"
        bearer_token_env_var = "not a name"
        """,
        "config.toml",
    )
    assert servers(result) == {
        "docs": {
            "command": "npx",
            "args": ["-y", "docs"],
            "env": {"MODE": "fast"},
            "pass_env": ["TOKEN", "OTHER"],
            "connect_timeout_seconds": 20.0,
            "call_timeout_seconds": 1200.0,
            "max_call_seconds": 1200.0,
            "include": ["search"],
        },
        "web": {
            "url": "https://x.example/mcp",
            "headers": {
                "X-Region": "eu",
                "X-Key": "${WEB_KEY}",
                "Authorization": "Bearer ${WEB_TOKEN}",
            },
            "enabled": False,
            "oauth": {"scopes": ["a"]},
        },
    }
    assert [each.name for each in result.rejected] == ["bad"]
    assert any("FAR" in remark for remark in result.servers[0].remarks)


def test_servers_are_imported_from_the_extensions_in_a_goose_config_file(tmp_path: Path) -> None:
    result = import_text(
        tmp_path,
        "goose",
        """
extensions:
  developer: {type: builtin, enabled: true, name: developer}
  git:
    type: stdio
    name: git
    enabled: true
    cmd: uvx
    args: [mcp-server-git]
    envs: {MODE: fast}
    env_keys: [GIT_TOKEN]
    timeout: 300
    bundled: null
    available_tools: []
  web: {type: streamable_http, uri: "https://x.example/mcp", headers: {X-A: b}, enabled: false}
  deeper: {enabled: true, config: {type: sse, uri: "https://y.example/events"}}
""",
        "config.yaml",
    )
    assert servers(result) == {
        "git": {
            "command": "uvx",
            "args": ["mcp-server-git"],
            "env": {"MODE": "fast", "GIT_TOKEN": "${GIT_TOKEN}"},
            "call_timeout_seconds": 300.0,
        },
        "web": {"url": "https://x.example/mcp", "headers": {"X-A": "b"}, "enabled": False},
        "deeper": {"url": "https://y.example/events", "transport": "sse"},
    }
    assert result.rejected[0].reason == "the extension is a part of Goose, not an MCP server"
    assert "GIT_TOKEN" in result.servers[0].remarks[0]


def test_variable_reference_is_imported_unchanged_in_env_and_escaped_in_arguments(tmp_path: Path) -> None:
    entry = {"command": "sh", "args": ["-c", "run ${FOO} ${1:-x"], "env": {"KEY": "${KEY}"}}
    found = import_entry(tmp_path, "claude-desktop", entry)
    assert found.settings["args"] == ["-c", "run $${FOO} $${1:-x"]
    assert resolve_references(found.settings["args"][1], {}) == "run ${FOO} ${1:-x"
    assert found.settings["env"] == {"KEY": "${KEY}"}
    assert "Toolfold expands the variable" in found.remarks[0]


def test_imported_timeout_is_reduced_to_the_maximum_and_a_negative_timeout_is_ignored(
    tmp_path: Path,
) -> None:
    text = "[mcp_servers.a]\ncommand = 'x'\nstartup_timeout_sec = 99999\ntool_timeout_sec = -1\n"
    found = import_text(tmp_path, "codex", text, "config.toml").servers[0]
    assert found.settings == {"command": "x", "connect_timeout_seconds": 600.0}
    assert found.remarks == ("tool_timeout_sec is not a valid time limit and is left out",)


@pytest.mark.parametrize(
    "entry",
    [
        "text",
        {},
        {"args": ["only"]},
        {"command": 5},
        {"command": "x", "args": "y"},
        {"command": "x", "args": [{}]},
        {"command": "x", "env": ["A=1"]},
        {"command": "x", "env": {"A": {}}},
        {"command": "x\0"},
        {"command": "x", "url": "https://x.example"},
        {"type": "websocket", "url": "https://x.example"},
        {"type": "stdio", "url": "https://x.example"},
        {"url": "ftp://x.example"},
        {"url": "https://x.example", "oauth": {"callbackPort": 99_999}},
    ],
    ids=str,
)
def test_invalid_server_entry_is_rejected_with_a_reason_and_other_entries_are_imported(
    tmp_path: Path, entry: Any
) -> None:
    text = json.dumps({"mcpServers": {"bad": entry, "good": {"command": "y"}}})
    result = import_text(tmp_path, "claude-code", text)
    assert servers(result) == {"good": {"command": "y"}}
    assert result.rejected[0].name == "bad"
    assert result.rejected[0].reason


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mcp.json", "{"),
        ("mcp.json", "[1]"),
        ("mcp.json", "[" * 100_000),
        ("mcp.json", '{"a": ' + "9" * 5_000 + "}"),
        ("config.toml", "= 1"),
        ("config.toml", "a = " + "[" * 5_000),
        ("config.toml", "a." * 1_000 + "a = 1"),
        ("config.toml", "a = 1\n" + "#" * (1 << 18)),
        ("config.yaml", "a: [1"),
        ("config.yaml", "a: !!python/object 1"),
        ("mcp.json", '"' + "x" * (1 << 20) + '"'),
    ],
    ids=lambda value: value[:20],
)
def test_unparsable_client_config_file_is_reported_and_yields_no_servers(
    tmp_path: Path, name: str, text: str
) -> None:
    client: ClientName = guess_client(tmp_path / name) if name != "mcp.json" else "cursor"
    result = import_text(tmp_path, client, text, name)
    assert result.problem
    assert (result.servers, result.rejected) == ((), ())


def test_size_limit_is_higher_for_the_claude_code_file_than_for_other_client_config_files(
    tmp_path: Path,
) -> None:
    text = json.dumps({"history": "x" * (2 << 20), "mcpServers": {"it": {"command": "x"}}})
    assert servers(import_text(tmp_path, "claude-code", text)) == {"it": {"command": "x"}}
    assert "larger" in import_text(tmp_path, "cursor", text).problem
    assert "larger" in import_text(tmp_path, "claude-code", text, scope="project").problem


def test_importing_from_a_path_that_is_not_a_regular_file_reports_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a regular file"):
        read_document(tmp_path)
    assert read_client_file(
        ClientConfigFile("cursor", "user", tmp_path / "none"), home=tmp_path, project=tmp_path
    ).problem


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_configuration_files_of_all_client_programs_are_found_on_linux_macos_and_windows(
    tmp_path: Path, platform: str
) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    support = {"linux": ".config", "darwin": "Library/Application Support", "win32": "AppData/Roaming"}[
        platform
    ]
    goose = "AppData/Roaming/Block/goose/config" if platform == "win32" else ".config/goose"
    files = [
        home / support / "Claude/claude_desktop_config.json",
        home / ".claude.json",
        home / ".cursor/mcp.json",
        home / support / "Code/User/mcp.json",
        home / support / "Code/User/profiles/a/mcp.json",
        home / support / "VSCodium/User/settings.json",
        home / ".codeium/windsurf/mcp_config.json",
        home / ".codex/config.toml",
        home / ".gemini/settings.json",
        home / ".config/opencode/opencode.json",
        home / goose / "config.yaml",
        project / ".mcp.json",
        project / ".cursor/mcp.json",
        project / ".vscode/mcp.json",
        project / ".codex/config.toml",
        project / ".gemini/settings.json",
        project / "opencode.jsonc",
    ]
    assert find_config_files(home=home, project=project, platform=platform, environment={}) == ()
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    found = find_config_files(home=home, project=project, platform=platform, environment={})
    assert [each.file for each in found] == files
    assert [each.scope for each in found] == ["user"] * 11 + ["project"] * 6
    assert {each.client_name for each in found} == set(CLIENTS)
    assert all(read_client_file(each, home=home, project=project).servers == () for each in found)


def test_client_config_files_are_found_in_directories_set_by_variables_like_codex_home(
    tmp_path: Path,
) -> None:
    for name in ("codex/config.toml", "claude/.claude.json", "xdg/goose/config.yaml"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("")
    environment = {
        "CODEX_HOME": str(tmp_path / "codex"),
        "CLAUDE_CONFIG_DIR": str(tmp_path / "claude"),
        "XDG_CONFIG_HOME": str(tmp_path / "xdg"),
    }
    found = find_config_files(home=tmp_path / "home", project=None, platform="linux", environment=environment)
    assert [each.client_name for each in found] == ["claude-code", "codex", "goose"]


def test_project_config_file_in_the_home_directory_is_ignored(
    tmp_path: Path,
) -> None:
    (tmp_path / ".mcp.json").write_text("")
    assert find_config_files(home=tmp_path, project=tmp_path, platform="linux", environment={}) == ()


def test_client_program_is_inferred_from_the_path_of_its_configuration_file() -> None:
    names = {
        "a/.vscode/mcp.json": "vscode",
        "a/.cursor/mcp.json": "cursor",
        "a/.mcp.json": "claude-code",
        "a/claude_desktop_config.json": "claude-desktop",
        "a/mcp_config.json": "windsurf",
        "a/config.toml": "codex",
        "a/.gemini/settings.json": "gemini",
        "a/opencode.jsonc": "opencode",
        "a/config.yaml": "goose",
        "servers.json": "claude-code",
    }
    assert {name: guess_client(Path(name)) for name in names} == names


def make_server(client: ClientName, name: str, **settings: Any) -> ImportedServer:
    return ImportedServer(name, ClientConfigFile(client, "user", Path(client)), settings)


GATEWAYS = (
    ("/opt/bin/toolfold", "mcp", "serve"),
    ("toolfold", "--project", "/work", "mcp", "serve", "--toolset", "web"),
    ("uvx", "toolfold", "mcp", "serve"),
    ("uvx", "--from", "toolfold[all]", "toolfold", "mcp", "serve"),
    ("pipx", "run", "toolfold", "mcp", "serve"),
    ("python3", "-m", "toolfold", "mcp", "serve"),
    ("python3", "-c", "from toolfold.cli import main; main()", "mcp", "serve"),
    ("C:\\Program Files\\Toolfold.exe", "mcp", "serve"),
    ("sh", "-c", "exec '/opt/bin/toolfold' mcp serve; true"),
    ("npx", "mcp-remote", "http://localhost:8765/mcp"),
)


@check_cases("words", GATEWAYS)
def test_is_gateway_returns_true_for_every_command_that_starts_or_connects_to_the_gateway(
    words: tuple[str, ...],
) -> None:
    settings = {"command": words[0], "args": list(words[1:])}
    assert is_gateway(settings, ["http://127.0.0.1:8765/mcp"])


@check_cases(
    "words",
    [
        ("uvx", "mcp", "serve"),
        ("other", "mcp", "serve", "/srv/toolfold"),
        ("/opt/bin/toolfold", "mcp", "list"),
        ("npx", "mcp-remote", "http://localhost:8766/mcp"),
        (),
    ],
)
def test_is_gateway_returns_false_for_commands_that_do_not_start_the_gateway(words: tuple[str, ...]) -> None:
    settings = {"command": words[0], "args": list(words[1:])} if words else {}
    assert not is_gateway(settings, ["http://127.0.0.1:8765/mcp"])


@check_cases(
    ("url", "is_toolfold"),
    [
        ("http://127.0.0.1:8765/mcp", True),
        ("http://localhost:8765/mcp/", True),
        ("http://[::1]:8765", True),
        ("http://127.0.0.1:8766/mcp", False),
        ("http://127.0.0.1:8765/other", False),
        ("https://x.example:8765/mcp", False),
        ("http://[", False),
        ("http://127.0.0.1:99999/mcp", False),
    ],
)
def test_is_gateway_returns_true_for_the_gateway_url_only_with_a_loopback_host(
    url: str, is_toolfold: bool
) -> None:
    assert is_gateway({"url": url}, ["http://0.0.0.0:8765/mcp"]) is is_toolfold


@given(st.lists(st.text()), st.text(), st.text())
def test_is_gateway_raises_no_error_for_arbitrary_commands_and_urls(
    args: list[str], command: str, url: str
) -> None:
    for settings in ({"command": command, "args": args}, {"url": f"http://{url}"}):
        assert is_gateway(settings, [f"http://{url}", command]) in (True, False)


def test_server_configured_identically_in_two_client_programs_is_imported_once() -> None:
    first, second = (
        make_server("cursor", "git", command="x"),
        make_server("vscode", "git", command="x", args=[]),
    )
    (only,) = build_candidates([first, second], {})
    assert (only.name, only.server, only.duplicate_sources) == ("git", first, (second.source,))


def test_second_imported_server_with_the_same_name_gets_its_client_name_as_suffix() -> None:
    found = [make_server(client, "Git", command=client) for client in ("cursor", "vscode", "vscode")]
    found[2] = make_server("vscode", "git", command="third")
    assert [each.name for each in build_candidates(found, {})] == ["Git", "Git-vscode", "git-vscode-2"]


def test_server_found_for_import_is_marked_as_known_if_it_is_already_configured() -> None:
    known: dict[str, McpServerSettings] = {"git": parse_server_settings({"command": "x"})}
    same, other = build_candidates(
        [make_server("cursor", "git", command="x"), make_server("vscode", "git", command="y")], known
    )
    assert same.is_known
    assert (other.is_known, other.name) == (False, "git-vscode")


def test_find_literal_secrets_finds_plain_text_secrets_but_not_variable_references() -> None:
    settings = {
        "command": "x",
        "args": ["--api-key", "abcdef123456"],
        "env": {"GITHUB_TOKEN": TOKEN, "OTHER_TOKEN": "${OTHER_TOKEN}", "MODE": "fast", "PLAIN": TOKEN},
        "headers": {"Authorization": "Bearer abcdefgh", "X": "${A}"},
    }
    assert find_literal_secrets(settings) == (
        "env.GITHUB_TOKEN",
        "env.PLAIN",
        "headers.Authorization",
        "args",
    )
    assert find_literal_secrets({"url": "https://me:password@x.example"}) == ("url",)
    assert find_literal_secrets({"command": "npx", "args": ["-y", "@org/server", "--port", "80"]}) == ()


def test_redact_settings_replaces_plain_text_secrets_but_not_variable_references() -> None:
    settings = {
        "command": "x",
        "args": ["--api-key", "abcdef123456", "--token=${T}", TOKEN, "--port", "80"],
        "env": {"A_TOKEN": TOKEN, "B_TOKEN": "${B}", "DSN": "postgres://me:password@${HOST}/db"},
        "headers": {"Authorization": "Bearer ${C}", "authorization": "Basic ${C}abc"},
    }
    shown = redact_settings(settings)
    assert shown["args"] == ["--api-key", "[redacted]", "--token=${T}", "[redacted]", "--port", "80"]
    assert shown["env"] == {"A_TOKEN": "[redacted]", "B_TOKEN": "${B}", "DSN": "[redacted]"}
    assert shown["headers"] == {"Authorization": "Bearer ${C}", "authorization": "[redacted]"}
    assert (
        redact_settings({"url": "https://me:password@x.example"})["url"] == "https://me:[redacted]@x.example"
    )
    assert redact_settings({"url": "https://x.example"}) == {"url": "https://x.example"}


def test_replace_secrets_replaces_plain_text_secrets_in_server_settings_by_variable_references() -> None:
    settings = {"env": {"A_TOKEN": TOKEN}, "headers": {"Authorization": f"Bearer {TOKEN}"}, "args": [TOKEN]}
    changed, variables = replace_secrets("my-server", settings)
    assert changed == {
        "env": {"A_TOKEN": "${A_TOKEN}"},
        "headers": {"Authorization": "Bearer ${MY_SERVER_AUTHORIZATION}"},
        "args": [TOKEN],
    }
    assert variables == ("A_TOKEN", "MY_SERVER_AUTHORIZATION")
    assert settings["env"] == {"A_TOKEN": TOKEN}


@given(st.text())
def test_arbitrary_names_are_normalised_to_valid_server_names(text: str) -> None:
    from toolfold.config.servers_settings import McpSettings

    name = normalise_server_name(text)
    assert name in McpSettings.model_validate({"servers": {name: {"command": "x"}}}).servers
    assert "." not in name


@given(st.text(alphabet=st.sampled_from("${}ab:-1/ ")) | st.text())
def test_text_imported_from_a_client_without_variable_syntax_resolves_to_the_original_text(text: str) -> None:
    remarks: list[str] = []
    assert resolve_references(Variables().translate(text, remarks), {}) == text
    assert remarks == []


@given(st.text(alphabet=st.sampled_from("${}AB:-")), st.sampled_from(["none", "shell", "editor"]))
def test_translated_variable_references_of_a_client_config_file_can_always_be_resolved(
    text: str, style: Any
) -> None:
    try:
        mine = Variables(style).translate(text, [], is_value=True)
    except RejectedEntryError:
        return
    names = re.findall("[A-Za-z_]+", mine)
    resolve_references(mine, dict.fromkeys(names, "x"))


@given(st.text(alphabet=st.sampled_from('"\\/*,{}[]:a1 \n')))
def test_strip_comments_raises_no_error_and_never_lengthens_arbitrary_text(text: str) -> None:
    assert len(strip_comments(text)) <= len(text)


@given(JSON_VALUES)
def test_strip_comments_preserves_json_without_comments(value: Any) -> None:
    text = json.dumps(value)
    assert repr(json.loads(strip_comments(text))) == repr(json.loads(text))


@given(JSON_VALUES)
def test_json_with_comments_and_trailing_commas_is_parsed_like_the_same_plain_json(value: Any) -> None:
    plain = json.dumps({"it": value}, indent=1)
    commented = plain.replace("\n", " // a comment, with a comma,\n").replace("\n}", ", /* } */\n}")
    assert repr(parse_document(commented, Path("x.json"))) == repr(parse_document(plain, Path("x.json")))


@given(
    st.text(alphabet=st.sampled_from("[]{}=\"'\n#:-&*!|> a1.\\")), st.sampled_from(["json", "toml", "yaml"])
)
def test_arbitrary_client_config_file_parses_to_a_mapping_or_raises_config_error(
    text: str, suffix: str
) -> None:
    try:
        held = parse_document(text, Path(f"x.{suffix}"))
    except ConfigError:
        return
    assert isinstance(held, dict)


@given(JSON_VALUES, st.sampled_from(sorted(CLIENTS)))
def test_arbitrary_json_as_server_entry_is_imported_or_rejected_without_an_exception(
    tmp_path_factory: pytest.TempPathFactory, value: Any, client: ClientName
) -> None:
    key = servers_key(client)
    file = tmp_path_factory.mktemp("any") / "mcp.json"
    file.write_text(json.dumps({key: {"it": value}, "inputs": value}))
    result = read_client_file(
        ClientConfigFile(client, "user", file), home=Path("/home"), project=Path("/project")
    )
    assert len(result.servers) + len(result.rejected) == 1
    for each in result.servers:
        parse_server_settings(each.settings)
        find_literal_secrets(each.settings)
        replace_secrets("it", each.settings)


def test_servers_are_imported_from_the_settings_file_of_gemini_cli(tmp_path: Path) -> None:
    text = """{"mcpServers": {
        "git": {"command": "uvx", "args": ["git"], "env": {"GH": "${GH_TOKEN}"}, "timeout": 30000,
                "trust": true},
        "docs": {"httpUrl": "https://docs.example/mcp", "includeTools": ["a"], "excludeTools": ["b"]},
        "old": {"url": "https://old.example/events"}}}"""
    result = import_text(tmp_path, "gemini", text, "settings.json")
    assert servers(result) == {
        "git": {
            "command": "uvx",
            "args": ["git"],
            "env": {"GH": "${GH_TOKEN}"},
            "call_timeout_seconds": 30.0,
        },
        "docs": {"url": "https://docs.example/mcp", "include": ["a"], "exclude": ["b"]},
        "old": {"url": "https://old.example/events", "transport": "sse"},
    }
    assert any("automatic approvals" in remark for each in result.servers for remark in each.remarks)


def test_servers_are_imported_from_the_configuration_file_of_opencode(tmp_path: Path) -> None:
    text = """{"mcp": { // mine
        "git": {"type": "local", "command": ["uvx", "git"], "environment": {"GH": "{env:GH_TOKEN}"}},
        "docs": {"type": "remote", "url": "https://docs.example/mcp", "enabled": false,
                 "headers": {"Authorization": "Bearer {env:DOCS}"},
                 "oauth": {"clientId": "x", "scope": "a b"}},
        "file": {"type": "local", "command": ["x", "{file:~/secret}"]},
    }}"""
    result = import_text(tmp_path, "opencode", text, "opencode.jsonc")
    assert servers(result) == {
        "git": {"command": "uvx", "args": ["git"], "env": {"GH": "${GH_TOKEN}"}},
        "docs": {
            "url": "https://docs.example/mcp",
            "headers": {"Authorization": "Bearer ${DOCS}"},
            "enabled": False,
            "oauth": {"client_id": "x", "scopes": ["a", "b"]},
        },
    }
    assert [each.name for each in result.rejected] == ["file"]
    assert "{file:~/secret} cannot be expanded" in result.rejected[0].reason
