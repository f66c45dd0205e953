"""`toolfold search` and `toolfold eval`, as a person or a program meets them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Done, Toolfold
from tests.retrieval.endpoint import serving

LIGHT = ("--set", "tools.rag_embed_model=light")
LONG = "billing.invoices/create-and-send-" + "very-" * 20 + "quickly"
TOOLS = {
    "get_weather": "The weather forecast of a city.",
    "send_email": "Send an email message to a person.",
    "delete_branch": "Delete a branch of a git repository.",
    "users.list": "List the users of the workspace.",
    "größe_ändern": "Resize an image.",
    LONG: "Create an invoice for a customer and send it.",
}
QUERIES: list[dict[str, Any]] = [
    {"id": "w", "query": "weather forecast for Oslo", "gold": ["get_weather"], "kind": "plain"},
    {"id": "i", "query": "create an invoice for the customer", "gold": [LONG], "kind": "plain"},
    {"id": "g", "query": "resize the image", "gold": ["größe_ändern"], "kind": "odd"},
    {"id": "u", "query": "list all users", "gold": ["users.list"], "kind": "odd"},
    {"id": "none", "query": "thanks a lot!", "gold": []},
]
Evaluated = Callable[..., Done]


def definition(name: str, description: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {}}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function, "meta": {"server": "desk"}}


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    file = tmp_path / "catalog.jsonl"
    file.write_text(lines([definition(*each) for each in TOOLS.items()]), "utf-8")
    return file


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    file = tmp_path / "queries.jsonl"
    file.write_text(lines(QUERIES), "utf-8")
    return file


@pytest.fixture
def evaluated(toolfold: Toolfold, catalog: Path, queries: Path) -> Evaluated:
    """Runs `eval` on the catalog and the queries with the light model."""

    def call(*options: str) -> Done:
        return toolfold(*LIGHT, "eval", "--catalog", str(catalog), "--queries", str(queries), *options)

    return call


def answers(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.out.splitlines()]


# search


def test_search_shows_rank_tool_and_why(toolfold: Toolfold, catalog: Path) -> None:
    done = toolfold(*LIGHT, "search", "weather forecast for Oslo", "--catalog", str(catalog))
    assert done.code == 0
    header, _rule, first, *_ = done.out.strip().splitlines()
    assert header.split() == ["rank", "tool", "why"]
    assert first.split()[:2] == ["1", "get_weather"]
    assert "shares" in first
    assert "similarity" in first


def test_search_needs_no_setting_and_no_network(toolfold: Toolfold) -> None:
    done = toolfold("search", "open a document and look what is in it", "--json")
    assert done.code == 0
    assert "read_file" in [hit["name"] for hit in done.json]
    assert done.err == ""


def test_a_tool_named_in_the_message_comes_first_and_is_told_so(toolfold: Toolfold, catalog: Path) -> None:
    message = "about the weather, use delete_branch"
    done = toolfold(*LIGHT, "search", message, "--catalog", str(catalog))
    first = done.out.strip().splitlines()[2]
    assert first.split()[:2] == ["1", "delete_branch"]
    assert "named in the message" in first


def test_search_as_json_is_one_document_and_nothing_else(toolfold: Toolfold, catalog: Path) -> None:
    done = toolfold(*LIGHT, "search", "send an email to Anna", "--catalog", str(catalog), "--json")
    hits = done.json
    assert [hit["rank"] for hit in hits] == list(range(1, len(hits) + 1))
    assert set(hits[0]) == {"rank", "name", "score", "matched", "similarity", "exact"}
    assert hits[0]["name"] == "send_email"
    assert hits[0]["exact"] is False
    assert hits[0]["matched"]
    assert -1 <= hits[0]["similarity"] <= 1
    assert hits[0]["score"] > hits[-1]["score"]


def test_keywords_alone_have_no_similarity(toolfold: Toolfold, catalog: Path) -> None:
    options = ("--catalog", str(catalog), "--mode", "keyword", "--json")
    hits = toolfold(*LIGHT, "search", "git branch", *options).json
    assert hits[0]["name"] == "delete_branch"
    assert {hit["similarity"] for hit in hits} == {None}


@pytest.mark.parametrize("mode", ["keyword", "semantic", "hybrid"])
def test_search_shows_no_more_than_asked(toolfold: Toolfold, catalog: Path, mode: str) -> None:
    options = ("--catalog", str(catalog), "--mode", mode, "--limit", "2", "--json")
    hits = toolfold(*LIGHT, "search", "send a message to a person about the weather", *options).json
    assert len(hits) == 2


def test_search_can_be_tried_on_the_sample(toolfold: Toolfold) -> None:
    hits = toolfold(*LIGHT, "search", "create an out of office reply", "--sample", "--json").json
    assert "larkpost_set_auto_responder" in [hit["name"] for hit in hits]


def test_where_nothing_matches_search_says_what_to_do(toolfold: Toolfold) -> None:
    done = toolfold(*LIGHT, "search", "xyzzy", "--mode", "keyword")
    assert done.code == 0
    assert "no tool matches" in done.out
    assert "toolfold tools list" in done.out


def test_where_nothing_matches_a_program_gets_an_empty_list(toolfold: Toolfold) -> None:
    assert toolfold(*LIGHT, "search", "xyzzy", "--mode", "keyword", "--json").json == []


def test_search_never_shows_what_the_configuration_takes_away(toolfold: Toolfold) -> None:
    asked = ("search", "use read_file to read a file", "--json")
    assert "read_file" in [hit["name"] for hit in toolfold(*LIGHT, *asked).json]
    without = toolfold(*LIGHT, "--set", "tools.disabled_toolsets=[file]", *asked)
    assert without.code == 0
    assert "read_file" not in [hit["name"] for hit in without.json]


@pytest.mark.parametrize(
    "message", ["", " ", "\udcff\udcfe", "[bold]red[/bold] [/]", "\x1b[31m", "a" * 9_000]
)
def test_no_message_is_too_odd_to_search_for(toolfold: Toolfold, message: str) -> None:
    assert toolfold(*LIGHT, "search", message).code == 0


def test_a_model_behind_an_endpoint_is_asked_for_the_tools_once_and_for_every_message(
    toolfold: Toolfold, catalog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as server:
        settings = (
            *("--set", "tools.rag_embed_model=nomic-embed-text"),
            *("--set", f"tools.tool_search.reranker.endpoint={server.url}"),
        )
        asked = ("search", "abc", "--mode", "semantic", "--catalog", str(catalog), "--json")
        first, second = toolfold(*settings, *asked), toolfold(*settings, *asked)
    tools, *messages = [body["input"] for _, _, body in server.requests]
    assert all(text.startswith("search_document: ") for text in tools)
    assert messages == [["search_query: abc"]] * 2
    assert first.json[0]["similarity"] == pytest.approx(second.json[0]["similarity"], abs=0.02)


def test_the_provider_of_the_environment_is_asked_with_its_key(
    toolfold: Toolfold, catalog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("OPENAI_EMBEDDING_MODEL", "abc-model")
    with serving() as server:
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


def test_a_model_that_does_not_answer_leaves_the_keywords_and_is_told_beside(
    toolfold: Toolfold, catalog: Path
) -> None:
    nowhere = ("--set", "tools.rag_embed_model=nomic-embed-text")
    endpoint = ("--set", "tools.tool_search.reranker.endpoint=http://127.0.0.1:9/v1/embeddings")
    done = toolfold(*nowhere, *endpoint, "search", "git branch", "--catalog", str(catalog), "--json")
    assert done.code == 0
    assert done.json[0]["name"] == "delete_branch"
    assert done.json[0]["similarity"] is None


@pytest.mark.parametrize(
    "options", [("--mode", "magic"), ("--limit", "0"), ("--limit", "51"), ("--catalog", "nowhere.jsonl")]
)
def test_search_refuses_what_it_does_not_know(toolfold: Toolfold, options: tuple[str, str]) -> None:
    done = toolfold("search", "hello", *options)
    assert done.code == 2
    assert options[1] in done.err
    assert done.out == ""


def test_a_broken_catalog_is_told_with_its_line(toolfold: Toolfold, catalog: Path) -> None:
    catalog.write_text(lines([definition("a", "b")]) + "{oops\n")
    done = toolfold(*LIGHT, "search", "hello", "--catalog", str(catalog), "--json")
    assert done.code == 1
    assert "catalog.jsonl, line 2" in done.err.replace("\n", "")
    assert done.out == ""


# eval, for programs


def test_eval_as_json_prints_one_object_a_message_and_nothing_else(evaluated: Evaluated) -> None:
    done = evaluated("--json")
    assert done.code == 0
    rows = answers(done)
    assert [row["id"] for row in rows] == [query["id"] for query in QUERIES]
    for row in rows:
        assert list(row) == ["id", "ranked", "selected", "ms"]
        assert isinstance(row["ms"], float)
        assert row["ms"] >= 0
    assert done.err == ""


def test_eval_names_tools_exactly_as_the_catalog_does(evaluated: Evaluated) -> None:
    rows = {row["id"]: row for row in answers(evaluated("--json"))}
    assert rows["w"]["ranked"][0] == "get_weather"
    assert rows["i"]["ranked"][0] == LONG
    assert rows["g"]["ranked"][0] == "größe_ändern"
    assert rows["u"]["ranked"][0] == "users.list"
    for row in rows.values():
        assert set(row["ranked"]) <= set(TOOLS)
        assert len(set(row["ranked"])) == len(row["ranked"])


def test_eval_selects_the_first_ones_ranked(evaluated: Evaluated) -> None:
    for row in answers(evaluated("--json", "--k", "2")):
        assert row["selected"] in ([], row["ranked"][:2])
    assert answers(evaluated("--json", "--k", "2"))[0]["selected"][0] == "get_weather"


@pytest.mark.parametrize("mode", ["keyword", "semantic", "hybrid"])
def test_eval_measures_every_mode(evaluated: Evaluated, mode: str) -> None:
    rows = answers(evaluated("--json", "--mode", mode))
    assert rows[0]["ranked"][0] == "get_weather"


def test_eval_says_the_same_every_time_of_an_index_once_kept(evaluated: Evaluated) -> None:
    evaluated("--json")
    first, second = answers(evaluated("--json")), answers(evaluated("--json"))
    assert [row["ranked"] for row in first] == [row["ranked"] for row in second]


def test_eval_works_with_the_default_model(toolfold: Toolfold, catalog: Path, queries: Path) -> None:
    done = toolfold("eval", "--catalog", str(catalog), "--queries", str(queries), "--json")
    assert [row["ranked"][0] for row in answers(done)[:2]] == ["get_weather", LONG]


def test_the_runtimes_own_tools_do_not_compete_in_eval(
    evaluated: Evaluated, catalog: Path, queries: Path
) -> None:
    queries.write_text(lines([{"id": 1, "query": "use read_file to read a file", "gold": ["send_email"]}]))
    (row,) = answers(evaluated("--json"))
    assert row["id"] == "1"
    assert set(row["ranked"]) <= set(TOOLS)


def test_a_catalog_may_have_a_tool_of_a_built_in_name(
    evaluated: Evaluated, catalog: Path, queries: Path
) -> None:
    catalog.write_text(lines([definition("read_file", "Read aloud a file, as an actor would.")]))
    queries.write_text(lines([{"id": "r", "query": "read a file like an actor", "gold": ["read_file"]}]))
    (row,) = answers(evaluated("--json"))
    assert row["ranked"] == ["read_file"]


def test_a_catalog_may_have_names_that_no_runtime_would_take(
    evaluated: Evaluated, catalog: Path, queries: Path
) -> None:
    catalog.write_text(lines([definition("tool_search", "Find a tool in the shed."), definition("a", "b")]))
    queries.write_text(lines([{"id": "t", "query": "what is in the shed", "gold": ["tool_search"]}]))
    (row,) = answers(evaluated("--json"))
    assert row["ranked"][0] == "tool_search"


def test_text_that_no_terminal_can_carry_is_carried(
    evaluated: Evaluated, catalog: Path, queries: Path
) -> None:
    rows = [{"id": "\ud800", "query": "weather \ud83d \x1b[2J", "gold": ["get_weather"]}]
    queries.write_text("".join(json.dumps(row) for row in rows))
    (row,) = answers(evaluated("--json"))
    assert row["id"] == "\ud800"
    assert row["ranked"][0] == "get_weather"


def test_no_messages_print_nothing(evaluated: Evaluated, queries: Path) -> None:
    queries.write_text("\n")
    done = evaluated("--json")
    assert (done.code, done.out) == (0, "")


def test_what_a_plugin_prints_stays_out_of_the_lines(
    home: Path, toolfold: Toolfold, catalog: Path, queries: Path
) -> None:
    from toolfold.config import load

    folder = load().plugins_folder
    folder.mkdir(parents=True)
    (folder / "noisy.py").write_text("print('hello from a plugin')\n\ndef register(plugin):\n    pass\n")
    files = ("--catalog", str(catalog), "--queries", str(queries))
    done = toolfold(*LIGHT, "eval", *files, "--mode", "keyword", "--json")
    assert len(answers(done)) == len(QUERIES)
    assert "hello from a plugin" in done.err


def test_eval_in_a_process_of_its_own_writes_lines_whatever_the_encoding(
    home: Path, catalog: Path, queries: Path
) -> None:
    toolfold = str(Path(sys.executable).with_name("toolfold"))
    done = subprocess.run(
        [
            toolfold,
            *LIGHT,
            "eval",
            "--mode",
            "keyword",
            "--json",
            "--catalog",
            str(catalog),
            "--queries",
            str(queries),
        ],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.decode("ascii").splitlines()]
    assert rows[2]["ranked"][0] == "größe_ändern"


# eval, for people


def test_eval_shows_the_measures_of_all_messages_and_of_every_kind(evaluated: Evaluated) -> None:
    done = evaluated()
    assert done.code == 0
    title, header, _rule, *rows = (line for line in done.out.splitlines() if line.strip())
    assert title.startswith("6 tools, 4 messages, hybrid, ")
    assert title.rstrip().endswith("ms a message")
    assert header.split() == ["messages", "count", "R@1", "R@5", "R@8", "MRR", "nDCG@10"]
    assert [row.split()[:2] for row in rows[:3]] == [["all", "4"], ["odd", "2"], ["plain", "2"]]
    assert rows[0].split()[2:] == ["1.000"] * 5


def test_eval_tells_messages_that_were_missed_without_touching_the_terminal(
    evaluated: Evaluated, queries: Path
) -> None:
    missed = {"id": "m", "query": "[red]weather[/red] \x1b[2J\ud83d", "gold": ["no_such_tool"]}
    queries.write_text(json.dumps(missed))
    done = evaluated()
    assert done.code == 0
    assert "not all among the first eight, 1 message, for example:" in done.out
    assert "[red]weather[/red]" in done.out
    assert "wanted no_such_tool; first get_weather" in done.out
    assert "\x1b[2J" not in done.out


def test_messages_that_need_no_tool_alone_cannot_be_measured(evaluated: Evaluated, queries: Path) -> None:
    queries.write_text(lines([{"id": "none", "query": "thanks!", "gold": []}]))
    done = evaluated()
    assert done.code == 1
    assert "nothing to measure" in done.err
    assert done.out == ""


@pytest.mark.parametrize("broken", ["{oops", '{"id": "x"}', '{"id": "x", "query": "y", "gold": "z"}'])
def test_a_broken_line_of_the_queries_is_named(evaluated: Evaluated, queries: Path, broken: str) -> None:
    queries.write_text(lines(QUERIES[:1]) + broken)
    done = evaluated("--json")
    assert done.code == 1
    assert "queries.jsonl, line 2" in done.err.replace("\n", "")
    assert done.out == ""


def test_eval_needs_a_catalog_and_queries(toolfold: Toolfold, catalog: Path) -> None:
    assert toolfold("eval").code == 2
    assert toolfold("eval", "--catalog", str(catalog)).code == 2
    assert toolfold("eval", "--catalog", str(catalog), "--queries", "nowhere.jsonl").code == 2
