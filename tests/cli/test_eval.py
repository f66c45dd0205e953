"""`toolfold eval`: JSON lines, the printed report, plots and invalid input."""

from __future__ import annotations

import gzip
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Done, Toolfold
from tests.cli.files import LONG, QUERIES, TOOLS, definition, lines
from toolfold.selection.turn import count_tokens
from toolfold.tools.catalog import load_catalog

LIGHT = ("--set", "tools.rag_embed_model=light")
RunEval = Callable[..., Done]


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
def run_eval(toolfold: Toolfold, catalog: Path, queries: Path) -> RunEval:
    """Return a function that runs `eval` on the catalog and the queries with the small model."""

    def call(*options: str) -> Done:
        return toolfold(*LIGHT, "eval", "--catalog", str(catalog), "--queries", str(queries), *options)

    return call


def parse_lines(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.out.splitlines()]


# for programs


def test_eval_with_option_json_prints_exactly_one_json_object_per_message(run_eval: RunEval) -> None:
    done = run_eval("--json")
    assert done.code == 0
    rows = parse_lines(done)
    assert [row["id"] for row in rows] == [query["id"] for query in QUERIES]
    for row in rows:
        assert list(row) == ["id", "ranked", "selected", "ms"]
        assert isinstance(row["ms"], float)
        assert row["ms"] >= 0
    assert done.err == ""


def test_eval_prints_tool_names_exactly_as_written_in_the_catalog(run_eval: RunEval) -> None:
    rows = {row["id"]: row for row in parse_lines(run_eval("--json"))}
    assert rows["w"]["ranked"][0] == "get_weather"
    assert rows["i"]["ranked"][0] == LONG
    assert rows["g"]["ranked"][0] == "größe_ändern"
    assert rows["u"]["ranked"][0] == "users.list"
    for row in rows.values():
        assert set(row["ranked"]) <= set(TOOLS)
        assert len(set(row["ranked"])) == len(row["ranked"])


def test_eval_with_option_k_selects_either_the_k_highest_ranked_tools_or_no_tool(run_eval: RunEval) -> None:
    for row in parse_lines(run_eval("--json", "--k", "2")):
        assert row["selected"] in ([], row["ranked"][:2])
    assert parse_lines(run_eval("--json", "--k", "2"))[0]["selected"][0] == "get_weather"


@pytest.mark.parametrize("mode", ["keyword", "semantic", "hybrid", "rerank"])
def test_eval_ranks_the_needed_tool_first_in_every_search_mode(run_eval: RunEval, mode: str) -> None:
    rows = parse_lines(run_eval("--json", "--mode", mode))
    assert rows[0]["ranked"][0] == "get_weather"


@pytest.mark.thorough
def test_eval_prints_the_same_ranking_in_a_second_run_that_uses_the_cached_index(run_eval: RunEval) -> None:
    run_eval("--json")
    first, second = parse_lines(run_eval("--json")), parse_lines(run_eval("--json"))
    assert [row["ranked"] for row in first] == [row["ranked"] for row in second]


def test_eval_with_the_default_embedding_model_ranks_the_needed_tool_first(
    toolfold: Toolfold, catalog: Path, queries: Path
) -> None:
    done = toolfold("eval", "--catalog", str(catalog), "--queries", str(queries), "--json")
    assert [row["ranked"][0] for row in parse_lines(done)[:2]] == ["get_weather", LONG]


def test_eval_ranks_only_catalog_tools_and_no_built_in_tools(
    run_eval: RunEval, catalog: Path, queries: Path
) -> None:
    queries.write_text(lines([{"id": 1, "query": "use read_file to read a file", "gold": ["send_email"]}]))
    (row,) = parse_lines(run_eval("--json"))
    assert set(row["ranked"]) <= set(TOOLS)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("identity", [7, 1.5, "7", "", "größe"])
def test_eval_result_contains_the_message_id_with_its_original_json_type(
    run_eval: RunEval, queries: Path, identity: str | float
) -> None:
    queries.write_text(lines([{"id": identity, "query": "weather", "gold": ["get_weather"]}]), "utf-8")
    (row,) = parse_lines(run_eval("--json"))
    assert row["id"] == identity
    assert type(row["id"]) is type(identity)


def test_eval_searches_only_among_the_candidates_listed_for_a_message(
    run_eval: RunEval, queries: Path
) -> None:
    own = {"candidates": ["send_email", "users.list"], "scope": "own_candidates_only"}
    queries.write_text(lines([{"id": "w", "query": "weather forecast for Oslo", "gold": [], **own}]))
    (row,) = parse_lines(run_eval("--json"))
    assert set(row["ranked"]) <= {"send_email", "users.list"}


def test_eval_ignores_candidates_of_a_message_without_the_key_scope_and_searches_all_tools(
    run_eval: RunEval, queries: Path
) -> None:
    message = {"id": "w", "query": "weather forecast", "gold": ["get_weather"], "candidates": ["send_email"]}
    queries.write_text(lines([message]))
    (row,) = parse_lines(run_eval("--json"))
    assert row["ranked"][0] == "get_weather"


@pytest.mark.thorough
def test_eval_reads_gzip_compressed_catalog_and_queries_files(
    run_eval: RunEval, toolfold: Toolfold, catalog: Path, queries: Path
) -> None:
    for file in (catalog, queries):
        file.with_suffix(".jsonl.gz").write_bytes(gzip.compress(file.read_bytes()))
    packed = ("--catalog", f"{catalog}.gz", "--queries", f"{queries}.gz")
    run_eval("--json")
    plain, done = parse_lines(run_eval("--json")), toolfold(*LIGHT, "eval", *packed, "--json")
    assert [row["ranked"] for row in parse_lines(done)] == [row["ranked"] for row in plain]


def test_eval_warns_on_stderr_about_duplicate_ids_and_tools_missing_from_the_catalog(
    run_eval: RunEval, catalog: Path, queries: Path
) -> None:
    catalog.write_text(catalog.read_text("utf-8") + lines([definition("get_weather", "Again.")]), "utf-8")
    own = {"candidates": ["gone_too"], "scope": "own_candidates_only"}
    queries.write_text(
        lines(
            [
                {"id": "a", "query": "weather", "gold": ["gone"]},
                {"id": "a", "query": "email", "gold": ["send_email"]},
                {"id": "b", "query": "weather", "gold": [], **own},
            ]
        )
    )
    done = run_eval("--json")
    assert done.code == 0
    assert [row["id"] for row in parse_lines(done)] == ["a", "a", "b"]
    tools, ids, missing = done.err.strip().splitlines()
    assert tools == f"warning: {catalog}: duplicate tool names: get_weather; the last definition is used"
    assert ids == f"warning: {queries}: duplicate message ids: a"
    problem = "tools that are missing from catalog.jsonl cannot be found: gone, gone_too"
    assert missing == f"warning: {queries}: {problem}"


def test_eval_ranks_a_catalog_tool_that_has_the_name_of_a_built_in_tool(
    run_eval: RunEval, catalog: Path, queries: Path
) -> None:
    catalog.write_text(lines([definition("read_file", "Read aloud a file, as an actor would.")]))
    queries.write_text(lines([{"id": "r", "query": "read a file like an actor", "gold": ["read_file"]}]))
    (row,) = parse_lines(run_eval("--json"))
    assert row["ranked"] == ["read_file"]


def test_eval_ranks_a_catalog_tool_with_the_reserved_name_tool_search(
    run_eval: RunEval, catalog: Path, queries: Path
) -> None:
    catalog.write_text(lines([definition("tool_search", "Find a tool in the shed."), definition("a", "b")]))
    queries.write_text(lines([{"id": "t", "query": "what is in the shed", "gold": ["tool_search"]}]))
    (row,) = parse_lines(run_eval("--json"))
    assert row["ranked"][0] == "tool_search"


def test_eval_prints_an_id_with_a_lone_surrogate_as_a_json_escape(
    run_eval: RunEval, catalog: Path, queries: Path
) -> None:
    rows = [{"id": "\ud800", "query": "weather \ud83d \x1b[2J", "gold": ["get_weather"]}]
    queries.write_text("".join(json.dumps(row) for row in rows))
    (row,) = parse_lines(run_eval("--json"))
    assert row["id"] == "\ud800"
    assert row["ranked"][0] == "get_weather"


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_eval_fails_for_an_empty_queries_file(
    run_eval: RunEval, queries: Path, options: tuple[str, ...]
) -> None:
    queries.write_text("\n")
    done = run_eval(*options)
    assert (done.code, done.out) == (1, "")
    assert "queries.jsonl contains no messages" in " ".join(done.err.split())


def test_eval_fails_for_an_empty_catalog(run_eval: RunEval, catalog: Path) -> None:
    catalog.write_text("\n")
    done = run_eval("--json")
    assert (done.code, done.out) == (1, "")
    assert "catalog.jsonl contains no tools" in done.err


def test_text_that_a_plugin_prints_is_not_mixed_into_the_json_lines_of_eval(
    home: Path, toolfold: Toolfold, catalog: Path, queries: Path
) -> None:
    from toolfold.config import load_config

    directory = load_config().plugins_folder
    directory.mkdir(parents=True)
    (directory / "noisy.py").write_text("print('hello from a plugin')\n\ndef register(plugin):\n    pass\n")
    files = ("--catalog", str(catalog), "--queries", str(queries))
    done = toolfold(*LIGHT, "eval", *files, "--mode", "keyword", "--json")
    assert len(parse_lines(done)) == len(QUERIES)
    assert "hello from a plugin" in done.err


@pytest.mark.thorough
def test_eval_writes_valid_json_lines_for_every_encoding_of_stdout(
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
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.decode("ascii").splitlines()]
    assert rows[2]["ranked"][0] == "größe_ändern"


# The printed report


def report_lines(done: Done) -> list[str]:
    """Return the lines of the printed report with whitespace collapsed."""
    assert done.code == 0, done.err
    return [" ".join(line.split()) for line in done.out.splitlines() if line.strip()]


def test_eval_report_contains_recall_mrr_and_ndcg_for_all_messages_and_per_message_kind(
    run_eval: RunEval,
) -> None:
    title, heading, header, _rule, *rows = report_lines(run_eval())
    assert title == "6 tools, 5 messages, hybrid"
    assert heading == "messages that need a tool"
    assert header.split() == ["kind", "count", "R@1", "R@5", "R@8", "MRR", "nDCG@10"]
    assert rows[0].split() == ["all", "4", *["1.000"] * 5]
    assert [row.split()[:2] for row in rows[1:3]] == [["odd", "2"], ["plain", "2"]]


def test_eval_report_contains_a_recall_column_for_the_k_given_by_option_k(run_eval: RunEval) -> None:
    header = report_lines(run_eval("--k", "3"))[2]
    assert header.split()[2:6] == ["R@1", "R@3", "R@5", "R@8"]


def test_eval_report_contains_rates_of_wrong_selections_and_tokens_and_cpu_time_per_message(
    run_eval: RunEval, catalog: Path, queries: Path
) -> None:
    own = {"candidates": ["users.list"], "scope": "own_candidates_only"}
    alone = {"id": "own", "query": "list all users", "gold": [], **own}
    queries.write_text(lines([*QUERIES, alone]), "utf-8")
    rows = report_lines(run_eval("--mode", "keyword"))
    every = count_tokens(tool.definition() for tool in load_catalog(catalog))
    assert any(re.fullmatch(r"tool needed, none selected \S+% \(\d of 4\)", row) for row in rows)
    assert any(re.fullmatch(r"no tool needed, some selected \S+% \(\d of 1\)", row) for row in rows)
    assert any(
        re.fullmatch(r"no tool needed among own candidates, some selected \S+% \(\d of 1\)", row)
        for row in rows
    )
    assert any(
        re.match(rf"tokens sent per message \d+ of {every} \(\S+%\), at most 8 tools", row) for row in rows
    )
    assert any(re.fullmatch(r"CPU time per message \S+ ms p50, \S+ ms p99", row) for row in rows)


def test_eval_report_states_that_recall_cannot_be_measured_if_no_message_needs_a_tool(
    run_eval: RunEval, queries: Path
) -> None:
    queries.write_text(lines([{"id": "none", "query": "thanks!", "gold": []}]))
    rows = report_lines(run_eval())
    assert any("recall cannot be measured" in row for row in rows)
    assert any(row.startswith("no tool needed, some selected") for row in rows)
    assert not any("R@1" in row for row in rows)


def test_eval_report_states_that_all_needed_tools_are_ranked_first_if_no_message_fails(
    run_eval: RunEval,
) -> None:
    assert report_lines(run_eval())[-1] == "For every message, the needed tools are ranked first."


def test_eval_report_lists_needed_tools_that_are_missing_from_the_catalog_last(
    run_eval: RunEval, queries: Path
) -> None:
    gone = {"id": "g", "query": "weather in Oslo", "gold": ["no_such_tool"]}
    behind = {"id": "b", "query": "use get_weather and then send email", "gold": ["users.list"]}
    queries.write_text(lines([gone, behind]))
    text = " ".join(report_lines(run_eval()))
    assert "the worst 2" in text
    assert text.index("users.list") < text.index("no_such_tool")
    assert text.endswith("not in the catalog")


def test_eval_report_states_that_a_needed_tool_is_not_among_the_candidates_of_the_message(
    run_eval: RunEval, queries: Path
) -> None:
    own = {"candidates": ["send_email"], "scope": "own_candidates_only"}
    queries.write_text(lines([{"id": "g", "query": "weather email", "gold": ["get_weather"], **own}]))
    assert "not among the message's own candidates" in " ".join(report_lines(run_eval()))


def test_eval_report_explains_which_tool_ranked_above_the_needed_tool_and_why(
    run_eval: RunEval, queries: Path
) -> None:
    message = "email the weather forecast of the city"
    queries.write_text(lines([{"id": "m", "query": message, "gold": ["delete_branch"]}]))
    rank, wanted, *why = report_lines(run_eval())[-4:]
    both = " ".join((rank, wanted, *why))
    assert message in both
    assert "→ delete_branch" in both
    assert "ranked after get_weather" in both
    assert re.search(r"similarity -?\d\.\d\d, lower than that of the first tool \(\d\.\d\d\)", both)


def test_eval_report_explains_ranks_by_similarity_in_semantic_mode_and_by_words_in_keyword_mode(
    run_eval: RunEval, queries: Path
) -> None:
    queries.write_text(lines([{"id": "m", "query": "weather forecast", "gold": ["delete_branch"]}]))
    keyword, semantic = (" ".join(report_lines(run_eval("--mode", mode))) for mode in ("keyword", "semantic"))
    assert "none weather forecast ranked after get_weather" in keyword
    assert "no matching words; the first tool matches weather, forecast" in keyword
    assert "similarity" not in keyword
    assert "lower than that of the first tool" in semantic
    assert "matching words" not in semantic


def test_eval_report_shows_ranks_of_needed_tools_beyond_50_as_more_than_50(
    run_eval: RunEval, catalog: Path, queries: Path
) -> None:
    many = [definition(f"weather_{number}", "Weather forecast.") for number in range(60)]
    catalog.write_text(lines([*many, definition("send_email", "Send an email.")]))
    queries.write_text(lines([{"id": "m", "query": "weather forecast", "gold": ["send_email"]}]))
    assert ">50 weather forecast ranked after weather_" in " ".join(
        report_lines(run_eval("--mode", "semantic"))
    )


def test_eval_report_mentions_that_a_message_contains_the_name_of_an_unexpected_tool(
    run_eval: RunEval, queries: Path
) -> None:
    queries.write_text(
        lines([{"id": "m", "query": "use get_weather on a branch", "gold": ["delete_branch"]}])
    )
    assert "the message names get_weather" in " ".join(report_lines(run_eval()))


def test_eval_report_escapes_control_characters_of_messages_and_tool_names(
    run_eval: RunEval, queries: Path
) -> None:
    queries.write_text(
        json.dumps({"id": "m", "query": "[red]weather[/red] \x1b[2J\ud83d", "gold": ["\x1b[2J"]})
    )
    done = run_eval()
    assert done.code == 0
    assert "[red]weather[/red]" in done.out
    assert "\x1b" not in done.out + done.err


# Plots


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(("name", "start"), [("o.png", b"\x89PNG"), ("o.svg", b"<?xml"), ("o.PDF", b"%PDF")])
def test_eval_with_option_plot_writes_an_image_in_the_format_of_the_file_suffix(
    run_eval: RunEval, tmp_path: Path, name: str, start: bytes
) -> None:
    done = run_eval("--plot", str(tmp_path / name))
    assert done.code == 0
    assert name in done.err.replace("\n", "")
    assert (tmp_path / name).read_bytes().startswith(start)


def test_eval_plot_contains_one_curve_per_search_mode_and_labelled_axes(
    run_eval: RunEval, tmp_path: Path
) -> None:
    done = run_eval("--mode", "keyword", "--json", "--plot", str(tmp_path / "o.svg"))
    assert len(parse_lines(done)) == len(QUERIES)
    drawn = (tmp_path / "o.svg").read_text("utf-8")
    for text in (
        "keyword",
        "semantic",
        "hybrid",
        "tokens of the tools sent",
        "recall",
        "6 tools, 4 messages",
    ):
        assert text in drawn


@pytest.mark.parametrize(
    ("name", "problem"),
    [("o.bmp", "must end in .png, .svg, .pdf"), ("o", "must end in"), ("nowhere/o.png", "cannot be written")],
)
def test_eval_rejects_an_unwritable_plot_file_before_any_search(
    run_eval: RunEval, catalog: Path, name: str, problem: str
) -> None:
    catalog.write_text("{oops")
    done = run_eval("--plot", name)
    assert done.code == 2
    assert problem in done.err
    assert done.out == ""


def test_eval_with_option_plot_reports_that_matplotlib_is_not_installed(
    run_eval: RunEval, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run_eval().code == 0
    done = run_eval("--plot", "o.png")
    assert done.code == 1
    assert "pip install 'toolfold[plot]'" in done.err
    assert done.out == ""


def test_eval_plot_fails_if_no_message_needs_a_tool(run_eval: RunEval, queries: Path) -> None:
    queries.write_text(lines([{"id": "none", "query": "thanks!", "gold": []}]))
    done = run_eval("--plot", "o.png")
    assert done.code == 1
    assert "recall cannot be plotted" in done.err
    assert not Path("o.png").exists()


# Progress


@pytest.mark.thorough
def test_progress_bar_of_eval_is_never_mixed_with_json_lines(
    home: Path, catalog: Path, queries: Path
) -> None:
    screen, terminal = pty.openpty()
    toolfold = str(Path(sys.executable).with_name("toolfold"))
    files = ("--catalog", str(catalog), "--queries", str(queries))
    done = subprocess.run(
        [toolfold, *LIGHT, "eval", *files, "--mode", "keyword", "--json"],
        env={**os.environ, "TERM": "xterm"},
        stdout=subprocess.PIPE,
        stderr=terminal,
        timeout=240,
    )
    os.close(terminal)
    drawn = os.read(screen, 100_000).decode()
    os.close(screen)
    assert done.returncode == 0, drawn
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [each["id"] for each in QUERIES]
    assert "running queries (keyword)" in drawn


# Invalid input


@pytest.mark.parametrize(
    "broken",
    [
        "{oops",
        '{"id": "x"}',
        '{"id": "x", "query": "y", "gold": "z"}',
        '{"id": "x", "query": "y", "gold": [], "scope": "own_candidates_only"}',
    ],
)
def test_error_for_an_invalid_eval_queries_file_contains_the_line_number(
    run_eval: RunEval, queries: Path, broken: str
) -> None:
    queries.write_text(lines(QUERIES[:1]) + broken)
    done = run_eval("--json")
    assert done.code == 1
    assert "queries.jsonl, line 2" in done.err.replace("\n", "")
    assert done.out == ""


def test_eval_without_a_catalog_or_queries_file_exits_with_a_usage_error(
    toolfold: Toolfold, catalog: Path
) -> None:
    assert toolfold("eval").code == 2
    assert toolfold("eval", "--catalog", str(catalog)).code == 2
    assert toolfold("eval", "--catalog", str(catalog), "--queries", "nowhere.jsonl").code == 2


def test_error_for_an_invalid_eval_catalog_contains_the_line_number(run_eval: RunEval, catalog: Path) -> None:
    catalog.write_bytes(catalog.read_bytes() + b'{"function": {"name": "\xff"}}\n')
    done = run_eval("--json")
    assert done.code == 1
    assert f"catalog.jsonl, line {len(TOOLS) + 1}" in done.err.replace("\n", "")
    assert done.out == ""


def test_eval_rejects_a_directory_as_catalog(toolfold: Toolfold, tmp_path: Path, queries: Path) -> None:
    done = toolfold("eval", "--catalog", str(tmp_path), "--queries", str(queries))
    assert done.code == 2
    assert "is a directory" in done.err


# conversations


def write_conversation(queries: Path, **row: Any) -> None:
    history = [
        {"role": "user", "content": "weather in Oslo"},
        {"role": "assistant", "content": "Rain.", "tools": ["get_weather"]},
    ]
    queries.write_text(
        lines([{"id": "c", "query": "and tomorrow?", "gold": ["get_weather"], "history": history, **row}]),
        "utf-8",
    )


def test_eval_selects_the_tool_called_earlier_in_the_conversation_for_a_follow_up_message(
    run_eval: RunEval, queries: Path
) -> None:
    write_conversation(queries)
    (row,) = parse_lines(run_eval("--json", "--k", "1"))
    assert "get_weather" in row["selected"]
    assert row["ranked"][: len(row["selected"])] == row["selected"]


def test_eval_selects_no_tool_for_a_message_of_thanks_at_the_end_of_a_conversation(
    run_eval: RunEval, queries: Path
) -> None:
    write_conversation(queries, query="thank you so much, bye!", gold=[])
    (row,) = parse_lines(run_eval("--json"))
    assert row["selected"] == []


@pytest.mark.parametrize(
    "history",
    [
        "hello",
        [1],
        [{"content": "no role"}],
        [{"role": "user", "content": 1}],
        [{"role": "user", "tools": "t"}],
    ],
)
def test_error_for_an_invalid_conversation_history_in_eval_queries_contains_the_line_number(
    run_eval: RunEval, queries: Path, history: Any
) -> None:
    write_conversation(queries, history=history)
    done = run_eval("--json")
    assert done.code != 0
    assert "line 1" in done.err


def test_eval_without_files_asks_for_them_or_for_the_sample(toolfold: Toolfold) -> None:
    done = toolfold("eval")
    assert done.code == 2
    assert "--sample" in done.err


def test_eval_of_the_sample_needs_no_files(toolfold: Toolfold) -> None:
    done = toolfold("eval", "--sample", "--mode", "keyword")
    assert done.code == 0
    assert "277 tools, 189 messages" in done.out
