"""`toolfold search`: tables, JSON, catalogs and embedding endpoints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Toolfold
from tests.cli.files import LONG, TOOLS, definition, lines
from tests.retrieval.endpoint import run_server

LIGHT = ("--set", "tools.rag_embed_model=light")


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    file = tmp_path / "catalog.jsonl"
    file.write_text(lines([definition(*each) for each in TOOLS.items()]), "utf-8")
    return file


def test_search_prints_a_table_with_rank_and_tool_name_and_reason(toolfold: Toolfold, catalog: Path) -> None:
    done = toolfold(*LIGHT, "search", "weather forecast for Oslo", "--catalog", str(catalog))
    assert done.code == 0
    header, _rule, first, *_ = done.out.strip().splitlines()
    assert header.split()[:3] == ["rank", "tool", "why"]
    assert first.split()[:2] == ["1", "get_weather"]
    assert "matching words" in first
    assert "similarity" in first


def test_search_lists_tools_that_cannot_be_used_last_with_the_reason(toolfold: Toolfold) -> None:
    hits = toolfold("search", "send a message to the team", "--json").json
    unusable = [bool(hit["unusable"]) for hit in hits]
    assert "send_message" in [hit["name"] for hit in hits if hit["unusable"]]
    assert unusable == sorted(unusable)
    assert "No message recipient is configured" in toolfold("search", "send a message to the team").out


def test_search_without_any_settings_file_finds_a_built_in_tool(toolfold: Toolfold) -> None:
    done = toolfold("search", "open a document and look what is in it", "--json")
    assert done.code == 0
    assert "read_file" in [hit["name"] for hit in done.json]
    assert done.err == ""


def test_search_ranks_the_tool_named_in_the_message_first(toolfold: Toolfold, catalog: Path) -> None:
    message = "about the weather, use delete_branch"
    done = toolfold(*LIGHT, "search", message, "--catalog", str(catalog))
    first = done.out.strip().splitlines()[2]
    assert first.split()[:2] == ["1", "delete_branch"]
    assert "named in the message" in first


def test_search_with_option_json_prints_one_json_list_of_tools_sorted_by_rank(
    toolfold: Toolfold, catalog: Path
) -> None:
    done = toolfold(*LIGHT, "search", "send an email to Anna", "--catalog", str(catalog), "--json")
    hits = done.json
    assert [hit["rank"] for hit in hits] == list(range(1, len(hits) + 1))
    assert set(hits[0]) == {
        "rank",
        "name",
        "matched",
        "similarity",
        "exact",
        "from_context",
        "learned",
        "unusable",
    }
    assert hits[0]["name"] == "send_email"
    assert hits[0]["exact"] is False
    assert hits[0]["matched"]
    assert -1 <= hits[0]["similarity"] <= 1


def test_search_json_in_keyword_mode_has_no_similarity_values(toolfold: Toolfold, catalog: Path) -> None:
    options = ("--catalog", str(catalog), "--mode", "keyword", "--json")
    hits = toolfold(*LIGHT, "search", "git branch", *options).json
    assert hits[0]["name"] == "delete_branch"
    assert {hit["similarity"] for hit in hits} == {None}


@pytest.mark.parametrize("mode", ["keyword", "semantic", "hybrid"])
def test_search_with_option_limit_prints_at_most_the_given_number_of_tools(
    toolfold: Toolfold, catalog: Path, mode: str
) -> None:
    options = ("--catalog", str(catalog), "--mode", mode, "--limit", "2", "--json")
    hits = toolfold(*LIGHT, "search", "send a message to a person about the weather", *options).json
    assert len(hits) == 2


def test_search_with_option_sample_finds_tools_of_the_sample_catalog(toolfold: Toolfold) -> None:
    hits = toolfold(*LIGHT, "search", "create an out of office reply", "--sample", "--json").json
    assert "larkpost_set_auto_responder" in [hit["name"] for hit in hits]


def test_search_finds_catalog_tools_with_reserved_or_too_long_names(
    toolfold: Toolfold, catalog: Path
) -> None:
    catalog.write_text(
        lines([definition("tool_search", "Find a hammer in the shed."), definition(LONG, "b")])
    )
    done = toolfold(*LIGHT, "search", "a hammer in the shed", "--catalog", str(catalog), "--json")
    assert done.code == 0
    assert done.json[0]["name"] == "tool_search"
    named = toolfold(*LIGHT, "search", f"use {LONG}", "--catalog", str(catalog), "--json").json[0]
    assert (named["name"], named["exact"]) == (LONG, True)


def test_search_finds_catalog_tools_even_if_the_setting_enabled_toolsets_excludes_them(
    toolfold: Toolfold, catalog: Path
) -> None:
    only = ("--set", "tools.enabled_toolsets=[file]")
    hits = toolfold(*LIGHT, *only, "search", "weather forecast", "--catalog", str(catalog), "--json").json
    assert hits[0]["name"] == "get_weather"
    assert "todo" not in [hit["name"] for hit in hits]


def test_search_with_options_catalog_and_sample_finds_tools_of_both_catalogs(
    toolfold: Toolfold, catalog: Path
) -> None:
    message = "weather forecast, then create an out of office reply"
    options = ("--catalog", str(catalog), "--sample", "--limit", "20", "--json")
    names = [hit["name"] for hit in toolfold(*LIGHT, "search", message, *options).json]
    assert {"get_weather", "larkpost_set_auto_responder"} <= set(names)


def test_search_prints_a_few_matching_words_and_the_number_of_remaining_matching_words(
    toolfold: Toolfold, catalog: Path
) -> None:
    words = "apple birch cedar daisy elder fern grape hazel iris jasmine kale lemon"
    catalog.write_text(lines([definition("garden", f"Plants {words}.")]))
    done = toolfold(*LIGHT, "search", words, "--catalog", str(catalog), "--mode", "keyword")
    first = done.out.strip().splitlines()[2]
    assert "matching words: apple, birch, cedar" in first
    assert "and 4 more" in first


def test_search_escapes_control_characters_in_tool_names_of_a_catalog(
    toolfold: Toolfold, catalog: Path
) -> None:
    catalog.write_text(lines([definition("\x1b[2Jweather[red]", "The weather.")]))
    done = toolfold(*LIGHT, "search", "weather", "--catalog", str(catalog))
    assert "weather[red]" in done.out
    assert "\x1b" not in done.out


@pytest.mark.parametrize("message", ["", " \n\t"])
def test_search_with_an_empty_message_reports_that_the_message_is_empty(
    toolfold: Toolfold, message: str
) -> None:
    done = toolfold(*LIGHT, "search", message)
    assert done.code == 0
    assert "the message is empty" in done.out
    assert toolfold(*LIGHT, "search", message, "--json").json == []


def test_search_that_finds_no_tool_suggests_the_command_tools_list(toolfold: Toolfold) -> None:
    done = toolfold(*LIGHT, "search", "xyzzy", "--mode", "keyword")
    assert done.code == 0
    assert re.search(r"none of \d+ tools matches", done.out)
    assert "toolfold tools list" in done.out


def test_search_with_option_json_that_finds_no_tool_prints_an_empty_list(toolfold: Toolfold) -> None:
    assert toolfold(*LIGHT, "search", "xyzzy", "--mode", "keyword", "--json").json == []


def test_search_does_not_find_disabled_tools(toolfold: Toolfold) -> None:
    asked = ("search", "use read_file to read a file", "--json")
    assert "read_file" in [hit["name"] for hit in toolfold(*LIGHT, *asked).json]
    without = toolfold(*LIGHT, "--set", "tools.disabled_toolsets=[file]", *asked)
    assert without.code == 0
    assert "read_file" not in [hit["name"] for hit in without.json]


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize(
    "message", ["", " ", "\udcff\udcfe", "[bold]red[/bold] [/]", "\x1b[31m", "a" * 9_000]
)
def test_search_exits_with_code_0_for_empty_or_very_long_messages_or_control_characters(
    toolfold: Toolfold, message: str
) -> None:
    assert toolfold(*LIGHT, "search", message).code == 0


def test_search_embeds_each_tool_text_only_once_across_two_runs(
    toolfold: Toolfold, catalog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with run_server() as server:
        settings = (
            *("--set", "tools.rag_embed_model=nomic-embed-text"),
            *("--set", f"tools.tool_search.reranker.endpoint={server.url}"),
        )
        asked = ("search", "abc", "--mode", "semantic", "--catalog", str(catalog), "--json")
        first, second = toolfold(*settings, *asked), toolfold(*settings, *asked)
    *tools, query, again = [body["input"] for _, _, body in server.requests]
    embedded = [text for texts in tools for text in texts]  # tools, and their example messages
    assert all(text.startswith("search_document: ") for text in embedded)
    assert len(embedded) == len(set(embedded))
    assert query == again == ["search_query: abc"]
    assert first.json[0]["similarity"] == pytest.approx(second.json[0]["similarity"], abs=0.02)


def test_search_sends_the_api_key_from_the_environment_to_the_embedding_provider(
    toolfold: Toolfold, catalog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("OPENAI_EMBEDDING_MODEL", "abc-model")
    with run_server() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url.removesuffix("/embeddings") + "/")
        done = toolfold("--set", "tools.rag_embed_model=auxiliary", "search", "git branch", "--json")
    assert done.json[0]["similarity"] is not None
    path, headers, body = server.requests[-1]
    assert (path, headers["Authorization"], body["model"]) == (
        "/v1/embeddings",
        "Bearer sk-secret",
        "abc-model",
    )
    assert "sk-secret" not in done.out + done.err


def test_auxiliary_embedding_model_belongs_to_the_provider_of_the_auxiliary_model(
    toolfold: Toolfold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-provider")
    monkeypatch.setenv("OWN_KEY", "sk-own")
    with run_server() as server:
        provider = json.dumps({"base_url": server.url.removesuffix("/embeddings"), "key_env": "OWN_KEY"})
        done = toolfold(
            *("--set", f"providers.own={provider}", "--set", "agent.auxiliary_model=own:small"),
            *("--set", "tools.rag_embed_model=auxiliary:e5", "search", "git branch", "--json"),
        )
    assert done.json[0]["similarity"] is not None
    _, headers, body = server.requests[-1]
    assert (headers["Authorization"], body["model"]) == ("Bearer sk-own", "e5")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ((), "set agent.auxiliary_model"),
        (("--set", "agent.auxiliary_model=anthropic:claude-haiku-4-5"), "'anthropic'"),
    ],
)
def test_auxiliary_embedding_model_without_a_suitable_provider_is_an_error(
    toolfold: Toolfold, monkeypatch: pytest.MonkeyPatch, settings: tuple[str, ...], problem: str
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    done = toolfold(*settings, "--set", "tools.rag_embed_model=auxiliary", "search", "git branch")
    assert done.code != 0
    assert problem in done.err


def test_search_falls_back_to_keywords_with_a_warning_if_the_embedding_endpoint_fails(
    toolfold: Toolfold, catalog: Path
) -> None:
    nowhere = ("--set", "tools.rag_embed_model=nomic-embed-text")
    endpoint = ("--set", "tools.tool_search.reranker.endpoint=http://127.0.0.1:9/v1/embeddings")
    done = toolfold(*nowhere, *endpoint, "search", "git branch", "--catalog", str(catalog), "--json")
    assert done.code == 0
    assert done.json[0]["name"] == "delete_branch"
    assert done.json[0]["similarity"] is None


def test_search_in_rerank_mode_calls_the_reranker_only_if_the_settings_enable_the_reranker(
    toolfold: Toolfold, catalog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    asked = ("search", "git branch", "--mode", "rerank", "--catalog", str(catalog), "--json")
    with run_server() as server:
        service = ("--set", f"tools.tool_search.reranker.endpoint={server.url}")
        off = toolfold(*LIGHT, *service, *asked)
        assert server.requests == []
        on = toolfold(*LIGHT, *service, "--set", "tools.tool_search.reranker.enabled=true", *asked)
        assert server.requests
    assert off.json[0]["name"] == on.json[0]["name"] == "delete_branch"
    assert "tools.tool_search.reranker.enabled is off" in off.err.replace("\n", "")
    assert on.err == ""


@pytest.mark.parametrize(
    "options", [("--mode", "magic"), ("--limit", "0"), ("--limit", "51"), ("--catalog", "nowhere.jsonl")]
)
def test_search_with_an_invalid_mode_or_limit_or_catalog_exits_with_a_usage_error(
    toolfold: Toolfold, options: tuple[str, str]
) -> None:
    done = toolfold("search", "hello", *options)
    assert done.code == 2
    assert options[1] in done.err
    assert done.out == ""


def test_search_error_contains_the_number_of_the_invalid_catalog_line(
    toolfold: Toolfold, catalog: Path
) -> None:
    catalog.write_text(lines([definition("a", "b")]) + "{oops\n")
    done = toolfold(*LIGHT, "search", "hello", "--catalog", str(catalog), "--json")
    assert done.code == 1
    assert "catalog.jsonl, line 2" in done.err.replace("\n", "")
    assert done.out == ""
