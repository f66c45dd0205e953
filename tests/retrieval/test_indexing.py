"""Embedding thousands of new tools in the background: searches do not wait, and no tool is embedded twice."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import RuntimeOpener
from tests.retrieval.catalog import CountingModel, make_tool
from tests.timing import wait_until
from toolfold import Runtime
from toolfold.core.events import Event, IndexUpdated
from toolfold.core.registry import Snapshot
from toolfold.core.types import Tool
from toolfold.selection.retrieval.embedding import EmbeddingUnavailable, Kind, LightEmbedder, Matrix
from toolfold.selection.retrieval.index import Index
from toolfold.selection.retrieval.indexing import MAX_INLINE_TEXTS, Indexer
from toolfold.selection.retrieval.ranking import Ranker
from toolfold.selection.retrieval.tool_search import Retriever
from toolfold.selection.retrieval.vector_store import VectorFile

MANY_TOOLS = tuple(
    make_tool(f"tool_{n}", f"counts {word}") for n, word in enumerate(["sheep", "stars", "coins"] * 100)
)

MORE_TOOLS = tuple(make_tool(f"more_{n}", "weighs feathers") for n in range(2 * MAX_INLINE_TEXTS))


LONG_TOOLS = tuple(make_tool(f"long_{n}", "counts leap seconds of year " * 20) for n in range(300))


class SlowModel:
    """Embedder that waits for permission before each batch."""

    def __init__(
        self, failing_after: int | None = None, error: type[BaseException] = KeyboardInterrupt
    ) -> None:
        self.counting = CountingModel()
        self.name = self.counting.embedder.name
        self.started = threading.Event()
        self._allowed = threading.Semaphore(0)
        self._left, self._error = failing_after, error

    def allow(self, batches: int = 1_000) -> None:
        self._allowed.release(batches)

    def embed(self, texts: Sequence[str], kind: Kind) -> Matrix:
        self.started.set()
        assert self._allowed.acquire(timeout=60)
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise self._error
        return self.counting.embedder.embed(texts, kind)


@pytest.fixture
def open_indexer() -> Iterator[Callable[..., Indexer]]:
    """Open indexers that do not wait for embeddings, and close them after the test."""
    every: list[tuple[SlowModel, Indexer]] = []

    def make(model: SlowModel, folder: Path | None = None, max_wait_s: float | None = 0.0) -> Indexer:
        every.append((model, Indexer(model, VectorFile(folder) if folder else None, max_wait_s=max_wait_s)))
        return every[-1][1]

    yield make
    for model, indexer in every:
        model.allow()
        indexer.close()
    for thread in background_threads():  # one that has nothing left to do may still be about to end
        thread.join(60)


def background_threads() -> list[threading.Thread]:
    """Return the running indexing threads."""
    return [thread for thread in threading.enumerate() if thread.name == "toolfold-index"]


def finish_index(indexer: Indexer, tools: Sequence[Tool]) -> Index:
    """Return the index after all background work has finished."""
    indexer.finish_index(tools, 60.0)
    return indexer.index(tools)


def vectors(index: Index) -> dict[str, list[float]]:
    assert index.vectors is not None
    rows = index.vectors.packed.dequantize()
    return {name: rows[position].tolist() for name, position in index.by_name.items()}


def test_search_does_not_wait_for_the_vectors_of_many_new_tools(open_indexer: Callable[..., Indexer]) -> None:
    model = SlowModel()
    indexer = open_indexer(model)
    first = indexer.index(MANY_TOOLS)
    assert first.vectors is None
    assert first.lexical.scores("sheep")[0].any()
    model.allow()
    assert vectors(finish_index(indexer, MANY_TOOLS)) == vectors(
        Indexer(CountingModel().embedder, None).index(MANY_TOOLS)
    )
    assert model.counting.take_count() == len(MANY_TOOLS)


@pytest.mark.thorough
def test_ten_thousand_new_tools_are_found_by_keyword_while_the_light_model_embeds_them() -> None:
    places = ("harbour", "library", "airport", "museum", "station")
    tools = [
        make_tool(f"tool_{n}", f"Return the opening hours of {places[n % 5]} number {n}")
        for n in range(10_000)
    ]
    snapshot = Snapshot({tool.name: tool for tool in tools}, 0)
    retriever = Retriever(LightEmbedder(), lambda: Ranker.shipped("light"), None, max_wait_s=0.0)
    try:
        (first,) = retriever.find(snapshot, "opening hours of museum number 7003", mode="hybrid", limit=1)
        assert (first.name, first.similarity) == ("tool_7003", None)
        for thread in background_threads():
            thread.join(300)
        (later,) = retriever.find(snapshot, "opening hours of museum number 7003", mode="hybrid", limit=1)
        assert later.similarity is not None
        assert retriever.index_state().is_complete
    finally:
        retriever.close()


def test_index_of_many_new_tools_has_vectors_if_embedding_finishes_within_the_maximum_wait(
    open_indexer: Callable[..., Indexer],
) -> None:
    model = SlowModel()
    model.allow()
    assert open_indexer(model, max_wait_s=30.0).index(MANY_TOOLS).vectors is not None


def test_search_without_a_maximum_wait_waits_until_all_tools_are_embedded(
    open_indexer: Callable[..., Indexer],
) -> None:
    model = SlowModel()
    model.allow()
    indexer = open_indexer(model, max_wait_s=None)
    assert indexer.index(MANY_TOOLS).vectors is not None
    assert not background_threads()


def test_search_waits_for_vectors_if_only_a_few_tools_are_new(open_indexer: Callable[..., Indexer]) -> None:
    model = SlowModel()
    model.allow()
    assert open_indexer(model).index(MANY_TOOLS[:MAX_INLINE_TEXTS]).vectors is not None


def test_embedded_tools_are_found_by_similarity_while_other_tools_are_still_being_embedded(
    open_indexer: Callable[..., Indexer], tmp_path: Path
) -> None:
    known = (*MANY_TOOLS, *(make_tool(f"known_{n}", "knits") for n in range(400)))
    Indexer(CountingModel().embedder, VectorFile(tmp_path)).index(known)
    model = SlowModel()
    index = open_indexer(model, tmp_path).index((*known, *MORE_TOOLS))
    assert index.vectors is not None
    has_vector = index.vectors.packed.has_vector
    assert all(has_vector[index.by_name[tool.name]] for tool in known)
    assert not any(has_vector[index.by_name[tool.name]] for tool in MORE_TOOLS)


def test_index_has_no_vectors_while_most_tools_are_not_embedded_yet(
    open_indexer: Callable[..., Indexer], tmp_path: Path
) -> None:
    Indexer(CountingModel().embedder, VectorFile(tmp_path)).index(MANY_TOOLS[:MAX_INLINE_TEXTS])
    model = SlowModel()
    indexer = open_indexer(model, tmp_path)
    assert indexer.index(MANY_TOOLS).vectors is None
    model.allow()
    assert finish_index(indexer, MANY_TOOLS).vectors is not None
    assert model.counting.take_count() == len(MANY_TOOLS) - MAX_INLINE_TEXTS


def test_tools_added_during_background_embedding_are_embedded_in_the_same_run(
    open_indexer: Callable[..., Indexer],
) -> None:
    model = SlowModel()
    indexer, more = open_indexer(model), (*MANY_TOOLS, *MORE_TOOLS)
    indexer.index(MANY_TOOLS)
    assert model.started.wait(60)
    assert indexer.index(more).by_name.keys() == {tool.name for tool in more}
    model.allow()
    assert vectors(finish_index(indexer, more)) == vectors(
        Indexer(CountingModel().embedder, None).index(more)
    )
    assert model.counting.take_count() <= len(MANY_TOOLS) + len(MORE_TOOLS)


def test_search_waits_for_the_vectors_of_tools_added_during_background_embedding(
    open_indexer: Callable[..., Indexer],
) -> None:
    model = SlowModel()
    indexer, more = open_indexer(model, max_wait_s=60.0), (*MANY_TOOLS, *MORE_TOOLS)
    indexer.finish_index(MANY_TOOLS, 0.0)
    assert model.started.wait(60)
    permission = threading.Timer(0.2, model.allow)  # after the search below has begun to wait
    permission.start()
    found = vectors(indexer.index(more))
    permission.join()
    assert found == vectors(Indexer(CountingModel().embedder, None).index(more))


def test_waiting_for_the_index_ends_at_the_timeout_or_when_all_tools_are_embedded(
    open_indexer: Callable[..., Indexer],
) -> None:
    model = SlowModel()
    indexer = open_indexer(model)
    state = indexer.finish_index(MANY_TOOLS, 0.0)
    assert (state.tools, state.embedded, indexer.is_embedding()) == (300, 0, True)
    model.allow()
    assert indexer.finish_index(MANY_TOOLS).is_complete
    assert not indexer.is_embedding()


def test_waiting_for_the_index_ends_when_the_indexer_is_closed(open_indexer: Callable[..., Indexer]) -> None:
    model = SlowModel()
    indexer = open_indexer(model)
    waiting = threading.Thread(target=indexer.finish_index, args=(MANY_TOOLS,))
    waiting.start()
    assert model.started.wait(60)
    closing = threading.Thread(target=indexer.close)
    closing.start()
    model.allow(1)  # the batch that it is in
    for thread in (waiting, closing):
        thread.join(60)
        assert not thread.is_alive()


def test_vectors_computed_before_the_indexer_was_closed_are_reused_at_the_next_start(
    open_indexer: Callable[..., Indexer], tmp_path: Path
) -> None:
    model = SlowModel()
    indexer = open_indexer(model, tmp_path)
    indexer.index(MANY_TOOLS)
    assert model.started.wait(60)
    model.allow(2)
    closing = threading.Thread(target=indexer.close)
    closing.start()
    model.allow(1)  # the batch that it may be in
    closing.join(60)
    assert not closing.is_alive()
    read = model.counting.take_count()
    assert 0 < read < len(MANY_TOOLS)
    rest = CountingModel()
    assert Indexer(rest.embedder, VectorFile(tmp_path)).index(MANY_TOOLS).vectors is not None
    assert rest.take_count() == len(MANY_TOOLS) - read


def test_vectors_computed_before_an_interrupt_are_reused_at_the_next_start(tmp_path: Path) -> None:
    model = SlowModel(failing_after=2)
    model.allow()
    with pytest.raises(KeyboardInterrupt):
        Indexer(model, VectorFile(tmp_path)).index(MANY_TOOLS)
    read = model.counting.take_count()
    assert 0 < read < len(MANY_TOOLS)
    rest = CountingModel()
    Indexer(rest.embedder, VectorFile(tmp_path)).index(MANY_TOOLS)
    assert rest.take_count() == len(MANY_TOOLS) - read


def test_another_process_reads_the_vectors_stored_while_tools_are_still_being_embedded(
    tmp_path: Path,
) -> None:
    left: list[int] = []

    def look(done: int, _: int) -> None:
        if 0 < done < 100:
            other = CountingModel()
            Indexer(other.embedder, VectorFile(tmp_path)).index(MANY_TOOLS)
            left.append(other.take_count())

    Indexer(CountingModel().embedder, VectorFile(tmp_path), progress=look).index(MANY_TOOLS)
    assert 0 < left[0] < len(MANY_TOOLS)
    assert left[1:] == [0] * len(left[1:])


def test_log_reports_once_that_search_uses_keywords_until_tools_are_embedded(
    open_indexer: Callable[..., Indexer], caplog: pytest.LogCaptureFixture
) -> None:
    model = SlowModel()
    indexer = open_indexer(model)
    with caplog.at_level(logging.WARNING):
        indexer.index(MANY_TOOLS)
        indexer.index((*MANY_TOOLS, *MORE_TOOLS))
    assert [record.getMessage() for record in caplog.records] == [
        "new tools are found by keywords only until they are embedded: 300 tools"
    ]


def test_embedding_failure_in_the_background_falls_back_to_keyword_search(
    open_indexer: Callable[..., Indexer],
) -> None:
    class Gone(EmbeddingUnavailable):
        def __init__(self) -> None:
            super().__init__("gone")

    model = SlowModel(failing_after=0, error=Gone)
    indexer = open_indexer(model)
    model.allow()
    index = finish_index(indexer, MANY_TOOLS)
    assert index.vectors is None
    assert index.lexical.scores("stars")[0].any()


def test_search_does_not_wait_for_vectors_of_a_few_tools_with_many_example_messages(
    open_indexer: Callable[..., Indexer],
) -> None:
    model = SlowModel()
    few = [replace(tool, messages=("one wish", "two wishes")) for tool in MANY_TOOLS[: MAX_INLINE_TEXTS // 2]]
    assert open_indexer(model).index(few).vectors is None
    model.allow()


def test_concurrent_searches_start_only_one_embedding_thread(
    open_indexer: Callable[..., Indexer],
) -> None:
    model = SlowModel()
    indexer = open_indexer(model)
    asking = [threading.Thread(target=indexer.index, args=(MANY_TOOLS,)) for _ in range(6)]
    for each in asking:
        each.start()
    for each in asking:
        each.join(60)
    model.allow()
    finish_index(indexer, MANY_TOOLS)
    assert model.counting.take_count() == len(MANY_TOOLS)


def test_search_with_a_maximum_wait_of_zero_returns_keyword_hits_until_tools_are_embedded() -> None:
    model = SlowModel()
    retriever = Retriever(model, None, None, max_wait_s=0.0)
    snapshot = Snapshot({tool.name: tool for tool in MANY_TOOLS}, 0)
    try:
        early = retriever.answer(snapshot, "counts stars", mode="hybrid", limit=3)
        assert [hit.similarity for hit in early.hits] == [None] * 3
        model.allow()
        for thread in background_threads():
            thread.join(60)
        late = retriever.answer(snapshot, "counts stars", mode="hybrid", limit=3)
        assert all(hit.similarity is not None for hit in late.hits)
    finally:
        model.allow()
        retriever.close()


def test_concurrent_searches_wait_no_longer_than_the_limit_for_vectors(
    open_indexer: Callable[..., Indexer],
) -> None:
    model = SlowModel()
    indexer = open_indexer(model, max_wait_s=0.05)
    for _ in range(3):
        assert indexer.index(MANY_TOOLS).vectors is None
    assert indexer._wait_left_s == 0
    assert (indexer.state().tools, indexer.state().embedded) == (len(MANY_TOOLS), 0)
    assert not indexer.state().is_complete
    model.allow()
    finish_index(indexer, MANY_TOOLS)
    assert indexer.state().is_complete


class TestBackgroundIndexOfARuntime:
    """Many real tools and the shipped encoder, which needs about ten milliseconds for each."""

    @pytest.fixture
    def big(self, monkeypatch: pytest.MonkeyPatch, open_test_runtime: RuntimeOpener) -> Runtime:
        monkeypatch.setattr("toolfold.runtime.parts._MIN_PATIENCE_S", 0.0)
        runtime = open_test_runtime({"tools.selection": "hybrid", "tools.patience_seconds": 0})
        runtime.registry.add_all(
            make_tool(f"ledger_{n}", f"Book entry number {n} in the ledger of company {n % 97}")
            for n in range(2_000)
        )
        return runtime

    def test_event_reports_that_the_first_message_is_searched_by_keywords_while_tools_are_embedded(
        self, big: Runtime
    ) -> None:
        events: list[Event] = []
        big.events.subscribe(events.append, only=IndexUpdated)
        selection = big.session().assemble("book entry 1234 for company 70").selection
        assert selection is not None
        assert (selection.leg, selection.names[0]) == ("keyword", "ledger_1234")
        state = big.retriever.index_state()
        assert state.embedded < state.tools
        assert [type(event) for event in events] == [IndexUpdated]
        big.close()
        assert not background_threads()

    def test_runtime_builds_its_search_index_in_the_background_before_the_first_message(
        self, monkeypatch: pytest.MonkeyPatch, open_test_runtime: RuntimeOpener
    ) -> None:
        runtime = open_test_runtime({"tools.selection": "hybrid", "tools.rag_embed_model": "light"})
        wait_until(lambda: is_indexed(runtime))

    def test_runtime_builds_no_search_index_while_its_tools_are_few_enough_to_be_shown(
        self, open_test_runtime: RuntimeOpener
    ) -> None:
        runtime = open_test_runtime({"tools.rag_embed_model": "light"})
        runtime.registry.add_all(MORE_TOOLS)
        runtime._index_updates.wait()
        assert runtime.retriever.index_state().tools == 0

    def test_runtime_without_tool_search_builds_no_search_index(
        self, open_test_runtime: RuntimeOpener
    ) -> None:
        runtime = open_test_runtime(
            {"tools.selection": "eager", "tools.tool_search": "off", "tools.rag_embed_model": "light"}
        )
        runtime.registry.add_all(LONG_TOOLS)
        runtime._index_updates.wait()
        assert runtime.retriever.index_state().tools == 0

    def test_tools_registered_later_are_indexed_as_soon_as_they_exceed_the_threshold_of_tool_search(
        self, open_test_runtime: RuntimeOpener
    ) -> None:
        runtime = open_test_runtime({"tools.rag_embed_model": "light"})
        runtime.registry.add_all(LONG_TOOLS)
        wait_until(lambda: is_indexed(runtime))
        runtime.registry.add_all(MORE_TOOLS)
        wait_until(lambda: is_indexed(runtime))
        runtime.registry.remove(MORE_TOOLS[0].name)
        wait_until(lambda: is_indexed(runtime))

    def test_tools_are_indexed_when_a_session_opens_whose_context_window_is_too_small_for_them(
        self, open_test_runtime: RuntimeOpener
    ) -> None:
        runtime = open_test_runtime({"tools.rag_embed_model": "light"})
        runtime.registry.add_all(MORE_TOOLS)
        runtime.session(context_tokens=8_000)
        wait_until(lambda: is_indexed(runtime))

    async def test_waiting_for_the_index_builds_it_and_returns_its_state(
        self, open_test_runtime: RuntimeOpener
    ) -> None:
        runtime = open_test_runtime({"tools.rag_embed_model": "light"})
        state = await runtime.wait_for_index()
        assert (state.tools, state.is_complete) == (len(runtime.registry.snapshot()), True)
        assert runtime.wait_for_index_sync(60.0).tools == state.tools
        assert is_indexed(runtime)


def is_indexed(runtime: Runtime) -> bool:
    """Return True if all tools of a runtime, and no others, are embedded."""
    state = runtime.retriever.index_state()
    return state.tools == len(runtime.registry.snapshot()) and state.is_complete


ENDING = """
import sys, threading, time
from pathlib import Path
from tests.retrieval.catalog import CountingModel
from tests.retrieval.test_indexing import MANY_TOOLS
from toolfold.selection.retrieval.indexing import Indexer
from toolfold.selection.retrieval.vector_store import VectorFile

begun = threading.Event()

class SlowModel(CountingModel):
    def _count(self, texts):
        while begun.is_set() and threading.main_thread().is_alive():
            time.sleep(0.01)
        begun.set()
        return super()._count(texts)

indexer = Indexer(SlowModel().embedder, VectorFile(Path(sys.argv[1])), max_wait_s=0.0)
assert indexer.index(MANY_TOOLS).vectors is None
assert begun.wait(60)
"""


def test_program_that_exits_during_embedding_saves_the_vectors_computed_so_far(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", ENDING, str(tmp_path)], cwd=root, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr.count("Traceback")) == (0, 0), ended.stderr
    rest = CountingModel()
    index = Indexer(rest.embedder, VectorFile(tmp_path)).index(MANY_TOOLS)
    assert 0 < rest.take_count() < len(MANY_TOOLS)
    assert index.vectors is not None
    assert np.isfinite(index.vectors.packed.scales).all()
