"""Thousands of new tools take a model minutes: a search does not wait for them, and none is read twice."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.retrieval.catalog import Counting, made
from toolfold.model import Tool
from toolfold.registry import Snapshot
from toolfold.retrieval.embedding import EmbeddingUnavailable, Kind, Matrix
from toolfold.retrieval.index import Index
from toolfold.retrieval.indexing import MAX_INLINE_TOOLS, Indexer
from toolfold.retrieval.search import Retriever

MANY = tuple(made(f"tool_{n}", f"counts {word}") for n, word in enumerate(["sheep", "stars", "coins"] * 100))
MORE = tuple(made(f"more_{n}", "weighs feathers") for n in range(2 * MAX_INLINE_TOOLS))


class Slow:
    """Embeds a batch whenever it is let."""

    def __init__(
        self, failing_after: int | None = None, error: type[BaseException] = KeyboardInterrupt
    ) -> None:
        self.counting = Counting()
        self.name = self.counting.embedder.name
        self.asked = threading.Event()
        self._let = threading.Semaphore(0)
        self._left, self._error = failing_after, error

    def let(self, batches: int = 1_000) -> None:
        self._let.release(batches)

    def embed(self, texts: Sequence[str], kind: Kind) -> Matrix:
        self.asked.set()
        assert self._let.acquire(timeout=60)
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise self._error
        return self.counting.embedder.embed(texts, kind)


@pytest.fixture
def opened() -> Iterator[Callable[..., Indexer]]:
    """Makes indexers without patience, and closes them."""
    every: list[tuple[Slow, Indexer]] = []

    def make(model: Slow, folder: Path | None = None, max_wait_s: float | None = 0.0) -> Indexer:
        every.append((model, Indexer(model, folder, max_wait_s=max_wait_s)))
        return every[-1][1]

    yield make
    for model, indexer in every:
        model.let()
        indexer.close()
    for thread in readers():  # one that has nothing left to do may still be about to end
        thread.join(60)


def readers() -> list[threading.Thread]:
    """Those at work beside searches."""
    return [thread for thread in threading.enumerate() if thread.name == "toolfold-index"]


def finished(indexer: Indexer, tools: Sequence[Tool]) -> Index:
    """The index once nothing is done beside it any more."""
    for _ in range(3):
        index = indexer.index(tools)
        for thread in readers():
            thread.join(60)
    return index


def vectors(index: Index) -> dict[str, list[float]]:
    assert index.vectors is not None
    rows = index.vectors.packed.dequantize()
    return {name: rows[position].tolist() for name, position in index.by_name.items()}


def test_search_does_not_wait_for_many_new_tools(opened: Callable[..., Indexer]) -> None:
    model = Slow()
    indexer = opened(model)
    first = indexer.index(MANY)
    assert first.vectors is None
    assert first.lexical.scores("sheep")[0].any()
    model.let()
    assert vectors(finished(indexer, MANY)) == vectors(Indexer(Counting().embedder, None).index(MANY))
    assert model.counting.asked() == len(MANY)


def test_search_waits_up_to_the_limit_for_vectors(opened: Callable[..., Indexer]) -> None:
    model = Slow()
    model.let()
    assert opened(model, max_wait_s=30.0).index(MANY).vectors is not None


def test_search_without_limit_waits_for_all_vectors(opened: Callable[..., Indexer]) -> None:
    model = Slow()
    model.let()
    indexer = opened(model, max_wait_s=None)
    assert indexer.index(MANY).vectors is not None
    assert not readers()


def test_few_new_tools_are_embedded_before_the_search(opened: Callable[..., Indexer]) -> None:
    model = Slow()
    model.let()
    assert opened(model).index(MANY[:MAX_INLINE_TOOLS]).vectors is not None


def test_embedded_tools_are_found_by_similarity_while_new_ones_are_embedded(
    opened: Callable[..., Indexer], tmp_path: Path
) -> None:
    known = (*MANY, *(made(f"known_{n}", "knits") for n in range(400)))
    Indexer(Counting().embedder, tmp_path).index(known)
    model = Slow()
    index = opened(model, tmp_path).index((*known, *MORE))
    assert index.vectors is not None
    has_vector = index.vectors.packed.has_vector
    assert all(has_vector[index.by_name[tool.name]] for tool in known)
    assert not any(has_vector[index.by_name[tool.name]] for tool in MORE)


def test_few_embedded_tools_do_not_outrank_many_unembedded_ones(
    opened: Callable[..., Indexer], tmp_path: Path
) -> None:
    Indexer(Counting().embedder, tmp_path).index(MANY[:MAX_INLINE_TOOLS])
    model = Slow()
    indexer = opened(model, tmp_path)
    assert indexer.index(MANY).vectors is None
    model.let()
    assert finished(indexer, MANY).vectors is not None
    assert model.counting.asked() == len(MANY) - MAX_INLINE_TOOLS


def test_tools_added_during_embedding_are_embedded_next(opened: Callable[..., Indexer]) -> None:
    model = Slow()
    indexer, more = opened(model), (*MANY, *MORE)
    indexer.index(MANY)
    assert model.asked.wait(60)
    assert indexer.index(more).by_name.keys() == {tool.name for tool in more}
    model.let()
    assert vectors(finished(indexer, more)) == vectors(Indexer(Counting().embedder, None).index(more))
    assert model.counting.asked() <= len(MANY) + len(MORE)


def test_vectors_computed_before_close_are_reused(opened: Callable[..., Indexer], tmp_path: Path) -> None:
    model = Slow()
    indexer = opened(model, tmp_path)
    indexer.index(MANY)
    assert model.asked.wait(60)
    model.let(2)
    closing = threading.Thread(target=indexer.close)
    closing.start()
    model.let(1)  # the batch that it may be in
    closing.join(60)
    assert not closing.is_alive()
    read = model.counting.asked()
    assert 0 < read < len(MANY)
    rest = Counting()
    assert Indexer(rest.embedder, tmp_path).index(MANY).vectors is not None
    assert rest.asked() == len(MANY) - read


def test_vectors_computed_before_an_interrupt_are_reused(tmp_path: Path) -> None:
    model = Slow(failing_after=2)
    model.let()
    with pytest.raises(KeyboardInterrupt):
        Indexer(model, tmp_path).index(MANY)
    read = model.counting.asked()
    assert 0 < read < len(MANY)
    rest = Counting()
    Indexer(rest.embedder, tmp_path).index(MANY)
    assert rest.asked() == len(MANY) - read


def test_checkpoints_are_saved_periodically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolfold.retrieval.indexing._CHECKPOINT_INTERVAL_S", 0.0)
    found: list[int] = []

    def look(done: int, _: int) -> None:
        if done:
            index = Indexer(Counting().embedder, tmp_path)
            found.append(index.index(MANY).lexical.size)

    Indexer(Counting().embedder, tmp_path, progress=look).index(MANY)
    assert set(found) == {len(MANY)}
    assert len(list(tmp_path.glob("*.npz"))) == 1


def test_missing_vectors_are_reported_once(
    opened: Callable[..., Indexer], caplog: pytest.LogCaptureFixture
) -> None:
    model = Slow()
    indexer = opened(model)
    with caplog.at_level(logging.WARNING):
        indexer.index(MANY)
        indexer.index((*MANY, *MORE))
    assert [record.getMessage() for record in caplog.records] == [
        "new tools are found by keywords only until they are embedded: 300 tools"
    ]


def test_failure_in_the_background_falls_back_to_keywords(opened: Callable[..., Indexer]) -> None:
    class Gone(EmbeddingUnavailable):
        def __init__(self) -> None:
            super().__init__("gone")

    model = Slow(failing_after=0, error=Gone)
    indexer = opened(model)
    model.let()
    index = finished(indexer, MANY)
    assert index.vectors is None
    assert index.lexical.scores("stars")[0].any()


def test_concurrent_searches_start_one_background_thread(opened: Callable[..., Indexer]) -> None:
    model = Slow()
    indexer = opened(model)
    asking = [threading.Thread(target=indexer.index, args=(MANY,)) for _ in range(6)]
    for each in asking:
        each.start()
    for each in asking:
        each.join(60)
    model.let()
    finished(indexer, MANY)
    assert model.counting.asked() == len(MANY)


def test_retriever_without_wait_answers_find_and_answer() -> None:
    model = Slow()
    retriever = Retriever(model, None, None, max_wait_s=0.0)
    snapshot = Snapshot({tool.name: tool for tool in MANY}, 0)
    try:
        early = retriever.answer(snapshot, "counts stars", mode="hybrid", limit=3)
        assert [hit.similarity for hit in early.hits] == [None] * 3
        model.let()
        for thread in readers():
            thread.join(60)
        late = retriever.answer(snapshot, "counts stars", mode="hybrid", limit=3)
        assert all(hit.similarity is not None for hit in late.hits)
    finally:
        model.let()
        retriever.close()


ENDING = """
import sys, threading, time
from pathlib import Path
from tests.retrieval.catalog import Counting
from tests.retrieval.test_indexing import MANY
from toolfold.retrieval.indexing import Indexer

begun = threading.Event()

class Slow(Counting):
    def _count(self, texts):
        while begun.is_set() and threading.main_thread().is_alive():
            time.sleep(0.01)
        begun.set()
        return super()._count(texts)

indexer = Indexer(Slow().embedder, Path(sys.argv[1]), max_wait_s=0.0)
assert indexer.index(MANY).vectors is None
assert begun.wait(60)
"""


def test_exiting_program_does_not_wait_and_saves_progress(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", ENDING, str(tmp_path)], cwd=root, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr.count("Traceback")) == (0, 0), ended.stderr
    rest = Counting()
    index = Indexer(rest.embedder, tmp_path).index(MANY)
    assert 0 < rest.asked() < len(MANY)
    assert index.vectors is not None
    assert np.isfinite(index.vectors.packed.scales).all()
