"""`toolfold explain`: which tools a model is sent for a message, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import Toolfold

LIGHT = ("--set", "tools.rag_embed_model=light")
PINNED = {"read_file", "search_files", "terminal"}
BRIDGE = {"tool_search", "tool_describe", "tool_call"}
TOOLS = {
    "invoice_create": "Create an invoice for a customer.",
    "invoice_list": "List the invoices of a customer.",
    "weather_today": "The weather of today in a city.",
    "lamp_on": "Switch on a lamp.",
}
MESSAGE = "create an invoice for Halden"


@pytest.fixture
def catalog(tmp_path: Path) -> str:
    file = tmp_path / "catalog.jsonl"
    entries = (
        {"name": name, "description": description, "parameters": {}} for name, description in TOOLS.items()
    )
    file.write_text("".join(json.dumps({"type": "function", "function": each}) + "\n" for each in entries))
    return str(file)


def test_explain_json_contains_ranks_and_reason_of_every_tool(toolfold: Toolfold, catalog: str) -> None:
    done = toolfold(*LIGHT, "explain", MESSAGE, "--catalog", catalog, "--mode", "hybrid", "--json")
    assert done.code == 0
    rows_by_name = {each["name"]: each for each in done.json["tools"]}
    assert rows_by_name.keys() >= TOOLS.keys()
    best = rows_by_name["invoice_create"]
    assert best["shown"]
    assert best["why"] == "fits the message"
    assert best["ranks"] == {"keyword": 1, "semantic": 1, "fused": 1}
    assert all(each["why"] and each["tokens"] > 0 for each in rows_by_name.values())
    assert done.json["selected"][0] == "invoice_create"
    assert done.json["ms"] > 0
    assert 0 < done.json["tokens_sent"] <= done.json["tokens_all"]


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("mode", ["keyword", "semantic", "hybrid", "both"])
def test_explain_selects_the_number_of_tools_set_by_rag_top_k_in_addition_to_pinned_tools(
    toolfold: Toolfold, catalog: str, mode: str
) -> None:
    given = (*LIGHT, "--set", "tools.rag_top_k=1", "explain", MESSAGE, "--catalog", catalog, "--mode", mode)
    report = toolfold(*given, "--json").json
    bridge = BRIDGE if mode == "both" else set()
    assert {*report["selected"]} == {"invoice_create"} | PINNED | bridge
    out = next(each for each in report["tools"] if each["name"] == "lamp_on")
    assert not out["shown"]
    assert out["why"]


def test_explain_in_eager_mode_marks_every_tool_as_sent_to_the_model(
    toolfold: Toolfold, catalog: str
) -> None:
    report = toolfold(*LIGHT, "explain", MESSAGE, "--catalog", catalog, "--mode", "eager", "--json").json
    assert {*report["selected"]} == {each["name"] for each in report["tools"]}
    assert report["tokens_sent"] == report["tokens_all"]


def test_explain_in_tool_search_mode_marks_built_in_and_search_tools_as_sent_to_the_model(
    toolfold: Toolfold, catalog: str
) -> None:
    report = toolfold(
        *LIGHT, "explain", MESSAGE, "--catalog", catalog, "--mode", "tool_search", "--json"
    ).json
    assert {*report["selected"]} >= PINNED | BRIDGE
    assert not {*report["selected"]} & TOOLS.keys()


@pytest.mark.parametrize("added", [(), ("--sample",)])
def test_explain_states_at_default_settings_how_many_tools_are_sent_and_why(
    toolfold: Toolfold, added: Sequence[str]
) -> None:
    report = toolfold(*LIGHT, "explain", MESSAGE, *added, "--json").json
    compared = "at or above" if added else "no tool is deferrable"
    assert compared in report["why"]
    sent = f"{len(report['selected'])} of {len(report['tools'])} tools: {report['why']}."
    assert sent in " ".join(toolfold(*LIGHT, "explain", MESSAGE, *added).out.split())


def test_explain_prints_the_selected_tools_with_reasons_and_token_counts(
    toolfold: Toolfold, catalog: str
) -> None:
    done = toolfold(*LIGHT, "explain", MESSAGE, "--catalog", catalog, "--mode", "both")
    assert done.code == 0
    assert "invoice_create" in done.out
    assert "fits the message" in done.out
    assert "tool_search" in done.out
    assert "tokens" in done.out


@pytest.mark.thorough
def test_explain_shortens_the_table_of_tools_unless_the_option_all_is_given(toolfold: Toolfold) -> None:
    few = toolfold(*LIGHT, "explain", MESSAGE, "--sample", "--mode", "keyword")
    every = toolfold(*LIGHT, "explain", MESSAGE, "--sample", "--mode", "keyword", "--all")
    assert "use --all" in few.out
    assert len(every.out.splitlines()) > 277 > len(few.out.splitlines())


def test_explain_error_contains_the_number_of_the_invalid_catalog_line(
    toolfold: Toolfold, tmp_path: Path
) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"type": "function"\n')
    done = toolfold("explain", MESSAGE, "--catalog", str(file))
    assert done.code == 1
    assert "line 1" in done.err or ":1" in done.err
    assert toolfold("explain", MESSAGE, "--catalog", str(tmp_path / "none.jsonl")).code == 2


def test_explain_skips_a_catalog_tool_with_a_reserved_name_and_warns(
    toolfold: Toolfold, tmp_path: Path
) -> None:
    file = tmp_path / "odd.jsonl"
    file.write_text('{"type": "function", "function": {"name": "tool_call", "description": "x"}}\n')
    done = toolfold(*LIGHT, "explain", MESSAGE, "--catalog", str(file), "--json")
    assert done.code == 0
    assert "tool_call" in done.err


def test_explain_warns_that_enabled_toolsets_exclude_the_tools_of_the_catalog(
    toolfold: Toolfold, catalog: str
) -> None:
    narrow = ("--set", "tools.enabled_toolsets=[file]")
    done = toolfold(*LIGHT, *narrow, "explain", MESSAGE, "--catalog", catalog, "--json")
    assert "tools.enabled_toolsets" in done.err
    assert not {*done.json["selected"]} & TOOLS.keys()


HISTORY = [
    {"role": "user", "content": MESSAGE},
    {"role": "assistant", "content": "It is created."},
]


class TestConversations:
    @pytest.mark.thorough(keep=1)
    @pytest.mark.parametrize(
        "written",
        [
            json.dumps(HISTORY, indent=1),
            json.dumps(HISTORY),
            "\ufeff" + "".join(json.dumps(each) + "\n" for each in HISTORY),
        ],
    )
    def test_explain_with_a_history_file_also_uses_earlier_messages_to_select_tools(
        self, toolfold: Toolfold, catalog: str, tmp_path: Path, written: str
    ) -> None:
        file = tmp_path / "history"
        file.write_text(written, "utf-8")
        arguments = (
            *LIGHT,
            "explain",
            "and one for Bob",
            "--catalog",
            catalog,
            "--mode",
            "keyword",
            "--json",
        )
        alone, later = toolfold(*arguments), toolfold(*arguments, "--history", str(file))
        assert "invoice_create" not in alone.json["selected"]
        assert later.json["message"] == "and one for Bob"
        rows_by_name = {each["name"]: each for each in later.json["tools"]}
        assert rows_by_name["invoice_create"]["why"] == "fits the conversation"

    def test_explain_without_a_message_uses_the_latest_user_message_of_the_history_file(
        self, toolfold: Toolfold, catalog: str, tmp_path: Path
    ) -> None:
        file = tmp_path / "history.json"
        file.write_text(json.dumps(HISTORY))
        done = toolfold(*LIGHT, "explain", "--history", str(file), "--catalog", catalog, "--json")
        assert done.json["message"] == MESSAGE

    @pytest.mark.parametrize(
        ("written", "problem"),
        [
            ('[{"role": "user"', "not a valid JSON list of messages"),
            ('{"role": "user", "content": "a"}\n{"role"\n', "line 2"),
            ('["hello"]', "each message of the history must be an object with a role"),
            ('{"content": "a"}\n', "each message of the history must be an object with a role"),
            ('{"role": "assistant", "content": "a"}\n', "no message with the role `user`"),
            ("", "no message with the role `user`"),
        ],
    )
    def test_explain_fails_for_an_invalid_history_file(
        self, toolfold: Toolfold, tmp_path: Path, written: str, problem: str
    ) -> None:
        file = tmp_path / "history.json"
        file.write_text(written)
        done = toolfold("explain", "--history", str(file))
        assert done.code == 1
        assert problem in " ".join(done.err.split())

    def test_explain_without_a_message_exits_with_a_usage_error(self, toolfold: Toolfold) -> None:
        done = toolfold("explain")
        assert done.code == 2
        assert "missing MESSAGE or --history" in done.err


class TestPlacement:
    def test_explain_with_the_placement_mode_tail_prints_the_tools_appended_to_the_user_message(
        self, toolfold: Toolfold, catalog: str
    ) -> None:
        arguments = (
            *LIGHT,
            "explain",
            MESSAGE,
            "--catalog",
            catalog,
            "--mode",
            "both",
            "--placement",
            "tail",
        )
        request = toolfold(*arguments, "--json").json["request"]
        assert request["placement"] == "tail"
        assert {*request["array"]} == PINNED | BRIDGE
        assert "- invoice_create(" in request["tail"]
        assert request["tokens_tail"] > 0
        rows_by_name = toolfold(*arguments).out
        assert "placement tail" in rows_by_name
        assert "- invoice_create(" in rows_by_name

    def test_explain_with_option_model_shows_the_tool_placement_for_that_model(
        self, toolfold: Toolfold, catalog: str
    ) -> None:
        arguments = (*LIGHT, "explain", MESSAGE, "--catalog", catalog, "--mode", "both", "--json")
        assert toolfold(*arguments, "--model", "claude-sonnet-4-6").json["request"]["placement"] == "tail"
        request = toolfold(*arguments, "--model", "llama-4-maverick").json["request"]
        assert request["placement"] == "replace"
        assert request["tail"] == ""
        assert "invoice_create" in request["array"]


def test_explain_orders_selected_tools_by_their_combined_search_score(
    toolfold: Toolfold, catalog: str
) -> None:
    rows_by_name = toolfold(
        *LIGHT, "explain", MESSAGE, "--catalog", catalog, "--mode", "hybrid", "--json"
    ).json
    chosen = [each for each in rows_by_name["tools"] if each["why"] == "fits the message"]
    ranked = [each["ranks"]["fused"] for each in chosen]
    assert ranked == sorted(ranked)
    scores = [each["score"] for each in chosen]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == len(scores)
