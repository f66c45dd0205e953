"""`toolfold cost`: tables, JSON, prices, recorded conversations and plots."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Done, Toolfold
from toolfold.config import load_config

LIGHT = ("--set", "tools.rag_embed_model=light")
STRATEGIES = ["eager", "eager slim", "search+describe", "search", "replace", "append", "tail whole", "tail"]

KINDS = ("invoice", "parcel", "meeting", "ticket", "photo", "recipe", "lamp", "flight")
VERBS = ("create", "find", "delete")
IN_CATALOG = len(KINDS) * len(VERBS)
PLUGIN = """
from toolfold import tool

@tool(toolset="shop")
def price(item: str) -> str:
    '''What an item costs.'''
    return item

def register(plugin):
    plugin.add(price)
"""


def definition(name: str, description: str) -> str:
    parameters = {"type": "object", "properties": {"about": {"type": "string", "description": "What." * 20}}}
    function = {"name": name, "description": description, "parameters": parameters}
    return json.dumps({"type": "function", "function": function, "meta": {"server": "shop"}})


@pytest.fixture
def catalog(tmp_path: Path) -> str:
    file = tmp_path / "catalog.jsonl"
    file.write_text(
        "\n".join(definition(f"{verb}_{kind}", f"{verb} a {kind}.") for kind in KINDS for verb in VERBS)
    )
    return str(file)


def rows(done: Done) -> dict[tuple[str, str], Any]:
    return {(row["model"], row["strategy"]): row for row in done.json["bills"]}


def test_json_of_the_cost_command_contains_the_cost_of_every_tool_sending_strategy_and_model(
    toolfold: Toolfold, catalog: str
) -> None:
    done = toolfold(*LIGHT, "cost", "--catalog", catalog, "--turns", "4", "--json")
    assert done.code == 0
    assert done.json["turns"] == 4
    assert {strategy for _, strategy in rows(done)} == set(STRATEGIES)
    for row in done.json["bills"]:
        assert len(row["by_turn"]) == 4
        assert row["by_turn"][-1] == pytest.approx(row["dollars"], abs=1e-5)
        assert 0 <= row["cached"] <= row["input"]
    assert set(done.json["placement"].values()) <= {"replace", "append", "tail"}
    assert set(done.json["placement"]) == {model for model, _ in rows(done)}


def test_cost_command_prints_costs_of_every_tool_sending_strategy_for_each_prompt_cache_kind(
    toolfold: Toolfold, catalog: str
) -> None:
    done = toolfold(*LIGHT, "cost", "--catalog", catalog, "--turns", "3")
    assert done.code == 0
    for kind in ("cache, paid writes", "cache, free writes", "no cache"):
        assert kind in done.out
    for strategy in STRATEGIES:
        assert done.out.count(f" {strategy} ") >= 3
    assert "after 1 message: " in done.out
    assert "after 3 messages: " in done.out
    assert "use --prices" in done.out


def test_cost_figures_are_equal_for_equal_seeds_and_differ_for_different_seeds(
    toolfold: Toolfold, catalog: str
) -> None:
    arguments = (*LIGHT, "cost", "--catalog", catalog, "--turns", "3", "--json")
    first = toolfold(*arguments).json
    assert toolfold(*arguments).json == first
    assert toolfold(*arguments, "--seed", "8").json != first


@pytest.mark.thorough
def test_cost_command_uses_the_sample_catalog_if_no_tools_are_configured(toolfold: Toolfold) -> None:
    done = toolfold(*LIGHT, "cost", "--turns", "2", "--json")
    assert done.code == 0
    assert done.json["tools"] > 200
    assert "sample" in done.err
    assert toolfold(*LIGHT, "cost", "--sample", "--turns", "2", "--json").json == done.json


@pytest.mark.thorough
def test_cost_command_with_options_catalog_and_sample_counts_the_tools_of_both_catalogs(
    toolfold: Toolfold, catalog: str
) -> None:
    def cost(*options: str) -> Any:
        return toolfold(*LIGHT, "cost", *options, "--turns", "1", "--json").json

    sample, both = cost("--sample"), cost("--sample", "--catalog", catalog)
    assert both["tools"] == sample["tools"] + IN_CATALOG
    assert both["tokens"] > sample["tokens"]
    assert "the sample messages" in both["origin"]
    assert "own descriptions" in cost("--catalog", catalog)["origin"]


def test_cost_command_with_option_catalog_counts_catalog_tools_and_configured_tools(
    toolfold: Toolfold, catalog: str
) -> None:
    directory = load_config().plugins_folder
    directory.mkdir(parents=True)
    (directory / "shop.py").write_text(PLUGIN)
    own = toolfold(*LIGHT, "cost", "--turns", "1", "--json").json["tools"]
    assert own < 100, "the sample was not taken"
    joined = toolfold(*LIGHT, "cost", "--catalog", catalog, "--turns", "1", "--json").json["tools"]
    assert joined == own + IN_CATALOG


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    return tmp_path / "prices.yaml"


def test_cost_command_uses_the_model_prices_from_the_file_given_by_option_prices(
    toolfold: Toolfold, catalog: str, prices: Path
) -> None:
    prices.write_text(
        "house: {input: 1000000, output: 0}\nother:\n  input: 2\n  output: 4\n  cached_read: 0.5\n"
    )
    arguments = ("cost", "--catalog", catalog, "--turns", "2", "--prices", str(prices))
    found = rows(toolfold(*LIGHT, *arguments, "--json"))
    assert {model for model, _ in found} == {"house", "other"}
    assert found["house", "eager"]["dollars"] == found["house", "eager"]["input"]
    printed = toolfold(*LIGHT, *arguments, "--model", "other").out
    assert "other: cache, free writes" in printed
    assert "house: " not in printed
    assert "use --prices" not in printed


@pytest.mark.parametrize(
    "text", ["[1, 2]", "house: {input: 1}", "house: {input: a, output: 1}", "house: [", ""]
)
def test_cost_command_rejects_an_invalid_price_file_and_prints_its_name(
    toolfold: Toolfold, catalog: str, prices: Path, text: str
) -> None:
    prices.write_text(text)
    done = toolfold(*LIGHT, "cost", "--catalog", catalog, "--prices", str(prices))
    assert done.code == 3
    assert "prices.yaml" in done.err.replace("\n", "")
    assert done.out == ""


def test_json_of_the_cost_command_contains_only_the_models_given_on_the_command_line(
    toolfold: Toolfold, catalog: str
) -> None:
    done = toolfold(*LIGHT, "cost", "--catalog", catalog, "--turns", "2", "--model", "gpt-4o", "--json")
    assert {model for model, _ in rows(done)} == {"gpt-4o"}


def test_cost_command_for_a_model_without_prices_exits_with_a_usage_error(
    toolfold: Toolfold, catalog: str
) -> None:
    done = toolfold(*LIGHT, "cost", "--catalog", catalog, "--model", "nobody")
    assert done.code == 2
    assert "gpt-5.4" in done.err


def test_cost_command_with_option_conversation_computes_the_cost_of_a_recorded_conversation(
    toolfold: Toolfold, catalog: str, tmp_path: Path
) -> None:
    file = tmp_path / "talk.jsonl"
    turns: list[Any] = [
        {"system": 900},
        {
            "user": "create an invoice please",
            "calls": [{"tool": "create_invoice", "arguments": {"about": "tea"}, "result": "done"}],
            "answer": "It is there.",
        },
        {"user": 12, "answer": 30, "pause": 5},
    ]
    file.write_text("\n".join(map(json.dumps, turns)))
    found = toolfold(*LIGHT, "cost", "--catalog", catalog, "--conversation", str(file), "--json")
    assert found.code == 0
    assert found.json["turns"] == 2
    assert str(file) in found.json["origin"]
    bills = rows(found)
    assert bills["gpt-5.4", "eager"]["calls"] == bills["gpt-5.4", "tail"]["calls"] == 3
    assert bills["gpt-5.4", "search"]["calls"] == 4
    assert bills["gpt-5.4", "search+describe"]["calls"] == 5


@pytest.mark.parametrize(
    "line",
    [
        "{oops",
        "[]",
        '{"who": 1}',
        '{"user": -1}',
        '{"user": 1, "calls": 5}',
        '{"user": 1, "calls": [{"name": "x"}]}',
        '{"user": 1, "pause": "long"}',
    ],
)
def test_cost_command_prints_the_number_of_an_invalid_line_in_a_recorded_conversation(
    toolfold: Toolfold, catalog: str, tmp_path: Path, line: str
) -> None:
    file = tmp_path / "talk.jsonl"
    file.write_text('{"user": 3}\n' + line)
    done = toolfold(*LIGHT, "cost", "--catalog", catalog, "--conversation", str(file))
    assert done.code == 1
    assert "talk.jsonl, line 2" in done.err.replace("\n", "")


def test_cost_command_rejects_a_recorded_conversation_without_user_messages(
    toolfold: Toolfold, catalog: str, tmp_path: Path
) -> None:
    file = tmp_path / "talk.jsonl"
    file.write_text('{"system": 5}\n')
    done = toolfold(*LIGHT, "cost", "--catalog", catalog, "--conversation", str(file))
    assert done.code == 1
    assert "no message" in done.err


def test_cost_command_with_option_plot_reports_that_matplotlib_is_not_installed(
    toolfold: Toolfold, catalog: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = toolfold(*LIGHT, "cost", "--catalog", catalog, "--plot", str(tmp_path / "cost.png"))
    assert done.code == 1
    assert "toolfold[plot]" in done.err
    assert not (tmp_path / "cost.png").exists()


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="drawing is an extra")
def test_cost_command_with_option_plot_writes_a_png_file(
    toolfold: Toolfold, catalog: str, tmp_path: Path
) -> None:
    file = tmp_path / "cost.png"
    done = toolfold(*LIGHT, "cost", "--catalog", catalog, "--turns", "3", "--plot", str(file), "--json")
    assert done.code == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    assert json.loads(done.out)["turns"] == 3
    assert "cost.png" in done.err.replace("\n", "")


@pytest.mark.parametrize(
    ("name", "problem"),
    [("cost.odd", "must end in .png, .svg, .pdf"), ("nowhere/o.png", "cannot be written")],
)
def test_cost_command_rejects_an_unwritable_plot_file_before_any_computation(
    toolfold: Toolfold, catalog: str, name: str, problem: str
) -> None:
    Path(catalog).write_text("{oops")
    done = toolfold(*LIGHT, "cost", "--catalog", catalog, "--plot", name)
    assert done.code == 2
    assert problem in done.err
    assert done.out == ""


def test_cost_command_says_if_tool_search_costs_more_than_sending_all_tools(
    toolfold: Toolfold, catalog: str
) -> None:
    few = Path(catalog)
    few.write_text("\n".join(few.read_text().splitlines()[:3]))
    assert (
        "Tool search costs more than sending all tools with"
        in toolfold(*LIGHT, "cost", "--catalog", catalog).out
    )
