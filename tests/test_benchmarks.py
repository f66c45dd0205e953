"""The retrieval benchmark runs on a small catalog with another retriever, and stores its results."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
PEER = """
def build(definitions):
    return [each["function"]["name"] for each in definitions]

def search(index, message, count):
    print("asked")
    return index[:count]
"""


def sample(name: str) -> list[dict[str, Any]]:
    text = files("toolfold").joinpath(f"tools/sample/{name}").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small data set: a few messages, the tools they need and a few others."""
    folder = tmp_path_factory.mktemp("data")
    queries = [row for row in sample("queries.jsonl") if len(row["gold"]) == 1][:6]
    wanted = {name for row in queries for name in row["gold"]}
    tools = sample("catalog.jsonl")
    others = [tool for tool in tools if tool["function"]["name"] not in wanted][:12]
    write(folder / "small" / "queries.jsonl", queries)
    write(
        folder / "small" / "catalog.jsonl",
        [tool for tool in tools if tool["function"]["name"] in wanted] + others,
    )
    return folder


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peers")
    (folder / "first_ones.py").write_text(PEER)
    (folder / "broken.py").write_text("import nothing_of_this_name\n" + PEER)
    (folder / "_shared.py").write_text("def build(definitions): ...\n")
    return folder


@pytest.fixture(scope="module")
def out(data: Path, peers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with the tables of a complete run over the small data set."""
    folder = tmp_path_factory.mktemp("out")
    run(folder, data, peers)
    return folder


def run(out: Path, data: Path, peers: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            str(BENCHMARKS / "retrieval.py"),
            *("--data", str(data), "--sets", "small", "--parts", "quality,need"),
            *("--peers", str(peers), "--peer-python", sys.executable),
            *("--out", str(out), "--json", str(out / "result.json")),
        ],
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.thorough
def test_benchmark_result_contains_all_search_modes_and_the_compared_retrievers(out: Path) -> None:
    (row,) = json.loads((out / "result.json").read_text())["quality"]["plain"]
    assert set(row["ours"]) == {
        "keyword",
        "semantic",
        "rank fusion",
        "default",
        "light semantic",
        "light",
    }
    assert row["ours"]["default"]["R@8"] > row["peers"]["first_ones"]["R@1"]
    assert row["messages"] == 6
    assert {"R@1", "R@5", "R@8", "MRR", "p50"} <= row["peers"]["first_ones"].keys()


@pytest.mark.thorough
def test_benchmark_report_contains_a_table_for_detecting_messages_that_need_tools(out: Path) -> None:
    told = json.loads((out / "result.json").read_text())["need"]["small"]
    assert told["needs"]["messages"] == len(told["needs"]["need"]) == 6
    assert told["chat"] == told["own"] == {}
    assert "| small |" in (out / "need.md").read_text()


def test_benchmark_result_contains_the_error_message_of_a_failed_retriever(out: Path) -> None:
    (row,) = json.loads((out / "result.json").read_text())["quality"]["plain"]
    assert set(row["peers"]) == {"first_ones", "broken"}
    assert "nothing_of_this_name" in row["peers"]["broken"]["problem"]


def test_benchmark_writes_a_markdown_table_with_a_row_per_data_set_and_retriever(out: Path) -> None:
    table = (out / "quality-plain.md").read_text()
    assert "| small | 18 | 6 |" in table
    assert "first_ones" in table


@pytest.mark.thorough
def test_benchmark_reuses_results_of_compared_retrievers_from_the_previous_run(
    out: Path, data: Path, peers: Path
) -> None:
    kept = out / "peers.json"
    results = json.loads(kept.read_text())
    (key,) = [key for key in results if key.startswith("first_ones|")]
    results[key]["R@5"] = 0.123
    kept.write_text(json.dumps(results))
    assert ".123 first_ones" in run(out, data, peers).stdout


@pytest.mark.thorough
def test_benchmark_subprocess_reports_memory_and_the_times_to_start_and_to_apply_a_tool_change(
    data: Path, tmp_path: Path
) -> None:
    job = {
        "catalog": str(data / "small" / "catalog.jsonl"),
        "home": str(tmp_path),
        "model": "light",
        "messages": ["my parcel arrived broken", "remind me tonight"],
        "change": True,
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    subprocess.run(
        [
            sys.executable,
            str(BENCHMARKS / "measuring" / "fresh.py"),
            str(tmp_path / "job.json"),
            str(tmp_path / "answer.json"),
        ],
        env={**os.environ, "PYTHONPATH": str(BENCHMARKS)},
        check=True,
    )
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["tools"] == 18
    assert len(answer["ms"]) == 1
    assert answer["memory_mb"] >= answer["memory_of_catalog_mb"] > 0
    assert set(answer["first"]) == set(answer["change"]) == {"wall", "cpu"}


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.usefixtures("measuring")
def test_generated_benchmark_catalog_has_distinct_tools_and_is_reproducible(
    data: Path, tmp_path: Path
) -> None:
    from measuring.sets import Sets

    sets = Sets(data, tmp_path)
    first = sets.of_size(700).read_text()
    names = [json.loads(line)["function"]["name"] for line in first.splitlines()]
    assert len(set(names)) == len(names) == 700
    assert sets.of_size(700).read_text() == first


@pytest.mark.usefixtures("measuring")
def test_benchmark_draws_the_same_sample_of_messages_in_every_run(data: Path, tmp_path: Path) -> None:
    from measuring.sets import Sets

    sets = Sets(data, tmp_path)
    drawn = sets.task("small", 3).queries
    assert list(drawn) == random.Random(7).sample(sets.queries("small"), 3)


@pytest.mark.usefixtures("measuring")
def test_threshold_curve_of_the_tool_need_classifier_ranges_from_always_to_never_selecting_tools() -> None:
    from measuring.need import curve

    points = curve(chat=[0.1, 0.2, 0.7], needs=[0.6, 0.8])
    assert points[0][1:] == (0.0, 1.0)
    assert points[-1][1:] == (1.0, 0.0)
    assert (0.6, 0.0, 1 / 3) in points


@pytest.mark.usefixtures("measuring")
def test_replay_benchmark_makes_every_call_of_a_conversation_and_counts_calls_tokens_and_dollars(
    tmp_path: Path,
) -> None:
    from measuring.conversations import load_sample_set
    from measuring.replay import open_replay
    from measuring.trips import Mode

    data = load_sample_set(0)
    assert len(data.conversations) >= 30
    used = ("mcp-almanac", "mcp-murmur", "mcp-tallyhouse")
    data = dataclasses.replace(
        data,
        definitions=[each for each in data.definitions if each["toolset"] in used],
        conversations=data.conversations[:2],
    )
    rows = {}
    for mode in (Mode("eager"), Mode("search", tool_search="on")):
        with open_replay(data, mode, tmp_path, distractors=False) as replay:
            rows[mode.name] = replay.run().summarize()
    calls = sum(len(turn.calls) for each in data.conversations for turn in each.turns)
    for row in rows.values():
        assert (row["calls"], row["lost"], row["correct_states"]) == (calls, 0, 1)
        assert min(row["dollars_per_task"].values()) > 0
    eager, search = rows["eager"], rows["search"]
    assert eager["shown"] == 1
    assert eager["model_calls_per_task"] * 2 == calls + eager["turns"]
    assert search["model_calls_per_task"] > eager["model_calls_per_task"]
    assert search["input_tokens_per_task"] < eager["input_tokens_per_task"]


@pytest.mark.thorough
def test_enrichment_benchmark_reports_recall_for_each_number_of_example_messages_per_tool(
    data: Path, tmp_path: Path
) -> None:
    catalog = (data / "small" / "catalog.jsonl").read_text(encoding="utf-8").splitlines()
    names = [json.loads(line)["function"]["name"] for line in catalog]
    write(
        tmp_path / "messages" / "small.jsonl",
        [{"tool": name, "messages": [f"wish {number}" for number in range(6)]} for name in names],
    )
    done = subprocess.run(
        [
            sys.executable,
            str(BENCHMARKS / "enrichment.py"),
            *("--data", str(data), "--sets", "small", "--messages", str(tmp_path / "messages")),
            *("--out", str(tmp_path / "out"), "--json", str(tmp_path / "result.json")),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["small"]
    assert set(result) == {"0", "1", "3", "6", "half 0", "half 3", "peers", "tools", "queries"}
    assert (result["peers"], result["tools"]) == ({}, len(names))
    assert all(0 <= result["6"][mode]["R@5"] <= 1 for mode in ("keyword", "semantic", "default", "light"))
    assert done.stdout == (tmp_path / "out" / "enrichment.md").read_text(encoding="utf-8")


CHECK_VARIANTS = """
import hashlib, sys
from pathlib import Path
from measuring.variants import load_tools
from toolfold.tools.catalog import load_catalog

file, size = Path(sys.argv[1]), int(sys.argv[2])
real, tools = load_catalog(file), load_tools(file, size)
assert len(tools) == size
assert [tool.name for tool in real] == list(tools)[: len(real)]
variants = list(tools.values())[len(real) :]
assert all(tool.name == name and len(name) <= 64 for name, tool in tools.items())
assert len({tool.description for tool in variants}) == len(variants)
assert len({id(tool.parameters) for tool in tools.values()}) == len(real)
assert not {tool.server for tool in variants} & {tool.server for tool in real}
print(hashlib.sha256(repr([(tool.name, tool.description) for tool in variants]).encode()).hexdigest())
"""


def test_scale_benchmark_makes_the_same_variants_of_real_tools_in_every_process(tmp_path: Path) -> None:
    catalog = tmp_path / "catalog.jsonl"
    write(catalog, sample("catalog.jsonl"))
    digests = {
        subprocess.run(
            [sys.executable, "-c", CHECK_VARIANTS, str(catalog), "2000"],
            cwd=BENCHMARKS,
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_scale_benchmark_fills_catalogs_with_real_tools_first_and_keeps_earlier_results(
    data: Path, tmp_path: Path
) -> None:
    file = tmp_path / "scale.json"
    for size in (300, 40):
        command = ["--sizes", str(size), "--data", str(data), "--messages", "4", "--json", str(file)]
        subprocess.run([sys.executable, str(BENCHMARKS / "scale.py"), *command], check=True)
    small, large = json.loads(file.read_text())["sizes"]
    assert (small["tools"], large["tools"]) == (40, 300)
    assert small["real"] == 40
    assert 277 <= large["real"] < 300  # the sample catalog, and no tool twice
    assert small["recall"] == large["recall"] == 1


def test_enrichment_benchmark_measures_only_the_tools_that_have_example_messages(
    data: Path, peers: Path, tmp_path: Path
) -> None:
    catalog = [json.loads(line) for line in (data / "small" / "catalog.jsonl").read_text().splitlines()]
    queries = [json.loads(line) for line in (data / "small" / "queries.jsonl").read_text().splitlines()]
    left_out = queries[0]["gold"][0]
    names = [each["function"]["name"] for each in catalog if each["function"]["name"] != left_out]
    rows = [{"tool": name, "messages": [f"please use {name} for me"] * 6} for name in names]
    write(tmp_path / "messages" / "small.jsonl", rows)
    result = tmp_path / "result.json"
    program = [sys.executable, str(BENCHMARKS / "enrichment.py"), "--data", str(data), "--sets", "small"]
    chosen = ["--messages", str(tmp_path / "messages"), "--modes", "keyword", "--out", str(tmp_path / "out")]
    others = ["--peers", str(peers), "--peer-python", sys.executable, "--peer-names", "first_ones"]
    done = subprocess.run(
        [*program, *chosen, *others, "--json", str(result)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (small,) = json.loads(result.read_text()).values()
    needed = [row for row in queries if left_out not in row["gold"]]
    assert (small["tools"], small["queries"]) == (len(catalog) - 1, len(needed))
    assert {"0", "1", "3", "6"} <= set(small)
    assert "R@5" in small["peers"]["first_ones"]
    assert "first_ones" in done.stdout
