"""`toolfold config`, with real files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Toolfold
from toolfold.cli.config import COMMON_SETTINGS
from toolfold.config import load_config


def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *texts: str) -> None:
    """Set $EDITOR to a script that writes the given texts, one each time it is opened."""
    script = tmp_path / "editor.py"
    script.write_text(
        "import pathlib, sys\n"
        f"texts = {texts!r}\n"
        f"count = pathlib.Path({str(tmp_path / 'opened')!r})\n"
        "turn = len(count.read_text()) if count.exists() else 0\n"
        "count.write_text('x' * (turn + 1))\n"
        "file = pathlib.Path(sys.argv[1])\n"
        "file.write_text(texts[min(turn, len(texts) - 1)])\n"
    )
    monkeypatch.setenv("VISUAL", f"{sys.executable} {script}")


def test_config_show_lists_every_setting_with_its_origin(toolfold: Toolfold) -> None:
    Path("toolfold.yaml").write_text("tools:\n  selection: keyword\n")
    shown = toolfold("config", "show", "--json").json
    assert shown["tools.selection"]["value"] == "keyword"
    assert "toolfold.yaml" in shown["tools.selection"]["from"]
    assert shown["tools.rag_top_k"] == {"value": 8, "from": "default"}
    assert "tools.tool_search.threshold_pct" in toolfold("config", "show", "--all").out


def test_config_show_prints_common_and_changed_settings_and_the_number_of_the_others(
    toolfold: Toolfold,
) -> None:
    Path("toolfold.yaml").write_text("tools:\n  patience_seconds: 3\n")
    shown = toolfold("config", "show").out
    assert "tools.patience_seconds" in shown
    assert "tools.tool_search.threshold_pct" not in shown
    assert "config show --all" in shown
    assert toolfold("config", "show", "--json").json.keys() >= COMMON_SETTINGS


def test_config_get_prints_the_value_stored_by_config_set_and_the_default_after_config_unset(
    toolfold: Toolfold,
) -> None:
    assert toolfold("config", "set", "tools.selection", "keyword").code == 0
    assert toolfold("config", "get", "tools.selection").out == "keyword\n"
    assert toolfold("config", "unset", "tools.selection").code == 0
    assert toolfold("config", "get", "tools.selection").out == "auto\n"


def test_config_set_with_option_in_project_writes_the_settings_file_of_the_project(
    toolfold: Toolfold,
) -> None:
    assert toolfold("config", "set", "--in-project", "tools.rag_top_k", "4").code == 0
    assert "rag_top_k: 4" in Path("toolfold.yaml").read_text()


def test_config_set_with_unknown_key_or_bad_value_changes_nothing(toolfold: Toolfold) -> None:
    assert toolfold("config", "set", "tools.selektion", "keyword").code == 3
    done = toolfold("config", "set", "tools.selection", "everything")
    assert done.code == 3
    assert "eager" in done.err
    assert toolfold("config", "get", "tools.selection").out == "auto\n"


def test_config_set_with_a_number_above_the_maximum_warns_that_the_maximum_is_used(
    toolfold: Toolfold,
) -> None:
    done = toolfold("config", "set", "tools.tool_search.max_search_limit", "500")
    assert done.code == 0
    assert "warning" in done.err
    assert toolfold("config", "get", "tools.tool_search.max_search_limit").out == "50\n"


def test_invalid_settings_file_can_be_repaired_with_config_set(toolfold: Toolfold, tmp_path: Path) -> None:
    Path("toolfold.yaml").write_text("tools:\n  selektion: keyword\n")
    assert toolfold("config", "show").code == 3
    assert toolfold("config", "unset", "--in-project", "tools.selektion").code == 0
    assert toolfold("config", "show").code == 0


def test_config_schema_documents_every_key_and_prints_json_schema(toolfold: Toolfold) -> None:
    text = toolfold("config", "schema").out
    for key in ("tools.rag_top_k", "tools.tool_search.reranker.endpoint", "files.extra_roots"):
        assert key in text
    schema = toolfold("config", "schema", "--json").json
    assert schema["type"] == "object"
    assert "tools" in schema["properties"]


def test_config_edit_saves_valid_settings(
    toolfold: Toolfold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor(tmp_path, monkeypatch, "# mine\ntools:\n  rag_top_k: 6\n")
    assert toolfold("config", "edit", "--in-project").code == 0
    assert Path("toolfold.yaml").read_text() == "# mine\ntools:\n  rag_top_k: 6\n"


def test_config_edit_rejects_invalid_settings_and_leaves_the_file_unchanged(
    toolfold: Toolfold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("toolfold.yaml").write_text("tools:\n  rag_top_k: 6\n")
    editor(tmp_path, monkeypatch, "tools:\n  rag_top: 6\n")
    done = toolfold("config", "edit", "--in-project")
    assert done.code != 0
    assert "rag_top is not a setting" in done.err
    assert Path("toolfold.yaml").read_text() == "tools:\n  rag_top_k: 6\n"


SERVER = """
mcp:
  servers:
    x:
      url: https://alice:Hunter2xyz@mcp.example.com/mcp?key=Hunter3xyz&page=2
      headers: {X-Api-Key: Hunter4xyz, Accept: text/plain}
    y:
      command: y
      args: [--api-key, Hunter5xyz, --port, "80"]
      env: {Y_TOKEN: Hunter6xyz, LEVEL: debug, REF_TOKEN: "${OTHER}"}
approval:
  smart_endpoint: https://alice:Hunter7xyz@embed.example.com/v1?key=Hunter8xyz
"""


@pytest.mark.parametrize("how", [["show", "--json"], ["show"], ["get", "mcp"],
                                 ["get", "mcp.servers.x.url"], ["get", "approval.smart_endpoint"],
                                 ["get", "mcp.servers.y", "--json"]])  # fmt: skip
def test_config_show_and_config_get_redact_secrets_in_settings(toolfold: Toolfold, how: list[str]) -> None:
    load_config().paths.user_file.parent.mkdir(parents=True, exist_ok=True)
    load_config().paths.user_file.write_text(SERVER)
    done = toolfold("config", *how)
    assert done.code == 0, done
    assert "Hunter" not in done.out + done.err


def test_config_show_does_not_redact_non_secret_values_of_a_server_with_secrets(toolfold: Toolfold) -> None:
    load_config().paths.user_file.parent.mkdir(parents=True, exist_ok=True)
    load_config().paths.user_file.write_text(SERVER)
    shown = toolfold("config", "show", "--json").out
    assert all(
        each in shown
        for each in ("mcp.example.com/mcp", "page=2", "text/plain", "--port", "debug", "${OTHER}")
    )


def test_config_set_of_a_secret_in_a_project_file_warns_and_restricts_the_file_to_its_owner(
    toolfold: Toolfold,
) -> None:
    done = toolfold("config", "set", "--in-project", "mcp.servers.x.url", "https://a:Hunter2xyz@h/mcp")
    assert done.code == 0, done
    assert Path("toolfold.yaml").stat().st_mode & 0o077 == 0
    assert "secrets should not be written" in done.err


def test_config_set_changes_a_setting_of_a_configured_mcp_server(toolfold: Toolfold) -> None:
    toolfold("mcp", "add", "--no-test", "--yes", "git", "uvx", "mcp-server-git")
    assert toolfold("config", "set", "mcp.servers.git.trust", "warn").code == 0
    assert toolfold("config", "set", "mcp.servers.git.env.MODE", "fast").code == 0
    server = load_config().mcp.servers["git"]
    assert (server.trust, dict(server.env), server.command) == ("warn", {"MODE": "fast"}, "uvx")


def test_config_set_for_an_unknown_mcp_server_suggests_a_similar_server_name(toolfold: Toolfold) -> None:
    toolfold("mcp", "add", "--no-test", "--yes", "git", "uvx", "mcp-server-git")
    done = toolfold("config", "set", "mcp.servers.gti.trust", "warn")
    assert done.code == 3
    assert "there is no mcp.servers.gti" in done.err
    assert "did you mean git?" in done.err
    assert "did you mean trust?" in toolfold("config", "set", "mcp.servers.git.trst", "warn").err
    assert list(load_config().mcp.servers) == ["git"]


def test_config_set_for_an_mcp_server_of_the_project_file_suggests_the_option_in_project(
    toolfold: Toolfold,
) -> None:
    Path("toolfold.yaml").write_text("mcp: {servers: {git: {command: run}}}\n")
    done = toolfold("config", "set", "mcp.servers.git.trust", "warn")
    assert done.code == 3
    assert "--in-project" in done.err
    assert toolfold("config", "set", "--in-project", "mcp.servers.git.trust", "warn").code == 0
