"""Global options, `toolfold tools`, `call`, `plugins` and `demo`, run in this process."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Toolfold
from toolfold import cli
from toolfold.cli.app import COMMANDS, RARE_COMMANDS
from toolfold.config import load_config, read_file_value

LABELS = {"toolset", "what", "it", "does", "type", "default", "description"}
"""Words of column names, which a narrow terminal shows as labels."""
PLUGIN = """
import os
from toolfold import tool

@tool(toolset="shop", requires_env=["SHOP_KEY"], check_fn=lambda: bool(os.environ.get("SHOP_KEY")))
def price(item: str) -> int:
    '''Look a price up.'''
    return 3

@tool(toolset="shop", effects=["destructive"])
def wipe() -> str:
    '''Delete the shop.'''
    raise AssertionError("nobody agreed to this")

@tool(toolset="shop")
def leak() -> str:
    '''Fail with a secret.'''
    raise ValueError("key is " + os.environ["SHOP_TOKEN"])

def register(plugin):
    plugin.add(price), plugin.add(wipe), plugin.add(leak)
    plugin.toolset("market", includes=["shop"])
"""


@pytest.fixture
def plugins_directory(toolfold: Toolfold) -> Path:
    """The user's plugins directory."""
    directory = load_config().plugins_folder
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def test_toolfold_without_arguments_prints_its_commands_and_first_steps_for_new_users(
    toolfold: Toolfold,
) -> None:
    done = toolfold()
    assert done.code == 0
    assert "Start here" in done.out
    for command in ("call", "completion", "config", "demo", "plugins", "tools"):
        assert command in done.out


def test_help_groups_all_commands_and_describes_rare_ones_only_with_option_all(toolfold: Toolfold) -> None:
    few, everything = toolfold("--help").out, toolfold("--help", "--all").out
    assert {path.stem for path in Path(cli.__path__[0]).glob("*.py")} >= COMMANDS.keys() >= RARE_COMMANDS
    for name, about in COMMANDS.items():
        assert name in few
        assert re.search(rf"^  {name} +{re.escape(about.split()[0])}", everything, re.MULTILINE)


@pytest.mark.parametrize("words", ["--help", "tools list --all", "config schema"])
def test_output_in_a_narrow_terminal_has_no_broken_words(
    toolfold: Toolfold, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    vocabulary = set(re.findall(r"\w+", toolfold(*words.split()).out))
    for columns in ("44", "80", "120"):
        monkeypatch.setenv("COLUMNS", columns)
        found = set(re.findall(r"\w+", toolfold(*words.split()).out))
        assert found - vocabulary <= LABELS


def test_unknown_toolfold_command_exits_with_code_2_and_prints_the_unknown_command(
    toolfold: Toolfold,
) -> None:
    done = toolfold("tolls")
    assert done.code == 2
    assert "tolls" in done.err
    assert done.out == ""


def test_help_option_prints_the_commands_and_version_option_prints_the_version(toolfold: Toolfold) -> None:
    assert "Start here" in toolfold("--help").out
    assert "0.1.0" in toolfold("--version").out


def test_tools_list_command_omits_disabled_and_unavailable_tools_unless_the_option_all_is_given(
    toolfold: Toolfold, plugins_directory: Path
) -> None:
    (plugins_directory / "shop.py").write_text(PLUGIN)
    assert toolfold("tools", "disable", "patch").code == 0
    listed = toolfold("tools", "list")
    names = {row["name"] for row in toolfold("tools", "list", "--json").json}
    assert "read_file" in names
    assert not {"price", "patch"} & names
    others = {row["name"] for row in toolfold("tools", "list", "--all", "--json").json} - names
    assert {"price", "patch"} <= others
    assert f"{len(others)} more tools cannot be used now" in listed.out
    everything = toolfold("tools", "list", "--all")
    assert "set SHOP_KEY" in everything.out
    assert "cannot be used now" not in everything.out
    states = {row["name"]: row["state"] for row in toolfold("tools", "list", "--all", "--json").json}
    assert (states["price"], states["patch"], states["read_file"]) == ("unavailable", "off", "available")


def test_tools_list_command_lists_the_built_in_tool_read_file(toolfold: Toolfold) -> None:
    done = toolfold("tools", "list")
    assert done.code == 0
    assert "read_file" in done.out


def test_tools_list_command_output_fits_80_columns_and_shows_each_reason_once(
    toolfold: Toolfold, plugins_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (plugins_directory / "shop.py").write_text(PLUGIN)
    monkeypatch.setenv("COLUMNS", "80")
    table, _, reasons = toolfold("tools", "list", "--all").out.partition("must be run by the agent")
    assert max(map(len, table.splitlines())) <= 80
    assert "Replace one piece of text in a file and" in table
    assert reasons.count("set SHOP_KEY)") == 1


def test_tools_list_command_with_option_json_prints_one_json_list_sorted_by_name(toolfold: Toolfold) -> None:
    rows = toolfold("tools", "list", "--json").json
    names = [row["name"] for row in rows]
    assert names == sorted(names)
    assert {"read_file", "write_file", "patch", "search_files", "todo"} <= set(names)


def test_tools_list_and_tools_show_commands_report_the_missing_environment_variable_of_a_tool(
    toolfold: Toolfold, plugins_directory: Path
) -> None:
    (plugins_directory / "shop.py").write_text(PLUGIN)
    row = toolfold("tools", "show", "price", "--json").json
    assert row["state"] == "unavailable"
    assert row["missing_env"] == ["SHOP_KEY"]
    assert "set SHOP_KEY" in toolfold("tools", "list", "--all").out
    assert "must be run by the agent" in toolfold("tools", "list").out


def test_tools_show_command_prints_the_schema_and_token_count_of_a_tool(toolfold: Toolfold) -> None:
    row = toolfold("tools", "show", "read_file", "--json").json
    assert row["definition"]["parameters"]["required"] == ["path"]
    assert row["tokens"] > 20
    assert "Read a text file" in toolfold("tools", "show", "read_file").out


def test_tools_show_command_suggests_a_similar_name_for_a_misspelt_tool_name(toolfold: Toolfold) -> None:
    done = toolfold("tools", "show", "read_fil")
    assert done.code == 4
    assert "read_file" in done.err


def test_tool_disabled_with_the_tools_disable_command_cannot_be_called_until_it_is_enabled_again(
    toolfold: Toolfold,
) -> None:
    assert toolfold("tools", "disable", "patch").code == 0
    off = {r["name"]: r["state"] for r in toolfold("tools", "list", "--all", "--json").json}
    assert off["patch"] == "off"
    refused = toolfold("call", "patch", '{"path": "a", "old": "b", "new": "c"}')
    assert refused.code == 1
    assert "not available in this session" in refused.out

    assert toolfold("tools", "enable", "patch").code == 0
    on = {r["name"]: r["state"] for r in toolfold("tools", "list", "--all", "--json").json}
    assert on["patch"] == "available"


def test_tools_disable_command_with_the_name_of_a_toolset_disables_all_tools_of_the_toolset(
    toolfold: Toolfold,
) -> None:
    assert toolfold("tools", "disable", "file").code == 0
    rows = {r["name"]: r["state"] for r in toolfold("tools", "list", "--all", "--json").json}
    assert rows["read_file"] == rows["search_files"] == "off"
    assert rows["todo"] == "available"


def test_tools_disable_command_fails_for_an_unknown_tool_and_writes_no_settings(
    toolfold: Toolfold, home: Path
) -> None:
    done = toolfold("tools", "disable", "pacth")
    assert done.code == 4
    assert "patch" in done.err
    assert not list(home.rglob("config.yaml"))


def test_tools_enable_command_fails_for_a_tool_that_is_already_enabled(toolfold: Toolfold) -> None:
    done = toolfold("tools", "enable", "patch")
    assert done.code == 1
    assert "patch is not disabled" in done.err


def test_tools_enable_and_tools_disable_commands_change_the_user_settings_not_the_project_settings(
    toolfold: Toolfold,
) -> None:
    Path("toolfold.yaml").write_text("tools:\n  disabled: [patch]\n")
    assert toolfold("tools", "disable", "write_file").code == 0
    assert read_file_value(load_config().paths.user_file, "tools.disabled") == ["write_file"]
    rows = {r["name"]: r["state"] for r in toolfold("tools", "list", "--all", "--json").json}
    assert rows["patch"] == rows["write_file"] == "off"
    done = toolfold("tools", "enable", "patch")
    assert done.code == 1
    assert "toolfold.yaml" in done.err


def test_text_that_a_plugin_prints_is_not_mixed_into_json_output(
    toolfold: Toolfold, plugins_directory: Path
) -> None:
    (plugins_directory / "loud.py").write_text("print('hello')\ndef register(plugin):\n    print('there')\n")
    assert toolfold("tools", "--json").json
    (row,) = toolfold("plugins", "--json").json
    assert row["state"] == "loaded"


def test_toolfold_call_command_fails_for_an_unknown_tool(toolfold: Toolfold) -> None:
    done = toolfold("call", "raed_file", "{}")
    assert done.code == 4
    assert "read_file" in done.err
    assert done.out == ""


def test_tools_list_command_with_option_toolsets_lists_each_toolset_with_its_tools(
    toolfold: Toolfold,
) -> None:
    rows = {row["name"]: row for row in toolfold("tools", "list", "--toolsets", "--json").json}
    assert rows["file"]["tools"] == ["patch", "read_file", "search_files", "write_file"]
    assert "read_file" in rows["toolfold-cli"]["tools"]
    assert "read_file" not in rows["toolfold-gateway"]["tools"]
    assert "toolfold-editor" in toolfold("tools", "list", "--toolsets").out


def test_tools_list_command_fails_for_an_unknown_toolset_and_suggests_a_similar_name(
    toolfold: Toolfold,
) -> None:
    done = toolfold("tools", "list", "--toolset", "fiel")
    assert done.code == 4
    assert "file" in done.err


def test_file_written_by_one_run_of_the_toolfold_call_command_can_be_read_by_another_run(
    toolfold: Toolfold,
) -> None:
    written = toolfold("call", "write_file", '{"path": "notes/a.txt", "content": "hello\\n"}')
    assert written.code == 0
    assert Path("notes/a.txt").read_text() == "hello\n"
    read = toolfold("call", "read_file", '{"path": "notes/a.txt"}')
    assert read.json["lines"] == "1\thello"


def test_toolfold_call_command_exits_with_code_1_and_prints_json_if_the_tool_fails(
    toolfold: Toolfold,
) -> None:
    done = toolfold("call", "read_file", '{"path": "../secret"}')
    assert done.code == 1
    assert "error" in done.json


def test_toolfold_call_command_with_option_toolset_refuses_a_tool_outside_that_toolset(
    toolfold: Toolfold,
) -> None:
    done = toolfold("call", "--toolset", "todo", "read_file", '{"path": "a"}')
    assert done.code == 1
    assert "not available in this session" in done.json["error"]


def test_toolfold_call_command_refuses_a_destructive_tool_without_a_terminal(
    toolfold: Toolfold, plugins_directory: Path
) -> None:
    (plugins_directory / "shop.py").write_text(PLUGIN)
    done = toolfold("call", "wipe")
    assert done.code == 1
    assert "nobody could be asked" in done.json["error"]


def test_secret_from_the_environment_in_a_tool_error_is_not_printed(
    toolfold: Toolfold, plugins_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "correct-horse-battery")
    (plugins_directory / "shop.py").write_text(PLUGIN)
    done = toolfold("call", "leak")
    assert done.json["error"].startswith("Tool execution failed: ValueError: key is ")
    assert "correct-horse" not in done.out + done.err


def test_plugins_command_lists_each_plugin_with_its_state_and_error(
    toolfold: Toolfold, plugins_directory: Path
) -> None:
    assert "no plugins" in toolfold("plugins").out
    (plugins_directory / "shop.py").write_text(PLUGIN)
    (plugins_directory / "broken.py").write_text("import a_package_nobody_has")
    rows = {row["name"]: row for row in toolfold("plugins", "--json").json}
    assert rows["shop"]["state"] == "loaded"
    assert rows["shop"]["toolsets"] == ["market"]
    assert rows["broken"]["state"] == "failed"
    assert "a_package_nobody_has" in rows["broken"]["error"]
    assert "a_package_nobody_has" in toolfold("plugins", "list").out


def test_plugin_in_a_project_directory_is_loaded_only_after_the_user_trusts_the_project(
    toolfold: Toolfold,
) -> None:
    directory = Path(".toolfold/plugins")
    directory.mkdir(parents=True)
    (directory / "shop.py").write_text(PLUGIN)
    assert toolfold("plugins", "--json").json[0]["state"] == "untrusted"
    assert toolfold("tools", "show", "price").code == 4

    assert toolfold("plugins", "trust").code == 0
    assert toolfold("plugins", "--json").json[0]["state"] == "loaded"

    (directory / "shop.py").write_text(PLUGIN + "\n# changed")
    changed = toolfold("plugins", "--json").json[0]
    assert changed["state"] == "untrusted"
    assert "changed" in changed["error"]

    assert toolfold("plugins", "trust").code == 0
    assert toolfold("plugins", "untrust").code == 0
    assert toolfold("plugins", "--json").json[0]["state"] == "untrusted"


def test_error_for_an_invalid_setting_contains_its_key_and_file_and_line_and_a_similar_key(
    toolfold: Toolfold,
) -> None:
    Path("toolfold.yaml").write_text("tools:\n  tool_search:\n    threshold_pc: 5\n")
    done = toolfold("tools", "list")
    assert done.code == 3
    assert "tools.tool_search.threshold_pc is not a setting" in done.err
    assert "toolfold.yaml" in done.err
    assert "line 3" in done.err
    assert "did you mean threshold_pct?" in done.err


def test_command_line_option_set_overrides_the_settings_file_of_the_project(toolfold: Toolfold) -> None:
    Path("toolfold.yaml").write_text("tools:\n  rag_top_k: 3\n")
    assert toolfold("config", "get", "tools.rag_top_k").out == "3\n"
    assert toolfold("--set", "tools.rag_top_k=5", "config", "get", "tools.rag_top_k").out == "5\n"


def test_demo_command_prints_saved_tokens_and_a_sample_conversation_and_leaves_no_files(
    toolfold: Toolfold, home: Path
) -> None:
    done = toolfold("demo")
    assert done.code == 0
    assert "tokens before" in done.out
    assert "not available in this session" in done.out
    lines = done.out.partition("A conversation")[2]
    calls = [line.split()[1] for line in lines.splitlines() if line.startswith("  call ")]
    assert calls == ["ferrywell_list-shipments", "ferrywell_track-consignment", "larkpost_send_message"]
    assert "sample data" in lines
    assert "⟦" not in done.out  # nothing is marked as injected instructions
    today = datetime.date.today()
    assert f"The parcel **FW-77310** arrived at the depot in Lisbon and is due on **{today}**." in lines
    assert not home.exists()
    assert list(Path().iterdir()) == []


@pytest.mark.thorough
def test_demo_command_with_a_message_prints_the_selected_tools_and_tokens_as_json(toolfold: Toolfold) -> None:
    (row,) = toolfold("demo", "create an invoice", "--json").json
    assert row["message"] == "create an invoice"
    assert row["tokens_sent"] < row["tokens_all"] / 10
    assert {"read_file", "search_files"} < set(row["selected"])
    assert any(name.startswith("tallyhouse_") for name in row["selected"])


def test_tool_description_that_looks_like_rich_markup_is_printed_unchanged(
    toolfold: Toolfold, plugins_directory: Path
) -> None:
    source = """
from toolfold import tool

@tool(emoji="[/red]")
def odd() -> str:
    "[bold]Loud[/oops]"
    return ""

def register(plugin):
    plugin.add(odd)
"""
    (plugins_directory / "odd.py").write_text(source)
    assert "[bold]Loud[/oops]" in toolfold("tools", "list").out
    assert "[bold]Loud[/oops]" in toolfold("tools", "show", "odd").out
    assert toolfold("tools", "show", "odd", "--json").json["summary"] == "[bold]Loud[/oops]"
