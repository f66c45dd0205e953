"""`toolfold connect --proxy` on the settings files of every program, and the check of `toolfold doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Toolfold
from tests.gateway.harness import free_port
from tests.proxy.harness import serve_proxy
from tests.proxy.upstream import Prepared, serve_upstream
from toolfold.cli.connecting import MODEL_PROGRAMS
from toolfold.cli.doctor_proxy import check_proxy_programs
from toolfold.config import load_config
from toolfold.mcp.importing.documents import parse_document

ROOT = "http://127.0.0.1:8765"
FILES = {
    "claude-code": ".claude/settings.json",
    "codex": ".codex/config.toml",
    "opencode": ".config/opencode/opencode.json",
    "goose": ".config/goose/config.yaml",
    "aider": ".aider.conf.yml",
}
# Realistic files with comments, unusual whitespace and the end of lines of Windows.
CONTENTS = {
    "claude-code": '{"env": {"DEBUG": "1"},\r\n "permissions": {"allow": ["Bash(ls:*)"]}}\r\n',
    "codex": """# my settings
model = "gpt-5" # fast
model_provider = "openai"

[model_providers.house]  # ours
name = "House"
base_url = "https://models.example.com/v1"

[mcp_servers.git]
command = "uvx"
""",
    "opencode": """{
  // the model for everything
  "model": "openai/gpt-5",
  "provider": {
    "openai": {"options": {"timeout": 600}},
  },
}
""",
    "goose": "# goose\nGOOSE_PROVIDER: openai\nextensions:\n  developer:\n    enabled: true\n",
    "aider": "# aider\nmodel: gpt-5\nauto-commits: false\n",
}
EXPECTED: dict[str, dict[str, Any]] = {
    "claude-code": {"env": {"DEBUG": "1", "ANTHROPIC_BASE_URL": ROOT, "ENABLE_TOOL_SEARCH": "false"}},
    "codex": {"model": "gpt-5", "model_provider": "toolfold"},
    "opencode": {
        "provider": {
            "openai": {"options": {"timeout": 600, "baseURL": f"{ROOT}/v1"}},
            "anthropic": {"options": {"baseURL": f"{ROOT}/v1"}},
        }
    },
    "goose": {"OPENAI_HOST": ROOT, "ANTHROPIC_HOST": ROOT, "GOOSE_PROVIDER": "openai"},
    "aider": {"openai-api-base": f"{ROOT}/v1", "model": "gpt-5"},
}


@pytest.fixture(autouse=True)
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Home directory of a user."""
    directory = tmp_path / "person"
    directory.mkdir()
    monkeypatch.setenv("HOME", str(directory))
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR", "OPENCODE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return directory


def write_file(person: Path, program: str) -> Path:
    file = person / FILES[program]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(CONTENTS[program].encode())
    return file


def parse_file(file: Path) -> dict[str, Any]:
    return parse_document(file.read_text(), file)


@pytest.mark.parametrize("program", MODEL_PROGRAMS)
def test_connect_proxy_adds_the_proxy_url_and_undo_restores_the_settings_file_exactly(
    program: str, person: Path, toolfold: Toolfold
) -> None:
    file = write_file(person, program)
    before = file.read_bytes()
    done = toolfold("connect", program, "--proxy", "--yes")
    assert done.code == 0, done.err
    assert f"toolfold connect {program} --proxy --undo" in done.out
    content = parse_file(file)
    assert {key: content[key] for key in EXPECTED[program]} == EXPECTED[program]
    for line in CONTENTS[program].splitlines():
        if "#" in line or "//" in line:
            assert line in file.read_text()
    connected = file.read_bytes()
    assert "already uses the proxy" in toolfold("connect", program, "--proxy", "--yes").out
    assert file.read_bytes() == connected
    assert toolfold("connect", program, "--proxy", "--undo", "--yes").code == 0
    assert file.read_bytes() == before
    assert sorted(file.parent.iterdir()) == [file] or program == "aider"


@pytest.mark.parametrize("program", MODEL_PROGRAMS)
def test_connect_proxy_creates_a_missing_settings_file_and_undo_deletes_it(
    program: str, person: Path, toolfold: Toolfold
) -> None:
    assert toolfold("connect", program, "--proxy", "--yes").code == 0
    assert ROOT in (person / FILES[program]).read_text()
    assert toolfold("connect", program, "--proxy", "--undo", "--yes").code == 0
    assert list(person.iterdir()) == []


@pytest.mark.parametrize("program", MODEL_PROGRAMS)
def test_connect_proxy_undo_with_option_keep_changes_keeps_later_edits_of_the_settings_file(
    program: str, person: Path, toolfold: Toolfold
) -> None:
    file = write_file(person, program)
    before = parse_file(file)
    toolfold("connect", program, "--proxy", "--yes")
    edited = file.read_text()
    added = {".toml": "\n[tui]\nx = 1\n", ".json": "\n", ".yaml": "added: 1\n", ".yml": "added: 1\n"}
    file.write_text(edited + added[file.suffix])
    refused = toolfold("connect", program, "--proxy", "--undo", "--yes")
    assert refused.code == 1
    assert "was edited since it was connected" in refused.err
    assert toolfold("connect", program, "--proxy", "--undo", "--keep-changes", "--yes").code == 0
    left = parse_file(file)
    for key in ("added", "tui"):
        left.pop(key, None)
    if program == "opencode":  # mappings that were created stay, without content
        assert left["provider"].pop("anthropic") == {"options": {}}
    assert left == before
    assert ROOT not in file.read_text()


def test_connect_proxy_without_confirmation_writes_no_file(person: Path, toolfold: Toolfold) -> None:
    done = toolfold("connect", "claude-code", "--proxy")
    assert done.code == 1
    assert '+    "ANTHROPIC_BASE_URL": "http://127.0.0.1:8765"' in done.out
    assert list(person.iterdir()) == []


def test_gateway_and_proxy_entries_in_one_settings_file_can_be_undone_separately(
    person: Path, toolfold: Toolfold
) -> None:
    file = write_file(person, "codex")
    before = file.read_bytes()
    assert toolfold("connect", "codex", "--yes").code == 0
    with_gateway = file.read_bytes()
    assert toolfold("connect", "codex", "--proxy", "--yes").code == 0
    assert set(parse_file(file)["mcp_servers"]) == {"git", "toolfold"}
    assert toolfold("connect", "codex", "--proxy", "--undo", "--yes").code == 0
    assert file.read_bytes() == with_gateway
    assert toolfold("connect", "codex", "--undo", "--yes").code == 0
    assert file.read_bytes() == before


def test_connect_proxy_writes_the_name_of_the_token_variable_and_not_the_token(
    person: Path, toolfold: Toolfold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_TOKEN", "tf_secret")
    for program in MODEL_PROGRAMS:
        done = toolfold("connect", program, "--proxy", "--token-env", "TF_TOKEN", "--yes")
        assert done.code == 0
        assert "tf_secret" not in (person / FILES[program]).read_text() + done.out
    provider = parse_file(person / FILES["codex"])["model_providers"]["toolfold"]
    assert provider["env_http_headers"] == {"X-Toolfold-Token": "TF_TOKEN"}
    options = parse_file(person / FILES["opencode"])["provider"]["anthropic"]["options"]
    assert options["headers"] == {"X-Toolfold-Token": "{env:TF_TOKEN}"}


def test_connect_proxy_does_not_print_api_keys_of_the_settings_file(person: Path, toolfold: Toolfold) -> None:
    file = person / FILES["claude-code"]
    file.parent.mkdir()
    file.write_text('{\n  "env": {\n    "MY_API_KEY": "hunter2hunter2"\n  }\n}\n')
    done = toolfold("connect", "claude-code", "--proxy", "--yes")
    assert "ANTHROPIC_BASE_URL" in done.out
    assert "hunter2" not in done.out
    assert "hunter2hunter2" in file.read_text()


def test_connect_proxy_reports_the_model_api_url_that_it_replaces_in_the_settings_file(
    person: Path, toolfold: Toolfold
) -> None:
    file = person / FILES["claude-code"]
    file.parent.mkdir()
    file.write_text('{"env": {"ANTHROPIC_BASE_URL": "https://models.example.com"}}')
    done = toolfold("connect", "claude-code", "--proxy", "--yes", "--http", "http://127.0.0.1:9000/v1")
    assert "toolfold config set providers.anthropic.base_url https://models.example.com" in done.err
    assert parse_file(file)["env"]["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:9000"


def test_connect_proxy_refuses_programs_that_cannot_use_the_proxy(person: Path, toolfold: Toolfold) -> None:
    assert "uses Google's API" in toolfold("connect", "gemini", "--proxy", "--yes").err
    assert "has no settings file in which" in toolfold("connect", "cursor", "--proxy", "--yes").err
    assert "aider is not an MCP client" in toolfold("connect", "aider", "--yes").err
    assert list(person.iterdir()) == []


def check_program() -> tuple[str, str]:
    """Return the mark and the text of the only finding about a connected program."""
    (finding,) = check_proxy_programs(load_config())
    return finding.mark, finding.what


def test_doctor_reports_for_each_program_connected_to_the_proxy_whether_its_provider_responds(
    person: Path, toolfold: Toolfold, tmp_path: Path
) -> None:
    stopped = f"http://127.0.0.1:{free_port()}"
    providers = {"providers.openai": {"dialect": "openai", "base_url": f"{stopped}/v1"}}
    with serve_upstream() as upstream, serve_proxy(tmp_path / "proxy", upstream.url, providers) as proxy:
        toolfold("connect", "aider", "--proxy", "--yes", "--http", proxy.url)
        mark, what = check_program()
        assert mark == "fail"
        assert what.startswith("aider uses the proxy, but the provider does not answer: ")
        toolfold("connect", "aider", "--proxy", "--undo", "--yes")
        toolfold("connect", "claude-code", "--proxy", "--yes", "--http", proxy.url)
        upstream.prepared = [Prepared(status=401)]
        findings = toolfold("doctor", "--json").json["findings"]
        working = "Claude Code uses the proxy, and the provider answers"
        assert [each["mark"] for each in findings if each["what"].startswith(working)] == ["ok"]
        assert [each.path for each in upstream.received] == ["/v1/models"]
        toolfold("connect", "claude-code", "--proxy", "--yes", "--http", upstream.url)
        mark, what = check_program()
        assert (mark, "a program other than Toolfold answers" in what) == ("fail", True)
    toolfold("connect", "claude-code", "--proxy", "--yes", "--http", stopped)
    mark, what = check_program()
    assert (mark, "no proxy is running there" in what) == ("fail", True)
    (person / FILES["claude-code"]).write_text("{}")
    mark, what = check_program()
    assert (mark, "env.ANTHROPIC_BASE_URL was changed" in what) == ("warn", True)
