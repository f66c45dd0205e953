"""The index is built once, changes by what changed, and trusts no file."""

from __future__ import annotations

import io
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.retrieval.catalog import CATALOG, Counting, made
from toolfold.model import Source, Tool
from toolfold.retrieval.embedding import Embedder, EmbeddingUnavailable, FunctionEmbedder, Kind, Matrix
from toolfold.retrieval.index import MAX_CACHED_GRANTS, Index, embedding_text, tool_checksum
from toolfold.retrieval.indexing import MAX_CACHE_FILES, Indexer
from toolfold.retrieval.lexical import FIELDS, MAX_NAME_TERMS
from toolfold.retrieval.search import Searcher
from toolfold.retrieval.vectors import MAX_DIMENSIONS

MANY = tuple(made(f"tool_{n}", f"counts {word}") for n, word in enumerate(["sheep", "stars", "coins"] * 100))


def names(index: Index) -> set[str]:
    return {tool.name for tool in index.tools if tool}


def found(index: Index, message: str, model: Counting) -> list[str]:
    hits = Searcher(model.embedder, None).search(index, message, mode="keyword", limit=500)
    return [hit.name for hit in hits]


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.npz"))


def same_answers(one: Index, other: Index) -> bool:
    """Whether two indexes say the same of every tool, wherever it stands in them."""
    for message in ("weather", "counts stars", "run a command", "tool 7"):
        scores = [index.lexical.scores(message)[0] for index in (one, other)]
        for name, position in one.by_name.items():
            if abs(scores[0][position] - scores[1][other.by_name[name]]) > 0.01:
                return False
    return one.by_name.keys() == other.by_name.keys()


def test_same_tools_return_the_cached_index() -> None:
    model = Counting()
    indexer = Indexer(model.embedder, None)
    first = indexer.index(CATALOG)
    assert model.asked() == len(CATALOG)
    assert indexer.index(CATALOG) is first
    assert model.asked() == 0


def test_second_start_loads_the_saved_index(tmp_path: Path) -> None:
    model = Counting()
    first = Indexer(model.embedder, tmp_path).index(CATALOG)
    assert model.asked() == len(CATALOG)
    second = Indexer(model.embedder, tmp_path).index(tuple(CATALOG))
    assert model.asked() == 0
    assert names(second) == names(first)
    assert same_answers(first, second)
    assert first.vectors is not None
    assert second.vectors is not None
    assert np.array_equal(first.vectors.packed.dequantize(), second.vectors.packed.dequantize())


def test_index_without_a_model_is_saved_too(tmp_path: Path) -> None:
    first = Indexer(None, tmp_path).index(CATALOG)
    (file,) = kept(tmp_path)
    stamp = file.stat().st_ino
    second = Indexer(None, tmp_path).index(CATALOG)
    assert same_answers(first, second)
    assert second.vectors is None
    assert file.stat().st_ino == stamp, "it was read, not written again"


@pytest.mark.parametrize("tools", [CATALOG, MANY], ids=["small", "large"])
@pytest.mark.parametrize("restarted", [False, True])
def test_changing_one_tool_embeds_one_text(tmp_path: Path, tools: tuple[Tool, ...], restarted: bool) -> None:
    model = Counting()
    indexer = Indexer(model.embedder, tmp_path)
    indexer.index(tools)
    model.asked()
    changed = (replace(tools[0], description="Juggles oranges"), *tools[1:])
    index = (Indexer(model.embedder, tmp_path) if restarted else indexer).index(changed)
    assert model.texts == [embedding_text(changed[0])]
    assert found(index, "juggle oranges", model) == [tools[0].name]
    assert names(index) == {tool.name for tool in tools}
    model.asked()
    Indexer(model.embedder, tmp_path).index(changed)
    assert model.asked() == 0


@pytest.mark.parametrize("tools", [CATALOG, MANY], ids=["small", "large"])
def test_removed_tools_disappear_and_can_be_added_again(tmp_path: Path, tools: tuple[Tool, ...]) -> None:
    model = Counting()
    indexer = Indexer(model.embedder, tmp_path)
    indexer.index(tools)
    model.asked()
    gone = tools[0].name
    fewer = indexer.index(tools[1:])
    assert gone not in names(fewer)
    assert gone not in found(fewer, f"use {gone}", model)
    again = Indexer(model.embedder, tmp_path).index(tools[1:])
    assert names(again) == names(fewer)
    assert model.asked() == 0, "taking away needs no model"
    assert found(indexer.index(tools), f"`{gone}`", model)[0] == gone


def test_incrementally_grown_index_equals_one_built_at_once() -> None:
    model = Counting()
    indexer = Indexer(model.embedder, None)
    for count in range(len(CATALOG) + 1):
        grown = indexer.index(CATALOG[:count])
    assert model.asked() == len(CATALOG)
    assert same_answers(grown, Indexer(None, None).index(CATALOG))


def test_small_catalog_does_not_reuse_the_layout_of_a_large_index(tmp_path: Path) -> None:
    model = Counting()
    Indexer(model.embedder, tmp_path).index((*MANY, *CATALOG))
    model.asked()
    small = Indexer(model.embedder, tmp_path).index(CATALOG)
    assert model.asked() == 0
    assert len(small.tools) == len(CATALOG)
    assert same_answers(small, Indexer(None, None).index(CATALOG))


def test_updated_large_index_equals_a_fresh_one() -> None:
    chance = random.Random(7)
    model = Counting()
    indexer = Indexer(model.embedder, None)
    tools = list(MANY)
    for step in range(12):
        chance.shuffle(tools)
        del tools[: chance.randrange(4)]
        tools += [made(f"new_{step}_{n}", "counts stars") for n in range(chance.randrange(4))]
        index = indexer.index(tuple(tools))
    fresh = Indexer(Counting().embedder, None).index(tuple(tools))
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


@pytest.mark.parametrize(
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
def test_checksum_covers_every_indexed_field(change: dict[str, Any]) -> None:
    assert tool_checksum(replace(CATALOG[0], **change)) != tool_checksum(CATALOG[0])


def test_checksum_ignores_fields_that_are_not_indexed() -> None:
    assert tool_checksum(replace(CATALOG[0], emoji="*", timeout=3.0)) == tool_checksum(CATALOG[0])


def _npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _of(name: str, change: Callable[[Any], Any]) -> Callable[[bytes], bytes]:
    def alter(data: bytes) -> bytes:
        with np.load(io.BytesIO(data)) as stored:
            array = stored[name]
        return _altered(data, **{name: change(array)})

    return alter


def _compressed(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with np.load(io.BytesIO(data)) as stored:
        np.savez_compressed(buffer, **{**stored, "more": np.zeros(4_000_000, np.uint8)})
    return buffer.getvalue()


def _overlapping(data: bytes) -> bytes:
    """An archive whose list names the same bytes over and over."""
    buffer = io.BytesIO(data)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("small", b"x" * 10)
        archive.filelist.extend(archive.infolist() * 3)
    return buffer.getvalue()


def _npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(9))
    return buffer.getvalue()


def _altered(data: bytes, **changed: Any) -> bytes:
    with np.load(io.BytesIO(data)) as stored:
        return _npz(**{**{key: stored[key] for key in stored.files}, **changed})


def _about(**changed: Any) -> Callable[[bytes], bytes]:
    def alter(data: bytes) -> bytes:
        with np.load(io.BytesIO(data)) as stored:
            about = {**json.loads(stored["about"].tobytes()), **changed}
        return _altered(data, about=np.frombuffer(json.dumps(about).encode(), np.uint8))

    return alter


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "text": lambda data: b"not an index at all",
    "truncated": lambda data: data[: len(data) // 2],
    "one byte short": lambda data: data[:-1],
    "zeroed": lambda data: bytes(len(data)),
    "a bare array": lambda data: _npy(),
    "a foreign archive": lambda data: _npz(weights=np.arange(3)),
    "objects": lambda data: _npz(about=np.array([{}], object)),
    "another format": _about(format=0),
    "another model": _about(model="somebody else's"),
    "another size": _about(size=3),
    "no lengths": _about(lengths={}),
    "zero lengths": _about(lengths={"name": 0}),
    "about is a list": lambda data: _altered(data, about=np.frombuffer(b"[1]", np.uint8)),
    "about is not JSON": lambda data: _altered(data, about=np.frombuffer(b"{", np.uint8)),
    "positions beyond the end": lambda data: _altered(data, places=np.array([99] * 3, np.int32)),
    "fewer vectors": lambda data: _altered(data, vectors=np.ones((2, 3), np.int8)),
    "endless vectors": lambda data: _altered(data, scales=np.full(len(CATALOG), np.inf, np.float32)),
    "starts that fall": lambda data: _altered(data, starts=np.array([0, 5, 2], np.int64)),
    "starts of reals": lambda data: _altered(data, starts=np.linspace(0, 9, 30)),
    "names beyond the terms": lambda data: _altered(
        data, names=np.full((len(CATALOG), MAX_NAME_TERMS), 9_999, np.int32)
    ),
    "shorter names": lambda data: _altered(data, names=np.zeros((len(CATALOG), 2), np.int32)),
    "a sketch of others": lambda data: _altered(
        data, directions=np.ones((26, 4), np.float32), sketch=np.ones((3, 4), np.float32)
    ),
    "two rows of weights": _of("weights", lambda array: np.stack([array, array], 1)),
    "weights of another kind": _of("weights", lambda array: array.astype(np.complex64)),
    "negative weights": _of("weights", lambda array: -array),
    "two rows of places": _of("places", lambda array: np.stack([array, array], 1)),
    "negative scales": _of("scales", lambda array: -array),
    "vectors without numbers": _of("vectors", lambda array: array[:, :0]),
    "a term twice": _of(
        "terms", lambda array: np.concatenate([array[: bytes(array).index(b"\n") + 1], array])
    ),
    "a flat sketch": lambda data: _altered(
        data, directions=np.ones((26, 1), np.float32), sketch=np.ones(len(CATALOG), np.float32)
    ),
    "lengths without end": _about(lengths=dict.fromkeys(FIELDS, float("inf"))),
    "lengths in words": _about(lengths=dict.fromkeys(FIELDS, "long")),
    "compressed": _compressed,
    "the same bytes many times": _overlapping,
    "no terms": lambda data: _altered(data, terms=np.zeros(0, np.uint8)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_invalid_index_file_is_rebuilt_with_a_warning(
    tmp_path: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    model = Counting()
    whole = Indexer(model.embedder, tmp_path).index(CATALOG)
    (file,) = kept(tmp_path)
    file.write_bytes(damage(file.read_bytes()))
    model.asked()
    with caplog.at_level(logging.WARNING):
        index = Indexer(model.embedder, tmp_path).index(CATALOG)
    assert [
        f"the search index {file.name} cannot be used and is rebuilt" in r.message for r in caplog.records
    ] == [True]
    assert model.asked() == len(CATALOG)
    assert same_answers(index, whole)
    caplog.clear()
    assert same_answers(Indexer(model.embedder, tmp_path).index(CATALOG), whole)
    assert model.asked() == 0
    assert not caplog.records


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_fifo_in_place_of_the_index_does_not_block(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Indexer(None, tmp_path).index(CATALOG)
    (file,) = kept(tmp_path)
    file.unlink()
    os.mkfifo(file)
    assert names(Indexer(None, tmp_path).index(CATALOG)) == {tool.name for tool in CATALOG}
    assert [file.name in record.message for record in caplog.records] == [True]
    assert file.is_file(), "the next start finds an index there"


def test_symlink_in_place_of_the_index_is_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Indexer(None, tmp_path).index(CATALOG)
    (file,) = kept(tmp_path)
    elsewhere = file.rename(tmp_path / "elsewhere")
    data = elsewhere.read_bytes()
    file.symlink_to(elsewhere)
    assert names(Indexer(None, tmp_path).index(CATALOG)) == {tool.name for tool in CATALOG}
    assert [file.name in record.message for record in caplog.records] == [True]
    assert not file.is_symlink()
    assert elsewhere.read_bytes() == data


def test_any_flipped_byte_still_gives_a_usable_index(tmp_path: Path) -> None:
    model = Counting()
    whole = Indexer(model.embedder, tmp_path).index(CATALOG)
    (file,) = kept(tmp_path)
    data = file.read_bytes()
    chance = random.Random(11)
    for _ in range(60):
        broken = bytearray(data)
        broken[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        file.write_bytes(broken)
        index = Indexer(model.embedder, tmp_path).index(CATALOG)
        assert same_answers(index, whole)


def test_damaged_file_falls_back_to_an_older_index(tmp_path: Path) -> None:
    model = Counting()
    indexer = Indexer(model.embedder, tmp_path)
    indexer.index(CATALOG[:-1])
    (older,) = kept(tmp_path)
    indexer.index(CATALOG)
    (newer,) = set(kept(tmp_path)) - {older}
    newer.write_bytes(b"broken")
    model.asked()
    index = Indexer(model.embedder, tmp_path).index(CATALOG)
    assert model.texts == [embedding_text(CATALOG[-1])]
    assert names(index) == {tool.name for tool in CATALOG}


def test_damaged_file_is_reported_once_without_new_tools(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Counting()
    indexer = Indexer(model.embedder, tmp_path)
    indexer.index(CATALOG[:-1])
    (file,) = kept(tmp_path)
    indexer.index(CATALOG)
    file.write_bytes(b"broken")
    for _ in range(3):
        assert names(Indexer(model.embedder, tmp_path).index(CATALOG[:-1])) == {t.name for t in CATALOG[:-1]}
    assert [file.name in record.message for record in caplog.records] == [True]
    assert len(model.texts) == len(CATALOG), "each tool was embedded once"


def test_index_of_another_model_is_not_touched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    begin = "a-long-name-of-a-model at http://localhost:"
    models = [
        Counting(name=begin + "1"),
        Counting("abc", name=begin + "2"),
        Counting(name="a"),
        Counting(name="a-1"),
    ]
    for model in models * 2:
        Indexer(model.embedder, tmp_path).index(CATALOG)
    assert [model.asked() for model in models] == [len(CATALOG)] * 4, "each was asked once"
    assert len(kept(tmp_path)) == 4
    assert not caplog.records


@pytest.mark.parametrize("tools", [CATALOG, MANY], ids=["small", "large"])
def test_changed_vector_length_embeds_all_tools_again(tmp_path: Path, tools: tuple[Tool, ...]) -> None:
    Indexer(Counting().embedder, tmp_path).index(tools)
    model = Counting("abc")
    index = Indexer(model.embedder, tmp_path).index((*tools, made("one_more")))
    assert index.vectors is not None
    assert index.vectors.width == 3
    assert index.vectors.packed.has_vector.all()


def test_unavailable_model_is_retried_at_the_next_start_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Counting()
    model.broken = True
    index = Indexer(model.embedder, tmp_path).index(CATALOG)
    assert index.vectors is None
    assert found(index, "weather", model) == ["weather_forecast"]
    assert [record.message for record in caplog.records] == [
        "tools are found by keywords only: letters failed: nobody is at home"
    ]
    model.broken = False
    assert Indexer(model.embedder, tmp_path).index(CATALOG).vectors is not None
    assert model.asked() == len(CATALOG)
    Indexer(model.embedder, tmp_path).index(CATALOG)
    assert model.asked() == 0


@pytest.mark.parametrize("tools", [CATALOG, MANY], ids=["small", "large"])
@pytest.mark.parametrize("restarted", [False, True])
def test_single_failure_loses_only_the_affected_tools(
    tmp_path: Path, tools: tuple[Tool, ...], restarted: bool
) -> None:
    model = Counting()
    indexer = Indexer(model.embedder, tmp_path)
    indexer.index(tools)
    model.asked()
    model.broken = True
    index = indexer.index((*tools, made("one_more")))
    assert index.vectors is not None
    assert np.count_nonzero(index.vectors.packed.has_vector) == len(tools)
    assert found(index, "use one_more", model)[0] == "one_more"
    model.broken = False
    again = (Indexer(model.embedder, tmp_path) if restarted else indexer).index((*tools, made("one_more")))
    assert model.asked() == 1
    assert again.vectors is not None
    assert again.vectors.packed.has_vector.all()


def test_failure_with_no_known_tools_gives_no_vectors(tmp_path: Path) -> None:
    model = Counting()
    Indexer(model.embedder, tmp_path).index(CATALOG)
    model.broken = True
    index = Indexer(model.embedder, tmp_path).index(MANY[:5])
    assert index.vectors is None
    assert found(index, "use tool_3", model)[0] == "tool_3"


def _of_any_length(texts: Sequence[str]) -> list[list[float]]:
    return [[1.0] * len(texts)] * len(texts)


def _too_wide(texts: Sequence[str]) -> Matrix:
    return np.ones((len(texts), MAX_DIMENSIONS + 1), np.float32)


class _Exhausting:
    name = "exhausting"

    def embed(self, texts: Sequence[str], kind: Kind) -> Matrix:
        raise MemoryError(f"{len(texts)} texts for a {kind} are too many")


@pytest.mark.parametrize(
    "embedder",
    [FunctionEmbedder(_of_any_length), FunctionEmbedder(_too_wide), _Exhausting()],
    ids=["of any length", "too wide", "exhausting"],
)
def test_unusable_model_falls_back_to_keywords(
    tmp_path: Path, embedder: Embedder, caplog: pytest.LogCaptureFixture
) -> None:
    for folder in (None, tmp_path, tmp_path):
        indexer = Indexer(embedder, folder)
        for tools in (MANY, (*MANY, made("weather_forecast", "The weather")), MANY):
            index = indexer.index(tools)
            assert index.vectors is None
            assert names(index) == {tool.name for tool in tools}
            assert found(index, "stars", Counting())[0] == "tool_1"
    assert ["by keywords only" in record.message for record in caplog.records] == [True] * 3


def test_only_the_newest_index_files_are_kept(tmp_path: Path) -> None:
    indexer = Indexer(None, tmp_path)
    for count in range(1, MAX_CACHE_FILES + 5):
        indexer.index(MANY[:count])
        for age, file in enumerate(
            sorted(kept(tmp_path), key=lambda each: each.stat().st_mtime_ns, reverse=True)
        ):
            os.utime(file, (1e9 - age, 1e9 - age))
    assert len(kept(tmp_path)) == MAX_CACHE_FILES
    assert [each for each in tmp_path.iterdir() if each.suffix != ".npz"] == []
    model = Counting()
    latest = Indexer(None, tmp_path).index(MANY[: MAX_CACHE_FILES + 4])
    assert found(latest, "tool_0", model)[0] == "tool_0"


def test_unwritable_directory_only_logs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    model = Counting()
    index = Indexer(model.embedder, tmp_path / "file" / "cache").index(CATALOG)
    assert found(index, "weather", model) == ["weather_forecast"]
    assert ["could not be saved" in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize("tools", [(), (made("x"),)])
def test_tiny_catalogs_are_saved_and_loaded_without_warnings(
    tmp_path: Path, tools: Sequence[Tool], caplog: pytest.LogCaptureFixture
) -> None:
    for embedder in (None, Counting().embedder):
        for _ in range(2):
            assert names(Indexer(embedder, tmp_path).index(tools)) == {tool.name for tool in tools}
    assert not caplog.records


def test_tools_can_be_added_to_an_empty_index() -> None:
    model = Counting()
    indexer = Indexer(model.embedder, None)
    assert indexer.index(()).vectors is None
    assert found(indexer.index(CATALOG), "weather", model) == ["weather_forecast"]
    assert names(indexer.index(())) == set()


def test_large_index_is_saved_with_its_sketch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("toolfold.retrieval.vectors.MAX_EXACT_NUMBERS", 1_000)
    model = Counting()
    first = Indexer(model.embedder, tmp_path).index(MANY)
    model.asked()
    indexer = Indexer(model.embedder, tmp_path)
    second = indexer.index(MANY)
    assert model.asked() == 0
    assert first.vectors is not None
    assert second.vectors is not None
    assert first.vectors.sketch is not None
    assert second.vectors.sketch is not None
    assert np.array_equal(first.vectors.sketch.rows, second.vectors.sketch.rows)
    changed = indexer.index((*MANY, made("zzz", "zzz zzz")))
    (hit,) = Searcher(model.embedder, None).search(changed, "zzz zzz zzz", mode="semantic", limit=1)
    assert hit.name == "zzz"
    assert not caplog.records


def test_grant_contains_the_positions_of_its_names() -> None:
    index = Indexer(None, None).index(CATALOG)
    grant = index.grant(frozenset({"memory", "process", "nobody"}))
    assert {tool.name for tool, seen in zip(index.tools, grant.mask, strict=True) if tool and seen} == {
        "memory",
        "process",
    }
    assert len(grant.hidden) == len(CATALOG) - 2
    assert not grant.mask[grant.hidden].any()


def test_no_grant_includes_all_tools_but_not_empty_positions() -> None:
    indexer = Indexer(None, None)
    assert indexer.index(MANY).grant(None).mask.all()
    fewer = indexer.index(MANY[5:])
    assert len(fewer.tools) == len(MANY)
    assert np.count_nonzero(fewer.grant(None).mask) == len(MANY) - 5
    assert np.count_nonzero(fewer.grant(tool.name for tool in MANY).mask) == len(MANY) - 5


def test_grants_are_cached_up_to_a_limit() -> None:
    index = Indexer(None, None).index(CATALOG)
    names = frozenset(tool.name for tool in CATALOG[:3])
    first = index.grant(names)
    assert index.grant(list(names)) is first
    for tool in MANY[:MAX_CACHED_GRANTS]:
        index.grant({tool.name})
    assert index.grant(names) is not first
    assert np.array_equal(index.grant(names).mask, first.mask)


def test_concurrent_threads_get_their_own_grants() -> None:
    index = Indexer(None, None).index(MANY)
    grants = [frozenset(tool.name for tool in MANY[n::40]) for n in range(40)]

    def seen(names: frozenset[str]) -> set[str]:
        return {MANY[position].name for position in np.flatnonzero(index.grant(names).mask)}

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(seen, grants * 10)) == grants * 10


def test_progress_is_reported_to_completion() -> None:
    told: list[tuple[int, int]] = []
    model = Counting()
    indexer = Indexer(model.embedder, None, progress=lambda done, whole: told.append((done, whole)))
    indexer.index(MANY)
    assert told[0] == (0, len(MANY))
    assert told[-1] == (len(MANY), len(MANY))
    assert told == sorted(told)


def test_concurrent_threads_embed_once() -> None:
    model = Counting()
    indexer = Indexer(model.embedder, None)
    start = threading.Barrier(6)

    def ask(_: int) -> Index:
        start.wait(60)
        return indexer.index(CATALOG)

    with ThreadPoolExecutor(6) as pool:
        assert len(set(map(id, pool.map(ask, range(6))))) == 1
    assert model.asked() == len(CATALOG)


WRITER = """
import sys
from pathlib import Path
from tests.retrieval.catalog import CATALOG, Counting, made
from toolfold.retrieval.indexing import Indexer
print("ready", flush=True)
sys.stdin.readline()
for turn in range(25):
    tools = (*CATALOG, *(made(f"tool_{n}") for n in range(turn)))
    index = Indexer(Counting().embedder, Path(sys.argv[1])).index(tools)
    assert {tool.name for tool in index.tools if tool} == {tool.name for tool in tools}
"""


def test_concurrent_processes_leave_readable_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    root = Path(__file__).parents[2]
    writers = [
        subprocess.Popen(
            command,
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    problems = [each.result(60)[1] for each in _let_go(writers)]
    assert [(writer.returncode, said) for writer, said in zip(writers, problems, strict=True)] == [
        (0, "")
    ] * 2
    assert 0 < len(kept(tmp_path)) <= MAX_CACHE_FILES
    assert [each.name for each in tmp_path.iterdir() if each.suffix != ".npz"] == []
    for file in kept(tmp_path):
        alone = tmp_path / file.stem
        alone.mkdir()
        shutil.copy(file, alone)
        assert names(Indexer(Counting().embedder, alone).index(CATALOG)) == {tool.name for tool in CATALOG}
    assert not caplog.records


def _let_go(writers: list[subprocess.Popen[str]]) -> list[Any]:
    with ThreadPoolExecutor(len(writers)) as pool:
        return [pool.submit(writer.communicate, "go\n", 60) for writer in writers]


def test_recovered_model_embeds_missing_tools() -> None:
    counting = Counting()
    indexer, tools = Indexer(counting.embedder, None), tuple(CATALOG)
    counting.broken = True
    assert indexer.index(tools).vectors is None
    assert indexer.index(tools).vectors is None
    counting.broken = False
    index = indexer.index(tools)
    assert index.vectors is not None
    counting.asked()
    assert indexer.index(tools) is index
    assert counting.asked() == 0


def test_vectors_computed_before_a_failure_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolfold.retrieval.indexing._BATCH_SIZE", 3)
    counting, tools = Counting(), tuple(CATALOG)
    embed = counting.embedder.embed
    calls: list[int] = []

    class Failing:
        name = counting.embedder.name

        def embed(self, texts: Sequence[str], kind: Kind) -> Matrix:
            calls.append(1)
            if len(calls) > 2:
                raise EmbeddingUnavailable("gone")
            return embed(texts, kind)

    index = Indexer(Failing(), tmp_path).index(tools)
    assert index.vectors is not None
    counting.asked()
    Indexer(counting.embedder, tmp_path).index(tools)
    assert counting.asked() == len(tools) - 6
