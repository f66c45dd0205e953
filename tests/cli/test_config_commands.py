"""`toolfold config`, on real files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Toolfold
from toolfold.config import load_config


def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *texts: str) -> None:
    """An $EDITOR that writes the given texts, one each time it is opened."""
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


def test_show_lists_every_setting_with_its_origin(toolfold: Toolfold) -> None:
    Path("toolfold.yaml").write_text("tools:\n  selection: keyword\n")
    shown = toolfold("config", "show", "--json").json
    assert shown["tools.selection"]["value"] == "keyword"
    assert "toolfold.yaml" in shown["tools.selection"]["from"]
    assert shown["tools.rag_top_k"] == {"value": 8, "from": "default"}
    assert "tools.tool_search.threshold_pct" in toolfold("config", "show").out


def test_set_then_get_then_unset(toolfold: Toolfold) -> None:
    assert toolfold("config", "set", "tools.selection", "keyword").code == 0
    assert toolfold("config", "get", "tools.selection").out == "keyword\n"
    assert toolfold("config", "unset", "tools.selection").code == 0
    assert toolfold("config", "get", "tools.selection").out == "eager\n"


def test_set_in_project_writes_the_projects_file(toolfold: Toolfold) -> None:
    assert toolfold("config", "set", "--in-project", "tools.rag_top_k", "4").code == 0
    assert "rag_top_k: 4" in Path("toolfold.yaml").read_text()


def test_set_of_an_unknown_key_or_bad_value_changes_nothing(toolfold: Toolfold) -> None:
    assert toolfold("config", "set", "tools.selektion", "keyword").code == 3
    done = toolfold("config", "set", "tools.selection", "everything")
    assert done.code == 3
    assert "eager" in done.err
    assert toolfold("config", "get", "tools.selection").out == "eager\n"


def test_a_number_out_of_range_is_clamped_with_a_warning(toolfold: Toolfold) -> None:
    done = toolfold("config", "set", "tools.tool_search.max_search_limit", "500")
    assert done.code == 0
    assert "warning" in done.err
    assert toolfold("config", "get", "tools.tool_search.max_search_limit").out == "50\n"


def test_a_broken_file_can_be_mended_by_the_command_line(toolfold: Toolfold, tmp_path: Path) -> None:
    Path("toolfold.yaml").write_text("tools:\n  selektion: keyword\n")
    assert toolfold("config", "show").code == 3
    assert toolfold("config", "unset", "--in-project", "tools.selektion").code == 0
    assert toolfold("config", "show").code == 0


def test_schema_documents_every_key_and_is_a_json_schema_for_editors(toolfold: Toolfold) -> None:
    text = toolfold("config", "schema").out
    for key in ("tools.rag_top_k", "tools.tool_search.reranker.endpoint", "files.extra_roots"):
        assert key in text
    schema = toolfold("config", "schema", "--json").json
    assert schema["type"] == "object"
    assert "tools" in schema["properties"]


def test_edit_saves_what_can_be_used(
    toolfold: Toolfold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor(tmp_path, monkeypatch, "# mine\ntools:\n  rag_top_k: 6\n")
    assert toolfold("config", "edit", "--in-project").code == 0
    assert Path("toolfold.yaml").read_text() == "# mine\ntools:\n  rag_top_k: 6\n"


def test_edit_refuses_what_cannot_be_used_and_the_file_stays(
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
def test_no_secret_of_the_settings_is_shown(toolfold: Toolfold, how: list[str]) -> None:
    load_config().paths.user_file.parent.mkdir(parents=True, exist_ok=True)
    load_config().paths.user_file.write_text(SERVER)
    done = toolfold("config", *how)
    assert done.code == 0, done
    assert "Hunter" not in done.out + done.err


def test_what_is_not_secret_is_shown(toolfold: Toolfold) -> None:
    load_config().paths.user_file.parent.mkdir(parents=True, exist_ok=True)
    load_config().paths.user_file.write_text(SERVER)
    shown = toolfold("config", "show", "--json").out
    assert all(
        each in shown
        for each in ("mcp.example.com/mcp", "page=2", "text/plain", "--port", "debug", "${OTHER}")
    )


def test_setting_a_secret_in_a_project_file_makes_it_private(toolfold: Toolfold) -> None:
    done = toolfold("config", "set", "--in-project", "mcp.servers.x.url", "https://a:Hunter2xyz@h/mcp")
    assert done.code == 0, done
    assert Path("toolfold.yaml").stat().st_mode & 0o077 == 0
    assert "no place for secrets" in done.err


def test_a_setting_of_an_existing_server_can_be_changed(toolfold: Toolfold) -> None:
    toolfold("mcp", "add", "--no-test", "--yes", "git", "uvx", "mcp-server-git")
    assert toolfold("config", "set", "mcp.servers.git.trust", "warn").code == 0
    assert toolfold("config", "set", "mcp.servers.git.env.MODE", "fast").code == 0
    server = load_config().mcp.servers["git"]
    assert (server.trust, dict(server.env), server.command) == ("warn", {"MODE": "fast"}, "uvx")


def test_a_setting_of_an_unknown_server_names_the_nearest(toolfold: Toolfold) -> None:
    toolfold("mcp", "add", "--no-test", "--yes", "git", "uvx", "mcp-server-git")
    done = toolfold("config", "set", "mcp.servers.gti.trust", "warn")
    assert done.code == 3
    assert "there is no mcp.servers.gti" in done.err
    assert "did you mean git?" in done.err
    assert "did you mean trust?" in toolfold("config", "set", "mcp.servers.git.trst", "warn").err
    assert list(load_config().mcp.servers) == ["git"]


def test_a_server_of_the_project_is_pointed_out(toolfold: Toolfold) -> None:
    Path("toolfold.yaml").write_text("mcp: {servers: {git: {command: run}}}\n")
    done = toolfold("config", "set", "mcp.servers.git.trust", "warn")
    assert done.code == 3
    assert "--in-project" in done.err
    assert toolfold("config", "set", "--in-project", "mcp.servers.git.trust", "warn").code == 0
