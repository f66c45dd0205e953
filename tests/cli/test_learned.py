"""`toolfold learned`, and what `tools show` and `explain` say about learned messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Toolfold
from toolfold import load_config, open_runtime

MESSAGES = ("find the word invoice in my files", "which of my files mention an invoice")


@pytest.fixture
def learned(home: Path) -> Path:
    """Learn two messages for `search_files` and one, of a client, for `write_file`."""
    with open_runtime(load_config()) as runtime:
        tools = runtime.registry.snapshot()
        for text in MESSAGES:
            runtime.retriever.learn(tools, tools["search_files"], [text], client="", origin="message")
        runtime.retriever.learn(
            tools, tools["write_file"], ["put a note on the disk"], client="laptop", origin="search"
        )
    return home


def test_learned_list_command_prints_tool_and_client_and_use_count_of_each_learned_message(
    toolfold: Toolfold, learned: Path
) -> None:
    rows = toolfold("learned", "list", "--json").json
    assert {(row["tool"], row["message"], row["client"], row["origin"]) for row in rows} == {
        ("search_files", MESSAGES[0], "", "message"),
        ("search_files", MESSAGES[1], "", "message"),
        ("write_file", "put a note on the disk", "laptop", "search"),
    }
    assert all(row["uses"] == 1 and row["last_used"] for row in rows)
    shown = toolfold("learned", "list", "write_file").out
    assert "put a note on the disk" in shown
    assert "search of laptop" in shown
    assert MESSAGES[0] not in shown


def test_learned_forget_command_can_remove_one_message_or_all_messages_of_a_tool_or_client(
    toolfold: Toolfold, learned: Path
) -> None:
    number = toolfold("learned", "list", "search_files", "--json").json[0]["number"]
    assert toolfold("learned", "forget", str(number)).out == "forgot 1 message\n"
    assert toolfold("learned", "forget", "search_files").out == "forgot 1 message\n"
    assert toolfold("learned", "forget", "--client", "laptop").out == "forgot 1 message\n"
    assert toolfold("learned", "forget", "--all").out == "forgot 0 messages\n"
    assert "nothing was learned yet" in toolfold("learned", "list").err


def test_learned_forget_command_for_an_unknown_tool_prints_an_error_with_the_tool_name(
    toolfold: Toolfold, learned: Path
) -> None:
    done = toolfold("learned", "forget", "no_such_tool")
    assert done.code == 4
    assert "there is no learned message with the number or tool 'no_such_tool'" in done.err
    assert toolfold("learned", "forget").code == 2
    assert len(toolfold("learned", "list", "--json").json) == 3


def test_commands_learned_on_and_learned_off_change_the_setting_learn_from_use(
    toolfold: Toolfold, learned: Path
) -> None:
    assert toolfold("learned", "off").code == 0
    assert toolfold("config", "get", "tools.learn_from_use").out == "false\n"
    assert "Learning is off" in toolfold("learned", "list").err
    assert toolfold("learned", "on").code == 0
    assert toolfold("config", "get", "tools.learn_from_use").out == "true\n"


def test_learned_forget_command_with_option_all_repairs_a_damaged_file_of_learned_messages(
    toolfold: Toolfold, learned: Path
) -> None:
    file = learned / "state" / "learned" / "learned.sqlite"
    file.write_bytes(b"this is not a database" * 1_000)
    done = toolfold("learned", "list")
    assert done.code == 1
    assert "toolfold learned forget --all" in " ".join(done.err.split())
    assert toolfold("learned", "forget", "--all").code == 0
    assert toolfold("learned", "list", "--json").json == []


def test_tools_show_command_prints_number_and_last_use_of_learned_messages_but_not_their_text(
    toolfold: Toolfold, learned: Path
) -> None:
    learned_part = toolfold("tools", "show", "search_files", "--json").json["learned"]
    assert (learned_part["messages"], learned_part["clients"]) == (2, 1)
    shown = toolfold("tools", "show", "search_files").out
    assert f"2 messages of 1 client, last used {learned_part['last_used']}" in shown
    assert MESSAGES[0] not in shown


def test_explain_shows_how_much_learned_messages_raise_the_score_of_a_tool(
    toolfold: Toolfold, learned: Path
) -> None:
    light = ("--set", "tools.rag_embed_model=light", "--set", "tools.pinned=")
    query = "which of my files mention the word invoice"
    rows = toolfold(*light, "explain", query, "--mode", "hybrid", "--json").json["tools"]
    by_name = {row["name"]: row["learned"] for row in rows}
    assert by_name["search_files"]["gain"] > 0
    assert by_name["search_files"]["messages"] == 2
    assert by_name["write_file"] is None
    shown = toolfold(*light, "explain", query, "--mode", "hybrid").out
    assert "similarity, learned from 2 messages, last used" in " ".join(shown.split())
