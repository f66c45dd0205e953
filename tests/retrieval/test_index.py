"""The index is built once and updated incrementally, and no text is embedded twice."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cases import check_cases
from tests.retrieval.catalog import CATALOG, CountingModel, make_tool
from toolfold.core.types import Source, Tool
from toolfold.selection.retrieval.embedding import (
    Embedder,
    EmbeddingUnavailable,
    FunctionEmbedder,
    Kind,
    Matrix,
)
from toolfold.selection.retrieval.index import MAX_CACHED_GRANTS, Index, embedding_text, tool_checksum
from toolfold.selection.retrieval.indexing import Indexer
from toolfold.selection.retrieval.tool_search import Searcher
from toolfold.selection.retrieval.vector_store import VectorFile
from toolfold.selection.retrieval.vectors import MAX_DIMENSIONS

MANY_TOOLS = tuple(
    make_tool(f"tool_{n}", f"counts {word}") for n, word in enumerate(["sheep", "stars", "coins"] * 100)
)


def names(index: Index) -> set[str]:
    return {tool.name for tool in index.tools if tool}


def search_names(index: Index, message: str, model: CountingModel) -> list[str]:
    hits = Searcher(model.embedder, None).search(index, message, mode="keyword", limit=500)
    return [hit.name for hit in hits]


def same_answers(one: Index, other: Index) -> bool:
    """Return True if both indexes give every tool the same scores, whatever its position."""
    for message in ("weather", "counts stars", "run a command", "tool 7"):
        scores = [index.lexical.scores(message)[0] for index in (one, other)]
        for name, position in one.by_name.items():
            if abs(scores[0][position] - scores[1][other.by_name[name]]) > 0.01:
                return False
    return one.by_name.keys() == other.by_name.keys()


def test_indexing_the_same_tools_again_returns_the_cached_index() -> None:
    model = CountingModel()
    indexer = Indexer(model.embedder, None)
    first = indexer.index(CATALOG)
    assert model.take_count() == len(CATALOG)
    assert indexer.index(CATALOG) is first
    assert model.take_count() == 0


def test_index_saved_at_the_first_start_is_loaded_at_the_second_start_without_embedding(
    tmp_path: Path,
) -> None:
    model = CountingModel()
    first = Indexer(model.embedder, VectorFile(tmp_path)).index(CATALOG)
    assert model.take_count() == len(CATALOG)
    second = Indexer(model.embedder, VectorFile(tmp_path)).index(tuple(CATALOG))
    assert model.take_count() == 0
    assert names(second) == names(first)
    assert same_answers(first, second)
    assert first.vectors is not None
    assert second.vectors is not None
    assert np.array_equal(first.vectors.packed.dequantize(), second.vectors.packed.dequantize())


def test_vectors_of_tools_added_after_the_start_are_loaded_from_the_saved_index(tmp_path: Path) -> None:
    model = CountingModel()
    for expected in (len(MANY_TOOLS), 0):
        indexer = Indexer(model.embedder, VectorFile(tmp_path))
        indexer.index(MANY_TOOLS[:30])
        indexer.index(MANY_TOOLS)
        assert model.take_count() == expected


@pytest.mark.parametrize("tools", [CATALOG, MANY_TOOLS], ids=["small", "large"])
@pytest.mark.parametrize("restarted", [False, True])
def test_indexing_again_after_one_tool_changed_embeds_only_that_tool(
    tmp_path: Path, tools: tuple[Tool, ...], restarted: bool
) -> None:
    model = CountingModel()
    indexer = Indexer(model.embedder, VectorFile(tmp_path))
    indexer.index(tools)
    model.take_count()
    changed = (replace(tools[0], description="Juggles oranges"), *tools[1:])
    index = (Indexer(model.embedder, VectorFile(tmp_path)) if restarted else indexer).index(changed)
    assert model.texts == [embedding_text(changed[0])]
    assert search_names(index, "juggle oranges", model) == [tools[0].name]
    assert names(index) == {tool.name for tool in tools}
    model.take_count()
    Indexer(model.embedder, VectorFile(tmp_path)).index(changed)
    assert model.take_count() == 0


@pytest.mark.parametrize("tools", [CATALOG, MANY_TOOLS], ids=["small", "large"])
def test_tool_removed_from_the_index_is_not_found_until_it_is_added_again(
    tmp_path: Path, tools: tuple[Tool, ...]
) -> None:
    model = CountingModel()
    indexer = Indexer(model.embedder, VectorFile(tmp_path))
    indexer.index(tools)
    model.take_count()
    gone = tools[0].name
    fewer = indexer.index(tools[1:])
    assert gone not in names(fewer)
    assert gone not in search_names(fewer, f"use {gone}", model)
    again = Indexer(model.embedder, VectorFile(tmp_path)).index(tools[1:])
    assert names(again) == names(fewer)
    assert model.take_count() == 0, "taking away needs no model"
    assert search_names(indexer.index(tools), f"`{gone}`", model)[0] == gone


def test_index_extended_with_tools_gives_the_same_hits_as_an_index_built_from_all_tools() -> None:
    model = CountingModel()
    indexer = Indexer(model.embedder, None)
    for count in range(len(CATALOG) + 1):
        grown = indexer.index(CATALOG[:count])
    assert model.take_count() == len(CATALOG)
    assert same_answers(grown, Indexer(None, None).index(CATALOG))


def test_small_index_reuses_vectors_of_a_saved_larger_index_and_contains_only_its_own_tools(
    tmp_path: Path,
) -> None:
    model = CountingModel()
    Indexer(model.embedder, VectorFile(tmp_path)).index((*MANY_TOOLS, *CATALOG))
    model.take_count()
    small = Indexer(model.embedder, VectorFile(tmp_path)).index(CATALOG)
    assert model.take_count() == 0
    assert len(small.tools) == len(CATALOG)
    assert same_answers(small, Indexer(None, None).index(CATALOG))


def test_large_index_after_random_changes_gives_the_same_results_as_a_newly_built_index() -> None:
    chance = random.Random(7)
    model = CountingModel()
    indexer = Indexer(model.embedder, None)
    tools = list(MANY_TOOLS)
    for step in range(12):
        chance.shuffle(tools)
        del tools[: chance.randrange(4)]
        tools += [make_tool(f"new_{step}_{n}", "counts stars") for n in range(chance.randrange(4))]
        index = indexer.index(tuple(tools))
    fresh = Indexer(CountingModel().embedder, None).index(tuple(tools))
    assert names(index) == names(fresh)
    assert index.vectors is not None
    assert fresh.vectors is not None
    for name, position in index.by_name.items():
        assert np.array_equal(
            index.vectors.packed.dequantize()[position],
            fresh.vectors.packed.dequantize()[fresh.by_name[name]],
        )
        assert np.array_equal(
            [index.lexical.scores(m)[0][position] > 0 for m in ("sheep", "stars", "new")],
            [fresh.lexical.scores(m)[0][fresh.by_name[name]] > 0 for m in ("sheep", "stars", "new")],
        )


@check_cases(
    "change",
    [
        {"name": "other"},
        {"original_name": "other"},
        {"title": "Other"},
        {"toolset": "other"},
        {"source": Source("mcp", "other")},
        {"description": "Other"},
        {"synonyms": ("other",)},
        {"parameters": {"type": "object", "properties": {"other": {}}}},
    ],
)
def test_checksum_of_a_tool_changes_with_every_field_that_is_indexed(change: dict[str, Any]) -> None:
    assert tool_checksum(replace(CATALOG[0], **change)) != tool_checksum(CATALOG[0])


def test_checksum_of_a_tool_ignores_fields_that_are_not_indexed() -> None:
    assert tool_checksum(replace(CATALOG[0], emoji="*", timeout=3.0)) == tool_checksum(CATALOG[0])


def test_each_embedding_model_has_separate_vectors_even_if_model_names_are_similar(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begin = "a-long-name-of-a-model at http://localhost:"
    models = [
        CountingModel(name=begin + "1"),
        CountingModel("abc", name=begin + "2"),
        CountingModel(name="a"),
        CountingModel(name="a-1"),
    ]
    for model in models * 2:
        Indexer(model.embedder, VectorFile(tmp_path)).index(CATALOG)
    assert [model.take_count() for model in models] == [len(CATALOG)] * 4, "each was asked once"
    assert not caplog.records


@pytest.mark.parametrize("tools", [CATALOG, MANY_TOOLS], ids=["small", "large"])
def test_all_tools_are_embedded_again_if_the_vector_length_changes(
    tmp_path: Path, tools: tuple[Tool, ...]
) -> None:
    Indexer(CountingModel().embedder, VectorFile(tmp_path)).index(tools)
    model = CountingModel("abc")
    index = Indexer(model.embedder, VectorFile(tmp_path)).index((*tools, make_tool("one_more")))
    assert index.vectors is not None
    assert index.vectors.width == 3
    assert index.vectors.packed.has_vector.all()


def test_tools_are_embedded_at_the_next_start_if_the_embedding_model_was_unavailable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = CountingModel()
    model.broken = True
    index = Indexer(model.embedder, VectorFile(tmp_path)).index(CATALOG)
    assert index.vectors is None
    assert search_names(index, "weather", model) == ["weather_forecast"]
    assert [record.message for record in caplog.records] == [
        "tools are found by keywords only: letters failed: nobody is at home"
    ]
    model.broken = False
    assert Indexer(model.embedder, VectorFile(tmp_path)).index(CATALOG).vectors is not None
    assert model.take_count() == len(CATALOG)
    Indexer(model.embedder, VectorFile(tmp_path)).index(CATALOG)
    assert model.take_count() == 0


@pytest.mark.parametrize("tools", [CATALOG, MANY_TOOLS], ids=["small", "large"])
@pytest.mark.parametrize("restarted", [False, True])
def test_only_tools_of_a_failed_embedding_request_lack_vectors_until_the_request_succeeds(
    tmp_path: Path, tools: tuple[Tool, ...], restarted: bool
) -> None:
    model = CountingModel()
    indexer = Indexer(model.embedder, VectorFile(tmp_path))
    indexer.index(tools)
    model.take_count()
    model.broken = True
    index = indexer.index((*tools, make_tool("one_more")))
    assert index.vectors is not None
    assert np.count_nonzero(index.vectors.packed.has_vector) == len(tools)
    assert search_names(index, "use one_more", model)[0] == "one_more"
    model.broken = False
    again = (Indexer(model.embedder, VectorFile(tmp_path)) if restarted else indexer).index(
        (*tools, make_tool("one_more"))
    )
    assert model.take_count() == 1
    assert again.vectors is not None
    assert again.vectors.packed.has_vector.all()


def test_index_has_no_vectors_if_the_embedding_model_fails_and_no_tool_has_a_saved_vector(
    tmp_path: Path,
) -> None:
    model = CountingModel()
    Indexer(model.embedder, VectorFile(tmp_path)).index(CATALOG)
    model.broken = True
    index = Indexer(model.embedder, VectorFile(tmp_path)).index(MANY_TOOLS[:5])
    assert index.vectors is None
    assert search_names(index, "use tool_3", model)[0] == "tool_3"


def _variable_length_vectors(texts: Sequence[str]) -> list[list[float]]:
    return [[1.0] * len(texts)] * len(texts)


def _oversized_vectors(texts: Sequence[str]) -> Matrix:
    return np.ones((len(texts), MAX_DIMENSIONS + 1), np.float32)


class _OutOfMemoryModel:
    name = "exhausting"

    def embed(self, texts: Sequence[str], kind: Kind) -> Matrix:
        raise MemoryError(f"{len(texts)} texts for a {kind} are too many")


@pytest.mark.parametrize(
    "embedder",
    [FunctionEmbedder(_variable_length_vectors), FunctionEmbedder(_oversized_vectors), _OutOfMemoryModel()],
    ids=["of any length", "too wide", "exhausting"],
)
def test_tools_are_found_by_keywords_if_the_embedding_model_returns_invalid_vectors(
    tmp_path: Path, embedder: Embedder, caplog: pytest.LogCaptureFixture
) -> None:
    for folder in (None, tmp_path, tmp_path):
        indexer = Indexer(embedder, VectorFile(folder) if folder else None)
        for tools in (MANY_TOOLS, (*MANY_TOOLS, make_tool("weather_forecast", "The weather")), MANY_TOOLS):
            index = indexer.index(tools)
            assert index.vectors is None
            assert names(index) == {tool.name for tool in tools}
            assert search_names(index, "stars", CountingModel())[0] == "tool_1"
    assert ["by keywords only" in record.message for record in caplog.records] == [True] * 3


def test_search_works_and_one_warning_is_logged_if_the_index_directory_is_not_writable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    model = CountingModel()
    index = Indexer(model.embedder, VectorFile(tmp_path / "file" / "cache")).index(CATALOG)
    assert search_names(index, "weather", model) == ["weather_forecast"]
    assert ["cannot be stored" in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize("tools", [(), (make_tool("x"),)])
def test_indexes_of_very_few_tools_are_saved_and_loaded_without_warnings(
    tmp_path: Path, tools: Sequence[Tool], caplog: pytest.LogCaptureFixture
) -> None:
    for embedder in (None, CountingModel().embedder):
        for _ in range(2):
            assert names(Indexer(embedder, VectorFile(tmp_path)).index(tools)) == {
                tool.name for tool in tools
            }
    assert not caplog.records


def test_tools_can_be_added_to_an_empty_index() -> None:
    model = CountingModel()
    indexer = Indexer(model.embedder, None)
    assert indexer.index(()).vectors is None
    assert search_names(indexer.index(CATALOG), "weather", model) == ["weather_forecast"]
    assert names(indexer.index(())) == set()


def test_large_index_loaded_from_a_file_needs_no_embedding_and_finds_tools_added_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("toolfold.selection.retrieval.vectors.MAX_EXACT_NUMBERS", 1_000)
    model = CountingModel()
    first = Indexer(model.embedder, VectorFile(tmp_path)).index(MANY_TOOLS)
    model.take_count()
    indexer = Indexer(model.embedder, VectorFile(tmp_path))
    second = indexer.index(MANY_TOOLS)
    assert model.take_count() == 0
    assert first.vectors is not None
    assert second.vectors is not None
    assert first.vectors.sketch is not None
    assert second.vectors.sketch is not None
    assert np.array_equal(first.vectors.sketch.rows, second.vectors.sketch.rows)
    changed = indexer.index((*MANY_TOOLS, make_tool("zzz", "zzz zzz")))
    (hit,) = Searcher(model.embedder, None).search(changed, "zzz zzz zzz", mode="semantic", limit=1)
    assert hit.name == "zzz"
    assert not caplog.records


def test_index_mask_is_true_exactly_at_the_positions_of_granted_tools() -> None:
    index = Indexer(None, None).index(CATALOG)
    grant = index.grant(frozenset({"memory", "process", "nobody"}))
    assert {tool.name for tool, seen in zip(index.tools, grant.mask, strict=True) if tool and seen} == {
        "memory",
        "process",
    }
    assert len(grant.hidden) == len(CATALOG) - 2
    assert not grant.mask[grant.hidden].any()


def test_index_mask_for_all_tools_excludes_the_positions_of_removed_tools() -> None:
    indexer = Indexer(None, None)
    assert indexer.index(MANY_TOOLS).grant(None).mask.all()
    fewer = indexer.index(MANY_TOOLS[5:])
    assert len(fewer.tools) == len(MANY_TOOLS)
    assert np.count_nonzero(fewer.grant(None).mask) == len(MANY_TOOLS) - 5
    assert np.count_nonzero(fewer.grant(tool.name for tool in MANY_TOOLS).mask) == len(MANY_TOOLS) - 5


def test_index_masks_are_cached_for_a_limited_number_of_sets_of_granted_tools() -> None:
    index = Indexer(None, None).index(CATALOG)
    names = frozenset(tool.name for tool in CATALOG[:3])
    first = index.grant(names)
    assert index.grant(list(names)) is first
    for tool in MANY_TOOLS[:MAX_CACHED_GRANTS]:
        index.grant({tool.name})
    assert index.grant(names) is not first
    assert np.array_equal(index.grant(names).mask, first.mask)


def test_concurrent_threads_get_the_correct_index_masks_for_different_granted_tools() -> None:
    index = Indexer(None, None).index(MANY_TOOLS)
    grants = [frozenset(tool.name for tool in MANY_TOOLS[n::40]) for n in range(40)]

    def seen(names: frozenset[str]) -> set[str]:
        return {MANY_TOOLS[position].name for position in np.flatnonzero(index.grant(names).mask)}

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(seen, grants * 10)) == grants * 10


def test_progress_callback_of_the_indexer_reports_embedded_tools_from_zero_to_the_total() -> None:
    told: list[tuple[int, int]] = []
    model = CountingModel()
    indexer = Indexer(model.embedder, None, progress=lambda done, whole: told.append((done, whole)))
    indexer.index(MANY_TOOLS)
    assert told[0] == (0, len(MANY_TOOLS))
    assert told[-1] == (len(MANY_TOOLS), len(MANY_TOOLS))
    assert told == sorted(told)


def test_six_threads_that_index_the_same_tools_embed_each_tool_once() -> None:
    model = CountingModel()
    indexer = Indexer(model.embedder, None)
    start = threading.Barrier(6)

    def ask(_: int) -> Index:
        start.wait(60)
        return indexer.index(CATALOG)

    with ThreadPoolExecutor(6) as pool:
        assert len(set(map(id, pool.map(ask, range(6))))) == 1
    assert model.take_count() == len(CATALOG)


def test_tools_without_vectors_are_embedded_when_the_model_recovers() -> None:
    counting = CountingModel()
    indexer, tools = Indexer(counting.embedder, None), tuple(CATALOG)
    counting.broken = True
    assert indexer.index(tools).vectors is None
    assert indexer.index(tools).vectors is None
    counting.broken = False
    index = indexer.index(tools)
    assert index.vectors is not None
    counting.take_count()
    assert indexer.index(tools) is index
    assert counting.take_count() == 0


def test_tools_embedded_before_a_failure_are_not_embedded_again_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolfold.selection.retrieval.indexing._BATCH_TEXTS", 3)
    counting, tools = CountingModel(), tuple(CATALOG)
    embed = counting.embedder.embed
    calls: list[int] = []

    class Failing:
        name = counting.embedder.name

        def embed(self, texts: Sequence[str], kind: Kind) -> Matrix:
            calls.append(1)
            if len(calls) > 2:
                raise EmbeddingUnavailable("gone")
            return embed(texts, kind)

    index = Indexer(Failing(), VectorFile(tmp_path)).index(tools)
    assert index.vectors is not None
    counting.take_count()
    Indexer(counting.embedder, VectorFile(tmp_path)).index(tools)
    assert counting.take_count() == len(tools) - 6
